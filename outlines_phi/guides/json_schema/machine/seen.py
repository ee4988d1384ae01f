"""Values that an array holds already, where its items must differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, final

from ..formula import KINDS, Formula, both, either, kind, kind_of, negated
from ..number_texts import decimals, digits_of
from ..shapes import arrays, equal_to, member, objects, required


@final
@dataclass(frozen=True)
class Seen:
    """A set of values.

    What says that a value is none of them grows with what is written in them, not with the product of that: they are told
    apart member by member and item by item, by a tree of decisions with one alternative for each of its leaves.

    Attributes
    ----------
    texts
        The values, as canonical texts.
    names
        The names of members in them, in the order in which they were met: that in which members come.
    """

    texts: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()

    def and_also(self, value: Any) -> Seen:
        """Return the set with a value more."""
        return Seen(self.texts | {canonical(value)}, tuple(dict.fromkeys((*self.names, *_names(value)))))

    def with_all(self, texts: Iterable[str]) -> Seen:
        """Return the set with more values, given by their canonical texts."""
        return Seen(self.texts.union(texts), self.names)

    @property
    def like(self) -> Formula:
        """That a value is one of these."""
        return equal_to(map(read, sorted(self.texts)))

    @cached_property
    def unlike(self) -> Formula:
        """That a value is none of these."""
        values = list(map(read, sorted(self.texts)))
        plain = [value for value in values if kind_of(value) not in ("array", "object")]
        asked = [negated(equal_to(plain))] if plain else []
        if lists := [value for value in values if kind_of(value) == "array"]:
            asked.append(either(kind(KINDS - {"array"}), *self._unlike_arrays(lists)))
        if maps := [value for value in values if kind_of(value) == "object"]:
            asked.append(either(kind(KINDS - {"object"}), *self._unlike_objects(maps)))
        return both(*asked)

    def _unlike_arrays(self, values: Sequence[Sequence[Any]]) -> Iterator[Formula]:
        """Yield alternatives of which one is true of each array but these."""
        waiting: list[tuple[tuple[Formula, ...], Sequence[Sequence[Any]]]] = [((), values)]
        while waiting:
            first, left = waiting.pop()  # these arrays begin as ``first`` says
            place = len(first)
            longer = _by_value((array[place], array) for array in left if len(array) > place)
            if all(len(array) > place for array in left):
                yield both(arrays(first=first), arrays(least=place, most=place))
            other = Seen(frozenset(longer), self.names).unlike
            yield both(arrays(first=(*first, other)), arrays(least=place + 1))
            waiting += [((*first, equal_to([read(item)])), members) for item, members in longer.items()]

    def _unlike_objects(self, values: Sequence[Mapping[str, Any]]) -> Iterator[Formula]:
        """Yield alternatives of which one is true of each object but these."""
        found = frozenset[str]().union(*values)
        names = [*(name for name in self.names if name in found), *sorted(found.difference(self.names))]
        waiting: list[tuple[int, tuple[Formula, ...], Sequence[Mapping[str, Any]]]] = [(0, (), values)]
        while waiting:
            place, asked, left = waiting.pop()  # these objects are as ``asked`` says in the names before ``place``
            if not left:
                yield both(*asked)
            elif place == len(names):
                yield both(*asked, objects(least=len(left[0]) + 1))
            else:
                name = names[place]
                having = _by_value((each[name], each) for each in left if name in each)
                other = Seen(frozenset(having), self.names).unlike
                yield both(*asked, required(name), member(name, other))
                lacking = [each for each in left if name not in each]
                waiting.append((place + 1, (*asked, negated(required(name))), lacking))
                for item, members in having.items():
                    equal = member(name, equal_to([read(item)]))
                    waiting.append((place + 1, (*asked, required(name), equal), members))


NOTHING = Seen()


def _number(text: str) -> Fraction:
    return Fraction(Decimal(text))


read = partial(json.loads, parse_float=_number, parse_int=_number)
"""Read a text as a value, its numbers as fractions: those of any number of digits are taken as exact."""


def canonical(value: Any) -> str:
    """Return the JSON text of all values equal to one: 1 and 1.0 are equal, and members have no order; numbers are fractions."""
    match kind_of(value):
        case "number":
            places = decimals(value)
            return f"{digits_of(value.numerator * 10**places // value.denominator)}e-{places}"
        case "array":
            return f"[{','.join(map(canonical, value))}]"
        case "object":
            members = (f"{json.dumps(name)}:{canonical(item)}" for name, item in value.items())
            return f"{{{','.join(sorted(members))}}}"
    return json.dumps(value)


def value_of(text: bytes) -> Any:
    """Return the value that a text spells; what stands before it may be a comma."""
    return read(text.removeprefix(b",").decode())


def _names(value: Any) -> Iterator[str]:
    """Yield the names of members, the inner ones after the outer."""
    if isinstance(value, dict):
        yield from value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _names(item)


def _by_value(pairs: Iterator[tuple[Any, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for value, held in pairs:
        found.setdefault(canonical(value), []).append(held)
    return found
