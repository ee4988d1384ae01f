"""The JSON texts of a set of numbers, as a byte automaton.

A fraction ends in another digit than 0, unless it has one digit: ``1``, ``1.0`` and ``1.5``, and neither ``1.00`` nor ``1.50``. So
a number has one text, or two where it is whole, as ``json.dumps`` and ``JSON.stringify`` write it, and none goes on for ever. Only
where no number is excluded, or single ones, are there texts with exponents, too, of up to three digits.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from math import prod
from operator import or_
from typing import NamedTuple, TypeAlias, final

import numpy as np

from ....automata.automaton import DEAD, ByteAutomaton, explored
from ....format_limits import LimitError, current_limits
from ....regex.code_automaton import equivalent
from ....regex.patterns import compile_regex
from .multiples import EVERY_NUMBER, NO_NUMBER, Divisor, Multiples, decimals, digits_of


class Whole(NamedTuple):
    """Knowledge of a number, for the comparison with cuts, after some digits before its point.

    Attributes
    ----------
    length
        How many digits were read. No zeros lead, so a number with more digits is the greater one.
    rank
        How many of the cuts' different prefixes of this length are below the digits.
    equal
        Whether the prefix of that rank is equal to the digits.
    """

    length: int
    rank: int
    equal: bool


class Decimals(NamedTuple):
    """The same after the point: cuts before ``low`` are below the number, cuts from ``high`` on above it, others equal so far.

    Attributes
    ----------
    place
        How many digits of the fraction were read; not counted on behind the last digit of the cuts that are equal so far.
    """

    place: int
    low: int
    high: int


@final
class Side:
    """The half of a line on one side of 0: its cuts, ascending from 0, whether each is a member, and the piece above each."""

    def __init__(self, cuts: Sequence[Fraction], at: Sequence[bool], after: Sequence[Multiples]) -> None:
        self.at, self.after = at, after
        wholes = [digits_of(x.numerator // x.denominator) for x in cuts]
        self._wholes = [(len(digits), digits) for digits in wholes]  # ordered as the numbers are
        self._decimals = [_decimal_digits(x) for x in cuts]
        self._prefixes = [
            sorted({digits[:length] for digits in wholes if len(digits) >= length})
            for length in range(len(wholes[-1]) + 1)
        ]

    @classmethod
    def above(cls, cuts: Sequence[Fraction], at: Sequence[bool], between: Sequence[Multiples]) -> Side:
        """Return the half from 0 up of a line."""
        k = bisect_left(cuts, 0)
        if k < len(cuts) and not cuts[k]:
            return cls(cuts[k:], at[k:], between[k + 1 :])
        zero = between[k].contains(Fraction(0))
        return cls((Fraction(0), *cuts[k:]), (zero, *at[k:]), between[k:])

    @classmethod
    def below(cls, cuts: Sequence[Fraction], at: Sequence[bool], between: Sequence[Multiples]) -> Side:
        """Return the half from 0 down of a line, upside down; a number and its negative have the same divisors."""
        return cls.above([-x for x in reversed(cuts)], at[::-1], between[::-1])

    def first(self, digit: int) -> Whole | None:
        """Return what is known after a first digit other than 0."""
        return self._placed(1, str(digit))

    def whole(self, known: Whole, digit: int) -> Whole | None:
        """Return what is known after one more digit before the point; ``None`` when all cuts are below."""
        length, rank, equal = known
        prefixes = self._prefixes[length]
        if equal:
            return self._placed(length + 1, f"{prefixes[rank]}{digit}")
        if length + 1 >= len(self._prefixes):
            return None
        longer = self._prefixes[length + 1]
        rank = bisect_left(longer, prefixes[rank]) if rank < len(prefixes) else len(longer)
        return Whole(length + 1, rank, False)

    def point(self, known: Whole) -> Decimals:
        """Return what is known once there are no more digits before the point."""
        length, rank, equal = known
        prefixes = self._prefixes[length]
        if rank == len(prefixes):
            place = bisect_left(self._wholes, (length + 1, ""))
            return Decimals(0, place, place)
        digits = (length, prefixes[rank])
        low = bisect_left(self._wholes, digits)
        return Decimals(0, low, bisect_right(self._wholes, digits, low) if equal else low)

    @cached_property
    def zero(self) -> Decimals:
        """What is known after a first 0, which no digits but those of a fraction follow."""
        return Decimals(0, 0, bisect_right(self._wholes, (1, "0")))

    def decimals(self, known: Decimals) -> list[Decimals]:
        """Return what is known after one more digit behind the point, for each digit."""
        place, low, high = known
        if low == high:
            return [known] * 10
        equal = [int(self._decimals[k][place : place + 1] or 0) for k in range(low, high)]
        after = []
        for digit in range(10):
            first, end = low + bisect_left(equal, digit), low + bisect_right(equal, digit)
            longest = max((len(self._decimals[k]) for k in range(first, end)), default=0)
            after.append(Decimals(min(place + 1, longest), first, end))
        return after

    def cut(self, known: Decimals) -> int | None:
        """Return the cut that the number is equal to if no digits follow."""
        place, low, high = known
        return low if low < high and place >= len(self._decimals[low]) else None

    def _placed(self, length: int, digits: str) -> Whole | None:
        if length >= len(self._prefixes):
            return None
        prefixes = self._prefixes[length]
        rank = bisect_left(prefixes, digits)
        return Whole(length, rank, rank < len(prefixes) and prefixes[rank] == digits)


def _decimal_digits(x: Fraction) -> str:
    places = decimals(x)
    behind = x.numerator * 10**places // x.denominator % 10**places
    return digits_of(behind).zfill(places) if places else ""


def most_states() -> int:
    """Return the most states that are made for one set; 6,000 take half a second."""
    return current_limits().states * 3 // 10


LISTED = 2_000
"""The most multiples that are listed one by one, where they are few but their remainders many."""

MANY_VALUES = 100
"""From how many numbers on the texts of a list are written one by one, in one automaton that is not the least."""

MANY_REMAINDERS = 256
"""From how many remainders on multiples are rather listed."""

_START, _MINUS = "", "-"
"""What is read before the first digit."""

_COLUMNS = b"-.0123456789"
"""The byte of each column of a table of states; the last column is for all others."""

_COLUMN = np.array([_COLUMNS.find(byte) for byte in range(256)])

Line: TypeAlias = tuple[Sequence[Fraction], Sequence[bool], Sequence[Multiples]]
"""Cuts, whether each is a member, and the pieces around them."""

Remainders: TypeAlias = tuple[tuple[int, tuple[int, int]], ...]
"""The divisors, by their numbers, that may still divide the number, each with its state."""


class DigitNode(NamedTuple):
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
        How much was read behind the point: nothing yet, not even the point; nothing; one digit; more.
    ends
        Whether the number may end here: not right behind the point, and not behind a 0 that is not the first digit there.
    """

    side: int
    place: Whole | Decimals | int
    remainders: Remainders
    behind: int
    ends: bool = True


def spell(cuts: Sequence[Fraction], at: Sequence[bool], between: Sequence[Multiples]) -> ByteAutomaton:
    """Return the automaton of the texts without exponents of the members of a line, which is given as in :class:`NumberSet`.

    Raises
    ------
    UnsupportedError
        If more than :func:`most_states` are needed.
    """
    if len(cuts) > MANY_VALUES and all(at) and all(piece == NO_NUMBER for piece in between):
        return _spell_values(cuts)
    cuts, at, between = _listed(cuts, at, between)
    if any(_remainders(piece) > most_states() for piece in between):
        raise _too_many()
    return _Texts([Side.above(cuts, at, between), Side.below(cuts, at, between)], between).automaton()


def _spell_values(values: Sequence[Fraction]) -> ByteAutomaton:
    """Return the automaton of the texts without exponents of some numbers: the trie of these."""
    start = DEAD + 1
    ways: dict[tuple[int, int], int] = {}
    ends = set[int]()
    for x in values:
        places = decimals(x)
        digits = digits_of(abs(x.numerator) * 10**places // x.denominator).rjust(places + 1, "0")
        text = f"{digits[:-places]}.{digits[-places:]}" if places else digits
        for sign in ("", "-") if not x else ("-" if x < 0 else "",):
            for spelled in (text,) if places else (text, f"{text}.0"):
                state = start
                for byte in f"{sign}{spelled}".encode():
                    state = ways.setdefault((state, byte), start + len(ways) + 1)
                ends.add(state)
    source, byte = np.array(list(ways)).T
    accepting = np.zeros(start + len(ways) + 1, dtype=bool)
    accepting[list(ends)] = True
    return ByteAutomaton.from_edges(source, byte, np.array(list(ways.values())), start=start, accepting=accepting)


@final
class _Texts:
    """The texts of a line: what to read from each node."""

    def __init__(self, sides: list[Side], pieces: Sequence[Multiples]) -> None:
        divisors = sorted({q for piece in pieces for q, _ in piece.terms})
        self._most = most_states()
        self._sides, self._divisors = sides, [Divisor.of(q) for q in divisors]
        self._pieces = list(dict.fromkeys((NO_NUMBER, EVERY_NUMBER, *pieces)))
        self._terms = [{divisors.index(q): c for q, c in piece.terms} for piece in self._pieces]
        number = {piece: n for n, piece in enumerate(self._pieces)}
        self._outer = [[number[piece] for piece in side.after] for side in sides]
        # For each side and piece: the divisors that matter there or further away from 0.
        self._beyond: list[list[frozenset[int]]] = []
        for outer in self._outer:
            divisors_of = (frozenset(self._terms[piece]) for piece in reversed(outer))
            self._beyond.append(list(accumulate(divisors_of, or_))[::-1])

    def automaton(self) -> ByteAutomaton:
        """Return the automaton of the texts, the least of its language."""

        def check(states: int) -> None:
            if states > self._most:
                raise _too_many()

        nodes, targets = explored(list[DigitNode | str]([_START]), self._steps, check)
        accepting = np.array([False, *(isinstance(node, DigitNode) and self._ends(node) for node in nodes)])
        found = ByteAutomaton.from_table(targets[:, _COLUMN], accepting).trim()
        block = equivalent(found.targets, found.accepting)
        first = np.unique(block, return_index=True)[1]
        start = int(block[found.start])
        return ByteAutomaton(block[found.targets[first]], found.byte_class, start, found.accepting[first])

    def _steps(self, node: DigitNode | str) -> list[DigitNode | str | None]:
        """Return the nodes behind each of :data:`_COLUMNS`."""
        if isinstance(node, DigitNode):
            return [None, *self._after(node), None]
        negative = node == _MINUS
        return [None if negative else _MINUS, None, *self._first(int(negative)), None]

    def _first(self, side: int) -> list[DigitNode | None]:
        """Return the nodes behind each first digit."""
        before = tuple((n, divisor.start) for n, divisor in enumerate(self._divisors))
        zero = DigitNode(side, self._sides[side].zero, before, 0)
        first = self._sides[side].first
        return [zero, *(self._whole(side, first(d), self._divided(before, d, False)) for d in range(1, 10))]

    def _after(self, node: DigitNode) -> list[DigitNode | None]:
        """Return the nodes behind a point and behind each digit."""
        side, place, remainders, behind, _ = node
        if behind:
            more = min(behind + 1, 3)
            digits = [(d, self._divided(remainders, d, True), more == 2 or d > 0) for d in range(10)]
            if isinstance(place, Decimals):
                places = self._sides[side].decimals(place)
                return [None, *(self._behind(side, places[d], left, more, ends) for d, left, ends in digits)]
            assert isinstance(place, int)
            return [None, *(self._settled(place, left, more, ends) for _, left, ends in digits)]
        divided = tuple((n, s) for n, r in remainders if (s := self._divisors[n].point(r)) is not None)
        if isinstance(place, Decimals):
            return [self._behind(side, place, divided, 1, False), *[None] * 10]
        blind = not (isinstance(place, Whole) and place.equal) and all(
            self._divisors[n].is_blind for n, _ in remainders
        )
        wholes = [(d, self._divided(remainders, d, False)) for d in range(1 if blind else 10)]
        if isinstance(place, Whole):
            line = self._sides[side]
            point = self._behind(side, line.point(place), divided, 1, False)
            after = [self._whole(side, line.whole(place, d), r) for d, r in wholes]
        else:
            assert isinstance(place, int)
            point = self._settled(place, divided, 1, False)
            after = [self._settled(place, r, 0) for _, r in wholes]
        return [point, *after * (10 if blind else 1)]

    def _divided(self, remainders: Remainders, digit: int, behind: bool) -> Remainders:
        if behind:
            after = ((n, self._divisors[n].decimal(r, digit)) for n, r in remainders)
            return tuple((n, r) for n, r in after if r is not None)
        return tuple((n, self._divisors[n].whole(r, digit)) for n, r in remainders)

    def _whole(self, side: int, place: Whole | None, remainders: Remainders) -> DigitNode | None:
        if place is None:
            return self._settled(self._outer[side][-1], remainders, 0)
        piece = self._sides[side].point(place).low - 1
        return DigitNode(side, place, _kept(remainders, self._beyond[side][piece]), 0)

    def _behind(self, side: int, place: Decimals, remainders: Remainders, behind: int, ends: bool) -> DigitNode | None:
        pieces = self._outer[side][max(place.low - 1, 0) : max(place.high, 1)]
        if place.low == place.high:
            return self._settled(pieces[0], remainders, behind, ends)
        return DigitNode(side, place, _kept(remainders, set().union(*(self._terms[p] for p in pieces))), behind, ends)

    def _settled(self, piece: int, remainders: Remainders, behind: int, ends: bool = True) -> DigitNode | None:
        remainders = _kept(remainders, self._terms[piece])
        if behind and not remainders:
            piece = 1 if self._pieces[piece].rest else 0
        return DigitNode(-1, piece, remainders, behind, ends) if piece else None

    def _ends(self, node: DigitNode) -> bool:
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
    return prod(Divisor.of(q).size for q, _ in piece.terms)


def _too_many() -> LimitError:
    return LimitError(
        "Give a smaller multipleOf or closer bounds, so that few numbers are left, or raise the limit by "
        "`outlines_phi.limits(states=...)`",
        f"These need more than {most_states():,} states",
    )


_TEN = r"([0-9]{1,2}|[12][0-9]{2}"
_EXPONENT = rf"[eE](-{_TEN}|3[0-2][0-9])|\+?{_TEN}|30[0-8]))"
"""The exponents of the numbers of double precision."""

ANY_NUMBER = compile_regex(rf"-?(0|[1-9][0-9]*)(\.([0-9]|[0-9]*[1-9]))?({_EXPONENT})?")
"""All JSON numbers, also those with exponents."""

_SCIENTIFIC = compile_regex(rf"-?[1-9](\.([0-9]|[0-9]*[1-9]))?{_EXPONENT}")
"""Those with one digit before the point, and an exponent: each number has few texts of this form."""


def spell_all_but(cuts: Sequence[Fraction]) -> ByteAutomaton:
    """Return the automaton of the texts of all numbers but the cuts; those with exponents have one digit before the point."""
    plain = spell(cuts, [False] * len(cuts), [EVERY_NUMBER] * (len(cuts) + 1))
    excluded = compile_regex("|".join(filter(None, map(_scientific, cuts))) or "x")
    return (plain.complement() & (_SCIENTIFIC & excluded.complement()).complement()).complement()


def spell_far(values: Iterable[Fraction]) -> ByteAutomaton | None:
    """Return the automaton of the texts with exponents of those values that writers of JSON give one; ``None`` for none of them."""
    far = [x for x in values if x and not Fraction(1, 10**4) <= abs(x) < 10**16]
    return compile_regex("|".join(map(_scientific, far))) if far else None


def _scientific(x: Fraction) -> str:
    """Return a regular expression of the texts of a number with one digit before the point and an exponent; 0 has none."""
    if not x:
        return ""
    digits = digits_of(abs(x.numerator) * 10 ** decimals(x) // x.denominator)
    exponent = len(digits) - 1 - decimals(x)
    digits = digits.rstrip("0")
    fraction = rf"\.{digits[1:]}" if digits[1:] else r"(\.0)?"
    sign = "-" if exponent < 0 else "[+-]?" if not exponent else r"\+?"
    return f"{'-' if x < 0 else ''}{digits[0]}{fraction}[eE]{sign}0?{abs(exponent)}"
