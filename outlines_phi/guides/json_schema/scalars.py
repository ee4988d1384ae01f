"""Places within literals, numbers and strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, final

from ...automaton import DEAD, ByteAutomaton
from .quoting import quoted
from .sizes import NEVER
from .states import Edge, State
from .strings import StringSet

if TYPE_CHECKING:
    from .machine import Machine


@final
class Literal(State):
    """Within true, false or null."""

    def __init__(self, machine: Machine, rest: bytes, outcome: int, outcomes: int) -> None:
        super().__init__()
        self._machine = machine
        self._rest, self._outcome, self._outcomes = rest, outcome, outcomes

    @property
    def sizes(self) -> Sequence[int]:
        return [len(self._rest) if i == self._outcome else NEVER for i in range(self._outcomes)]

    def _edge(self, byte: int) -> Edge | None:
        if byte != self._rest[0]:
            return None
        rest = self._rest[1:]
        return Edge(self._machine.literal(rest, self._outcome, self._outcomes)) if rest else Edge(None, self._outcome)


@final
class Number(State):
    """Within a number, or before it."""

    def __init__(self, machine: Machine, automata: tuple[ByteAutomaton, ...], at: tuple[int, ...]) -> None:
        super().__init__()
        self._machine, self._automata, self._at = machine, automata, at

    @property
    def ends(self) -> int | None:
        for place, (automaton, at) in enumerate(zip(self._automata, self._at, strict=True)):
            if automaton.accepting[at]:
                return place
        return None

    @property
    def sizes(self) -> Sequence[int]:
        pairs = zip(self._automata, self._at, strict=True)
        return [min(NEVER, int(automaton.distances[at])) if at != DEAD else NEVER for automaton, at in pairs]

    def _edge(self, byte: int) -> Edge | None:
        pairs = zip(self._automata, self._at, strict=True)
        at = tuple(int(automaton.targets[at, automaton.byte_class[byte]]) for automaton, at in pairs)
        return Edge(self._machine.number(self._automata, at)) if any(at) else None


class Spelled(NamedTuple):
    """How far a string is spelled as a member of a set: a state of an automaton, and how many characters if these are counted."""

    strings: StringSet
    automaton: ByteAutomaton
    at: int
    written: int = 0

    @classmethod
    def of(cls, strings: StringSet, *, ascii: bool) -> Spelled:
        """Return the beginning of a member, after the opening quote. Lengths are counted, and make no states."""
        automaton = quoted(StringSet.all() if strings.lengths else strings, ascii=ascii)
        return cls(strings, automaton, automaton.start)

    def after(self, byte: int) -> Spelled | None:
        """Return where a byte leads; ``None`` where no member begins so."""
        at = int(self.automaton.targets[self.at, self.automaton.byte_class[byte]])
        if at == DEAD:
            return None
        if self.strings.lengths is None:
            return self._replace(at=at)
        # Beyond the last bound characters need not be counted, so free strings have one state.
        low, high = self.strings.lengths[-1]
        count = min(self.written + (at == self.automaton.start), low if high is None else high + 1)
        found = self._replace(at=at, written=count)
        return found if found.size < NEVER else None

    @property
    def size(self) -> int:
        """The least number of bytes to the closing quote, itself included."""
        size = int(self.automaton.distances[self.at])
        if self.strings.lengths is None or not size:
            return size if self.strings.lengths is None or self._fits else NEVER
        # What is begun is one character.
        count = self.written + (self.at != self.automaton.start)
        fits = [max(low - count, 0) for low, high in self.strings.lengths if high is None or count <= high]
        return size + min(fits) if fits else NEVER

    @property
    def ended(self) -> bool:
        """Whether the closing quote was read."""
        return bool(self.automaton.accepting[self.at])

    @property
    def shortest(self) -> bytes:
        """The first of the shortest ways to the closing quote, itself included."""
        text, one = bytearray(), self
        while not one.ended:
            ways = ((byte, one.after(byte)) for byte in range(256))
            byte, one = next((byte, after) for byte, after in ways if after is not None and after.size < one.size)
            text.append(byte)
        return bytes(text)

    @property
    def _fits(self) -> bool:
        return any(
            low <= self.written and (high is None or self.written <= high) for low, high in self.strings.lengths or ()
        )


@final
class Text(State):
    """Within a string."""

    def __init__(self, machine: Machine, spelled: tuple[Spelled | None, ...]) -> None:
        super().__init__()
        self._machine, self.spelled = machine, spelled

    @property
    def sizes(self) -> Sequence[int]:
        return [NEVER if one is None else one.size for one in self.spelled]

    def _edge(self, byte: int) -> Edge | None:
        spelled = tuple(None if one is None else one.after(byte) for one in self.spelled)
        for place, one in enumerate(spelled):
            if one is not None and one.ended:
                return Edge(None, place)
        return Edge(self._machine.text(spelled)) if any(spelled) else None
