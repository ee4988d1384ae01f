"""The truth sets of formulas among the values of one kind, and values by which formulas evidently exclude each other."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import and_, or_
from typing import Any, TypeAlias, TypeVar, final

import numpy as np

from ...automata.automaton import ByteAutomaton, Product
from ...format_limits import LimitError
from ...numerics.cache import kept
from .formula import (
    FALSE,
    KINDS,
    NUMBERS,
    TRUE,
    And,
    Formula,
    Kind,
    Membership,
    Names,
    Not,
    Or,
    Referred,
    both,
    negated,
    parts_of,
)
from .number_set import NumberSet
from .shapes import ArrayShape, ObjectShape, Some, refuse_large, states_of
from .string_set import StringSet

MOST_SHAPES = 512
"""Alternatives of one array or object."""

MOST_COUNTS = 20_000
"""Ways to count the items of one array on."""

LITERALS = "null", "true", "false"

_EVERY: Mapping[str, Any] = {
    **dict.fromkeys(NUMBERS, NumberSet.all()),
    "string": StringSet.all(),
    "array": (ArrayShape(),),
    "object": (ObjectShape(),),
}
_NONE: Mapping[str, Any] = {
    **dict.fromkeys(NUMBERS, NumberSet.none()),
    "string": StringSet.none(),
    "array": (),
    "object": (),
}
"""The set of all values of each kind, and the empty one: alternatives of shapes are a tuple, and each has a value at least."""

AShape = TypeVar("AShape", ArrayShape, ObjectShape)


@final
class Kinds:
    """The truth sets of formulas, kind by kind: a truth, a set, or alternatives of shapes.

    ``definitions`` are what references stand for, and ``pointers`` where formulas stand in the schema, for errors.
    """

    def __init__(self, definitions: Mapping[str, Formula], pointers: Mapping[Formula, str] | None = None) -> None:
        self._definitions, self._pointers = definitions, pointers or {}
        self._kinds: dict[Formula, frozenset[str]] = {}
        self._sets: dict[tuple[str, Formula], Any] = {}
        self._never: dict[Formula, bool] = {}
        self.compiling = True
        """True while a schema is compiled, where limits hold: within a text, nothing is refused any more."""

    def kinds_of(self, formula: Formula) -> frozenset[str]:
        """Return the kinds of the values that a formula may be true of, by kinds alone; a kind of one value has no other."""
        if formula not in self._kinds:
            match formula:
                case And() | Or():
                    found = reduce(and_ if isinstance(formula, And) else or_, map(self.kinds_of, formula.formulas))
                case Referred() | Not(formula=Referred()):
                    found = self.kinds_of(self._meant(formula))
                case Not():
                    found = formula.formula.asked_of
                case _:
                    found = formula.kinds if isinstance(formula, Kind) else frozenset() if formula is FALSE else KINDS
            self._kinds[formula] = found
        return self._kinds[formula]

    def numbers(self, formula: Formula, *, plain: bool) -> NumberSet:
        """Return the numbers that a formula is true of where they are written ``plain``, or where they are not."""
        found: NumberSet = self._set("plain number" if plain else "number", formula)
        return found

    def strings(self, formula: Formula) -> StringSet:
        """Return the strings that a formula is true of."""
        found: StringSet = self._set("string", formula)
        return found

    def arrays(self, formula: Formula) -> tuple[ArrayShape, ...]:
        """Return the shapes of the arrays that a formula is true of: each has one at least."""
        found: tuple[ArrayShape, ...] = self._set("array", formula)
        return found

    def objects(self, formula: Formula) -> tuple[ObjectShape, ...]:
        """Return the shapes of the objects that a formula is true of: each has one at least."""
        found: tuple[ObjectShape, ...] = self._set("object", formula)
        return found

    def _set(self, kind: str, formula: Formula) -> Any:
        """Return the values of a kind that a formula is true of; those of each part are found once."""
        key = kind, formula
        if key not in self._sets:
            self._sets[key] = self._find_set(kind, formula) if kind in self.kinds_of(formula) else _NONE[kind]
        return self._sets[key]

    def _find_set(self, kind: str, formula: Formula) -> Any:
        every = _EVERY[kind]
        match formula:
            case Kind():
                return every
            case And() | Or():
                # What has alternatives comes last: most of them are then known to be true, or to be false.
                ordered = sorted(formula.formulas, key=lambda part: isinstance(part, Or))
                parts = [self._set(kind, part) for part in ordered]
                if isinstance(formula, Or) and isinstance(every, tuple):
                    return tuple(dict.fromkeys(shape for shapes in parts for shape in shapes))
                with self.placed(formula):
                    if isinstance(every, tuple):
                        return self._joint(every[0], parts)
                    return reduce(and_ if isinstance(formula, And) else or_, parts)
            case Referred() | Not(formula=Referred()):
                with self.placed(formula):
                    return self._set(kind, self._meant(formula))
        atom = formula.formula if isinstance(formula, Not) else formula
        if kind not in atom.asked_of:
            return every
        if isinstance(atom, Names):
            contents: Any = ObjectShape(every=(Some(frozenset(), ~self.strings(atom.name), FALSE),))
        else:
            contents = atom.contents  # type: ignore[attr-defined]
        if not isinstance(every, tuple):
            return contents if atom is formula else ~contents
        return (contents,) if atom is formula else tuple(contents.without())

    def spellings(self, formula: Formula) -> ByteAutomaton:
        """Return the texts of the numbers that a formula is true of."""
        plain, other = self.numbers(formula, plain=True), self.numbers(formula, plain=False)
        with self.placed(formula):
            return plain.spellings if plain == other else _spelled_apart(plain, other)

    def has_number(self, formula: Formula) -> bool:
        """Return True if a formula is true of a number that has a text."""
        plain, other = (self.numbers(formula, plain=plain) for plain in (True, False))
        if plain == other and not plain.is_costly:
            return not plain.is_empty
        return self.shortest_number(formula) is not None

    def shortest_number(self, formula: Formula) -> int | None:
        """Return the length of the shortest text of a number that a formula is true of; ``None`` if there is none."""
        plain, other = (self.numbers(formula, plain=plain) for plain in (True, False))
        if any(map(plain.contains, range(10))):
            return 1
        if plain.is_empty and other.is_empty:
            return None
        if plain.members and plain.members == other.members:
            # A list of thousands has an automaton for none that is not looked at; those within the range have no exponents.
            if all(x.denominator == 1 and abs(x) < 10**16 for x in plain.members):
                return min(len(str(x)) for x in plain.members)
        spellings = self.spellings(formula)
        return None if spellings.is_empty else int(spellings.distances[spellings.start])

    def within(self, formula: Formula) -> list[Formula]:
        """Return the formulas asked of the items and members of the values that a formula is true of.

        Raises
        ------
        UnsupportedError
            Of these strings, numbers, arrays or objects more is asked than is looked at.
        """
        self.strings(formula)
        with self.placed(formula):
            if self.numbers(formula, plain=False).has_multiples:
                self.spellings(formula)
            refuse_large(self.objects(formula))
        found: list[Formula] = []
        for array in self.arrays(formula):
            found += [*array.first, array.rest, *(one.item for one in array.counted)]
        for shape in self.objects(formula):
            found += [value for _, value in shape.members]
            found += [one.value for one in shape.every + shape.some]
        return found

    def _joint(self, free: AShape, parts: Sequence[tuple[AShape, ...]]) -> tuple[AShape, ...]:
        """Return the conjunction of some alternatives of shapes."""
        joint = free.joined([shapes[0] for shapes in parts if len(shapes) == 1 and shapes[0] is not free])
        found: tuple[AShape, ...] = () if self._is_nothing(joint) else (joint,)
        for shapes in parts:
            if len(shapes) == 1:
                continue
            joined: dict[AShape, None] = {}
            for left in found:
                joined.update(dict.fromkeys(self._joined(left, shapes)))
                if len(joined) > max(MOST_SHAPES, len(shapes)) and self.compiling:
                    raise LimitError(
                        "Write fewer alternatives by anyOf, oneOf, not and if",
                        f"What is said of one value there comes to more than {MOST_SHAPES} combinations of them",
                    )
            found = tuple(joined)
        for shape in found:
            if isinstance(shape, ArrayShape) and shape.ways > MOST_COUNTS and self.compiling:
                raise LimitError(
                    "Ask for fewer items by contains and minContains",
                    f"How many of each one array may have comes to more than {MOST_COUNTS:,} cases",
                )
        return found

    def _joined(self, left: AShape, parts: Sequence[AShape]) -> list[AShape]:
        """Return the shapes of what has the shape ``left`` and one of ``parts``, without those that are evidently of nothing."""
        for right in parts:
            if self._says(left, right):
                if isinstance(left, ObjectShape) and isinstance(right, ObjectShape):
                    # Its names are told apart all the same, in their order.
                    new = tuple((name, TRUE) for name, _ in right.members if name not in left.values)
                    return [left & ObjectShape(members=new)] if new else [left]
                return [left]
        return [joint for right in parts if not self._is_nothing(joint := left & right)]

    def _says(self, left: AShape, right: AShape) -> bool:
        """Return True if ``left`` evidently implies ``right``."""
        if isinstance(left, ArrayShape) or isinstance(right, ArrayShape):
            return left & right == left
        return (
            right.required <= left.required
            and all(left.value(name) is FALSE for name in right.absent)
            and set(right.every) <= set(left.every)
            and set(right.some) <= set(left.some)
            and right.least <= max(left.least, len(left.required))
            and (right.most is None or (left.most is not None and left.most <= right.most))
            and all(self._is_never(both(left.value(name), negated(value))) for name, value in right.members)
        )

    def _is_nothing(self, shape: ArrayShape | ObjectShape) -> bool:
        if isinstance(shape, ArrayShape):
            return shape.most is not None and shape.most < shape.least
        if shape.required & shape.absent or any(one.value is FALSE for one in shape.some):
            return True
        return any(self._is_never(shape.value(name)) for name in shape.required)

    def _is_never(self, formula: Formula) -> bool:
        """Return True if a formula is evidently false: of nothing but arrays or objects that none of its shapes allows."""
        if formula not in self._never:
            self._never[formula] = formula is FALSE or not (
                not self.kinds_of(formula).isdisjoint((*LITERALS, "array", "object"))
                or not all(self.numbers(formula, plain=plain).is_empty for plain in (True, False))
                or not self.strings(formula).is_empty
            )
        return self._never[formula]

    @contextmanager
    def placed(self, formula: Formula) -> Iterator[None]:
        """Say in the error of a limit where a formula stands in the schema: the largest part of it that stands in one place."""
        try:
            with states_of(compiling=self.compiling):
                yield
        except LimitError as limit:
            asked = set(parts_of(formula))
            for part in parts_of(formula):
                if isinstance(part, Not) and isinstance(part.formula, Referred):
                    asked.add(self._definitions[part.formula.key])
            found = [known for known in self._pointers if known in asked or asked.issuperset(parts_of(known))]
            if not found:
                raise
            raise limit.at(self._pointers[max(found, key=lambda known: len(parts_of(known)))]) from None

    def meant(self, formula: Formula) -> Formula:
        """Resolve references to the formula that they stand for."""
        while isinstance(formula, Referred):
            formula = self._definitions[formula.key]
        return formula

    def _meant(self, formula: Formula) -> Formula:
        """Resolve a reference, or the negation of one, by one step."""
        reference = formula.formula if isinstance(formula, Not) else formula
        assert isinstance(reference, Referred)
        found = self._definitions[reference.key]
        return found if reference is formula else negated(found)


_PLAIN_BYTES = ByteAutomaton.from_edges(
    *np.array([(1, byte, 1) for byte in b"-0123456789"]).T, start=1, accepting=np.array([False, True])
)
"""The texts without point and exponent."""


@kept
def _spelled_apart(plain: NumberSet, other: NumberSet) -> ByteAutomaton:
    """Return the texts of some numbers where they are plain, and of others where they are not."""
    product = Product.of([plain.spellings, other.spellings, _PLAIN_BYTES])
    in_plain, in_other, whole = product.matched.T
    return ByteAutomaton(product.targets, product.byte_class, 1, np.where(whole, in_plain, in_other)).trim()


Tags: TypeAlias = Mapping[str | None, frozenset[Hashable]]
"""Values that what a formula is true of may be, under ``None``; or those of a member that it has, under its name."""


def tags_of(kinds: Kinds, formula: Formula) -> Tags:
    """Return the tags of a formula; none where they are not evident."""
    formula = kinds.meant(formula)
    own = scalars_of(kinds, formula)
    if own is not None:
        return {None: own}
    parts = formula.formulas if isinstance(formula, And) else (formula,)
    if not any(isinstance(part, Kind) and part.kinds == {"object"} for part in parts):
        return {}
    found: dict[str | None, frozenset[Hashable]] = {}
    contents = [part.contents for part in parts if isinstance(part, Membership)]
    shapes = [shape for shape in contents if isinstance(shape, ObjectShape)]
    required = frozenset[str]().union(*(shape.required for shape in shapes))
    for name, value in (one for shape in shapes for one in shape.members if one[0] in required):
        values = scalars_of(kinds, kinds.meant(value))
        if values is not None:
            found[name] = found.get(name, values) & values
    return found


def common(tags: Sequence[Tags]) -> Sequence[frozenset[Hashable]] | None:
    """Return the values of all under a tag that they have in common; ``None`` where there is none."""
    names = [name for name in tags[0] if all(name in one for one in tags)] if tags else []
    return [one[names[0]] for one in tags] if names else None


def scalars_of(kinds: Kinds, formula: Formula) -> frozenset[Hashable] | None:
    """Return values of which one is meant, where these are scalars and few."""
    if isinstance(formula, Or):
        parts = [scalars_of(kinds, kinds.meant(part)) for part in formula.formulas]
        return None if None in parts else frozenset().union(*(part for part in parts if part is not None))
    if not isinstance(formula, (And, Kind)) or not kinds.kinds_of(formula).isdisjoint(("array", "object")):
        return None
    strings = kinds.strings(formula)
    numbers = [kinds.numbers(formula, plain=plain).members for plain in (True, False)]
    if strings.values is None and not strings.is_empty or None in numbers:
        return None
    literals = kinds.kinds_of(formula).intersection(LITERALS)
    return frozenset(
        [("string", text) for text in strings.values or ()]
        + [("number", number) for one in numbers for number in one or ()]
        + [(kind, None) for kind in literals]
    )
