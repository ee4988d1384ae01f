"""One window of a look-ahead: attempts at it, and the estimate of what it leaves out (theory.md, section 6.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import numpy as np

from ...guides.guide import DEAD, DONE
from ...numerics.weights import draw
from ...phi.estimators.exact import Effort
from ...phi.tree.best_first import TreeWalks
from ...phi.tree.tree import BoundsTree, Node
from ..rejection.attempts import Attempt, Attempts, descend
from .stems import Stem

WINDOW_BYTES = 2**28
"""Memory of a window's distributions; beyond it the least recently visited are dropped, and come back without the model."""

COARSENESS = 1 / 4
"""The most by which one walk may change the estimate of ``Psi``, relative to it, where it is launched by chance."""


@final
class WindowTree:
    """The token tree of a window over the texts that the model has evaluated.

    Parameters
    ----------
    tree
        The bounds.
    stem
        The text that the window begins at.
    written
        How many tokens that text has, the prompt's not counted.
    """

    def __init__(self, tree: BoundsTree, stem: Stem, written: int) -> None:
        self.tree, self.stem, self.written = tree, stem, written
        self._stems = {tree.root: stem}

    def stem_of(self, node: Node) -> Stem:
        """Return the text of ``node``."""
        if node not in self._stems:
            assert node.parent is not None
            self._stems[node] = self.stem_of(node.parent).child(node.token)
        return self._stems[node]

    def plant(self, tokens: Sequence[int]) -> Node:
        """Return the prefix ``tokens`` of the window, whose distributions are known but for the last."""
        node = self.tree.root
        for token in tokens:
            log_p = self.stem_of(node).log_p
            assert log_p is not None
            self.tree.expand(node, log_p)
            assert node.law is not None
            node = self.tree.child(node, token, node.law.target(token))
        self.tree.propagate([above for above in (self.tree.root, *node.path()) if above.law is not None])
        return node

    def grow(self, walks: TreeWalks) -> list[Node]:
        """Take ``walks`` as far as they go without the model; return the nodes that they wait for, none when they have ended."""
        while nodes := walks.advance():
            if unknown := [node for node in nodes if self.stem_of(node).log_p is None]:
                return unknown
            for node in nodes:
                log_p = self.stem_of(node).log_p
                if node.law is None and log_p is not None:
                    self.tree.expand(node, log_p)
            self.tree.propagate(nodes)
        return []


@final
class WindowAttempts(Attempts):
    """Attempts at one window, by thinning: the one that is accepted has the distribution ``p(x | r) 1[no phrase] / Psi(r)``.

    They are those of :class:`~outlines_phi.sampling.rejection.attempts.RejectionAttempts`. As many go at once as have failed: the
    first attempt mostly succeeds, and others beside it would cost model tokens.

    Parameters
    ----------
    tree
        The window's bounds.
    rng
        The random stream of all attempts.
    width
        Attempts in flight at most.
    effort
        When to stop launching.
    aside
        A random stream for what the attempts do not depend on.
    first
        Where the first attempt stands already, at an unexpanded prefix; at the root by default.

    Attributes
    ----------
    failed
        The prefix whose dead tokens an attempt has failed for, by its number.
    """

    def __init__(
        self,
        tree: BoundsTree,
        rng: np.random.Generator,
        *,
        width: int,
        effort: Effort,
        aside: np.random.Generator,
        first: Node | None = None,
    ) -> None:
        super().__init__(tree, 1, lambda number: rng, width=1, effort=effort, max_bytes=WINDOW_BYTES)
        self._most, self._aside = width, aside
        self.failed: dict[int, Node] = {}
        if first is not None:
            attempt = Attempt(0, tree.root, rng)
            attempt.node, attempt.bound = first, first.upper
            self._waiting, self._launched = [attempt], 1

    def _walk(self, attempt: Attempt) -> None:
        arrived = descend(self.tree, attempt)
        if arrived is None:
            return self._wait(attempt)
        if not arrived:
            self.failed[attempt.number] = lost_at(attempt.node, attempt.bound, self._aside)
            self._width = min(self._most, len(self.failed))
        self._finish(attempt, success=arrived)

    def _evict(self) -> None:
        """Drop distributions; bounds stay."""
        self.tree.drop_laws(self._max_bytes)

    def failures(self) -> Iterator[Node]:
        """Yield what the attempts failed for that the window has cost; none that was launched after the accepted one."""
        return (node for number, node in self.failed.items() if number < self.read)


def lost_at(node: Node, bound: float, rng: np.random.Generator) -> Node:
    """Return the prefix whose dead tokens an attempt fails for at ``node``, which it chose with an upper bound of ``bound``.

    That is ``node`` itself, or one below it, where other attempts have been meanwhile: drawn by what is lost there.
    """
    fresh = bound >= 1  # nothing was known to be lost when it was chosen
    while True:
        children = [child for child in node.children.values() if child.upper < 1 and child.state != DEAD]
        if not children:
            return node
        lost = [child.p * (1 - child.upper) for child in children]
        here = max(0.0, 1 - node.rest - sum(child.p for child in node.children.values())) if fresh else 0.0
        if not any(lost) or (place := draw(np.array([*lost, here]), rng)) == len(children):
            return node
        node, fresh = children[place], True


@final
class NormalizerWalk:
    """An unbiased estimate of ``Psi(r)`` of a window, from one walk that is launched after the accepted attempt.

    As a residual attempt (:class:`~outlines_phi.sampling.rejection.residual.ResidualAttempts`) it goes down in proportion to
    ``p (U - Lo)`` to a prefix that was unexpanded at the launch. From there on it is drawn by ``p`` of the live tokens, and the
    product ``s`` of their masses stands for its success: ``Lo + (U - Lo) s`` has mean ``Psi``, with less noise than a success
    or a failure would give. Where little is undecided the walk is launched with the probability ``c`` alone and what it takes
    from the upper bound counts ``1 / c`` times, ``c`` such that the estimate is never below ``(1 - COARSENESS) U``.

    Parameters
    ----------
    ground
        The window.
    rng
        The random stream.

    Attributes
    ----------
    ground
        As given.
    tree
        Its bounds.
    """

    def __init__(self, ground: WindowTree, rng: np.random.Generator) -> None:
        self.ground, self.tree = ground, ground.tree
        self._rng = rng
        root = ground.tree.root
        self._lower, self._gap = root.lower, root.gap
        self._chance = min(1.0, root.gap / (COARSENESS * root.upper))
        self._node: Node | None = root if rng.random() < self._chance else None
        self._descending = True
        self._success = 1.0

    def advance(self) -> list[Node]:
        """Walk as far as distributions are known; return the node that the walk waits for, none when the estimate is there."""
        node = self._node
        while node is not None and node.state != DONE and node.law is not None:
            if self._descending and node.expanded:
                node = self.tree.choose_undecided(node, self._rng)
                self._descending = node.expanded
                continue
            live = node.live
            self._success *= live
            node = self.tree.choose(node, _one, self._rng) if live > 0 else None
        self._node = node if node is not None and node.state != DONE else None
        return [] if self._node is None else [self._node]

    @property
    def estimate(self) -> float:
        """``Psi_hat``."""
        missed = (1 - self._success) / self._chance if self._success < 1 else 0.0
        return self._lower + self._gap * (1 - missed)


def _one(node: Node) -> float:
    return 1.0
