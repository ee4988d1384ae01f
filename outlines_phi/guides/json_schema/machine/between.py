"""Places before JSON values, and between them: where a text is read as a regular expression has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import count
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ....automata.automaton import DEAD, ByteAutomaton, joint_classes
from ....automata.byte_machine import closure
from ....errors import UnsupportedError
from ..formula import Formula
from ..reading.schema import END, Piece, Template
from .blanks import Spacing, literal
from .containers import Array, Members, Object
from .scalars import Number, Text, begun
from .seen import NOTHING
from .sizes import LITERALS, NEVER, Sizes
from .states import BEGINNINGS, BeforeValue, ByteEdge, Last, Maker, State

NUMBERS = b"-0123456789"
"""The bytes that numbers begin with."""

_KINDS = {
    **dict.fromkeys(NUMBERS, ("number", "plain number")),
    **{first: (kind,) for kind, (first, *_) in {**LITERALS, "string": b'"', "array": b"[", "object": b"{"}.items()},
}
"""The kinds of values that begin with each byte."""


@final
class Value(BeforeValue):
    """Before a value."""

    def __init__(self, machine: Maker, goals: tuple[Formula, ...], layout: Spacing) -> None:
        super().__init__(machine)
        self._goals, self._layout = goals, layout

    @cached_property
    def sizes(self) -> Sequence[int]:
        return [self._machine.sizes.of(goal) for goal in self._goals]

    def _edge(self, byte: int) -> ByteEdge | None:
        machine, kinds = self._machine, self._machine.kinds
        match byte:
            case 0x22:
                sets = [kinds.strings(goal) for goal in self._goals]
                possible = machine.sizes.possible_text
                spelled = tuple(begun(one, ascii=machine.ascii) if possible(one) else None for one in sets)
                return ByteEdge(machine.made(Text, spelled)) if any(spelled) else None
            case 0x5B:
                goals = tuple(tuple(filter(machine.sizes.possible_array, kinds.arrays(goal))) for goal in self._goals)
                return ByteEdge(machine.spaced(Array, goals, self._layout, False, NOTHING)) if any(goals) else None
            case 0x7B:
                members = Members.of(machine, [kinds.objects(goal) for goal in self._goals])
                return ByteEdge(machine.spaced(Object, members, self._layout)) if any(members.goals) else None
            case 0x74 | 0x66 | 0x6E:
                kind = {0x74: "true", 0x66: "false", 0x6E: "null"}[byte]
                for place, goal in enumerate(self._goals):
                    if kind in kinds.kinds_of(goal):
                        *rest, last = LITERALS[kind]
                        core = machine.made(Last, last, place, len(self._goals))
                        return ByteEdge(machine.blank(core, literal(bytes(rest[1:]))))
                return None
        return self._number.edge(byte) if byte in NUMBERS else None

    @cached_property
    def _number(self) -> State:
        automata = self._spellings
        return self._machine.made(Number, automata, tuple(automaton.start for automaton in automata))

    @cached_property
    def bytes(self) -> Sequence[int]:  # type: ignore[override]
        """The bytes that values of the right kinds begin with."""
        kinds = frozenset[str]().union(*map(self._machine.kinds.kinds_of, self._goals))
        return [byte for byte in BEGINNINGS if not kinds.isdisjoint(_KINDS[byte])]

    @property
    def _spellings(self) -> tuple[ByteAutomaton, ...]:
        return tuple(self._machine.kinds.spellings(goal) for goal in self._goals)

    def goes_on_behind(self, outcome: int) -> set[int]:
        """Return the bytes that a number may go on with where it may end with an outcome."""
        numbers = self._spellings[outcome]
        ends = numbers.targets[numbers.accepting]
        return {byte for byte in range(256) if ends[:, numbers.byte_class[byte]].any()}


Position: TypeAlias = tuple[int, int]
"""A piece of the template, and a state of its automaton; 0 before a value."""

MOST_PLACES = 20_000
"""Places between values."""


@final
class Between(State):
    """Between values: the positions of a template that the text may be at.

    A byte goes on in all of them, or begins a value that some of them are before. No byte does both, which
    :func:`refuse_clashes` sees to: it would take two stacks.
    """

    def __init__(self, machine: Maker, places: Places, positions: frozenset[Position]) -> None:
        super().__init__(machine)
        self.places, self.positions = places, positions
        self.is_end = any(place == END for place, _ in positions)  # the text may end here
        pieces = ((place, places.pieces[place]) for place, _ in sorted(positions))
        self._asked = [(0, piece, place) for place, piece in pieces if isinstance(piece, Formula)]
        self.in_value, self.between = bool(self._asked), self.is_end and machine.blocks

    @cached_property
    def sizes(self) -> Sequence[int]:
        return [min(map(self.places.size, self.positions), default=NEVER)]

    @cached_property
    def bytes(self) -> Sequence[int] | None:  # type: ignore[override]
        """The bytes that the value begins with, where nothing but a value may come."""
        if len(self._asked) + self.is_end < len(self.positions):
            return None
        return () if self.values is None else sorted(self.values[0].bytes)

    def _edge(self, byte: int) -> ByteEdge | None:
        after = self.after(byte)
        if after is not None:
            return ByteEdge(after)
        if self.values is None:
            return None
        value, follow = self.values
        edge = value.edge(byte)
        return None if edge is None else edge._replace(after=follow)

    def after(self, byte: int) -> Between | None:
        """Return the successor by a byte that is part of no value."""
        positions = self.places.after(self.positions, byte)
        return self._machine.made(Between, self.places, positions) if positions else None

    @cached_property
    def values(self) -> tuple[BeforeValue, Sequence[Between]] | None:
        """The state before the value that may come, and those after it."""
        machine, places = self._machine, self.places
        cells = machine.cells(self._asked)
        if not cells:
            return None
        follow = tuple(
            machine.made(Between, places, places.entered(later))
            for later in ({after for _, place in held for after in places.follow[place]} for _, held in cells)
        )
        return machine.value(tuple(cell for cell, _ in cells), machine.layout), follow


@final
class Places:
    """The positions of a template, and the least number of bytes from each to the end, which is one more piece: the empty text."""

    def __init__(self, template: Template, sizes: Sizes) -> None:
        self._sizes = sizes
        self.pieces: tuple[Piece, ...] = (*template.pieces, literal(b""))
        self.follow = (*template.follow, frozenset[int]())
        # Whether there is a way to the end is known long before its size.
        self._ways = self._solved(lambda piece: 0 if sizes.possible(piece) else NEVER)

    def _solved(self, size_of_value: Callable[[Formula], int]) -> tuple[list[int], list[int]]:
        """Return the least number of bytes of each piece, and of what comes after it."""
        values = [
            size_of_value(piece) if isinstance(piece, Formula) else piece.size(piece.start) for piece in self.pieces
        ]
        behind, changed = [NEVER] * (len(values) - 1) + [0], True
        while changed:
            ahead = [min(NEVER, value + more) for value, more in zip(values, behind, strict=True)]
            found = [min((ahead[place] for place in follow), default=NEVER) for follow in self.follow[:END]]
            changed, behind = found != behind[:END], [*found, 0]
        return values, behind

    @cached_property
    def _least(self) -> tuple[list[int], list[int]]:
        return self._solved(self._sizes.of)

    def size(self, position: Position) -> int:
        """Return the least number of bytes from a position to the end."""
        return self._size(position, *self._least)

    def _leads(self, position: Position) -> bool:
        """Return True if there is a way from a position to the end."""
        return self._size(position, *self._ways) < NEVER

    def _size(self, position: Position, values: Sequence[int], behind: Sequence[int]) -> int:
        place, at = position
        piece = self.pieces[place]
        return min(NEVER, (values[place] if isinstance(piece, Formula) else piece.size(at)) + behind[place])

    def entered(self, pieces: Iterable[int]) -> frozenset[Position]:
        """Return the positions before some pieces, without those that lead to no end; pieces that may be empty are passed."""
        return frozenset(closure(self._begun(pieces), lambda position: self._begun(self._passed(position))))

    def _begun(self, pieces: Iterable[int]) -> Iterator[Position]:
        return filter(self._leads, ((place, getattr(self.pieces[place], "start", 0)) for place in pieces))

    @cached_property
    def _told_apart(self) -> NDArray[np.int64]:
        """The bytes that values begin with, and one of each class of others that act alike between values."""
        begins = np.where(np.isin(np.arange(256), list(BEGINNINGS)), np.arange(256), 0)
        texts = (piece.byte_class for piece in self.pieces if not isinstance(piece, Formula))
        return joint_classes([begins, *texts])[1]

    def read(self, positions: Iterable[Position]) -> list[int]:
        """Return the bytes that go on in the texts of some positions, one of each class of those that act alike."""
        texts: Iterator[tuple[Any, int]] = ((self.pieces[place], at) for place, at in positions)
        after = [text.steps(at, self._told_apart) for text, at in texts if not isinstance(text, Formula)]
        return self._told_apart[np.array(after, dtype=bool).any(axis=0)].tolist() if after else []

    def after(self, positions: Iterable[Position], byte: int) -> frozenset[Position]:
        """Return the successors by a byte that is part of no value."""
        found: set[Position] = set()
        for place, at in positions:
            piece = self.pieces[place]
            moved = place, DEAD if isinstance(piece, Formula) else piece.step(at, byte) or DEAD
            if moved[1] != DEAD and self._leads(moved):
                found |= {moved, *(self._behind[place] if self._passed(moved) else ())}
        return frozenset(found)

    @cached_property
    def _behind(self) -> list[frozenset[Position]]:
        """The positions behind each piece."""
        return list(map(self.entered, self.follow))

    def _passed(self, position: Position) -> Iterable[int]:
        """Return the pieces that may come after a piece that may end here."""
        piece = self.pieces[position[0]]
        return () if isinstance(piece, Formula) or piece.size(position[1]) else self.follow[position[0]]


def refuse_clashes(start: Between) -> None:
    """Refuse a template where a byte both goes on between values and begins a value, or belongs to one that has ended.

    Raises
    ------
    UnsupportedError
        There is such a byte; or there are more places than can be looked at.
    """
    looked = count()

    def further(place: Between) -> list[Between]:
        if next(looked) == MOST_PLACES:
            raise UnsupportedError(
                f"Write a simpler regular expression around the JSON values. It has more than {MOST_PLACES:,} states."
            )
        read = place.places.read(place.positions)
        after = {byte: behind for byte in read if (behind := place.after(byte)) is not None}
        if place.values is None:
            return list(after.values())
        value, follow = place.values
        if clashes := [byte for byte in after if value.edge(byte) is not None]:
            raise _clash(clashes[0], "a JSON value begins with, and so does what may stand there instead")
        for outcome, behind in enumerate(follow):
            if clashes := [byte for byte in sorted(value.goes_on_behind(outcome)) if behind.edge(byte) is not None]:
                raise _clash(clashes[0], "a number may go on with, and so may what comes after it")
        return [*after.values(), *follow]

    closure([start], further)


def _clash(byte: int, why: str) -> UnsupportedError:
    return UnsupportedError(
        "Write all alternatives of the output type as one JSON schema (such as a pydantic RootModel of their Union), or put a "
        f"text between its parts that tells them apart. {bytes([byte])!r} is what {why}."
    )
