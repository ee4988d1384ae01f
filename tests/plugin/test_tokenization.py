"""Canonical tokenization under a correction: the tokenizer's own spelling alone, on the bundled model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import pytest

import outlines_phi
from outlines_phi.errors import UnsupportedError
from outlines_phi.fidelity.comparison import total_variation
from outlines_phi_workbench.suite.reference import Reference
from tests.languages import ALPHA, p_value
from tests.plugin.loops import custom, pair, written
from tests.plugin.oracle import by_text, reference
from tests.precision import near

QUESTION = "Question: is the bakery open on Monday? Answer: "
ANSWERS = Literal[
    "northern", "eastern", "western"
]  # in pieces that the tokenizer would not choose, at a high temperature
TEMPERATURE = 8.0
OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "temperature": TEMPERATURE}


@pytest.fixture(scope="module")
def law(model: outlines_phi.PhiTransformers) -> tuple[Reference, dict[tuple[int, ...], float]]:
    whole = reference(model, ANSWERS, QUESTION, 12, temperature=TEMPERATURE)
    spelled = {tuple(model.hf_tokenizer.encode(text)) for text in ("northern", "eastern", "western")}
    p = {y: math.exp(log_p) for y, log_p in whole.log_p.items() if y[:-1] in spelled}
    assert len(p) == 3
    return whole, {y: value / sum(p.values()) for y, value in p.items()}


def test_draws_probabilities_and_mode(model: outlines_phi.PhiTransformers, law: tuple) -> None:
    """Its cost in fidelity is the share given up: conditioned on a subset, mu* is 1 - mu*(subset) away in total variation."""
    whole, mu = law
    generator = outlines_phi.Generator(model, ANSWERS, phi="exact", tokenization="canonical")
    drawn = [draw.token_ids for draw in generator.sample(QUESTION, 6000, seed=2, **OPTIONS)]
    assert p_value(drawn, mu) > ALPHA
    anyhow = [draw.token_ids for draw in generator.sample(QUESTION, 6000, seed=2, tokenization="any", **OPTIONS)]
    assert p_value(anyhow, mu) < ALPHA < p_value(anyhow, whole.mu)
    found = generator.probabilities(QUESTION, tolerance=0.0, **OPTIONS)
    assert {text: found[text].p for text in by_text(model, mu)} == near(by_text(model, mu))
    (best,) = generator.mode(QUESTION, **OPTIONS)
    assert best.token_ids == max(mu, key=lambda y: mu[y])
    assert generator(QUESTION, do_sample=False, **OPTIONS) == best.text
    kept = sum(whole.mu[y] for y in mu)
    assert total_variation(mu, whole.mu) == pytest.approx(1 - kept) and 0.5 < 1 - kept < 0.9


def test_on_other_roads(model: outlines_phi.PhiTransformers) -> None:
    spelled = tuple(model.hf_tokenizer.encode("northern"))
    generator = outlines_phi.Generator(model, Literal["northern"], tokenization="canonical")
    text = model(QUESTION, Literal["northern"], phi="exact", tokenization="canonical", seed=1)
    assert text == "northern" == "".join(generator.stream(QUESTION, seed=1))
    draws = generator.sample(QUESTION, 300, phi="local", seed=1, temperature=TEMPERATURE)
    assert draws.failures > 0 and {draw.token_ids[:-1] for draw in draws} == {spelled}


def canonical(model: outlines_phi.PhiTransformers, **options: Any) -> outlines_phi.PhiGenerator:
    return outlines_phi.Generator(model, ANSWERS, **{"tokenization": "canonical", **options})


REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda m: canonical(m)(QUESTION, phi=None), "tokenization= was given without phi="),
    (lambda m: "".join(canonical(m).stream(QUESTION, phi="local")), "under a step estimator or a look-ahead"),
    (
        lambda m: m(QUESTION, ANSWERS, phi="exact", tokenization="best"),
        "'best' was given; expected 'any' or 'canonical'",
    ),
    (lambda m: canonical(m, tokenization="best"), "expected 'any' or 'canonical'"),
    (lambda m: canonical(m).audit(QUESTION, n=10, tokenization="canonical"), "Leave tokenization= out of an audit"),
    (
        lambda m: custom(
            pair(m), QUESTION, vocabulary=m.lm.vocabulary, output_type=ANSWERS, tokenization="canonical", **OPTIONS
        ),
        "give custom_generate vocabulary=tokenizer, which defines",
    ),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_where_it_cannot_be(call: Callable[[Any], Any], words: str, model: outlines_phi.PhiTransformers) -> None:
    with pytest.raises(UnsupportedError, match=words):
        call(model)


def test_under_custom_generate(model: outlines_phi.PhiTransformers, law: tuple) -> None:
    _, mu = law
    hf, options = pair(model), {**OPTIONS, "output_type": ANSWERS, "tokenization": "canonical"}
    drawn = custom(hf, QUESTION, phi="exact", num_return_sequences=3000, seed=4, **options)
    assert p_value(written(hf, drawn, QUESTION), mu) > ALPHA
    likeliest = custom(hf, QUESTION, do_sample=False, **options)
    assert written(hf, likeliest, QUESTION) == [max(mu, key=lambda y: mu[y])]
