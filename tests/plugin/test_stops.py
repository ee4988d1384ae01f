"""Ends of texts on the bundled model: stop strings beside enumeration, doors and plain Transformers; ``ends="open"``."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import outlines
import pytest
import torch
from outlines.types import JsonSchema, Regex
from pydantic import BaseModel

import outlines_phi
from outlines_phi import (
    SMC,
    BannedPhrases,
    EmptyLanguageError,
    ExactPhi,
    Generator,
    PhiTransformers,
    Special,
    Thinking,
    UnsupportedError,
    Vocabulary,
    from_language_model,
    generate,
)
from outlines_phi.errors import VocabularyError
from outlines_phi.lm import TableModel
from outlines_phi.plugin.hosts.vllm_server.phi_vllm import ServedModel
from tests.languages import ALPHA, PROMPT, STOPPED, Ids, StoppedLanguage, p_value
from tests.plugin.doors import DOORS, Door, Wanted, through
from tests.plugin.instruments import MONDAY, SUNDAY, custom, pair
from tests.precision import near
from tests.refusals import refusals, refused

DRAWS = 3_000
WORDS = STOPPED[0]


def first(text: str, strings: tuple[str, ...]) -> tuple[int, int] | None:
    """Return the stop string that is complete first, of several complete at once the longest."""
    for end in range(1, len(text) + 1):
        if found := [string for string in strings if text[:end].endswith(string)]:
            return end - max(map(len, found)), end
    return None


class TestLaw:
    """The law of texts, by trying all token sequences of a table model."""

    @staticmethod
    @cache
    def law(language: StoppedLanguage, kept: bool, phrase: str = "\n") -> tuple[dict[str, float], float]:
        accepts = lambda text: re.fullmatch(language.pattern, text) is not None  # noqa: E731
        tokens, found = language.lm.vocabulary.tokens, defaultdict[Any, float](float)

        def follow(ids: Ids, text: str, p: float) -> None:
            shares = law_after(language.lm, ids)
            if accepts(text):
                found[text] += p * shares[0]
            for token, written in enumerate(tokens[1:], 1):
                below = text + written.decode()
                if phrase in below:
                    continue
                if stop := first(below, language.stops):
                    member = next((below[:at] for at in stop if accepts(below[:at])), None)
                    if member is not None:
                        found[below[: stop[1]] if kept else member] += p * shares[token]
                elif len(ids) + 2 <= language.budget:
                    follow((*ids, token), below, p * shares[token])

        follow((), "", 1.0)
        phi = sum(found.values())
        return {text: p / phi for text, p in found.items()}, phi

    @pytest.mark.parametrize("name", ["stop", "stop_strings"])
    @pytest.mark.parametrize("phi", ["exact", "auto"])
    def test_draws_are_from_it_and_masked_ones_and_those_of_whole_texts_are_not(self, name: str, phi: str) -> None:
        law, _ = self.law(WORDS, name == "stop_strings")
        generator = Generator(from_language_model(WORDS.lm, lambda text: PROMPT), WORDS.type, phi=phi)
        options = {"seed": 3, "max_new_tokens": WORDS.budget, name: list(WORDS.stops)}

        def drawn(**others: Any) -> list[Any]:
            return generator.sample("", DRAWS, **(options | others)).texts

        assert p_value(drawn(), law) > ALPHA and p_value(drawn(phi="local"), law) < ALPHA
        assert p_value(drawn(**{name: None}), law) < ALPHA

    @pytest.mark.parametrize(
        "options",
        [
            {"phi": "local"},
            {"phi": "onestep", "draft": ["tree", "prompt_lookup"]},
            {"phi": "dp"},
            {"phi": "learned"},
            {"phi": "local", "sampler": SMC(particles=6)},
            {"phi": "exact", "draft": "tree"},
        ],
        ids=str,
    )
    def test_weights_and_drafts(self, options: dict[str, Any]) -> None:
        law, phi = self.law(WORDS, False)
        draws = Generator(from_language_model(WORDS.lm, lambda text: PROMPT), WORDS.type, stop=WORDS.stops).sample(
            "", 600, seed=5, max_new_tokens=WORDS.budget, **options
        )
        assert math.exp(draws.log_z) == pytest.approx(phi, rel=0.1)
        likeliest = max(law, key=lambda text: law[text])
        assert draws.expectation(lambda draw: draw.text == likeliest) == pytest.approx(law[likeliest], abs=0.07)

    @pytest.mark.parametrize("name", ["stop", "stop_strings"])
    def test_probabilities_are_those_of_values(self, name: str) -> None:
        law, phi = self.law(WORDS, False)
        generator = Generator(from_language_model(WORDS.lm, lambda text: PROMPT), WORDS.type, **{name: WORDS.stops})
        found = generator.probabilities("", tolerance=0.0, max_new_tokens=WORDS.budget)
        assert {entry.value: entry.p for entry in found.entries} == pytest.approx(law)
        assert found.complete and math.exp(found.log_z_bounds[0]) == pytest.approx(phi)
        best = generator.mode("", 3, max_new_tokens=WORDS.budget)
        reference = sorted(WORDS.reference().log_p.values(), reverse=True)
        assert [item.log_p for item in best] == pytest.approx(reference[:3])
        assert {item.value for item in best} <= set(law)

    @pytest.mark.parametrize("phi", ["exact", "lookahead"])
    def test_bans_beside(self, phi: str) -> None:
        model, ban = from_language_model(WORDS.lm, lambda text: PROMPT), BannedPhrases(["bc"], across_prompt=False)
        generator = Generator(model, WORDS.type, banned_phrases=ban, stop_strings=WORDS.stops)
        draws = generator.sample("", DRAWS, seed=2, max_new_tokens=WORDS.budget, phi=phi)
        assert not any("bc" in text for text in draws.texts)
        if phi == "exact":
            assert p_value(draws.texts, self.law(WORDS, True, "bc")[0]) > ALPHA
            assert p_value(draws.texts, self.law(WORDS, True)[0]) < ALPHA

    @pytest.mark.parametrize("ban", [None, "b"])
    @pytest.mark.parametrize("phi", ["exact", "lookahead"])
    def test_free_text(self, ban: str | None, phi: str) -> None:
        """The windows of a look-ahead end where nothing waits: with one banned letter it is exact."""
        lm, strings = WORDS.lm, ("a", "cc")
        options = {"max_new_tokens": 2, "num_return_sequences": DRAWS, "seed": 1, "stop": strings, "phi": phi}
        model, law = from_language_model(lm, lambda text: PROMPT), defaultdict[Any, float](float)
        if ban is None and phi == "lookahead":
            refused("nothing to look ahead for", model, "", **options)
            return
        phrases = None if ban is None else BannedPhrases([ban], across_prompt=False)

        def follow(ids: Ids, text: str, p: float) -> None:
            stop = first(text, strings)
            if stop or len(ids) == options["max_new_tokens"]:
                law[text[: stop[0]] if stop else text] += p
                return
            after = law_after(lm, ids)
            live = [
                token for token, written in enumerate(lm.vocabulary.tokens) if not (ban and ban.encode() in written)
            ]
            total = 1.0 if phi == "exact" else sum(after[token] for token in live)
            for token in live:
                if token:
                    follow((*ids, token), text + lm.vocabulary.tokens[token].decode(), p * after[token] / total)
            law[text] += p * after[0] / total

        follow((), "", 1.0)
        total = sum(law.values())
        assert total == pytest.approx(1.0) if ban is None or phi == "lookahead" else total < 0.9
        texts = model("", banned_phrases=phrases, **options)
        assert p_value(texts, {text: p / total for text, p in law.items()}) > ALPHA

    def test_fields(self) -> None:
        """Named groups are fields as without stop strings."""
        model = from_language_model(WORDS.lm, lambda text: PROMPT)
        generator = Generator(model, Regex("(?P<one>a|b)x(?P<two>[ab]+)"), phi="fields", stop=["c"])
        draws = generator.sample("", 50, seed=1, max_new_tokens=6)
        assert {draw.blocks for draw in draws} == {2} and all("c" not in text for text in draws.texts)
        assert any(draw.token_ids[-1] != 0 for draw in draws)
        refused(
            "Leave stop strings out of phi='fields'", Generator(model, Regex("[ab]"), phi="fields").sample, "", stop="c"
        )


def law_after(lm: Any, ids: Ids) -> list[float]:
    return torch.softmax(torch.tensor(lm.logits((*PROMPT, *ids))), -1).tolist()


ANSWERS = ("no", "sure", "yes")
STOPS = [",", " o", "\n"]
"""No end of the prompt begins one: transformers searches the prompt, too."""
ASKED = Wanted(SUNDAY, n=300, budget=6, words=ANSWERS, options={"phi": "exact"})


@through(*DOORS)
def test_every_door_takes_them(model: PhiTransformers, door: Door) -> None:
    """With the law of the values; ids that custom_generate returns have the last token whole."""
    law = Generator(model, ASKED.output_type, stop=STOPS).probabilities(SUNDAY, **ASKED.limits)
    whole = Generator(model, ASKED.output_type).probabilities(SUNDAY, **ASKED.limits)
    assert law.log_z_bounds[0] > whole.log_z_bounds[1] + 0.5
    texts = door(model, ASKED.by(stop=STOPS))
    if door.__name__ == "custom_generate":
        assert any(text not in ANSWERS for text in texts)
        texts = [text[: (first(text, tuple(STOPS)) or (None,))[0]] for text in texts]
    assert set(texts) <= set(ANSWERS)
    assert p_value(texts, {entry.value: entry.p for entry in law.entries}) > ALPHA


def test_custom_generate_has_them_as_a_whole(model: PhiTransformers) -> None:
    options = {"output_type": Literal[ANSWERS], "phi": "exact", "max_new_tokens": 6, "num_return_sequences": 20}
    hf = pair(model)
    (draws,) = custom(hf, SUNDAY, stop_strings=STOPS, tokenizer=hf[1], return_dict_in_generate=True, **options).draws
    assert {draw.value for draw in draws} <= set(ANSWERS) and any(draw.text not in ANSWERS for draw in draws)


def test_in_free_text_they_are_those_of_transformers(model: PhiTransformers) -> None:
    """Draws without a correction are the host's own; but for what transformers leaves in the text behind the string."""
    options = {"max_new_tokens": 5, "top_k": 3, "num_return_sequences": DRAWS}
    plain = model(SUNDAY, stop_strings=STOPS, do_sample=True, top_p=1.0, **options)
    plain = [text[: (first(text, tuple(STOPS)) or (0, None))[1]] for text in plain]
    drawn = model(SUNDAY, stop_strings=STOPS, phi="exact", seed=1, **options)
    removed = model(SUNDAY, stop=STOPS, phi="exact", seed=1, **options)
    shares = {text: (plain.count(text) + drawn.count(text)) / (2 * DRAWS) for text in sorted({*plain, *drawn})}
    assert p_value(plain, shares) > ALPHA and p_value(drawn, shares) > ALPHA
    assert removed == [text[: (first(text, tuple(STOPS)) or (None,))[0]] for text in drawn]


@pytest.mark.parametrize("output_type", [None, Regex("[a-z ,.]{0,30}"), JsonSchema({"type": "string", "maxLength": 9})])
@pytest.mark.parametrize("name", ["stop", "stop_strings"])
def test_no_draw_goes_on_behind_one(model: PhiTransformers, output_type: Any, name: str) -> None:
    strings = (" on", "a", "ing ") if output_type is None or isinstance(output_type, Regex) else ("\n", " ", "t")
    options = {"max_new_tokens": 24, "seed": 2, "phi": "local", name: strings, "temperature": 1.5}
    generator = Generator(model, output_type, banned_phrases=["it is"] if output_type is None else None)
    draws = generator.sample(SUNDAY, 40, **options)
    cut = {True: 0, False: 0}
    for draw in draws:
        written = model.lm.vocabulary.decode(draw.token_ids).decode(errors="replace")
        stop = first(written, strings)
        cut[stop is not None] += 1
        assert stop is None or first(written[: stop[1] - 1], strings) is None
        assert draw.text == (written if stop is None else written[: stop[name == "stop_strings"]])
        ends = draw.token_ids[-1] == model.lm.vocabulary.eos_ids[0]
        assert ends == (stop is None) or (output_type is None and len(draw.token_ids) == 24)
    assert cut[True]
    assert "".join(generator.stream(SUNDAY, **options)) == generator.sample(SUNDAY, 1, **options)[0].text


@pytest.mark.filterwarnings("ignore::outlines_phi.FitWarning")
@pytest.mark.parametrize(("seed", "scale"), [(3176, 1.5), (3177, 4), (3203, 4)])
def test_rounding_leaves_nothing_undecided(seed: int, scale: float) -> None:
    """A token of text that ends it may be the only free one, whose probability was a difference."""
    vocabulary = Vocabulary.from_tokens(["a", "c", "abc", "", "<e>", "b"], 4)
    model = from_language_model(TableModel.random(vocabulary, seed=seed, order=1, scale=scale), lambda text: (0,))
    generator = Generator(model, Regex("[ab]"), stop=["ab", "b"])
    low, high = generator.probabilities("", tolerance=0, max_new_tokens=4).log_z_bounds
    draws = generator.sample("", 9, phi=ExactPhi(normalizers=9), seed=1, max_new_tokens=4)
    assert low == high and draws.log_normalizers == (pytest.approx(low, abs=1e-9),) * 9


class Record(BaseModel):
    a: int


def test_values_are_read_without_them(model: PhiTransformers) -> None:
    generator = Generator(model, Record, stop_strings=["\n", " !"])
    options = {"seed": 1, "max_new_tokens": 20, "phi": "local"}
    draws = generator.sample('{"a": 1}\n{"a": 2}\n', 30, **options)
    assert all(isinstance(draw.value, Record) and json.loads(draw.member or draw.text) for draw in draws)
    # A member ends with it.
    assert Record.model_validate_json(Generator(model, Record, stop=["}"])(SUNDAY, **options))


def test_the_name_of_a_special_token(model: PhiTransformers) -> None:
    generator = Generator(model, Literal[ANSWERS], stop=[model.hf_tokenizer.eos_token])
    assert generator.sample(SUNDAY, 20, seed=1).texts == generator.sample(SUNDAY, 20, seed=1, stop=None).texts


test_what_does_not_go_with_them = refusals(
    [
        (lambda m: Generator(m, Thinking(Literal["a"], end=". "), stop="e."), "or Thinking another marker"),
        (lambda m: Generator(m, Regex("a"), stop="\ud800"), "expected a string of at least one character"),
        (lambda m: Generator(m, Regex("a,b"), stop=","), "Give other stop strings. Each text of the output type holds"),
        (lambda m: Generator(m, Regex("a"), stop=["x"], ends="open"), "ends='open' was given beside stop strings"),
        (lambda m: Generator(m, Regex("a"), stop="x").audit(SUNDAY), "Leave stop= out of an audit"),
        (
            lambda m: m(SUNDAY, stop="x", max_new_tokens=3),
            "Give stop_strings=, which stay in the text, or give phi= beside stop=",
        ),
        (
            lambda m: m(SUNDAY, phi="lookahead", stop="x", banned_phrases=BannedPhrases(["it"], whole_word=True)),
            "whole_word=False",
        ),
        (lambda m: m(SUNDAY, phi="exact", stop="x", do_sample=False), "do_sample=False was asked of free text"),
        (lambda m: Generator(m, Regex("a"), stop=[Special("</thnk>")]), "Name a special token of the tokenizer"),
        (lambda m: ServedModel(object(), "none")(SUNDAY, stop_strings="x"), "Give stop=, as the server has it"),
    ],
    error=(UnsupportedError, EmptyLanguageError, VocabularyError),
)


def test_the_classic_api_keeps_them(model: PhiTransformers) -> None:
    regex = generate.regex(model, "yes|no|sure", phi="exact")
    texts = [regex(SUNDAY, stop_at=STOPS, seed=seed) for seed in range(30)]
    assert {text.rstrip(",\n").removesuffix(" o") for text in texts} <= set(ANSWERS) and set(texts) - set(ANSWERS)


def test_indices_of_outlines_core_are_known_token_by_token(model: PhiTransformers) -> None:
    stock = outlines.Generator(outlines.from_transformers(model.model, model.hf_tokenizer), Literal[ANSWERS])
    refused("Give an output type beside stop strings", model, SUNDAY, stock.logits_processor, phi="exact", stop="x")


TEXTS = ("no", "not", "yes", "eat")
CHOICE = Literal[TEXTS]  # one begins another; one has a likely beginning and an unlikely end
OPTIONS: dict[str, Any] = {"temperature": 5.0, "max_new_tokens": 12}
Begins = Callable[..., float]


@pytest.fixture(scope="module")
def begins(model: outlines_phi.PhiTransformers) -> Begins:
    """The probability that what the model writes begins with a text, or with ``ended`` is it: the sum over all ways to write it."""
    tokens, eos = model.lm.vocabulary.tokens, model.lm.vocabulary.eos_ids[0]

    @cache
    def law(ids: tuple[int, ...]) -> list[float]:
        with torch.inference_mode():
            logits = (
                model.model(torch.tensor([[*model.hf_tokenizer(MONDAY)["input_ids"], *ids]])).logits[0, -1].double()
            )
        return torch.softmax(logits / OPTIONS["temperature"], -1).tolist()

    def sum_over(ids: tuple[int, ...], left: bytes, ended: bool) -> float:
        p, total = law(ids), 0.0
        if not left:
            return p[eos]
        for token, written in enumerate(tokens):
            if written.startswith(left) and not (ended and written == left):
                total += 0.0 if ended else p[token]
            elif written and left.startswith(written) and (written != left or ended):
                total += p[token] * sum_over((*ids, token), left.removeprefix(written), ended)
        return total

    return lambda text, ended=False: sum_over((), text if isinstance(text, bytes) else text.encode(), ended)


@pytest.fixture(scope="module")
def law(begins: Begins) -> dict[str, float]:
    """``P(text begins with v)``, less that of the member that begins with ``v``; not normalised."""
    found = {text: begins(text) for text in TEXTS}
    # Special tokens write nothing, and are no part of a language: after "no" something is written, or the text ends.
    longer = sum(begins(b"no" + bytes([byte])) for byte in range(256))
    return found | {"no": begins("no", ended=True) + longer - found["not"]}


def made(model: Any, output_type: Any = CHOICE, **options: Any) -> Any:
    return outlines_phi.Generator(model, output_type, **{"ends": "open", **options})


def distribution(law: dict[str, float]) -> dict[Any, float]:
    return {text: p / sum(law.values()) for text, p in law.items()}


def drawn(generator: Any, **options: Any) -> list[Any]:
    return generator.sample(MONDAY, 4_000, seed=4, **OPTIONS, **options).texts


def test_probabilities_are_those_of_the_beginnings(model: outlines_phi.PhiTransformers, law: dict[str, float]) -> None:
    found, phi = made(model).probabilities(MONDAY, tolerance=0.0, **OPTIONS), sum(law.values())
    assert {entry.value: entry.p for entry in found.entries} == {text: near(p / phi) for text, p in law.items()}
    assert math.exp(found.log_z_bounds[0]) == near(phi) and found.complete
    whole = made(model, ends="text").probabilities(MONDAY, tolerance=0.0, **OPTIONS)
    assert whole.log_z_bounds[1] < found.log_z_bounds[0] - 1


def test_draws_are_from_this_law_and_those_of_whole_texts_and_of_masking_are_not(
    model: outlines_phi.PhiTransformers, law: dict[str, float]
) -> None:
    generator = made(model)
    assert all(p_value(drawn(generator, phi=phi), distribution(law)) > ALPHA for phi in ("exact", "auto"))
    assert p_value(drawn(generator, phi="local"), distribution(law)) < ALPHA
    assert p_value(drawn(generator, phi="exact", ends="text"), distribution(law)) < ALPHA


@pytest.mark.parametrize(
    "options", [{"phi": "local"}, {"phi": "onestep"}, {"phi": "dp"}, {"sampler": SMC(particles=8)}]
)
def test_weights_know_the_law(
    model: outlines_phi.PhiTransformers, law: dict[str, float], options: dict[str, Any]
) -> None:
    draws = made(model).sample(MONDAY, 600, seed=1, **OPTIONS, **options)
    assert draws.expectation(lambda draw: draw.text == "no") == pytest.approx(law["no"] / sum(law.values()), abs=0.08)
    assert math.exp(draws.log_z) == pytest.approx(sum(law.values()), rel=0.2)


def test_the_mode_is_the_likeliest_sequence(model: outlines_phi.PhiTransformers) -> None:
    ranking = made(model).mode(MONDAY, 20, **OPTIONS)
    assert ranking.gap == 0.0 and set(ranking.texts) <= set(TEXTS)
    tokens = model.lm.vocabulary.tokens
    likeliest = {item.token_ids: item.log_p for item in ranking}
    for draw in made(model).sample(MONDAY, 500, seed=2, **OPTIONS):
        assert b"".join(tokens[token] for token in draw.token_ids).decode(errors="replace").startswith(draw.text)
        assert draw.token_ids in likeliest or draw.log_p <= min(likeliest.values()) + 1e-5
    assert made(model)(MONDAY, do_sample=False, **OPTIONS) == ranking.texts[0]


def test_what_follows_may_be_asked_for(model: outlines_phi.PhiTransformers, begins: Begins) -> None:
    found = made(model, Literal["no", "eat"], open_at="[^A-Za-z]").probabilities(MONDAY, tolerance=0.0, **OPTIONS)
    phi = math.exp(found.log_z_bounds[0])
    # Bytes that no character begins with are none that may follow.
    after = [byte for byte in (*range(0x80), *range(0xC2, 0xF5)) if not chr(byte).isalpha() or byte >= 0x80]
    assert phi * found["no"].p == near(begins("no", ended=True) + sum(begins(b"no" + bytes([byte])) for byte in after))
    assert 0 < phi * found["no"].p < 0.9 * begins("no")


def test_the_end_of_the_budget_settles_it(model: outlines_phi.PhiTransformers) -> None:
    generator, options = made(model, Literal["no", "not now"]), {**OPTIONS, "max_new_tokens": 1}
    assert generator.sample(MONDAY, 20, seed=1, **options).texts == ["no"] * 20
    assert [entry.value for entry in generator.probabilities(MONDAY, **options).entries if entry.p] == ["no"]


def test_banned_members_are_no_members(
    model: outlines_phi.PhiTransformers, begins: Begins, law: dict[str, float]
) -> None:
    found = made(model, banned_phrases=["ot", "yes"]).probabilities(MONDAY, tolerance=0.0, **OPTIONS)
    phi = begins("no") + law["eat"]
    assert [(entry.value, entry.p) for entry in found.entries] == [
        ("no", near(begins("no") / phi)),
        ("eat", near(law["eat"] / phi)),
    ]


test_what_does_not_go_with_it = refusals(
    [
        (
            lambda m: made(m, Record),
            "Give a choice, such as Literal, or a regular expression; or leave ends='open' out",
        ),
        (lambda m: made(m, None, banned_phrases=["x"]), "not held as one automaton"),
        (lambda m: made(m, banned_phrases=BannedPhrases([": no"])), "across_prompt=False"),
        (lambda m: made(m, ends="opne"), r"did you mean 'open'\?"),
        (lambda m: made(m, ends="text", open_at="x"), "Give ends='open' and a regular expression"),
        (lambda m: made(m, open_at="xx"), "a regular expression of one character"),
        (lambda m: made(m, open_at=r"\b"), "Write a pattern that matches some text"),
        (lambda m: made(m, tokenization="canonical"), "which asks for whole texts"),
        (lambda m: made(m, constraint=lambda text: True), "which sees what is written after a member"),
        (lambda m: made(m, phi=None)(MONDAY), "ends= was given without phi="),
        (lambda m: m(MONDAY, CHOICE, ends="open"), "ends= was given without phi="),
        (lambda m: list(m.stream(MONDAY, CHOICE, ends="open")), "ends= was given without phi="),
        (lambda m: made(m).audit(MONDAY), "Leave ends= out of an audit"),
        (lambda m: made(m, made(m).table, ends="text"), "Give an output type, and ends='open' beside it"),
        (
            lambda m: ServedModel(object(), "none")(MONDAY, CHOICE, phi="exact", ends="open"),
            "Leave ends out, or run the model with vLLM offline",
        ),
        (lambda m: made(m, phi="lookahead")(MONDAY), "bans no phrases"),
    ],
    error=(UnsupportedError, EmptyLanguageError),
)
