"""What may stand between the tokens of JSON."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ....automata.automaton import ByteAutomaton
from ....errors import UnsupportedError
from ...regex import compile_regex
from .states import WHITE

NOTHING, BLANK, LINE = "", " ?", r"( |\n {0,64})?"


class Blanks(NamedTuple):
    """What may stand between the tokens of JSON, by the place.

    Attributes
    ----------
    within
        Behind an opening bracket, behind a comma, and before a closing bracket.
    before
        Before a comma, and before a colon.
    behind
        Behind a colon.
    """

    within: ByteAutomaton
    before: ByteAutomaton
    behind: ByteAutomaton

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, pattern: str | None) -> Blanks:
        """Return the blanks that a regular expression matches, in every place: Outlines' ``whitespace_pattern``.

        ``None`` stands for what writers of JSON put: a blank behind a colon, a blank or a new line and an indentation within
        brackets, or nothing. So compact, spaced and indented texts are read, and no text is blanks for ever.

        Raises
        ------
        UnsupportedError
            The regular expression matches other characters, or nothing at all.
        """
        if pattern is None:
            return cls(*map(compile_regex, (LINE, NOTHING, BLANK)))
        everywhere = compile_regex(pattern) if isinstance(pattern, str) else None
        if everywhere is None or everywhere.is_empty or not everywhere.used <= WHITE:
            raise UnsupportedError(
                f"Give a whitespace_pattern of blanks, tabs and line ends. {pattern!r} matches other characters, or nothing at all."
            )
        return cls(everywhere, everywhere, everywhere)
