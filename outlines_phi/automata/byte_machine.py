"""The interface of machines: the texts that are allowed, byte by byte; and machines made of machines."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np

from ..errors import UnsupportedError

Place = TypeVar("Place", bound=Hashable)
Left = TypeVar("Left", bound=Hashable)
Right = TypeVar("Right", bound=Hashable)

UNREACHABLE = np.iinfo(np.int32).max
"""The number of bytes to an end where there is none."""

MOST_PLACES = 20_000
"""The most places that are looked at for a shortest text."""


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
    """A deterministic machine over bytes. A place stands for all texts that lead to it: equal places have one future.

    It has :meth:`step` or :meth:`steps`, and :meth:`ends`; what knows better tells the rest. Live are places of a finite size.

    Special tokens are bytes that no text has (:mod:`outlines_phi.vocabulary.special_tokens`).
    """

    start: Place
    """The place before the first byte."""
    settled: Place | None = None
    """The place where the text has ended, whatever its last token writes behind it; ``None`` for none."""

    def step(self, place: Place, byte: int) -> Place | None:
        """Return the place after a byte; ``None`` where it is not allowed."""
        return self.steps(place, [byte])[0]

    def afresh(self) -> ByteMachine[Place]:
        """Return a machine of the same texts that has made no place yet."""
        return cast(ByteMachine[Place], pickle.loads(pickle.dumps(self)))

    @abstractmethod
    def ends(self, place: Place) -> bool:
        """Return True if the text may end here."""

    def is_live(self, place: Place) -> bool:
        """Return True if some text leads from ``place`` to an end."""
        return self.size(place) < UNREACHABLE

    def shortest(self, place: Place | None = None) -> bytes:
        """Return a shortest text from ``place``, the start by default, to an end; breadth first.

        Raises
        ------
        ValueError
            There is none.
        UnsupportedError
            The nearest :data:`MOST_PLACES` places do not tell.
        """
        end, texts = self.search(self.start if place is None else place)
        if end is None:
            raise ValueError("no text leads to an end")
        return texts[end]

    def search(self, place: Place) -> tuple[Place | None, dict[Place, bytes]]:
        """Return the nearest end, breadth first, ``None`` for none; and the text to each place that was looked at.

        Raises :class:`UnsupportedError` as :meth:`shortest`.
        """
        texts = {place: b""}
        for here in (waiting := list(texts)):  # it grows
            if self.ends(here):
                return here, texts
            if len(texts) > MOST_PLACES:
                raise UnsupportedError(
                    f"Give a smaller language. The {MOST_PLACES:,} places nearest to {self.describe(here)} have no end."
                )
            for byte, after in enumerate(self.steps(here, range(256))):
                if after is not None and after not in texts:
                    texts[after] = texts[here] + bytes([byte])
                    waiting.append(after)
        return None, texts

    def size(self, place: Place) -> int:
        """Return the number of bytes of :meth:`shortest`, or one that no text has where there is none.

        Raises :class:`UnsupportedError` as :meth:`shortest`: a limit of effort is no proof that there is no end.
        """
        end, texts = self.search(place)
        return UNREACHABLE if end is None else len(texts[end])

    def toward_end(self, place: Place) -> int:
        """Return the byte that a shortest text from ``place``, which is no end, goes on with; always the same."""
        return self.shortest(place)[0]

    def completed(self, place: Place) -> bytes:
        """Return the text to an end by :meth:`toward_end`: behind each byte of it, the rest of it is that of the place there."""
        if not self.is_live(place):
            raise ValueError("no text leads to an end")
        text, here = bytearray(), place
        while not self.ends(here):
            text.append(self.toward_end(here))
            after = self.step(here, text[-1])
            assert after is not None
            here = after
        return bytes(text)

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


def closure(starts: Iterable[Place], further: Callable[[Place], Iterable[Place]]) -> list[Place]:
    """Return all that some things lead to, and those themselves, each once: the nearest first."""
    found = dict.fromkeys(starts)
    for one in (waiting := list(found)):  # it grows
        new = [other for other in dict.fromkeys(further(one)) if other not in found]
        waiting += new
        found |= dict.fromkeys(new)
    return waiting


class Both(ByteMachine[tuple[Left, Right]]):
    """The product of two machines: the texts that both allow, with the positions of the left one."""

    def __init__(self, left: ByteMachine[Left], right: ByteMachine[Right]) -> None:
        self.left, self.right = left, right
        self.start = left.start, right.start

    def steps(self, place: tuple[Left, Right], bytes: Sequence[int]) -> list[tuple[Left, Right] | None]:
        pairs = zip(self.left.steps(place[0], bytes), self.right.steps(place[1], bytes), strict=True)
        return [None if left is None or right is None else (left, right) for left, right in pairs]

    def ends(self, place: tuple[Left, Right]) -> bool:
        return self.left.ends(place[0]) and self.right.ends(place[1])

    def position(self, place: tuple[Left, Right]) -> Position:
        return self.left.position(place[0])

    def describe(self, place: tuple[Left, Right]) -> str:
        return f"{self.left.describe(place[0])} and {self.right.describe(place[1])}"


END = -1
"""The place behind the last part."""

PartPlaces = frozenset[tuple[int, Any]]
"""The parts that a text may be in, each with its own place; :data:`END` with ``None`` where the text may end."""

_NOWHERE: PartPlaces = frozenset()


class Joined(ByteMachine[PartPlaces]):
    """A regular expression over machines, as its position automaton (Glushkov 1961) by subsets: sequences, alternatives, repeats.

    A part may end and go on at once, so a place is a set of places in parts.

    Parameters
    ----------
    parts
        The machines.
    first
        The parts that a text may begin with; :data:`END` if it may be empty.
    follow
        The parts that may come after each part; :data:`END` if the text may end there.
    """

    def __init__(
        self, parts: Sequence[ByteMachine[Any]], first: frozenset[int], follow: Sequence[frozenset[int]]
    ) -> None:
        self.parts, self._first, self._follow = tuple(parts), first, tuple(follow)
        self._left = self._least()
        self._begun = tuple(map(self._entered, self._follow))
        self.start = self._entered(first)

    def __reduce__(self) -> tuple[Any, ...]:
        return Joined, (self.parts, self._first, self._follow)  # places belong to the machines that made them

    def steps(self, place: PartPlaces, bytes: Sequence[int]) -> list[PartPlaces | None]:
        found: list[PartPlaces] = [_NOWHERE] * len(bytes)
        for part, here in place:
            after = self.parts[part].steps(here, bytes) if part != END else [None] * len(bytes)
            # Most bytes lead to few places.
            entered = {one: _NOWHERE if one is None else self._within(part, one) for one in set(after)}
            found = [ways | entered[one] if ways else entered[one] for ways, one in zip(found, after, strict=True)]
        return [ways or None for ways in found]

    def _within(self, part: int, place: Any) -> PartPlaces:
        return frozenset([(part, place)]) | (self._begun[part] if self.parts[part].ends(place) else _NOWHERE)

    def ends(self, place: PartPlaces) -> bool:
        return (END, None) in place

    def size(self, place: PartPlaces) -> int:
        return min((size for size, _, _ in self._ways(place)), default=UNREACHABLE)

    def toward_end(self, place: PartPlaces) -> int:
        least = self.size(place)
        return min(self.parts[part].toward_end(here) for size, part, here in self._ways(place) if size == least)

    def shortest(self, place: PartPlaces | None = None) -> bytes:
        return self.completed(self.start if place is None else place)

    def _ways(self, place: PartPlaces) -> Iterator[tuple[int, int, Any]]:
        """Yield the bytes to an end from each place, through the parts behind, with the part and the place in it."""
        for part, here in place:
            if part == END:
                yield 0, part, here
            elif self._left[part] < UNREACHABLE and self.parts[part].is_live(here) and not self.parts[part].ends(here):
                yield self.parts[part].size(here) + self._left[part], part, here

    def describe(self, place: PartPlaces) -> str:
        parts = (
            f"part {part}: {self.parts[part].describe(here)}" if part != END else "the end" for part, here in place
        )
        return "; ".join(sorted(parts))

    def _entered(self, positions: Iterable[int]) -> PartPlaces:
        """Return the places at the beginning of some parts; those that may be empty are passed."""
        passed = lambda part: self._follow[part] if part != END and self.parts[part].accepts(b"") else ()  # noqa: E731
        found = closure(positions, passed)
        return frozenset((part, None if part == END else self.parts[part].start) for part in found)

    def _least(self) -> list[int]:
        """Return the least number of bytes behind each part, by Bellman and Ford's rounds."""
        own = [part.size(part.start) if part.is_live(part.start) else UNREACHABLE for part in self.parts]
        left = [0 if END in after else UNREACHABLE for after in self._follow]
        for _ in self.parts:
            left = [
                min((left[part], *(own[one] + left[one] for one in after if one != END)))
                for part, after in enumerate(self._follow)
            ]
        return left
