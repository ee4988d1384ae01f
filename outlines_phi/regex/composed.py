"""The spellings of a regular set of strings, without an automaton over bytes: two automata that run one inside the other."""

from __future__ import annotations

import heapq
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..automata.automaton import DEAD, UNREACHABLE
from .code_automaton import CodeAutomaton
from .spelling import FAR, NOWHERE, InBytes

_NONE, _CLOSED, _FIRST = range(3)
"""The rows of what is no member and of what is closed, and that of the first state of the automaton over code points."""


@final
class Composed:
    """The spellings of the members of an automaton over code points.

    A state is a pair: that of the automaton, and a place in the decision graph that tells the classes of characters by their
    bytes. It is one number, the place in its lower bits, and ``DEAD`` where no member begins so.

    Parameters
    ----------
    code
        The members.
    in_bytes
        How characters are spelled.
    closing
        A byte that ends a member; ``None`` if members end by themselves.
    """

    def __init__(self, code: CodeAutomaton, in_bytes: InBytes, closing: int | None = None) -> None:
        graph, root = in_bytes(tuple(code.bounds.tolist()), tuple(code.classes.tolist()))
        classes, states = graph.classes, len(code)
        self._code, self._graph, self._root, self._closing = code, graph, root, closing
        self._bits = max(len(graph.below) - 1, 1).bit_length()
        # Columns: the classes, then the closing byte, what spells nothing, and bytes within a character.
        closes, nothing, within = range(classes, classes + 3)
        self._rows = np.full((states + _FIRST, classes + 3), _NONE, dtype=np.int64)
        self._rows[_FIRST:, :classes] = code.targets + _FIRST
        self._rows[_FIRST:, closes] = np.where(code.accepting, _CLOSED, _NONE)
        self._rows[:, within] = np.arange(states + _FIRST)
        places = graph.table.astype(np.int64)
        leaf = places < classes
        self._column = np.where(leaf, np.where(places == NOWHERE, nothing, places), within)
        self._place = np.where(leaf, root, places)
        if closing is not None:
            self._column[root, closing] = closes
        useful = code.distances != UNREACHABLE
        reached = useful[code.targets].astype(np.float32) @ graph.leads_to.T.astype(np.float32) > 0
        reached[:, root] = useful
        self._alive = np.zeros((states + _FIRST, len(graph.below)), dtype=bool)
        self._alive[_FIRST:] = reached
        self._alive[_CLOSED, root] = True
        self._ends = np.full(states + _FIRST, False)
        self._ends[_CLOSED if closing is not None else slice(_FIRST, None)] = (
            True if closing is not None else code.accepting
        )
        self.start = (_FIRST << self._bits | root) if useful[0] else DEAD
        self._next: dict[int, list[int]] = {}
        self._sizes: dict[int, int] = {}
        self._to_end: list[int] | None = None

    @property
    def used(self) -> frozenset[int]:
        """The bytes that characters are spelled with."""
        return frozenset(np.flatnonzero((self._graph.table != NOWHERE).any(axis=0)).tolist())

    def steps(self, states: NDArray[np.int64], byte: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the state after a byte each."""
        # Flat tables are read in half the time.
        at = (states & ((1 << self._bits) - 1)) * 256 + byte
        row = self._rows.take((states >> self._bits) * self._rows.shape[1] + self._column.take(at))
        place = self._place.take(at)
        return (row << self._bits | place) * self._alive.take(row * self._alive.shape[1] + place)

    def closed(self, states: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return where a member was read, its closing byte included."""
        return self._ends[states >> self._bits] & (states & ((1 << self._bits) - 1) == self._root)

    def step(self, state: int, byte: int) -> int:
        """Return the state after a byte."""
        row = self._next.get(state)
        if row is None:
            row = self._next[state] = self.steps(np.full(256, state), np.arange(256)).tolist()
        return row[byte]

    def size(self, state: int) -> int:
        """Return the least number of bytes to the end of a member."""
        if state not in self._sizes:
            self._sizes[state] = self._size(state)
        return self._sizes[state]

    def _size(self, state: int) -> int:
        row, place = state >> self._bits, state & ((1 << self._bits) - 1)
        if row < _FIRST:
            return 0 if row == _CLOSED else FAR
        if self._to_end is None:
            self._to_end = self._solved()
        if place == self._root:
            return self._to_end[row - _FIRST]
        targets = self._code.targets[row - _FIRST].tolist()
        depths = self._graph.depths[place].tolist()
        return min(depth + self._to_end[target] for depth, target in zip(depths, targets, strict=True))

    def _solved(self) -> list[int]:
        """Return the least number of bytes from each state of the automaton over code points (Dijkstra's algorithm)."""
        code, weights = self._code, self._graph.depths[self._root].tolist()
        before: list[dict[int, int]] = [{} for _ in range(len(code))]
        for source, row in enumerate(code.targets.tolist()):
            for weight, target in zip(weights, row, strict=True):
                if weight < before[target].get(source, FAR):
                    before[target][source] = weight
        found = [FAR] * len(code)
        heap = [(int(self._closing is not None), state) for state in np.flatnonzero(code.accepting).tolist()]
        while heap:
            size, state = heapq.heappop(heap)
            if size < found[state]:
                found[state] = size
                for source, weight in before[state].items():
                    if size + weight < found[source]:
                        heapq.heappush(heap, (size + weight, source))
        return found
