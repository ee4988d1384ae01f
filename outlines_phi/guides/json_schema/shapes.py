"""Shapes: conjunctions of what can be asked of an array or an object, and what is left of them after an item or a member."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, product
from math import prod
from typing import Any, NamedTuple, final

from ...errors import UnsupportedError
from ...format_limits import LimitError, limits
from ...numerics.cache import kept
from .formula import FALSE, NUMBERS, TRUE, Formula, Membership, both, either, kind, kind_of, negated
from .number_set import NumberSet
from .string_set import StringSet

MOST_NAMES = 10_000
"""Members that an object may have to have."""

MOST_CELLS = 128
"""Sets of names that are told apart in one object."""

MOST_CHOICES = 1_000
"""Names of one object, times members of which something is asked whatever their names are."""


class Counted(NamedTuple):
    """Of the items from ``skip`` on, at least ``least`` and at most ``most`` (``None``: any number) are as ``item`` says."""

    skip: int
    item: Formula
    least: int
    most: int | None


@final
@dataclass(frozen=True)
class ArrayShape:
    """The constraints on the rest of an array.

    Attributes
    ----------
    first, rest
        The formulas of the next items, one by one, and of all after these.
    least, most
        The bounds of the number of items; ``None`` is no bound.
    counted
        The bounds of the numbers of items of some kinds.
    unique
        The pointer to the demand that no two of them are equal, and none to one before; ``None`` if they may be.
    """

    first: tuple[Formula, ...] = ()
    rest: Formula = TRUE
    least: int = 0
    most: int | None = None
    counted: tuple[Counted, ...] = ()
    unique: str | None = None

    def __and__(self, other: ArrayShape) -> ArrayShape:
        return ArrayShape.joined((self, other))

    @staticmethod
    def joined(shapes: Sequence[ArrayShape]) -> ArrayShape:
        """Return the conjunction of some shapes."""
        if len(shapes) < 2:
            return shapes[0] if shapes else ArrayShape()
        length = max(len(shape.first) for shape in shapes)
        return ArrayShape(
            tuple(both(*(shape.item(i) for shape in shapes)) for i in range(length)),
            both(*(shape.rest for shape in shapes)),
            max(shape.least for shape in shapes),
            min((shape.most for shape in shapes if shape.most is not None), default=None),
            tuple(dict.fromkeys(one for shape in shapes for one in shape.counted)),
            next((shape.unique for shape in shapes if shape.unique), None),
        )

    def without(self) -> Iterator[ArrayShape]:
        """Yield shapes of which each array without this one has one."""
        if self.unique:
            raise UnsupportedError(
                f"Leave uniqueItems out of not, oneOf and if at {self.unique} of the JSON schema. It would say that two items are "
                "equal there, which is not supported."
            )
        for place, item in enumerate(self.first):
            yield ArrayShape(first=(*[TRUE] * place, negated(item)), least=place + 1)
        if self.rest is not TRUE:
            yield ArrayShape(counted=(Counted(len(self.first), negated(self.rest), 1, None),))
        for low, high in _outside(self.least, self.most):
            yield ArrayShape(least=low, most=high)
        for one in self.counted:
            for low, high in _outside(one.least, one.most):
                yield ArrayShape(counted=(one._replace(least=low, most=high),))

    def item(self, place: int) -> Formula:
        """Return the formula of the item at a place, apart from counted items."""
        return self.first[place] if place < len(self.first) else self.rest

    def behind(self, place: int) -> ArrayShape:
        """Return the shape in which its items from a place on are told apart, as far as none before them was counted."""
        counted = tuple(one._replace(skip=max(one.skip - place, 0)) for one in self.counted)
        return replace(self, first=self.first[place:], counted=counted)

    @property
    def alike(self) -> Formula | None:
        """The formula of all required items, where the same is asked of each and none is counted; else ``None``."""
        asked = {self.item(place) for place in range(min(self.least, len(self.first) + 1))}
        return asked.pop() if len(asked) == 1 and not self.counted else None

    @property
    def ways(self) -> int:
        """The number of shapes that the counted items may lead to, times the steps from each."""
        return prod(2 * (max(one.least, one.most or 0) + 1) for one in self.counted)

    def covers(self, other: ArrayShape) -> bool:
        """Return True if it is evidently true of all arrays of another shape: it asks for fewer items of the same kinds."""
        held = {(one.skip, one.item): one for one in other.counted}
        return (
            (self.first, self.rest, self.unique) == (other.first, other.rest, other.unique)
            and self.least <= other.least
            and _allows(self.most, other.most)
            and all(
                (each := held.get((one.skip, one.item))) is not None
                and one.least <= each.least
                and _allows(one.most, each.most)
                for one in self.counted
            )
        )

    @property
    def closed(self) -> bool:
        """True if the array may end here."""
        return self.least <= 0 and all(one.least <= 0 for one in self.counted)

    @property
    def needed(self) -> int:
        """The number of items that suffices, if there are any."""
        counted = [one for one in self.counted if one.least > 0]
        return max(self.least, *(len(self.first) + one.skip for one in counted), 0) + sum(one.least for one in counted)

    def steps(self, *, onward: bool = False) -> Iterator[tuple[Formula, ArrayShape]]:
        """Yield the formulas of the next item, each with the shape of the rest then; several may be true of one item.

        With ``onward`` only items without which something is missing.
        """
        if self.most == 0:
            return
        after = replace(
            self, first=self.first[1:], least=max(self.least - 1, 0), most=None if self.most is None else self.most - 1
        )
        ways: list[list[tuple[Formula, Counted | None]]] = []
        for one in self.counted:
            if one.skip:
                ways.append([(TRUE, one._replace(skip=one.skip - 1))])
                continue
            # Where there may be any number of them, none has to be known not to be one.
            passed: list[tuple[Formula, Counted | None]] = [(TRUE if one.most is None else negated(one.item), one)]
            if one.most != 0:
                left = one._replace(least=max(one.least - 1, 0), most=None if one.most is None else one.most - 1)
                passed.append((one.item, left if left.least or left.most is not None else None))
            ways.append(passed)
        for way in product(*ways):
            item = both(self.item(0), *(asked for asked, _ in way))
            rest = replace(after, counted=tuple(left for _, left in way if left is not None))
            if not onward or replace(rest, most=self.most) != self:
                yield item, rest


def _allows(most: int | None, other: int | None) -> bool:
    """Return True if a bound from above is no tighter than another."""
    return most is None or (other is not None and other <= most)


def _outside(least: int, most: int | None) -> list[tuple[int, int | None]]:
    """Return the counts that are not from ``least`` to ``most``."""
    below: list[tuple[int, int | None]] = [(0, least - 1)] if least > 0 else []
    return below if most is None else [*below, (most + 1, None)]


class Some(NamedTuple):
    """Names, without ``but``, and what is asked of the values of members with such names."""

    but: frozenset[str]
    names: StringSet
    value: Formula

    def covers(self, name: str) -> bool:
        """Return True if a name is one of them."""
        return name not in self.but and self.names.contains(name)

    def held(self, name: str, value: Formula) -> bool:
        """Return True if a member of a name, with a value as ``value`` says, evidently satisfies this."""
        return self.covers(name) and both(value, self.value) is value


@final
@dataclass(frozen=True)
class ObjectShape:
    """The constraints on the rest of an object.

    Attributes
    ----------
    members
        The formulas of the values of members of some names, if there are any.
    required, absent
        Names of members that are to come, and that must not.
    every
        The formulas of the values of all members with some names.
    some
        The formulas of the value of at least one member with some names.
    least, most
        The bounds of the number of members; ``None`` is no bound.
    """

    members: tuple[tuple[str, Formula], ...] = ()
    required: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    every: tuple[Some, ...] = ()
    some: tuple[Some, ...] = ()
    least: int = 0
    most: int | None = None

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """The hash of the parts: of hundreds of members it takes long, and is asked for many times."""
        return hash((self.members, self.required, self.absent, self.every, self.some, self.least, self.most))

    def __getstate__(self) -> dict[str, Any]:
        # Texts hash otherwise in each process.
        return {name: part for name, part in vars(self).items() if name != "_hash"}

    def __and__(self, other: ObjectShape) -> ObjectShape:
        return ObjectShape.joined((self, other))

    @staticmethod
    def joined(shapes: Sequence[ObjectShape]) -> ObjectShape:
        """Return the conjunction of some shapes."""
        if len(shapes) < 2:
            return shapes[0] if shapes else ObjectShape()
        members: dict[str, Formula] = {}
        for shape in shapes:
            for name, value in shape.members:
                members[name] = both(members[name], value) if name in members else value
        return ObjectShape(
            tuple(members.items()),
            frozenset().union(*(shape.required for shape in shapes)),
            frozenset().union(*(shape.absent for shape in shapes)),
            tuple(dict.fromkeys(one for shape in shapes for one in shape.every)),
            tuple(dict.fromkeys(one for shape in shapes for one in shape.some)),
            max(shape.least for shape in shapes),
            min((shape.most for shape in shapes if shape.most is not None), default=None),
        )

    def without(self) -> Iterator[ObjectShape]:
        """Yield shapes of which each object without this one, which asks for no member of some kind, has one."""
        for name in sorted(self.required):
            yield ObjectShape(absent=frozenset([name]))
        for name, value in self.members:
            yield ObjectShape(members=((name, negated(value)),), required=frozenset([name]))
        for one in self.every:
            yield ObjectShape(some=(one._replace(value=negated(one.value)),))
        for low, high in _outside(self.least, self.most):
            yield ObjectShape(least=low, most=high)

    def names(self) -> Iterator[str]:
        """Yield the names that it speaks of one by one, those with values first."""
        yield from (name for name, _ in self.members)
        yield from sorted(self.required)
        yield from sorted(self.absent.union(*(one.but for one in self.every + self.some)))

    def value(self, name: str) -> Formula:
        """Return the formula of the value of a member of this name."""
        if name in self.absent or self.most == 0:
            return FALSE
        own = self.values.get(name, TRUE)
        others = [one.value for one in self.every if one.covers(name)]
        return both(own, *others) if others else own

    @cached_property
    def values(self) -> dict[str, Formula]:
        """The formulas of the members of some names, by these."""
        return dict(self.members)

    @cached_property
    def ranks(self) -> dict[str, int]:
        """The places of these names in its own order."""
        return dict(zip(self.values, count()))

    @property
    def closed(self) -> bool:
        """True if the object may end here."""
        return not self.required and not self.some and self.least <= 0

    def asked(self, name: str) -> Iterable[Formula]:
        """Return the formulas of the value of a member of this name that :meth:`steps` yields, each once."""
        values = dict.fromkeys(value for value in [self.value(name)] if value is not FALSE)
        for one in self.some if values else ():
            if one.covers(name):
                values = dict.fromkeys(both(value, *also) for value in values for also in ((), (one.value,)))
        return values

    def steps(self, name: str, gone: Iterable[str]) -> Iterator[tuple[Formula, ObjectShape]]:
        """Yield the formulas of the value of a member of this name, each with the shape of the rest; ``gone`` come no more."""
        value, passed = self.value(name), frozenset([name, *gone])
        if value is FALSE or not self.required.isdisjoint(passed - {name}):
            return
        after = ObjectShape(
            tuple(one for one in self.members if one[0] not in passed),
            self.required - {name},
            self.absent - passed,
            self.every,
            (),
            max(self.least - 1, 0),
            None if self.most is None else self.most - 1,
        )
        for way in product(*([(TRUE, one), *[(one.value, None)] * one.covers(name)] for one in self.some)):
            left = tuple(one for _, one in way if one is not None)
            yield both(value, *(asked for asked, _ in way)), replace(after, some=left) if left else after


def names_in_order(shapes: Sequence[ObjectShape]) -> tuple[str, ...]:
    """Return the names that some shapes of one object speak of, those with values first."""
    every = [*(shape.values for shape in shapes), *(shape.names() for shape in shapes)]
    return tuple(dict.fromkeys(name for names in every for name in names))


def comes_first(shapes: Iterable[ObjectShape], name: str, *, before: str, ahead: Sequence[str]) -> bool:
    """Return True if a member comes first of two: in each shape that has both, or where there is none, in the order ``ahead``.

    So each shape's own order can be written, whatever the others': names that two shapes order differently come in either.
    """
    told = {one.ranks[name] < one.ranks[before] for one in shapes if {name, before} <= one.ranks.keys()}
    return told == {True} if told else ahead.index(name) < ahead.index(before)


def states_of(*, compiling: bool) -> AbstractContextManager[Any]:
    """Bound the states of automata as the limits in force say, or not at all within a text, where nothing is refused."""
    return nullcontext() if compiling else limits(states=1 << 40)


def refuse_large(shapes: Sequence[ObjectShape]) -> None:
    """Refuse objects that need more members than are counted, or tell more names apart than are looked at."""
    most = max((shape.least - len(shape.required) for shape in shapes), default=0)
    if most > MOST_NAMES:
        raise LimitError(f"Ask for at most {MOST_NAMES:,} members of an object", f"There are {most:,} of any name")
    asked = [(shape, len(shape.some) + (shape.least > len(shape.required) + 1)) for shape in shapes]
    choices = max((count * len(set(shape.names())) for shape, count in asked if count), default=0)
    if choices > MOST_CHOICES:
        raise LimitError(
            "Name fewer members of an object beside minProperties, or beside what not, oneOf and if ask of any of its members",
            f"What must come may be each of them, in {choices:,} ways, more than {MOST_CHOICES:,}",
        )
    names = dict.fromkeys(one.names for shape in shapes for one in shape.every + shape.some)
    if 1 << len(names) > MOST_CELLS:
        told_apart(names)


def told_apart(asked: Iterable[StringSet], *, bounded: bool = True) -> list[StringSet]:
    """Cut the names into sets that none of those asked for tells apart."""
    cells = [StringSet.all()]
    for strings in asked:
        with states_of(compiling=bounded):
            cells = [part for cell in cells for part in _cut(cell, strings)]
        if bounded and len(cells) > MOST_CELLS:
            raise LimitError(
                "Anchor the patterns of patternProperties by ^ and $, or write fewer for one object",
                f"They tell more than {MOST_CELLS} sets of names apart",
            )
    return cells


@kept
def _cut(cell: StringSet, strings: StringSet) -> list[StringSet]:
    """Return the members of a set that are in another one, and those that are not, where there are any."""
    inside = cell & strings
    return [cell] if inside.is_empty or inside == cell else [inside, cell & ~strings]


_ASKED_OF = {
    NumberSet: NUMBERS,
    StringSet: frozenset(["string"]),
    ArrayShape: frozenset(["array"]),
    ObjectShape: frozenset(["object"]),
}


def among(contents: NumberSet | StringSet | ArrayShape | ObjectShape) -> Formula:
    """Return that a value, if it is of the kind, is one of the numbers or strings, or has the shape."""
    return Membership(_ASKED_OF[type(contents)], contents)


def arrays(**parts: Any) -> Formula:
    """Return that an array has a shape of these parts."""
    return among(ArrayShape(**parts))


def objects(**parts: Any) -> Formula:
    """Return that an object has a shape of these parts."""
    return among(ObjectShape(**parts))


def required(name: str) -> Formula:
    """Return that an object has a member of this name."""
    return objects(required=frozenset([name]))


def member(name: str, value: Formula) -> Formula:
    """Return that the value of a member of this name is as ``value`` says, if there is one."""
    return objects(members=((name, value),))


def equal_to(values: Iterable[Any]) -> Formula:
    """Return that a value is one of these: the same value, however it is written."""
    strings, numbers, kinds, others = list[str](), list[Any](), set[str](), list[Formula]()
    for value in values:
        match kind_of(value):
            case "string":
                strings.append(value)
            case "number":
                numbers.append(value)
            case "array":
                items = arrays(first=tuple(equal_to([item]) for item in value))
                others.append(both(kind(["array"]), arrays(least=len(value), most=len(value)), items))
            case "object":
                members = [
                    formula
                    for name, item in value.items()
                    for formula in (required(name), member(name, equal_to([item])))
                ]
                others.append(both(kind(["object"]), objects(least=len(value), most=len(value)), *members))
            case literal:
                kinds.add(literal)
    if strings:
        others.append(both(kind(["string"]), among(StringSet.of_values(strings))))
    if numbers:
        others.append(both(kind(NUMBERS), among(NumberSet.of_values(numbers))))
    return either(kind(kinds), *others)
