"""The laws of theory.md, section 11, over one table of samplers and one of languages.

A new sampler is a row of ``EXACT`` or ``WEIGHTED``.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from outlines_phi import AutoPhi, BigramDPPhi, Draws, ExactPhi, Guarantee, LearnedPhi, LocalPhi, OneStepPhi
from tests.inner import (
    AncestralSampler,
    AutoSampler,
    ExactSampler,
    Sampler,
    frequencies,
    noise_floor,
    preexpand,
    total_variation,
)
from tests.languages import (
    ALPHA,
    AND_OPEN,
    DRAWS,
    LANGUAGES,
    POOLED,
    Language,
    deviation,
    p_value,
    pooled_p_value,
    power,
    z,
)
from tests.phi.looking import LookingPhi

# At the least budgets "auto" may fall back to weights, and says so.
pytestmark = pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning")

EXACT = {
    "rejection": lambda: ExactSampler(ExactPhi()),
    "one at a time": lambda: ExactSampler(ExactPhi(width=1)),
    "wide": lambda: ExactSampler(ExactPhi(width=400)),
    "auto": lambda: AutoSampler(AutoPhi()),
    "certified at 1e-9": lambda: ExactSampler(ExactPhi(tolerance=1e-9)),
}
WEIGHTED = {
    "local": lambda: AncestralSampler(LocalPhi()),
    "onestep": lambda: AncestralSampler(OneStepPhi()),
    "onestep, high floor": lambda: AncestralSampler(OneStepPhi(floor=0.5)),
    "dp-bigram": lambda: AncestralSampler(BigramDPPhi()),
    "looking": lambda: AncestralSampler(LookingPhi()),
    "learned": lambda: AncestralSampler(LearnedPhi()),
    "adaptive": lambda: AutoSampler(AutoPhi(share=0, candidates=1)),
    "adaptive, onestep frontier": lambda: AutoSampler(AutoPhi(share=0, candidates=1, frontier=OneStepPhi())),
    "adaptive, learned frontier": lambda: AutoSampler(AutoPhi(share=0, candidates=1, frontier=LearnedPhi())),
    "adaptive, looking frontier": lambda: AutoSampler(AutoPhi(share=0, candidates=1, frontier=LookingPhi())),
}

SAMPLERS = EXACT | WEIGHTED
PLANTED = [name for name in SAMPLERS if not isinstance(SAMPLERS[name](), AncestralSampler)]
"""Samplers that draw from trees: walks that follow an estimator have one road."""

languages = pytest.mark.parametrize("language", AND_OPEN, ids=str)


def roads(*names: str) -> pytest.MarkDecorator:
    """Run with small languages expanded whole beforehand, where no frontier is asked, and with trees that only attempts grow."""
    pairs = [(name, "whole") for name in names if "frontier" not in name]
    pairs += [(name, "grown") for name in names if name in PLANTED]
    return pytest.mark.parametrize(("name", "road"), pairs, indirect=["road"])


@pytest.fixture(params=["whole", "grown"])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "grown":
        monkeypatch.setattr(preexpand, "SHORT", 0)
    return request.param


def outcomes(results: list[Draws]) -> list[tuple[int, ...]]:
    return [draw.token_ids for draws in results for draw in draws]


def test_the_tests_have_power() -> None:
    assert power(DRAWS, 0.02) >= 0.99 and power(DRAWS, 0.02, cells=5) >= 0.99
    one, both, alone = len(AND_OPEN), 2 * len(AND_OPEN), ALPHA / len(EXACT)
    assert power(POOLED, 0.02, samples=len(EXACT) * both) >= 0.99
    assert power(POOLED, 0.02, samples=one) < 0.6
    assert power(POOLED, 0.03, samples=both, alpha=alone) >= 0.98  # of a sampler, grown and whole
    assert power(POOLED, 0.04, samples=one, alpha=alone / 2) >= 0.98  # of one of its roads


def exact_draws(name: str, n: int, seed: int) -> list[tuple[list[tuple[int, ...]], dict[tuple[int, ...], float]]]:
    """Return ``n`` draws of each language beside its mu*, none of them far off it."""
    samples = []
    for language in AND_OPEN:
        mu = language.reference().mu
        drawn = outcomes(EXACT[name]().sample(language.request(n, seed=seed)))
        assert len(drawn) == n
        distance, floor = total_variation(frequencies(drawn), mu), noise_floor(mu, n)
        print(f"{language}, {name}: TV {distance:.4f}, floor {floor:.4f}, p {p_value(drawn, mu):.4f}")
        assert distance < 3 * floor, (name, language)
        samples.append((drawn, mu))
    return samples


def test_exact_samplers_draw_the_conditioned_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tree serves all draws: i.i.d. mu*, by chi-square over all samplers and languages and by TV beside its noise floor.

    The statistics of each road, of each sampler on both, and of all samplers are added.
    """
    everything = []
    for i, name in enumerate(EXACT):
        whole = exact_draws(name, POOLED, seed=100 + 2 * i)
        with monkeypatch.context() as patch:
            patch.setattr(preexpand, "SHORT", 0)
            grown = exact_draws(name, POOLED, seed=101 + 2 * i)
        for samples, level in ((whole, ALPHA / 2), (grown, ALPHA / 2), (whole + grown, ALPHA)):
            assert pooled_p_value(samples) > level / len(EXACT), name
        everything += whole + grown
    assert pooled_p_value(everything) > ALPHA


@pytest.mark.full
@roads(*EXACT)
def test_each_exact_sampler_draws_the_conditioned_law_of_each_language(name: str, road: str) -> None:
    samples = exact_draws(name, DRAWS, seed=7)
    assert all(p_value(drawn, mu) > ALPHA for drawn, mu in samples)
    assert pooled_p_value(samples) > ALPHA


def test_the_same_test_fails_for_plain_masking() -> None:
    """Power control: masking is told from mu* in each language alone, and in all together where it is one draw in 12."""
    mixed, few = [], POOLED // 12
    for language in AND_OPEN:
        reference = language.reference()
        drawn = outcomes(AncestralSampler(LocalPhi()).sample(language.request(POOLED, seed=7)))
        assert p_value(drawn, reference.mask) > ALPHA, language
        assert p_value(drawn, reference.mu) < ALPHA, language
        drawn[few:] = outcomes(ExactSampler(ExactPhi()).sample(language.request(POOLED, seed=7)))[few:]
        mixed.append((drawn, reference.mu))
    assert pooled_p_value(mixed) < ALPHA / 2 / len(EXACT)


@pytest.mark.parametrize("n", [None, pytest.param(DRAWS, marks=pytest.mark.full)])
@roads(*WEIGHTED)
def test_weights_are_unbiased_and_correct_the_proposal(name: str, n: int | None, road: str) -> None:
    """E[w] = Phi within four standard errors, and the weighted frequencies are mu*.

    The errors of seven languages add up: a bias of all that 24,500 draws of one language show is seen with power 0.99 at 3,500 of
    each. The weights of "adaptive" vary by a fifth of those of masking (0.7 to 4 of their mean), so that 700 show more.
    """
    errors, n = [], n or (700 if name in PLANTED else 3_500)
    for language in AND_OPEN:
        reference = language.reference()
        draws = WEIGHTED[name]().sample(language.request(n, seed=3))[0]
        errors.append(z(np.exp(draws.log_w), math.exp(reference.log_phi)))
        weighted = frequencies((draw.token_ids for draw in draws), draws.weights)
        limit = 3 * noise_floor(reference.mu, int(draws.ess)) + 0.005
        assert total_variation(weighted, reference.mu) < limit, language
    print(name, errors)
    assert deviation(errors) < 4


def test_weights_that_are_a_tenth_too_large_fail_the_same_test() -> None:
    """Power control, by the weights of masking, which vary most."""
    errors = []
    for language in AND_OPEN:
        draws = AncestralSampler(LocalPhi()).sample(language.request(3_500, seed=3))[0]
        errors.append(z(1.1 * np.exp(draws.log_w), math.exp(language.reference().log_phi)))
    assert deviation(errors) > 4


@languages
def test_masking_weights_are_exact_by_summation(language: Language) -> None:
    """sum over members of q(y) w(y) = Phi, path by path."""
    reference = language.reference()
    draws = AncestralSampler(LocalPhi()).sample(language.request(2000, seed=1))[0]
    for draw in draws:
        assert draw.log_p == pytest.approx(reference.log_p[draw.token_ids], abs=1e-9)
        assert draw.log_w == pytest.approx(draw.log_p - reference.log_mask[draw.token_ids], abs=1e-6)


@roads("rejection", "certified at 1e-9")
@languages
def test_bounds_hold_and_draws_know_their_probability(name: str, language: Language, road: str) -> None:
    reference = language.reference()
    draws = EXACT[name]().sample(language.request(300, seed=5))[0]
    lower, upper = draws.log_z_bounds
    assert lower <= reference.log_phi + 1e-9 and reference.log_phi <= upper + 1e-9
    for draw in draws:
        assert draw.log_p == pytest.approx(reference.log_p[draw.token_ids], abs=1e-9)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.full)], ids=["one batch", "every batch"])
@roads(*SAMPLERS)
def test_nothing_outside_the_language_is_returned(name: str, every: bool, road: str) -> None:
    """Any language, any budget, any batch, any seed; a batch is drawn at one budget of each language, which take turns."""
    sampler: Sampler = SAMPLERS[name]()
    for place, language in enumerate(AND_OPEN, list(SAMPLERS).index(name)):
        least = language.table.guide.min_tokens(language.table.start)
        for seed, rows in ((0, 1), (1, 17)):
            for i, budget in enumerate((least, least + 1, language.budget)):
                if rows > 1 and (i + place) % 3 and not every:
                    continue
                small = language.within(budget)
                members = small.reference().mu
                results = sampler.sample(small.request(3 if rows == 1 else 1, seed, rows=rows))
                assert len(results) == rows
                for draws in results:
                    assert draws.budget == budget
                    for draw in draws:
                        assert draw.token_ids in members, language
                        assert len(draw.token_ids) <= budget


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.7},
        {"temperature": 0.6},
        {"top_k": 6},
        {"top_p": 0.9},
        {"min_p": 0.05, "temperature": 1.5},
    ],
)
def test_settings_define_the_law(options: dict[str, float], road: str) -> None:
    """Temperature and truncation change p, and exact draws follow."""
    language = LANGUAGES[0]
    mu = language.reference(**options).mu
    drawn = outcomes(ExactSampler(ExactPhi()).sample(language.request(DRAWS // 6, seed=2, **options)))
    assert p_value(drawn, mu) > ALPHA
    assert mu != language.reference().mu


def test_truncation_can_fail_a_trajectory_and_the_mean_counts_it() -> None:
    """Failed trajectories have weight 0; leaving them out would bias the mean upwards."""
    language, n = LANGUAGES[0], 6_500
    options = {"top_k": 6}
    phi = math.exp(language.reference(**options).log_phi)
    draws = AncestralSampler(LocalPhi()).sample(language.request(n, seed=4, **options))[0]
    assert draws.failures > 0 and len(draws) + draws.failures == n
    w = np.exp(draws.log_w)
    error = w.std() / math.sqrt(n)
    assert abs(w.mean() - phi) < 4 * error
    assert w.sum() / len(draws) - phi > 4 * error


@roads(*SAMPLERS)
def test_same_seed_same_draws(name: str, road: str) -> None:
    sampler: Sampler = SAMPLERS[name]()
    language = LANGUAGES[1]
    first = outcomes(sampler.sample(language.request(20, seed=9)))
    sampler.sample(language.request(5, seed=None))
    assert outcomes(sampler.sample(language.request(20, seed=9))) == first
    assert outcomes(sampler.sample(language.request(20, seed=10))) != first


@pytest.mark.parametrize(
    ("name", "guarantee"),
    [("rejection", Guarantee.EXACT), ("certified at 1e-9", Guarantee.CERTIFIED), ("local", Guarantee.WEIGHTED)],
)
def test_draws_say_what_they_are(name: str, guarantee: Guarantee) -> None:
    draws = SAMPLERS[name]().sample(LANGUAGES[0].request(10, seed=1))[0]
    assert draws.guarantee is guarantee
    assert all(draw.guarantee is guarantee for draw in draws)
    assert draws.weights.sum() == pytest.approx(1.0)
    assert 0 < draws.ess <= 10 + 1e-9


def test_a_kept_tree_serves_later_calls_with_the_same_law(road: str) -> None:
    """Unseeded calls start from what is known, at fewer model tokens, and still draw mu*."""
    language = LANGUAGES[0]
    sampler = ExactSampler(ExactPhi())
    mu = language.reference().mu
    torch.manual_seed(0)
    results = [sampler.sample(language.request(1, seed=None))[0] for _ in range(2500)]
    assert p_value(outcomes(results), mu) > ALPHA
    known = results[-100:]
    assert sum(draws.counts.tokens for draws in known) <= 20
    assert sum(draws.counts.calls == 0 for draws in known) >= 90
