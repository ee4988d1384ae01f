"""Boolean formulas over what can be asked of a JSON value; the kinds of values, and their places (JSON pointers, RFC 6901)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias, final
from weakref import WeakValueDictionary

from ...errors import UnsupportedError

Path: TypeAlias = tuple[str | int, ...]
"""The steps to a part of a value."""

NUMBERS = frozenset({"plain number", "number"})
"""Those that are written without a fraction and an exponent, which an integer is in draft 4; and others."""

KINDS = frozenset({"null", "true", "false", "string", "array", "object"}) | NUMBERS
"""The kinds of values: a value of the first three is known by its kind."""

TYPES = {
    "null": frozenset({"null"}),
    "boolean": frozenset({"true", "false"}),
    "integer": NUMBERS,
    "number": NUMBERS,
    "string": frozenset({"string"}),
    "array": frozenset({"array"}),
    "object": frozenset({"object"}),
}
"""The kinds of each type of JSON Schema."""


def kind_of(value: Any) -> str:
    """Return the kind of a value that ``json.loads`` made, or of a number of another class."""
    match value:
        case None:
            return "null"
        case True:
            return "true"
        case False:
            return "false"
        case int() | float() | Decimal() | Fraction():
            return "number"
        case str():
            return "string"
        case list() | tuple():
            return "array"
        case dict():
            return "object"
    raise TypeError(f"{type(value).__name__} is no JSON value")


def pointer_to(steps: Iterable[str | int], start: str = "#") -> str:
    """Return the JSON pointer to what some steps lead to."""
    return "/".join([start, *[str(step).replace("~", "~0").replace("/", "~1") for step in steps]])


class Formula:
    """A predicate of JSON values. Equal formulas are one object, so they are compared and hashed by identity.

    An atom asks something of values of one kind and is true of all others: ``{"minimum": 0}`` is true of a string. So its negation
    says the kind, too.
    """

    __slots__ = ("__weakref__", "negation")
    negation: Formula  # of a conjunction or a disjunction, once it was asked for
    asked_of: frozenset[str] = frozenset()
    """The kinds of values that an atom asks something of."""

    _made: ClassVar[WeakValueDictionary[tuple[Any, ...], Formula]] = WeakValueDictionary()
    _making: ClassVar[threading.Lock] = threading.Lock()

    def __new__(cls, *parts: Any) -> Any:
        """Return the formula of this class with these parts, one for each of its slots."""
        key = (cls, *parts)
        with Formula._making:
            found = Formula._made.get(key)
            if found is None:
                found = Formula._made[key] = object.__new__(cls)
                for name, part in zip(cls.__slots__, parts, strict=True):
                    setattr(found, name, part)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.parts

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.parts))})"

    @property
    def parts(self) -> tuple[Any, ...]:
        """The parts that it is made of."""
        return tuple(getattr(self, name) for name in type(self).__slots__)


@final
class Constant(Formula):
    """True of every value, or of none."""

    __slots__ = ("truth",)
    truth: bool


TRUE, FALSE = Constant(True), Constant(False)


@final
class Kind(Formula):
    """The value is of one of these kinds, see :data:`KINDS`."""

    __slots__ = ("kinds",)
    kinds: frozenset[str]


@final
class Membership(Formula):
    """A value, if it is of one of some kinds, is in a set of those: of numbers or of strings, or of what has a shape."""

    __slots__ = ("asked_of", "contents")
    asked_of: frozenset[str]
    contents: Any


@final
class Names(Formula):
    """The names of all members of an object are as ``name`` says."""

    __slots__ = ("name",)
    asked_of = frozenset(["object"])
    name: Formula


@final
class Referred(Formula):
    """A reference to the formula of another part of the document, for the same value; ``key`` is its name in :class:`Schema`."""

    __slots__ = ("key",)
    key: str


@final
class Not(Formula):
    """The atom, or the reference, is false."""

    __slots__ = ("formula",)
    formula: Formula


@final
class And(Formula):
    """All of these are true; in the order in which they were met."""

    __slots__ = ("formulas",)
    formulas: tuple[Formula, ...]


@final
class Or(Formula):
    """At least one of these is true; in the order in which they were met."""

    __slots__ = ("formulas",)
    formulas: tuple[Formula, ...]


def both(*formulas: Formula) -> Formula:
    """Return the conjunction, without what says nothing."""
    return _joined(And, TRUE, FALSE, formulas)


def either(*formulas: Formula) -> Formula:
    """Return the disjunction, without what says nothing."""
    return _joined(Or, FALSE, TRUE, formulas)


def _joined(join: type[And] | type[Or], neutral: Formula, absorbing: Formula, formulas: Sequence[Formula]) -> Formula:
    said = [formula for formula in dict.fromkeys(formulas) if formula is not neutral]
    if len(said) < 2:
        return said[0] if said else neutral
    found: dict[Formula, None] = {}
    for formula in said:
        found.update(dict.fromkeys(formula.formulas if isinstance(formula, join) else (formula,)))
    kinds = [formula.kinds for formula in found if isinstance(formula, Kind)]
    if len(kinds) > 1:
        joint = kind(frozenset.intersection(*kinds) if join is And else frozenset.union(*kinds))
        found = {joint: None} | {formula: None for formula in found if not isinstance(formula, Kind)}
        found.pop(neutral, None)
    if absorbing in found or not found.keys().isdisjoint([one.formula for one in found if isinstance(one, Not)]):
        return absorbing
    return join(tuple(found)) if len(found) > 1 else next(iter(found), neutral)


def negated(formula: Formula) -> Formula:
    """Return the negation, with negations moved down to the atoms (De Morgan)."""
    match formula:
        case Constant():
            return FALSE if formula.truth else TRUE
        case Kind():
            return kind(KINDS - formula.kinds)
        case And() | Or():
            if not hasattr(formula, "negation"):
                formula.negation = (either if isinstance(formula, And) else both)(*map(negated, formula.formulas))
            return formula.negation
        case Not():
            return formula.formula
    return Not(formula)


def but_not(formula: Formula, *others: Formula) -> Formula:
    """Return that a formula is true and none of the others is; what both of two ask is not negated."""
    held = frozenset(parts_of(formula))
    return both(
        formula, *(either(*(negated(part) for part in parts_of(other) if part not in held)) for other in others)
    )


def parts_of(formula: Formula) -> tuple[Formula, ...]:
    """Return the conjuncts of a formula."""
    return formula.formulas if isinstance(formula, And) else (formula,)


def kind(kinds: Iterable[str]) -> Formula:
    """Return that a value is of one of these kinds."""
    found = frozenset(kinds)
    return TRUE if found == KINDS else Kind(found) if found else FALSE


@contextmanager
def not_too_deep() -> Iterator[None]:
    """Refuse a schema that has more parts inside each other than Python follows."""
    try:
        yield
    except RecursionError:
        raise UnsupportedError(
            "Give a JSON schema with fewer schemas inside each other. This one is too deep."
        ) from None
