"""The interface of machines: the texts that are allowed, byte by byte, and the product of two of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from enum import Enum
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from ..errors import UnsupportedError

Place = TypeVar("Place", bound=Hashable)
Left = TypeVar("Left", bound=Hashable)
Right = TypeVar("Right", bound=Hashable)

MOST_PLACES = 20_000
"""The most places that are looked at for a shortest text."""


class Symbol(Enum):
    """A symbol that is no byte: a special token of the vocabulary writes it."""

    END = "end"
    """The end of sequence."""


class Position(NamedTuple):
    """The position of a place among the blocks of a text: members of objects, items of arrays, named groups.

    A byte that makes ``block`` larger introduces a block: it counts them in finite machines; in others it is 1 right before a block
    and 0 elsewhere. ``inside`` is True where a value comes next or is being written, ``between`` behind a block and its separator
    from the next one.
    """

    block: int = 0
    inside: bool = False
    between: bool = False


class ByteMachine(ABC, Generic[Place]):
    """A deterministic machine over bytes. A place stands for all texts that lead to it: equal places have one future."""

    start: Place
    """The place before the first byte."""
    ended: ClassVar[Any] = Symbol.END
    """The place behind the end of sequence, from which nothing leads on."""

    @abstractmethod
    def step(self, place: Place, byte: int) -> Place | None:
        """Return the place after a byte; ``None`` where it is not allowed."""

    @abstractmethod
    def ends(self, place: Place) -> bool:
        """Return True if the text may end here."""

    def is_live(self, place: Place) -> bool:
        """Return True if some text leads from ``place`` to an end."""
        try:
            self.shortest(place)
        except ValueError:
            return False
        return True

    def shortest(self, place: Place | None = None) -> bytes:
        """Return a shortest text from ``place``, the start by default, to an end; breadth first.

        Raises
        ------
        ValueError
            There is none.
        UnsupportedError
            The nearest :data:`MOST_PLACES` places do not tell.
        """
        texts = {self.start if place is None else place: b""}
        for here in (waiting := list(texts)):  # it grows
            if self.ends(here):
                return texts[here]
            if len(texts) > MOST_PLACES:
                raise UnsupportedError(
                    f"Give a smaller language. The {MOST_PLACES:,} places nearest to {self.describe(here)} have no end."
                )
            for byte, after in enumerate(self.steps(here, range(256))):
                if after is not None and after not in texts:
                    texts[after] = texts[here] + bytes([byte])
                    waiting.append(after)
        raise ValueError("no text leads to an end")

    def step_symbol(self, place: Place, symbol: Symbol) -> Place | None:
        """Return the place after a special token; ``None`` where it is not allowed."""
        return self.ended if symbol is Symbol.END and self.ends(place) else None

    def steps(self, place: Place, bytes: Sequence[int]) -> list[Place | None]:
        """Return the place after each of some bytes."""
        return [self.step(place, byte) for byte in bytes]

    def read(self, text: bytes, place: Place | None = None) -> Place | None:
        """Return the place after a text, from the start by default; ``None`` where it is not allowed."""
        here = self.start if place is None else place
        for byte in text:
            after = self.step(here, byte)
            if after is None:
                return None
            here = after
        return here

    def accepts(self, text: bytes) -> bool:
        """Return True if ``text`` is a member."""
        place = self.read(text)
        return place is not None and self.ends(place)

    def prefixes(self, text: bytes, begin: int = 0) -> Iterator[int]:
        """Yield the ends of the members that begin at a byte of ``text``, nearest first."""
        place = self.start
        for end in range(begin, len(text) + 1):
            if self.ends(place):
                yield end
            after = self.step(place, text[end]) if end < len(text) else None
            if after is None:
                return
            place = after

    def position(self, place: Place) -> Position:
        """Return the position among the blocks of a text; the same for all places of texts without blocks."""
        return Position()

    def describe(self, place: Place) -> str:
        """Return a debugging picture of a place."""
        return str(place)


class Both(ByteMachine[tuple[Left, Right]]):
    """The product of two machines: the texts that both allow, with the positions of the left one."""

    def __init__(self, left: ByteMachine[Left], right: ByteMachine[Right]) -> None:
        self.left, self.right = left, right
        self.start = left.start, right.start

    def step(self, place: tuple[Left, Right], byte: int) -> tuple[Left, Right] | None:
        return self.steps(place, [byte])[0]

    def steps(self, place: tuple[Left, Right], bytes: Sequence[int]) -> list[tuple[Left, Right] | None]:
        pairs = zip(self.left.steps(place[0], bytes), self.right.steps(place[1], bytes), strict=True)
        return [None if left is None or right is None else (left, right) for left, right in pairs]

    def ends(self, place: tuple[Left, Right]) -> bool:
        return self.left.ends(place[0]) and self.right.ends(place[1])

    def position(self, place: tuple[Left, Right]) -> Position:
        return self.left.position(place[0])

    def describe(self, place: tuple[Left, Right]) -> str:
        return f"{self.left.describe(place[0])} and {self.right.describe(place[1])}"
