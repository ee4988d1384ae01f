"""Places in arrays and objects, and the blanks by which each chooses its layout."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice, starmap
from operator import lt
from typing import Any, NamedTuple, TypeAlias, final

from ....automata.automaton import ByteAutomaton
from ..formula import Formula, both
from ..shapes import ArrayShape, ObjectShape, comes_first, names_in_order, states_of, told_apart
from ..string_set import QUOTE, StringSet
from ..string_set import members as names_of
from .blanks import COMPACT, LINES, OPEN, SPACED, STEPS, Spacing, literal, size
from .scalars import Listed, Spelled, Text, begun
from .seen import NOTHING, Seen, value_of
from .sizes import NEVER
from .states import BeforeValue, ByteEdge, Last, LateStates, Maker, Pending, State

SPACE, COMMA, LINE_END = b" ,\n"


class Container(State):
    """After an opening bracket, or where it is ``begun`` behind an item."""

    close: int
    in_value = False

    def __init__(self, machine: Maker, goals: Sequence[Sequence[Any]], layout: Spacing, *, begun: bool) -> None:
        super().__init__(machine)
        self._goals, self.layout, self.begun = goals, layout, begun
        lines = layout.style == LINES
        self._more = list[int]() if lines else [self.close]
        if lines if begun else layout.style == OPEN:
            self._more.append(LINE_END)

    @cached_property
    def bytes(self) -> Sequence[int]:  # type: ignore[override]
        """The bytes that may be allowed."""
        return [*([COMMA] if self.begun else self._firsts), *self._more]

    @property
    @abstractmethod
    def _firsts(self) -> Sequence[int]:
        """The bytes that the first item or member may begin with."""

    @abstractmethod
    def _size(self, shape: Any) -> int:
        """Return the size of the least rest of a shape, up to the blanks before the closing bracket, and the bracket."""

    @property
    @abstractmethod
    def goes_on(self) -> bool:
        """True if an item or member may come."""

    @abstractmethod
    def with_layout(self, layout: Spacing) -> State:
        """Return the same place in another layout."""

    @property
    def between(self) -> bool:  # type: ignore[override]
        """True if this is behind a value, and no comma may come."""
        return self.begun and not self.goes_on

    @abstractmethod
    def _onward(self, byte: int) -> ByteEdge | None:
        """Return the transition by the comma, or by a byte of the first item."""

    @cached_property
    def sizes(self) -> Sequence[int]:
        goals = self._goals
        if self.layout.style == LINES and not self.begun:  # in lines there are some
            goals = [[replace(shape, least=max(shape.least, 1)) for shape in goal] for goal in goals]
        return self.by_outcome(
            [min(map(self._size, goal), default=NEVER) + size(self.layout.closing) for goal in goals]
        )

    def by_outcome(self, sizes: list[int]) -> list[int]:
        """Return sizes for each outcome of those for each goal: others are of texts whose lines are indented by another step."""
        behind = (len(STEPS) - 1) * len(sizes) - self._told if self.layout.tells else 0
        return [NEVER] * self._told + sizes + [NEVER] * behind

    @property
    def _told(self) -> int:
        return STEPS.index(self.layout.step) * len(self._goals) if self.layout.tells else 0

    @cached_property
    def closed(self) -> ByteEdge | None:
        """The transition by the closing bracket."""
        for place, goal in enumerate(self._goals):
            if any(shape.closed for shape in goal):
                return ByteEdge(None, self._told + place)
        return None

    def _edge(self, byte: int) -> ByteEdge | None:
        lines = self.layout.style == LINES
        if byte == self.close:
            return None if lines else self.closed
        if byte != LINE_END:
            return self._onward(byte)
        if self.begun and lines and self.closed is not None:
            last = self._machine.made(Last, self.close, self.closed.outcome, len(self.sizes))
            return self._machine.blank(last, self.layout.closing).edge(byte)
        return None if self.begun or self.layout.style != OPEN else self._line_end()

    def _line_end(self) -> ByteEdge | None:
        """Return the transition by a line end behind the opening bracket."""
        known, width = self.layout.step, self.layout.width
        steps = [step for step in STEPS[1:] if known in (0, step)]
        layouts = [self.layout._replace(style=LINES, width=width + step, step=step) for step in steps]
        if not self.goes_on:
            return None
        core = self.with_layout(layouts[0]) if known else Indent(self._machine, self, *layouts)
        return self._machine.blank(core, layouts[0].comma).edge(LINE_END)

    def late(self, key: Hashable, ways: int, layout: Spacing, make: Callable[[int, Spacing], State]) -> Sequence[State]:
        """Return the states behind an item or member: for each layout that it may have chosen, one for each of some ways."""
        layouts = layout.later()
        return self._machine.kept(
            (LateStates, key, layout),
            lambda: LateStates(ways * len(layouts), lambda outcome: make(outcome % ways, layouts[outcome // ways])),
        )

    def before(
        self, value: BeforeValue, after: Callable[[Spacing], Sequence[State]], blanks: ByteAutomaton
    ) -> ByteEdge:
        """Return the transition by a colon or comma before a value; the first one chooses whether there are blanks."""
        if self.layout.style == OPEN:
            ways = (after(self.layout._replace(style=style)) for style in (COMPACT, SPACED))
            return ByteEdge(FirstBlank(self._machine, value, *ways))
        return ByteEdge(self._machine.blank(value, blanks), after=after(self.layout))


@final
class Indent(State):
    """Behind a line end in the first line that is indented: two blanks, of which two more make the other step."""

    def __init__(self, machine: Maker, container: Container, two: Spacing, four: Spacing) -> None:
        super().__init__(machine)
        self._container, self._layouts = container, (two, four)
        self.in_value = container.in_value

    @cached_property
    def bytes(self) -> Sequence[int]:  # type: ignore[override]
        """The bytes that may be allowed."""
        return b" " + bytes(self._two.bytes or b"")

    @cached_property
    def _two(self) -> State:
        return self._container.with_layout(self._layouts[0])

    @cached_property
    def _four(self) -> State:
        return self._machine.blank(self._container.with_layout(self._layouts[1]), literal(b"  "))

    @property
    def sizes(self) -> Sequence[int]:
        return list(map(min, self._two.sizes, self._four.sizes))

    def _edge(self, byte: int) -> ByteEdge | None:
        return (self._four if byte == SPACE else self._two).edge(byte)


@final
class FirstBlank(State):
    """Before a value behind the first colon or comma of an array or object in one line, which a blank makes spaced."""

    def __init__(self, machine: Maker, value: BeforeValue, compact: Sequence[State], spaced: Sequence[State]) -> None:
        super().__init__(machine)
        self._value, self._compact, self._spaced = value, compact, spaced
        self.bytes = bytes(value.bytes) + b" "

    @property
    def sizes(self) -> Sequence[int]:
        return joined(self._value, self._compact)

    def _edge(self, byte: int) -> ByteEdge | None:
        if byte == SPACE:
            return ByteEdge(self._value, after=self._spaced)
        edge = self._value.edge(byte)
        return None if edge is None else edge._replace(after=self._compact)


def joined(value: State, after: Sequence[State]) -> list[int]:
    """Return the sizes of a value and what comes after it."""
    ways = [(size, below.sizes) for size, below in zip(value.sizes, after, strict=False)]
    return [min(size + more[i] for size, more in ways) for i in range(len(ways[0][1]))]


Asked: TypeAlias = tuple[ArrayShape, Formula, ArrayShape, Seen, str | None]
"""The arguments of :meth:`Sizes.of_rest`, from which the size of the rest follows."""

Held: TypeAlias = Sequence[tuple[int, tuple[ArrayShape, Asked]]]
"""The remaining shapes of some places after an item."""


@final
class Array(Container):
    """After the opening bracket, or after an item."""

    close = 0x5D

    def __init__(
        self,
        machine: Maker,
        goals: tuple[tuple[ArrayShape, ...], ...],
        layout: Spacing,
        begun: bool,
        seen: Seen,
    ) -> None:
        super().__init__(machine, goals, layout, begun=begun)
        self._shapes, self._seen = goals, seen
        self.in_value = not begun  # the first item has no comma before it

    def with_layout(self, layout: Spacing) -> State:
        return self._machine.spaced(Array, self._shapes, layout, self.begun, self._seen)

    def _size(self, shape: ArrayShape) -> int:
        return self._machine.sizes.of_array(shape, self.layout.gaps(begun=self.begun), seen=self._seen)

    @property
    def _cells(self) -> list[tuple[Formula, Held]]:
        """The formulas of the next item, each with the remaining shapes after it: found once for all layouts."""
        return self._machine.kept((Array, self._shapes, self.begun, self._seen), self._find_cells)

    def _find_cells(self) -> list[tuple[Formula, Held]]:
        machine, seen = self._machine, self._seen
        sizes = machine.sizes
        shapes = [(place, shape) for place, goal in enumerate(self._shapes) for shape in goal]
        values = set[str]().union(*(sizes.contested(shape, seen) for _, shape in shapes))
        regions = sizes.regions(values, seen)
        cells: list[tuple[Formula, Held]] = []
        for region, value in regions:
            steps = [
                (place, item, (left, (shape, item, left, seen, value)))
                for place, shape in shapes
                for item, left in shape.steps()
            ]
            cells += self._within(steps, region)
        # What is there already is an item of those alone whose items need not differ.
        steps = [
            (place, item, (left, (shape, item, left, seen, None)))
            for place, shape in shapes
            if seen != NOTHING and not shape.unique
            for item, left in shape.steps()
        ]
        return cells + self._within(steps, seen.like) if steps else cells

    def _within(
        self, steps: Sequence[tuple[int, Formula, tuple[ArrayShape, Asked]]], region: Formula
    ) -> list[tuple[Formula, Held]]:
        """Return the formulas of the next item in a region of values, each with the remaining shapes after it."""
        sizes = self._machine.sizes
        live = [one for one in steps if sizes.of_rest(*one[2][1]) < NEVER and sizes.possible(one[1])]
        cells = [(both(cell, region), held) for cell, held in self._machine.cells(live)]
        return [(within, held) for within, held in cells if sizes.possible(within)]

    @cached_property
    def _value(self) -> BeforeValue | None:
        """The state before the next item."""
        cells = self._cells
        return self._machine.value(tuple(cell for cell, _ in cells), self.layout.within) if cells else None

    def _after(self, layout: Spacing) -> Sequence[State]:
        """Return the states after an item."""
        items = [held for _, held in self._cells]
        if any(shape.unique for goal in self._shapes for shape in goal):
            return tuple(self._left(held, one) for one in layout.later() for held in items)
        goals = tuple(
            tuple(map(_widest, by_goal([(place, left) for place, (left, _) in held], len(self._shapes))))
            for held in items
        )

        def make(way: int, layout: Spacing) -> State:
            return self._machine.spaced(Array, goals[way], layout, True, NOTHING)

        return self.late(goals, len(goals), layout, make)

    def _left(self, held: Held, layout: Spacing) -> State:
        machine = self._machine
        goals = by_goal([(place, left) for place, (left, _) in held], len(self._shapes))
        if not any(shape.unique and shape.most != 0 for goal in goals for shape in goal):
            return machine.spaced(Array, tuple(map(_widest, goals)), layout, True, NOTHING)
        rests = [(place, machine.sizes.of_rest(*asked, gaps=layout.gaps(begun=True))) for place, (_, asked) in held]
        around = layout.before + size(layout.closing)
        sizes = [min((one for at, one in rests if at == place), default=NEVER) + around for place in range(len(goals))]

        def then(text: bytes) -> State:
            return machine.spaced(Array, goals, layout, True, self._seen.and_also(value_of(text)))

        return Pending(machine, sizes, then)

    @property
    def _firsts(self) -> Sequence[int]:
        return () if self._value is None else self._value.bytes

    @property
    def goes_on(self) -> bool:
        return self._value is not None

    def _onward(self, byte: int) -> ByteEdge | None:
        value, layout = self._value, self.layout
        if value is None or (self.begun and byte != COMMA):
            return None
        if not self.begun:
            edge = value.edge(byte)
            return None if edge is None else edge._replace(after=self._after(layout))
        return self.before(value, self._after, layout.comma)


def _widest(shapes: Sequence[ArrayShape]) -> tuple[ArrayShape, ...]:
    """Return the shapes without those that others cover: an item that is counted need not be passed over as well."""
    found: list[ArrayShape] = []
    for shape in shapes:
        if not any(other.covers(shape) for other in found):
            found = [*(other for other in found if not shape.covers(other)), shape]
    return tuple(found)


class Members(NamedTuple):
    """State of an object that is being written.

    Attributes
    ----------
    goals
        The shapes of the rest, for each outcome.
    ahead
        Names that are told apart and may come, in their order.
    taken
        All names that are told apart, and those that were written.
    begun
        True if a member is there already.
    """

    goals: tuple[tuple[ObjectShape, ...], ...]
    ahead: tuple[str, ...]
    taken: frozenset[str]
    begun: bool

    @classmethod
    def of(cls, machine: Maker, goals: Sequence[Sequence[ObjectShape]]) -> Members:
        """Return an object that begins."""
        names = names_in_order([shape for goal in goals for shape in goal])
        taken = frozenset(names)
        alive = tuple(
            tuple(shape for shape in goal if machine.sizes.possible_object(shape, names, taken)) for goal in goals
        )
        return cls(alive, names, taken, begun=False)


@final
class Object(Container):
    """After the opening brace, or after a member."""

    close = 0x7D

    def __init__(self, machine: Maker, members: Members, layout: Spacing) -> None:
        super().__init__(machine, members.goals, layout, begun=members.begun)
        self._members = members
        self._named: dict[str, ByteEdge] = {}
        self._bounds: dict[str, Sequence[int]] = {}
        self._gone: dict[str, tuple[str, ...]] = {}

    def with_layout(self, layout: Spacing) -> State:
        return self._machine.spaced(Object, self._members, layout)

    def _size(self, shape: ObjectShape) -> int:
        _, ahead, taken, begun = self._members
        return self._machine.sizes.of_object(shape, ahead, taken, self.layout.gaps(begun=begun, members=True))

    def value(self, name: str) -> BeforeValue:
        """Return the state before the value of a member of this name, of which there is one."""
        cells = tuple(cell for cell, _ in self._left(name)) if self._plain is None else (self._plain.value(name),)
        return self._machine.value(cells, self.layout.within)

    def after(self, name: str, layout: Spacing) -> Sequence[State]:
        """Return the states after a member of this name, in a layout."""

        def make(way: int, layout: Spacing) -> State:
            return self._machine.spaced(Object, self._left(name)[way][1], layout)

        return self.late((self._members, name), len(self._left(name)) if self._plain is None else 1, layout, make)

    @cached_property
    def _shapes(self) -> Sequence[ObjectShape]:
        """The shapes of all goals."""
        return [shape for goal in self._members.goals for shape in goal]

    @cached_property
    def _plain(self) -> ObjectShape | None:
        """The shape, where there is one, and any member may come beside those that it asks for; ``None`` where it takes more."""
        if len(self._members.goals) > 1 or len(self._shapes) != 1:
            return None
        (shape,) = self._shapes
        count = len(shape.required)
        plain = not shape.some and shape.least <= count and (shape.most is None or shape.most > count)
        return shape if plain else None

    def _may_come(self, name: str) -> bool:
        """Return True if a member of this name, of which nothing is said by itself, may come."""
        shape = self._plain
        if shape is None:
            return bool(self._left(name))
        return self._machine.sizes.possible(shape.value(name)) and shape.required.isdisjoint(self._passed(name))

    def _left(self, name: str) -> list[tuple[Formula, Members]]:
        """Return the formulas of the value of a member, each with the members left after it: found once for all layouts."""
        return self._machine.kept((Object, self._members, name), lambda: self._find_left(name))

    def _find_left(self, name: str) -> list[tuple[Formula, Members]]:
        machine, members = self._machine, self._members
        gone = self._passed(name)
        left_out = {name, *gone}
        ahead = tuple(other for other in members.ahead if other not in left_out)
        taken = members.taken | {name} if self.counts else members.taken
        steps = [
            (place, value, left)
            for place, goal in enumerate(members.goals)
            for shape in goal
            for value, left in shape.steps(name, gone)
            if machine.sizes.possible(value) and machine.sizes.possible_object(left, ahead, taken)
        ]
        return [
            (cell, Members(by_goal(held, len(members.goals)), ahead, taken, begun=True))
            for cell, held in machine.cells(steps)
        ]

    def bounds_behind(self, name: str) -> Sequence[int]:
        """Return lower bounds of the sizes behind a name, with each outcome, without the states there; found once for all keys."""
        if name in self._bounds:
            return self._bounds[name]
        size_of, comma = self._machine.sizes.of, 1 + size(self.layout.comma) if self.begun else 0
        spelled = self._machine.sizes.of_name(name) + comma

        def bound(shape: ObjectShape, total: int) -> int:
            value = 1 + size_of(shape.value(name))
            if name in shape.required or shape.some or shape.least > len(shape.required):
                return max(value + 1, total - spelled)
            return value + total  # a member more, and the rest as without it

        self._bounds[name] = self.by_outcome([min([NEVER, *starmap(bound, goal)]) for goal in self._totals])
        return self._bounds[name]

    @cached_property
    def _totals(self) -> Sequence[Sequence[tuple[ObjectShape, int]]]:
        """The shapes of each goal, with the size of the least rest of each."""
        return [[(shape, self._size(shape)) for shape in goal] for goal in self._members.goals]

    def _passed(self, name: str) -> tuple[str, ...]:
        """Return the names that cannot come behind one: those before it in the same ``properties``; behind others none of any."""
        places_of, ahead = self._machine.places, self._members.ahead
        if name not in ahead:
            return tuple(filter(places_of, ahead))
        if name not in self._gone:
            places, before = places_of(name), ahead[: ahead.index(name)]
            if not self._in_order:
                before = tuple(one for one in ahead if comes_first(self._shapes, one, before=name, ahead=ahead))
            self._gone[name] = tuple(other for other in before if not places.isdisjoint(places_of(other)))
        return self._gone[name]

    @cached_property
    def _in_order(self) -> bool:
        """True if each shape that is left has its names in the order of those ahead."""
        ranks = {name: rank for rank, name in enumerate(self._members.ahead)}
        told = ([ranks[name] for name in shape.ranks if name in ranks] for shape in self._shapes)
        return all(own == sorted(own) for own in told)

    @cached_property
    def counts(self) -> bool:
        """True if a repeated name matters: where several members have to come, or one that is of some kind.

        Else a name of which nothing is said by itself may come again. Readers keep the last member of a name, and the same is asked
        of each, so what they read is valid; names of which something is said, and those that are asked for, never come twice.
        """
        return any(shape.least > max(len(shape.required), 1) or shape.some for shape in self._shapes)

    def _names(self) -> dict[str | None, Spelled]:
        machine, members = self._machine, self._members
        own, found = StringSet.of_values(self._possible()), dict[str | None, Spelled]()
        if not own.is_empty:
            found["" if own.lengths else None] = begun(own, ascii=machine.ascii)
        asked = dict.fromkeys(one.names for shape in self._shapes for one in shape.every + shape.some)
        for cell in told_apart(asked, bounded=machine.kinds.compiling):
            with states_of(compiling=machine.kinds.compiling):
                left = cell.without(members.taken)
            for member, _ in islice(names_of(left, ascii=machine.ascii), 1):
                if self._may_come(member):
                    found[member] = begun(left, ascii=machine.ascii)
        return found

    def _possible(self) -> set[str]:
        """Return the names ahead that may come next."""
        machine, members = self._machine, self._members
        found = set[str]()
        for shape in self._shapes:
            # The others that are asked for may still come, whatever comes before them: but behind those, not before.
            passed = set[str]()
            counted = bool(shape.some or shape.least)
            live = [name for name in members.ahead if not counted or machine.sizes.possible(shape.value(name))]
            behind = len(live)
            for name in live:
                places, behind = machine.places(name), behind - 1
                own, after = (passed, places) if self._in_order else (shape.required, self._passed(name))
                if own.isdisjoint(after) and name not in found:
                    count = len(shape.required) + (name not in shape.required)
                    if self._in_order and not shape.some and shape.least <= count + behind - len(shape.required):
                        is_possible = shape.most is None or count <= shape.most
                    else:  # those behind it may come
                        is_possible = bool(self._left(name))
                    if is_possible and (counted or machine.sizes.possible(shape.value(name))):
                        found.add(name)
                if name in shape.required:
                    passed |= places
        return found

    _firsts = (QUOTE,)

    @property
    def names(self) -> dict[str | None, Spelled]:
        """The names that may come: each of those ahead under ``None``, and sets of others of which the same is asked under one."""
        return self._machine.kept((Key, self._members), self._names)

    def named(self, name: str) -> ByteEdge:
        """Return the edge of the closing quote of a name, the same for all that it ends."""
        if name not in self._named:
            self._named[name] = ByteEdge(self._machine.spaced(Colon, self, name))
        return self._named[name]

    @cached_property
    def goes_on(self) -> bool:
        # What is not complete has a member to come; any other name will do where nothing is asked of all.
        return any(not shape.closed or not (shape.every or shape.most == 0) for shape in self._shapes) or bool(
            self.names
        )

    def _onward(self, byte: int) -> ByteEdge | None:
        if byte != (COMMA if self.begun else QUOTE) or not self.goes_on:
            return None
        machine = self._machine
        key = machine.made(Key, self, b"")
        return ByteEdge(machine.blank(machine.blank(key, literal(b'"')), self.layout.comma) if self.begun else key)


@final
class Key(Text):
    """Within a name.

    Attributes
    ----------
    text
        The spelled prefix of it where names are counted; ``None`` in the representative of such states of any texts.
    """

    in_value = False

    def __init__(
        self, machine: Maker, members: Object, text: bytes | None, spelled: tuple[Spelled | None, ...] | None = None
    ) -> None:
        State.__init__(self, machine)
        self._members, self.text, self._spelled = members, text, spelled
        self.between, self.counts = members.begun, members.counts

    @property
    def spelled(self) -> tuple[Spelled | None, ...]:  # type: ignore[override]
        """Spelling of a name of each of the sets, so far; at its beginning of those that may come."""
        return tuple(self._members.names.values()) if self._spelled is None else self._spelled

    @cached_property
    def sizes(self) -> Sequence[int]:
        ways = [
            (name, least, [least + bound for bound in self._members.bounds_behind(name)])
            for member, spelled in zip(self._members.names, self.spelled, strict=True)
            if spelled is not None
            for name, least in (
                spelled.ways() if member is None and isinstance(spelled, Listed) else [(member or "", spelled.size)]
            )
        ]
        # States behind names are made for those alone that may be the least (branch and bound).
        ways.sort(key=lambda way: min(way[2]))
        found = [NEVER] * len(ways[0][2])
        for name, least, bounds in ways:
            if any(map(lt, bounds, found)):
                sizes = self._machine.spaced(Colon, self._members, name).sizes
                found = [min(size, least + more) for size, more in zip(found, sizes, strict=True)]
        return found

    @property
    def is_other(self) -> bool:
        """True if it is begun and counted, and none of the names that are told apart begins like it."""
        return bool(self.text) and not any(isinstance(one, Listed) and one.beside for one in self.spelled)

    def closed(self, place: int, read: bytes = b"") -> ByteEdge:
        if self.counts:
            assert self.text is not None
            return self._members.named(json.loads(b'"' + self.text + read))
        one = self.spelled[place]
        return self.named(place, one.word if isinstance(one, Listed) and one.whole else "")

    def named(self, place: int, text: str) -> ByteEdge:
        member = [*self._members.names][place]
        return self._members.named(text if member is None else member or "")

    def later(self, spelled: tuple[Spelled | None, ...], read: bytes | None = None) -> State | None:
        if not any(spelled):
            return None
        text = b"" if not self.counts else None if read is None or self.text is None else self.text + read
        return self._machine.made(Key, self._members, text, spelled)


@final
class Colon(State):
    """After a name."""

    bytes, in_value = b":", False

    def __init__(self, machine: Maker, members: Object, name: str) -> None:
        super().__init__(machine)
        self._members, self._name = members, name
        self.between = members.begun

    @cached_property
    def sizes(self) -> Sequence[int]:
        layout = self._members.layout
        after = self._members.after(self._name, layout)
        return [1 + size(layout.colon) + one for one in joined(self._members.value(self._name), after)]

    def _edge(self, byte: int) -> ByteEdge | None:
        members, name = self._members, self._name
        if byte != 0x3A:
            return None
        return members.before(members.value(name), partial(members.after, name), members.layout.colon)


def by_goal(held: Sequence[tuple[int, Any]], goals: int) -> tuple[tuple[Any, ...], ...]:
    """Group the shapes that hold by their places."""
    found: list[dict[Any, None]] = [{} for _ in range(goals)]
    for place, shape in held:
        found[place][shape] = None
    return tuple(map(tuple, found))
