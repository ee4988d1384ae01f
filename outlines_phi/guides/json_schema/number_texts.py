"""The JSON texts of a set of numbers, as a byte automaton."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import prod
from operator import or_
from typing import NamedTuple, TypeAlias, final

import numpy as np

from ...automaton import DEAD, ByteAutomaton
from ...errors import UnsupportedError
from .multiples import EVERY_NUMBER, NO_NUMBER, Divisor, Multiples
from .number_sides import Decimals, Side, Whole

MAX_STATES = 6_000
"""The most states that are made for one set; they take half a second."""

LISTED = 2_000
"""The most multiples that are listed one by one, where they are few but their remainders many."""

MANY_REMAINDERS = 256
"""From how many remainders on multiples are rather listed."""

_SELF, _OPEN = -1, -2
"""A state's own number, in its row; and the number of a node that has no state yet."""

_COLUMNS = (b"-", b".", *(b"%d" % digit for digit in range(10)), b"eE", b"+")
"""The bytes of each column of a table of states but column 0, which is for all others."""

Line: TypeAlias = tuple[Sequence[Fraction], Sequence[bool], Sequence[Multiples]]
"""Cuts, whether each is a member, and the pieces around them."""

Row: TypeAlias = tuple[int, ...]
"""The next states: by the point, then by each digit."""

Remainders: TypeAlias = tuple[tuple[int, tuple[int, int]], ...]
"""The divisors, by their numbers, that may still divide the number, each with its state."""


class Node(NamedTuple):
    """What matters of the digits so far.

    Attributes
    ----------
    side
        Which side of 0 the number is on; -1 once that matters no more.
    place
        Where it lies among the cuts of that side, or the number of the piece that it lies in for good.
    remainders
        The remainders by the divisors that matter there.
    behind
        Whether the point was read.
    ends
        Whether the number may end here: not right behind the point.
    """

    side: int
    place: Whole | Decimals | int
    remainders: Remainders
    behind: bool
    ends: bool = True


def spell(cuts: Sequence[Fraction], at: Sequence[bool], between: Sequence[Multiples]) -> ByteAutomaton:
    """Return the automaton of the texts without exponents of the members of a line, which is given as in :class:`NumberSet`.

    Raises
    ------
    UnsupportedError
        If more than :data:`MAX_STATES` states are needed.
    """
    cuts, at, between = _listed(cuts, at, between)
    if any(_remainders(piece) > MAX_STATES for piece in between):
        raise _too_many()
    return _Texts([Side.above(cuts, at, between), Side.below(cuts, at, between)], between).automaton()


@final
class _Texts:
    """The texts of a line: what to read from each node, and the rows of the states made of nodes."""

    def __init__(self, sides: list[Side], pieces: Sequence[Multiples]) -> None:
        divisors = sorted({q for piece in pieces for q, _ in piece.terms})
        self._sides, self._divisors = sides, [_divisor(q) for q in divisors]
        self._pieces = list(dict.fromkeys((NO_NUMBER, EVERY_NUMBER, *pieces)))
        self._terms = [{divisors.index(q): c for q, c in piece.terms} for piece in self._pieces]
        number = {piece: n for n, piece in enumerate(self._pieces)}
        self._outer = [[number[piece] for piece in side.after] for side in sides]
        # For each side and piece: the divisors that matter there or further away from 0.
        self._beyond: list[list[frozenset[int]]] = []
        for outer in self._outer:
            divisors_of = (frozenset(self._terms[piece]) for piece in reversed(outer))
            self._beyond.append(list(accumulate(divisors_of, or_))[::-1])
        self._number: dict[Node, int] = {}
        self._rows: list[Row] = [(DEAD,) * 11]
        self._accepting = [False]
        self._equal: dict[tuple[bool, Row], int] = {}

    def automaton(self) -> ByteAutomaton:
        """Return the automaton of the texts."""
        positive, negative = (tuple(self._state(node) for node in self._first(side)) for side in (0, 1))
        minus = self._merged(False, (DEAD, *negative))
        rows, accepting = [(DEAD, *row) for row in self._rows], self._accepting
        if not minus and not any(positive):
            return _automaton(rows, DEAD, accepting)
        return _automaton([*rows, (minus, DEAD, *positive)], len(rows), [*accepting, False])

    def _state(self, root: Node | None) -> int:
        """Return the state of a node, made when those that follow are, without recursion."""
        stack: list[tuple[Node, list[Node | None], list[int]]] = []
        if root is not None and root not in self._number:
            self._open(root, stack)
        while stack:
            node, after, row = stack[-1]
            while len(row) < len(after):
                follower = after[len(row)]
                if follower is None:
                    row.append(DEAD)
                elif follower == node:
                    row.append(_SELF)
                elif follower not in self._number:
                    self._open(follower, stack)
                    break
                else:
                    if self._number[follower] == _OPEN:  # a cycle leads back to it, so it cannot wait for its row
                        self._number[follower] = self._new()
                    row.append(self._number[follower])
            else:
                stack.pop()
                self._number[node] = self._merged(self._ends(node), tuple(row), self._number[node])
        return DEAD if root is None else self._number[root]

    def _open(self, node: Node, stack: list[tuple[Node, list[Node | None], list[int]]]) -> None:
        if len(self._number) >= MAX_STATES:
            raise _too_many()
        self._number[node] = _OPEN
        stack.append((node, self._after(node), []))

    def _merged(self, accepting: bool, row: Row, state: int = _OPEN) -> int:
        """Return the state with this row, an equal one if there is; ``state`` is its number if that is known already."""
        if state == _OPEN:
            if (accepting, row) in self._equal:
                return self._equal[accepting, row]
            if not accepting and set(row) <= {DEAD, _SELF}:
                return DEAD
            if _SELF in row:
                # It may do what one of its own followers does, if it is taken for that one.
                for other in set(row) - {DEAD, _SELF}:
                    if self._equal.get((accepting, _with_self(row, other))) == other:
                        return other
            state = self._new()
        self._equal.setdefault((accepting, row), state)
        if _SELF in row:
            row = _with_self(row, state)
            self._equal.setdefault((accepting, row), state)
        self._rows[state], self._accepting[state] = row, accepting
        return state

    def _new(self) -> int:
        self._rows.append(())
        self._accepting.append(False)
        return len(self._rows) - 1

    def _first(self, side: int) -> list[Node | None]:
        """Return the nodes behind each first digit."""
        before = tuple((n, divisor.start) for n, divisor in enumerate(self._divisors))
        zero = Node(side, self._sides[side].zero, before, False)
        first = self._sides[side].first
        return [zero, *(self._whole(side, first(d), self._divided(before, d, False)) for d in range(1, 10))]

    def _after(self, node: Node) -> list[Node | None]:
        """Return the nodes behind a point and behind each digit."""
        side, place, remainders, behind, _ = node
        if behind:
            if isinstance(place, Decimals):
                places = self._sides[side].decimals(place)
                return [None, *(self._behind(side, places[d], self._divided(remainders, d, True)) for d in range(10))]
            assert isinstance(place, int)
            if not remainders:  # and yet not dead, so every digit will do
                return [None, *[node._replace(ends=True)] * 10]
            return [None, *(self._settled(place, self._divided(remainders, d, True), True) for d in range(10))]
        divided = tuple((n, s) for n, r in remainders if (s := self._divisors[n].point(r)) is not None)
        if isinstance(place, Decimals):
            return [self._behind(side, place, divided, ends=False), *[None] * 10]
        blind = not (isinstance(place, Whole) and place.equal) and all(
            self._divisors[n].is_blind for n, _ in remainders
        )
        digits = [(d, self._divided(remainders, d, False)) for d in range(1 if blind else 10)]
        if isinstance(place, Whole):
            line = self._sides[side]
            point = self._behind(side, line.point(place), divided, ends=False)
            after = [self._whole(side, line.whole(place, d), r) for d, r in digits]
        else:
            assert isinstance(place, int)
            point = self._settled(place, divided, True, ends=False)
            after = [self._settled(place, r, False) for _, r in digits]
        return [point, *after * (10 if blind else 1)]

    def _divided(self, remainders: Remainders, digit: int, behind: bool) -> Remainders:
        if behind:
            after = ((n, self._divisors[n].decimal(r, digit)) for n, r in remainders)
            return tuple((n, r) for n, r in after if r is not None)
        return tuple((n, self._divisors[n].whole(r, digit)) for n, r in remainders)

    def _whole(self, side: int, place: Whole | None, remainders: Remainders) -> Node | None:
        if place is None:
            return self._settled(self._outer[side][-1], remainders, False)
        piece = self._sides[side].point(place).low - 1
        return Node(side, place, _kept(remainders, self._beyond[side][piece]), False)

    def _behind(self, side: int, place: Decimals, remainders: Remainders, *, ends: bool = True) -> Node | None:
        pieces = self._outer[side][max(place.low - 1, 0) : max(place.high, 1)]
        if place.low == place.high:
            return self._settled(pieces[0], remainders, True, ends=ends)
        return Node(side, place, _kept(remainders, set().union(*(self._terms[p] for p in pieces))), True, ends)

    def _settled(self, piece: int, remainders: Remainders, behind: bool, *, ends: bool = True) -> Node | None:
        remainders = _kept(remainders, self._terms[piece])
        if behind and not remainders:
            piece = 1 if self._pieces[piece].rest else 0
        return Node(-1, piece, remainders, behind, ends) if piece else None

    def _ends(self, node: Node) -> bool:
        """Return whether the number may end here."""
        side, place, remainders, behind, ends = node
        if not ends:
            return False
        if isinstance(place, int):
            piece = place
        else:
            known = place if isinstance(place, Decimals) else self._sides[side].point(place)
            cut = self._sides[side].cut(known)
            if cut is not None:
                return self._sides[side].at[cut]
            piece = self._outer[side][max(known.low - 1, 0)]
        terms = self._terms[piece]
        divides = (n for n, (k, r) in remainders if not r and n in terms and (behind or k == self._divisors[n].e))
        return bool(self._pieces[piece].rest + sum(terms[n] for n in divides))


def _with_self(row: Row, state: int) -> Row:
    return tuple(state if target == _SELF else target for target in row)


def _kept(remainders: Remainders, wanted: Container[int]) -> Remainders:
    return tuple(pair for pair in remainders if pair[0] in wanted) if remainders else remainders


def _listed(cuts: Sequence[Fraction], at: Sequence[bool], between: Sequence[Multiples]) -> Line:
    """Return the same line with cuts for what multiples put into a piece, or take out of it, where that is few but costly."""
    points = dict(zip(cuts, at, strict=True))
    pieces = list(between)
    for k, piece in enumerate(between[1:-1], 1):
        few = ~piece if piece.rest else piece
        low, high = cuts[k - 1], cuts[k]
        if _remainders(piece) > MANY_REMAINDERS and few.most_between(low, high) <= LISTED:
            points.update(dict.fromkeys(few.between(low, high), not piece.rest))
            pieces[k] = EVERY_NUMBER if piece.rest else NO_NUMBER
    if len(points) == len(cuts):
        return cuts, at, pieces
    more = sorted(points)
    return more, [points[x] for x in more], [pieces[bisect_left(cuts, x)] for x in more] + pieces[-1:]


def _remainders(piece: Multiples) -> int:
    return prod(_divisor(q).size for q, _ in piece.terms)


@lru_cache(maxsize=256)
def _divisor(q: Fraction) -> Divisor:
    return Divisor.of(q)


def _too_many() -> UnsupportedError:
    return UnsupportedError(
        f"Give a smaller multipleOf or closer bounds, so that few numbers are left. These need more than {MAX_STATES:,} states."
    )


def _automaton(rows: Sequence[Row], start: int, accepting: Sequence[bool]) -> ByteAutomaton:
    """Return the automaton with these rows, of the next state for each of :data:`_COLUMNS`; equal columns become one."""
    number: dict[Row, int] = {(DEAD,) * len(rows): 0}
    byte_class = np.zeros(256, dtype=np.uint8)
    for characters, column in zip(_COLUMNS, zip(*rows, strict=True), strict=False):
        byte_class[list(characters)] = number.setdefault(column, len(number))
    targets = np.array(list(number), dtype=np.int32).T
    return ByteAutomaton(np.ascontiguousarray(targets), byte_class, start, np.array(accepting))


def _any_number() -> ByteAutomaton:
    sign, zero, whole, point, fraction, exponent, exponent_sign, power = range(1, 9)
    rows = [[DEAD] * len(_COLUMNS) for _ in range(10)]
    start = 9
    for state, target in ((start, whole), (sign, whole), (whole, whole), (point, fraction), (fraction, fraction)):
        rows[state][2:12] = [target] * 10
    for state in (exponent, exponent_sign, power):
        rows[state][2:12] = [power] * 10
    rows[start][0], rows[start][2], rows[sign][2] = sign, zero, zero
    for state in (zero, whole):
        rows[state][1] = point
    for state in (zero, whole, fraction):
        rows[state][12] = exponent
    rows[exponent][0] = rows[exponent][13] = exponent_sign
    return _automaton(
        [tuple(row) for row in rows], start, [state in (zero, whole, fraction, power) for state in range(10)]
    )


ANY_NUMBER = _any_number()
"""All JSON numbers, also those with exponents."""
