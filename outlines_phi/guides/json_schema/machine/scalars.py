"""Places within numbers and strings, and before the end of a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, final

from ....automata.automaton import DEAD, ByteAutomaton
from ....regex.composed import Composed
from ..strings.quoting import composed as composed_of
from ..strings.quoting import free
from ..strings.string_set import Interval, StringSet
from .listed import Listed, Words
from .maker import Maker
from .sizes import NEVER
from .states import ByteEdge, State


@final
class Last(State):
    """Before the byte that ends a value."""

    def __init__(self, byte: int, outcome: int, outcomes: int) -> None:
        super().__init__()
        self.bytes, self._outcome, self._outcomes = bytes([byte]), outcome, outcomes

    @property
    def sizes(self) -> Sequence[int]:
        return [1 if i == self._outcome else NEVER for i in range(self._outcomes)]

    def _edge(self, byte: int) -> ByteEdge | None:
        return ByteEdge(None, self._outcome) if byte in (self.bytes or b"") else None


@final
class Number(State):
    """Within a number, or before it."""

    bytes = b"-0123456789.eE+"

    def __init__(self, machine: Maker, automata: tuple[ByteAutomaton, ...], at: tuple[int, ...]) -> None:
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

    def _edge(self, byte: int) -> ByteEdge | None:
        pairs = zip(self._automata, self._at, strict=True)
        at = tuple(automaton.step(at, byte) for automaton, at in pairs)
        return ByteEdge(self._machine.number(self._automata, at)) if any(at) else None


class OfLength(NamedTuple):
    """How far a string is spelled of which the length alone matters.

    Attributes
    ----------
    lengths
        The lengths that it may have.
    automaton, state
        The automaton of all spellings, and its state.
    written
        How many characters are spelled, as far as that matters.
    """

    lengths: tuple[Interval, ...]
    automaton: ByteAutomaton
    state: int
    written: int = 0

    def after(self, byte: int) -> OfLength | None:
        """Return where a byte leads; ``None`` where no member begins so."""
        state = self.automaton.step(self.state, byte)
        return None if state == DEAD else self.moved(state, int(state == self.automaton.start))

    def moved(self, state: int, characters: int) -> OfLength | None:
        """Return where bytes lead that complete so many characters; ``None`` where no member begins so."""
        # Beyond the last bound characters need not be counted, so free strings have one state.
        low, high = self.lengths[-1]
        count = min(self.written + characters, low if high is None else high + 1)
        found = OfLength(self.lengths, self.automaton, state, count)
        return found if found.size < NEVER else None

    def closes(self, characters: int) -> bool:
        """Whether the string may end after so many more characters."""
        written = self.written + characters
        return any(low <= written and (high is None or written <= high) for low, high in self.lengths)

    @property
    def counts(self) -> bool:
        """Whether characters still matter."""
        return len(self.lengths) > 1 or self.lengths[0][1] is not None or self.written < self.lengths[0][0]

    @property
    def size(self) -> int:
        """The least number of bytes to the closing quote, itself included."""
        size = self.automaton.size(self.state)
        if not size:
            return 0 if self.closes(0) else NEVER
        # What is begun is one character.
        count = self.written + (self.state != self.automaton.start)
        fits = [max(low - count, 0) for low, high in self.lengths if high is None or count <= high]
        return size + min(fits) if fits else NEVER

    @property
    def ended(self) -> bool:
        """Whether the closing quote was read."""
        return self.automaton.size(self.state) == 0


class Walked(NamedTuple):
    """How far a string is spelled as a member of a regular set: a state of its spellings."""

    automaton: Composed
    state: int

    def after(self, byte: int) -> Walked | None:
        """Return where a byte leads; ``None`` where no member begins so."""
        state = self.automaton.step(self.state, byte)
        return None if state == DEAD else Walked(self.automaton, state)

    @property
    def size(self) -> int:
        """The least number of bytes to the closing quote, itself included."""
        return self.automaton.size(self.state)

    @property
    def ended(self) -> bool:
        """Whether the closing quote was read."""
        return self.automaton.size(self.state) == 0


Spelled: TypeAlias = OfLength | Listed | Walked
"""How far a string is spelled as a member of a set."""


def begun(strings: StringSet, *, ascii: bool) -> Spelled:
    """Return the beginning of a member of a set, after the opening quote."""
    if strings.values is not None:
        return Words.of(strings, ascii=ascii).begun()
    if strings.lengths is not None:
        automaton = free(ascii=ascii)
        return OfLength(strings.lengths, automaton, automaton.start)
    composed = composed_of(strings, ascii=ascii)
    return Walked(composed, composed.start)


@final
class Text(State):
    """Within a string."""

    def __init__(self, machine: Maker, spelled: tuple[Spelled | None, ...]) -> None:
        super().__init__()
        self._machine, self.spelled = machine, spelled

    @property
    def sizes(self) -> Sequence[int]:
        return [NEVER if one is None else one.size for one in self.spelled]

    def closed(self, place: int) -> ByteEdge:
        """Return where the closing quote of a member of one of the sets leads."""
        return ByteEdge(None, place)

    def later(self, spelled: tuple[Spelled | None, ...]) -> State | None:
        """Return the state in which the sets are spelled further, those that are not ``None``."""
        return self._machine.text(spelled) if any(spelled) else None

    def _edge(self, byte: int) -> ByteEdge | None:
        spelled = tuple(None if one is None else one.after(byte) for one in self.spelled)
        for place, one in enumerate(spelled):
            if one is not None and one.ended:
                return self.closed(place)
        later = self.later(spelled)
        return None if later is None else ByteEdge(later)
