"""JSON values, as JSON Schema tells them apart, and their places (JSON pointers, RFC 6901)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

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


def identity(value: Any) -> Hashable:
    """Return a key equal for equal values alone: 1 and 1.0 are equal, 1 and true are not, and members have no order."""
    match kind_of(value):
        case "number":
            return "number", exact(value)
        case "string":
            return "string", value
        case "array":
            return "array", tuple(map(identity, value))
        case "object":
            return "object", frozenset((name, identity(item)) for name, item in value.items())
        case literal:
            return literal


def sort_key(identified: Hashable) -> str:
    """Return a key to sort identities by, the same in every process."""
    match identified:
        case Fraction():
            return f"{identified.numerator:x}/{identified.denominator:x}"  # decimals of thousands of digits are not written
        case tuple():
            return f"({','.join(map(sort_key, identified))})"
        case frozenset():
            return f"{{{','.join(sorted(map(sort_key, identified)))}}}"
    return repr(identified)


def exact(number: int | float | Decimal | Fraction) -> Fraction:
    """Return the number that is written so: 0.1 is a tenth, though no float is."""
    return Fraction(repr(number)) if isinstance(number, float) else Fraction(number)


def pointer_to(steps: Iterable[str | int], start: str = "#") -> str:
    """Return the JSON pointer to what some steps lead to."""
    return "/".join([start, *(str(step).replace("~", "~0").replace("/", "~1") for step in steps)])
