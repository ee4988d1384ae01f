"""Formats that can be read back: what Outlines writes for a type, and the value that a text of it stands for."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from ..automaton import DEAD
from ..guides.regex import compile_regex


class Format(ABC):
    """A regular language whose members stand for values.

    Attributes
    ----------
    pattern
        The language, in the dialect of Outlines.
    """

    pattern: str

    @abstractmethod
    def read(self, text: str) -> Any:
        """Return the value that ``text``, a member, stands for; whatever the type raises where it refuses it."""

    def holds(self, text: str) -> bool:
        """Return whether ``text`` is a member."""
        return compile_regex(self.pattern).accepts(text.encode())


@final
@dataclass(frozen=True)
class Parsed(Format):
    """The members of a pattern, each read by ``parse``."""

    pattern: str
    parse: Callable[[str], Any]

    def read(self, text: str) -> Any:
        return self.parse(text)


@final
@dataclass(frozen=True)
class Derived(Format):
    """The texts of a context-free grammar, read by ``parse``. They have no pattern, so this is no part of another format."""

    parse: Callable[[str], Any]

    def read(self, text: str) -> Any:
        return self.parse(text)


@final
@dataclass(frozen=True)
class Named(Format):
    """Finitely many texts, each with its value: a ``Literal``, an ``Enum``."""

    values: dict[str, Any]

    @property
    def pattern(self) -> str:  # type: ignore[override]
        return "|".join(map(re.escape, self.values))

    def read(self, text: str) -> Any:
        return self.values[text]

    def holds(self, text: str) -> bool:
        return text in self.values


@final
@dataclass(frozen=True)
class Quoted(Format):
    """A format between quotation marks."""

    inner: Format
    pattern: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pattern", f'"(?:{self.inner.pattern})"')

    def read(self, text: str) -> Any:
        return self.inner.read(text[1:-1])


@final
@dataclass(frozen=True)
class OneOf(Format):
    """Alternatives. A text that several of them hold is read by the first that takes it."""

    alternatives: Sequence[Format]
    pattern: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pattern", "|".join(f"(?:{part.pattern})" for part in self.alternatives))

    def read(self, text: str) -> Any:
        refused: Exception = ValueError(f"{text!r:.80} is not in the format.")
        for alternative in self.alternatives:
            if alternative.holds(text):
                try:
                    return alternative.read(text)
                except Exception as error:  # a validator may raise anything; another alternative may take the text
                    refused = error
        raise refused


@final
@dataclass(frozen=True)
class Row(Format):
    """Formats in a row between two brackets: a list, a tuple, a dict.

    Attributes
    ----------
    pattern
        The language of the whole.
    cells
        The formats in turn, each with the text that separates it from the next.
    endless
        Whether the cells start over after the last one. The row may end after a last cell only.
    build
        Makes the value of the values of the cells.
    """

    pattern: str
    cells: Sequence[tuple[Format, str]]
    endless: bool
    build: Callable[[list[Any]], Any]

    def read(self, text: str) -> Any:
        body = text[1:-1].encode()
        empty = not body and not (self.cells and self.cells[0][0].holds(""))
        spans = [] if empty else self._spans(body)
        return self.build(
            [self.cells[i % len(self.cells)][0].read(body[a:b].decode()) for i, (a, b) in enumerate(spans)]
        )

    def _spans(self, body: bytes) -> list[tuple[int, int]]:
        """Return where each cell begins and ends; of several ways to cut, the one with the shortest first cells."""
        spans: list[tuple[int, int]] = []
        ways = [(0, self._ends(body, 0, 0))]  # of every cell so far: its beginning, and its possible ends
        failed: set[tuple[int, int]] = set()
        while ways:
            column = (len(ways) - 1) % len(self.cells)
            begin, ends = ways[-1]
            end = next(ends, None)
            if end is None:
                failed.add((begin, column))
                ways.pop()
                continue
            spans[len(ways) - 1 :] = [(begin, end)]
            if end == len(body):
                return spans
            following = end + len(self.cells[column][1])
            after = (column + 1) % len(self.cells)
            if (following, after) not in failed:
                ways.append((following, self._ends(body, following, after)))
        raise ValueError(f"{body.decode()!r:.80} is not in the format.")

    def _ends(self, body: bytes, begin: int, column: int) -> Iterator[int]:
        """Yield where the cell of ``column`` that begins at ``begin`` may end, nearest first."""
        form, separator = self.cells[column]
        last = column == len(self.cells) - 1
        automaton = compile_regex(form.pattern)
        state = automaton.start
        for position in range(begin, len(body) + 1):
            if automaton.accepting[state]:
                goes_on = (self.endless or not last) and body.startswith(separator.encode(), position)
                if goes_on or (last and position == len(body)):
                    yield position
            if position < len(body):
                state = int(automaton.targets[state, automaton.byte_class[body[position]]])
            if state == DEAD:
                return
