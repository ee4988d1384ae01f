"""The interface of a machine that reads a text byte by byte and says what it expected where it stops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, final

from .machine_graph import MachineGraph


@final
@dataclass(frozen=True)
class Fault:
    """The reason that no member of the language goes on with a byte.

    Attributes
    ----------
    kind
        The part that refuses: ``lexer``, ``parser``, ``automaton``, ``schema``, ``ban``, ``budget``, ``end``, ``vocabulary``.
    what
        The terminal, rule, place or phrase that refuses.
    because
        The reason, a sentence.
    expected
        The alternatives that could stand there.
    node
        The part and the state of the graph that refuses; ``None`` where there is none.
    """

    kind: str
    what: str
    because: str
    expected: tuple[str, ...] = ()
    node: tuple[str, str] | None = None


@final
@dataclass(frozen=True)
class Spot:
    """The position of a machine after a text: the states of its graph, as ``part`` and ``node`` pairs, and its stack, top first."""

    label: str
    nodes: tuple[tuple[str, str], ...]
    stack: tuple[str, ...]


class ReadingMachine(ABC):
    """A deterministic machine over bytes (grammar-theory.md, sections 3, 5 and 9), with places that can be kept and come back to.

    A place is live if tokens lead from it to the end of a member; :meth:`read` returns live places alone, so the byte at which it
    returns a :class:`Fault` is the first after which no member is left. Where some bytes have no token of their own, a place within
    a token need not be live, so a token that is allowed is read by :meth:`follow`.
    """

    kind: str  # The kind of machine, as a reader knows it
    start: Hashable
    graph: MachineGraph

    @abstractmethod
    def read(self, place: Any, byte: int) -> Any:
        """Return the place after a byte, or the :class:`Fault` of a byte after which no member is left."""

    @abstractmethod
    def end(self, place: Any) -> Fault | None:
        """Return ``None`` where the text may end, else why it may not."""

    @abstractmethod
    def spot(self, place: Any) -> Spot:
        """Return the position of a place in the graph, and its stack."""

    def follow(self, place: Any, token: int, text: bytes) -> Any:
        """Return the place after a live ``token``, which writes ``text``."""
        return self.read_all(place, text)[0]

    def read_all(self, place: Any, text: bytes) -> tuple[Any, int]:
        """Return the place after ``text`` with its length, or the first fault with the offset of the byte at fault."""
        for offset, byte in enumerate(text):
            place = self.read(place, byte)
            if isinstance(place, Fault):
                return place, offset
        return place, len(text)
