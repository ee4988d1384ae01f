"""The rules of a guidance grammar as trees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias


class Spelled(NamedTuple):
    """Texts that a regular expression matches, in the dialect of Outlines."""

    pattern: str
    at: int  # where it is written, an offset


class NamedPart(NamedTuple):
    """What a rule or a terminal of that name stands for."""

    name: str
    at: int


class Values(NamedTuple):
    """The JSON values that a schema is true of: ``%json``."""

    schema: Any
    at: int


class InTurn(NamedTuple):
    """Parts one after the other."""

    parts: tuple[Any, ...]


class EitherOf(NamedTuple):
    """Alternatives."""

    parts: tuple[Any, ...]


class RepeatedPart(NamedTuple):
    """A part some times in a row; ``None`` is no bound."""

    part: Any
    least: int
    most: int | None


class Nested(NamedTuple):
    """A grammar inside another one: ``%lark``."""

    definitions: tuple[Definition, ...]
    at: int


Part: TypeAlias = Spelled | NamedPart | Values | InTurn | EitherOf | RepeatedPart | Nested


class Attribute(NamedTuple):
    """What is said of a rule in brackets behind its name: a number, a name, the part that ends it, or ``True``."""

    value: Any
    at: int


class Definition(NamedTuple):
    """A rule, or a terminal, whose name is in capitals."""

    name: str
    attributes: Mapping[str, Attribute]
    body: Part
    at: int

    @property
    def is_terminal(self) -> bool:
        """Whether it is one lexeme."""
        return self.name.isupper()
