"""Formats that can be read back: what Outlines writes for a type, and the value that a text of it stands for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

from ...automata.automaton import DEAD
from ...guides.json_schema.machine.stack import Configuration
from ...guides.regex import compile_regex
from ..types.json_text import JSONText
from ..types.output_types import Language


class Format(ABC):
    """A language whose members stand for values."""

    @abstractmethod
    def read(self, text: str) -> Any:
        """Return the value that ``text``, a member, stands for; whatever the type raises where it refuses it."""

    @abstractmethod
    def ends(self, text: bytes, begin: int) -> Iterator[int]:
        """Yield where a member that begins at ``begin`` of a text may end, nearest first."""

    def holds(self, text: str) -> bool:
        """Return whether ``text`` is a member."""
        written = text.encode()
        return len(written) in self.ends(written, 0)


@final
@dataclass(frozen=True)
class Parsed(Format):
    """The members of a language, each read by ``parse``."""

    language: Language
    parse: Callable[[str], Any]

    def read(self, text: str) -> Any:
        return self.parse(text)

    def ends(self, text: bytes, begin: int) -> Iterator[int]:
        return ends(self.language, text, begin)


@final
@dataclass(frozen=True)
class Derived(Format):
    """The texts of a context-free grammar, read by ``parse``. No other format has them as a part."""

    parse: Callable[[str], Any]

    def read(self, text: str) -> Any:
        return self.parse(text)

    def ends(self, text: bytes, begin: int) -> Iterator[int]:
        raise AssertionError("a grammar is no part of another format")


@final
@dataclass(frozen=True)
class Named(Format):
    """Finitely many texts, each with its value: a ``Literal``, an ``Enum``."""

    values: dict[str, Any]

    def read(self, text: str) -> Any:
        return self.values[text]

    def ends(self, text: bytes, begin: int) -> Iterator[int]:
        written = map(str.encode, self.values)
        yield from sorted(begin + len(one) for one in written if text.startswith(one, begin))


@final
@dataclass(frozen=True)
class Quoted(Format):
    """A format between quotation marks."""

    inner: Format

    def read(self, text: str) -> Any:
        return self.inner.read(text[1:-1])

    def ends(self, text: bytes, begin: int) -> Iterator[int]:
        if text.startswith(b'"', begin):
            yield from (end + 1 for end in self.inner.ends(text, begin + 1) if text.startswith(b'"', end))


@final
@dataclass(frozen=True)
class OneOf(Format):
    """Alternatives. A text that several of them hold is read by the first that takes it."""

    alternatives: Sequence[Format]

    def read(self, text: str) -> Any:
        refused: Exception = ValueError(f"{text!r:.80} is not in the format.")
        for alternative in self.alternatives:
            if alternative.holds(text):
                try:
                    return alternative.read(text)
                except Exception as error:  # a validator may raise anything; another alternative may take the text
                    refused = error
        raise refused

    def ends(self, text: bytes, begin: int) -> Iterator[int]:
        yield from sorted({end for part in self.alternatives for end in part.ends(text, begin)})


@final
@dataclass(frozen=True)
class Row(Format):
    """Formats in a row between two brackets: a list, a tuple, a dict.

    Attributes
    ----------
    language
        That of the whole.
    cells
        The formats in turn, each with the text that separates it from the next.
    endless
        Whether the cells start over after the last one. The row may end after a last cell only.
    build
        Makes the value of the values of the cells.
    """

    language: Language
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

    def ends(self, text: bytes, begin: int) -> Iterator[int]:
        return ends(self.language, text, begin)

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
        for end in form.ends(body, begin):
            goes_on = (self.endless or not last) and body.startswith(separator.encode(), end)
            if goes_on or (last and end == len(body)):
                yield end


def ends(language: Language, text: bytes, begin: int) -> Iterator[int]:
    """Yield where a member of a language that begins at ``begin`` of a text may end, nearest first."""
    match language:
        case JSONText(machine=machine):
            at: Configuration | None = machine.start
            for end in range(begin, len(text) + 1):
                if at is None:
                    return
                if machine.size(at) == 0:
                    yield end
                at = machine.advance(at, text[end]) if end < len(text) else None
        case str():
            automaton = compile_regex(language)
            state = automaton.start
            for end in range(begin, len(text) + 1):
                if automaton.accepting[state]:
                    yield end
                if end < len(text):
                    state = int(automaton.targets[state, automaton.byte_class[text[end]]])
                if state == DEAD:
                    return
