"""Multiples of decimals, and the JSON texts of a set of numbers as a byte automaton.

A fraction ends in another digit than 0, unless it has one digit: ``1``, ``1.0`` and ``1.5``, and neither ``1.00`` nor ``1.50``. So
a number has one text, or two where it is whole, as ``json.dumps`` and ``JSON.stringify`` write it, and none goes on for ever. Only
where no number is excluded, or single ones, are there texts with exponents, too, of up to three digits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from itertools import chain, count
from math import floor, gcd, lcm, prod
from typing import NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ...automata.automaton import ByteAutomaton, Place, Product, explored
from ...format_limits import LimitError, current_limits
from ...numerics.cache import kept
from ...regex.code_automaton import equivalent
from ...regex.patterns import compile_regex

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


def most_states() -> int:
    """Return the most remainders that are told apart in one set; 6,000 take half a second."""
    return current_limits().states * 3 // 10


LISTED = 2_000
"""The most multiples that are listed one by one, where they are few but their remainders many."""

MANY_VALUES = 100
"""The least size of a list whose texts are written one by one, in one automaton that is not the least."""

MANY_REMAINDERS = 256
"""The least number of remainders of multiples that are rather listed."""

Line: TypeAlias = tuple[Sequence[Fraction], Sequence[bool], Sequence[Multiples]]
"""Cuts, whether each is a member, and the pieces around them."""

_PLAIN = compile_regex(r"-?(0|[1-9][0-9]*)(\.([0-9]|[0-9]*[1-9]))?")
"""All JSON numbers without exponents."""

_COLUMN = np.array([b"-.0123456789".find(byte) % 13 for byte in range(256)], dtype=np.uint8)
"""The column of each byte in a table of places; the last one is for all others."""


class Told(NamedTuple):
    """A Moore machine over the digits of a number: an automaton, and ``labels``, ``int8[S]``, the output of each state."""

    automaton: ByteAutomaton
    labels: NDArray[np.int8]

    @classmethod
    def of(cls, start: Place, steps: Callable[[Place], list[Place | None]], told: Callable[[Place], int]) -> Told:
        """Return the machine of some places; ``steps`` returns those behind each byte of ``-.0123456789``."""
        places, targets = explored([start], lambda place: [*steps(place), None], _check)
        labels = np.array([0, *map(told, places)], dtype=np.int8)
        return cls(ByteAutomaton(targets, _COLUMN, 1, labels > 0), labels)


_Compared: TypeAlias = tuple[int, int, int, int]
"""The sign of a text, 0 before its first byte; in which part it is; how many digits of this were read, and their order so far."""

_WHOLE, _BEHIND, _SETTLED = range(3)
"""Before the point, behind it, and where the order is that of the numbers, whatever follows."""


@kept
def compared(x: Fraction) -> Told:
    """Return the machine that compares numbers with ``x``: -1 below it, 0, or 1 above."""
    places = decimals(x)
    digits = digits_of(abs(x.numerator) * 10**places // x.denominator).rjust(places + 1, "0")
    parts = digits[: len(digits) - places], digits[len(digits) - places :]

    def settled(order: int) -> _Compared:
        return 1, _SETTLED, 0, order

    def told(at: _Compared) -> int:
        sign, part, read, order = at
        if part == _SETTLED:
            return order
        return sign * (-1 if read < len(parts[part]) else order or -int(part == _WHOLE and places > 0))

    def after(at: _Compared, digit: int) -> _Compared:
        """Return the place after a digit that is less than the one of ``x``, the same or greater: -1, 0 or 1."""
        sign, part, read, order = at
        order = order or digit
        if part == _WHOLE:
            return sign, part, read + 1, order
        return settled(sign * order) if order else (sign, part, min(read + 1, places), 0)

    def steps(at: _Compared) -> list[_Compared | None]:
        minus = None
        if not at[0]:
            minus = settled(-1) if x > 0 else (-1, _WHOLE, 0, 0)
            at = settled(1) if x < 0 else (1, _WHOLE, 0, 0)
        sign, part, read, order = at
        if part == _SETTLED:
            return [minus, *[at] * 11]
        if part == _WHOLE and read == len(parts[_WHOLE]):
            # No zeros lead, so a number with more digits is the greater one.
            point = settled(told(at)) if order else (sign, _BEHIND, 0, 0)
            return [minus, point, *[settled(sign)] * 10]
        ours = int(parts[part][read : read + 1] or 0)
        less, same, more = (after(at, digit) for digit in (-1, 0, 1))
        return [minus, settled(told(at)), *[less] * ours, same, *[more] * (9 - ours)]

    return Told.of((0, _WHOLE, 0, 0), steps, told)


_Divided: TypeAlias = tuple[bool, tuple[int, int] | None]
"""The flag that the point was read, and the state of a divisor, see :class:`Divisor`."""


@kept
def divided(q: Fraction) -> Told:
    """Return the machine that tells the multiples of ``q``: 1, others 0."""
    divisor = Divisor.of(q)

    def steps(at: _Divided) -> list[_Divided | None]:
        behind, state = at
        if behind or state is None:
            return [None, None, *((True, divisor.decimal(state, digit)) for digit in range(10))]
        return [at, (True, divisor.point(state)), *((False, divisor.whole(state, digit)) for digit in range(10))]

    def told(at: _Divided) -> int:
        behind, state = at
        return int(state is not None and not state[1] and (behind or state[0] == divisor.e))

    start: _Divided = False, divisor.start
    return Told.of(start, steps, told)


def spell(cuts: Sequence[Fraction], at: Sequence[bool], between: Sequence[Multiples]) -> ByteAutomaton:
    """Return the automaton of the texts without exponents of the members of a line, which is given as in :class:`NumberSet`.

    It is that of all texts beside what tells how each compares with the cuts, and what divides it; single numbers are listed.

    Raises
    ------
    UnsupportedError
        If too many states are needed.
    """
    if len(cuts) > MANY_VALUES and all(at) and all(piece == NO_NUMBER for piece in between):
        return ByteAutomaton.of_texts(_texts(cuts))
    cuts, at, between = _listed(cuts, at, between)
    if any(_remainders(piece) > most_states() for piece in between):
        raise _too_many()
    apart = [k for k in range(len(cuts)) if between[k] != between[k + 1]]
    single = [k for k in range(len(cuts)) if between[k] == between[k + 1]]
    lists = [member for member in (True, False) if any(at[k] == member for k in single)]
    listed = [ByteAutomaton.of_texts(_texts(cuts[k] for k in single if at[k] == member)) for member in lists]
    pieces = [between[0], *(between[k + 1] for k in apart)]
    divisors = sorted({q for piece in pieces for q, _ in piece.terms})
    told = [*(compared(cuts[k]) for k in apart), *map(divided, divisors)]
    product = Product.of([_PLAIN, *listed, *(one.automaton for one in told)], _check, needed=1)
    labels = [one.labels[places] for one, places in zip(told, product.places.T[1 + len(listed) :], strict=True)]
    orders, divides = labels[: len(apart)], labels[len(apart) :]
    piece = sum((order > 0 for order in orders), np.zeros(len(product.places), dtype=np.int64))
    terms = [dict(one.terms) for one in pieces]
    held = np.array([one.rest for one in pieces])[piece]
    for q, multiple in zip(divisors, divides, strict=True):
        held = held + np.array([one.get(q, 0) for one in terms])[piece] * multiple
    for k, order in zip(apart, orders, strict=True):
        held = np.where(order == 0, at[k], held)
    plain, *among = product.matched.T[: 1 + len(listed)]
    for member, here in zip(lists, among, strict=True):
        held = np.where(here, member, held)
    found = ByteAutomaton(product.targets, product.byte_class, 1, plain & (held > 0)).trim()
    block = equivalent(found.targets, found.accepting)
    first = np.unique(block, return_index=True)[1]
    return ByteAutomaton(block[found.targets[first]], found.byte_class, int(block[found.start]), found.accepting[first])


def _texts(values: Iterable[Fraction]) -> Iterator[bytes]:
    """Yield the texts without exponents of some numbers."""
    for x in values:
        places = decimals(x)
        digits = digits_of(abs(x.numerator) * 10**places // x.denominator).rjust(places + 1, "0")
        text = f"{digits[:-places]}.{digits[-places:]}" if places else digits
        for sign in ("", "-") if not x else ("-" if x < 0 else "",):
            yield f"{sign}{text}".encode()
            if not places:
                yield f"{sign}{text}.0".encode()


def _check(states: int) -> None:
    if states > current_limits().states:
        raise _too_many()


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
    return plain | (_SCIENTIFIC - excluded)


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
