"""The spellings of a regular set of strings, without an automaton over bytes: two automata that run one inside the other."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import compress, pairwise
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..automata.automaton import DEAD
from ..vocabulary.kernel import KINDS, Automaton, Flat
from .code_automaton import CodeAutomaton
from .spelling import FAR, NOWHERE, InBytes

_NONE, _CLOSED = range(2)
"""The rows of what is no member, and the first of what is closed; behind these are those of the automaton over code points."""

MOST_SIZES = 10_000
"""Sizes of states that are kept."""


@final
class Composed:
    """The spellings of the members of an automaton over code points.

    A state is a pair: that of the automaton, and a place in the decision graph that tells the classes of characters by their
    bytes. It is one number, the place in its lower bits, and ``DEAD`` where no member begins so. Where lengths matter, the number
    of characters that were read stands beside the state.

    Parameters
    ----------
    code
        The members.
    in_bytes
        The spelling of characters.
    closing
        A byte that ends a member; ``None`` if members end by themselves.
    cuts
        The numbers of characters at which another bit of what is accepted begins to tell the members.

    Attributes
    ----------
    most
        The most characters that are counted: more make no difference.
    """

    def __init__(
        self, code: CodeAutomaton, in_bytes: InBytes, closing: int | None = None, cuts: Sequence[int] = ()
    ) -> None:
        graph, states = in_bytes(code.bounds, code.classes), len(code)
        root, classes = graph.root, graph.classes
        self._code, self._graph, self._root, self._closing = code, graph, root, closing
        self._cuts, self.most = cuts, cuts[-1] if cuts else 0
        self._accepting = code.accepting.astype(np.int64)
        self._labels, label = np.unique(np.append(0, self._accepting), return_inverse=True)
        self._first = first = len(self._labels)
        self._bits = max(len(graph.table) - 1, 1).bit_length()
        # Columns: the classes, then the closing byte, what spells nothing, and bytes within a character.
        closes, nothing, within = range(classes, classes + 3)
        self._rows = np.full((states + first, classes + 3), _NONE, dtype=np.int64)
        self._rows[first:, :classes] = code.targets + first
        self._rows[first:, closes] = label[1:]
        self._rows[:, within] = np.arange(states + first)
        places = graph.table.astype(np.int64)
        leaf = places < classes
        self._column = np.where(leaf, np.where(places == NOWHERE, nothing, places), within).astype(np.int32)
        self._place = np.where(leaf, root, places).astype(np.int32)
        if closing is not None:
            self._column[root, closing] = closes
        useful = code.useful
        reached = useful[code.targets].astype(np.float32) @ (graph.depths.T < FAR).astype(np.float32) > 0
        reached[:, root] = useful
        self._alive = np.zeros((states + first, len(graph.table)), dtype=bool)
        self._alive[first:] = reached
        self._alive[_CLOSED:first, root] = True
        self._ends = np.append(self._labels > 0, code.accepting > 0)
        if closing is not None:
            self._ends[first:] = False
        self.start = (first << self._bits | root) if useful[0] else DEAD
        self._next: dict[int, list[int]] = {}
        self._sizes: dict[tuple[int, int], int] = {}

    @property
    def used(self) -> frozenset[int]:
        """The bytes that characters are spelled with."""
        return frozenset(np.flatnonzero((self._graph.table != NOWHERE).any(axis=0)).tolist())

    @cached_property
    def byte_class(self) -> NDArray[np.integer]:
        """``int[256]``: the class of each byte; the bytes of one lead from each state to one state."""
        return self._graph.byte_class(self._closing)

    def steps(self, states: NDArray[np.int64], byte: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the state after a byte each."""
        # Flat tables are read in half the time.
        at = (states & ((1 << self._bits) - 1)) * 256 + byte
        row = self._rows.take((states >> self._bits) * self._rows.shape[1] + self._column.take(at))
        place = self._place.take(at)
        return (row << self._bits | place) * self._alive.take(row * self._alive.shape[1] + place)

    def closed(self, states: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return the mask of the states behind a member, its closing byte included."""
        return self._ends[states >> self._bits] & (states & ((1 << self._bits) - 1) == self._root)

    @cached_property
    def flat(self) -> Flat | None:
        """The automaton as compiled walks read it; ``None`` where its states have too many bits."""
        if len(self._rows) << self._bits >= 1 << 31:
            return None
        rows = self._rows.astype(np.int32)
        begins = np.arange(len(rows)) >= self._first
        meets = np.zeros((len(KINDS), rows.shape[1]), dtype=bool)
        bounds, classes, as_it_is = (
            self._code.bounds,
            self._code.classes,
            (self._graph.table[self._root, 0xC2:0xF5] != NOWHERE).all(),
        )
        for kind, runs in zip(meets, KINDS, strict=True):
            for first, last in runs:
                run, behind = bounds.searchsorted([first, last - 1], "right")
                kind[classes[run - 1 : behind]] = True
                kind[-2] |= last > 0x80 and not as_it_is  # spells nothing
        return Flat(rows, self._column, self._place, self._alive, self._ends, begins, meets, self._bits, self._root)

    @cached_property
    def entry(self) -> Automaton | None:
        """The addresses of :attr:`flat`."""
        return None if self.flat is None else Automaton.of(self.flat)

    def begins(self, states: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return the mask of the states where a character may begin, or a member end."""
        return (states >> self._bits >= self._first) & (states & ((1 << self._bits) - 1) == self._root)

    def step(self, state: int, byte: int) -> int:
        """Return the state after a byte."""
        row = self._next.get(state)
        if row is None:
            row = self._next[state] = self.steps(np.full(256, state), np.arange(256)).tolist()
        return row[byte]

    def size(self, state: int, characters: int = 0) -> int:
        """Return the least number of bytes to the end of a member, behind so many characters."""
        key = state, min(characters, self.most)
        found = self._sizes.get(key)
        if found is None:
            if len(self._sizes) > MOST_SIZES:
                self._sizes.clear()
            found = self._sizes[key] = self._size(*key)
        return found

    def _size(self, state: int, characters: int) -> int:
        row, place = (state >> self._bits) - self._first, state & ((1 << self._bits) - 1)
        if row < 0:
            return 0 if self._labels[row] >> bisect_right(self._cuts, characters) & 1 else FAR
        if place == self._root:
            return int(self._sizes_behind(characters)[row])
        # What is begun is one character.
        behind = self._sizes_behind(min(characters + 1, self.most))[self._code.targets[row]]
        return min(FAR, int((self._graph.depths[place] + behind).min()))

    def members(self) -> Iterator[bytes]:
        """Yield the members, shortest first and in the order of their bytes; without end for an infinite language (A* search)."""
        heap = [(self.size(self.start), b"", self.start, 0, iter(b""))]
        while heap:
            size, text, state, count, others = heapq.heappop(heap)
            if byte := next(others, 0):  # of bytes that lead to one state, the next comes once one was taken
                heapq.heappush(heap, (size, text[:-1] + bytes([byte]), state, count, others))
            if size == len(text):
                yield text
                continue
            row = self.steps(np.full(256, state), np.arange(256)).tolist()
            for after in dict.fromkeys(row):
                behind = min(count + int(self.begins(np.array(after))), self.most)
                if after != DEAD and (more := self.size(after, behind)) < FAR:
                    others = compress(range(256), map(after.__eq__, row))
                    heapq.heappush(heap, (len(text) + 1 + more, text + bytes([next(others)]), after, behind, others))

    def _sizes_behind(self, characters: int) -> NDArray[np.int64]:
        """Return the least number of bytes from each state of the automaton over code points, behind so many characters."""
        counts, sizes = self._counted
        return sizes[bisect_right(counts, -characters) - 1]

    @cached_property
    def _counted(self) -> tuple[list[int], list[NDArray[np.int64]]]:
        """The numbers of characters, negated, from which on backwards the least numbers of bytes to the end are others, and these.

        By induction from the last cut back. Between cuts they soon stay the same.
        """
        code, weights = self._code, self._graph.depths[self._root]
        sizes = self._solved()
        counts, found = [-self.most], [sizes]
        for bit, (first, after) in reversed([*enumerate(pairwise((0, *self._cuts)))]):
            ends = np.where(self._accepting >> bit & 1, int(self._closing is not None), FAR)
            for count in range(after - 1, first - 1, -1):
                sizes = np.minimum((sizes[code.targets] + weights).min(axis=1), ends)
                if np.array_equal(sizes, found[-1]):
                    break
                counts.append(-count)
                found.append(sizes)
        return counts, found

    def _solved(self) -> NDArray[np.int64]:
        """Return the least number of bytes from each state of the automaton over code points, behind all cuts (Dijkstra)."""
        code, weights = self._code, self._graph.depths[self._root].tolist()
        before: list[dict[int, int]] = [{} for _ in range(len(code))]
        for source, row in enumerate(code.targets.tolist()):
            for weight, target in zip(weights, row, strict=True):
                if weight < before[target].get(source, FAR):
                    before[target][source] = weight
        found = [FAR] * len(code)
        ends = np.flatnonzero(self._accepting >> len(self._cuts)).tolist()
        heap = [(int(self._closing is not None), state) for state in ends]
        while heap:
            size, state = heapq.heappop(heap)
            if size < found[state]:
                found[state] = size
                for source, weight in before[state].items():
                    if size + weight < found[source]:
                        heapq.heappush(heap, (size + weight, source))
        return np.array(found)
