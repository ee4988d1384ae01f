"""Best-first enumeration of the token tree, with a certificate (theory.md, section 5.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

from ...guides.guide import DEAD, DONE
from ...guides.table import Table
from ...lm.watch import current
from .evaluator import Evaluator
from .frontier import Frontier, grow
from .tree import BoundsTree, Node

FINITE_PREFIXES = 512
"""A language of at most this many live prefixes is short: where its usual spellings are not enough, it is expanded whole."""

FREE = 16
"""A model call of so many tokens costs hardly more than one of a single token, on any machine."""

LEFT = 2.0**-12
"""What a larger call leaves for later, in shares of ``tolerance * U``: prefixes that all together hardly ever decide anything."""


def is_short(table: Table, state: int, remaining: int, limit: int) -> bool:
    """Return whether at most ``limit`` live prefixes, ``state`` included, lead from it to members."""
    count, frontier = 1, [(state, remaining)]
    while frontier:
        below: list[tuple[int, int]] = []
        for at, left in frontier:
            targets = table.moves(at, left).targets
            inner = targets[targets != DONE]
            count += inner.size
            if count > limit:
                return False
            below.extend((int(target), left - 1) for target in inner)
        frontier = below
    return True


def live_prefixes(tree: BoundsTree, limit: int) -> list[Node] | None:
    """Return every live prefix that is not a member, planned as a node of ``tree``; ``None`` if there are more than ``limit``.

    The prefixes are known from the guide alone, so all of them fit one model call. The tree is untouched where there are too many.
    Below a node whose law was dropped there are those that it has: another child could not be given its probability.
    """
    table = tree.table
    if not is_short(table, tree.root.state, tree.root.remaining, limit):
        return None
    nodes = [tree.root]
    for node in nodes:
        if node.expanded and node.law is None:
            nodes += (child for child in node.children.values() if child.state not in (DEAD, DONE))
            continue
        moves = table.moves(node.state, node.remaining)
        for token, target in zip(moves.tokens.tolist(), moves.targets.tolist(), strict=True):
            if target != DONE and (child := tree.child(node, token, target)).state != DEAD:
                nodes.append(child)
    return nodes


def expand_finite(trees: Sequence[BoundsTree], evaluator: Evaluator, limit: int = FINITE_PREFIXES) -> None:
    """Expand every tree of at most ``limit`` live prefixes whole, all in one call of ``evaluator``."""
    open_ = [(tree, live_prefixes(tree, limit)) for tree in trees if not tree.root.expanded or tree.root.gap > 0]
    evaluator.expand((tree, node) for tree, nodes in open_ for node in nodes or () if not node.expanded)


def enumerate_together(
    trees: Sequence[BoundsTree],
    evaluator: Evaluator,
    tolerance: float,
    max_tokens: int,
    max_bytes: int = 2**40,
    *,
    width: int = 64,
    spent: Sequence[int] | None = None,
) -> list[bool]:
    """Run a :class:`BestFirst` on every tree, in shared model calls; return which of them reached ``tolerance``.

    ``spent`` are the model tokens of each tree that count as spent already; none by default.
    """
    rows = [
        BestFirst(tree, tolerance, max_tokens - n, max_bytes, width)
        for tree, n in zip(trees, spent or [0] * len(trees), strict=True)
    ]
    grow(rows, evaluator)
    return [row.reached for row in rows]


def is_decided(tree: BoundsTree, tolerance: float) -> bool:
    """Return whether ``U - Lo <= tolerance * Lo`` at the root."""
    return tree.root.expanded and tree.root.gap <= tolerance * tree.root.lower


@final
class BestFirst:
    """Expands the prefixes that decide most, until the bounds of the root are close enough.

    The next prefixes are those of the highest ``p(y)``: an unexpanded prefix holds ``p(y)`` of the undecided mass ``U - Lo``. A
    call takes :data:`FREE` of them, and more as long as what it leaves may count (:data:`LEFT`).

    Parameters
    ----------
    tree
        The tree to expand.
    tolerance
        Expand until ``U - Lo <= tolerance * Lo`` at the root.
    max_tokens, max_bytes
        Model tokens to spend here at most, the root not counted, and memory of the tree, give or take one call. The time of the
        call that is watched ends the work as well.
    width
        Prefixes per model call, at most.
    """

    def __init__(
        self, tree: BoundsTree, tolerance: float, max_tokens: int, max_bytes: int = 2**40, width: int = 64
    ) -> None:
        self.tree, self._tolerance, self._max_bytes, self._width = tree, tolerance, max_bytes, width
        self._last = tree.expansions + max_tokens
        self._frontier, self._watch = Frontier(tree), current()
        self._batch: list[Node] = []

    @property
    def reached(self) -> bool:
        """Whether the bounds are that close."""
        return is_decided(self.tree, self._tolerance)

    def advance(self) -> list[Node]:
        """Return the likeliest open prefixes, none when the bounds or the limits are reached."""
        for expanded in self._batch:
            self._frontier.offer(expanded)
        self._batch = []
        spent = self.tree.expansions >= self._last or self.tree.bytes > self._max_bytes or self._watch.over
        if self.reached or (spent and self.tree.root.expanded):
            return []
        width = min(self._width, max(1, self._last - self.tree.expansions))
        left, enough = self.tree.root.gap, LEFT * self._tolerance * self.tree.root.upper
        if self._tolerance == 0:
            enough = -math.inf  # whatever rounding makes of the sums
        while len(self._batch) < width and (left > enough or len(self._batch) < FREE):
            if (node := self._frontier.pop()) is None:
                break
            self._batch.append(node)
            left -= math.exp(node.log_p)
        return self._batch
