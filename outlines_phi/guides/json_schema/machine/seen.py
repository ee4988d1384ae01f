"""Values that an array holds already, where its items must differ."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, final

from ..formula import Formula, both, either, kind, negated
from ..shapes import arrays, equal_to, member, objects, required
from ..values import KINDS, identity, kind_of, sort_key


@final
@dataclass(frozen=True)
class Seen:
    """A set of values.

    What says that a value is none of them grows with what is written in them, not with the product of that: they are told
    apart member by member and item by item, by a tree of decisions with one alternative for each of its leaves.

    Attributes
    ----------
    identities
        The identities of the values.
    names
        The names of members in them, in the order in which they were met: that in which members come.
    """

    identities: frozenset[Hashable] = frozenset()
    names: tuple[str, ...] = ()

    def and_also(self, value: Any) -> Seen:
        """Return the set with a value more."""
        names = tuple(dict.fromkeys((*self.names, *_names(value))))
        return Seen(self.identities | {identity(value)}, names)

    def with_all(self, identities: Iterable[Hashable]) -> Seen:
        """Return the set with more values, given by their identities."""
        return Seen(self.identities.union(identities), self.names)

    @property
    def like(self) -> Formula:
        """That a value is one of these."""
        return equal_to(map(_value, sorted(self.identities, key=sort_key)))

    @cached_property
    def unlike(self) -> Formula:
        """That a value is none of these."""
        values = list(map(_value, sorted(self.identities, key=sort_key)))
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
            waiting += [((*first, equal_to([_value(item)])), members) for item, members in longer.items()]

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
                    equal = member(name, equal_to([_value(item)]))
                    waiting.append((place + 1, (*asked, required(name), equal), members))


NOTHING = Seen()


def value_of(text: bytes) -> Any:
    """Return the value that a text spells, its numbers as decimals; what stands before the value may be a comma."""
    return json.loads(text.removeprefix(b",").decode(), parse_float=Decimal, parse_int=Decimal)


def _names(value: Any) -> Iterator[str]:
    """Yield the names of members, the inner ones after the outer."""
    if isinstance(value, dict):
        yield from value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _names(item)


def _value(identified: Any) -> Any:
    """Return the value of an identity."""
    match identified:
        case "array", items:
            return list(map(_value, items))
        case "object", members:
            return {name: _value(member) for name, member in sorted(members, key=sort_key)}
        case str():
            return {"null": None, "true": True, "false": False}[identified]
    return identified[1]


def _by_value(pairs: Iterator[tuple[Any, Any]]) -> dict[Hashable, list[Any]]:
    found: dict[Hashable, list[Any]] = {}
    for value, held in pairs:
        found.setdefault(identity(value), []).append(held)
    return found
