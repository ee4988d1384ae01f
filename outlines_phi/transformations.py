"""Hash-consed sets of transformations of an automaton's states: what byte strings do to all states at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 21
"""How many (source, target) pairs are worked on at a time: it bounds the memory of a step, not its result."""


class Distinct(NamedTuple):
    """Distinct transformations, and which of them each of the given ones equals."""

    transformations: Transformations
    number_of: NDArray[np.int64]


@final
@dataclass(frozen=True, eq=False)
class Transformations:
    """Partial maps from states to states, each kept as its live pairs; a dead source has no pair.

    Most byte strings leave most states dead (measured: 4 to 10 % of the states survive a character on JSON schemas), so pairs
    are several times less work than dense columns.

    Attributes
    ----------
    offsets
        ``int64[U + 1]``: the pairs of transformation ``u`` are ``offsets[u]`` to ``offsets[u + 1]``.
    source, target
        ``int32[nnz]``: the pairs, sources ascending inside a transformation.
    """

    offsets: NDArray[np.int64]
    source: NDArray[np.int32]
    target: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def identity(cls, states: int) -> Transformations:
        """Return the one transformation that leaves every state but 0 where it is."""
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

    def then(self, chosen: NDArray[np.int64], column: NDArray[np.int64], columns: NDArray[np.int32]) -> Distinct:
        """Return each ``chosen[i]`` followed by the transformation ``columns[column[i]]``, distinct ones once.

        Parameters
        ----------
        chosen, column
            ``int64[P]``: what is composed with what.
        columns
            ``int32[C, S]``: total transformations; 0 is the dead state.

        Returns
        -------
        Distinct
            ``number_of`` is -1 where every source is dead.
        """
        sizes = np.cumsum(self.offsets[chosen + 1] - self.offsets[chosen])
        cuts = np.searchsorted(sizes, np.arange(CHUNK, sizes[-1], CHUNK)) + 1
        parts, numbers, found = [], [], 0
        for some, along in zip(np.split(chosen, cuts), np.split(column, cuts), strict=True):
            part, number_of = self._compose(some, along, columns)
            parts.append(part)
            numbers.append(np.where(number_of >= 0, number_of + found, -1))
            found += len(part)
        number_of = np.concatenate(numbers)
        if len(parts) == 1:
            return Distinct(parts[0], number_of)
        distinct, again = Transformations.concatenate(parts).distinct()
        return Distinct(distinct, np.where(number_of >= 0, again[number_of], -1) if found else number_of)

    def distinct(self) -> Distinct:
        """Return the distinct ones among these transformations in order of appearance; none may be without pairs.

        Equality is found by hashing and then checked pair by pair, so a collision costs another round of
        hashing and never a wrong answer.
        """
        if not len(self):
            return Distinct(self, np.zeros(0, dtype=np.int64))
        counts = np.diff(self.offsets)
        random = np.random.default_rng(0)
        states = int(max(self.source.max(), self.target.max())) + 1
        while True:
            # The pairs of a transformation are a set, so the sum over them of a random weight of (source, target) hashes it.
            weights = random.integers(0, 2**64, size=(2, states), dtype=np.uint64)
            sums = np.add.reduceat(weights[0][self.source] * weights[1][self.target], self.offsets[:-1])
            _, first, number_of = np.unique(sums, return_index=True, return_inverse=True)
            representative = first[number_of]
            if np.array_equal(counts, counts[representative]):
                shift = np.repeat(self.offsets[representative] - self.offsets[:-1], counts)
                twin = np.arange(len(shift)) + shift
                if np.array_equal(self.source, self.source[twin]) and np.array_equal(self.target, self.target[twin]):
                    order = np.argsort(first)
                    rank = np.empty_like(order)
                    rank[order] = np.arange(len(order))
                    return Distinct(self.take(first[order]), rank[number_of])

    def _compose(self, chosen: NDArray[np.int64], column: NDArray[np.int64], columns: NDArray[np.int32]) -> Distinct:
        counts, pairs = self._pairs(chosen)
        target = columns[np.repeat(column, counts), self.target[pairs]]
        live = target != 0
        owner = np.repeat(np.arange(len(chosen)), counts)[live]
        sizes = np.bincount(owner, minlength=len(chosen))
        some = np.flatnonzero(sizes)
        distinct, number_of = Transformations(_offsets(sizes[some]), self.source[pairs[live]], target[live]).distinct()
        numbers = np.full(len(chosen), -1, dtype=np.int64)
        numbers[some] = number_of
        return Distinct(distinct, numbers)

    def _pairs(self, chosen: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many pairs each of ``chosen`` has, and where they are, one after the other."""
        starts = self.offsets[chosen]
        counts = self.offsets[chosen + 1] - starts
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        return counts, np.arange(total) + np.repeat(starts - (ends - counts), counts)


def _offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
