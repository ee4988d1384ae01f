"""The laws of theory.md, section 11, on a real model: the bundled one, through the plugin."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
import pytest

import outlines_phi
from outlines_phi import Draws, ExactPhi, SamplingSettings
from outlines_phi_workbench.suite.reference import Reference, enumerate_language
from tests.inner import bundled
from tests.languages import ALPHA, DRAWS, ids, p_value
from tests.loaded import Person
from tests.precision import NATS

QUESTION = "Question: is the bakery open on Monday? Answer: "
CHARACTER = "Character: Aria is a brave elf. JSON: "
BUDGET = 12


@pytest.fixture(scope="module")
def model() -> outlines_phi.PhiTransformers:
    return outlines_phi.from_transformers(*bundled.load())


Draw = Callable[..., list[Draws]]


@pytest.fixture(scope="module")
def draw(model: outlines_phi.PhiTransformers) -> Draw:
    """Return the draws of a finite type after one prompt or several."""
    generator = outlines_phi.Generator(model, Literal["yes", "no", "not now", "nobody"])

    def made(n: int, seed: int, prompts: Sequence[str] = (QUESTION,), **options: Any) -> list[Draws]:
        return generator.sample_batch(list(prompts), n, seed=seed, max_new_tokens=BUDGET, **options)

    return made


@cache
def reference(temperature: float = 1.0) -> Reference:
    """Return the exact laws of the type, by enumeration."""
    model = outlines_phi.from_transformers(*bundled.load())
    table = outlines_phi.Generator(model, Literal["yes", "no", "not now", "nobody"]).logits_processor.table
    settings = SamplingSettings(max_new_tokens=BUDGET, temperature=temperature)
    return enumerate_language(model.lm, table, tuple(model.hf_tokenizer.encode(QUESTION)), settings, BUDGET)


def holds(draws: Draws) -> bool:
    """Return True if the reported bounds hold Phi."""
    lower, upper = draws.log_z_bounds
    return lower - NATS <= reference().log_phi <= upper + NATS


def test_usual_spellings_are_enough_for_a_certificate(draw: Draw) -> None:
    """One call of a handful of tokens certifies a thousandth, and draws keep what is certified."""
    phi = ExactPhi(tolerance=1e-3)
    (ready,), (draws,) = draw(1, 3, phi=phi), draw(DRAWS, 11, phi=phi)
    assert 0 < ready.certificate.total_variation < 1e-3 and ready.counts.calls == 1 and ready.counts.tokens < 10
    assert p_value(ids(draws), reference().mu) > ALPHA and holds(draws)


def test_free_strings_agree_with_weighted_draws(model: outlines_phi.PhiTransformers) -> None:
    """Exact draws and weighted draws estimate the same things where nothing can be enumerated."""
    generator = outlines_phi.Generator(model, Person)
    prompt = "Person: Nora is a teacher. JSON: "
    exact_draws = generator.sample(prompt, 200, seed=4, phi=ExactPhi(normalizers=100))
    weighted = generator.sample(prompt, 800, seed=5, phi="local")
    w, (low, high) = np.exp(weighted.log_w), exact_draws.log_z_bounds
    error = w.std() / math.sqrt(len(w)) + np.std(exact_draws.normalizers) / math.sqrt(100)
    assert abs(w.mean() - np.mean(exact_draws.normalizers)) < 4 * error
    assert low <= math.log(w.mean()) + 0.5 and math.log(w.mean()) - 0.5 <= high

    def long(text: str) -> bool:
        return len(Person.model_validate_json(text).name) > 5

    p = np.mean([long(text) for text in exact_draws.texts])
    f = np.array([long(text) for text in weighted.texts])
    q = float((weighted.weights * f).sum())
    spread = math.sqrt(p * (1 - p) / 200) + math.sqrt(q * (1 - q) / weighted.ess)
    assert abs(p - q) < 4 * spread
