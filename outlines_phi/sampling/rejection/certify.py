"""Certificates of draws within a distance of ``mu*`` (theory.md, section 5.8); their walks are ``FrozenWalks``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import final

import numpy as np

from ...lm.watch import current
from ...numerics.weights import log_difference, ratio
from ...phi.tree.best_first import BestFirst, is_decided
from ...phi.tree.evidence import Evidence, Wave
from ...phi.tree.tree import BoundsTree, Node
from ..draw import Certificate
from ..phi_options import Effort
from ..sampler import Stream
from .attempts import ResidualAttempts

FIRST = 64  # Model tokens of the first of several turns of enumeration


@final
@dataclass(eq=False)
class Certification:
    """Grows one tree until its bounds certify a total variation to ``mu*``: until ``U - Lo <= tolerance * Lo``.

    At a confidence below 1 enumeration and residual attempts take turns, each until it has cost as much as all turns before it.
    """

    tree: BoundsTree
    tolerance: float
    confidence: float
    stream: Callable[[int], np.random.Generator]  # That of each attempt; their numbers begin at `Stream.CONFIDENCE`
    effort: Effort  # Tokens and attempts at most; what has begun is finished. The time is that of the watched call
    width: int  # Attempts in flight
    max_bytes: int = 2**40  # Memory that the tree may take, give or take one call
    evidence: Evidence = field(default_factory=Evidence)

    def __post_init__(self) -> None:
        self._last, self._watch = self.tree.expansions + self.effort.tokens, current()
        self._turns = self._take_turns()

    @property
    def certain(self) -> bool:
        """True if the bounds alone certify the tolerance."""
        return is_decided(self.tree, self.tolerance)

    @property
    def reached(self) -> bool:
        """True if the tolerance is certified, for certain or at the confidence."""
        log_goal = self.tree.root.log_lower - math.log1p(-self.tolerance)
        return self.certain or self.evidence.rules_out(log_goal, 1 - self.confidence)

    @property
    def certificate(self) -> Certificate:
        """The certificate by now, reached or not."""
        total_variation = ratio(log_difference(self._log_upper, self.tree.root.log_lower), self._log_upper)
        certain = self.certain or not self.evidence.attempts
        return Certificate(total_variation=total_variation, confidence=1.0 if certain else self.confidence)

    @property
    def log_bounds(self) -> tuple[float, float]:
        """Bounds of log Phi: those of the certificate where it holds at a confidence, else the tree's, which are certain."""
        certain = self.certain or not self.reached
        return self.tree.log_bounds if certain else (self.tree.root.log_lower, self._log_upper)

    @property
    def _log_upper(self) -> float:
        root, alpha = self.tree.root, 0.0 if self.certain else 1 - self.confidence
        return max(root.log_lower, min(root.log_upper, self.evidence.log_limit(alpha)))

    @property
    def _goes_on(self) -> bool:
        return not self.reached and self.tree.expansions < self._last and not self._watch.over

    def advance(self) -> list[Node]:
        """Return the nodes to expand next; none when the tolerance is certified or the effort is spent."""
        return next(self._turns, [])

    def _take_turns(self) -> Iterator[list[Node]]:
        tree, evidence, first, before, spent = self.tree, self.evidence, self.tree.expansions, -1, 0
        attempts, part = (self.effort.attempts, 2 / 3) if self.confidence < 1 else (0, 1.0)
        share = FIRST if attempts else self.effort.tokens
        while self._goes_on and tree.expansions + evidence.attempts > before:
            before = tree.expansions + evidence.attempts
            # A third of what is left is for attempts: enumeration that ends undecided certifies less than they do.
            enumerated = min(share, math.ceil(part * (self._last - tree.expansions)))
            search = BestFirst(tree, self.tolerance, enumerated, self.max_bytes)
            while not self.reached and (nodes := search.advance()):
                yield nodes
            share = max(share, 2 * (tree.expansions - first))
            while self._goes_on and tree.expansions < first + share and evidence.attempts < attempts:
                root, number, begun = tree.root, evidence.attempts, tree.expansions
                # As many as there were, so that their number doubles; no more than the tokens are for at the cost of those before.
                cost = max(1.0, spent / number if number else tree.fewest_tokens(root))
                affordable = math.ceil((min(first + share, self._last) - begun) / cost)
                last = min(number + min(max(self.width, number), affordable), attempts)
                log_lower, log_gap = root.log_lower, root.log_gap
                streams = [self.stream(Stream.CONFIDENCE + i) for i in range(number, last)]
                walks = ResidualAttempts(tree, streams, width=self.width)
                while nodes := walks.advance():
                    tree.drop_distributions(self.max_bytes)
                    yield nodes
                spent += tree.expansions - begun
                evidence.add(Wave(log_lower, log_gap, len(streams), walks.successes))
