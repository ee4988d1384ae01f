"""Places before a value, and in the blanks before it or other tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import final

import numpy as np

from ....automata.automaton import DEAD, ByteAutomaton
from ..formula import Formula
from .blanks import FRESH, Spacing, literal
from .maker import BeforeValue, Maker
from .objects import Members
from .scalars import begun
from .sizes import LITERALS, NEVER
from .states import BEGINNINGS, ByteEdge, State

NUMBERS = b"-0123456789"
"""The bytes that numbers begin with."""


@final
class Blank(State):
    """In blanks, or in another text that comes before a place."""

    def __init__(self, machine: Maker, core: State, blanks: ByteAutomaton, at: int) -> None:
        super().__init__()
        self._machine, self.core, self.blanks, self.at = machine, core, blanks, at

    @cached_property
    def bytes(self) -> Sequence[int] | None:  # type: ignore[override]
        """The bytes that may be allowed."""
        live = np.flatnonzero(self.blanks.targets[self.at, self.blanks.byte_class]).tolist()
        more = self.core.bytes if self.blanks.accepting[self.at] else b""
        return None if more is None else [*live, *more]

    @property
    def sizes(self) -> Sequence[int]:
        return [int(self.blanks.distances[self.at]) + size for size in self.core.sizes]

    def _edge(self, byte: int) -> ByteEdge | None:
        target = int(self.blanks.targets[self.at, self.blanks.byte_class[byte]])
        if target != DEAD:
            return ByteEdge(self._machine.blank(self.core, self.blanks, target))
        return self.core.edge(byte) if self.blanks.accepting[self.at] else None


@final
class Value(BeforeValue):
    """Before a value."""

    def __init__(self, machine: Maker, goals: tuple[Formula, ...], layout: Spacing) -> None:
        super().__init__()
        self._machine, self._goals, self._layout = machine, goals, layout

    @cached_property
    def sizes(self) -> Sequence[int]:
        return [self._machine.sizes.of(goal) for goal in self._goals]

    def _edge(self, byte: int) -> ByteEdge | None:
        machine, kinds = self._machine, self._machine.kinds
        match byte:
            case 0x22:
                sets = [kinds.strings(goal) for goal in self._goals]
                spelled = tuple(
                    begun(strings, ascii=machine.ascii) if machine.sizes.of_text(strings) < NEVER else None
                    for strings in sets
                )
                return ByteEdge(machine.text(spelled)) if any(spelled) else None
            case 0x5B:
                goals = tuple(
                    tuple(shape for shape in kinds.arrays(goal) if machine.sizes.of_array(shape, FRESH) < NEVER)
                    for goal in self._goals
                )
                return ByteEdge(machine.array(goals, self._layout, begun=False)) if any(goals) else None
            case 0x7B:
                members = Members.of(machine, [kinds.objects(goal) for goal in self._goals])
                return ByteEdge(machine.object(members, self._layout)) if any(members.goals) else None
            case 0x74 | 0x66 | 0x6E:
                kind = {0x74: "true", 0x66: "false", 0x6E: "null"}[byte]
                for place, goal in enumerate(self._goals):
                    if kinds.may_be(kind, goal):
                        *rest, last = LITERALS[kind]
                        return ByteEdge(
                            machine.blank(machine.last(last, place, len(self._goals)), literal(bytes(rest[1:])))
                        )
                return None
        return self._number.edge(byte) if byte in NUMBERS else None

    @cached_property
    def _number(self) -> State:
        automata = self._spellings
        return self._machine.number(automata, tuple(automaton.start for automaton in automata))

    @cached_property
    def bytes(self) -> Sequence[int]:  # type: ignore[override]
        """The bytes that values of the right kinds begin with."""
        found = BEGINNINGS
        for name, firsts in (("number", NUMBERS), ("string", b'"'), ("array", b"["), ("object", b"{")):
            if not any(self._machine.kinds.may_be(name, goal) for goal in self._goals):
                found = found.translate(None, firsts)
        return found

    @property
    def _spellings(self) -> tuple[ByteAutomaton, ...]:
        return tuple(self._machine.kinds.spellings(goal) for goal in self._goals)

    def goes_on_behind(self, outcome: int) -> set[int]:
        """Return the bytes that a number may go on with where it may end with an outcome."""
        numbers = self._spellings[outcome]
        ends = numbers.targets[numbers.accepting]
        return {byte for byte in range(256) if ends[:, numbers.byte_class[byte]].any()}
