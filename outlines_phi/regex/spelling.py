"""Translation of automata over code points to bytes: each character is spelled by one or more byte strings.

As one automaton, or as two that run one inside the other, where the one would be large.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import compress, pairwise
from math import prod
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ..automata.automaton import DEAD, UNREACHABLE, ByteAutomaton
from ..numerics.cache import kept
from ..vocabulary.kernel import KINDS, Automaton, Flat
from .code_automaton import AFTER_SURROGATES, CODE_POINTS, FIRST_SURROGATE, CodeAutomaton, numbered

NOWHERE = -1
"""Target of a byte that spells nothing."""

FAR = 1 << 40
"""More bytes than there are."""

_ASCII = 0x80
"""The characters that are spelled in one byte."""

_BEYOND = 0x140000
"""After the last number that four bytes of UTF-8 may spell."""

Edge = tuple[int, int, int]
"""The first and last byte of a run of bytes that lead to the same place, and that place."""

_LONGEST = 4
"""The most bytes that spell a character in UTF-8."""


@final
class Digit:
    """A digit of a code point, by the bytes that spell each of its values.

    Attributes
    ----------
    base
        The number of values.
    ways
        The bytes in order, each with its value.
    runs
        The first and last byte of each run of them.
    """

    def __init__(self, *values: Iterable[int]) -> None:
        self.base, self.ways = len(values), sorted((byte, n) for n, bytes_ in enumerate(values) for byte in bytes_)
        used = dict(self.ways)
        firsts, lasts = (b for b in used if b - 1 not in used), (b for b in used if b + 1 not in used)
        self.runs = list(zip(firsts, lasts, strict=True))


_CONTINUATION = Digit(*((byte,) for byte in range(0x80, 0xC0)))
"""The digit to base 64 of UTF-8."""

_UTF8 = [
    ([Digit(*((byte,) for byte in range(0xC0, 0xE0))), _CONTINUATION], _ASCII),
    ([Digit(*((byte,) for byte in range(0xE0, 0xF0))), *[_CONTINUATION] * 2], 0x800),
    ([Digit(*((byte,) for byte in range(0xF0, 0xF5))), *[_CONTINUATION] * 3], 0x10000),
]
"""The digits of characters of two to four bytes, and the first code point that is spelled so."""


class Graph(NamedTuple):
    """The spellings of all classes of characters: a decision graph over bytes.

    A leaf is a class of characters; a class has the number of its leaf. Bytes lead from every other place to places before it, so
    that places are in the order in which they can be worked off.

    Attributes
    ----------
    root
        The place where characters begin, which is the last one.
    table
        ``int[P, 256]``: the place that each byte leads to, or :data:`NOWHERE`.
    depths
        ``int64[P, C]``: the least number of bytes from each place to each class, at least :data:`FAR` where none leads there.
    """

    root: int
    table: NDArray[np.integer]
    depths: NDArray[np.int64]

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.depths.shape[1]

    def byte_class(self, closing: int | None) -> NDArray[np.integer]:
        """Return ``int[256]``, the class of each byte: no place tells those of one apart; the byte that closes is alone."""
        ways = np.vstack([self.table[self.classes :], np.arange(256) == (NOWHERE if closing is None else closing)])
        return numbered(np.ascontiguousarray(ways.T))

    def merged(self, class_of: NDArray[np.integer]) -> Graph:
        """Return the graph in which each class is the one that ``class_of`` says."""
        own, classes = self.classes, int(class_of.max()) + 1
        number = np.concatenate([class_of, np.arange(classes, classes + len(self.table) - own), [NOWHERE]])
        table = np.full((classes + len(self.table) - own, 256), NOWHERE, dtype=np.int32)
        table[classes:] = number[self.table[own:]]
        depths = np.full((len(table), classes), FAR, dtype=np.int64)
        np.fill_diagonal(depths, 0)
        order = class_of.argsort(kind="stable")
        used, first = np.unique(class_of[order], return_index=True)
        depths[classes:, used] = np.minimum.reduceat(self.depths[own:, order], first, axis=1)
        return Graph(self.root - own + classes, table, depths)


@final
class Spelling:
    """The making of a :class:`Graph`, of which equal parts are one."""

    def __init__(self, bounds: tuple[int, ...], classes: tuple[int, ...]) -> None:
        self._classes = max(classes) + 1
        self._edges: list[tuple[Edge, ...]] = []
        self._places: dict[tuple[Edge, ...], int] = {}
        self._even: dict[tuple[int, int, Digit], int] = {}
        # Surrogates and what lies beyond Unicode belong to no class; no run begins among surrogates.
        self._bounds, self._class_of = list(bounds), list(classes)
        for first, last in ((FIRST_SURROGATE, AFTER_SURROGATES), (CODE_POINTS, _BEYOND)):
            at, behind = bisect_left(self._bounds, first), bisect_right(self._bounds, last)
            resumed = self._class_of[behind - 1]
            self._bounds[at:behind], self._class_of[at:behind] = [first, last], [NOWHERE, resumed]

    def graph(self, root: int) -> Graph:
        """Return the graph, of which ``root`` was made last."""
        size = self._classes + len(self._edges)
        table = np.full((size, 256), NOWHERE, dtype=np.int32)
        depths = np.full((size, self._classes), FAR, dtype=np.int64)
        np.fill_diagonal(depths, 0)
        for place, edges in enumerate(self._edges, self._classes):
            for first, last, target in edges:
                table[place, first : last + 1] = target
            np.add(depths[[*{target for _, _, target in edges}]].min(axis=0), 1, out=depths[place])
        return Graph(root, table, depths)

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
            self._places[key] = self._classes + len(self._edges)
            self._edges.append(key)
        return self._places[key]

    def digits(self, base: int, radices: Sequence[Digit], least: int = 0) -> Iterator[Edge]:
        """Yield the edges of the bytes of a digit, from which on digits tell the code point: ``base`` and what the digits give.

        Parameters
        ----------
        base
            The code point with all digits zero.
        radices
            The digits to come.
        least
            Lesser code points are not spelled here.
        """
        digit, rest, children = radices[0], radices[1:], list[int]()
        size = prod(one.base for one in rest)
        end = base + size * digit.base
        while len(children) < digit.base:
            place = base + size * len(children)
            # Neighbours that lie within one run are alike.
            run = bisect_right(self._bounds, place)
            number, last = (NOWHERE, least) if place < least else (self._class_of[run - 1], self._bounds[run])
            alike = (min(last, end) - place) // size
            below = self._evenly(number, rest) if alike else self.place(self.digits(place, rest, least))
            children += [below] * max(alike, 1)
        for byte, value in digit.ways:
            yield byte, byte, children[value]

    def class_of(self, code: int) -> int:
        """Return the class of a code point."""
        return self._class_of[bisect_right(self._bounds, code) - 1]

    def _evenly(self, number: int, radices: Sequence[Digit]) -> int:
        """Return the place from which any digits lead to the class ``number``."""
        if number == NOWHERE or not radices:
            return number
        key = number, len(radices), radices[0]  # which tells those behind it
        if key not in self._even:
            below = self._evenly(number, radices[1:])
            self._even[key] = self.place((first, last, below) for first, last in radices[0].runs)
        return self._even[key]

    def in_utf8(self, without: str = "") -> Iterator[Edge]:
        """Yield the edges by which characters are spelled in UTF-8, but for those ASCII ones in ``without``."""
        yield from ((byte, byte, self.class_of(byte)) for byte in range(_ASCII) if chr(byte) not in without)
        for radices, least in _UTF8:
            yield from self.digits(0, radices, least)


InBytes = Callable[[NDArray[np.integer], NDArray[np.integer]], Graph]
"""Spelling of characters, by the first of each run of them and its class."""


def spelling_of(root_of: Callable[[Spelling], int]) -> InBytes:
    """Return the spelling of which a function makes the root: once for all classes that are alike beyond ASCII."""

    @kept
    def told_apart(bounds: tuple[int, ...], classes: tuple[int, ...]) -> Graph:
        spelling = Spelling((*range(_ASCII), *bounds), (*range(_ASCII), *classes))
        return spelling.graph(root_of(spelling))

    def graph(bounds: NDArray[np.integer], classes: NDArray[np.integer]) -> Graph:
        at = int(bounds.searchsorted(_ASCII, "right"))
        beyond = classes[at - 1 :].tolist()
        number = {each: _ASCII + n for n, each in enumerate(dict.fromkeys(beyond))}
        found = told_apart((_ASCII, *bounds[at:].tolist()), tuple(map(number.__getitem__, beyond)))
        in_ascii = np.repeat(classes[:at], np.diff(bounds[:at], append=_ASCII))
        return found.merged(np.array([*in_ascii, *number]))

    return graph


@spelling_of
def utf8(spelling: Spelling) -> int:
    """Return the root of the spelling of characters in UTF-8."""
    return spelling.place(spelling.in_utf8())


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
    graph = in_bytes(automaton.bounds, automaton.classes)
    alive = np.flatnonzero(automaton.distances != UNREACHABLE)
    if not len(alive):
        return ByteAutomaton(np.zeros((1, 1), np.int32), np.zeros(256, np.uint8), DEAD, np.zeros(1, dtype=bool))
    number = np.zeros(len(automaton), dtype=np.int32)
    number[alive] = np.arange(1, len(alive) + 1)
    byte_class = graph.byte_class(closing)
    some = np.unique(byte_class, return_index=True)[1]
    after = graph.table[:, some]
    # `int32[P + 1, S]`: the state at each place before each state of the members; the last row is that of NOWHERE.
    leads = np.zeros((len(after) + 1, len(alive)), dtype=np.int32)
    leads[: graph.classes] = number[automaton.targets[alive]].T
    # What leads to the same is the same state, wherever it occurs.
    within = {bytes(4 * len(some)): DEAD}
    behind = len(alive) + int(closing is not None)
    for place in range(graph.classes, graph.root):
        found = numbered(np.ascontiguousarray(leads[after[place]].T), within)
        leads[place] = np.where(found == DEAD, DEAD, found + behind)
    tops = leads[after[graph.root]].T
    accepting = np.zeros(behind + len(within), dtype=bool)
    if closing is None:
        accepting[1 : 1 + len(alive)] = automaton.accepting[alive]
    else:
        accepting[behind] = True
        tops[:, byte_class[closing]] = np.where(automaton.accepting[alive], behind, DEAD)
    inner = np.frombuffer(b"".join(within), dtype=np.int32).reshape(-1, len(some))
    nothing = np.zeros((1, len(some)), dtype=np.int32)
    targets = np.concatenate([nothing, tops, *[nothing] * (closing is not None), inner[1:]])
    # Columns are in the order of the least byte of each; that of bytes that are never read is the last.
    column = numbered(np.ascontiguousarray(targets.T))
    kept = np.unique(column, return_index=True)[1]
    order = np.argsort(~targets[:, kept].any(axis=0), kind="stable")
    targets, columns = targets[:, kept[order]], np.argsort(order)[column][byte_class].astype(np.uint8)
    position = None
    if automaton.position is not None:
        position = np.full(len(targets), np.iinfo(np.int16).max, dtype=np.int16)
        position[DEAD], position[number[alive]] = 0, automaton.position[alive]
        to = targets[len(alive) + 1 :]
        for _ in range(_LONGEST - 1):
            position[len(alive) + 1 :] = np.where(to == DEAD, position.max(), position[to]).min(axis=1)
    return ByteAutomaton(targets, columns, int(number[0]), accepting, position)


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
