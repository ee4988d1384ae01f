"""Places within a JSON value, what makes them, and the stack of what comes after the values around them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar, cast, final

from ....automata.automaton import ByteAutomaton
from ..formula import Formula, both, but_not
from ..kinds import Kinds, common, tags_of
from .blanks import Spacing
from .sizes import NEVER, Sizes

BEGINNINGS = b'"[{tfn-0123456789'
"""The bytes that values begin with."""


Kept = TypeVar("Kept")
AState = TypeVar("AState", bound="State")
Parts = ParamSpec("Parts")


class ByteEdge(NamedTuple):
    """The edge of a byte: to a state, or out of the value with an outcome; ``after`` is put on the stack before."""

    target: State | None
    outcome: int = 0
    after: Sequence[State] | None = None


class State(ABC):
    """A place within a value, whatever is around it."""

    bytes: Sequence[int] | None = None
    """The bytes that may be allowed; ``None`` for any."""
    in_value: bool = True
    """True if a value comes next or is being written, which holds no others."""
    between: bool = False
    """True if this is behind a value and its separator from the next one."""

    def __init__(self, machine: Maker) -> None:
        self._machine = machine
        self._edges: dict[int, ByteEdge | None] = {}

    def edge(self, byte: int) -> ByteEdge | None:
        """Return the edge of a byte; ``None`` where it is not allowed."""
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

    Its sizes are upper bounds; ``then`` returns the state, from the text of the value with the byte that led to it.
    """

    sizes: Sequence[int] = ()

    def __init__(self, machine: Maker, sizes: Sequence[int], then: Callable[[bytes], State]) -> None:
        super().__init__(machine)
        self.sizes, self.then = sizes, then

    def _edge(self, byte: int) -> ByteEdge | None:
        raise AssertionError("the value is known before a byte is read")


@final
class LateStates(Sequence[State]):
    """The states behind a value, by its outcome, none of them pending; each is made when it is asked for."""

    def __init__(self, count: int, make: Callable[[int], State]) -> None:
        self._states: list[State | None] = [None] * count
        self._make = make

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, outcome: Any) -> Any:
        found = self._states[outcome]
        if found is None:
            found = self._states[outcome] = self._make(outcome)
        return found


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
        The truth sets of formulas, kind by kind.
    sizes
        The least numbers of bytes of values.
    layout
        The blanks between the tokens of a value that begins.
    ascii
        True if strings are spelled in ASCII alone.
    blocks
        True if there may be arrays or objects.
    """

    kinds: Kinds
    sizes: Sizes
    layout: Spacing
    ascii: bool
    blocks: bool

    def __init__(self) -> None:
        self._kept: dict[Hashable, Any] = {}

    @abstractmethod
    def places(self, name: str) -> frozenset[str]:
        """Return the keys that order the members of a name among others: names that share one come in their order."""

    @abstractmethod
    def value(self, goals: tuple[Formula, ...], layout: Spacing) -> BeforeValue:
        """Return the state before a value; ``layout`` is that of an array or object that it may be."""

    def kept(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """Make a part of the machine once under a key."""
        if key not in self._kept:
            self._kept[key] = make()
        return cast(Kept, self._kept[key])

    def made(
        self, state: Callable[Concatenate[Maker, Parts], AState], *parts: Parts.args, **named: Parts.kwargs
    ) -> AState:
        """Return the state of a class with these parts, the same object each time."""
        return self.kept((state, *parts, *named.values()), lambda: state(self, *parts, **named))

    def spaced(
        self, state: Callable[Concatenate[Maker, Parts], AState], *parts: Parts.args, **named: Parts.kwargs
    ) -> State:
        """Return the state before the blanks that may stand before each token, and then that of a class with these parts."""
        return self.blank(self.made(state, *parts, **named), self.layout.pattern)

    def blank(self, core: State, blanks: ByteAutomaton, at: int | None = None) -> State:
        """Return the state before blanks that ``core`` comes after."""
        at = blanks.start if at is None else at
        return self.made(Blank, core, blanks, at) if blanks.live(at) or not blanks.accepting[at] else core

    def cells(self, asked: Iterable[tuple[int, Formula, Any]]) -> list[tuple[Formula, list[tuple[int, Any]]]]:
        """Return formulas of which one at most is true of a value, each with what then holds: places, and what comes with them."""
        by_formula: dict[Formula, list[tuple[int, Any]]] = {}
        for place, formula, brought in asked:
            by_formula.setdefault(formula, []).append((place, brought))
        tags = common([tags_of(self.kinds, formula) for formula in by_formula]) if len(by_formula) > 2 else None
        seen = set[Hashable]()
        cells: list[tuple[Formula, list[tuple[int, Any]]]] = []
        earlier: list[Formula] = []
        for number, (formula, brought) in enumerate(by_formula.items()):
            if tags is not None:
                apart = seen.isdisjoint(tags[number])
                seen |= tags[number]
                if apart:  # none of those so far is true of a value that this is true of
                    cells.append((formula, list(brought)))
                    earlier.append(formula)
                    continue
            split: list[tuple[Formula, list[tuple[int, Any]]]] = []
            for cell, held in cells:
                inside, outside = both(cell, formula), but_not(cell, formula)
                if self.sizes.possible(inside):
                    split.append((inside, held + brought))
                    if self.sizes.possible(outside):
                        split.append((outside, held))
                else:
                    split.append((cell, held))
            alone = but_not(formula, *earlier)
            if self.sizes.possible(alone):
                split.append((alone, list(brought)))
            cells = split
            earlier.append(formula)
        return cells


@final
class Last(State):
    """Before the byte that ends a value."""

    def __init__(self, machine: Maker, byte: int, outcome: int, outcomes: int) -> None:
        super().__init__(machine)
        self.bytes, self._outcome, self._outcomes = bytes([byte]), outcome, outcomes
        self.between = byte in b"]}"
        self.in_value = not self.between

    @property
    def sizes(self) -> Sequence[int]:
        return [1 if i == self._outcome else NEVER for i in range(self._outcomes)]

    def _edge(self, byte: int) -> ByteEdge | None:
        return ByteEdge(None, self._outcome) if byte in (self.bytes or b"") else None


@final
class Blank(State):
    """In blanks, or in another text that comes before a place."""

    def __init__(self, machine: Maker, core: State, blanks: ByteAutomaton, at: int) -> None:
        super().__init__(machine)
        self.core, self.blanks, self.at = core, blanks, at
        self.in_value = core.in_value

    @cached_property
    def bytes(self) -> Sequence[int] | None:  # type: ignore[override]
        """The bytes that may be allowed."""
        more = self.core.bytes if self.blanks.accepting[self.at] else b""
        return None if more is None else [*self.blanks.live(self.at), *more]

    @property
    def between(self) -> bool:  # type: ignore[override]
        """That of what comes after."""
        return self.core.between

    @property
    def sizes(self) -> Sequence[int]:
        return [int(self.blanks.distances[self.at]) + size for size in self.core.sizes]

    def _edge(self, byte: int) -> ByteEdge | None:
        target = self.blanks.step(self.at, byte)
        if target is not None:
            return ByteEdge(self._machine.blank(self.core, self.blanks, target))
        return self.core.edge(byte) if self.blanks.accepting[self.at] else None


@final
class Frame:
    """The states that come after each outcome of the value that is being read, and the stack of the value around it.

    Equal stacks of one machine are one object, however deep they are, so they are compared and hashed by identity.

    Attributes
    ----------
    keeps
        True if the text is kept: that of this value, or of one around it, has to be known.
    start
        The offset of this value in the text that is kept.
    rests
        The least number of bytes to the end behind the value, by its outcome, as far as it was asked for.
    """

    __slots__ = ("after", "below", "deeper", "keeps", "rests", "start")

    def __init__(self, after: Sequence[State], below: Stack, start: int) -> None:
        self.after, self.below, self.start = after, below, start
        self.keeps: bool = (below is not None and below.keeps) or (
            isinstance(after, tuple) and any(type(state) is Pending for state in after)
        )
        self.deeper: dict[tuple[Sequence[State], int], Frame] = {}
        self.rests: dict[int, int] = {}

    def rest(self, outcome: int) -> int:
        """Return the least number of bytes to the end behind the value with an outcome."""
        waiting: list[tuple[Frame, int]] = [(self, outcome)]
        while waiting:
            frame, one = waiting[-1]
            sizes = frame.after[one].sizes
            below = frame.below
            ways = [place for place, size in enumerate(sizes) if size < NEVER]
            unknown = [place for place in ways if below is not None and place not in below.rests]
            if below is not None and unknown:
                waiting += ((below, place) for place in unknown)
                continue
            rests = {0: 0} if below is None else below.rests
            frame.rests[one] = min((sizes[place] + rests[place] for place in ways), default=NEVER)
            waiting.pop()
        return self.rests[outcome]

    def left(self, outcome: int, text: bytes) -> Configuration:
        """Return the configuration after the end of the value; ``text`` is the text that is kept."""
        state = self.after[outcome]
        if isinstance(state, Pending):
            state = state.then(text[self.start :])
        return Configuration(state, self.below, text if self.below is not None and self.below.keeps else b"")


Stack: TypeAlias = Frame | None


class Configuration(NamedTuple):
    """Position of a text; ``text`` is its end as far as it has to be known."""

    state: State
    stack: Stack
    text: bytes = b""
