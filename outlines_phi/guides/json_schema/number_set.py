"""Sets of JSON numbers: everything that a schema can say of a number."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from heapq import merge
from itertools import pairwise
from typing import TypeAlias, final

from ...automata.automaton import ByteAutomaton
from ...format_limits import LimitError, current_limits
from ...numerics.cache import kept
from .number_texts import (
    ANY_NUMBER,
    EVERY_NUMBER,
    LISTED,
    NO_NUMBER,
    Multiples,
    is_decimal,
    spell,
    spell_all_but,
    spell_far,
)

Number: TypeAlias = int | float | Decimal | Fraction

MAX_DIGITS = 2_000
"""The most digits of a bound, a divisor or a value; each takes about two states."""


@final
@dataclass(frozen=True, eq=False)
class NumberSet:
    """A set of JSON numbers, as values: 1, 1.0 and 1e0 are one number, and so are 0 and -0.

    A number is what a JSON text can say, so it is a decimal. The set is given piecewise: ``cuts`` divide the line, ``at`` says
    of each cut whether it is a member, and ``between`` says which of the numbers before the first cut, between two, and after
    the last are. Sets are closed under ``&``, ``|`` and ``~``, and equal if they have the same members.

    Attributes
    ----------
    cuts
        The cuts, ascending.
    at
        For each cut, whether it is a member.
    between
        For each piece, its members; one more than cuts.
    """

    cuts: tuple[Fraction, ...]
    at: tuple[bool, ...]
    between: tuple[Multiples, ...]

    @classmethod
    def all(cls) -> NumberSet:
        """Return the set of all numbers."""
        return _ALL

    @classmethod
    def none(cls) -> NumberSet:
        """Return the empty set."""
        return _NONE

    @classmethod
    def integers(cls) -> NumberSet:
        """Return the set of whole numbers; 1.0 is one."""
        return _multiples(Fraction(1))

    @classmethod
    def at_least(cls, x: Number, *, exclusive: bool = False) -> NumberSet:
        """Return the set of numbers from ``x`` up; without ``x`` itself if ``exclusive``."""
        return cls((exact(x),), (not exclusive,), (NO_NUMBER, EVERY_NUMBER))

    @classmethod
    def at_most(cls, x: Number, *, exclusive: bool = False) -> NumberSet:
        """Return the set of numbers up to ``x``; without ``x`` itself if ``exclusive``."""
        return cls((exact(x),), (not exclusive,), (EVERY_NUMBER, NO_NUMBER))

    @classmethod
    def multiples_of(cls, x: Number) -> NumberSet:
        """Return the set of multiples of ``x``, which must be positive."""
        divisor = exact(x)
        if divisor <= 0:
            raise LimitError("Give a multipleOf above 0", f"{x!s:.40} has no multiples in JSON Schema")
        return _multiples(divisor)

    @classmethod
    def of_values(cls, values: Iterable[Number]) -> NumberSet:
        """Return the set of these numbers."""
        cuts = tuple(sorted(set(map(exact, values))))
        return cls(cuts, (True,) * len(cuts), (NO_NUMBER,) * (len(cuts) + 1))

    def contains(self, value: Number) -> bool:
        """Return True if ``value`` is a member; a fraction that no decimal writes is none of any set."""
        if isinstance(value, Fraction) and not is_decimal(value):
            return False
        return self._contains(exact(value))

    def __and__(self, other: NumberSet) -> NumberSet:
        if self is other or other is _ALL:
            return self
        if self is _ALL:
            return other
        cuts = tuple(dict.fromkeys(merge(self.cuts, other.cuts)))
        at = [self._contains(x) and other._contains(x) for x in cuts]
        # Each cut of the union moves on the piece of the set that it is a cut of.
        i = j = 0
        between = [self.between[0] & other.between[0]]
        for x in cuts:
            i += i < len(self.cuts) and self.cuts[i] == x
            j += j < len(other.cuts) and other.cuts[j] == x
            between.append(self.between[i] & other.between[j])
        needed = [k for k, x in enumerate(cuts) if between[k] != between[k + 1] or at[k] != between[k].contains(x)]
        return NumberSet(
            tuple(cuts[k] for k in needed),
            tuple(at[k] for k in needed),
            (between[0], *(between[k + 1] for k in needed)),
        )

    def __invert__(self) -> NumberSet:
        return NumberSet(self.cuts, tuple(not member for member in self.at), tuple(~piece for piece in self.between))

    def __or__(self, other: NumberSet) -> NumberSet:
        return ~(~self & ~other)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NumberSet):
            return NotImplemented
        if (self.cuts, self.at, self.between) == (other.cuts, other.at, other.between):
            return True
        if self._is_plain and other._is_plain:
            return False
        # One set can be written in several ways: the whole numbers between 0 and 2 are those between 0.5 and 1.
        return self._outline == other._outline and (self & ~other).is_empty and (other & ~self).is_empty

    def __hash__(self) -> int:
        return hash(self._outline)

    @property
    def members(self) -> frozenset[Fraction] | None:
        """The members, where there are evidently only some."""
        if any(piece != NO_NUMBER for piece in self.between):
            return None
        return frozenset(x for x, member in zip(self.cuts, self.at, strict=True) if member)

    @property
    def is_empty(self) -> bool:
        """True if no number is a member."""
        return self._outline == (NO_NUMBER, NO_NUMBER, None)

    @cached_property
    def is_all(self) -> bool:
        """True if every number is a member."""
        return (~self).is_empty

    @property
    def has_multiples(self) -> bool:
        """True if more than ranges and whole numbers tell the members apart."""
        return any(q != 1 for piece in self.between for q, _ in piece.terms)

    @property
    def is_costly(self) -> bool:
        """True if the texts may need more states than there may be: of multiples, or of many and long bounds."""
        bits = sum(x.numerator.bit_length() + x.denominator.bit_length() for x in self.cuts)
        return self.has_multiples or 20 * bits > current_limits().states

    @property
    def spellings(self) -> ByteAutomaton:
        """The JSON texts of the members.

        Only where finitely many numbers are excluded, or are members, are there texts with exponents: a pushdown automaton could
        not compare those, let alone a finite one. A fraction ends in a 0 only as ``.0``, and zero may have a sign.

        Raises
        ------
        UnsupportedError
            If the texts need too many states.
        """
        return _spelled(self.cuts, self.at, self.between)

    def _contains(self, x: Fraction) -> bool:
        k = bisect_left(self.cuts, x)
        return self.at[k] if k < len(self.cuts) and self.cuts[k] == x else self.between[k].contains(x)

    @cached_property
    def _is_plain(self) -> bool:
        """True if it is a union of intervals; such a set is written in one way."""
        return {NO_NUMBER, EVERY_NUMBER}.issuperset(self.between)

    @cached_property
    def _outline(self) -> tuple[Multiples, Multiples, Fraction | None]:
        """A key equal for equal sets: both unbounded pieces and the first member's place; ``None`` if nowhere, or far below."""
        below, above = self.between[0], self.between[-1]
        if below != NO_NUMBER:
            return below, above, None
        for k, x in enumerate(self.cuts):
            if self.at[k] or self.between[k + 1].rest:
                return below, above, x
            if self.between[k + 1] != NO_NUMBER:
                end = self.cuts[k + 1] if k + 1 < len(self.cuts) else None
                first = self.between[k + 1].first_between(x, end)
                if first is not None:
                    return below, above, first
        return below, above, None


_WHOLE = Multiples(0, ((Fraction(1), 1),))
_ANY_INTEGER = spell((), (), (_WHOLE,))
_ALL = NumberSet((), (), (EVERY_NUMBER,))
_NONE = NumberSet((), (), (NO_NUMBER,))


@kept
def _multiples(x: Fraction) -> NumberSet:
    return NumberSet((), (), (Multiples(0, ((x, 1),)),))


@kept
def _spelled(
    cuts: tuple[Fraction, ...], at: tuple[bool, ...], between: tuple[Multiples, ...]
) -> ByteAutomaton:  # by its parts: many sets have one hash
    numbers = NumberSet(cuts, at, between)
    if numbers.is_all:
        return ANY_NUMBER
    if (cuts, between) == ((), (_WHOLE,)):
        return _ANY_INTEGER
    excluded = _excluded(numbers)
    if excluded is not None:
        return spell_all_but(excluded)
    plain, far = spell(numbers.cuts, numbers.at, numbers.between), spell_far(numbers.members or ())
    return plain if far is None else plain | far


def _excluded(numbers: NumberSet) -> list[Fraction] | None:
    """Return the numbers that are no members, ascending; ``None`` where they are not few."""
    if not numbers.cuts:
        return None
    first, *inner, last = [~piece for piece in numbers.between]
    if {first, last} != {NO_NUMBER} or any(piece.rest for piece in inner):
        return None
    gaps = list(zip(inner, pairwise(numbers.cuts), strict=True))
    if sum(piece.most_between(*ends) for piece, ends in gaps) + len(numbers.cuts) > LISTED:
        return None
    found = {x for x, member in zip(numbers.cuts, numbers.at, strict=True) if not member}
    return sorted(found.union(*(piece.between(*ends) for piece, ends in gaps)))


@lru_cache(maxsize=1024, typed=True)
def exact(value: Number) -> Fraction:
    """Return a number of a schema as a fraction; a float is the shortest decimal that reads back as it.

    Raises
    ------
    UnsupportedError
        If it is not finite, has more than :data:`MAX_DIGITS` digits, or no end in decimals.
    """
    if isinstance(value, Fraction) and is_decimal(value):
        return value  # one that was written, or was exact before
    if isinstance(value, float):
        value = Decimal(repr(value))
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise LimitError(
                "Give finite numbers, and read the schema with parse_float=decimal.Decimal",
                f"{value} is not a JSON number",
            )
        # Looked at before the powers of ten are made, which may not fit any memory.
        digits = max(abs(value.adjusted()), abs(int(value.as_tuple().exponent))) if value else 0
    else:
        value = Fraction(value)
        if not is_decimal(value):
            raise LimitError("Give numbers that decimals can write", f"{value!s:.40} has no end in decimals")
        digits = max(value.numerator.bit_length() * 3 // 10, value.denominator.bit_length() * 3 // 10)
    if digits > MAX_DIGITS:
        raise LimitError(f"Give numbers of at most {MAX_DIGITS:,} digits", f"One has about {digits:,}")
    return Fraction(value)
