"""The lexemes of a guidance grammar: what its parser sees as one piece of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ...automata.automaton import ByteAutomaton
from ..json_schema.reading.template import Template


@final
@dataclass(frozen=True, eq=False)
class Lexeme:
    """A kind of lexeme; two that are written alike are one.

    Attributes
    ----------
    name
        What the grammar calls it, or how it is written.
    pattern
        Its texts, in the dialect of Outlines, with what ends them.
    automaton
        The same, an object of its own.
    lazy
        Whether it ends where it first matches; else it is as long as it can be.
    endings
        What ends it, if that is told: one of these is its end, and no part of its capture.
    hidden
        Whether what ends it is read again as the beginning of what follows, where that must begin so.
    at
        Where it is first written, an offset.
    """

    name: str
    pattern: str
    automaton: ByteAutomaton
    lazy: bool
    endings: tuple[bytes, ...]
    hidden: bool
    at: int

    @property
    def is_nullable(self) -> bool:
        """Whether the empty text is one."""
        return bool(self.automaton.accepting[self.automaton.start])

    def ending(self, text: bytes) -> bytes:
        """Return what ends a text of this kind."""
        return next((ending for ending in self.endings if text.endswith(ending)), b"")


@final
@dataclass(frozen=True, eq=False)
class JSONValue:
    """A JSON value that a schema is true of.

    Attributes
    ----------
    template
        The value.
    blanks
        What may stand between its tokens, as :class:`~outlines_phi.guides.json_schema.machine.machine.Machine` takes it.
    at
        Where it is first written, an offset.
    """

    template: Template
    blanks: str | None
    at: int
