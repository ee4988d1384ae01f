"""What a call asks of a sampler: its random streams."""

from __future__ import annotations

import numpy as np
import pytest

from outlines_phi.sampling.sampler import Stream
from tests.languages import LANGUAGES


@pytest.mark.parametrize("seed", [0, 7, 2**32, 2**62 + 3, 2**70])
@pytest.mark.parametrize("number", [0, 1, 2**32 - 1, Stream.DIAGNOSTIC, Stream.AHEAD + 5])
def test_a_stream_is_that_of_numpy_for_three_numbers(seed: int, number: int) -> None:
    request = LANGUAGES[0].request(1, seed)
    for row in (0, 70_000):
        expected = np.random.default_rng((seed, row, number)).random(4)
        assert (request.stream(row, number).random(4) == expected).all()
