"""The layout of JSON: commas and blanks between tokens, container by container."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ....automata.automaton import ByteAutomaton
from ....errors import UnsupportedError
from ....regex.patterns import compile_regex

WHITE = frozenset(b" \t\n\r")

OPEN, COMPACT, SPACED, LINES, PATTERN = "open", "compact", "spaced", "lines", "pattern"

STEPS = (0, 2, 4)
"""The number of blanks that lines may be indented further than those around them; 0 until the first of the document are."""


@lru_cache(maxsize=1024)
def literal(text: bytes) -> ByteAutomaton:
    """Return the automaton of one text; that of the empty one is :data:`NOTHING`."""
    return ByteAutomaton.of_texts([text])


NOTHING = literal(b"")


class Gaps(NamedTuple):
    """The bytes of commas and blanks that come with each item or member, and those of them that the first one goes without."""

    each: int = 1
    first: int = 1

    def of(self, count: int) -> int:
        """Return the bytes that come with ``count`` items or members."""
        return count * self.each - (self.first if count else 0)

    @property
    def begun(self) -> Gaps:
        """The gaps behind an item, where the first one is written."""
        return Gaps(self.each, 0)


BEGUN = Gaps().begun
"""Those of compact arrays and objects, behind an item."""


class Spacing(NamedTuple):
    """The layout of one array or object: the blanks between its tokens.

    By default each chooses for itself: a line end behind its bracket puts each item into a line of its own, indented one step
    further than the line around it; in one line, the first colon or comma has a blank behind it, and then all have, or none.

    Attributes
    ----------
    style
        :data:`OPEN` until it is chosen. :data:`PATTERN` is a regular expression in all places.
    width
        The indentation of the line that items are in.
    step
        One of :data:`STEPS`: that of the document so far.
    tells
        True if the step was not chosen when the container began, so that its outcome tells which one is when it ends.
    pattern
        The regular expression.
    """

    style: str = OPEN
    width: int = 0
    step: int = 0
    tells: bool = False
    pattern: ByteAutomaton = NOTHING

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, pattern: str | None) -> Spacing:
        """Return that of a value alone; ``pattern`` is Outlines' ``whitespace_pattern``, ``None`` the choice of each container.

        Raises
        ------
        UnsupportedError
            The regular expression matches other characters, or nothing at all.
        """
        if pattern is None:
            return cls()
        everywhere = compile_regex(pattern) if isinstance(pattern, str) else None
        if everywhere is None or everywhere.is_empty or not everywhere.used <= WHITE:
            raise UnsupportedError(
                f"Give a whitespace_pattern of blanks, tabs and line ends. {pattern!r} matches other characters, or nothing at all."
            )
        return cls(PATTERN, pattern=everywhere if everywhere.used else NOTHING)

    @property
    def comma(self) -> ByteAutomaton:
        """The blanks behind a comma."""
        if self.style == LINES:
            return literal(b"\n" + self.width * b" ")
        return literal(b" ") if self.style == SPACED else self.pattern

    @property
    def colon(self) -> ByteAutomaton:
        """The blanks behind a colon."""
        return literal(b" ") if self.style in (SPACED, LINES) else self.pattern

    @property
    def closing(self) -> ByteAutomaton:
        """The blanks before the closing bracket, behind those that :attr:`pattern` has before all tokens."""
        return literal(b"\n" + (self.width - self.step) * b" ") if self.style == LINES else NOTHING

    @property
    def before(self) -> int:
        """The fewest bytes of blanks before each token, but for a value."""
        return size(self.pattern)

    def gaps(self, *, begun: bool, members: bool = False) -> Gaps:
        """Return the bytes between items, or ``members``, without the blanks that come where the text stands."""
        comma, colon = 1 + size(self.comma), self.before + size(self.colon)
        return Gaps(comma + self.before + members * colon, 0 if begun else comma)

    @property
    def within(self) -> Spacing:
        """The layout with which the arrays and objects in this one begin."""
        return self if self.style == PATTERN else Spacing(OPEN, self.width, self.step, tells=not self.step)

    def later(self) -> tuple[Spacing, ...]:
        """Return the layouts that are possible behind an item, one for each step that the item may have chosen."""
        if self.step or self.style == PATTERN:
            return (self,)
        return tuple(self._replace(step=step) for step in STEPS)


def size(blanks: ByteAutomaton) -> int:
    """Return the fewest bytes of blanks."""
    return int(blanks.distances[blanks.start])
