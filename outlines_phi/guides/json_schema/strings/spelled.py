"""How an automaton over code points becomes one over bytes: each character is spelled by one or more byte strings."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ....automata.automaton import DEAD, UNREACHABLE, ByteAutomaton
from ....numerics.cache import kept
from ....vocabulary.trie import spans
from .code_automaton import CodeAutomaton
from .code_points import AFTER_SURROGATES, CODE_POINTS, FIRST_SURROGATE

NOWHERE = -1
"""Where a byte leads that spells nothing."""

FAR = 1 << 40
"""More bytes than there are."""

Edge = tuple[int, int, int]
"""The first and last byte of a run of bytes that lead to the same place, and that place."""

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
        self._class_of = dict(zip(bounds, classes, strict=True))
        # Surrogates and what lies beyond Unicode belong to no class; no run begins among surrogates.
        before = max(first for first in self._class_of if first < FIRST_SURROGATE)
        self._class_of.setdefault(AFTER_SURROGATES, self._class_of[before])
        self._class_of |= {FIRST_SURROGATE: NOWHERE, CODE_POINTS: NOWHERE}
        self._bounds = sorted(self._class_of)

    @cached_property
    def table(self) -> NDArray[np.int16]:
        """``int16[P, 256]``: the place that each byte leads to."""
        found = np.full((len(self.below), 256), NOWHERE, dtype=np.int16)
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
        run = bisect_right(self._bounds, base) - 1
        if base >= least and (run + 1 == len(self._bounds) or base + size <= self._bounds[run + 1]):
            return self._evenly(self._class_of[self._bounds[run]], radices)
        below = size // len(radices[0])
        children = [self.digits(base + value * below, radices[1:], least) for value in range(len(radices[0]))]
        return self.fork(radices[0], children)

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


@kept
def utf8(bounds: tuple[int, ...], classes: tuple[int, ...]) -> tuple[Spelling, int]:
    """Return the spelling of characters in UTF-8, and where it begins."""
    spelling = Spelling(bounds, classes)
    return spelling, spelling.place(spelling.in_utf8())


def spelled(
    automaton: CodeAutomaton, in_bytes: Callable[..., tuple[Spelling, int]], *, closing: int | None = None
) -> ByteAutomaton:
    """Return the automaton of the spellings of the members.

    Parameters
    ----------
    automaton
        The members.
    in_bytes
        How characters are spelled, by the first of each run of them and its class: the decision graph, and where it begins.
    closing
        A byte that ends a member; ``None`` if members end by themselves.
    """
    graph, root = in_bytes(tuple(automaton.bounds.tolist()), tuple(automaton.classes.tolist()))
    alive = np.flatnonzero(automaton.distances != UNREACHABLE).tolist()
    number = {state: place for place, state in enumerate(alive, 1)}
    states = len(alive) + 1  # with DEAD
    closing = closing if alive else None
    end = states
    states += closing is not None
    places: dict[tuple[Edge, ...], int] = {}
    sources: list[int] = []
    edges: list[Edge] = []
    order = [(place, graph.below[place], graph.edges[place - graph.classes]) for place in range(graph.classes, root)]
    order = [entry for entry in order if entry[0] != root]
    top = graph.edges[root - graph.classes] if root >= graph.classes else ()
    for state in alive:
        at = [number.get(target, DEAD) for target in automaton.targets[state].tolist()]
        live = sum(1 << column for column, target in enumerate(at) if target)
        for _, below, outgoing in order:
            mapped = _mapped(outgoing, at) if below & live else ()
            if mapped and mapped not in places:
                places[mapped] = states
                sources += [states] * len(mapped)
                edges += mapped
                states += 1
            at.append(places[mapped] if mapped else DEAD)
        mapped = _mapped(top, at)
        if closing is not None and automaton.accepting[state]:
            mapped = (*mapped, (closing, closing, end))
        sources += [number[state]] * len(mapped)
        edges += mapped
    accepting = np.zeros(states, dtype=bool)
    if closing is None:
        accepting[1 : len(alive) + 1] = automaton.accepting[alive]
    else:
        accepting[end] = True
    table = np.array(edges, dtype=np.int64).reshape(-1, 3)
    counts = table[:, 1] - table[:, 0] + 1
    return ByteAutomaton.from_edges(
        np.repeat(np.array(sources, dtype=np.int64), counts),
        spans(table[:, 0], counts),
        np.repeat(table[:, 2], counts),
        start=number.get(0, DEAD),
        accepting=accepting,
    )


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
