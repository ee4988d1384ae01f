"""Variants of adaptive rejection that look right and are not (mathematics.md, section 5); each is caught by the tests."""

from __future__ import annotations

from outlines_phi.sampling.attempts import Attempt, Attempts
from outlines_phi.sampling.rejection import RejectionAttempts

WALK = RejectionAttempts._walk


def without_coin(self: Attempts, attempt: Attempt) -> None:
    """Walk as if an attempt had always carried the bound of now."""
    attempt.bound = attempt.node.upper if attempt.node.law is not None else attempt.bound
    WALK(self, attempt)


def first_to_finish(self: Attempts) -> None:
    """Read successes as they come, whatever was launched before them."""
    for number in list(self._finished):
        node = self._finished.pop(number)
        self.read += 1
        if node is not None and not self.satisfied:
            self.accepted.append(node)


def cut_by_length(self: Attempts, attempt: Attempt) -> None:
    """Give up an attempt that is long under way."""
    WALK(self, attempt)
    if attempt in self._waiting and len(attempt.node.tokens()) >= 2:
        self._waiting.remove(attempt)
        self._finished[attempt.number] = None
