"""Byte automata: deterministic finite automata over bytes, as integer tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ..vocabulary.special_tokens import references, spelling
from ..vocabulary.trie import spans, trie_of_sorted
from .byte_machine import UNREACHABLE, ByteMachine, Place, Position
from .lift import Transformations

DEAD = 0  # The state from which nothing is accepted; every automaton has it


@final
@dataclass(frozen=True, eq=False)
class ByteAutomaton(ByteMachine[int]):
    """A complete deterministic automaton over bytes: one row per state, one column per class of bytes that act alike."""

    targets: NDArray[np.int32]  # `int32[S, C]`: the next state. Row `DEAD` is all `DEAD`
    byte_class: NDArray[np.uint8]  # `uint8[256]`: the column of each byte
    start: int  # The state before the first byte
    accepting: NDArray[np.bool_]  # `bool[S]`: whether the bytes read so far are a member; False for `DEAD`
    # `int16[S]`: `2 k` before and in the `k`th of some parts of a text, `2 k + 1` between it and the next. Within a character it
    # is the least of those after it. None where no parts are told
    positions: NDArray[np.int16] | None = None

    def __post_init__(self) -> None:
        assert not self.targets[DEAD].any() and not self.accepting[DEAD], "state 0 must be dead"
        assert len(self.targets) == len(self.accepting) and self.byte_class.shape == (256,)

    @classmethod
    def from_edges(
        cls,
        source: NDArray[np.integer],
        byte: NDArray[np.integer],
        target: NDArray[np.integer],
        *,
        start: int,
        accepting: NDArray[np.bool_],
    ) -> ByteAutomaton:
        """Return the automaton with these transitions; a byte that is not listed leads to :data:`DEAD`.

        Bytes with equal transitions share a column, in the order of the least byte of each.
        """
        states = len(accepting)
        # Two stable sorts by narrow keys are radix sorts, several times faster than one by the pair.
        order = np.argsort(source.astype(np.min_scalar_type(states)), kind="stable")
        order = order[np.argsort(byte[order].astype(np.uint8), kind="stable")]
        used, counts = np.unique(byte, return_counts=True)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        columns = Transformations(offsets, source[order].astype(np.int32), target[order].astype(np.int32))
        distinct, number_of = columns.distinct()
        byte_class = np.full(256, len(distinct), dtype=np.int64)  # of the bytes without transitions
        byte_class[used] = number_of
        width = max(len(distinct) + int(len(used) < 256), 1)
        targets = np.zeros((states, width), dtype=np.int32)
        targets[source, byte_class[byte]] = target
        return cls(targets, byte_class.astype(np.uint8), start, accepting)

    @classmethod
    def from_table(cls, targets: NDArray[np.int32], accepting: NDArray[np.bool_]) -> ByteAutomaton:
        """Return the automaton of a table ``int32[S, 256]`` whose start is state 1; equal columns become one."""
        targets, byte_class = np.unique(targets, axis=1, return_inverse=True)
        return cls(np.ascontiguousarray(targets), byte_class.reshape(-1).astype(np.uint8), 1, accepting)

    @classmethod
    def of_machine(
        cls,
        machine: ByteMachine[Place],
        byte_class: NDArray[np.uint8],
        check: Callable[[int], None] = lambda places: None,
    ) -> ByteAutomaton:
        """Return the automaton of a machine, of which bytes of one class act alike; ``check`` may refuse so many places.

        It is trimmed, but where the machine has a place that is settled: that is state 1 then.
        """
        bytes = np.unique(byte_class, return_index=True)[1]
        starts = [place for place in (machine.settled, machine.start) if place is not None]
        places, targets = explored(starts, lambda place: machine.steps(place, bytes.tolist()), check)
        accepting = np.array([False, *map(machine.ends, places)])
        told = list(map(machine.position, places))
        has_blocks = any(one.inside or one.between for one in told)
        positions = (
            np.array([0, *(2 * one.block + one.between for one in told)], dtype=np.int16) if has_blocks else None
        )
        found = cls(targets, byte_class, places[machine.start], accepting, positions)
        return found.trim() if machine.settled is None else found

    @classmethod
    def of_texts(cls, texts: Iterable[bytes]) -> ByteAutomaton:
        """Return the automaton of some texts: their trie."""
        every = sorted(set(texts))
        read, lengths = b"".join(every), np.array([len(text) for text in every], dtype=np.int64)
        parent, byte, _, ends = trie_of_sorted(np.frombuffer(read, dtype=np.uint8), lengths)
        accepting = np.zeros(len(parent) + 1, dtype=bool)
        accepting[ends + 1] = True
        node = np.arange(1, len(parent))
        return cls.from_edges(parent[node] + 1, byte[node], node + 1, start=1, accepting=accepting)

    @classmethod
    def of_special(cls, written: str) -> ByteAutomaton:
        """Return the automaton of a special token, or of any of several (:mod:`outlines_phi.vocabulary.special_tokens`)."""
        return cls.of_texts(map(spelling, references(written)))

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def used(self) -> frozenset[int]:
        """The bytes that lead somewhere."""
        return frozenset(np.flatnonzero((self.targets != DEAD).any(axis=0)[self.byte_class]).tolist())

    def members_up_to(self, most: int, longest: int) -> list[bytes] | None:
        """Return the accepted texts, the shortest first; ``None`` where they are more than ``most``, or longer than ``longest``."""
        found = list[bytes]()
        for text in self.members():
            if len(found) == most or len(text) > longest:
                return None
            found.append(text)
        return found

    def __and__(self, other: ByteAutomaton) -> ByteAutomaton:
        """Return the automaton of the texts that both accept, trimmed, with the positions of the left one."""
        return self._beside(other, np.logical_and, needed=2)

    def __or__(self, other: ByteAutomaton) -> ByteAutomaton:
        """Return the automaton of the texts that one of them accepts, as of ``&``."""
        return self._beside(other, np.logical_or, needed=0)

    def __sub__(self, other: ByteAutomaton) -> ByteAutomaton:
        """Return the automaton of the texts that only this one accepts, as of ``&``."""
        return self._beside(other, np.greater, needed=1)

    def _beside(self, other: ByteAutomaton, accepts: Callable[..., Any], needed: int) -> ByteAutomaton:
        product = Product.of((self, other), needed=needed)
        position = None if self.positions is None else self.positions[product.places[:, 0]]
        accepting = np.asarray(accepts(*product.matched.T))
        return ByteAutomaton(product.targets, product.byte_class, 1, accepting, position).trim()

    def without_empty(self) -> ByteAutomaton:
        """Return the automaton of the same texts but the empty one; positions are not kept."""
        if not self.accepting[self.start]:
            return self
        again = np.concatenate([self.targets, self.targets[[self.start]]])  # a start that no text leads back to
        return ByteAutomaton(again, self.byte_class, len(self), np.append(self.accepting, False)).trim()

    def trim(self) -> ByteAutomaton:
        """Return the same language without the states that no text reaches or that no text leads to acceptance from."""
        source, column = np.nonzero(self.targets)
        target = self.targets[source, column]
        reached = distances(target, source, np.array([self.start]), len(self)) != UNREACHABLE
        useful = reached & (self.distances != UNREACHABLE)
        useful[DEAD] = True
        if useful.all():
            return self
        number = np.where(useful, np.cumsum(useful) - 1, DEAD).astype(np.int32)
        position = None if self.positions is None else self.positions[useful]
        start = int(number[self.start])
        return ByteAutomaton(number[self.targets[useful]], self.byte_class, start, self.accepting[useful], position)

    @cached_property
    def distances(self) -> NDArray[np.int32]:
        """``int32[S]``: the least number of bytes from each state to an accepting one, or ``UNREACHABLE``."""
        source, column = np.nonzero(self.targets)
        return distances(source, self.targets[source, column], np.flatnonzero(self.accepting), len(self))

    @cached_property
    def _rows(self) -> dict[int, list[int]]:
        return {}

    @cached_property
    def _sizes(self) -> list[int]:
        return self.distances.tolist()

    def size(self, state: int) -> int:
        """Return the least number of bytes from a state to an accepting one, or ``UNREACHABLE``."""
        return self._sizes[state]

    def step(self, state: int, byte: int) -> int | None:
        """Return the state after a byte; many times as fast as through arrays, once the state was asked for."""
        row = self._rows.get(state)
        if row is None:
            row = self._rows[state] = self.targets[state, self.byte_class].tolist()
        return row[byte] or None

    def steps(self, state: int, bytes: Sequence[int]) -> list[int | None]:
        if state not in self._rows:
            self.step(state, 0)
        row = self._rows[state]
        return [row[byte] or None for byte in bytes]

    def ends(self, state: int) -> bool:
        return bool(self.accepting[state])

    def live(self, state: int) -> list[int]:
        """Return the bytes that a state goes on with, found once."""
        found = self._live.get(state)
        if found is None:
            found = self._live[state] = np.flatnonzero(self.targets[state, self.byte_class]).tolist()
        return found

    @cached_property
    def _live(self) -> dict[int, list[int]]:
        return {}

    @property
    def is_empty(self) -> bool:
        """True if no text is accepted."""
        return not self.is_live(self.start)

    @cached_property
    def is_infinite(self) -> bool:
        """True if there are infinitely many members."""
        useful = self.trim()
        inside = np.arange(len(useful)) != DEAD
        # What has no way on is taken out until all else has one: a cycle is left.
        while not np.array_equal(onward := inside & inside[useful.targets].any(axis=1), inside):
            inside = onward
        return bool(inside.any())

    def advance(self, state: int, text: bytes) -> int:
        """Return the state after ``text``."""
        for byte in text:
            state = int(self.targets[state, self.byte_class[byte]])
        return state

    def position(self, state: int) -> Position:
        if self.positions is None:
            return Position()
        block, between = divmod(self.positions.item(state), 2)
        return Position(block, not between, bool(between))

    def shortest(self, state: int | None = None) -> bytes:
        """Return the first of the shortest texts from ``state`` on; ``ValueError`` if there is none."""
        return self.completed(self.start if state is None else state)

    def toward_end(self, state: int) -> int:
        return int(self.distances[self.targets[state, self.byte_class]].argmin())

    def members(self) -> Iterator[bytes]:
        """Yield the members, shortest first and in the order of their bytes; without end for an infinite language."""
        useful = self.trim()
        exactly = [useful.accepting]  # per length: the states from which some text of that length is accepted

        @lru_cache(4096)
        def ways(state: int, left: int) -> list[tuple[bytes, int]]:
            successors = useful.targets[state, useful.byte_class]
            live = np.flatnonzero(exactly[left][successors])[::-1].tolist()
            return [(bytes([byte]), int(successors[byte])) for byte in live]

        while exactly[-1].any():
            length = len(exactly) - 1
            stack = [(b"", useful.start)] if exactly[length][useful.start] else []
            while stack:
                text, state = stack.pop()
                if len(text) == length:
                    yield text
                    continue
                stack += [(text + byte, target) for byte, target in ways(state, length - len(text) - 1)]
            exactly.append(np.asarray(exactly[-1][useful.targets].any(axis=1)))

    def witness(self, other: ByteAutomaton) -> bytes | None:
        """Return a shortest text that exactly one of the two accepts; ``None`` when the languages are equal."""
        differences = (self - other, other - self)
        return min((only.shortest() for only in differences if not only.is_empty), key=len, default=None)


_CHUNK = 1 << 21
"""Entries of states' tuples that are held at a time: it bounds the memory of a step, not its result."""


class Product(NamedTuple):
    """The product of several byte automata, its reachable states.

    State 0 is dead and state 1 the start. ``places``, ``int32[S, T]``, are the states of each, ``targets``, ``int32[S, C]``, the
    next states, ``byte_class``, ``uint8[256]``, the column of each byte, ``matched``, ``bool[S, T]``, which of them accept.
    """

    places: NDArray[np.int32]
    targets: NDArray[np.int32]
    byte_class: NDArray[np.uint8]
    matched: NDArray[np.bool_]

    @classmethod
    def of(
        cls, automata: Sequence[ByteAutomaton], check: Callable[[int], None] = lambda states: None, *, needed: int = 0
    ) -> Product:
        """Return the product of ``automata``, dead where one of the first ``needed`` is; ``check`` may refuse so many states."""
        byte_class, first = joint_classes([automaton.byte_class for automaton in automata])
        tables = [automaton.targets[:, automaton.byte_class[first]] for automaton in automata]
        start = np.array([[automaton.start for automaton in automata]], dtype=np.int32)
        width, columns = len(tables), tables[0].shape[1]
        states, pending = [np.zeros_like(start), start], [start]
        targets = [np.zeros((1, columns), dtype=np.int32)]
        number = {start.tobytes(): 1}
        size = max(1, _CHUNK // (width * columns))
        while pending:
            frontier = pending.pop(0)
            if len(frontier) > size:
                pending.insert(0, frontier[size:])
                frontier = frontier[:size]
            # [frontier x C, T]
            after = np.stack([table[frontier[:, i]] for i, table in enumerate(tables)], axis=-1).reshape(-1, width)
            live = np.flatnonzero(after[:, :needed].all(axis=1) & after.any(axis=1))
            after, new = np.ascontiguousarray(after[live]), list[int]()
            keys = after.view(f"V{4 * width}").ravel().tolist()
            for n, key in enumerate(keys):
                if key not in number:
                    number[key] = len(number) + 1
                    new.append(n)
            check(len(number))
            row = np.zeros(len(frontier) * columns, dtype=np.int32)
            row[live] = [number[key] for key in keys]
            targets.append(row.reshape(-1, columns))
            if new:
                states.append(after[new])
                pending.append(states[-1])
        places = np.concatenate(states)
        matched = np.stack([a.accepting[places[:, i]] for i, a in enumerate(automata)], axis=1)
        return cls(places, np.concatenate(targets), byte_class, matched)


def joint_classes(classes: Sequence[NDArray[np.integer]]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Intersect partitions of the bytes: ``uint8[256]``, the class of each byte, and the first byte of each class."""
    found, first = np.zeros(256, dtype=np.int64), np.zeros(1, dtype=np.int64)
    for each in classes:
        _, first, found = np.unique(found << 8 | each, return_index=True, return_inverse=True)
    return found.astype(np.uint8), first


def position_between(first: int, last: int, parts: int) -> int:
    """Return the position of a text, see :attr:`ByteAutomaton.positions`, that may be read in several ways.

    ``first`` and ``last`` are the blocks that it may be in: even ones are what stands before, between and behind the ``parts``, odd
    ones the parts. A text that may be in a part is in it; a part begins where what stands before it may end.
    """
    return min(max(first - (first % 2 == 1 or first == last), 0), 2 * parts - 1)


class TooLarge(Exception):
    """A machine has more states than are to be listed."""


def below(limit: int) -> Callable[[int], None]:
    """Return the check of :func:`explored` that raises :class:`TooLarge` from so many places on."""

    def check(states: int) -> None:
        if states >= limit:
            raise TooLarge

    return check


def explored(
    starts: Iterable[Place],
    steps: Callable[[Place], Sequence[Place | None]],
    check: Callable[[int], None] = lambda states: None,
) -> tuple[dict[Place, int], NDArray[np.int32]]:
    """Explore a machine breadth first: number its reachable places from 1 on, and return ``int32[S, C]``, their successors.

    ``steps`` returns the place after a byte of each class, ``None`` for the dead one, whose row comes first; ``check`` may refuse
    so many places.
    """
    places = list(dict.fromkeys(starts))
    number = {place: n for n, place in enumerate(places, 1)}
    rows = list[list[int]]()
    for place in places:  # grows as it is walked
        rows.append([])
        for after in steps(place):
            if after is not None and after not in number:
                places.append(after)
                number[after] = len(places)
            rows[-1].append(DEAD if after is None else number[after])
        check(len(places))
    return number, np.array([[DEAD] * len(rows[0]), *rows], dtype=np.int32)


def distances(
    source: NDArray[np.integer], target: NDArray[np.integer], goals: NDArray[np.integer], states: int
) -> NDArray[np.int32]:
    """Return ``int32[states]``: the least number of edges from each state to one of ``goals``.

    Breadth-first search backwards from the goals, one round per distance; every edge is looked at once. Swap
    ``source`` and ``target`` for the distances from the goals.
    """
    # Narrow keys make NumPy's stable sort a radix sort: 7 times faster.
    order = np.argsort(target.astype(np.min_scalar_type(states)), kind="stable")
    into = source[order]
    starts = np.concatenate([[0], np.cumsum(np.bincount(target, minlength=states))])
    distance = np.full(states, UNREACHABLE, dtype=np.int32)
    mark = np.empty(states, dtype=np.int64)
    frontier = np.unique(goals)
    distance[frontier] = 0
    step = 0
    while len(frontier):
        step += 1
        first = starts[frontier]
        found = into[spans(first, starts[frontier + 1] - first)]
        found = found[distance[found] == UNREACHABLE]
        distance[found] = step
        mark[found] = np.arange(len(found))  # the last write wins, so each state is kept once
        frontier = found[mark[found] == np.arange(len(found))]
    return distance
