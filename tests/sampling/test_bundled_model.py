"""The laws of theory.md, section 11, on a real model: the bundled one, through the plugin."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
from pydantic import BaseModel, Field

import outlines_phi
from outlines_phi import ExactPhi, OneStepPhi, SamplingSettings
from outlines_phi_workbench.suite.reference import Reference, enumerate_language
from tests.inner import RejectionAttempts, bundled, frequencies, noise_floor, preexpand, total_variation
from tests.languages import ALPHA, DRAWS, p_value
from tests.precision import NATS
from tests.sampling.variants import cut_by_length, first_to_finish, keep_bounds_after_eviction, without_coin

QUESTION = "Question: is the bakery open on Monday? Answer: "
CHARACTER = "Character: Aria is a brave elf. JSON: "
BUDGET = 12


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int
    city: str = Field(max_length=20)


@pytest.fixture(scope="module")
def model() -> outlines_phi.PhiTransformers:
    return outlines_phi.from_transformers(*bundled.load())


@pytest.fixture(scope="module")
def answers(model: outlines_phi.PhiTransformers) -> tuple[outlines_phi.plugin.generator.PhiGenerator, Reference]:
    """Return a finite type, and its exact laws by enumeration."""
    generator = outlines_phi.Generator(model, Literal["yes", "no", "not now", "nobody"])
    table = generator.logits_processor.table
    settings = SamplingSettings(max_new_tokens=BUDGET)
    return generator, enumerate_language(model.lm, table, model._prompt_ids(QUESTION), settings, BUDGET)


@pytest.mark.parametrize("prefixes", [512, 0], ids=["whole", "grown"])
def test_exact_draws_of_a_finite_type(answers: tuple, prefixes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preexpand, "SHORT", prefixes)
    generator, reference = answers
    draws = generator.sample(QUESTION, DRAWS, seed=11, max_new_tokens=BUDGET)
    drawn = [draw.token_ids for draw in draws]
    distance, floor = total_variation(frequencies(drawn), reference.mu), noise_floor(reference.mu, DRAWS)
    print(f"TV {distance:.4f}, floor {floor:.4f}, of masking {total_variation(reference.mask, reference.mu):.4f}")
    assert p_value(drawn, reference.mu) > ALPHA
    assert distance < 3 * floor
    lower, upper = draws.log_z_bounds
    assert lower - NATS <= reference.log_phi <= upper + NATS


def test_usual_spellings_are_enough_for_a_certificate(answers: tuple) -> None:
    """One call of a handful of tokens certifies a thousandth, and draws keep what is certified."""
    generator, reference = answers
    phi = ExactPhi(tolerance=1e-3)
    ready = generator.sample(QUESTION, 1, seed=3, max_new_tokens=BUDGET, phi=phi)
    assert 0 < ready.certificate.total_variation < 1e-3 and ready.counts.calls == 1 and ready.counts.tokens < 10
    draws = generator.sample(QUESTION, DRAWS, seed=11, max_new_tokens=BUDGET, phi=phi)
    drawn = [draw.token_ids for draw in draws]
    assert p_value(drawn, reference.mu) > ALPHA
    lower, upper = draws.log_z_bounds
    assert lower - NATS <= reference.log_phi <= upper + NATS


def test_plain_masking_fails_the_same_test(answers: tuple) -> None:
    generator, reference = answers
    drawn = [draw.token_ids for draw in generator.sample(QUESTION, 4000, seed=11, max_new_tokens=BUDGET, phi="local")]
    assert p_value(drawn, reference.mask) > ALPHA
    assert p_value(drawn, reference.mu) < ALPHA


@pytest.mark.parametrize("phi", ["local", OneStepPhi(floor=0.05)], ids=["local", "onestep"])
def test_weights_have_mean_phi(answers: tuple, phi: str | OneStepPhi) -> None:
    generator, reference = answers
    draws = generator.sample(QUESTION, 6000, seed=2, max_new_tokens=BUDGET, phi=phi)
    w = np.exp(draws.log_w)
    assert abs(w.mean() - math.exp(reference.log_phi)) < 4 * w.std() / math.sqrt(len(w)) + 1e-6
    weighted = frequencies((draw.token_ids for draw in draws), draws.weights)
    assert total_variation(weighted, reference.mu) < 3 * noise_floor(reference.mu, int(draws.ess)) + 0.01


def test_free_strings_agree_with_weighted_draws(model: outlines_phi.PhiTransformers) -> None:
    """Exact draws and weighted draws estimate the same things where nothing can be enumerated."""
    generator = outlines_phi.Generator(model, Person)
    prompt = "Person: Nora is a teacher. JSON: "
    exact_draws = generator.sample(prompt, 200, seed=4, phi=ExactPhi(normalizers=100))
    weighted = generator.sample(prompt, 800, seed=5, phi="local")
    for draw in exact_draws:
        Person.model_validate_json(draw.text)
    z = np.exp(weighted.log_w)
    error = z.std() / math.sqrt(len(z)) + np.std(exact_draws.normalizers) / math.sqrt(100)
    assert abs(z.mean() - np.mean(exact_draws.normalizers)) < 4 * error
    assert (
        exact_draws.log_z_bounds[0] <= math.log(z.mean()) + 0.5
        and math.log(z.mean()) - 0.5 <= exact_draws.log_z_bounds[1]
    )

    def long(text: str) -> bool:
        return len(Person.model_validate_json(text).name) > 5

    p = np.mean([long(text) for text in exact_draws.texts])
    f = np.array([long(text) for text in weighted.texts])
    q = float((weighted.weights * f).sum())
    spread = math.sqrt(p * (1 - p) / 200) + math.sqrt(q * (1 - q) / weighted.ess)
    assert abs(p - q) < 4 * spread


def test_a_batch_row_has_the_law_of_the_prompt_alone(answers: tuple) -> None:
    """Rows of one prompt among rows of others: the rows of interest together are draws of mu*."""
    generator, reference = answers
    prompts = [QUESTION if i % 2 == 0 else CHARACTER for i in range(16)]
    drawn = []
    for seed in range(30):
        results = generator.sample_batch(prompts, 10, seed=seed, max_new_tokens=BUDGET)
        drawn += [draw.token_ids for draws in results[::2] for draw in draws]
    assert p_value(drawn, reference.mu) > ALPHA


def cold_answers(generator: outlines_phi.plugin.generator.PhiGenerator) -> list[tuple[int, ...]]:
    """Return one draw each of 1,000 trees that start from nothing: few enough for each control to fail."""
    options = {"max_new_tokens": BUDGET, "phi": ExactPhi(width=8), "draft": []}
    batches = [generator.sample_batch([QUESTION] * 500, 1, seed=seed, **options) for seed in range(2)]
    return [draws[0].token_ids for batch in batches for draws in batch]


WRONG = {
    "no thinning coin": ("_walk", without_coin),
    "first to finish": ("_read_in_order", first_to_finish),
    "attempts cut by a token budget": ("_walk", cut_by_length),
}


@pytest.mark.parametrize("name", ["right", *WRONG])
def test_cold_trees_on_a_real_model_with_controls(answers: tuple, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adaptive rejection has the law from the first draw of a tree; each wrong variant fails the same test."""
    generator, reference = answers
    monkeypatch.setattr(preexpand, "SHORT", 0)
    if name in WRONG:
        monkeypatch.setattr(RejectionAttempts, *WRONG[name])
    assert (p_value(cold_answers(generator), reference.mu) > ALPHA) == (name == "right")


@pytest.mark.parametrize("kept", [False, True], ids=["right", "bounds kept"])
def test_eviction_on_a_real_model_with_control(
    model: outlines_phi.PhiTransformers, answers: tuple, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a bound so small that subtrees go all the time the law stays; keeping their bounds fails the same test.

    A temperature of 2 loses mass below shared beginnings, so that the bounds of subtrees matter; many trees, because the fault is
    that of a tree's own history.
    """
    generator, _ = answers
    settings = SamplingSettings(max_new_tokens=BUDGET, temperature=2.0)
    table, prompt = generator.logits_processor.table, model._prompt_ids(QUESTION)
    reference = enumerate_language(model.lm, table, prompt, settings, BUDGET)
    monkeypatch.setattr(preexpand, "SHORT", 0)
    monkeypatch.setattr(model._trees, "max_bytes", 30 * 4_500)
    if kept:
        keep_bounds_after_eviction(monkeypatch)
    options = {"temperature": 2.0, "max_new_tokens": BUDGET, "phi": ExactPhi(width=8), "draft": []}
    results = generator.sample_batch([QUESTION] * 30, 200, seed=1, **options)
    drawn = [draw.token_ids for draws in results for draw in draws]
    assert (p_value(drawn, reference.mu) > ALPHA) == (not kept)


def test_pairs_are_independent_and_normalisers_unbiased(answers: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cold trees, two draws and one residual attempt each; the accepting wave's success rate fails as a normaliser."""
    generator, reference = answers
    monkeypatch.setattr(preexpand, "SHORT", 0)
    options = {"max_new_tokens": BUDGET, "phi": ExactPhi(width=8, normalizers=1)}
    results = [
        draws for seed in range(4) for draws in generator.sample_batch([QUESTION] * 400, 2, seed=seed, **options)
    ]
    joint = {(a, b): p * q for a, p in reference.mu.items() for b, q in reference.mu.items()}
    assert p_value([tuple(draw.token_ids for draw in draws) for draws in results], joint) > ALPHA
    phi = math.exp(reference.log_phi)
    estimates = np.array([draws.normalizers[0] for draws in results])
    assert abs(estimates.mean() - phi) < 4 * estimates.std() / math.sqrt(len(estimates)) + 1e-5
    bounds = np.exp([draws.log_z_bounds for draws in results])
    rates = np.array([draws.counts.accepted / draws.counts.attempts for draws in results])
    wave = bounds[:, 0] + (bounds[:, 1] - bounds[:, 0]) * rates
    assert abs(wave.mean() - phi) > 4 * wave.std() / math.sqrt(len(wave))
