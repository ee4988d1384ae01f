"""The laws of every sampler and estimator over JSON schemas that can be enumerated."""

from __future__ import annotations

import math

import numpy as np
import pytest

from outlines_phi.fidelity.comparison import frequencies, noise_floor, total_variation
from outlines_phi.phi.onestep import LocalPhi
from outlines_phi.sampling.ancestral import AncestralSampler
from tests.guides.json_schema.test_json_guide import LANGUAGES, SchemaLanguage
from tests.languages import ALPHA, p_value
from tests.sampling.test_laws import EXACT, WEIGHTED

pytestmark = pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning")

DRAWS = 1500

languages = pytest.mark.parametrize("language", LANGUAGES, ids=str)


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
@languages
def test_weights_are_unbiased_and_correct_the_proposal(name: str, language: SchemaLanguage) -> None:
    reference = language.reference()
    (draws,) = WEIGHTED[name]().sample(language.request(DRAWS, seed=3))
    w = np.exp(draws.log_w)
    error = w.std() / math.sqrt(len(w))
    if draws.ess > 30:  # else the mean of so few draws says nothing
        assert abs(w.mean() - math.exp(reference.log_phi)) < 4 * error + 1e-3 * math.exp(reference.log_phi)
    assert {draw.token_ids for draw in draws} <= set(reference.mu)
    for draw in draws[:50]:
        assert draw.log_p == pytest.approx(reference.log_p[draw.token_ids], abs=1e-6)
    weighted = frequencies((draw.token_ids for draw in draws), draws.weights)
    assert total_variation(weighted, reference.mu) < 3 * noise_floor(reference.mu, int(draws.ess)) + 0.02
