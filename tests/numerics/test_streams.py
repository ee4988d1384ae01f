"""Streams that are seeded together are those of numpy, one by one."""

from __future__ import annotations

import numpy as np
import pytest

from outlines_phi.numerics.streams import ALONE, BLOCK, LONGEST, Streams


@pytest.mark.parametrize("first", [0, BLOCK, 2**32 - BLOCK, 2**32, 2**40, 2**41 + 3 * BLOCK, 2**64 + BLOCK], ids=hex)
@pytest.mark.parametrize("row", [0, 1, 2**32 + 7], ids=hex)
@pytest.mark.parametrize("entropy", [0, 1, 2**32, 2**62 - 1, 3 * 2**200, 2 ** (32 * LONGEST)], ids=hex)
def test_they_are_those_of_numpy(entropy: int, row: int, first: int) -> None:
    streams = Streams(entropy)
    for place in (0, ALONE - 1, ALONE, BLOCK - 1, ALONE + 1):
        ours, numpys = streams.of(row, first + place), np.random.default_rng((entropy, row, first + place))
        assert ours.bit_generator.state == numpys.bit_generator.state
        assert ours.random() == numpys.random()


def test_rows_and_kinds_may_take_turns() -> None:
    streams = Streams(5)
    for number in range(3 * BLOCK):
        for row in (0, 1):
            for kind in (0, 2**40):
                found, expected = streams.of(row, kind + number), np.random.default_rng((5, row, kind + number))
                assert found.random() == expected.random()
