"""The open prefixes of a token tree, the likeliest first, and what grows trees by them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from ...guides.guide import DEAD, DONE
from .evaluator import Evaluator, Foresight
from .tree import BoundsTree, Node

SHORT_LIST = 256
"""Tokens of a node that are ranked at a time, at most."""

NEXT = 1e-3
"""Of a node's open tokens, those of at least this share of the likeliest are ranked at a time: few of a large vocabulary."""


@final
class Frontier:
    """The prefixes of a tree that wait for their distribution, by falling ``log p(y)``.

    A prefix becomes a node only when it is taken. The tree may be grown by others between two calls of :meth:`pop`, as long as
    what is expanded is offered here.

    Parameters
    ----------
    tree
        A tree in any state: fresh, kept from earlier calls, with distributions evicted.
    """

    def __init__(self, tree: BoundsTree) -> None:
        self._tree = tree
        self._heap: list[tuple[float, int, Node, int]] = []
        self._order: dict[Node, NDArray[np.int64]] = {}
        self._ticket = 0
        self._forgotten = -math.inf
        for node in list(tree.walk()):
            self.offer(node)

    @property
    def log_p(self) -> float:
        """``log p`` of the likeliest open prefix, ``-inf`` where none is left: no member below any of them has more."""
        self._settle()
        return max(self._forgotten, -self._heap[0][0] if self._heap else -math.inf)

    def offer(self, node: Node) -> None:
        """Queue what is open at a node: itself before its evaluation, else its free tokens by falling probability, lazily."""
        if not node.expanded or (node.law is None and node.rest > 0):
            self._push(node.log_p, node, -1)
        elif node.law is not None and node.rest > 0:
            self._push_free(node, 0)

    def pop(self) -> Node | None:
        """Take the likeliest open prefix, as a node; ``None`` where none is left."""
        self._settle()
        while self._heap:
            _, _, node, rank = heapq.heappop(self._heap)
            if rank < 0:
                return node
            assert node.law is not None
            token = int(node.law.moves.tokens[self._order[node][rank]])
            child = self._tree.child(node, token, node.law.target(token))
            self._push_free(node, rank + 1)
            if child.state not in (DEAD, DONE):
                return child
            self._settle()
        return None

    def make_nodes(self, least: float) -> None:
        """Make nodes of all open prefixes of at least ``log p = least`` and give up the others, so that laws may be evicted."""
        heap, self._heap = self._heap, []
        for _, _, node, rank in heap:
            if rank < 0:
                self._push(node.log_p, node, rank)
                continue
            assert node.law is not None
            self._order.pop(node, None)
            open_ = np.flatnonzero(node.law.free)
            log_p = node.log_p + node.law.log_scale + np.log(node.law.free[open_].astype(np.float64))
            self._forgotten = max(self._forgotten, log_p[log_p < least].max(initial=-math.inf))
            likely = open_[log_p >= least]
            for token, target in zip(node.law.moves.tokens[likely], node.law.moves.targets[likely], strict=True):
                child = self._tree.child(node, int(token), int(target))
                self._push(child.log_p, child, -1)

    def _settle(self) -> None:
        """Drop what has been taken care of elsewhere from the top of the heap."""
        while self._heap:
            _, _, node, rank = self._heap[0]
            if rank < 0:
                if node.law is None:
                    return
                heapq.heappop(self._heap)
            else:
                assert node.law is not None
                if node.law.free[self._order[node][rank]] > 0:
                    return
                heapq.heappop(self._heap)
                self._push_free(node, rank + 1)

    def _push_free(self, node: Node, rank: int) -> None:
        """Queue the next free token of a node, from a short list of its likeliest that is made anew when it is used up."""
        assert node.law is not None
        free = node.law.free
        order = self._order.get(node, np.empty(0, dtype=np.int64))
        # A token that a walk has materialised since is offered as a child already; its free part is 0.
        while rank < order.size and free[order[rank]] == 0:
            rank += 1
        if rank == order.size:
            order = self._order[node] = _likeliest(free)
            rank = 0
        if order.size:
            self._push(node.log_p + node.law.log_scale + math.log(float(free[order[rank]])), node, rank)
        else:
            del self._order[node]

    def _push(self, log_p: float, node: Node, rank: int) -> None:
        if log_p > -math.inf:
            self._ticket += 1
            heapq.heappush(self._heap, (-log_p, self._ticket, node, rank))


def _likeliest(free: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the next indices of ``free``, by falling value; none where nothing is left."""
    most = free.max(initial=0)
    if most == 0:
        return np.empty(0, dtype=np.int64)
    best = np.flatnonzero(free >= most * NEXT)
    if best.size > SHORT_LIST:
        best = np.sort(best[np.argpartition(-free[best], SHORT_LIST)[:SHORT_LIST]])
    return best[np.argsort(-free[best], kind="stable")]


class TreeWalks(Protocol):
    """Something that grows one tree: an enumeration, a search."""

    tree: BoundsTree

    def advance(self) -> list[Node]:
        """Return the nodes to expand next, after those returned before have been expanded; none when it is finished."""


def grow_trees(rows: Sequence[TreeWalks], evaluator: Evaluator, foresight: Foresight | None = None) -> None:
    """Run ``rows`` to their ends, each on a tree of its own, in shared model calls.

    With ``foresight``, which only walks may have, see :meth:`Evaluator.expand`.
    """
    while any(waiting := [row.advance() for row in rows]):
        wanted = ((row.tree, node) for row, nodes in zip(rows, waiting, strict=True) for node in nodes)
        evaluator.expand(wanted, foresight)
    evaluator.confirm()
