"""Where a number lies among cuts, told from its digits alone, read from the left."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple, final

from .multiples import Multiples, decimals, digits_of


class Whole(NamedTuple):
    """What is known of a number, for the comparison with cuts, after some digits before its point.

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
    """The half of a line on one side of 0, looked at from 0.

    Parameters
    ----------
    cuts
        The cuts, ascending; the first is 0.
    at
        For each cut, whether it is a member.
    after
        For each cut, the piece above it.
    """

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

    def pieces(self, known: Decimals) -> Sequence[Multiples]:
        """Return the pieces that the number may still come to lie in, whatever follows behind the point."""
        return self.after[max(known.low - 1, 0) : max(known.high, 1)]

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
