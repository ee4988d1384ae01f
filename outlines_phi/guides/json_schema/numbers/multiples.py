"""The multiples of decimals: their Boolean algebra, and their digits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from itertools import chain, count
from math import floor, gcd, lcm
from typing import final

from ....format_limits import LimitError
from ....numerics.cache import kept

MAX_TERMS = 256
"""The most terms of one combination; each further multiple can double them."""


@final
@dataclass(frozen=True)
class Multiples:
    """A Boolean combination of the multiples of decimals: what a schema can say of a number without comparing it.

    The indicator of a number ``x`` is ``rest + sum(c for q, c in terms if q divides x)``. Such sums are closed under products,
    since what ``a`` and ``b`` divide is what their least common multiple divides. Equal sets have equal sums: were two sums
    different, a ``q`` of their difference that none of its other terms divides would be told apart by ``q`` itself.

    Attributes
    ----------
    rest
        1 where the numbers that none of the terms divides are members, else 0.
    terms
        The positive divisors with their coefficients, ascending.
    """

    rest: int
    terms: tuple[tuple[Fraction, int], ...] = ()

    def contains(self, x: Fraction) -> bool:
        """Return True if ``x`` is a member."""
        return bool(self.rest + sum(c for q, c in self.terms if (x / q).denominator == 1))

    def __and__(self, other: Multiples) -> Multiples:
        if self == other or other == EVERY_NUMBER:
            return self
        if self == EVERY_NUMBER:
            return other
        total: dict[Fraction, int] = {}
        for q, c in ((None, self.rest), *self.terms):
            for p, d in ((None, other.rest), *other.terms):
                both = _common(q, p) if q and p else q or p or Fraction(0)
                total[both] = total.get(both, 0) + c * d
        rest = total.pop(Fraction(0), 0)
        terms = tuple(sorted((q, c) for q, c in total.items() if c))
        if len(terms) > MAX_TERMS:
            raise LimitError(
                "Combine fewer different multipleOf by anyOf, oneOf or not",
                f"These need {len(terms):,} terms where {MAX_TERMS} are allowed",
            )
        return Multiples(rest, terms)

    def __invert__(self) -> Multiples:
        return Multiples(1 - self.rest, tuple((q, -c) for q, c in self.terms))

    def between(self, low: Fraction, high: Fraction) -> Iterator[Fraction]:
        """Yield the members between ``low`` and ``high``, both excluded, in no order; some come twice.

        ``rest`` must be 0, so that they are discrete.
        """
        return chain.from_iterable(self._along(q, low, high) for q in self._widest)

    def first_between(self, low: Fraction, high: Fraction | None) -> Fraction | None:
        """Return the least member above ``low`` and below ``high``, if that is given; ``rest`` must be 0."""
        found = (next(self._along(q, low, high), None) for q in self._widest)
        return min((x for x in found if x is not None), default=None)

    def most_between(self, low: Fraction, high: Fraction) -> int:
        """Return an upper bound of the number of members between ``low`` and ``high``; ``rest`` must be 0."""
        return sum(floor((high - low) / q) + 1 for q in self._widest)

    @cached_property
    def _widest(self) -> list[Fraction]:
        """The divisors that no other one divides; every member is a multiple of one of them."""
        assert not self.rest
        return [q for q, _ in self.terms if all(p == q or (q / p).denominator != 1 for p, _ in self.terms)]

    def _along(self, q: Fraction, low: Fraction, high: Fraction | None) -> Iterator[Fraction]:
        first = floor(low / q) + 1
        # Of 2**k multiples of q in a row, k other terms let at least one through (Crittenden and Vanden Eynden, 1970).
        for k in count(first) if high is None else range(first, -floor(-high / q)):
            if self.contains(k * q):
                yield k * q


NO_NUMBER = Multiples(0)
EVERY_NUMBER = Multiples(1)


def _common(a: Fraction, b: Fraction) -> Fraction:
    """Return the least common multiple of two decimals."""
    return Fraction(lcm(a.numerator, b.numerator), gcd(a.denominator, b.denominator))


@final
@dataclass(frozen=True)
class Divisor:
    """The multiples of ``p / 10**e``, as an automaton over the digits of a number.

    ``n`` stands for the digits so far as one whole number. Appending ``k`` digits ``w`` gives ``n * 10**k + w``, and all
    that matters of ``n`` is which ``w`` make it divisible by ``p``: those with ``w % p == -n * 10**k % p``. A state is the least
    ``k`` of which there are such ``w``, with that residue; all larger ``k`` follow from it. So no two states are equivalent, and
    a power of ten takes as many states as it has zeros, not one for each residue.

    Before the point, ``k`` counts the digits of the fraction, too, so it is at least ``e``. Behind the point, ``k`` is the
    number of digits to come before only zeros may follow; where none of them help, the state is ``None``.
    """

    p: int
    e: int

    @classmethod
    @kept
    def of(cls, q: Fraction) -> Divisor:
        """Return the automaton of the multiples of a positive decimal."""
        e = decimals(q)
        return cls(int(q * 10**e), e)

    @property
    def start(self) -> tuple[int, int]:
        """The state before the first digit."""
        return self.e, 0

    def whole(self, state: tuple[int, int], digit: int) -> tuple[int, int]:
        """Return the state after one more digit before the point."""
        k, residue = state
        if k > self.e:
            k -= 1
        else:
            residue = residue * 10 % self.p
        while True:
            power = 10**k
            rest = (residue - digit * power) % self.p
            if rest < power:
                return k, rest
            k, residue = k + 1, residue * 10 % self.p

    def point(self, state: tuple[int, int]) -> tuple[int, int] | None:
        """Return the state after the point, or after the last digit of a whole number."""
        return state if state[0] == self.e else None

    def decimal(self, state: tuple[int, int] | None, digit: int) -> tuple[int, int] | None:
        """Return the state after one more digit behind the point."""
        if state is None or not state[0]:
            return state if not digit else None
        power = 10 ** (state[0] - 1)
        rest = (state[1] - digit * power) % self.p
        return (state[0] - 1, rest) if rest < power else None

    @cached_property
    def size(self) -> int:
        """An upper bound of the number of states before the point."""
        states, k = 0, self.e
        while True:
            power = 10**k
            common = gcd(power, self.p)
            states += min(-(-power // common), self.p // common)
            if power >= self.p:
                return states
            k += 1


def digits_of(number: int) -> str:
    """Return the digits of an integer, of thousands as well, which Python itself does not write."""
    return f"{Decimal(number):f}"


def decimals(x: Fraction) -> int:
    """Return the least ``e`` for which ``x * 10**e`` is whole; ``x`` must be a decimal."""
    twos = (x.denominator & -x.denominator).bit_length() - 1
    fives, odd = 0, x.denominator >> twos
    while odd > 1:
        odd, rest = divmod(odd, 5)
        assert not rest, "a decimal has a denominator of twos and fives"
        fives += 1
    return max(twos, fives)


def is_decimal(x: Fraction) -> bool:
    """Return True if ``x`` has a finite decimal expansion."""
    odd = x.denominator // (x.denominator & -x.denominator)
    return pow(5, odd.bit_length(), odd) == 0
