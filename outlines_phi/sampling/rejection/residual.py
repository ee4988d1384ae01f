"""Residual attempts: an unbiased normaliser within the tree's bounds (theory.md, section 5.7)."""

from __future__ import annotations

from typing import final

import numpy as np

from ...guides.guide import DEAD, DONE
from ...phi.tree.tree import BoundsTree, Node


@final
class ResidualAttempts:
    """Unbiased estimator of the normaliser within the bounds of a tree, by walks that are launched after the draws.

    Each walk goes down in proportion to ``p(v|y) (U - Lo)(yv)`` to a prefix that was unexpanded at the launch and on from there
    by ``p`` alone, failing outside the language. It succeeds with probability ``(Phi - Lo) / (U - Lo)``, so
    ``Z_hat = Lo + (U - Lo) 1[success]`` has mean ``Phi`` and lies within the bounds. All walks reach their prefix before the
    first of them expands anything. A constraint may still rule out what a walk has found while others go down, so a walk arrives
    with the gap it was chosen by and fails with probability ``1 - gap_now / gap``: the coin of rejection.

    Parameters
    ----------
    tree
        The bounds.
    streams
        One random stream per attempt.
    width
        Walks that go on from their prefixes at once, at most; the next one goes on where one has finished.
    """

    def __init__(self, tree: BoundsTree, streams: list[np.random.Generator], *, width: int) -> None:
        self.tree, self._streams, self._width = tree, streams, width
        self._lower, self._gap = tree.root.lower, tree.root.gap
        self._places: list[Node | None] = [tree.root if self._gap > 0 else None for _ in streams]
        self._gaps = [self._gap] * len(streams)
        self._descending = self._gap > 0
        self._walking: list[int] = []

    def advance(self) -> list[Node]:
        """Walk every attempt as far as it goes without the model; return the nodes they wait for, none when all are finished."""
        if self._descending:
            self._places = [self._descend(number) for number in range(len(self._places))]
            below = [node for node in self._places if node is not None and node.state != DONE]
            evicted = [node for node in below if node.expanded and node.law is None]
            if evicted:
                return evicted
            self._descending = False
            self._walking = [number for number, node in enumerate(self._places) if node is not None]
        waiting: list[int] = []
        rest = iter(self._walking)
        while len(waiting) < self._width and (number := next(rest, None)) is not None:
            node = self._places[number]
            assert node is not None
            node = self._places[number] = self._continue(node, self._streams[number])
            if node is not None and node.state != DONE:
                waiting.append(number)
        self._walking = [*waiting, *rest]
        return [node for number in waiting if (node := self._places[number]) is not None]

    @property
    def successes(self) -> int:
        """How many of the finished attempts found a member."""
        return sum(node is not None for node in self._places)

    @property
    def estimates(self) -> tuple[float, ...]:
        """``Z_hat`` of each finished attempt."""
        return tuple(self._lower + (self._gap if node is not None else 0.0) for node in self._places)

    def _descend(self, number: int) -> Node | None:
        node, rng = self._places[number], self._streams[number]
        while node is not None and node.expanded and node.law is not None:
            self.tree.visit(node)
            if rng.random() * self._gaps[number] >= node.gap:
                return None
            node = self.tree.choose_undecided(node, rng)
            self._gaps[number] = node.gap
        return None if node is None or node.state == DEAD else node

    def _continue(self, node: Node, rng: np.random.Generator) -> Node | None:
        while node.state != DONE and node.law is not None:
            self.tree.visit(node)
            if rng.random() >= node.live:
                return None
            node = self.tree.choose(node, _one, rng)
        return node if node.state != DEAD else None


def _one(node: Node) -> float:
    return 1.0
