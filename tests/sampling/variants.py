"""Variants of adaptive rejection that look right and are not (theory.md, sections 5 and 11); each is caught by the tests."""

import math

import pytest

from tests.inner import Attempt, Attempts, BoundsTree, Node, RejectionAttempts

WALK = RejectionAttempts._walk
RECOMPUTE = Node.recompute


def without_coin(self: Attempts, attempt: Attempt) -> bool | None:
    """Walk as if an attempt had always carried the bound of now."""
    if attempt.node.distribution is not None:
        attempt.log_bound = attempt.node.log_upper
    return WALK(self, attempt)


def first_to_finish(self: Attempts) -> None:
    """Read successes as they come, whatever was launched before them."""
    for number in list(self._finished):
        node, _ = self._finished.pop(number)
        self.read += 1
        if node is not None and not self.satisfied:
            self.accepted.append(node)


def cut_by_length(self: Attempts, attempt: Attempt) -> bool | None:
    """Give up an attempt that is long under way."""
    success = WALK(self, attempt)
    return False if success is None and len(attempt.node.tokens()) >= 2 else success


WRONG = {
    "no thinning coin": ("_walk", without_coin),
    "first to finish": ("_read_in_order", first_to_finish),
    "attempts cut by a token budget": ("_walk", cut_by_length),
}
"""Methods of :class:`RejectionAttempts`, and what is wrong in their place."""


def keep_bounds_after_eviction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget subtrees but keep their bounds, with the coin of a fresh node, which takes its bound to be 1 whatever was kept."""
    fresh: set[Node] = set()

    def forget(self: BoundsTree, node: Node) -> None:
        for below in list(self.walk(node)):
            self.nodes -= 1
            below.children, below.distribution, below.log_rest, below.expanded = {}, None, -math.inf, False
        self.nodes += 1

    def recompute(self: Node) -> bool:
        return RECOMPUTE(self) if self.expanded else False

    def walk(self: Attempts, attempt: Attempt) -> bool | None:
        if attempt.node.distribution is not None:
            attempt.log_bound = 0.0 if attempt.node in fresh else attempt.log_bound
        else:
            fresh.add(attempt.node)
        success = WALK(self, attempt)
        if attempt.node.distribution is None:
            fresh.add(attempt.node)
        return success

    monkeypatch.setattr(BoundsTree, "_forget", forget)
    monkeypatch.setattr(Node, "recompute", recompute)
    monkeypatch.setattr(RejectionAttempts, "_walk", walk)
