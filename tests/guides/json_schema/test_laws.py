"""The laws of every sampler and estimator over JSON schemas that can be enumerated."""

from __future__ import annotations

import math

import numpy as np
import pytest

from outlines_phi.fidelity.comparison import frequencies, noise_floor, total_variation
from outlines_phi.phi.onestep import LocalPhi
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.phi_options import AutoPhi
from outlines_phi.sampling.rejection.auto_sampler import AutoSampler
from tests.guides.json_schema.test_json_guide import LANGUAGES, SchemaLanguage
from tests.languages import ALPHA, deviation, p_value
from tests.sampling.test_laws import EXACT, PLANTED, WEIGHTED

pytestmark = pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning")

DRAWS = 1500

languages = pytest.mark.parametrize("language", LANGUAGES, ids=str)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", EXACT)
@languages
def test_exact_samplers_draw_the_conditioned_law(name: str, language: SchemaLanguage) -> None:
    mu = language.reference().mu
    (draws,) = EXACT[name]().sample(language.request(DRAWS, seed=7))
    drawn = [draw.token_ids for draw in draws]
    assert p_value(drawn, mu) > ALPHA
    assert total_variation(frequencies(drawn), mu) < 3 * noise_floor(mu, DRAWS)


@languages
def test_the_same_test_fails_for_plain_masking(language: SchemaLanguage) -> None:
    (masked,) = AncestralSampler(LocalPhi()).sample(language.request(DRAWS, seed=7))
    assert p_value([draw.token_ids for draw in masked], language.reference().mu) < ALPHA


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_are_unbiased_and_correct_the_proposal(name: str) -> None:
    """The errors of six languages are added; weights from trees vary less than others."""
    errors, n = [], 500 if name in PLANTED else 1000
    for language in LANGUAGES:
        reference = language.reference()
        phi = math.exp(reference.log_phi)
        (draws,) = WEIGHTED[name]().sample(language.request(n, seed=3))
        w = np.exp(draws.log_w)
        if draws.ess > 30:  # else the mean of so few draws says nothing
            errors.append((w.mean() - phi) / (w.std() / math.sqrt(len(w)) + 2.5e-4 * phi))
        assert {draw.token_ids for draw in draws} <= set(reference.mu)
        for draw in draws[:50]:
            assert draw.log_p == pytest.approx(reference.log_p[draw.token_ids], abs=1e-6)
        weighted = frequencies((draw.token_ids for draw in draws), draws.weights)
        assert total_variation(weighted, reference.mu) < 3 * noise_floor(reference.mu, int(draws.ess)) + 0.02
    assert deviation(errors) < 4


def test_weights_of_cold_trees_are_unbiased() -> None:
    """One trajectory of each of many prompts of six languages, whose errors are added."""
    errors = []
    for language in LANGUAGES:
        results = AutoSampler(AutoPhi(share=0, candidates=1)).sample(language.request(1, seed=2, rows=100))
        w = np.array([np.exp(draws[0].log_w) for draws in results]) / math.exp(language.reference().log_phi)
        errors.append((w.mean() - 1) / (w.std() / math.sqrt(len(w)) + 1e-9))
    print(errors)
    assert deviation(errors) < 4
