"""Best-first enumeration of the token tree, with a certificate (mathematics.md, section 5)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import final

import numpy as np

from ..guides.guide import DONE
from .evaluator import Evaluator
from .tree import BoundsTree, Node


def live_prefixes(tree: BoundsTree, limit: int) -> list[Node] | None:
    """Return every live prefix that is not a member, planned as a node of ``tree``; ``None`` if there are more than ``limit``.

    The prefixes are known from the guide alone, so all of them fit one model call. The tree is untouched where there are too many.
    """
    table = tree.table
    count, frontier = 1, [(tree.root.state, tree.root.remaining)]
    while frontier:
        below: list[tuple[int, int]] = []
        for state, remaining in frontier:
            targets = table.moves(state, remaining).targets
            inner = targets[targets != DONE]
            count += inner.size
            if count > limit:
                return None
            below.extend((int(target), remaining - 1) for target in inner)
        frontier = below
    nodes = [tree.root]
    for node in nodes:
        moves = table.moves(node.state, node.remaining)
        for token, target in zip(moves.tokens.tolist(), moves.targets.tolist(), strict=True):
            if target != DONE:
                nodes.append(tree.child(node, token, target))
    return nodes


SHORT_LIST = 256
"""Tokens of a node that are ranked at a time."""


@final
class Enumeration:
    """Expands the prefixes that decide most, until the bounds of the root are close enough.

    The next prefixes are those of the highest ``p(y)``: an unexpanded prefix holds ``p(y)`` of the undecided mass ``U - Lo``.

    Parameters
    ----------
    tree
        The tree to expand.
    evaluator
        Expands its nodes.
    width
        Prefixes per model call.
    """

    def __init__(self, tree: BoundsTree, evaluator: Evaluator, *, width: int = 64) -> None:
        self._tree, self._evaluator, self._width = tree, evaluator, width
        self._heap: list[tuple[float, int, Node, int]] = []
        self._order: dict[Node, np.ndarray] = {}
        self._ticket = 0

    def run(self, tolerance: float, max_tokens: int, max_bytes: int = 2**40) -> bool:
        """Expand until ``U - Lo <= tolerance * Lo`` at the root; return whether that was reached.

        Model tokens spent here are at most ``max_tokens``, and the tree's memory ``max_bytes``, give or take one call.
        """
        root = self._tree.root
        start = self._evaluator.counts.tokens
        if root.law is None:
            self._evaluator.expand([(self._tree, root)])
        for node in list(self._tree.walk()):
            self._offer(node)
        while root.gap > tolerance * root.lower:
            if self._evaluator.counts.tokens - start >= max_tokens or self._tree.bytes > max_bytes:
                return False
            batch = list(self._next(self._width))
            if not batch:
                return root.gap <= tolerance * root.lower
            self._evaluator.expand((self._tree, node) for node in batch)
            for node in batch:
                self._offer(node)
        return True

    def _offer(self, node: Node) -> None:
        """Queue what is below a node: itself where its law is not known, else its free tokens by falling probability, lazily."""
        if not node.expanded or (node.law is None and node.rest > 0):
            self._push(node.log_p, node, -1)
        elif node.law is not None and node.rest > 0:
            self._push_free(node, 0)

    def _push_free(self, node: Node, rank: int) -> None:
        """Queue the next free token of a node, from a short list of its likeliest that is made anew when it is used up."""
        assert node.law is not None
        free = node.law.free
        order = self._order.get(node, free[:0].astype(np.int64))
        # A token that a walk has materialised since is offered as a child already; its free part is 0.
        while rank < order.size and free[order[rank]] == 0:
            rank += 1
        if rank == order.size:
            best = np.argpartition(-free, SHORT_LIST)[:SHORT_LIST] if free.size > SHORT_LIST else np.arange(free.size)
            best = best[free[best] > 0]
            order = self._order[node] = best[np.argsort(-free[best], kind="stable")]
            rank = 0
        if order.size:
            self._push(node.log_p + node.law.log_scale + float(np.log(free[order[rank]])), node, rank)
        else:
            del self._order[node]

    def _push(self, log_p: float, node: Node, rank: int) -> None:
        self._ticket += 1
        heapq.heappush(self._heap, (-log_p, self._ticket, node, rank))

    def _next(self, count: int) -> Iterator[Node]:
        found = 0
        while self._heap and found < count:
            _, _, node, rank = heapq.heappop(self._heap)
            if rank < 0:
                if node.law is not None:
                    continue
                found += 1
                yield node
                continue
            assert node.law is not None
            token = int(node.law.moves.tokens[self._order[node][rank]])
            child = self._tree.child(node, token, node.law.target(token))
            self._push_free(node, rank + 1)
            if not child.expanded:
                found += 1
                yield child
