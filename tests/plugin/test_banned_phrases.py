"""``banned_phrases=``: where it is given, lifted and replaced, its levels, the host's own loops, streams, and wrong arguments."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import outlines
import pytest
from outlines.generator import SteerableGenerator

import outlines_phi
from outlines_phi import (
    BannedPhrases,
    BudgetError,
    Effort,
    EmptyLanguageError,
    ExactPhi,
    Generator,
    Guarantee,
    LookaheadPhi,
    PhiLogitsProcessor,
    PhiTransformers,
    audit,
    generate,
)
from tests.inner import Correction, MaskLogitsProcessor, bundled
from tests.plugin.doors import BAN, SUNDAY
from tests.plugin.instruments import Gate, custom, free_texts, p_value, pair, texts, without
from tests.plugin.instruments import generate as generate_in
from tests.precision import near
from tests.refusals import refused

ANSWER = Literal["yes", "not now", "nobody", "no"]
SHORT: dict[str, Any] = {"max_new_tokens": 12}
PROMPT, TRUNCATED = SUNDAY.prompt, SUNDAY.limits
WORD = re.compile(r"(?<!\w)no(?!\w)")


def holds(texts: list[str], phrase: str = BAN[0]) -> bool:
    return any(phrase in text for text in texts)


def masked_by(processor: Any, model: PhiTransformers, **options: Any) -> list[str]:
    """Return the texts of Hugging Face's loop under a processor."""
    hf = pair(model)
    return texts(hf, generate_in(hf, PROMPT, logits_processor=[processor], **options), PROMPT)


class TestPlaces:
    def test_a_model_bans_by_default_and_a_call_lifts_it(self, model: PhiTransformers) -> None:
        banning = outlines_phi.wrap(model, banned_phrases=BAN)
        many: dict[str, Any] = {"num_return_sequences": 100, "do_sample": True, **SHORT}
        assert not holds(banning(PROMPT, **many)) and model.banned_phrases is None
        assert all(holds(banning(PROMPT, banned_phrases=lifted, **many)) for lifted in [None, (), []])
        assert not holds(banning(PROMPT, banned_phrases=["yes"], **many), "yes")
        assert not holds([text for row in banning.batch([PROMPT] * 2, **many) for text in row])
        assert "".join(banning.stream(PROMPT, seed=1, **SHORT)) == banning(PROMPT, seed=1, **SHORT)

    def test_phrases_may_come_from_anything_that_yields_them(self, model: PhiTransformers) -> None:
        """They are read once, however many places of a call ask for them."""
        generator = outlines_phi.Generator(model, None, banned_phrases=["yes"])
        roads: list[Callable[[Any], Any]] = [
            lambda ban: model(PROMPT, banned_phrases=ban, seed=1, **SHORT),
            lambda ban: model.batch([PROMPT], banned_phrases=ban, seed=1, **SHORT),
            lambda ban: "".join(model.stream(PROMPT, banned_phrases=ban, seed=1, **SHORT)),
            lambda ban: model(PROMPT, ANSWER, banned_phrases=ban, phi="exact", seed=1, **SHORT),
            lambda ban: generator(PROMPT, banned_phrases=ban, seed=1, **SHORT),
            lambda ban: generator.sample(PROMPT, banned_phrases=ban, seed=1, **SHORT).texts,
            lambda ban: outlines_phi.Generator(model, None, banned_phrases=ban)(PROMPT, seed=1, **SHORT),
            lambda ban: outlines_phi.wrap(model, banned_phrases=ban)(PROMPT, seed=1, **SHORT),
            lambda ban: outlines_phi.ban(model, ban)(PROMPT, seed=1, **SHORT),
        ]
        assert all(road(phrase for phrase in BAN) == road(BAN) for road in roads)

    def test_generators_over_it_inherit_and_wrapping_again_keeps_it(self, model: PhiTransformers) -> None:
        banning = outlines_phi.wrap(model, banned_phrases=["now"])
        for generator in (outlines_phi.Generator(banning, ANSWER), generate.format(banning, ANSWER)):
            assert generator.banned_phrases == BannedPhrases(["now"])
            assert not holds([generator(PROMPT) for _ in range(30)], "now")
            assert holds([generator(PROMPT, banned_phrases=None) for _ in range(60)], "now")
        assert not holds([outlines.Generator(banning, ANSWER)(PROMPT, phi="exact") for _ in range(30)], "now")
        banning = outlines_phi.wrap(model, banned_phrases=BAN)
        assert outlines_phi.wrap(banning).banned_phrases == BannedPhrases(BAN)
        assert outlines_phi.wrap(banning, banned_phrases=None).banned_phrases is None

    def test_every_method_of_a_generator_knows_it(self, model: PhiTransformers) -> None:
        generator = outlines_phi.Generator(model, ANSWER, banned_phrases=["now"])
        whole, law = generator.probabilities(PROMPT, banned_phrases=None), generator.probabilities(PROMPT)
        assert "not now" in whole and "not now" not in law
        assert law["no"].p == near(whole["no"].p / (1 - whole["not now"].p))
        assert "not now" not in generator.mode(PROMPT, top=9).texts
        assert "not now" in generator.mode(PROMPT, top=9, banned_phrases=()).texts
        assert generator(PROMPT, do_sample=False, phi="exact", banned_phrases=["yes"]) != "yes"
        report, unbanned = generator.audit(PROMPT, 50), generator.audit(PROMPT, 50, banned_phrases=None)
        assert report.pooled.bias.log_phi.value < unbanned.pooled.bias.log_phi.value - 0.05
        assert outlines_phi.audit(generator, PROMPT, 50, banned_phrases=()).pooled.bias.phi.value > 0.3
        assert generator.sample(PROMPT, 5, banned_phrases=["y"]).values

    def test_free_text_is_audited(self, model: PhiTransformers) -> None:
        report = outlines_phi.audit((model, None), PROMPT, 50, banned_phrases=BAN, seed=1, bounds_tokens=200, **SHORT)
        own = outlines_phi.Generator(model, None, banned_phrases=BAN).audit(PROMPT, 50, seed=1, **SHORT)
        assert all(-2 < found.pooled.bias.log_phi.value < -0.01 for found in (report, own))
        refused(r"banned_phrases=.*free text has no format", outlines_phi.audit, (model, None), PROMPT)


class TestLevels:
    LEVELS = [
        ("mask", Guarantee.WEIGHTED),
        ("lookahead", Guarantee.APPROXIMATE),
        ("weighted", Guarantee.WEIGHTED),
        ("exact", Guarantee.EXACT),
    ]

    @pytest.mark.parametrize(("level", "guarantee"), LEVELS)
    @pytest.mark.parametrize("output_type", [None, ANSWER], ids=["free text", "choice"])
    def test_each_has_its_guarantee(
        self, output_type: Any, level: str, guarantee: Guarantee, model: PhiTransformers
    ) -> None:
        ban = BannedPhrases(["not"], level=level)
        draws = outlines_phi.Generator(model, output_type, banned_phrases=ban).sample(PROMPT, 20, **SHORT)
        assert draws.guarantee == guarantee and not holds(draws.texts, "not")
        assert bool(draws.rejections) <= (level in ("lookahead", "weighted"))
        assert np.isnan(draws.log_w).all() == (level == "lookahead")

    @pytest.mark.parametrize("output_type", [None, ANSWER])
    def test_an_error_names_the_phrases_on_every_road(self, output_type: Any, model: PhiTransformers) -> None:
        """A generator's own calls run on its guide, which has the phrases once."""
        phi = LookaheadPhi(effort=Effort(attempts=1))
        generator = outlines_phi.Generator(model, output_type, banned_phrases=["it is", "no"], phi=phi)
        prompt = "Question: is the bakery open on Sunday? Answer: no, " if output_type is None else PROMPT
        calls: list[Callable[[int], Any]] = [
            lambda seed: generator(prompt, seed=seed, **SHORT),
            lambda seed: generator.batch([prompt], seed=seed, **SHORT),
            lambda seed: list(generator.stream(prompt, seed=seed, **SHORT)),
            lambda seed: generator.sample(prompt, seed=seed, **SHORT),
        ]
        for call in calls:
            with pytest.raises(BudgetError, match="mostly '(it is|no)'"):
                for seed in range(100):
                    call(seed)

    def test_rejections_are_counted_by_phrase(self, model: PhiTransformers) -> None:
        draws = outlines_phi.Generator(model, None, banned_phrases=[*BAN, "never"]).sample(PROMPT, 100, **SHORT)
        assert set(draws.rejections) == {"'it is'"} and draws.rejections["'it is'"] > 10
        assert f"{draws.rejections[repr(BAN[0])]} attempts upon banned phrases" in repr(draws)


class TestHostLoops:
    """``phi=None`` and processors: masks that never leak."""

    def roads(self, model: PhiTransformers) -> dict[str, Callable[[], list[str]]]:
        hf_model, tokenizer = pair(model)
        stock = outlines.from_transformers(hf_model, tokenizer)
        many: dict[str, Any] = {"do_sample": True, "num_return_sequences": 250, **TRUNCATED}
        bans: dict[str, Any] = {
            "model": outlines_phi.ban(hf_model, BAN, tokenizer=tokenizer),
            "tokenizer": outlines_phi.ban(tokenizer, BAN),
            "vocabulary": outlines_phi.ban(model.lm.vocabulary, BAN),
        }
        return {
            "call": lambda: model(PROMPT, phi=None, banned_phrases=BAN, **many),
            "generator": lambda: outlines_phi.Generator(model, None, phi=None, banned_phrases=BAN)(PROMPT, **many),
            "stock generator": lambda: outlines_phi.ban(outlines.Generator(stock), BAN)(PROMPT, **many),
            **{name: partial(masked_by, processor, model, **many) for name, processor in bans.items()},
        }

    def test_free_text_is_masked(self, model: PhiTransformers) -> None:
        limits = {"k": TRUNCATED["top_k"], "budget": TRUNCATED["max_new_tokens"]}
        masked = free_texts(model, PROMPT, allowed=lambda text: BAN[0] not in PROMPT + text, **limits)
        truth = without(free_texts(model, PROMPT, **limits), BAN, PROMPT)
        for name, road in self.roads(model).items():
            drawn = road()
            # The control: it is not the conditioned law.
            assert p_value(drawn, masked) > 1e-4 > p_value(drawn, truth), name

    def test_free_text_has_the_default_budget_there(self, model: PhiTransformers) -> None:
        options: dict[str, Any] = {"do_sample": True, "temperature": 9.0, "top_k": 0, "num_return_sequences": 3}
        drawn = model(PROMPT, phi=None, banned_phrases=["</", "<e"], **options)
        assert max(map(len, drawn)) > 150  # far more than the 20 tokens of the host

    @pytest.mark.parametrize("budget", [1, 2, 3, 4])
    def test_a_whole_word_is_not_cut_off_at_the_end(self, budget: int, model: PhiTransformers) -> None:
        """As it is, the control, where the budget is not known."""
        ban = BannedPhrases(["no"], whole_word=True)
        many: dict[str, Any] = {"do_sample": True, "num_return_sequences": 200, "max_new_tokens": budget}
        for phi in (None, "local", "lookahead", "exact"):
            assert not any(map(WORD.search, model(PROMPT, banned_phrases=ban, phi=phi, **many))), phi
        processor = outlines_phi.ban(model.hf_tokenizer, ban, max_new_tokens=budget)
        assert not any(map(WORD.search, masked_by(processor, model, **many)))
        unlimited = MaskLogitsProcessor(model.table(None, ban), ban=ban)
        assert budget > 1 or any(map(WORD.search, masked_by(unlimited, model, **many)))

    @pytest.mark.parametrize("temperature", [1.0, 0.7])
    def test_weights_of_a_processor_count_the_end_of_the_budget(
        self, temperature: float, model: PhiTransformers
    ) -> None:
        law: dict[str, Any] = {"temperature": temperature, "top_k": 4, "max_new_tokens": 5}
        processor, hf = PhiLogitsProcessor(model, None, banned_phrases=BAN, **law), pair(model)
        options = {"logits_processor": [processor], "num_return_sequences": 800, **processor.host_options}
        rows = generate_in(hf, PROMPT, **options)
        w = np.exp(processor.log_w(rows))
        assert np.array_equal(np.exp(processor.log_w()), w) and (w > 0).all()
        exact = outlines_phi.Generator(model, None, banned_phrases=BAN).sample(PROMPT, 4, phi="exact", **law)
        low, high = np.exp(exact.log_z_bounds)
        error = 4 * w.std() / np.sqrt(len(w))
        assert low - error < w.mean() < high + error and high < 0.9
        drawn = texts(hf, rows, PROMPT)
        assert not holds(drawn) and max(map(len, drawn)) > 12


class TestBan:
    def test_kinds_stay_what_they_are(self, model: PhiTransformers, stock: Any) -> None:
        own = outlines_phi.ban(outlines_phi.Generator(model, ANSWER, phi="exact"), ["now"])
        assert type(own) is type(outlines_phi.Generator(model, ANSWER)) and own.phi == ExactPhi()
        assert outlines_phi.ban(generate.choice(model, ["yes", "not now"], phi="exact"), ["now"])(PROMPT) == "yes"
        for existing in (outlines.Generator(model, ANSWER), outlines.Generator(stock, ANSWER)):
            banned = outlines_phi.ban(existing, ["now", "yes"])
            assert type(banned) is SteerableGenerator and banned.model is existing.model
            assert not holds([banned(PROMPT, do_sample=True, **SHORT) for _ in range(30)], "yes")
        processor = outlines.Generator(stock, ANSWER).logits_processor
        masking = outlines_phi.ban(processor, ["now"], tokenizer=stock.hf_tokenizer)
        assert isinstance(masking, MaskLogitsProcessor)
        assert outlines_phi.ban(masking, ["yes"]).ban == BannedPhrases(["now", "yes"])
        weighted = PhiLogitsProcessor(model, ANSWER, max_new_tokens=9, phi="local", temperature=0.7)
        both = outlines_phi.ban(weighted, ["now"])
        assert isinstance(both, PhiLogitsProcessor) and both.host_options == weighted.host_options
        assert isinstance(outlines_phi.ban(stock, BAN), PhiTransformers)
        assert outlines_phi.ban(outlines_phi.wrap(model, phi="local"), BAN).phi is not None

    def test_a_level_is_kept_by_stock_generators_over_wrapped_models(
        self, model: PhiTransformers, drawn: list[Any]
    ) -> None:
        outlines_phi.ban(outlines.Generator(model), BAN, level="exact")(PROMPT, **SHORT)
        outlines_phi.ban(outlines.Generator(model), BAN)(PROMPT, **SHORT)
        outlines_phi.ban(outlines.Generator(model, ANSWER), ["now"], level="lookahead")(PROMPT)
        assert [draws.guarantee for draws in drawn] == [Guarantee.EXACT, Guarantee.APPROXIMATE, Guarantee.APPROXIMATE]

    def test_a_processor_that_bans_says_what_custom_generate_draws(self, model: PhiTransformers) -> None:
        typed = outlines_phi.ban(outlines.Generator(model, ANSWER), ["now"]).logits_processor
        for processor, phi, guarantee in (
            (outlines_phi.ban(model.hf_tokenizer, BAN), {}, Guarantee.APPROXIMATE),
            (typed, {"phi": "lookahead"}, 0),
        ):
            options = {"logits_processor": [processor], "return_dict_in_generate": True, **phi, **SHORT}
            assert custom(pair(model), PROMPT, **options).draws[0].guarantee == guarantee


def test_what_a_stream_releases_may_not_be_the_beginning_of_a_phrase(model: PhiTransformers) -> None:
    """Whole windows: where a piece ends in what a phrase begins with, the next one was decided with it."""
    began = 0
    for seed in range(20):
        text, calls = "", -1
        with Gate(model.model) as gate:
            for piece in model.stream(PROMPT, banned_phrases=[" it is"], seed=seed, **SHORT):
                assert calls in (-1, gate.calls), (seed, text)
                text += piece
                pending = any(text.endswith(" it is"[:n]) for n in range(1, 6))
                calls, began = gate.calls if pending else -1, began + pending
    assert began > 3


def test_an_error_comes_after_what_was_released(model: PhiTransformers) -> None:
    hasty = LookaheadPhi(effort=Effort(attempts=1, tokens=1), width=1)
    failed = 0
    for seed in range(20):
        released: list[str] = []
        stream = model.stream(PROMPT, banned_phrases=[" it", "yes", " not"], phi=hasty, seed=seed, **SHORT)
        try:
            released.extend(stream)
        except BudgetError:
            failed += bool(released)
        assert not holds(released, " it")
    assert failed


def test_equal_bans_share_a_table_and_its_trees(fresh: PhiTransformers) -> None:
    table = fresh.table(ANSWER, BannedPhrases(["now"]))
    assert fresh.table(ANSWER, BannedPhrases((word for word in ["now", "now"]), level="exact")) is table
    assert fresh.table(ANSWER, BannedPhrases(["now"], across_prompt=False)) is not table
    assert fresh.table(None, BannedPhrases(["now"])) is fresh.table(None, BannedPhrases([b"now"]))
    outlines_phi.Generator(fresh, ANSWER, phi="exact", banned_phrases=["now"]).sample(PROMPT, 20)
    with Gate(fresh.model) as gate:
        fresh(PROMPT, ANSWER, phi="exact", banned_phrases=["now"])
        assert gate.calls == 1  # the prompt alone, as a hook may have changed the law


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"banned_phrases": "it is"}, r"is one phrase; expected a list of phrases: \['it is'\]"),
    ({"banned_phrases": ["a", ""]}, "a banned phrase is empty"),
    ({"banned_phrases": {"a": 1}}, "expected a list of phrases"),
    ({"banned_phrases": 7}, "expected a list of phrases"),
    ({"banned_phrases": [re.compile("a+")]}, "unbounded"),
    ({"banned_phrases": BannedPhrases(BAN, level="mask"), "phi": "exact"}, "stands for LocalPhi"),
    ({"banned_phrases": BAN, "do_sample": False}, "do_sample=False was asked of free text"),
    ({"banned_phrases": BAN, "num_beams": 3}, "num_beams .*beam search"),
    ({"banned_phrases": BAN, "phi": "onestep"}, "phi='onestep' was given with banned phrases"),
    ({"bannedphrases": BAN, "phi": "exact"}, r"did you mean banned_phrases=\?"),
    ({"bad_words": BAN, "phi": "exact"}, "give banned_phrases="),
    ({"banned_phrases": BAN, "bad_words_ids": [[5]]}, "in all their spellings with banned_phrases="),
    ({"banned_phrases": BAN, "constraint": str.islower}, "constraint"),
    ({"phy": "exact"}, r"did you mean phi=\?"),
    ({"phi": "lookahead"}, "phi='lookahead' was given.*Give banned_phrases="),
]
CAT, AHEAD = BannedPhrases(["cat"], whole_word=True), BannedPhrases(BAN, level="lookahead")
IGNORING: dict[str, Any] = {"ignore_case": True}


def free(model: PhiTransformers) -> Any:
    return outlines_phi.Generator(model, None, banned_phrases=BAN)


def stock_of(model: PhiTransformers) -> Any:
    return outlines.from_transformers(*pair(model))


REFUSED: list[tuple[Callable[[PhiTransformers], Any], str]] = [
    (lambda m: free(m).mode(PROMPT), "was asked of free text"),
    (lambda m: free(m).probabilities(PROMPT), "was asked of free text"),
    (lambda m: free(m)(PROMPT, banned_phrases=None, phi="exact"), "free text has nothing to correct"),
    (lambda m: outlines_phi.Generator(m), r"or banned_phrases=.*output_type=None was given"),
    (lambda m: m.stream(PROMPT, banned_phrases=BAN, phi="lookahead", constraint=lambda text: True), "or a look-ahead"),
    (lambda m: m(PROMPT, banned_phrases=BAN, stop_at="x"), "stop_at cannot be used here"),
    (lambda m: custom(pair(m), PROMPT, vocabulary=..., banned_phrases=BAN, **SHORT), "vocabulary=tokenizer"),
    (
        lambda m: outlines.Generator(stock_of(m), ANSWER)(
            PROMPT, custom_generate=outlines_phi.custom_generate, banned_phrases=BAN, **SHORT
        ),
        "what the tokens write is not known",
    ),
    (
        lambda m: m(PROMPT, phi=None, banned_phrases=CAT, stop_strings=["dog"], tokenizer=m.hf_tokenizer),
        "Give stop_strings=None .* with whole words banned",
    ),
    (lambda m: outlines_phi.ban(m.hf_tokenizer, CAT), r"max_new_tokens=N.*whole_word=True was given to ban\(\)"),
    (
        lambda m: outlines_phi.ban(m.hf_tokenizer, AHEAD),
        r"level='lookahead' was given to ban\(\) for the host's own loop",
    ),
    (lambda m: PhiLogitsProcessor(m, None, banned_phrases=AHEAD, max_new_tokens=9), "needs the .*model"),
    (
        lambda m: PhiLogitsProcessor(m, None, banned_phrases=BAN, phi="onestep", max_new_tokens=9),
        "phi='onestep' was given with banned phrases",
    ),
    (
        lambda m: outlines_phi.ban(outlines_phi.ban(m, ["a"], **IGNORING), ["c"]),
        "bans phrases already, with ignore_case=True",
    ),
    (lambda m: outlines_phi.ban(m, []), "was given no phrases"),
    (lambda m: outlines_phi.ban(m, BAN, ignorecase=True), r"did you mean ignore_case=\?"),
    (lambda m: outlines_phi.ban(m, BannedPhrases(BAN), whole_word=True), "beside a BannedPhrases"),
    (lambda m: outlines_phi.ban(m, BAN, max_new_tokens=9), r"max_new_tokens= was given to ban\(\) beside"),
    *(
        (
            lambda m, name=name: outlines_phi.ban(stock_of(m), ["a"], **{name: ["b"]}),
            r"the second argument, ban\(thing, phrases\)",
        )
        for name in ("banned_phrases", "banned_phrase", "ban_phrases")
    ),
    (lambda m: outlines_phi.ban(m.model, BAN), "was given without it"),
    (lambda m: outlines_phi.ban(7, BAN), "A int was given as model"),
    (
        lambda m: outlines_phi.ban(outlines.Generator(stock_of(m), ANSWER).logits_processor, BAN),
        "without the tokenizer",
    ),
]


class TestErrors:
    @pytest.mark.parametrize(("keywords", "words"), WRONG, ids=str)
    def test_before_any_model_call(self, keywords: dict[str, Any], words: str, model: PhiTransformers) -> None:
        output_type = None if "banned_phrases" in keywords else ANSWER
        with Gate(model.model) as gate:
            for call in (
                lambda: model(PROMPT, output_type, **keywords),
                lambda: model.batch([PROMPT], output_type, **keywords),
                lambda: outlines.Generator(model, output_type)(PROMPT, **keywords),
            ):
                refused(words, call)
            assert gate.calls == 0

    @pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
    def test_what_cannot_be_banned(self, call: Callable[[Any], Any], words: str, model: PhiTransformers) -> None:
        refused(words, call, model)

    def test_phrases_that_leave_nothing(self, model: PhiTransformers) -> None:
        stock = outlines.from_transformers(model.model, model.hf_tokenizer)
        ban = ["o", "z", "es"]
        calls: list[Callable[[], Any]] = [
            lambda: model(PROMPT, ANSWER, banned_phrases=ban),
            lambda: outlines_phi.Generator(model, ANSWER, banned_phrases=ban),
            lambda: generate.format(model, ANSWER, banned_phrases=ban),
            lambda: outlines_phi.audit((model, ANSWER), PROMPT, banned_phrases=ban),
            lambda: outlines_phi.ban(outlines.Generator(model, ANSWER), ban),
            lambda: outlines_phi.ban(outlines.Generator(stock, ANSWER), ban),
            lambda: PhiLogitsProcessor(model, ANSWER, banned_phrases=ban, max_new_tokens=9),
        ]
        for call in calls:
            refused(r"leave nothing of the output type: 'o', 'es'", call, error=EmptyLanguageError)

    @pytest.mark.parametrize("phi", [None, "local", "lookahead", "exact"])
    def test_a_prompt_that_leaves_nothing(self, phi: Any, model: PhiTransformers) -> None:
        """Not an error of torch in the host's loop, and the phrase is named."""
        animals, phrases = Literal["at", "ow"], ["cat", "cow"]
        generator = outlines_phi.Generator(model, animals, banned_phrases=phrases, phi=phi)
        assert generator("Animal: x", **SHORT) in ("at", "ow")
        refused("ends in 'Animal: c': .* makes 'c(at|ow)'", generator, "Animal: c", **SHORT, error=EmptyLanguageError)
        refused("makes 'c(at|ow)'", generator.batch, ["Animal: x", "Animal: c"], **SHORT, error=EmptyLanguageError)


SHORT_ANSWER = Literal["yes", "no", "not now"]
MISTYPED = ("banned_phrase", "ban_phrases", "banned_phases", "banned_words")


@pytest.mark.parametrize(
    ("phi", "level", "words"),
    [
        (
            LookaheadPhi(weights=True),
            "lookahead",
            r"LookaheadPhi\(weights=True.* stands for LookaheadPhi\(weights=False",
        ),
        (LookaheadPhi(), "weighted", r"LookaheadPhi\(weights=False.* stands for LookaheadPhi\(weights=True"),
        ("lookahead", "exact", r"phi=LookaheadPhi\(.* which stands for ExactPhi\("),
        (ExactPhi(tolerance=0.1), "exact", r"tolerance=0\.1.* stands for ExactPhi\("),
        ("exact", "mask", r"phi=ExactPhi\(.* level='mask', which stands for LocalPhi\(\)"),
        (None, "weighted", "phi=None was given"),
    ],
)
def test_a_conflict_names_what_conflicts(phi: Any, level: str, words: str) -> None:
    refused(words, Correction().replaced_by, phi, BannedPhrases(["a"], level=level))


@pytest.mark.parametrize("name", MISTYPED)
def test_a_mistyped_keyword_goes_nowhere(name: str, model: PhiTransformers) -> None:
    given: dict[str, Any] = {name: ["it is"], "max_new_tokens": 8}
    generators = Generator(model, SHORT_ANSWER), Generator(model, None, banned_phrases=["zzz"])
    calls: list[Callable[[], Any]] = [
        lambda: model(PROMPT, **given),
        lambda: model(PROMPT, SHORT_ANSWER, **given),
        lambda: model(PROMPT, SHORT_ANSWER, phi=None, **given),
        lambda: model.batch([PROMPT], **given),
        lambda: list(model.stream(PROMPT, **given)),
        lambda: generate.text(model)(PROMPT, 8, **{name: ["it is"]}),
        lambda: audit((model, SHORT_ANSWER), [PROMPT], **given),
        *(partial(each, PROMPT, **given) for each in generators),
        *(partial(each, PROMPT, phi=None, **given) for each in generators),
        *(partial(each.batch, [PROMPT], **given) for each in generators),
        *(partial(each.sample, PROMPT, **given) for each in generators),
        *(lambda each=each: list(each.stream(PROMPT, **given)) for each in generators),
    ]
    for call in calls:
        refused(rf"{name} cannot be used here.*banned_phrases=", call)


def test_options_of_transformers_are_no_mistakes(model: PhiTransformers) -> None:
    _, tokenizer = bundled.load()
    spelled = tokenizer(["it"], add_special_tokens=False)["input_ids"]
    assert "it" not in model(PROMPT, phi=None, bad_words_ids=spelled, max_new_tokens=1, do_sample=False)


@pytest.mark.parametrize("level", ["mask", "lookahead", "weighted", "exact"])
@pytest.mark.parametrize(
    ("output_type", "phrases"), [(None, ["yes", "no"]), (SHORT_ANSWER, ["yes", "zzz"])], ids=["free text", "choice"]
)
def test_what_truncation_leaves_nothing_of_names_the_ban(
    output_type: Any, phrases: list[str], level: str, model: PhiTransformers
) -> None:
    ban = BannedPhrases(phrases, level=level)
    generator = Generator(model, output_type, banned_phrases=ban)
    calls: list[Callable[[], Any]] = [
        lambda: generator(PROMPT, top_k=1, seed=0, max_new_tokens=8),
        lambda: generator.batch([PROMPT] * 2, top_k=1, seed=0, max_new_tokens=8),
        lambda: list(generator.stream(PROMPT, top_k=1, seed=0, max_new_tokens=8)),
    ]
    for call in calls:
        caught = refused(rf"top_k=1.*without the banned phrases {ban.listed}", call, error=EmptyLanguageError)
        assert "ban less" in str(caught.value)
    refused(
        "(?s)^(?!.*ban)",
        Generator(model, Literal["zz", "qq"], phi="exact"),
        PROMPT,
        top_k=1,
        seed=0,
        error=EmptyLanguageError,
    )
