"""Values of options and arguments, checked where they are given."""

import math
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from inspect import get_annotations
from itertools import chain
from numbers import Real
from pathlib import PurePath
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

import numpy as np

from ..errors import UnsupportedError

MOST_BYTES = 2**34  # The bound of the memory that a call's request needs at the least: 16 GB


def check(owner: str, holds: bool, expected: str, **given: object) -> None:
    """Raise :class:`UnsupportedError` unless a condition ``holds``, with what was ``given`` to ``owner`` and ``expected``."""
    if not holds:
        values = ", ".join(f"{name}={shown(value)}" for name, value in given.items())
        raise UnsupportedError(f"{values} was given to {owner}; expected {expected}.")


def check_counts(owner: str, otherwise: str = "", *, least: int = 1, **values: object) -> None:
    """Raise :class:`UnsupportedError` for the first value that is not a whole number of at least ``least``.

    ``owner`` has the options; ``otherwise`` is what else could have been given, for the message.
    """
    for name, value in values.items():
        if not is_count(value, least):
            check(owner, False, f"a whole number of at least {least}{otherwise}", **{name: value})


def check_shares(owner: str, **values: object) -> None:
    """Raise :class:`UnsupportedError` for the first value that is not a number in (0, 1]."""
    for name, value in values.items():
        check(owner, is_number(value) and 0 < value <= 1, "a number in (0, 1]", **{name: value})  # type: ignore[operator]


def check_amounts(owner: str, **values: object) -> None:
    """Raise :class:`UnsupportedError` for the first value that is not a finite number of at least 0."""
    for name, value in values.items():
        check(owner, is_number(value) and value >= 0, "a number of at least 0", **{name: value})  # type: ignore[operator]


def check_fits(
    name: str, value: int, *, count: int | None = None, each: int, things: str, instead: str = "Ask for fewer"
) -> None:
    """Raise :class:`UnsupportedError` where ``count`` things (``value`` by default) of ``each`` bytes exceed :data:`MOST_BYTES`."""
    most = MOST_BYTES // each
    if (value if count is None else count) > most:
        raise UnsupportedError(
            f"{name}={shown(value)} was given, and {most:,} {things} at most fit into the {MOST_BYTES >> 30} GB of "
            f"memory that a call may take. {instead}."
        )


def is_count(value: object, least: int = 0) -> bool:
    """Return True if ``value`` is a whole number of at least ``least``; ``True`` is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= least


def is_text(value: object) -> bool:
    """Return True if ``value`` is a string of at least one character that UTF-8 can write: without lone surrogates."""
    return isinstance(value, str) and value != "" and value.encode(errors="ignore").decode() == value


def is_number(value: object) -> bool:
    """Return True if ``value`` is a finite number that a float can hold; ``True`` is none."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def check_kind(owner: str, name: str, value: object, kind: type | tuple[type, ...], expected: str) -> None:
    """Raise :class:`UnsupportedError` unless ``value`` is an instance of ``kind``; ``expected`` says what to give."""
    if not isinstance(value, kind):
        raise UnsupportedError(
            f"{name}={shown(value)} of type {type(value).__name__} was given to {owner}; expected {expected}."
        )


Rule: TypeAlias = Callable[[str, str, Any], None]
"""A check of the value of a field, given the name of its owner, its own, and the value."""


def by(checked: Callable[..., None]) -> Rule:
    """Return the rule of a check of keywords, such as :func:`check_counts`."""
    return lambda owner, name, value: checked(owner, **{name: value})


def that(holds: Callable[[Any], bool], expected: str) -> Rule:
    """Return the rule that a condition holds."""
    return lambda owner, name, value: check(owner, holds(value), expected, **{name: value})


def of_kind(kind: type, expected: str) -> Rule:
    """Return the rule of :func:`check_kind`."""
    return lambda owner, name, value: check_kind(owner, name, value, kind, expected)


def fitting(each: int, things: str) -> Rule:
    """Return the rule of :func:`check_fits`."""
    return lambda owner, name, value: check_fits(name, value, each=each, things=things)


Count = Annotated[int, by(check_counts)]
Share = Annotated[float, by(check_shares)]
Amount = Annotated[float, by(check_amounts)]


class Checked:
    """Base of dataclasses whose fields are checked by their annotations.

    Each :data:`Rule` in an annotation has to hold; a ``bool`` is one, and a ``Literal`` one of its values. ``None`` is right where
    it is the default.
    """

    def __post_init__(self) -> None:
        rules = _rules(type(self))  # type: ignore[arg-type]
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            for rule in rules[field.name] if value is not None or field.default is not None else ():
                rule(type(self).__name__, field.name, value)


@cache
def _rules(kind: type) -> dict[str, tuple[Rule, ...]]:
    """Return the rules of each field of a class."""
    rules = dict[str, tuple[Rule, ...]]()
    # Not typing.get_type_hints, in whose hints of classes a lambda finds no names of its module.
    for name, hint in chain.from_iterable(get_annotations(each, eval_str=True).items() for each in kind.mro()[::-1]):
        rules[name] = tuple(rule for part in (hint, *get_args(hint)) for rule in getattr(part, "__metadata__", ()))
        if hint is bool:
            rules[name] = (of_kind(bool, "True or False"),)
        elif get_origin(hint) is Literal:
            rules[name] = (that(get_args(hint).__contains__, " or ".join(map(repr, get_args(hint)))),)
    return rules


def shown(value: object) -> str:
    """Return a value as a message shows it, whatever its ``repr`` does: Python refuses to write integers of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"{'-' if value < 0 else ''}2**{value.bit_length() - 1}..."
    if isinstance(value, PurePath):
        return repr(str(value))
    try:
        return f"{value!r:.80}"
    except Exception:  # a list with such an integer, or an object of somebody else's
        return f"<{type(value).__name__}>"


def counted(number: int, noun: str) -> str:
    """Return ``1 draw``, ``2 draws``, ``1,000 draws``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
