"""The fewest tokens of a fixed shortest completion."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple, final

from .machine.listed import Listed
from .machine.machine import LIKELY, Machine
from .machine.objects import Key
from .machine.scalars import Text
from .machine.sizes import NEVER
from .machine.stack import Configuration
from .machine.states import State
from .token_forest import TokenForest

LONGEST = 1_000
"""How many bytes of a completion are tiled."""

MOST_KEPT = 100_000
"""Places of which the completion is kept."""


class _Step(NamedTuple):
    """The fewest tokens to the end, and the first byte of the completion and where it leads; ``None`` where it is not looked at."""

    tokens: int
    byte: int = -1
    after: Configuration | None = None


@final
class Tiling:
    """For each place in a text one completion, always the same, and the fewest tokens that write it.

    The next byte of the completion is the first one that lowers the least number of bytes to the end. It depends on the place
    alone, so the completion behind a token of the completion is the rest of it: the fewest tokens of a place are one more than
    those behind the first of them. They are at most as many as bytes, and an upper bound of the tokens that are needed.

    Where the text of a value has to be known, the least number of bytes stands for the fewest tokens, one bound for all texts; and
    so it does more than :data:`LONGEST` bytes before the end.

    Parameters
    ----------
    machine
        The texts.
    forest
        The tokens.
    """

    def __init__(self, machine: Machine, forest: TokenForest) -> None:
        self._machine, self._forest = machine, forest
        self._single = forest.single_bytes
        self._bytes = [byte for byte in LIKELY if byte in self._single]
        self._steps: dict[Configuration, _Step] = {}

    def fewest(self, at: Configuration) -> int:
        """Return the fewest tokens of the completion; :data:`NEVER` where there is none."""
        way = list[Configuration]()
        if len(self._steps) > MOST_KEPT:
            self._steps.clear()
        here: Configuration | None = at
        while here is not None and here not in self._steps:
            way.append(here)
            step = self._steps[here] = self._first(here)
            here = step.after
        for one in reversed(way):
            step = self._steps[one]
            if step.after is not None:
                self._steps[one] = step._replace(tokens=self._fewest(one))
        return self._steps[at].tokens

    def text(self, at: Configuration) -> bytes:
        """Return the completion."""
        text, here = bytearray(), at
        while size := self._machine.size(here):
            step = self._steps.get(here)
            if step is None or step.after is None:
                step = self._next(here, size)
            assert step.after is not None  # some byte always lowers the size
            text.append(step.byte)
            here = step.after
        return bytes(text)

    def _first(self, at: Configuration) -> _Step:
        """Return the first step of the completion, the tokens not counted yet."""
        size = self._machine.size(at)
        if 0 < size <= LONGEST and not _is_known_later(at):
            return self._next(at, size)
        return _Step(size)

    def _next(self, at: Configuration, size: int) -> _Step:
        for byte in self._likely(at.state):
            after = self._machine.advance(at, byte)
            if after is not None and self._machine.size(after) < size:
                return _Step(size, byte, after)
        return _Step(size)

    def _likely(self, state: State) -> Iterable[int]:
        """Return the bytes that may come next, those first that a completion goes on with most often."""
        if state.bytes is not None and state.ends is None:
            return (byte for byte in self._bytes if byte in state.bytes)
        listed = state.spelled if isinstance(state, (Text, Key)) else ()
        on_path = [byte for one in listed if isinstance(one, Listed) and one.beside for byte in one.on_path]
        return chain(self._bytes[:1], (byte for byte in on_path if byte in self._single), self._bytes)

    def _fewest(self, at: Configuration) -> int:
        """Return the fewest tokens, those of all places behind being known."""
        step, node, fewest = self._steps[at], 0, NEVER
        while step.after is not None:
            child = self._forest.children(node).get(step.byte)
            if child is None:
                break
            node, step = child, self._steps[step.after]
            if step.tokens < fewest and self._forest.tokens(node) is not None:
                fewest = step.tokens + 1
        return fewest


def _is_known_later(at: Configuration) -> bool:
    """Return whether states stand for texts that are told apart: of values that must differ, or of names that are counted."""
    state = at.state
    return (at.stack is not None and at.stack.keeps) or (isinstance(state, Key) and state.counts and state.text != b"")
