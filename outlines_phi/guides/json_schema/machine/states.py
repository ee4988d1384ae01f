"""Places within a JSON value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

WHITE = frozenset(b" \t\n\r")

BEGINNINGS = b'"[{tfn-0123456789'
"""The bytes that values begin with."""


class ByteEdge(NamedTuple):
    """Where a byte leads: to a state, or out of the value with an outcome; ``after`` is put on the stack before."""

    target: State | None
    outcome: int = 0
    after: Sequence[State] | None = None


class State(ABC):
    """A place within a value, whatever is around it."""

    bytes: Sequence[int] | None = None
    """The bytes that may be allowed; ``None`` for any."""

    def __init__(self) -> None:
        self._edges: dict[int, ByteEdge | None] = {}

    def edge(self, byte: int) -> ByteEdge | None:
        """Return where a byte leads; ``None`` where it is not allowed."""
        if byte not in self._edges:
            self._edges[byte] = self._edge(byte)
        return self._edges[byte]

    @property
    def ends(self) -> int | None:
        """The outcome with which the value may end here, without a byte that says so."""
        return None

    @property
    @abstractmethod
    def sizes(self) -> Sequence[int]:
        """The least number of bytes to the end of the value, with each outcome."""

    @abstractmethod
    def _edge(self, byte: int) -> ByteEdge | None: ...


@final
class Pending(State):
    """After a value that has to be known: what comes then depends on how it was written.

    Parameters
    ----------
    sizes
        Upper bounds of the sizes there.
    then
        What returns the state, from the text of the value with the byte that led to it.
    """

    sizes: Sequence[int] = ()

    def __init__(self, sizes: Sequence[int], then: Callable[[bytes], State]) -> None:
        super().__init__()
        self.sizes, self.then = sizes, then

    def _edge(self, byte: int) -> ByteEdge | None:
        raise AssertionError("the value is known before a byte is read")
