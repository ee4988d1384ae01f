"""Texts by the value that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from ..errors import ValueReadError


def frozen(value: Any) -> Hashable:
    """Return something hashable that is equal for equal values: containers and unhashable instances by their content.

    Truth values are kept apart from the numbers 0 and 1, which Python calls equal to them.
    """
    match value:
        case bool():
            return bool, value
        case Mapping():
            return Mapping, frozenset((frozen(key), frozen(part)) for key, part in value.items())
        case list() | tuple():
            return type(value), tuple(map(frozen, value))
    try:
        hash(value)
    except TypeError:
        return type(value), frozen(vars(value)) if hasattr(value, "__dict__") else repr(value)
    return value


def key(value: Any, *, refused: bool) -> Hashable:
    """Return what a value is looked up by; a text that its type refuses is kept apart from a value that is this text."""
    return (ValueReadError, value) if refused else frozen(value)


@final
@dataclass
class Group:
    """The known texts of one value, in the order of their bytes."""

    value: Any
    refused: ValueReadError | None
    texts: list[bytes]


def grouped(texts: Iterable[bytes], reader: Callable[[str], Any] | None) -> list[Group]:
    """Return ``texts``, in the order of their bytes, by the value that ``reader`` makes of them; ``None`` for the text itself.

    A text that the type refuses is a group of its own.
    """
    groups: dict[Hashable, Group] = {}
    for written in texts:
        text = written.decode()
        try:
            group = Group(text if reader is None else reader(text), None, [])
        except ValueReadError as error:
            group = Group(text, error, [])
        groups.setdefault(key(group.value, refused=group.refused is not None), group).texts.append(written)
    return list(groups.values())
