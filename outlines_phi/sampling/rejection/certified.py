"""Draws from an enumerated tree, without rejection."""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np

from ...guides.guide import DEAD, DONE
from ...numerics.inverse_cdf import draw
from ...numerics.weights import scaled
from ...phi.tree.tree import BoundsTree, Node
from .attempts import Attempt, Attempts


@final
class CertifiedAttempts(Attempts):
    """The ``U``-walk, completed by plain masking below the tree, under bounds frozen at the start.

    Its law is within ``(U - Lo) / U`` of ``mu*`` in total variation (theory.md, section 5.8), because both are proportional to
    ``p`` on the members that the tree holds whole. A walk fails where truncation leaves it no token, or the constraint rules out
    what it has written. What it expands
    serves later calls; it walks by the frozen bounds, kept beside the tree's own.
    """

    def __init__(self, tree: BoundsTree, *arguments: Any, **options: Any) -> None:
        super().__init__(tree, *arguments, **options)
        self._frozen = {node: node.upper for node in tree.walk()}

    def _evict(self) -> None:
        """Drop laws only: the certificate is about the nodes that were enumerated."""
        self.tree.drop_laws(self._max_bytes)

    def _walk(self, attempt: Attempt) -> None:
        while attempt.node.state != DONE:
            node = attempt.node
            self.tree.visit(node)
            if node.state == DEAD:
                return self._finish(attempt, success=False)
            if node.law is None:
                return self._wait(attempt)
            if node.rest + sum(child.p * self._weight(child) for child in node.children.values()) <= 0:
                return self._finish(attempt, success=False)
            attempt.node = self.tree.choose(node, self._weight, attempt.rng)
        self._finish(attempt, success=True)

    def _weight(self, node: Node) -> float:
        return self._frozen.get(node, 1.0)


@final
class ConfidentAttempts(Attempts):
    """Draws of the members that the tree holds whole, in proportion to ``p``.

    Their law ``mu_Lo`` is that of the walk by the lower bounds, ``p(v|y) Lo(yv) / Lo(y)``, and its total variation to ``mu*`` is
    ``1 - Lo / Phi``. No walk fails, and none needs the model, but where the law of a prefix was dropped. The members are those of
    the start. At its limit free text ends with any token: those ends have no nodes, and are held by the prefix before them.
    """

    def __init__(self, tree: BoundsTree, *arguments: Any, **options: Any) -> None:
        super().__init__(tree, *arguments, **options)
        nodes = list(tree.walk())
        members = [node for node in nodes if node.state == DONE and node.log_p > -math.inf]
        ending = [node for node in nodes if node.ends > 0]
        self._held, self._members = members + ending, set(members)
        log_p = [node.log_p for node in members] + [node.log_p + math.log(node.ends) for node in ending]
        self._p = scaled(np.array(log_p))
        self._chosen: dict[int, Node] = {}

    def _evict(self) -> None:
        self.tree.drop_laws(self._max_bytes)

    def _walk(self, attempt: Attempt) -> None:
        if attempt.number not in self._chosen:
            self._chosen[attempt.number] = attempt.node = self._held[draw(self._p, attempt.rng)]
        if attempt.node.state != DONE:
            if attempt.node.law is None:
                return self._wait(attempt)
            attempt.node = self._ended(attempt.node, attempt.rng)
        self._finish(attempt, success=True)

    def _ended(self, node: Node, rng: np.random.Generator) -> Node:
        """Draw one of the ends of ``node`` that had no node at the start."""
        assert node.law is not None
        made = [child for child in node.children.values() if child.state == DONE and child not in self._members]
        place = draw(np.array([*(child.p for child in made), node.ends]), rng)
        return made[place] if place < len(made) else self.tree.child(node, node.law.draw_ended(rng), DONE)
