"""Tokens within a string, many at once: those that stay in it, and what is read behind its closing quote."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import final

from ...numerics.cache import Cache
from .machine.scalars import Text, on_path
from .machine.states import ByteEdge, State
from .token_forest import Split, TokenForest


@final
class Interior:
    """Transitions of tokens from a place in a string on, below a node of the forest.

    Attributes
    ----------
    split
        The tokens off the paths of listed texts, ``None`` where all texts are listed.
    ends
        Nodes on the paths, each with the state there; they come before what ``split`` says.
    exits
        Nodes behind closing quotes, each with the edge of the quote.
    """

    def __init__(self, forest: TokenForest, state: Text, node: int) -> None:
        self.state, self.node = state, node
        self.ends, self.exits, taken = list[tuple[int, State]](), list[tuple[int, ByteEdge]](), list[int]()
        for child, edge in _along(forest, state, node):
            if edge is None or not isinstance(edge.target, Text):
                taken.append(child)
                self.exits += [] if edge is None else [(child, edge)]
            elif on_path(edge.target.spelled):
                self.ends.append((child, edge.target))
        split = self.split = Split.within(forest, state.spelled, node)
        for place, closing in split.closings(state.spelled).items() if split is not None else ():
            rest = split.rest(closing, taken) if split is not None else None
            if rest is not None and state.counts:  # each is a name of its own
                texts = ((one, forest.text(one, node)) for one in forest.nodes(rest).tolist())
                self.exits += ((one, state.closed(place, text)) for one, text in texts)
            elif rest is not None:
                self.exits.append((rest, state.closed(place)))

    @classmethod
    def of(cls, forest: TokenForest, kept: Cache[tuple[State, int], Interior], state: Text, node: int) -> Interior:
        """Return the interior that is kept, made once."""
        size = 1000 if node else 4 * len(forest.vocabulary)
        return kept.of((state, node), lambda: cls(forest, state, node), lambda _: size)

    @cached_property
    def targets(self) -> list[State | None]:
        """The state behind the tokens of each group that stays off the paths; ``None`` where they are not allowed."""
        assert self.split is not None
        groups = range(len(self.split.stays.sizes))
        return [self.state.later(self.split.onward(self.state.spelled, group)) for group in groups]


def _along(forest: TokenForest, state: Text, node: int) -> Iterator[tuple[int, ByteEdge | None]]:
    """Yield the nodes below one that spell listed texts, or begin to, and each with the edge that leads there, or None."""
    path = on_path(state.spelled)
    children = forest.children(node) if path else {}
    for byte in path:
        if (child := children.get(byte)) is not None:
            edge = state.edge(byte)
            yield child, edge
            if edge is not None and isinstance(edge.target, Text):
                yield from _along(forest, edge.target, child)
