"""Residual attempts: an unbiased normaliser within the tree's bounds (theory.md, section 5.7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, TypeVar, final

import numpy as np

from ...guides.guide import DEAD, DONE
from ...lm.watch import current
from ...numerics.weights import log_sum, ratio
from ...phi.tree.best_first import BestFirst, grow_trees, is_decided
from ...phi.tree.evaluator import Evaluator
from ...phi.tree.evidence import Evidence, Wave
from ...phi.tree.tree import BoundsTree, Node
from ..draw import Certificate
from ..sampler import Stream
from .attempts import unweighted


@final
class ResidualAttempts:
    """Unbiased estimator of the normaliser within the bounds of a tree: ``Z_hat = Lo + (U - Lo) 1[success]`` of walks that are
    launched after the draws (theory.md, section 5.7).

    Each goes down in proportion to ``p(v|y) (U - Lo)(yv)`` to a prefix that was unexpanded at the launch, with the coin of
    rejection on the way, and on from there by ``p`` alone. All walks reach their prefix before the first of them expands anything.

    ``streams``: One random stream per attempt.
    ``width``: Walks that go on from their prefixes at once, at most; the next one goes on where one has finished.
    """

    def __init__(self, tree: BoundsTree, streams: list[np.random.Generator], *, width: int) -> None:
        self.tree, self._streams, self._width = tree, streams, width
        self._log_lower, self._log_gap = tree.root.log_lower, tree.root.log_gap
        self._descending = self._log_gap > -math.inf
        self._places: list[Node | None] = [tree.root if self._descending else None for _ in streams]
        self._log_gaps = [self._log_gap] * len(streams)
        self._walking: list[int] = []

    def advance(self) -> list[Node]:
        """Walk every attempt as far as it goes without the model; return the nodes they wait for, none when all are finished."""
        if self._descending:
            self._places = [self._descend(number) for number in range(len(self._places))]
            below = [node for node in self._places if node is not None and node.state != DONE]
            evicted = [node for node in below if node.expanded and node.distribution is None]
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
    def log_estimates(self) -> tuple[float, ...]:
        """``log Z_hat`` of each finished attempt."""
        success = log_sum([self._log_lower, self._log_gap])
        return tuple(self._log_lower if node is None else success for node in self._places)

    def _descend(self, number: int) -> Node | None:
        node, rng = self._places[number], self._streams[number]
        while node is not None and node.expanded and node.distribution is not None:
            self.tree.visit(node)
            if rng.random() >= ratio(node.log_gap, self._log_gaps[number]):
                return None
            node = self.tree.choose_undecided(node, rng)
            self._log_gaps[number] = node.log_gap
        return None if node is None or node.state == DEAD else node

    def _continue(self, node: Node, rng: np.random.Generator) -> Node | None:
        while node.state != DONE and node.distribution is not None:
            self.tree.visit(node)
            if rng.random() >= ratio(node.log_live, 0.0):
                return None
            node = self.tree.choose(node, unweighted, rng)
        return node if node.state != DEAD else None


RESERVE = 1 / 4
"""The last part of the model tokens is for residual attempts alone."""

NumberedStreams: TypeAlias = Callable[[int], np.random.Generator]

T = TypeVar("T")
Steps: TypeAlias = Generator[list[Node], None, T]
"""Yields the nodes to expand, one call after the other."""


@final
class Certification:
    """Grows one tree until it certifies a total variation to ``mu*``, for certain or at a confidence.

    Enumerated until ``U - Lo <= eps Lo``, the tree gives draws within ``(U - Lo) / U`` of ``mu*`` for certain. Else residual
    attempts give an upper limit ``phi`` of Phi (:class:`Evidence`), and the members that the tree holds whole are within
    ``1 - Lo / phi`` at the confidence (theory.md, section 5.8). A confidence of 1 makes no attempts.

    *How the tokens are divided.* If none of what is undecided is valid, about ``log(2 / (1 - confidence)) R / (eps Lo)`` attempts
    suffice, and enumeration makes ``R / Lo`` smaller. Attempts begin as soon as the number that would suffice, if all of them
    fail, brings their cost to no more than that of enumeration so far. Where some succeed, that number grows, and enumeration
    goes on until attempts are worth it again. The last quarter of the tokens is for attempts alone, so that a call that gives up
    can say what is certified. An attempt is taken to cost what those before it did, the first ones as much as the shortest text.
    A wave has at most as many attempts as there were before it (or as may be in flight), and is always finished.

    ``tolerance``, ``confidence``: The certificate that is asked for; ``tolerance`` is ``eps``.
    ``max_tokens``, ``max_attempts``: Model tokens to spend here, and residual attempts to launch, at most; checked before a
    call or a wave begins, as is the time of the call that is watched.
    ``width``: Attempts in flight at once.
    ``max_bytes``: Memory that the tree may take, give or take one call.
    """

    def __init__(
        self,
        tree: BoundsTree,
        tolerance: float,
        confidence: float,
        stream: NumberedStreams,
        *,
        max_tokens: int,
        max_attempts: int,
        width: int,
        max_bytes: int = 2**40,
    ) -> None:
        self.tree, self.tolerance, self.confidence = tree, tolerance, confidence
        self.evidence = Evidence()
        self._stream, self._width, self._max_bytes = stream, width, max_bytes
        self._max_tokens, self._max_attempts = max_tokens, max_attempts
        self._before, self._watch = tree.expansions, current()
        self._attempts_cost = 0
        self._steps = self._run()

    @property
    def certain(self) -> bool:
        """Whether the bounds alone certify the tolerance."""
        return is_decided(self.tree, self.tolerance)

    @property
    def reached(self) -> bool:
        """Whether the tolerance is certified, for certain or at the confidence."""
        return self.certain or self.evidence.rules_out(self._log_goal, 1 - self.confidence)

    @property
    def certificate(self) -> Certificate:
        """The certificate by now, reached or not."""
        root = self.tree.root
        if self.certain or not self.evidence.attempts:
            # Walks by the upper bounds, or by the lower ones.
            return Certificate(total_variation=ratio(root.log_gap, root.log_upper))
        return Certificate(total_variation=1 - ratio(root.log_lower, self._log_limit), confidence=self.confidence)

    @property
    def log_bounds(self) -> tuple[float, float]:
        """Bounds of log Phi: those of the certificate where it holds at a confidence, else the tree's, which are certain."""
        root = self.tree.root
        return (root.log_lower, self._log_limit) if self.reached and not self.certain else self.tree.log_bounds

    @property
    def _log_limit(self) -> float:
        root = self.tree.root
        return max(root.log_lower, min(root.log_upper, self.evidence.log_limit(1 - self.confidence)))

    def advance(self) -> list[Node]:
        """Return the nodes to expand next; none when the tolerance is certified or the effort is spent."""
        return next(self._steps, [])

    def _run(self) -> Steps[None]:
        while not self.reached and self._left > 0:
            if count := self._worthwhile():
                yield from self._attempt(count)
            elif not (yield from self._enumerate()):
                # Nothing more fits the memory or the share of the tokens.
                if not (count := self._affordable()):
                    return
                yield from self._attempt(count)

    def _enumerate(self) -> Steps[bool]:
        """Enumerate until attempts are worth it; return whether anything was expanded."""
        share = self._left - (RESERVE * self._max_tokens if self.confidence < 1 else 0)
        if share <= 0 and self.tree.root.expanded:
            return False
        enumeration = BestFirst(self.tree, self.tolerance, math.ceil(share), self._max_bytes)
        any_ = False
        while not (any_ and (self.reached or self._worthwhile())) and (nodes := enumeration.advance()):
            any_ = True
            yield nodes
        return any_

    def _attempt(self, count: int) -> Steps[None]:
        """Launch a wave of residual attempts at the bounds of now."""
        root, first, begun = self.tree.root, self.evidence.attempts, self.tree.expansions
        log_lower, log_gap = root.log_lower, root.log_gap
        walks = ResidualAttempts(self.tree, list(map(self._stream, range(first, first + count))), width=self._width)
        while nodes := walks.advance():
            self.tree.drop_distributions(self._max_bytes)
            yield nodes
        self._attempts_cost += self.tree.expansions - begun
        self.evidence.add(Wave(log_lower, log_gap, count, walks.successes))

    def _worthwhile(self) -> int:
        """Return how many attempts to launch now rather than to enumerate; 0 where they would cost more than that has so far."""
        root, affordable = self.tree.root, self._affordable()
        if not affordable or root.log_lower == -math.inf:
            return 0
        missing = self.evidence.missing(self._log_goal, 1 - self.confidence, root.log_lower, root.log_gap)
        cost = self._attempts_cost + missing * self._cost
        enumerated = self.tree.expansions - self._attempts_cost
        if cost > enumerated or missing * self._cost > self._left:
            return 0
        return min(affordable, int(missing))

    def _affordable(self) -> int:
        """Return how many attempts the effort has left, no more than were made already or are in flight at once."""
        if self.confidence == 1 or not self.tree.root.expanded or self._left <= 0:
            return 0
        wave = max(self._width, self.evidence.attempts)
        return min(wave, max(1, int(self._left / self._cost)), self._max_attempts - self.evidence.attempts)

    @property
    def _log_goal(self) -> float:
        """The value that log Phi must be under."""
        return self.tree.root.log_lower - math.log1p(-self.tolerance)

    @property
    def _left(self) -> int:
        return 0 if self._watch.over else self._max_tokens - (self.tree.expansions - self._before)

    @property
    def _cost(self) -> float:
        """Model tokens of an attempt, about."""
        if not self.evidence.attempts:
            return float(max(1, self.tree.table.guide.min_tokens(self.tree.root.state)))  # free text may end at once
        return max(self._attempts_cost, 1) / self.evidence.attempts


def certify(
    trees: Sequence[BoundsTree],
    evaluator: Evaluator,
    tolerance: float,
    confidence: float,
    stream: Callable[[int, int], np.random.Generator],
    **limits: int,
) -> list[Certification]:
    """Run a :class:`Certification` on every tree, in shared model calls; ``limits`` as it takes them.

    ``stream(row, number)`` is the random stream of an attempt; their numbers begin at ``Stream.CONFIDENCE``.
    """

    def streams(row: int) -> NumberedStreams:
        return lambda number: stream(row, Stream.CONFIDENCE + number)

    rows = [Certification(tree, tolerance, confidence, streams(row), **limits) for row, tree in enumerate(trees)]
    grow_trees(rows, evaluator)
    return rows
