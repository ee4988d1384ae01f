"""``ends="open"``: texts that begin with a member and may go on, on the bundled model."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import pytest
import torch
from pydantic import BaseModel

import outlines_phi
from outlines_phi import SMC, BannedPhrases, EmptyLanguageError, UnsupportedError
from outlines_phi.plugin.hosts.vllm_server.phi_vllm import ServedModel
from tests.languages import ALPHA, p_value
from tests.precision import near

QUESTION = "Question: is the bakery open on Monday? Answer: "
TEXTS = ("no", "not", "yes", "eat")
ANSWERS = Literal[TEXTS]  # one begins another; one has a likely beginning and an unlikely end
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
                model.model(torch.tensor([[*model.hf_tokenizer(QUESTION)["input_ids"], *ids]])).logits[0, -1].double()
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


def made(model: Any, output_type: Any = ANSWERS, **options: Any) -> outlines_phi.PhiGenerator:
    return outlines_phi.Generator(model, output_type, **{"ends": "open", **options})


def distribution(law: dict[str, float]) -> dict[Any, float]:
    return {(text,): p / sum(law.values()) for text, p in law.items()}


def drawn(generator: outlines_phi.PhiGenerator, **options: Any) -> list[Any]:
    return [(text,) for text in generator.sample(QUESTION, 4_000, seed=4, **OPTIONS, **options).texts]


def test_probabilities_are_those_of_the_beginnings(model: outlines_phi.PhiTransformers, law: dict[str, float]) -> None:
    found, phi = made(model).probabilities(QUESTION, tolerance=0.0, **OPTIONS), sum(law.values())
    assert {entry.value: entry.p for entry in found.entries} == {text: near(p / phi) for text, p in law.items()}
    assert math.exp(found.log_z_bounds[0]) == near(phi) and found.complete
    whole = made(model, ends="text").probabilities(QUESTION, tolerance=0.0, **OPTIONS)
    assert whole.log_z_bounds[1] < found.log_z_bounds[0] - 1


def test_draws_are_from_this_law_and_those_of_whole_texts_and_of_masking_are_not(
    model: outlines_phi.PhiTransformers, law: dict[str, float]
) -> None:
    generator = made(model)
    for phi in ("exact", "auto"):
        assert p_value(drawn(generator, phi=phi), distribution(law)) > ALPHA
    assert p_value(drawn(generator, phi="local"), distribution(law)) < ALPHA
    assert p_value(drawn(generator, phi="exact", ends="text"), distribution(law)) < ALPHA


@pytest.mark.parametrize(
    "options", [{"phi": "local"}, {"phi": "onestep"}, {"phi": "dp"}, {"sampler": SMC(particles=8)}]
)
def test_weights_know_the_law(
    model: outlines_phi.PhiTransformers, law: dict[str, float], options: dict[str, Any]
) -> None:
    draws = made(model).sample(QUESTION, 600, seed=1, **OPTIONS, **options)
    assert draws.expectation(lambda draw: draw.text == "no") == pytest.approx(law["no"] / sum(law.values()), abs=0.08)
    assert math.exp(draws.log_z) == pytest.approx(sum(law.values()), rel=0.2)


def test_the_mode_is_the_likeliest_sequence(model: outlines_phi.PhiTransformers) -> None:
    ranking = made(model).mode(QUESTION, 20, **OPTIONS)
    assert ranking.gap == 0.0 and set(ranking.texts) <= set(TEXTS)
    tokens = model.lm.vocabulary.tokens
    likeliest = {item.token_ids: item.log_p for item in ranking}
    for draw in made(model).sample(QUESTION, 500, seed=2, **OPTIONS):
        assert b"".join(tokens[token] for token in draw.token_ids).decode(errors="replace").startswith(draw.text)
        assert draw.token_ids in likeliest or draw.log_p <= min(likeliest.values()) + 1e-5
    assert made(model)(QUESTION, do_sample=False, **OPTIONS) == ranking.texts[0]


def test_what_follows_may_be_asked_for(model: outlines_phi.PhiTransformers, begins: Begins) -> None:
    found = made(model, Literal["no", "eat"], open_at="[^A-Za-z]").probabilities(QUESTION, tolerance=0.0, **OPTIONS)
    phi = math.exp(found.log_z_bounds[0])
    # Bytes that no character begins with are none that may follow.
    after = [byte for byte in (*range(0x80), *range(0xC2, 0xF5)) if not chr(byte).isalpha() or byte >= 0x80]
    assert phi * found["no"].p == near(begins("no", ended=True) + sum(begins(b"no" + bytes([byte])) for byte in after))
    assert 0 < phi * found["no"].p < 0.9 * begins("no")


def test_the_end_of_the_budget_settles_it(model: outlines_phi.PhiTransformers) -> None:
    generator, options = made(model, Literal["no", "not now"]), {**OPTIONS, "max_new_tokens": 1}
    assert generator.sample(QUESTION, 20, seed=1, **options).texts == ["no"] * 20
    assert [entry.value for entry in generator.probabilities(QUESTION, **options).entries if entry.p] == ["no"]


def test_banned_members_are_no_members(
    model: outlines_phi.PhiTransformers, begins: Begins, law: dict[str, float]
) -> None:
    found = made(model, banned_phrases=["ot", "yes"]).probabilities(QUESTION, tolerance=0.0, **OPTIONS)
    phi = begins("no") + law["eat"]
    assert [(entry.value, entry.p) for entry in found.entries] == [
        ("no", near(begins("no") / phi)),
        ("eat", near(law["eat"] / phi)),
    ]


class Record(BaseModel):
    a: int


REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda m: made(m, Record), "Give a choice, such as Literal, or a regular expression; or leave ends='open' out"),
    (lambda m: made(m, None, banned_phrases=["x"]), "not held as one automaton"),
    (lambda m: made(m, banned_phrases=BannedPhrases([": no"])), "across_prompt=False"),
    (lambda m: made(m, ends="opne"), r"did you mean 'open'\?"),
    (lambda m: made(m, ends="text", open_at="x"), "Give ends='open' and a regular expression"),
    (lambda m: made(m, open_at="xx"), "a regular expression of one character"),
    (lambda m: made(m, open_at=r"\b"), "Write a pattern that matches some text"),
    (lambda m: made(m, tokenization="canonical"), "which asks for whole texts"),
    (lambda m: made(m, constraint=lambda text: True), "which sees what is written after a member"),
    (lambda m: made(m, phi=None)(QUESTION), "ends= was given without phi="),
    (lambda m: m(QUESTION, ANSWERS, ends="open"), "ends= was given without phi="),
    (lambda m: list(m.stream(QUESTION, ANSWERS, ends="open")), "ends= was given without phi="),
    (lambda m: made(m).audit(QUESTION), "Leave ends= out of an audit"),
    (lambda m: made(m, made(m).table, ends="text"), "Give an output type, and ends='open' beside it"),
    (
        lambda m: ServedModel(object(), "none")(QUESTION, ANSWERS, phi="exact", ends="open"),
        "Leave ends out, or run the model with vLLM offline",
    ),
    (lambda m: made(m, phi="lookahead")(QUESTION), "bans no phrases"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_does_not_go_with_it(
    model: outlines_phi.PhiTransformers, call: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises((UnsupportedError, EmptyLanguageError), match=message):
        call(model)
