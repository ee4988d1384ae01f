"""Canonical tokenization under a correction: the tokenizer's own spelling alone, on the bundled model."""

from __future__ import annotations

import math
from typing import Literal

import pytest

import outlines_phi
from outlines_phi.errors import UnsupportedError
from outlines_phi.fidelity.comparison import total_variation
from outlines_phi.settings import SamplingSettings
from outlines_phi_workbench.suite.reference import Reference, enumerate_language
from tests.languages import ALPHA, p_value
from tests.precision import near

QUESTION = "Question: is the bakery open on Monday? Answer: "
ANSWERS = Literal[
    "northern", "eastern", "western"
]  # in pieces that the tokenizer would not choose, at a high temperature
TEMPERATURE = 8.0


@pytest.fixture(scope="module")
def law(model: outlines_phi.PhiTransformers) -> tuple[Reference, dict[tuple[int, ...], float]]:
    settings, table = SamplingSettings(max_new_tokens=12, temperature=TEMPERATURE), model.table(ANSWERS)
    whole = enumerate_language(model.lm, table, model._prompt_ids(QUESTION), settings, 12)
    spelled = {tuple(model.hf_tokenizer.encode(text)) for text in ("northern", "eastern", "western")}
    p = {y: math.exp(log_p) for y, log_p in whole.log_p.items() if y[:-1] in spelled}
    assert len(p) == 3
    return whole, {y: value / sum(p.values()) for y, value in p.items()}


def test_draws_probabilities_and_mode(model: outlines_phi.PhiTransformers, law: tuple) -> None:
    whole, mu = law
    generator = outlines_phi.Generator(model, ANSWERS, phi="exact", tokenization="canonical")
    options = {"max_new_tokens": 12, "temperature": TEMPERATURE}
    drawn = [draw.token_ids for draw in generator.sample(QUESTION, 6000, seed=2, **options)]
    assert p_value(drawn, mu) > ALPHA
    anyhow = [draw.token_ids for draw in generator.sample(QUESTION, 6000, seed=2, tokenization="any", **options)]
    assert p_value(anyhow, mu) < ALPHA and p_value(anyhow, whole.mu) > ALPHA
    found = generator.probabilities(QUESTION, tolerance=0.0, **options)
    for y, p in mu.items():
        assert found[generator.logits_processor.table.vocabulary.decode(y).decode()].p == near(p)
    (best,) = generator.mode(QUESTION, **options)
    assert best.token_ids == max(mu, key=lambda y: mu[y])
    assert generator(QUESTION, do_sample=False, **options) == best.text


def test_its_cost_in_fidelity_is_the_share_that_it_gives_up(law: tuple) -> None:
    """mu* conditioned on a subset is 1 - mu*(subset) away from mu*, in total variation."""
    whole, mu = law
    kept = sum(whole.mu[y] for y in mu)
    assert total_variation(mu, whole.mu) == pytest.approx(1 - kept)
    assert 0.5 < 1 - kept < 0.9


def test_on_other_roads(model: outlines_phi.PhiTransformers) -> None:
    spelled = tuple(model.hf_tokenizer.encode("northern"))
    text = model(QUESTION, Literal["northern"], phi="exact", tokenization="canonical", seed=1)
    assert (
        text
        == "northern"
        == "".join(
            outlines_phi.Generator(model, Literal["northern"], tokenization="canonical").stream(QUESTION, seed=1)
        )
    )
    masked = outlines_phi.Generator(model, Literal["northern"], phi="local", tokenization="canonical")
    draws = masked.sample(QUESTION, 300, seed=1, temperature=TEMPERATURE)
    assert draws.failures > 0 and {draw.token_ids[:-1] for draw in draws} == {spelled}


def test_where_it_cannot_be(model: outlines_phi.PhiTransformers) -> None:
    generator = outlines_phi.Generator(model, ANSWERS, tokenization="canonical")
    with pytest.raises(UnsupportedError, match="tokenization= was given without phi="):
        generator(QUESTION, phi=None)
    with pytest.raises(UnsupportedError, match="under a step estimator or a look-ahead"):
        "".join(generator.stream(QUESTION, phi="local"))
    with pytest.raises(UnsupportedError, match="tokenization='best' was given; expected 'any' or 'canonical'"):
        model(QUESTION, ANSWERS, phi="exact", tokenization="best")
    with pytest.raises(UnsupportedError, match="expected 'any' or 'canonical'"):
        outlines_phi.Generator(model, ANSWERS, tokenization="best")
    with pytest.raises(UnsupportedError, match="Leave tokenization= out of an audit"):
        outlines_phi.Generator(model, ANSWERS).audit(QUESTION, n=10, tokenization="canonical")


def test_under_custom_generate(model: outlines_phi.PhiTransformers, law: tuple) -> None:
    _, mu = law
    prompt = model.hf_tokenizer(QUESTION, return_tensors="pt")

    def generate(**options: object) -> list[tuple[int, ...]]:
        ids = model.model.generate(
            **prompt,
            custom_generate=outlines_phi.custom_generate,
            output_type=ANSWERS,
            tokenization="canonical",
            max_new_tokens=12,
            temperature=TEMPERATURE,
            **options,
        )
        eos = model.hf_tokenizer.eos_token_id
        rows = ids[:, prompt["input_ids"].shape[1] :].tolist()
        return [tuple(row[: row.index(eos) + 1]) for row in rows]

    drawn = generate(vocabulary=model.hf_tokenizer, phi="exact", num_return_sequences=3000, seed=4)
    assert p_value(drawn, mu) > ALPHA
    assert generate(vocabulary=model.hf_tokenizer, do_sample=False) == [max(mu, key=lambda y: mu[y])]
    with pytest.raises(UnsupportedError, match="give custom_generate vocabulary=tokenizer, which defines"):
        generate(vocabulary=model.lm.vocabulary, phi="exact")
