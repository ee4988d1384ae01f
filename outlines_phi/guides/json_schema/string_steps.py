"""Places within strings, stepped through many at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .scalars import Spelled


def step(
    one: Spelled, at: NDArray[Any], count: NDArray[Any], byte: NDArray[np.uint8]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Return states and counts after a byte each, and which closed the string; :meth:`Spelled.after` for many."""
    automaton = one.automaton
    at = automaton.targets[at, automaton.byte_class[byte]].astype(np.int64)
    if one.strings.lengths is None:
        return at, count, automaton.accepting[at]
    low, high = one.strings.lengths[-1]
    count = np.minimum(count + (at == automaton.start), low if high is None else high + 1)
    closed = automaton.accepting[at]
    # What is begun is one character.
    written = count + ((at != automaton.start) & ~closed)
    fits = np.zeros(len(at), dtype=bool)
    for low, high in one.strings.lengths:
        bounded = np.ones(len(at), dtype=bool) if high is None else written <= high
        fits |= bounded & (~closed | (written >= low))
    at = np.where(fits, at, 0)
    return at, count, automaton.accepting[at]


def groups(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return an index of each distinct column, and the number of every column among these."""
    count = rows.shape[1]
    first, group = np.zeros(min(count, 1), dtype=np.int64), np.zeros(count, dtype=np.int64)
    for row in rows:
        if (row != row[:1]).any():  # most rows are the same throughout
            _, first, group = np.unique(group * (int(row.max()) + 1) + row, return_index=True, return_inverse=True)
    return first, group
