"""One window of a look-ahead: attempts at it, and the estimate of what it leaves out (mathematics.md, section 6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import numpy as np

from ..phi.exact import Effort
from ..phi.frontier import Growth
from ..phi.tree import BoundsTree, Node
from .attempts import Attempt, Attempts
from .rejection import descend
from .residual import ResidualAttempts
from .stems import Stem

WINDOW_BYTES = 2**28
"""Memory of a window's laws; beyond it the least recently visited are dropped, and come back without the model."""

COARSENESS = 1 / 4
"""The most by which one walk may change the estimate of ``Psi``, relative to it, where it is launched by chance."""


@final
class Ground:
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
        """Return the prefix ``tokens`` of the window, whose laws are known but for the last."""
        node = self.tree.root
        for token in tokens:
            log_p = self.stem_of(node).log_p
            assert log_p is not None
            self.tree.expand(node, log_p)
            assert node.law is not None
            node = self.tree.child(node, token, node.law.target(token))
        self.tree.propagate([above for above in (self.tree.root, *node.path()) if above.law is not None])
        return node

    def grow(self, walks: Growth) -> list[Node]:
        """Take ``walks`` as far as known laws lead; return the nodes whose laws they wait for, none when they have ended."""
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
    """Attempts at one window, by thinning: the one that is accepted has the law ``p(x | r) 1[no phrase] / Psi(r)``.

    They are those of :class:`~outlines_phi.sampling.rejection.RejectionAttempts`. As many go at once as have failed: the first
    attempt mostly succeeds, and others beside it would cost model tokens.

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
    first
        Where the first attempt stands already, at an unexpanded prefix; at the root by default.

    Attributes
    ----------
    failed
        Where attempts have failed, by their numbers.
    """

    def __init__(
        self, tree: BoundsTree, rng: np.random.Generator, *, width: int, effort: Effort, first: Node | None = None
    ) -> None:
        super().__init__(tree, 1, lambda number: rng, width=1, effort=effort, max_bytes=WINDOW_BYTES)
        self._most = width
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
            self.failed[attempt.number] = attempt.node
            self._width = min(self._most, len(self.failed))
        self._finish(attempt, success=arrived)

    def _evict(self) -> None:
        """Drop laws; bounds stay."""
        self.tree.drop_laws(self._max_bytes)

    def failures(self) -> Iterator[Node]:
        """Yield where the attempts failed that the window has cost; none that was launched after the accepted one."""
        return (node for number, node in self.failed.items() if number < self.read)


@final
class Weighing:
    """An unbiased estimate of ``Psi(r)`` of a window, from one residual attempt after the accepted one.

    The attempt fails with probability ``(U - Psi) / (U - Lo)`` (:class:`~outlines_phi.sampling.residual.ResidualAttempts`), so
    ``U - (U - Lo) 1[it fails]`` has mean ``Psi``. Where little is undecided it is launched with the probability ``s`` alone and a
    failure counts ``1 / s`` times, ``s`` such that the estimate stays above ``(1 - COARSENESS) U``.

    Parameters
    ----------
    ground
        The window.
    rng
        The random stream.
    """

    def __init__(self, ground: Ground, rng: np.random.Generator) -> None:
        root = ground.tree.root
        self.ground = ground
        self._upper, self._gap = root.upper, root.gap
        self._share = min(1.0, root.gap / (COARSENESS * root.upper))
        launched = rng.random() < self._share
        self._attempt = ResidualAttempts(ground.tree, [rng] if launched else [], width=1)
        self._launched = launched

    def advance(self) -> list[Node]:
        """Go on as far as known laws lead; return the nodes that the walk waits for, none when the estimate is there."""
        return self.ground.grow(self._attempt)

    @property
    def estimate(self) -> float:
        """``Psi_hat``."""
        failed = self._launched and not self._attempt.successes
        return self._upper - self._gap / self._share if failed else self._upper
