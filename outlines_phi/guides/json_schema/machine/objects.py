"""Places within objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from operator import lt
from typing import Any, NamedTuple, final

from ..names import told_apart
from ..shapes import ObjectShape
from ..strings.quoting import QUOTE
from ..strings.quoting import members as names_of
from ..strings.string_set import StringSet
from .listed import Listed
from .maker import Maker
from .scalars import Spelled, begun
from .sizes import NEVER
from .states import BLANK, WHITE, ByteEdge, State


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
            tuple(shape for shape in goal if machine.sizes.of_object(shape, names, taken, begun=False) < NEVER)
            for goal in goals
        )
        return cls(alive, names, taken, begun=False)


@final
class Object(State):
    """After the opening brace, or after a member."""

    close = 0x7D

    def __init__(self, machine: Maker, members: Members) -> None:
        super().__init__()
        self._machine, self._members = machine, members
        self.bytes = (b"}," if members.begun else b'}"') + BLANK
        self._after: dict[str, tuple[State, Sequence[State]] | None] = {}

    @cached_property
    def sizes(self) -> Sequence[int]:
        return [min((total for _, total in goal), default=NEVER) for goal in self._totals]

    def after(self, name: str) -> tuple[State, Sequence[State]] | None:
        """Return the state before the value of a member of this name, and those after it; ``None`` where there is none."""
        if name not in self._after:
            self._after[name] = self._find_after(name)
        return self._after[name]

    def _find_after(self, name: str) -> tuple[State, Sequence[State]] | None:
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
            if machine.sizes.of(value) < NEVER and machine.sizes.of_object(left, ahead, taken, begun=True) < NEVER
        ]
        cells = machine.cells(steps)
        if not cells:
            return None
        after = tuple(
            machine.object(Members(by_goal(held, len(members.goals)), ahead, taken, begun=True)) for _, held in cells
        )
        return machine.value(tuple(cell for cell, _ in cells)), after

    def bounds_behind(self, name: str) -> Sequence[int]:
        """Return lower bounds of the sizes behind a name, with each outcome, without the states there."""
        size_of, spelled = self._machine.sizes.of, self._machine.sizes.of_name(name) + self._members.begun
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
        return found

    @cached_property
    def _totals(self) -> Sequence[Sequence[tuple[ObjectShape, int]]]:
        """The shapes of each outcome, with the size of the least rest of each."""
        goals, ahead, taken, begun = self._members
        of = self._machine.sizes.of_object
        return [[(shape, of(shape, ahead, taken, begun=begun)) for shape in goal] for goal in goals]

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

    @cached_property
    def _names(self) -> tuple[Named, ...]:
        """The names that may come: each of those ahead, and sets of others of which the same is asked."""
        machine, members = self._machine, self._members
        found = []
        own = StringSet.of_values(self._possible())
        if not own.is_empty:
            found.append(Named("" if own.lengths else None, begun(own, ascii=machine.ascii)))
        asked = dict.fromkeys(one.names for goal in members.goals for shape in goal for one in shape.every + shape.some)
        cells = told_apart(members.taken, tuple(asked), bounded=machine.kinds.compiling)
        for cell in cells:
            member, _ = next(names_of(cell, ascii=machine.ascii))
            if self.after(member) is not None:
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
                        is_possible = self.after(name) is not None
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
        names = self._names
        return self._machine.key(self, b"", names) if names else None

    def _edge(self, byte: int) -> ByteEdge | None:
        machine, members = self._machine, self._members
        if byte == self.close:
            for place, goal in enumerate(members.goals):
                if any(shape.closed for shape in goal):
                    return ByteEdge(None, place)
            return None
        if byte in WHITE:
            return machine.blanks_in(self, members.begun).edge(byte)
        if byte == (0x2C if members.begun else QUOTE) and self._key is not None:
            return ByteEdge(
                machine.blank(machine.quote(self._key), machine.blanks.within) if members.begun else self._key
            )
        return None


class Named(NamedTuple):
    """Names, and how far one is spelled: one of those of which the same is asked; ``None`` where each is told apart."""

    member: str | None
    spelled: Spelled


@final
class Quote(State):
    """Before the opening quote of a name."""

    bytes = b'"'

    def __init__(self, key: State) -> None:
        super().__init__()
        self._key = key

    @property
    def sizes(self) -> Sequence[int]:
        return [1 + size for size in self._key.sizes]

    def _edge(self, byte: int) -> ByteEdge | None:
        return ByteEdge(self._key) if byte == QUOTE else None


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
        value, after = self._found
        ways = [(size, below.sizes) for size, below in zip(value.sizes, after, strict=True)]
        return [1 + min(size + more[i] for size, more in ways) for i in range(len(ways[0][1]))]

    @property
    def _found(self) -> tuple[State, Sequence[State]]:
        found = self._members.after(self._name)
        assert found is not None
        return found

    def _edge(self, byte: int) -> ByteEdge | None:
        if byte != 0x3A:
            return None
        value, after = self._found
        return ByteEdge(self._machine.blank(value, self._machine.blanks.behind), after=after)


def by_goal(held: Sequence[tuple[int, Any]], goals: int) -> tuple[tuple[Any, ...], ...]:
    """Return what holds, by place."""
    found: list[dict[Any, None]] = [{} for _ in range(goals)]
    for place, shape in held:
        found[place][shape] = None
    return tuple(map(tuple, found))
