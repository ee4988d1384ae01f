"""JSON values, as JSON Schema tells them apart, and their places (JSON pointers, RFC 6901)."""

from __future__ import annotations

from collections.abc import Iterable
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


def pointer_to(steps: Iterable[str | int], start: str = "#") -> str:
    """Return the JSON pointer to what some steps lead to."""
    return "/".join([start, *[str(step).replace("~", "~0").replace("/", "~1") for step in steps]])
