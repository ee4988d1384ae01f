"""A JSON schema as a visibly pushdown machine over bytes, made as far as texts go (json-schema.md, section 3)."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, final

from ...automaton import DEAD, ByteAutomaton
from ...errors import EmptyLanguageError, UnsupportedError
from ..regex import compile_regex
from .formula import Formula, both, negated
from .kinds import Kinds
from .quoting import QUOTE, quoted
from .schema import Schema
from .shapes import ArrayShape, ObjectShape
from .sizes import LITERALS, NEVER, Sizes
from .strings import StringSet

BLANKS = r"( |\n {0,64})?"
"""What may stand between the tokens of JSON: nothing, a blank, or a new line and an indentation. So compact, spaced and indented texts are
read, and no text is blanks for ever."""

WHITE = frozenset(b" \t\n\r")

Stack: TypeAlias = "tuple[Sequence[State], Stack] | None"
"""The states that come after each outcome of the value that is being read, and the stack of the value around it."""

Goals: TypeAlias = tuple[Formula, ...]
"""What the value that comes is told apart by: at most one of these is true of it. Its place is the *outcome* of the value."""


class Edge(NamedTuple):
    """Where a byte leads: to a state, or out of the value with an outcome; ``after`` is put on the stack before."""

    target: State | None
    outcome: int = 0
    after: Sequence[State] | None = None


class State(ABC):
    """A place within a value, whatever is around it."""

    def __init__(self) -> None:
        self._edges: dict[int, Edge | None] = {}

    def edge(self, byte: int) -> Edge | None:
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
    def _edge(self, byte: int) -> Edge | None: ...


class Configuration(NamedTuple):
    """Where a text stands."""

    state: State
    stack: Stack


@final
class Machine:
    """The texts of the values that a schema is true of.

    A value is read once for all that is asked of it: the formulas that tell its outcomes apart are followed side by side, so the
    machine is deterministic, and each text is one way through it. States are made when a text first leads to them.

    Parameters
    ----------
    schema
        The schema.
    blanks
        A regular expression of what may stand between tokens.
    any_order
        Whether members may come in any order; else in that of the schema, and others behind those that it names.

    Raises
    ------
    EmptyLanguageError
        The schema is true of no value.
    UnsupportedError
        A part of the schema that cannot be honoured, or blanks that are none.
    """

    def __init__(self, schema: Schema, *, blanks: str = BLANKS, any_order: bool = False) -> None:
        self.kinds = Kinds(schema.definitions)
        self.sizes = Sizes(self.kinds)
        self.any_order = any_order
        self._blanks = compile_regex(blanks)
        if self._blanks.is_empty or not WHITE.issuperset(_bytes_of(self._blanks)):
            raise UnsupportedError(
                f"Give a whitespace_pattern of blanks, tabs and line ends. {blanks!r} matches other characters, or nothing at all."
            )
        self._states: dict[Hashable, State] = {}
        self.end = End()
        if self.sizes.of(schema.formula) >= NEVER:
            raise EmptyLanguageError("Relax the JSON schema: it is true of no JSON value. Parts of it exclude one another.")
        self.start = Configuration(self.value((schema.formula,)), None)

    def advance(self, at: Configuration, byte: int) -> Configuration | None:
        """Return where a byte leads; ``None`` where it is not allowed."""
        state, stack = at
        while (edge := state.edge(byte)) is None:
            if state.ends is None or stack is None:
                return None
            after, stack = stack[0][state.ends], stack[1]
            state = after
        if edge.after is not None:
            stack = (edge.after, stack)
        if edge.target is not None:
            return Configuration(edge.target, stack)
        if stack is None:
            return Configuration(self.end, None)
        return Configuration(stack[0][edge.outcome], stack[1])

    def read(self, text: bytes) -> Configuration | None:
        """Return where a text leads; ``None`` where it is not allowed."""
        at: Configuration | None = self.start
        for byte in text:
            at = self.advance(at, byte) if at is not None else None
        return at

    def accepts(self, text: bytes) -> bool:
        """Return whether a text is one of a value that the schema is true of."""
        at = self.read(text)
        return at is not None and self.size(at) == 0

    def size(self, at: Configuration) -> int:
        """Return the least number of bytes that complete a text."""
        state, stack = at
        sizes = state.sizes
        while stack is not None:
            after, stack = stack
            ways = [(size, below.sizes) for size, below in zip(sizes, after, strict=True) if size < NEVER]
            sizes = [min(size + more[i] for size, more in ways) for i in range(len(ways[0][1]))]
        return sizes[0]

    def value(self, goals: Goals) -> State:
        """Return the state before a value."""
        return self._one((Value, goals), lambda: Value(self, goals))

    def blank(self, core: State, place: int | None = None) -> State:
        """Return the state before blanks that ``core`` comes after."""
        at = self._blanks.start if place is None else place
        return self._one((Blank, core, at), lambda: Blank(self, core, self._blanks, at))

    def blanks_in(self, state: Array | Object, begun: bool) -> State:
        """Return the state before blanks within brackets: before the first item, and before the closing one."""
        return self.blank(self._one((Close, state), lambda: Close(state)) if begun else state)

    def cells(self, asked: Iterable[tuple[int, Formula, Any]]) -> list[tuple[Formula, list[tuple[int, Any]]]]:
        """Return formulas of which one at most is true of a value, each with what then holds: places, and what comes with them."""
        by_formula: dict[Formula, list[tuple[int, Any]]] = {}
        for place, formula, brought in asked:
            by_formula.setdefault(formula, []).append((place, brought))
        cells: list[tuple[Formula, list[tuple[int, Any]]]] = []
        rest: list[Formula] = []  # what says that none of the formulas so far holds
        for formula, brought in by_formula.items():
            split: list[tuple[Formula, list[tuple[int, Any]]]] = []
            for cell, held in cells:
                inside, outside = both(cell, formula), both(cell, negated(formula))
                if self.sizes.of(inside) < NEVER:
                    split.append((inside, held + brought))
                    if self.sizes.of(outside) < NEVER:
                        split.append((outside, held))
                else:
                    split.append((cell, held))
            alone = both(formula, *rest)
            if self.sizes.of(alone) < NEVER:
                split.append((alone, list(brought)))
            cells = split
            rest.append(negated(formula))
        return cells

    def _one(self, key: Hashable, make: Callable[[], State]) -> State:
        if key not in self._states:
            self._states[key] = make()
        return self._states[key]

    def text(self, spelled: tuple[Spelled | None, ...]) -> State:
        """Return the state within a string."""
        return self._one((Text, spelled), lambda: Text(self, spelled))

    def number(self, automata: tuple[ByteAutomaton, ...], at: tuple[int, ...]) -> State:
        """Return the state within a number, or before it."""
        return self._one((Number, automata, at), lambda: Number(self, automata, at))

    def literal(self, rest: bytes, outcome: int, outcomes: int) -> State:
        """Return the state before the rest of true, false or null."""
        return self._one((Literal, rest, outcome, outcomes), lambda: Literal(self, rest, outcome, outcomes))

    def array(self, goals: tuple[tuple[ArrayShape, ...], ...], *, begun: bool) -> State:
        """Return the state after the opening bracket, or after an item."""
        return self._one((Array, goals, begun), lambda: Array(self, goals, begun))

    def object(self, members: Members) -> State:
        """Return the state after the opening brace, or after a member."""
        return self._one((Object, members), lambda: Object(self, members))

    def quote(self, key: State) -> State:
        """Return the state before the opening quote of a name."""
        return self._one((Quote, key), lambda: Quote(key))

    def key(self, members: Object, text: bytes, names: tuple[Named, ...]) -> State:
        """Return the state within a name."""
        return self._one((Key, members, text, names), lambda: Key(self, members, text, names))

    def colon(self, members: Object, name: str) -> State:
        """Return the state after a name."""
        found = members.after(name)
        assert found is not None
        return self._one((Colon, members, name), lambda: Colon(self, *found))


@final
class End(State):
    """After the whole text."""

    sizes = (0,)

    def _edge(self, byte: int) -> Edge | None:
        return None


@final
class Blank(State):
    """In blanks."""

    def __init__(self, machine: Machine, core: State, blanks: ByteAutomaton, at: int) -> None:
        super().__init__()
        self._machine, self._core, self._blanks, self._at = machine, core, blanks, at

    @property
    def sizes(self) -> Sequence[int]:
        return [int(self._blanks.distances[self._at]) + size for size in self._core.sizes]

    def _edge(self, byte: int) -> Edge | None:
        target = int(self._blanks.targets[self._at, self._blanks.byte_class[byte]])
        if target != DEAD and min(self._core.sizes) < NEVER:
            return Edge(self._machine.blank(self._core, target))
        # Blanks come once: what comes after them may begin with none.
        return self._core.edge(byte) if self._blanks.accepting[self._at] and byte not in WHITE else None


@final
class Value(State):
    """Before a value."""

    def __init__(self, machine: Machine, goals: Goals) -> None:
        super().__init__()
        self._machine, self._goals = machine, goals

    @cached_property
    def sizes(self) -> Sequence[int]:
        return [self._machine.sizes.of(goal) for goal in self._goals]

    def _edge(self, byte: int) -> Edge | None:
        machine, kinds = self._machine, self._machine.kinds
        match byte:
            case 0x22:
                sets = [kinds.strings(goal) for goal in self._goals]
                spelled = tuple(None if strings.is_empty else Spelled.of(strings) for strings in sets)
                return Edge(machine.text(spelled)) if any(spelled) else None
            case 0x5B:
                goals = tuple(
                    tuple(shape for shape in kinds.arrays(goal) if machine.sizes.of_array(shape, begun=False) < NEVER)
                    for goal in self._goals
                )
                return Edge(machine.array(goals, begun=False)) if any(goals) else None
            case 0x7B:
                members = Members.of(machine, [kinds.objects(goal) for goal in self._goals])
                return Edge(machine.object(members)) if any(members.goals) else None
            case 0x74 | 0x66 | 0x6E:
                kind = {0x74: "true", 0x66: "false", 0x6E: "null"}[byte]
                for place, goal in enumerate(self._goals):
                    if kinds.literal(kind, goal):
                        return Edge(machine.literal(LITERALS[kind][1:], place, len(self._goals)))
                return None
        automata = tuple(kinds.numbers(goal).spellings for goal in self._goals)
        return machine.number(automata, tuple(automaton.start for automaton in automata)).edge(byte)


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
    """How far a string is spelled, as a member of one set: a state of an automaton, and the characters so far where these are counted."""

    strings: StringSet
    automaton: ByteAutomaton
    at: int
    count: int = 0

    @classmethod
    def of(cls, strings: StringSet) -> Spelled:
        """Return the beginning of a member, after the opening quote. Lengths are counted, and make no states."""
        automaton = quoted(StringSet.all() if strings.lengths else strings)
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
        count = min(self.count + (at == self.automaton.start), low if high is None else high + 1)
        found = self._replace(at=at, count=count)
        return found if found.size < NEVER else None

    @property
    def size(self) -> int:
        """The least number of bytes to the closing quote, itself included."""
        size = int(self.automaton.distances[self.at])
        if self.strings.lengths is None or not size:
            return size if self.strings.lengths is None or self._fits else NEVER
        # What is begun is one character.
        count = self.count + (self.at != self.automaton.start)
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
        return any(low <= self.count and (high is None or self.count <= high) for low, high in self.strings.lengths or ())


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


@final
class Array(State):
    """After the opening bracket, or after an item."""

    close = 0x5D

    def __init__(self, machine: Machine, goals: tuple[tuple[ArrayShape, ...], ...], begun: bool) -> None:
        super().__init__()
        self._machine, self._goals, self._begun = machine, goals, begun

    @cached_property
    def sizes(self) -> Sequence[int]:
        of = self._machine.sizes.of_array
        return [min((of(shape, begun=self._begun) for shape in goal), default=NEVER) for goal in self._goals]

    @cached_property
    def _item(self) -> tuple[State, Sequence[State]] | None:
        """The state before the next item, and those after it."""
        machine, steps = self._machine, []
        for place, goal in enumerate(self._goals):
            for shape in goal:
                for item, after in shape.steps():
                    if machine.sizes.of(item) < NEVER and machine.sizes.of_array(after, begun=True) < NEVER:
                        steps.append((place, item, after))
        cells = machine.cells(steps)
        if not cells:
            return None
        after = tuple(machine.array(_by_goal(held, len(self._goals)), begun=True) for _, held in cells)
        return machine.value(tuple(cell for cell, _ in cells)), after

    def _edge(self, byte: int) -> Edge | None:
        if byte == self.close:
            for place, goal in enumerate(self._goals):
                if any(shape.closed for shape in goal):
                    return Edge(None, place)
            return None
        if byte in WHITE:
            return self._machine.blanks_in(self, self._begun).edge(byte)
        if self._item is None:
            return None
        value, after = self._item
        if self._begun:
            return Edge(self._machine.blank(value), after=after) if byte == 0x2C else None
        edge = value.edge(byte)
        return None if edge is None else edge._replace(after=after)


@final
class Close(State):
    """Before a closing bracket."""

    def __init__(self, around: Array | Object) -> None:
        super().__init__()
        self._around = around

    @property
    def sizes(self) -> Sequence[int]:
        closing = self._around.edge(self._around.close)
        return [1 if closing is not None and closing.outcome == i else NEVER for i in range(len(self._around.sizes))]

    def _edge(self, byte: int) -> Edge | None:
        return self._around.edge(byte) if byte == self._around.close else None


class Members(NamedTuple):
    """How far an object is written.

    Attributes
    ----------
    goals
        The shapes of the rest, for each outcome.
    ahead
        Names that are told apart and may come, in their order.
    taken
        All names that are told apart, and those that were written.
    begun
        Whether a member is there already.
    """

    goals: tuple[tuple[ObjectShape, ...], ...]
    ahead: tuple[str, ...]
    taken: frozenset[str]
    begun: bool

    @classmethod
    def of(cls, machine: Machine, goals: Sequence[Sequence[ObjectShape]]) -> Members:
        """Return an object that begins."""
        valued = dict.fromkeys(name for goal in goals for shape in goal for name, _ in shape.members)
        names = tuple(valued | dict.fromkeys(name for goal in goals for shape in goal for name in shape.names()))
        taken = frozenset(names)
        alive = tuple(
            tuple(shape for shape in goal if machine.sizes.of_object(shape, names, taken, begun=False) < NEVER) for goal in goals
        )
        return cls(alive, names, taken, begun=False)


@final
class Object(State):
    """After the opening brace, or after a member."""

    close = 0x7D

    def __init__(self, machine: Machine, members: Members) -> None:
        super().__init__()
        self._machine, self._members = machine, members
        self._after: dict[str, tuple[State, Sequence[State]] | None] = {}

    @cached_property
    def sizes(self) -> Sequence[int]:
        goals, ahead, taken, begun = self._members
        of = self._machine.sizes.of_object
        return [min((of(shape, ahead, taken, begun=begun) for shape in goal), default=NEVER) for goal in goals]

    def after(self, name: str) -> tuple[State, Sequence[State]] | None:
        """Return the state before the value of a member of this name, and those after it; ``None`` where there is none."""
        if name not in self._after:
            self._after[name] = self._find_after(name)
        return self._after[name]

    def _find_after(self, name: str) -> tuple[State, Sequence[State]] | None:
        machine, members = self._machine, self._members
        own = name in members.ahead
        if own and not machine.any_order:
            place = members.ahead.index(name)
            gone, ahead = members.ahead[:place], members.ahead[place + 1 :]
        elif machine.any_order:
            gone, ahead = (), tuple(other for other in members.ahead if other != name)
        else:
            gone, ahead = members.ahead, ()
        taken = members.taken | {name} if self.counts else members.taken
        steps = [
            (place, value, after)
            for place, goal in enumerate(members.goals)
            for shape in goal
            for value, after in shape.steps(name, gone)
            if machine.sizes.of(value) < NEVER and machine.sizes.of_object(after, ahead, taken, begun=True) < NEVER
        ]
        cells = machine.cells(steps)
        if not cells:
            return None
        after = tuple(
            machine.object(Members(_by_goal(held, len(members.goals)), ahead, taken, begun=True)) for _, held in cells
        )
        return machine.value(tuple(cell for cell, _ in cells)), after

    def is_ahead(self, name: str) -> bool:
        """Whether a name is told apart and may come."""
        return name in self._members.ahead

    @cached_property
    def counts(self) -> bool:
        """Whether something is asked of how many members there are, so that names must not come twice."""
        shapes = [shape for goal in self._members.goals for shape in goal]
        return any(shape.least or shape.most is not None or shape.some for shape in shapes)

    @cached_property
    def _names(self) -> tuple[Named, ...]:
        """The names that may come: each of those ahead, and sets of others of which the same is asked."""
        members = self._members
        found = [
            Named(name, Spelled.of(StringSet.of_values([name]))) for name in members.ahead if self.after(name) is not None
        ]
        cells = [~StringSet.of_values(members.taken)]
        for strings in dict.fromkeys(
            one.names for goal in members.goals for shape in goal for one in shape.every + shape.some
        ):
            cells = [part for cell in cells for part in (cell & strings, cell & ~strings) if not part.is_empty]
        for cell in cells:
            spelled = Spelled.of(cell)
            member = json.loads(b'"' + spelled.shortest)
            if self.after(member) is not None:
                found.append(Named(member, spelled))
        return tuple(found)

    @cached_property
    def _key(self) -> State | None:
        """The state after the opening quote of a name."""
        names = self._names
        return self._machine.key(self, b"", names) if names else None

    def _edge(self, byte: int) -> Edge | None:
        machine, members = self._machine, self._members
        if byte == self.close:
            for place, goal in enumerate(members.goals):
                if any(shape.closed for shape in goal):
                    return Edge(None, place)
            return None
        if byte in WHITE:
            return machine.blanks_in(self, members.begun).edge(byte)
        if byte == (0x2C if members.begun else QUOTE) and self._key is not None:
            return Edge(machine.blank(machine.quote(self._key)) if members.begun else self._key)
        return None


class Named(NamedTuple):
    """A set of names of which the same is asked, one of them, and how far it is spelled."""

    member: str
    spelled: Spelled


@final
class Quote(State):
    """Before the opening quote of a name."""

    def __init__(self, key: State) -> None:
        super().__init__()
        self._key = key

    @property
    def sizes(self) -> Sequence[int]:
        return [1 + size for size in self._key.sizes]

    def _edge(self, byte: int) -> Edge | None:
        return Edge(self._key) if byte == QUOTE else None


@final
class Key(State):
    """Within a name."""

    def __init__(self, machine: Machine, members: Object, text: bytes, names: tuple[Named, ...]) -> None:
        super().__init__()
        self._machine, self._members, self._text, self.names = machine, members, text, names

    @cached_property
    def sizes(self) -> Sequence[int]:
        found: list[int] = []
        for member, spelled in self.names:
            sizes = [spelled.size + size for size in self._machine.colon(self._members, member).sizes]
            found = sizes if not found else list(map(min, found, sizes))
        return found

    def _edge(self, byte: int) -> Edge | None:
        names = tuple(
            Named(member, after) for member, spelled in self.names if (after := spelled.after(byte)) is not None
        )
        text = self._text + bytes([byte]) if self._members.counts else b""
        for member, spelled in names:
            if spelled.ended:
                return self.ended(json.loads(b'"' + text) if text else member)
        return Edge(self._machine.key(self._members, text, names)) if names else None

    @property
    def uniform(self) -> bool:
        """Whether it is a name of none of those that are told apart, and need not be known."""
        return not self._members.counts and not any(self._members.is_ahead(named.member) for named in self.names)

    def ended(self, name: str) -> Edge:
        """Return where the closing quote of a name leads."""
        return Edge(self._machine.colon(self._members, name))

    def later(self, spelled: Mapping[Spelled, Spelled | None]) -> State:
        """Return the state in which the names are spelled further."""
        names = ((member, spelled[before]) for member, before in self.names)
        return self._machine.key(self._members, b"", tuple(Named(name, now) for name, now in names if now is not None))


@final
class Colon(State):
    """After a name."""

    def __init__(self, machine: Machine, value: State, after: Sequence[State]) -> None:
        super().__init__()
        self._machine, self._value, self._after = machine, value, after

    @cached_property
    def sizes(self) -> Sequence[int]:
        ways = [(size, below.sizes) for size, below in zip(self._value.sizes, self._after, strict=True)]
        return [1 + min(size + more[i] for size, more in ways) for i in range(len(ways[0][1]))]

    def _edge(self, byte: int) -> Edge | None:
        return Edge(self._machine.blank(self._value), after=self._after) if byte == 0x3A else None


def _by_goal(held: Sequence[tuple[int, Any]], goals: int) -> tuple[tuple[Any, ...], ...]:
    """Return what holds, by place."""
    found: list[dict[Any, None]] = [{} for _ in range(goals)]
    for place, shape in held:
        found[place][shape] = None
    return tuple(map(tuple, found))


def _bytes_of(automaton: ByteAutomaton) -> set[int]:
    return {byte for byte in range(256) if automaton.targets[:, automaton.byte_class[byte]].any()}
