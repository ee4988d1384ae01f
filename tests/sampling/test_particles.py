"""Resampling: unbiased, whatever the weights."""

from __future__ import annotations

import math

import numpy as np
import pytest

from outlines_phi.numerics.weights import effective_size, normalized
from outlines_phi.sampling.smc import Ancestors
from tests.inner import at_quantiles, log_mean, scaled, systematic

ROUNDS = 8_000
WEIGHTS = {
    "even": np.zeros(6),
    "mixed": np.log(np.array([0.1, 3.0, 0.7, 0.7, 1.3, 0.02, 0.4])),
    "one rules": np.array([-700.0, 0.0, -3.0, -900.0]),
    "with failures": np.array([-math.inf, -2000.0, -2001.0, -math.inf, -2000.5, -math.inf]),
    "all but one failed": np.array([-math.inf, -5.0, -math.inf]),
}
weights = pytest.mark.parametrize("log_w", WEIGHTS.values(), ids=WEIGHTS)


def z_scores(resample: object, log_w: np.ndarray, seed: int) -> np.ndarray:
    """Standard errors between the mean copies of each particle and ``N W_i``."""
    rng = np.random.default_rng(seed)
    copies = np.stack([np.bincount(resample(log_w, rng), minlength=len(log_w)) for _ in range(ROUNDS)])  # type: ignore[operator]
    error = copies.std(axis=0) / math.sqrt(ROUNDS) + 1e-3
    return np.abs(copies.mean(axis=0) - len(log_w) * normalized(log_w)) / error


@weights
def test_expected_copies_are_proportional_to_the_weights(log_w: np.ndarray) -> None:
    assert z_scores(systematic, log_w, seed=1).max() < 4


def test_the_same_test_fails_for_rounding_the_expected_copies() -> None:
    def rounded(log_w: np.ndarray, rng: np.random.Generator) -> Ancestors:
        copies = np.round(len(log_w) * normalized(log_w)).astype(int)
        return np.repeat(np.arange(len(log_w)), copies)

    assert z_scores(rounded, WEIGHTS["mixed"], seed=1).max() > 4


@weights
def test_there_are_as_many_as_before_in_order_and_none_of_weight_0(log_w: np.ndarray) -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        ancestors = systematic(log_w, rng)
        assert len(ancestors) == len(log_w)
        assert (np.diff(ancestors) >= 0).all()
        assert (normalized(log_w)[ancestors] > 0).all()


@weights
def test_copies_differ_from_their_expectation_by_less_than_one(log_w: np.ndarray) -> None:
    rng = np.random.default_rng(3)
    expected = len(log_w) * normalized(log_w)
    for _ in range(200):
        copies = np.bincount(systematic(log_w, rng), minlength=len(log_w))
        assert (copies > expected - 1).all()
        assert (copies < expected + 1).all()


def test_equal_weights_copy_every_particle_once() -> None:
    rng = np.random.default_rng(4)
    for _ in range(3):
        assert systematic(np.full(5, -3.0), rng).tolist() == [0, 1, 2, 3, 4]


def test_systematic_copies_vary_least() -> None:
    rng = np.random.default_rng(5)
    log_w = WEIGHTS["mixed"]

    def multinomial(log_w: np.ndarray, rng: np.random.Generator) -> Ancestors:
        return at_quantiles(normalized(log_w), rng.random(len(log_w)))

    def variance(resample: object) -> float:
        copies = [np.bincount(resample(log_w, rng), minlength=len(log_w)) for _ in range(4000)]  # type: ignore[operator]
        return float(np.stack(copies).var(axis=0).sum())

    def stratified(log_w: np.ndarray, rng: np.random.Generator) -> Ancestors:
        return at_quantiles(normalized(log_w), (np.arange(len(log_w)) + rng.random(len(log_w))) / len(log_w))

    assert variance(systematic) < variance(stratified) < variance(multinomial)


def test_arithmetic_of_weights() -> None:
    far = np.array([-5000.0, -5000.0 + math.log(3), -math.inf])
    assert normalized(far) == pytest.approx([0.25, 0.75, 0.0])
    assert log_mean(far) == pytest.approx(-5000 + math.log(4 / 3))
    assert effective_size(scaled(far)) == pytest.approx(16 / 10)
    dead = np.full(3, -math.inf)
    assert log_mean(dead) == -math.inf
    assert effective_size(scaled(dead)) == 0
    assert not normalized(dead).any()
    assert at_quantiles(np.array([0.0, 1.0, 0.0]), np.array([0.0, 1 - 2**-53])).tolist() == [1, 1]
