"""Places in arrays and objects, but for their items: the blanks by which each chooses its layout, and the closing bracket."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, final

from ....automata.automaton import ByteAutomaton
from .blanks import COMPACT, LINES, OPEN, SPACED, STEPS, Spacing, literal, size
from .maker import BeforeValue, Maker
from .sizes import NEVER
from .states import ByteEdge, State

SPACE, COMMA, LINE_END = b" ,\n"


class Container(State):
    """After an opening bracket, or where it is ``begun`` behind an item; the first one begins with one of ``firsts``."""

    close: int

    def __init__(
        self, machine: Maker, goals: Sequence[Sequence[Any]], layout: Spacing, *, begun: bool, firsts: bytes
    ) -> None:
        super().__init__()
        self._machine, self._goals, self.layout, self._begun = machine, goals, layout, begun
        lines = layout.style == LINES
        self.bytes = (b"," if begun else firsts) + (b"" if lines else bytes([self.close]))
        if lines if begun else layout.style == OPEN:
            self.bytes += b"\n"

    @abstractmethod
    def _size(self, shape: Any) -> int:
        """Return the size of the least rest of a shape, up to the blanks before the closing bracket, and the bracket."""

    @abstractmethod
    def with_layout(self, layout: Spacing) -> State:
        """Return the same place in another layout."""

    @abstractmethod
    def _onward(self, byte: int) -> ByteEdge | None:
        """Return the transition by the comma, or by a byte of the first item."""

    @cached_property
    def sizes(self) -> Sequence[int]:
        goals = self._goals
        if self.layout.style == LINES and not self._begun:  # in lines there are some
            goals = [[replace(shape, least=max(shape.least, 1)) for shape in goal] for goal in goals]
        return self.by_outcome(
            [min(map(self._size, goal), default=NEVER) + size(self.layout.closing) for goal in goals]
        )

    def by_outcome(self, sizes: list[int]) -> list[int]:
        """Return sizes for each outcome of those for each goal: others are of texts whose lines are indented by another step."""
        behind = (len(STEPS) - 1) * len(sizes) - self._told if self.layout.tells else 0
        return [NEVER] * self._told + sizes + [NEVER] * behind

    @property
    def _told(self) -> int:
        return STEPS.index(self.layout.step) * len(self._goals) if self.layout.tells else 0

    @cached_property
    def closed(self) -> ByteEdge | None:
        """The transition by the closing bracket."""
        for place, goal in enumerate(self._goals):
            if any(shape.closed for shape in goal):
                return ByteEdge(None, self._told + place)
        return None

    def _edge(self, byte: int) -> ByteEdge | None:
        lines = self.layout.style == LINES
        if byte == self.close:
            return None if lines else self.closed
        if byte != LINE_END:
            return self._onward(byte)
        if self._begun and lines and self.closed is not None:
            last = self._machine.last(self.close, self.closed.outcome, len(self.sizes))
            return self._machine.blank(last, self.layout.closing).edge(byte)
        return None if self._begun or self.layout.style != OPEN else self._line_end()

    def _line_end(self) -> ByteEdge | None:
        """Return the transition by a line end behind the opening bracket."""
        known = self.layout.step
        layouts = [self.layout.in_lines(step) for step in STEPS[1:] if known in (0, step)]
        cores = [self.with_layout(layout) for layout in layouts]
        if min(cores[0].sizes) >= NEVER:
            return None
        core = cores[0] if known else Indent(self._machine, *cores)
        return self._machine.blank(core, layouts[0].comma).edge(LINE_END)

    def before(
        self, value: BeforeValue, after: Callable[[Spacing], Sequence[State]], blanks: ByteAutomaton
    ) -> ByteEdge:
        """Return the transition by a colon or comma before a value; the first one chooses whether there are blanks."""
        if self.layout.style == OPEN:
            ways = (after(self.layout._replace(style=style)) for style in (COMPACT, SPACED))
            return ByteEdge(FirstBlank(value, *ways))
        return ByteEdge(self._machine.blank(value, blanks), after=after(self.layout))


@final
class Indent(State):
    """Behind two blanks in the first line that is indented: two more make the other step."""

    def __init__(self, machine: Maker, two: State, four: State) -> None:
        super().__init__()
        self._two, self._four = two, machine.blank(four, literal(b"  "))
        self.bytes = b" " + bytes(two.bytes or b"")

    @property
    def sizes(self) -> Sequence[int]:
        return list(map(min, self._two.sizes, self._four.sizes))

    def _edge(self, byte: int) -> ByteEdge | None:
        return (self._four if byte == SPACE else self._two).edge(byte)


@final
class FirstBlank(State):
    """Before a value behind the first colon or comma of an array or object in one line, which a blank makes spaced."""

    def __init__(self, value: BeforeValue, compact: Sequence[State], spaced: Sequence[State]) -> None:
        super().__init__()
        self._value, self._compact, self._spaced = value, compact, spaced
        self.bytes = bytes(value.bytes) + b" "

    @property
    def sizes(self) -> Sequence[int]:
        return joined(self._value, self._compact)

    def _edge(self, byte: int) -> ByteEdge | None:
        if byte == SPACE:
            return ByteEdge(self._value, after=self._spaced)
        edge = self._value.edge(byte)
        return None if edge is None else edge._replace(after=self._compact)


def joined(value: State, after: Sequence[State]) -> list[int]:
    """Return the sizes of a value and what comes after it."""
    ways = [(size, below.sizes) for size, below in zip(value.sizes, after, strict=False)]
    return [min(size + more[i] for size, more in ways) for i in range(len(ways[0][1]))]
