"""Places within arrays."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import TypeAlias, final

from ..formula import Formula, both
from ..shapes import ArrayShape
from ..values import sort_key
from .blanks import Spacing, size
from .containers import COMMA, Container
from .maker import BeforeValue, Maker
from .objects import by_goal
from .seen import NOTHING, Seen, value_of
from .sizes import NEVER
from .states import BEGINNINGS, ByteEdge, Pending, State

Asked: TypeAlias = tuple[ArrayShape, Formula, ArrayShape, Seen, Hashable | None]
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
        seen: Seen = NOTHING,
    ) -> None:
        super().__init__(machine, goals, layout, begun=begun, firsts=BEGINNINGS)
        self._shapes, self._seen = goals, seen

    def with_layout(self, layout: Spacing) -> State:
        return self._machine.array(self._shapes, layout, begun=self._begun, seen=self._seen)

    def _size(self, shape: ArrayShape) -> int:
        return self._machine.sizes.of_array(shape, self.layout.gaps(begun=self._begun), seen=self._seen)

    @property
    def _cells(self) -> list[tuple[Formula, Held]]:
        """The formulas of the next item, each with the remaining shapes after it: found once for all layouts."""
        return self._machine.kept((Array, self._shapes, self._begun, self._seen), self._find_cells)

    def _find_cells(self) -> list[tuple[Formula, Held]]:
        machine, seen = self._machine, self._seen
        sizes = machine.sizes
        shapes = [(place, shape) for place, goal in enumerate(self._shapes) for shape in goal]
        values = set[Hashable]().union(*(sizes.contested(shape, seen) for _, shape in shapes))
        regions: list[tuple[Formula, Hashable | None]] = [
            (Seen(frozenset([value])).like, value) for value in sorted(values, key=sort_key)
        ]
        regions.append((seen.with_all(values).unlike, None))
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
        live = [one for one in steps if sizes.of_rest(*one[2][1]) < NEVER and sizes.of(one[1]) < NEVER]
        cells = [(both(cell, region), held) for cell, held in self._machine.cells(live)]
        return [(within, held) for within, held in cells if sizes.of(within) < NEVER]

    @cached_property
    def _value(self) -> BeforeValue | None:
        """The state before the next item."""
        cells = self._cells
        return self._machine.value(tuple(cell for cell, _ in cells), self.layout.within) if cells else None

    def _after(self, layout: Spacing) -> Sequence[State]:
        """Return the states after an item."""
        return tuple(self._left(held, one) for one in layout.later() for _, held in self._cells)

    def _left(self, held: Held, layout: Spacing) -> State:
        machine = self._machine
        goals = by_goal([(place, left) for place, (left, _) in held], len(self._shapes))
        if not any(shape.unique and shape.most != 0 for goal in goals for shape in goal):
            return machine.array(tuple(map(_widest, goals)), layout, begun=True)
        rests = [(place, machine.sizes.of_rest(*asked, gaps=layout.gaps(begun=True))) for place, (_, asked) in held]
        around = layout.before + size(layout.closing)
        sizes = [min((one for at, one in rests if at == place), default=NEVER) + around for place in range(len(goals))]

        def then(text: bytes) -> State:
            return machine.array(goals, layout, begun=True, seen=self._seen.and_also(value_of(text)))

        return Pending(sizes, then)

    def _onward(self, byte: int) -> ByteEdge | None:
        value, layout = self._value, self.layout
        if value is None or (self._begun and byte != COMMA):
            return None
        if not self._begun:
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
