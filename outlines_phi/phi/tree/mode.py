"""The most probable members of a language, by best-first search on the token tree (theory.md, section 9)."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterator
from typing import final

import numpy as np

from ...guides.guide import DEAD, DONE
from ...lm.watch import current
from .frontier import Frontier
from .tree import BoundsTree, Node

LEAST_WIDTH, MOST_WIDTH = 16, 256
"""Prefixes per model call, at least and at most; in between, a part of what was expanded so far."""

SPECULATION = 4
"""A call takes at most one prefix for this many expanded so far, so what turns out needless stays a fraction of the work."""

BEAM = 8
"""Prefixes of the beam that finds the first members, where no more members are asked for."""


@final
class ModeSearch:
    """Finds the ``top`` members ``y`` of the highest ``log p(y)``, with a certificate.

    ``p`` never rises along a path, so a member below an open prefix has at most that prefix's ``log p``. The search expands
    the likeliest open prefixes and ends when none of them reaches the last of the ``top`` members found: every prefix with more
    than that has been expanded, as in any search with this certificate. A beam runs ahead until its members are complete. Its
    members set the mark below which no prefix is expanded, and are there to hand over if the effort runs out.

    Members of equal ``log p`` are ordered by their token ids. Open prefixes that could still tie are expanded too, so the
    result depends on the distribution alone.

    Parameters
    ----------
    tree
        A tree in any state; what it knows is not asked again.
    top
        Members to find.
    tolerance
        End when no other member can have more than ``1 + tolerance`` times the probability of the last one found.
    max_tokens
        Model tokens to spend at most, give or take one call. The time of the call that is watched ends the work as well.
    max_bytes
        Memory of the tree, distributions being dropped where that makes it fit.
    """

    def __init__(
        self, tree: BoundsTree, top: int, *, tolerance: float = 0.0, max_tokens: int, max_bytes: int = 2**40
    ) -> None:
        self.tree, self._top, self._slack, self._max_bytes = tree, top, math.log1p(tolerance), max_bytes
        self._before, self._max_tokens, self._watch = tree.expansions, max_tokens, current()
        self._found: list[tuple[float, tuple[int, ...], Node]] = []
        self._collected: set[Node] = set()
        for node in tree.walk():
            self._collect(node)
        self._frontier = Frontier(tree)
        self._batch: dict[Node, None] = {}
        self._beam = [tree.root]

    @property
    def members(self) -> list[Node]:
        """The best members found, at most ``top`` of them, the likeliest first."""
        return [node for _, _, node in self._found[: self._top]]

    @property
    def bound(self) -> float:
        """No member outside :attr:`members` has a ``log p`` above this; ``-inf`` where there is none."""
        next_found = -self._found[self._top][0] if len(self._found) > self._top else -math.inf
        return max(self._frontier.log_p, next_found)

    @property
    def finished(self) -> bool:
        """Whether the certificate holds."""
        return self._frontier.log_p < self._least or self._frontier.log_p == -math.inf

    @property
    def _least(self) -> float:
        """The ``log p`` under which a prefix cannot change the result."""
        return -self._found[self._top - 1][0] + self._slack if len(self._found) >= self._top else -math.inf

    def advance(self) -> list[Node]:
        """Return the prefixes to expand next, after those returned before have been; none at the certificate or the limits."""
        for expanded in self._batch:
            for child in expanded.children.values():
                self._collect(child)
            self._frontier.offer(expanded)
        self._batch = {}
        if self.finished or self._exhausted():
            return []
        self._descend()
        self._batch = dict.fromkeys(node for node in self._beam if node.law is None)
        # No member is likelier than the best of the beam, or one that lies elsewhere is hardly: what is above is needed anyway.
        least = max([self._least, *(node.log_p for node in self._beam)])
        while len(self._batch) < self._width() and self._frontier.log_p >= least:
            node = self._frontier.pop()
            if node is None:
                break
            self._batch[node] = None
        return list(self._batch)

    def _collect(self, node: Node) -> None:
        # A node whose distribution was evicted is expanded a second time.
        if node.state == DONE and node.log_p > -math.inf and node not in self._collected:
            self._collected.add(node)
            insort(self._found, (-node.log_p, node.tokens(), node))

    def _width(self) -> int:
        return min(MOST_WIDTH, max(LEAST_WIDTH, (self.tree.expansions - self._before) // SPECULATION))

    def _exhausted(self) -> bool:
        if self.tree.bytes > self._max_bytes and self._least > -math.inf:
            self._frontier.make_nodes(self._least)
            self.tree.drop_laws(self._max_bytes)
        spent = self.tree.expansions - self._before
        over = spent >= self._max_tokens or self.tree.bytes > self._max_bytes or self._watch.over
        return self.tree.root.expanded and over

    def _descend(self) -> None:
        """Move the beam to the best prefixes one token further down, on through what is known; members drop out of it."""
        size = max(BEAM, min(self._top, MOST_WIDTH))
        while self._beam and all(node.law is not None for node in self._beam):
            below = sorted((step for node in self._beam for step in _continuations(node, size)), key=_falling)
            nodes = [self.tree.child(node, token, target) for _, node, token, target in below[:size]]
            self._beam = [node for node in nodes if node.state not in (DEAD, DONE) and node.log_p >= self._least]
            for node in nodes:
                # What leaves the beam stays open, as a node now.
                if not node.expanded:
                    self._frontier.offer(node)


def _continuations(node: Node, size: int) -> Iterator[tuple[float, Node, int, int]]:
    """Yield ``log p``, parent, token and target of the ``size`` likeliest free tokens of a node, and of its children."""
    assert node.law is not None
    yield from ((child.log_p, node, child.token, child.state) for child in node.children.values() if child.p > 0)
    free, moves = node.law.free, node.law.moves
    for i in np.argpartition(-free, size)[:size] if free.size > size else range(free.size):
        if free[i] > 0:
            log_p = node.log_p + node.law.log_scale + math.log(float(free[i]))
            yield log_p, node, int(moves.tokens[i]), int(moves.targets[i])


def _falling(step: tuple[float, Node, int, int]) -> float:
    return -step[0]
