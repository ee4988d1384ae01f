"""Distances between laws, and what sampling noise alone makes of them."""

import numpy as np
import pytest

from outlines_phi.fidelity.comparison import frequencies, noise_floor, noise_limit, total_variation
from tests.chi_square import ChiSquare

LAW = {"a": 0.5, "b": 0.3, "c": 0.2}


def test_total_variation_is_half_the_sum_of_the_differences() -> None:
    assert total_variation(LAW, LAW) == 0
    assert total_variation(LAW, {"a": 0.2, "b": 0.3, "d": 0.5}) == pytest.approx(0.5)
    assert total_variation({"a": 1.0}, {"b": 1.0}) == 1


def test_frequencies_count_or_weigh() -> None:
    assert frequencies("aab") == {"a": 2 / 3, "b": 1 / 3}
    assert frequencies("aab", [1.0, 2.0, 1.0]) == {"a": 0.75, "b": 0.25}
    with pytest.raises(ValueError):
        frequencies("aab", [1.0])


@pytest.mark.parametrize("n", [100, 2_500])
def test_noise_floor_is_the_distance_that_draws_from_the_law_itself_show(n: int) -> None:
    """Against the normal limit: E|share - p| = sqrt(2 p (1 - p) / (pi n))."""
    expected = sum(np.sqrt(2 * p * (1 - p) / (np.pi * n)) for p in LAW.values()) / 2
    assert noise_floor(LAW, n, repeats=4_000) == pytest.approx(expected, rel=0.05)


def test_noise_limit_is_passed_by_one_honest_sample_in_twenty() -> None:
    rng = np.random.default_rng(1)
    limit = noise_limit(LAW, 500)
    distances = [
        total_variation(LAW, frequencies(rng.choice(list(LAW), size=500, p=list(LAW.values())))) for _ in range(600)
    ]
    assert np.mean([distance > limit for distance in distances]) == pytest.approx(0.05, abs=0.025)
    assert noise_floor(LAW, 500) < limit


def test_a_biased_sampler_stands_out_of_the_noise_floor() -> None:
    draws = np.random.default_rng(0).choice(list(LAW), size=4_000, p=[0.42, 0.38, 0.2]).tolist()
    assert total_variation(LAW, frequencies(draws)) > 4 * noise_floor(LAW, 4_000)


def test_chi_square_pools_rare_outcomes_and_counts_those_outside() -> None:
    law = {i: 1 / 20 for i in range(20)}
    outcomes = [*range(20)] * 10
    test = ChiSquare.of([*outcomes, "x"], law, max_cells=5)
    assert (test.cells, test.outside) == (5, 1)
    assert ChiSquare.of(outcomes, law).statistic == pytest.approx(0)
    assert ChiSquare.of([0] * 200, law).statistic > 1_000
