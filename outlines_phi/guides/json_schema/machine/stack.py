"""What comes after the values that are being read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, final

from .sizes import NEVER
from .states import Pending, State


@final
class Frame:
    """The states that come after each outcome of the value that is being read, and the stack of the value around it.

    Equal stacks of one machine are one object, however deep they are, so they are compared and hashed by identity.

    Attributes
    ----------
    keeps
        Whether the text is kept: that of this value, or of one around it, has to be known.
    start
        Where this value begins in the text that is kept.
    rests
        The least number of bytes to the end behind the value, by its outcome, as far as it was asked for.
    """

    __slots__ = ("after", "below", "deeper", "keeps", "rests", "start")

    def __init__(self, after: Sequence[State], below: Stack, start: int) -> None:
        self.after, self.below, self.start = after, below, start
        self.keeps: bool = (below is not None and below.keeps) or any(isinstance(state, Pending) for state in after)
        self.deeper: dict[tuple[Sequence[State], int], Frame] = {}
        self.rests: dict[int, int] = {}

    def rest(self, outcome: int) -> int:
        """Return the least number of bytes to the end behind the value with an outcome."""
        waiting: list[tuple[Frame, int]] = [(self, outcome)]
        while waiting:
            frame, one = waiting[-1]
            sizes = frame.after[one].sizes
            below = frame.below
            ways = [place for place, size in enumerate(sizes) if size < NEVER]
            unknown = [place for place in ways if below is not None and place not in below.rests]
            if below is not None and unknown:
                waiting += ((below, place) for place in unknown)
                continue
            rests = {0: 0} if below is None else below.rests
            frame.rests[one] = min((sizes[place] + rests[place] for place in ways), default=NEVER)
            waiting.pop()
        return self.rests[outcome]

    def left(self, outcome: int, text: bytes) -> Configuration:
        """Return where the end of the value leads; ``text`` is what is kept."""
        state = self.after[outcome]
        if isinstance(state, Pending):
            state = state.then(text[self.start :])
        return Configuration(state, self.below, text if self.below is not None and self.below.keeps else b"")


Stack: TypeAlias = Frame | None


class Configuration(NamedTuple):
    """Where a text stands; ``text`` is its end as far as it has to be known."""

    state: State
    stack: Stack
    text: bytes = b""
