"""Sets of transformations of an automaton's states: what byte strings do to all states at once, each kept once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 21
"""How many pairs are worked on at a time: it bounds the memory of a step, not its result."""


class Distinct(NamedTuple):
    """Distinct transformations, and which of them each of the given ones is; -1 for one that leaves every state dead."""

    transformations: Transformations
    number_of: NDArray[np.int64]


@final
@dataclass(frozen=True, eq=False)
class Transformations:
    """Partial maps from states to states, each kept as its live pairs; a state sent to 0, the dead one, has no pair.

    Few states survive a byte (10 % on JSON schemas with bounded strings, fewer after each further byte), so pairs are
    several times less work than whole columns, and the memory of a large automaton is that of its live part.

    Attributes
    ----------
    offsets
        ``int64[U + 1]``: the pairs of transformation ``u`` are ``offsets[u]`` to ``offsets[u + 1]`` of the next two.
    source, target
        ``int32[nnz]``: the pairs; sources ascend inside a transformation.
    """

    offsets: NDArray[np.int64]
    source: NDArray[np.int32]
    target: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def identity(cls, states: int) -> Transformations:
        """Return the one transformation that leaves every live state where it is."""
        live = np.arange(1, states, dtype=np.int32)
        return cls(np.array([0, len(live)], dtype=np.int64), live, live)

    @classmethod
    def concatenate(cls, parts: list[Transformations]) -> Transformations:
        """Return the transformations of all ``parts``, in order."""
        counts = np.concatenate([np.diff(part.offsets) for part in parts])
        source = np.concatenate([part.source for part in parts])
        return cls(_offsets(counts), source, np.concatenate([part.target for part in parts]))

    def take(self, chosen: NDArray[np.int64]) -> Transformations:
        """Return the ``chosen`` transformations, in that order."""
        counts, pairs = self._pairs(chosen)
        return Transformations(_offsets(counts), self.source[pairs], self.target[pairs])

    def where(self, kept: NDArray[np.bool_]) -> Transformations:
        """Return the transformations with only the ``kept`` pairs, ``bool[nnz]``."""
        before = np.concatenate([[0], np.cumsum(kept)])
        return Transformations(before[self.offsets], self.source[kept], self.target[kept])

    def then(self, chosen: NDArray[np.int64], column: NDArray[np.int64], columns: NDArray[np.int32]) -> Distinct:
        """Return each ``chosen[i]`` followed by ``columns[column[i]]``.

        Parameters
        ----------
        chosen, column
            ``int64[P]``: what is composed with what.
        columns
            ``int32[C, S]``: the second transformations, whole.
        """
        sizes = np.cumsum(self.offsets[chosen + 1] - self.offsets[chosen])
        cuts = np.searchsorted(sizes, np.arange(CHUNK, sizes[-1], CHUNK)) + 1
        parts = [
            self._compose(some, along, columns)
            for some, along in zip(np.split(chosen, cuts), np.split(column, cuts), strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        distinct, again = Transformations.concatenate([part.transformations for part in parts]).distinct()
        first = np.cumsum([0, *(len(part.transformations) for part in parts[:-1])])
        numbers = [
            np.append(again, -1)[np.where(p.number_of < 0, -1, p.number_of + f)]
            for p, f in zip(parts, first, strict=True)
        ]
        return Distinct(distinct, np.concatenate(numbers))

    def distinct(self) -> Distinct:
        """Return the distinct transformations with live pairs, in order of appearance.

        Equal ones are found by a hash and then compared pair by pair, so a collision costs another hash and never a
        wrong answer.
        """
        counts = np.diff(self.offsets)
        live = np.flatnonzero(counts)
        number_of = np.full(len(self), -1, dtype=np.int64)
        if not len(live):
            return Distinct(self.take(live), number_of)
        counts, offsets = counts[live], self.offsets[live]
        random = np.random.default_rng(0)
        states = int(max(self.source.max(), self.target.max())) + 1
        while True:
            # A transformation is a set of pairs, so the sum of a random weight of each pair is a hash of it.
            weights = random.integers(0, 2**64, size=(2, states), dtype=np.uint64)
            sums = np.add.reduceat(weights[0][self.source] * weights[1][self.target], offsets)
            _, first, group = np.unique(sums, return_index=True, return_inverse=True)
            twin = first[group]
            if np.array_equal(counts, counts[twin]) and self._equal(offsets, offsets[twin], counts):
                order = np.argsort(first)
                rank = np.empty_like(order)
                rank[order] = np.arange(len(order))
                number_of[live] = rank[group]
                return Distinct(self.take(live[first[order]]), number_of)

    def _equal(self, at: NDArray[np.int64], other: NDArray[np.int64], counts: NDArray[np.int64]) -> bool:
        """Return whether the ``counts[i]`` pairs from ``at[i]`` on equal those from ``other[i]`` on, for all ``i``."""
        here, there = _spans(at, counts), _spans(other, counts)
        return bool((self.source[here] == self.source[there]).all() and (self.target[here] == self.target[there]).all())

    def _compose(self, chosen: NDArray[np.int64], column: NDArray[np.int64], columns: NDArray[np.int32]) -> Distinct:
        counts, pairs = self._pairs(chosen)
        target = columns[np.repeat(column, counts), self.target[pairs]]
        return Transformations(_offsets(counts), self.source[pairs], target).where(target != 0).distinct()

    def _pairs(self, chosen: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many pairs each of ``chosen`` has, and where they are, one after the other."""
        starts = self.offsets[chosen]
        counts = self.offsets[chosen + 1] - starts
        return counts, _spans(starts, counts)


def _spans(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``starts[0], starts[0] + 1, ..``, ``counts[0]`` of them, then those of the next span."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + counts, counts)


def _offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
