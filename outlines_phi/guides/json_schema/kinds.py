"""The truth sets of formulas among the values of one kind, and values by which formulas evidently exclude each other."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar, final

from ...automata.automaton import ByteAutomaton
from ...format_limits import LimitError
from ...numerics.cache import kept
from ...regex.patterns import compile_regex
from .formula import (
    FALSE,
    TRUE,
    And,
    Constant,
    Formula,
    Kind,
    Names,
    Not,
    Numeric,
    Or,
    Plain,
    Referred,
    Textual,
    both,
    negated,
    parts_of,
)
from .limits import refuse_large, states_of
from .numbers.number_set import NumberSet
from .shapes import ArrayShape, ObjectShape, Shaped, Some
from .strings.string_set import StringSet

MOST_SHAPES = 512
"""Alternatives of one array or object."""

MOST_COUNTS = 20_000
"""Ways to count the items of one array on."""

PLAIN_NUMBER = "plain number"
"""The kind of numbers that are written without a fraction and an exponent."""

LITERALS = "null", "true", "false"

_ANY_ARRAY, _ANY_OBJECT = ArrayShape(), ObjectShape()
_EVERY_NUMBER, _NO_NUMBER = NumberSet.all(), NumberSet.none()
_EVERY_STRING, _NO_STRING = StringSet.all(), StringSet.none()

AShape = TypeVar("AShape", ArrayShape, ObjectShape)
ASet = TypeVar("ASet", NumberSet, StringSet)


@final
class Kinds:
    """The truth sets of formulas, kind by kind: a truth, a set, or alternatives of shapes.

    ``definitions`` are what references stand for, and ``pointers`` where formulas stand in the schema, for errors.
    """

    def __init__(self, definitions: Mapping[str, Formula], pointers: Mapping[Formula, str] | None = None) -> None:
        self._definitions, self._pointers = definitions, pointers or {}
        self._may_be: dict[tuple[str, Formula], bool] = {}
        self._sets: dict[tuple[str, Formula], Any] = {}
        self._known_shapes: dict[tuple[str, Formula], Any] = {}
        self._never: dict[Formula, bool] = {}
        self.compiling = True
        """True while a schema is compiled, where limits hold: within a text, nothing is refused any more."""

    def may_be(self, kind: str, formula: Formula) -> bool:
        """Return True if a formula may be true of values of a kind, by kinds alone; a kind of one value has no other."""
        match formula:
            case Constant():
                return formula.truth
            case Kind():
                return kind in formula.kinds
            case And() | Or():
                key = kind, formula
                if key not in self._may_be:
                    joined = all if isinstance(formula, And) else any
                    self._may_be[key] = joined(self.may_be(kind, part) for part in formula.formulas)
                return self._may_be[key]
            case Referred() | Not(formula=Referred()):
                return self.may_be(kind, self._meant(formula))
        return not isinstance(formula, Not) or formula.formula.asked_of == kind

    def numbers(self, formula: Formula, *, plain: bool) -> NumberSet:
        """Return the numbers that a formula is true of where they are written ``plain``, or where they are not."""
        return self._set(formula, PLAIN_NUMBER if plain else "number", _EVERY_NUMBER, _NO_NUMBER)

    def spellings(self, formula: Formula) -> ByteAutomaton:
        """Return the texts of the numbers that a formula is true of."""
        plain, other = self.numbers(formula, plain=True), self.numbers(formula, plain=False)
        with self.placed(formula):
            return plain.spellings if plain == other else _spelled_apart(plain, other)

    def shortest_number(self, formula: Formula) -> int | None:
        """Return the length of the shortest text of a number that a formula is true of; ``None`` if there is none."""
        plain, other = (self.numbers(formula, plain=plain) for plain in (True, False))
        if plain.is_empty and other.is_empty:
            return None
        if plain.members and plain.members == other.members:
            # A list of thousands has an automaton for none that is not looked at; those within the range have no exponents.
            if all(x.denominator == 1 and abs(x) < 10**16 for x in plain.members):
                return min(len(str(x)) for x in plain.members)
        spellings = self.spellings(formula)
        return None if spellings.is_empty else int(spellings.distances[spellings.start])

    def strings(self, formula: Formula) -> StringSet:
        """Return the strings that a formula is true of."""
        return self._set(formula, "string", _EVERY_STRING, _NO_STRING)

    def _set(self, formula: Formula, kind: str, every: ASet, none: ASet) -> ASet:
        """Return the numbers or strings that a formula is true of, out of ``every`` one; those of each part are found once."""
        key = kind, formula
        if key not in self._sets:
            possible = self.may_be("number" if kind == PLAIN_NUMBER else kind, formula)
            with self.placed(formula):
                self._sets[key] = self._find_set(formula, kind, every, none) if possible else none
        found: ASet = self._sets[key]
        return found

    def _find_set(self, formula: Formula, kind: str, every: ASet, none: ASet) -> ASet:
        match formula:
            case Plain():
                return none if kind == "number" else every
            case Not(formula=Plain()):
                return every if kind == "number" else none
            case Numeric() | Textual():
                found = formula.numbers if isinstance(formula, Numeric) else formula.strings
                return found if isinstance(found, type(every)) else every
            case Not(formula=Numeric() | Textual() as atom):
                of_kind = isinstance(atom.parts[0], type(every))
                return ~self._set(atom, kind, every, none) if of_kind else none
            case And():
                inside = every
                for part in formula.formulas:
                    inside = inside & self._set(part, kind, every, none)
                return inside
            case Or():
                inside = none
                for part in formula.formulas:
                    inside = inside | self._set(part, kind, every, none)
                return inside
            case Referred() | Not(formula=Referred()):
                return self._set(self._meant(formula), kind, every, none)
        return every if self.may_be("number" if kind == PLAIN_NUMBER else kind, formula) else none

    def arrays(self, formula: Formula) -> tuple[ArrayShape, ...]:
        """Return the shapes of the arrays that a formula is true of: each has one at least."""
        return self._shapes(formula, "array", _ANY_ARRAY)

    def objects(self, formula: Formula) -> tuple[ObjectShape, ...]:
        """Return the shapes of the objects that a formula is true of: each has one at least."""
        return self._shapes(formula, "object", _ANY_OBJECT)

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

    def _shapes(self, formula: Formula, kind: str, free: AShape) -> tuple[AShape, ...]:
        """Return the shapes of the values of a kind that a formula is true of; those of each part are found once."""
        key = kind, formula
        if key not in self._known_shapes:
            possible = self.may_be(kind, formula)
            with self.placed(formula):
                self._known_shapes[key] = self._find_shapes(formula, kind, free) if possible else ()
        found: tuple[AShape, ...] = self._known_shapes[key]
        return found

    def _find_shapes(self, formula: Formula, kind: str, free: AShape) -> tuple[AShape, ...]:
        match formula:
            case And():
                # What has alternatives comes last: most of them are then known to be true, or to be false.
                alone: list[AShape] = []
                forked: list[tuple[AShape, ...]] = []
                for part in sorted(formula.formulas, key=lambda part: isinstance(part, Or)):
                    parts = self._shapes(part, kind, free)
                    if len(parts) != 1:
                        forked.append(parts)
                    elif parts[0] is not free:
                        alone.append(parts[0])
                joint = free.joined(alone)
                found: tuple[AShape, ...] = () if self._is_nothing(joint) else (joint,)
                for parts in forked:
                    joined: dict[AShape, None] = {}
                    for left in found:
                        joined.update(dict.fromkeys(self._joined(left, parts)))
                        if len(joined) > max(MOST_SHAPES, len(parts)) and self.compiling:
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
            case Or():
                return tuple(
                    dict.fromkeys(shape for part in formula.formulas for shape in self._shapes(part, kind, free))
                )
            case Referred() | Not(formula=Referred()):
                return self._shapes(self._meant(formula), kind, free)
        shapes = self._of_atom(formula, free)
        if shapes is None:
            return (free,) if self.may_be(kind, formula) else ()
        return shapes

    def _joined(self, left: AShape, parts: Sequence[AShape]) -> list[AShape]:
        """Return the shapes of what has the shape ``left`` and one of ``parts``, without those that are evidently of nothing."""
        for right in parts:
            if self._says(left, right):
                if isinstance(left, ObjectShape) and isinstance(right, ObjectShape):
                    # Its names are told apart all the same, in their order.
                    return [left & ObjectShape(members=tuple((name, TRUE) for name, _ in right.members))]
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
                any(self.may_be(kind, formula) for kind in (*LITERALS, "array", "object"))
                or not all(self.numbers(formula, plain=plain).is_empty for plain in (True, False))
                or not self.strings(formula).is_empty
            )
        return self._never[formula]

    def _of_atom(self, formula: Formula, free: AShape) -> tuple[AShape, ...] | None:
        """Return the shapes that an atom, or its negation, asks for; ``None`` if it asks nothing of the values of this kind."""
        atom = formula.formula if isinstance(formula, Not) else formula
        shape: Any = atom.shape if isinstance(atom, Shaped) else None
        if isinstance(atom, Names) and isinstance(free, ObjectShape):
            shape = ObjectShape(every=(Some(frozenset(), ~self.strings(atom.name), FALSE),))
        if not isinstance(shape, type(free)):
            return None
        return (shape,) if atom is formula else tuple(shape.without())

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
        if isinstance(formula, Not):
            assert isinstance(formula.formula, Referred)
            return negated(self._definitions[formula.formula.key])
        assert isinstance(formula, Referred)
        return self._definitions[formula.key]


@kept
def _spelled_apart(plain: NumberSet, other: NumberSet) -> ByteAutomaton:
    """Return the texts of some numbers where they are plain, and of others where they are not."""
    whole = compile_regex("-?[0-9]+")
    neither = (plain.spellings & whole).complement() & (other.spellings & whole.complement()).complement()
    return neither.complement().trim()


Tags: TypeAlias = Mapping[str | None, frozenset[Hashable]]
"""Values that what a formula is true of may be, under ``None``; or those of a member that it has, under its name."""


def tags_of(kinds: Kinds, formula: Formula) -> Tags:
    """Return the tags of a formula; none where they are not evident."""
    formula = kinds.meant(formula)
    own = _scalars(kinds, formula)
    if own is not None:
        return {None: own}
    parts = formula.formulas if isinstance(formula, And) else (formula,)
    if not any(isinstance(part, Kind) and part.kinds == {"object"} for part in parts):
        return {}
    found: dict[str | None, frozenset[Hashable]] = {}
    shapes = [part.shape for part in parts if isinstance(part, Shaped) and isinstance(part.shape, ObjectShape)]
    required = frozenset[str]().union(*(shape.required for shape in shapes))
    for name, value in (one for shape in shapes for one in shape.members if one[0] in required):
        values = _scalars(kinds, kinds.meant(value))
        if values is not None:
            found[name] = found.get(name, values) & values
    return found


def common(tags: Sequence[Tags]) -> Sequence[frozenset[Hashable]] | None:
    """Return the values of all under a tag that they have in common; ``None`` where there is none."""
    names = [name for name in tags[0] if all(name in one for one in tags)] if tags else []
    return [one[names[0]] for one in tags] if names else None


def _scalars(kinds: Kinds, formula: Formula) -> frozenset[Hashable] | None:
    """Return values of which one is meant, where these are scalars and few."""
    if isinstance(formula, Or):
        parts = [_scalars(kinds, kinds.meant(part)) for part in formula.formulas]
        return None if None in parts else frozenset().union(*(part for part in parts if part is not None))
    if not isinstance(formula, (And, Kind)) or kinds.may_be("array", formula) or kinds.may_be("object", formula):
        return None
    strings = kinds.strings(formula)
    numbers = [kinds.numbers(formula, plain=plain).members for plain in (True, False)]
    if (strings.values is None or strings.without) and not strings.is_empty or None in numbers:
        return None
    literals = {kind for kind in LITERALS if kinds.may_be(kind, formula)}
    return frozenset(
        [("string", text) for text in strings.values or ()]
        + [("number", number) for one in numbers for number in one or ()]
        + [(kind, None) for kind in literals]
    )
