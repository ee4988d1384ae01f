"""Exact draws: adaptive rejection by thinning over the token tree (theory.md, section 5.3)."""

from __future__ import annotations

from typing import final

from ...guides.guide import DEAD, DONE
from ...phi.tree.tree import BoundsTree, Node
from .attempts import Attempt, Attempts


@final
class RejectionAttempts(Attempts):
    """Walks that return each member with probability ``p(y) / U_launch(root)``: i.i.d. ``mu*``.

    An attempt arrives at ``y`` with the bound ``u`` of the moment it was chosen. With probability ``1 - U_now(y) / u`` it fails;
    else it draws ``v ~ p(v|y) U_now(yv) / U_now(y)`` and carries ``U_now(yv)`` on. That holds whatever other attempts expand
    meanwhile, so they may share and tighten one tree and run as one batch.
    """

    def _evict(self) -> None:
        """Drop laws and subtrees, sparing the paths of the walks that wait; see :meth:`BoundsTree.evict`."""
        self.tree.evict(self._max_bytes, pinned=[*self.waiting, *self.others()])

    def _walk(self, attempt: Attempt) -> None:
        arrived = descend(self.tree, attempt)
        if arrived is None:
            self._wait(attempt)
        else:
            self._finish(attempt, success=arrived)


def descend(tree: BoundsTree, attempt: Attempt) -> bool | None:
    """Take an attempt down as far as laws are known; return whether it found a member, ``None`` where it waits for a law."""
    while attempt.node.state != DONE:
        node = attempt.node
        tree.visit(node)
        if node.state == DEAD:
            return False
        if node.law is None:
            return None
        if attempt.rng.random() * attempt.bound >= node.upper:
            return False
        attempt.node = tree.choose(node, _upper, attempt.rng)
        attempt.bound = attempt.node.upper
    return True


def _upper(node: Node) -> float:
    return node.upper
