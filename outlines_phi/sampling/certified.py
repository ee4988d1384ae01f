"""Draws from an enumerated tree, without rejection."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np

from ..guides.guide import DONE
from ..phi.exact import Effort
from ..phi.tree import BoundsTree, Node


@final
class CertifiedAttempts:
    """The ``U``-walk of one prompt, completed by plain masking below the tree, under bounds frozen at the start.

    Its law is within ``(U - Lo) / U`` of ``mu*`` in total variation (mathematics.md, section 5), because both are proportional to
    ``p`` on the members that the tree holds whole. What the walk expands serves later calls; this one walks by frozen bounds,
    kept beside the tree's own.

    Parameters
    ----------
    tree, wanted, stream, width, effort
        As for :class:`outlines_phi.sampling.rejection.Attempts`.
    """

    def __init__(
        self,
        tree: BoundsTree,
        wanted: int,
        stream: Callable[[int], np.random.Generator],
        *,
        width: int,
        effort: Effort,
    ) -> None:
        self._tree, self._wanted, self._stream, self._width = tree, wanted, stream, width
        self._limit = effort.attempts * wanted
        self._upper = {node: node.upper for node in tree.walk()}
        self._walks: list[tuple[int, Node, np.random.Generator]] = []
        self._finished: dict[int, Node | None] = {}
        self._launched = 0
        self._successes = 0
        self.read = 0
        self.accepted: list[Node] = []

    @property
    def satisfied(self) -> bool:
        """Whether all wanted draws have been read."""
        return len(self.accepted) >= self._wanted

    @property
    def impossible(self) -> bool:
        """Whether nothing in the language has any probability."""
        return self._upper[self._tree.root] <= 0

    def start(self) -> list[Node]:
        """Launch the first walks; then as :meth:`advance`."""
        return self.advance()

    def advance(self) -> list[Node]:
        """Walk as far as the model's answers reach; return the nodes that are waited for."""
        moving, self._walks = self._walks, []
        while moving or self._may_launch():
            while len(moving) + len(self._walks) < self._width and self._may_launch(len(moving)):
                moving.append((self._launched, self._tree.root, self._stream(self._launched)))
                self._launched += 1
            for walk in moving:
                self._walk(*walk)
            moving = []
            while self.read in self._finished and not self.satisfied:
                node = self._finished.pop(self.read)
                self.read += 1
                if node is not None:
                    self.accepted.append(node)
            if len(self._walks) >= self._width:
                break
        if self.satisfied:
            self._walks = []
        return [node for _, node, _ in self._walks]

    def _may_launch(self, moving: int = 0) -> bool:
        return (
            len(self._walks) + moving + self._successes < self._wanted
            and not self.impossible
            and self._launched < self._limit
        )

    def _walk(self, number: int, node: Node, rng: np.random.Generator) -> None:
        while node.state != DONE:
            node.touched = self._tree.clock
            if node.law is None:
                self._walks.append((number, node, rng))
                return
            weights = (child.p * self._weight(child) for child in node.children.values())
            if node.rest + sum(weights) <= 0:
                self._finished[number] = None
                return
            node = self._tree.choose(node, self._weight, rng)
        self._finished[number] = node
        self._successes += 1

    def _weight(self, node: Node) -> float:
        return self._upper.get(node, 1.0)
