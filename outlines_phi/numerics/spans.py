"""Runs of neighbouring places in flat arrays, many at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def spans(starts: NDArray[np.integer], counts: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return ``starts[0], starts[0] + 1, ..``, ``counts[0]`` of them, then those of the next span."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + counts, counts)
