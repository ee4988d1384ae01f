"""Limits of means: they hold at their rate, with heavy tails too, where a bootstrap does not."""

import math

import numpy as np
import pytest

from outlines_phi.fidelity.bias import lower_limit, unit_interval

SAMPLES, DRAWS = 400, 60
LAWS = {
    "constant": (lambda rng: np.full(DRAWS, 0.3), 0.3),
    "rare": (lambda rng: (rng.random(DRAWS) < 0.02).astype(float), 0.02),
    "even": (lambda rng: rng.random(DRAWS), 0.5),
    "two values": (lambda rng: np.where(rng.random(DRAWS) < 0.5, 0.9, 0.1), 0.5),
    "different laws": (lambda rng: rng.random(DRAWS) * np.linspace(0.2, 1.0, DRAWS), 0.3),
}


def heavy(rng: np.random.Generator) -> np.ndarray:
    """Lognormal with mean 1 and a log-sd of 3: the mean rests on draws that are rarely seen."""
    return np.exp(rng.normal(-4.5, 3.0, DRAWS))


@pytest.mark.parametrize("name", LAWS)
def test_the_interval_holds_at_its_rate_and_is_not_vacuous(name: str) -> None:
    draw, mean = LAWS[name]
    rng = np.random.default_rng(1)
    intervals = [unit_interval(draw(rng), 0.1) for _ in range(SAMPLES)]
    misses = sum(not low - 1e-12 <= mean <= high + 1e-12 for low, high in intervals)
    print(f"{name}: {misses} misses of {SAMPLES}, mean width {np.mean([i.width for i in intervals]):.3f}")
    assert misses <= 0.1 * SAMPLES
    assert np.mean([interval.width for interval in intervals]) < 0.4


def test_the_lower_limit_holds_under_heavy_tails_and_a_bootstrap_interval_does_not() -> None:
    """Power control: the same count tells the two apart."""
    rng = np.random.default_rng(2)
    samples = [heavy(rng) for _ in range(SAMPLES)]
    assert sum(lower_limit(x, 0.05) > 1.0 for x in samples) <= 0.05 * SAMPLES
    upper = [np.quantile(rng.choice(x, (200, DRAWS)).mean(axis=1), 0.95) for x in samples]
    assert sum(limit < 1.0 for limit in upper) > 0.2 * SAMPLES


def test_the_limit_scales_is_monotone_and_beats_half_of_markov() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        x = heavy(rng)
        limit = lower_limit(x, 0.05)
        assert lower_limit(x * 1e-200, 0.05) == pytest.approx(limit * 1e-200)
        assert lower_limit(x + rng.random(DRAWS) * x, 0.05) >= limit
        assert 0.5 * 0.05 * x.mean() <= limit * (1 + 1e-9) and limit <= x.mean()


def test_no_variance_is_worth_far_more_than_hoeffding() -> None:
    low, high = unit_interval(np.full(1000, 0.5), 0.05)
    assert low <= 0.5 <= high
    assert high - low < 0.3 * 2 * math.sqrt(math.log(2 / 0.05) / 2000)


def test_nothing_but_zeros_says_how_rare_the_rest_is() -> None:
    low, high = unit_interval(np.zeros(100), 0.05)
    assert low == 0.0
    assert math.log(1 / 0.025) / 101 <= high <= 0.08
