"""Places within objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property, partial
from operator import lt
from typing import Any, NamedTuple, final

from ..formula import Formula
from ..names import told_apart
from ..shapes import ObjectShape
from ..strings.quoting import QUOTE
from ..strings.quoting import members as names_of
from ..strings.string_set import StringSet
from .blanks import BEGUN, FRESH, Spacing, literal, size
from .containers import COMMA, Container, joined
from .listed import Listed
from .maker import BeforeValue, Maker
from .scalars import Spelled, begun
from .sizes import NEVER
from .states import ByteEdge, State


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
    def of(cls, machine: Maker, goals: Sequence[Sequence[ObjectShape]]) -> Members:
        """Return an object that begins."""
        valued = dict.fromkeys(name for goal in goals for shape in goal for name, _ in shape.members)
        names = tuple(valued | dict.fromkeys(name for goal in goals for shape in goal for name in shape.names()))
        taken = frozenset(names)
        alive = tuple(
            tuple(shape for shape in goal if machine.sizes.of_object(shape, names, taken, FRESH) < NEVER)
            for goal in goals
        )
        return cls(alive, names, taken, begun=False)


@final
class Object(Container):
    """After the opening brace, or after a member."""

    close = 0x7D

    def __init__(self, machine: Maker, members: Members, layout: Spacing) -> None:
        super().__init__(machine, members.goals, layout, begun=members.begun, firsts=bytes([QUOTE]))
        self._members = members

    def with_layout(self, layout: Spacing) -> State:
        return self._machine.object(self._members, layout)

    def _size(self, shape: ObjectShape) -> int:
        _, ahead, taken, begun = self._members
        return self._machine.sizes.of_object(shape, ahead, taken, self.layout.gaps(begun=begun, members=True))

    def value(self, name: str) -> BeforeValue:
        """Return the state before the value of a member of this name, of which there is one."""
        return self._machine.value(tuple(cell for cell, _ in self._left(name)), self.layout.within)

    def after(self, name: str, layout: Spacing) -> Sequence[State]:
        """Return the states after a member of this name, in a layout."""
        return tuple(self._machine.object(left, one) for one in layout.later() for _, left in self._left(name))

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
            if machine.sizes.of(value) < NEVER and machine.sizes.of_object(left, ahead, taken, BEGUN) < NEVER
        ]
        return [
            (cell, Members(by_goal(held, len(members.goals)), ahead, taken, begun=True))
            for cell, held in machine.cells(steps)
        ]

    def bounds_behind(self, name: str) -> Sequence[int]:
        """Return lower bounds of the sizes behind a name, with each outcome, without the states there."""
        size_of, comma = self._machine.sizes.of, 1 + size(self.layout.comma) if self._begun else 0
        spelled = self._machine.sizes.of_name(name) + comma
        found = []
        for goal in self._totals:
            least = NEVER
            for shape, total in goal:
                value = 1 + size_of(shape.value(name))
                if name in shape.required or shape.some or shape.least > len(shape.required):
                    least = min(least, max(value + 1, total - spelled))
                else:  # a member more, and the rest as without it
                    least = min(least, value + total)
            found.append(least)
        return self.by_outcome(found)

    @cached_property
    def _totals(self) -> Sequence[Sequence[tuple[ObjectShape, int]]]:
        """The shapes of each goal, with the size of the least rest of each."""
        return [[(shape, self._size(shape)) for shape in goal] for goal in self._members.goals]

    def _passed(self, name: str) -> tuple[str, ...]:
        """Return the names that cannot come behind one: those before it in the same ``properties``; behind others none of any."""
        places_of, ahead = self._machine.places, self._members.ahead
        if name not in ahead:
            return tuple(filter(places_of, ahead))
        places = places_of(name)
        before = ahead[: ahead.index(name)] if places else ()
        return tuple(other for other in before if not places.isdisjoint(places_of(other)))

    @cached_property
    def counts(self) -> bool:
        """Whether it matters if a name comes twice: where several members have to come, or one that is of some kind.

        Else a name of which nothing is said by itself may come again. Readers keep the last member of a name, and the same is asked
        of each, so what they read is valid; names of which something is said, and those that are asked for, never come twice.
        """
        shapes = [shape for goal in self._members.goals for shape in goal]
        return any(shape.least > max(len(shape.required), 1) or shape.some for shape in shapes)

    def _names(self) -> tuple[Named, ...]:
        """Return the names that may come: each of those ahead, and sets of others of which the same is asked."""
        machine, members = self._machine, self._members
        found = []
        own = StringSet.of_values(self._possible())
        if not own.is_empty:
            found.append(Named("" if own.lengths else None, begun(own, ascii=machine.ascii)))
        asked = dict.fromkeys(one.names for goal in members.goals for shape in goal for one in shape.every + shape.some)
        cells = told_apart(members.taken, tuple(asked), bounded=machine.kinds.compiling)
        for cell in cells:
            member, _ = next(names_of(cell, ascii=machine.ascii))
            if self._left(member):
                found.append(Named(member, begun(cell, ascii=machine.ascii)))
        return tuple(found)

    def _possible(self) -> set[str]:
        """Return which of the names ahead may come next."""
        machine, members = self._machine, self._members
        found = set[str]()
        for shape in (shape for goal in members.goals for shape in goal):
            # The others that are asked for may still come, whatever comes before them: but behind those, not before.
            passed = set[str]()
            live = [name for name in members.ahead if machine.sizes.of(shape.value(name)) < NEVER]
            behind = len(live)
            for name in live:
                places, behind = machine.places(name), behind - 1
                if name not in found and passed.isdisjoint(places):
                    count = len(shape.required) + (name not in shape.required)
                    if shape.some or shape.least > count + behind - len(shape.required):  # those behind it may come
                        is_possible = bool(self._left(name))
                    else:
                        is_possible = shape.most is None or count <= shape.most
                    if is_possible:
                        found.add(name)
                if name in shape.required:
                    passed |= places
        return found

    @cached_property
    def _key(self) -> State | None:
        """The state after the opening quote of a name."""
        names = self._machine.kept((Named, self._members), self._names)
        return self._machine.key(self, b"", names) if names else None

    def _onward(self, byte: int) -> ByteEdge | None:
        if self._key is None or byte != (COMMA if self._begun else QUOTE):
            return None
        machine = self._machine
        return ByteEdge(
            machine.blank(machine.blank(self._key, literal(b'"')), self.layout.comma) if self._begun else self._key
        )


class Named(NamedTuple):
    """Names, and how far one is spelled: one of those of which the same is asked; ``None`` where each is told apart."""

    member: str | None
    spelled: Spelled


@final
class Key(State):
    """Within a name.

    Attributes
    ----------
    text
        What is spelled of it where names are counted; ``None`` in what stands for such states of any texts.
    names
        The names that it may become.
    """

    def __init__(self, machine: Maker, members: Object, text: bytes | None, names: tuple[Named, ...]) -> None:
        super().__init__()
        self._machine, self._members, self.text, self.names = machine, members, text, names

    @cached_property
    def sizes(self) -> Sequence[int]:
        ways = [
            (name, least, [least + bound for bound in self._members.bounds_behind(name)])
            for member, spelled in self.names
            for name, least in (
                spelled.ways() if member is None and isinstance(spelled, Listed) else [(member or "", spelled.size)]
            )
        ]
        # States behind names are made for those alone that may be the least (branch and bound).
        ways.sort(key=lambda way: min(way[2]))
        found = [NEVER] * len(ways[0][2])
        for name, least, bounds in ways:
            if any(map(lt, bounds, found)):
                sizes = self._machine.colon(self._members, name).sizes
                found = [min(size, least + more) for size, more in zip(found, sizes, strict=True)]
        return found

    @property
    def spelled(self) -> tuple[Spelled, ...]:
        """How far each of the sets is spelled."""
        return tuple(named.spelled for named in self.names)

    def _edge(self, byte: int) -> ByteEdge | None:
        names = tuple(
            Named(member, after) for member, spelled in self.names if (after := spelled.after(byte)) is not None
        )
        assert self.text is not None
        text = self.text + bytes([byte]) if self.counts else b""
        for member, spelled in names:
            if spelled.ended:
                if text:
                    member = json.loads(b'"' + text)
                return self._ended(spelled.word if member is None and isinstance(spelled, Listed) else member or "")
        return ByteEdge(self._machine.key(self._members, text, names)) if names else None

    @property
    def counts(self) -> bool:
        """Whether the name must be known, whatever it is."""
        return self._members.counts

    @property
    def is_other(self) -> bool:
        """Whether it is begun and counted, and none of the names that are told apart begins like it."""
        return bool(self.text) and not any(isinstance(one, Listed) and one.beside for one in self.spelled)

    def closed(self, place: int, text: bytes = b"") -> ByteEdge:
        """Return where the closing quote of a name in one of the sets leads, behind ``text``, which counts where names do."""
        if self.counts:
            assert self.text is not None
            return self._ended(json.loads(b'"' + self.text + text + b'"'))
        return self._ended(self.names[place].member or "")

    def later(self, spelled: tuple[Spelled | None, ...]) -> State | None:
        """Return the state in which the sets are spelled further, those that are not ``None``."""
        pairs = zip(self.names, spelled, strict=True)
        names = tuple(Named(named.member, now) for named, now in pairs if now is not None)
        return self._machine.key(self._members, None if self.counts else b"", names) if names else None

    def _ended(self, name: str) -> ByteEdge:
        """Return where the closing quote of a name leads."""
        return ByteEdge(self._machine.colon(self._members, name))


@final
class Colon(State):
    """After a name."""

    bytes = b":"

    def __init__(self, machine: Maker, members: Object, name: str) -> None:
        super().__init__()
        self._machine, self._members, self._name = machine, members, name

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
    """Return what holds, by place."""
    found: list[dict[Any, None]] = [{} for _ in range(goals)]
    for place, shape in held:
        found[place][shape] = None
    return tuple(map(tuple, found))
