"""Inverse-CDF draws never answer with an index without mass, whatever rounding does to a quantile."""

import numpy as np
import pytest
import torch

from outlines_phi.numerics.weights import STRETCH, at_quantiles, columns_at, draw

UNIFORMS = np.array([0.0, 0.2, 0.5, 0.7499, 0.75, 1 - 2**-53])
WEIGHTS = np.array([0.0, 1.0, 0.0, 2.0, 1.0, 0.0])
PLACES = [1, 1, 3, 3, 4, 4]


def test_quantiles_of_weights_and_of_rows_agree() -> None:
    assert at_quantiles(WEIGHTS, UNIFORMS).tolist() == PLACES
    rows = torch.from_numpy(np.stack([WEIGHTS, 1e-300 * WEIGHTS])).cumsum(-1)
    assert columns_at(rows, torch.from_numpy(UNIFORMS).expand(2, -1)).tolist() == [PLACES, PLACES]


def test_a_quantile_of_the_whole_mass_is_the_last_index_with_any() -> None:
    class Highest(np.random.Generator):
        def random(self) -> float:  # type: ignore[override]
            return 1 - 2**-53

    weights = np.full(10, 0.1, dtype=np.float32)
    weights[-3:] = 0
    assert draw(weights, Highest(np.random.PCG64(0))) == 6


def test_frequencies_are_the_weights() -> None:
    rng = np.random.default_rng(0)
    counts = np.bincount([draw(WEIGHTS, rng) for _ in range(4000)], minlength=6)
    assert counts[[0, 2, 5]].sum() == 0
    assert np.abs(counts / 4000 - WEIGHTS / 4).max() < 0.035  # four standard deviations


@pytest.mark.parametrize("uniform", [0.0, 1e-9, 0.3, 0.6, 0.999999, 1 - 2**-53])
def test_many_weights_are_read_as_few_are(uniform: float) -> None:
    class Fixed(np.random.Generator):
        def random(self) -> float:  # type: ignore[override]
            return uniform

    weights = np.random.default_rng(1).exponential(size=2 * STRETCH**2 + 7).astype(np.float32)
    weights[: 3 * STRETCH] = weights[5000:9000] = weights[-2 * STRETCH :] = 0.0
    found = draw(weights, Fixed(np.random.PCG64(0)))
    assert found == at_quantiles(weights, uniform) and weights[found] > 0
