"""What the places of a JSON value ask of the machine that they belong to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from ....automata.automaton import ByteAutomaton
from ..formula import Formula
from ..kinds import Kinds
from ..shapes import ArrayShape
from .blanks import Spacing
from .seen import NOTHING, Seen
from .sizes import Sizes
from .states import State

Kept = TypeVar("Kept")


class BeforeValue(State):
    """Before a value."""

    bytes: Sequence[int] = ()
    """The bytes that the value may begin with."""

    @abstractmethod
    def goes_on_behind(self, outcome: int) -> set[int]:
        """Return the bytes that a value with this outcome may go on with, where it may have ended."""


class Maker(ABC):
    """Makes the states that a byte leads to, each one once.

    Attributes
    ----------
    kinds
        What formulas say of the values of one kind.
    sizes
        The least numbers of bytes of values.
    layout
        What may stand between the tokens of a value that begins.
    ascii
        Whether strings are spelled in ASCII alone.
    """

    kinds: Kinds
    sizes: Sizes
    layout: Spacing
    ascii: bool

    @abstractmethod
    def places(self, name: str) -> frozenset[str]:
        """Return what puts members of a name in an order with others: names that share one come in their order."""

    @abstractmethod
    def cells(self, asked: Iterable[tuple[int, Formula, Any]]) -> list[tuple[Formula, list[tuple[int, Any]]]]:
        """Return formulas of which one at most is true of a value, each with what then holds: places, and what comes with them."""

    @abstractmethod
    def between(self, positions: frozenset[tuple[int, int]]) -> Any:
        """Return the state between values."""

    @abstractmethod
    def kept(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """Make a part of the machine once under a key."""

    @abstractmethod
    def value(self, goals: tuple[Formula, ...], layout: Spacing) -> BeforeValue:
        """Return the state before a value; ``layout`` is that of an array or object that it may be."""

    @abstractmethod
    def blank(self, core: State, blanks: ByteAutomaton, at: int | None = None) -> State:
        """Return the state before blanks that ``core`` comes after."""

    @abstractmethod
    def text(self, spelled: tuple[Any, ...]) -> State:
        """Return the state within a string."""

    @abstractmethod
    def number(self, automata: tuple[ByteAutomaton, ...], at: tuple[int, ...]) -> State:
        """Return the state within a number, or before it."""

    @abstractmethod
    def last(self, byte: int, outcome: int, outcomes: int) -> State:
        """Return the state before the byte that ends a value."""

    @abstractmethod
    def array(
        self, goals: tuple[tuple[ArrayShape, ...], ...], layout: Spacing, *, begun: bool, seen: Seen = NOTHING
    ) -> State:
        """Return the state after the opening bracket, or after an item, and before blanks."""

    @abstractmethod
    def object(self, members: Any, layout: Spacing) -> State:
        """Return the state after the opening brace, or after a member, and before blanks."""

    @abstractmethod
    def key(self, members: Any, text: bytes | None, names: tuple[Any, ...]) -> State:
        """Return the state within a name."""

    @abstractmethod
    def colon(self, members: Any, name: str) -> State:
        """Return the state after a name."""
