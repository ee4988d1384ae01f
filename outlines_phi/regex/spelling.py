"""Translation of automata over code points to bytes: each character is spelled by one or more byte strings."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..automata.automaton import DEAD, UNREACHABLE, ByteAutomaton
from .code_automaton import CodeAutomaton, numbered
from .code_points import AFTER_SURROGATES, CODE_POINTS, FIRST_SURROGATE

NOWHERE = -1
"""Target of a byte that spells nothing."""

FAR = 1 << 40
"""More bytes than there are."""

_BEYOND = 0x140000
"""After the last number that four bytes of UTF-8 may spell."""

Edge = tuple[int, int, int]
"""The first and last byte of a run of bytes that lead to the same place, and that place."""

_LONGEST = 4
"""The most bytes that spell a character in UTF-8."""

CONTINUATION = [(0x80 + digit,) for digit in range(64)]
"""The bytes of each digit to base 64 in UTF-8."""


class Spelling:
    """The spellings of all classes of characters: a decision graph over bytes. Equal parts are one.

    A leaf is a class of characters; a class has the number of its leaf. Every other place has runs of bytes that lead
    to places before it, so that places are in the order in which they can be worked off.
    """

    def __init__(self, bounds: tuple[int, ...], classes: tuple[int, ...]) -> None:
        self.classes = max(classes) + 1
        self.edges: list[tuple[Edge, ...]] = []
        self.below: list[int] = [1 << number for number in range(self.classes)]
        """The classes that each place leads to, as bits."""
        self._places: dict[tuple[Edge, ...], int] = {}
        self._even: dict[tuple[int, ...], int] = {}
        # Surrogates and what lies beyond Unicode belong to no class; no run begins among surrogates.
        # Narrow numbers are made in a fraction of the time.
        self._class_of = np.full(_BEYOND, NOWHERE, dtype=np.int16 if self.classes < 1 << 14 else np.int32)
        self._class_of[:CODE_POINTS] = np.repeat(classes, np.diff([*bounds, CODE_POINTS]))
        self._class_of[FIRST_SURROGATE:AFTER_SURROGATES] = NOWHERE
        self._blocks: dict[tuple[bytes, int], int] = {}

    @cached_property
    def table(self) -> NDArray[np.integer]:
        """``int[P, 256]``: the place that each byte leads to."""
        found = np.full((len(self.below), 256), NOWHERE, dtype=self._class_of.dtype)
        for place, edges in enumerate(self.edges, self.classes):
            for first, last, target in edges:
                found[place, first : last + 1] = target
        return found

    @cached_property
    def leads_to(self) -> NDArray[np.bool_]:
        """``bool[P, C]``: whether bytes lead from each place to each class."""
        return self.depths < FAR

    @cached_property
    def depths(self) -> NDArray[np.int64]:
        """``int64[P, C]``: the least number of bytes from each place to each class, or :data:`FAR`."""
        found = np.full((len(self.below), self.classes), FAR, dtype=np.int64)
        np.fill_diagonal(found, 0)
        for place, edges in enumerate(self.edges, self.classes):
            found[place] = np.minimum(found[[target for _, _, target in edges]].min(axis=0) + 1, FAR)
        return found

    def place(self, edges: Iterable[Edge]) -> int:
        """Return the place with these edges, in the order of their bytes."""
        merged: list[Edge] = []
        for first, last, target in edges:
            if target == NOWHERE:
                continue
            if merged and merged[-1][1] + 1 == first and merged[-1][2] == target:
                merged[-1] = (merged[-1][0], last, target)
            else:
                merged.append((first, last, target))
        key = tuple(merged)
        if not key:
            return NOWHERE
        if key not in self._places:
            self._places[key] = self.classes + len(self.edges)
            self.edges.append(key)
            below = 0
            for _, _, target in key:
                below |= self.below[target]
            self.below.append(below)
        return self._places[key]

    def digits(self, base: int, radices: Sequence[Sequence[Sequence[int]]], least: int = 0) -> int:
        """Return the place from which digits tell the code point: ``base`` and what the digits give.

        Parameters
        ----------
        base
            The code point with all digits zero.
        radices
            Of each digit to come: the bytes of each of its values.
        least
            Lesser code points are not spelled here.
        """
        size = 1
        for digit in radices:
            size *= len(digit)
        if base + size <= least:
            return NOWHERE
        block = self._class_of[base : base + size]
        if base >= least and (block == block[0]).all():
            return self._evenly(int(block[0]), radices)
        key = block.tobytes(), id(radices[0])  # digits are constants
        if len(radices) > 1 or key not in self._blocks:
            below = size // len(radices[0])
            if below == 1:
                children = block.tolist()
            else:
                places = range(base, base + size, below)
                children = [self.digits(place, radices[1:], least) for place in places]
            found = self.fork(radices[0], children)
            if below > 1:
                return found
            self._blocks[key] = found
        return self._blocks[key]

    def fork(self, digit: Sequence[Sequence[int]], children: Sequence[int]) -> int:
        """Return the place from which each value of a digit leads to its child."""
        return self.place(sorted((b, b, child) for bytes_, child in zip(digit, children, strict=True) for b in bytes_))

    def _evenly(self, number: int, radices: Sequence[Sequence[Sequence[int]]]) -> int:
        """Return the place from which any digits lead to the class ``number``."""
        if number == NOWHERE or not radices:
            return number
        key = (number, *map(id, radices))  # digits are constants
        if key not in self._even:
            below = self._evenly(number, radices[1:])
            self._even[key] = self.fork(radices[0], [below] * len(radices[0]))
        return self._even[key]

    def in_utf8(self, without: str = "") -> list[Edge]:
        """Return the edges by which characters are spelled in UTF-8, but for those ASCII ones in ``without``."""
        edges = [(byte, byte, self.digits(byte, ())) for byte in range(0x80) if chr(byte) not in without]
        for leads, length, least in (
            (range(0xC2, 0xE0), 1, 0x80),
            (range(0xE0, 0xF0), 2, 0x800),
            (range(0xF0, 0xF5), 3, 0x10000),
        ):
            for lead in leads:
                base = (lead & (0x3F >> length)) << 6 * length
                edges.append((lead, lead, self.digits(base, [CONTINUATION] * length, least)))
        return edges


def utf8(bounds: tuple[int, ...], classes: tuple[int, ...]) -> tuple[Spelling, int]:
    """Return the spelling of characters in UTF-8, and where it begins."""
    spelling = Spelling(bounds, classes)
    return spelling, spelling.place(spelling.in_utf8())


InBytes = Callable[[tuple[int, ...], tuple[int, ...]], tuple[Spelling, int]]
"""Spelling of characters, by the first of each run of them and its class: the decision graph, and its root."""


def spelled(automaton: CodeAutomaton, in_bytes: InBytes, *, closing: int | None = None) -> ByteAutomaton:
    """Return the automaton of the spellings of the members.

    Parameters
    ----------
    automaton
        The members.
    in_bytes
        The spelling of characters.
    closing
        A byte that ends a member; ``None`` if members end by themselves.
    """
    graph, root = in_bytes(tuple(automaton.bounds.tolist()), tuple(automaton.classes.tolist()))
    alive = np.flatnonzero(automaton.distances != UNREACHABLE)
    number = np.zeros(len(automaton), dtype=np.int32)
    number[alive] = np.arange(1, len(alive) + 1)
    ends = [] if closing is None or not len(alive) else [len(alive) + 1]
    states = 1 + len(alive) + len(ends)  # with DEAD
    # The first column is that of what spells nothing, the last one that of the closing byte.
    leads = np.zeros((len(alive), graph.classes + 2), dtype=np.int32)
    leads[:, 1:-1] = number[automaton.targets[alive]]
    if ends:
        leads[:, -1] = np.where(automaton.accepting[alive], ends[0], DEAD)
    kinds, kind = np.unique(_alike(leads), axis=0, return_inverse=True)
    forms: dict[Hashable, int] = {}
    shapes = [_forks(graph, root, columns, closing, forms) for columns in kinds.tolist()]
    rows = [np.flatnonzero(kind.reshape(-1) == each) for each in range(len(kinds))]
    tables = [np.pad(leads[of], ((0, 0), (0, len(forks) - 1))) for of, forks in zip(rows, shapes, strict=True)]
    uses: list[list[tuple[int, _Fork]]] = [[] for _ in forms]
    for place, forks in enumerate(shapes):
        for fork in forks[:-1]:
            uses[fork.form].append((place, fork))
    made = [
        (of + 1, place, np.arange(len(of)), forks[-1])
        for place, (of, forks) in enumerate(zip(rows, shapes, strict=True))
    ]
    for used in filter(None, uses):
        # What leads to the same is the same state, wherever it occurs.
        parts = [tables[place][:, fork.classes] for place, fork in used]
        same, count = numbered(np.concatenate(parts))
        first = np.flatnonzero(np.diff(np.maximum.accumulate(same), prepend=-1))
        begin = 0
        for (place, fork), part in zip(used, parts, strict=True):
            end = begin + len(part)
            tables[place][:, fork.column] = states + same[begin:end]
            own = np.flatnonzero((first >= begin) & (first < end))
            made.append((states + own, place, first[own] - begin, fork))
            begin = end
        states += count
    if not made:
        return ByteAutomaton(np.zeros((1, 1), np.int32), np.zeros(256, np.uint8), DEAD, np.zeros(1, dtype=bool))
    # Bytes that are read alike share a column, in the order of the least byte of each; those that are never read have the last.
    reads = np.array([fork.reads for *_, fork in made])
    _, some, byte_class = np.unique(reads, axis=1, return_index=True, return_inverse=True)
    order = np.lexsort((some, ~reads[:, some].any(axis=0)))
    found = np.zeros((states, len(some)), dtype=np.int32)
    for numbers, place, of, fork in made:
        found[numbers] = tables[place][of[:, None], fork.reads[some[order]]]
    accepting = np.zeros(states, dtype=bool)
    accepting[ends or 1 + np.flatnonzero(automaton.accepting[alive])] = True
    start, position = int(number[0]), None
    if automaton.position is not None:
        position = np.full(states, np.iinfo(np.int16).max, dtype=np.int16)
        position[DEAD], position[number[alive]] = 0, automaton.position[alive]
        within = found[len(alive) + 1 :]
        for _ in range(_LONGEST - 1):
            position[len(alive) + 1 :] = np.where(within == DEAD, position.max(), position[within]).min(axis=1)
    columns = np.argsort(order)[byte_class.reshape(-1)].astype(np.uint8)
    return ByteAutomaton(found, columns, start, accepting, position)


class _Fork(NamedTuple):
    """A place of the decision graph, as far as classes are told apart that lead to different states.

    ``form`` is its number up to the classes that it leads to, ``classes``; ``column`` stands for it; ``reads``, ``int32[256]``,
    is the column of each byte.
    """

    form: int
    classes: list[int]
    column: int
    reads: NDArray[np.int32]


def _alike(leads: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the first column of each row with the same number."""
    order = np.argsort(leads, axis=1, kind="stable")
    ordered = np.take_along_axis(leads, order, axis=1)
    new = np.pad(np.diff(ordered, axis=1) != 0, ((0, 0), (1, 0)), constant_values=True)
    firsts = np.maximum.accumulate(np.where(new, np.arange(leads.shape[1]), 0), axis=1)
    found = np.empty_like(leads)
    np.put_along_axis(found, order, np.take_along_axis(order, firsts, axis=1).astype(np.int32), axis=1)
    return found


def _forks(
    graph: Spelling, root: int, columns: list[int], closing: int | None, forms: dict[Hashable, int]
) -> list[_Fork]:
    """Return the places of the graph that are told apart where some classes, in ``columns``, are alike; the root is the last."""
    at = columns[1:-1]
    live = sum(1 << place for place, column in enumerate(at) if column)
    under: dict[int, tuple[int, tuple[int, ...]]] = {column: (-1, (column,)) for column in columns}
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    found: list[_Fork] = []

    def fork(edges: tuple[Edge, ...], *, is_root: bool = False) -> int:
        classes = tuple(dict.fromkeys(one for *_, column in edges for one in under[column][1]))
        key = tuple(
            (first, last, under[column][0], *map(classes.index, under[column][1])) for first, last, column in edges
        )
        told = (forms.setdefault(key, len(forms)), classes)
        if is_root or told not in known:
            known[told] = column = len(columns) + len(found)
            under[column] = told
            reads = np.zeros(256, dtype=np.int32)
            for first, last, to in edges:
                reads[first : last + 1] = to
            found.append(_Fork(told[0], list(classes), column, reads))
        return known[told]

    for place in range(graph.classes, root):
        mapped = _mapped(graph.edges[place - graph.classes], at) if graph.below[place] & live else ()
        at.append(fork(mapped) if mapped else DEAD)
    top = _mapped(graph.edges[root - graph.classes], at) if root >= graph.classes else ()
    closed = ((closing, closing, columns[-1]),) if closing is not None and columns[-1] else ()
    fork((*top, *closed), is_root=True)
    return found


def _mapped(edges: tuple[Edge, ...], at: list[int]) -> tuple[Edge, ...]:
    """Return ``edges`` with the state ``at`` their targets, without the dead ones."""
    merged: list[Edge] = []
    for first, last, place in edges:
        target = at[place]
        if target == DEAD:
            continue
        if merged and merged[-1][2] == target and merged[-1][1] + 1 == first:
            merged[-1] = (merged[-1][0], last, target)
        else:
            merged.append((first, last, target))
    return tuple(merged)
