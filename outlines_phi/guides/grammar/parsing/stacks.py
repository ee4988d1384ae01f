"""Parser stacks that share what lies below them: immutable, each made once, known by a number."""

from __future__ import annotations

from collections.abc import Collection
from typing import final

UNKNOWN = 0
"""The stack of which nothing is known: it lies below the entries of a stack that was cut off, and below itself."""


@final
class Stacks:
    """A growing table of stacks.

    A stack is a state of an LR automaton on top of others: on top of one, where it is an ordinary stack, or of several, where
    it stands for as many (a graph-structured stack: Tomita, "An efficient augmented-context-free parsing algorithm", 1987).
    Equal stacks have equal numbers, so the sharing is complete and comparison is that of numbers.

    Attributes
    ----------
    top
        For each stack its state; -1 for :data:`UNKNOWN`.
    below
        For each stack those below its top, ascending; ``()`` for a stack of one entry.
    """

    def __init__(self) -> None:
        self.top = [-1]
        self.below: list[tuple[int, ...]] = [(UNKNOWN,)]
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}

    def __len__(self) -> int:
        return len(self.top)

    def push(self, state: int, below: Collection[int]) -> int:
        """Return the stack of ``state`` on top of those in ``below``, which are all different."""
        key = (state, tuple(sorted(below)) if len(below) > 1 else tuple(below))
        number = self._numbers.setdefault(key, len(self.top))
        if number == len(self.top):
            self.top.append(state)
            self.below.append(key[1])
        return number

    def descend(self, stack: int, entries: int) -> Collection[int]:
        """Return the stacks that are left when ``entries`` are taken off."""
        left: Collection[int] = (stack,)
        for _ in range(entries):
            left = (
                self.below[next(iter(left))]
                if len(left) == 1
                else {lower for upper in left for lower in self.below[upper]}
            )
        return left

    def cut(self, stacks: Collection[int], entries: int) -> set[int]:
        """Return ``stacks`` with what lies below their top ``entries`` replaced by :data:`UNKNOWN`."""
        levels = [set(stacks) - {UNKNOWN}]
        while len(levels) < entries and levels[-1]:
            levels.append({lower for upper in levels[-1] for lower in self.below[upper]} - {UNKNOWN})
        new: dict[int, int] = {}
        for level in reversed(levels[:entries]):
            new = {
                upper: self.push(self.top[upper], {new.get(lower, UNKNOWN) for lower in self.below[upper]})
                for upper in level
            }
        return {new.get(stack, UNKNOWN) for stack in stacks}
