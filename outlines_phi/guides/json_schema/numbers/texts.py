"""The JSON texts of a set of numbers, as a byte automaton.

A fraction ends in another digit than 0, unless it has one digit: ``1``, ``1.0`` and ``1.5``, and neither ``1.00`` nor ``1.50``. So
a number has one text, or two where it is whole, as ``json.dumps`` and ``JSON.stringify`` write it, and none goes on for ever. Only
where no number is excluded, or single ones, are there texts with exponents, too, of up to three digits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ....automata.automaton import ByteAutomaton, Place, Product, explored
from ....format_limits import LimitError, current_limits
from ....numerics.cache import kept
from ....regex.code_automaton import equivalent
from ....regex.patterns import compile_regex
from .multiples import EVERY_NUMBER, NO_NUMBER, Divisor, Multiples, decimals, digits_of


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
        sign, part, read, order = at
        if part == _SETTLED:
            return at
        if part == _WHOLE and read == len(
            parts[_WHOLE]
        ):  # no zeros lead, so a number with more digits is the greater one
            return settled(sign)
        ours = int(parts[part][read : read + 1] or 0)
        order = order or (digit > ours) - (digit < ours)
        if part == _WHOLE:
            return sign, part, read + 1, order
        return settled(sign * order) if order else (sign, part, min(read + 1, places), 0)

    def steps(at: _Compared) -> list[_Compared | None]:
        minus = None
        if not at[0]:
            minus = settled(-1) if x > 0 else (-1, _WHOLE, 0, 0)
            at = settled(1) if x < 0 else (1, _WHOLE, 0, 0)
        same = at[1:] == (_WHOLE, len(parts[_WHOLE]), 0)
        point = (at[0], _BEHIND, 0, 0) if same else settled(told(at))
        return [minus, point, *(after(at, digit) for digit in range(10))]

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
