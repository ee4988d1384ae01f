"""Places within arrays, and before a closing bracket."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from typing import final

from ..formula import Formula, both
from ..shapes import ArrayShape
from ..values import sort_key
from .maker import Maker
from .objects import Object, by_goal
from .seen import NOTHING, Seen, value_of
from .sizes import NEVER
from .states import BEGINNINGS, BLANK, WHITE, ByteEdge, Pending, State


@final
class Array(State):
    """After the opening bracket, or after an item."""

    close = 0x5D

    def __init__(
        self, machine: Maker, goals: tuple[tuple[ArrayShape, ...], ...], begun: bool, seen: Seen = NOTHING
    ) -> None:
        super().__init__()
        self._machine, self._goals, self._begun, self._seen = machine, goals, begun, seen
        self.bytes = b"]," + BLANK if begun else b"]" + BLANK + BEGINNINGS

    @cached_property
    def sizes(self) -> Sequence[int]:
        of = self._machine.sizes.of_array
        return [
            min((of(shape, begun=self._begun, seen=self._seen) for shape in goal), default=NEVER)
            for goal in self._goals
        ]

    @cached_property
    def _item(self) -> tuple[State, Sequence[State]] | None:
        """The state before the next item, and those after it."""
        machine, seen = self._machine, self._seen
        sizes = machine.sizes
        shapes = [(place, shape) for place, goal in enumerate(self._goals) for shape in goal]
        values = set[Hashable]().union(*(sizes.contested(shape, seen) for _, shape in shapes))
        regions: list[tuple[Formula, Hashable | None]] = [
            (Seen(frozenset([value])).like, value) for value in sorted(values, key=sort_key)
        ]
        regions.append((seen.with_all(values).unlike, None))
        cells: list[tuple[Formula, State]] = []
        for region, value in regions:
            steps = [
                (place, item, (left, sizes.of_rest(shape, item, left, seen, value)))
                for place, shape in shapes
                for item, left in shape.steps()
            ]
            cells += self._cells(steps, region)
        # What is there already is an item of those alone whose items need not differ.
        steps = [
            (place, item, (left, sizes.of_rest(shape, item, left, seen)))
            for place, shape in shapes
            if seen != NOTHING and not shape.unique
            for item, left in shape.steps()
        ]
        if steps:
            cells += self._cells(steps, seen.like)
        return (machine.value(tuple(cell for cell, _ in cells)), tuple(after for _, after in cells)) if cells else None

    def _cells(
        self, steps: Sequence[tuple[int, Formula, tuple[ArrayShape, int]]], region: Formula
    ) -> Iterator[tuple[Formula, State]]:
        """Yield what the next item may be in a region of values, and the state after it."""
        sizes = self._machine.sizes
        live = [(place, item, held) for place, item, held in steps if held[1] < NEVER and sizes.of(item) < NEVER]
        for cell, held in self._machine.cells(live):
            if sizes.of(within := both(cell, region)) < NEVER:
                yield within, self._after(held)

    def _after(self, held: Sequence[tuple[int, tuple[ArrayShape, int]]]) -> State:
        """Return the state after an item."""
        goals = by_goal([(place, left) for place, (left, _) in held], len(self._goals))
        if not any(shape.unique and shape.most != 0 for goal in goals for shape in goal):
            return self._machine.array(tuple(map(_widest, goals)), begun=True)
        sizes = [min((size for at, (_, size) in held if at == place), default=NEVER) for place in range(len(goals))]

        def then(text: bytes) -> State:
            return self._machine.array(goals, begun=True, seen=self._seen.and_also(value_of(text)))

        return Pending(sizes, then)

    def _edge(self, byte: int) -> ByteEdge | None:
        if byte == self.close:
            for place, goal in enumerate(self._goals):
                if any(shape.closed for shape in goal):
                    return ByteEdge(None, place)
            return None
        if byte in WHITE:
            return self._machine.blanks_in(self, self._begun).edge(byte)
        if self._item is None:
            return None
        value, after = self._item
        if self._begun:
            return (
                ByteEdge(self._machine.blank(value, self._machine.blanks.within), after=after) if byte == 0x2C else None
            )
        edge = value.edge(byte)
        return None if edge is None else edge._replace(after=after)


def _widest(shapes: Sequence[ArrayShape]) -> tuple[ArrayShape, ...]:
    """Return the shapes without those that others cover: an item that is counted need not be passed over as well."""
    found: list[ArrayShape] = []
    for shape in shapes:
        if not any(other.covers(shape) for other in found):
            found = [*(other for other in found if not shape.covers(other)), shape]
    return tuple(found)


@final
class Close(State):
    """Before a closing bracket."""

    def __init__(self, around: Array | Object) -> None:
        super().__init__()
        self._around = around
        self.bytes = bytes([around.close])

    @property
    def is_possible(self) -> bool:  # type: ignore[override]
        """Whether it may come here."""
        return self._around.edge(self._around.close) is not None

    @property
    def sizes(self) -> Sequence[int]:
        closing = self._around.edge(self._around.close)
        return [1 if closing is not None and closing.outcome == i else NEVER for i in range(len(self._around.sizes))]

    def _edge(self, byte: int) -> ByteEdge | None:
        return self._around.edge(byte) if byte == self._around.close else None
