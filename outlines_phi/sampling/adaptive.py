"""The tree's adaptive proposal: weighted draws that learn from one another (mathematics.md, section 5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import numpy as np

from ..guides.guide import DEAD, DONE
from ..lm.interruption import check_interruption
from ..phi.backup import BackedUpValues
from ..phi.tree import BoundsTree, Node

DEFENSE = 0.1
"""Share of the trajectories that follow the mask; no weight exceeds that of masking by more than its inverse."""

ROUNDS = 8
"""Rounds that many trajectories are dealt over; the proposal learns between them."""

ROUND = 16
"""Trajectories of a round at least."""


@final
class Trajectory:
    """One draw in the making, with its log probability under both parts of the proposal.

    Attributes
    ----------
    node
        Where it stands; ``None`` once it has found no allowed token.
    masked
        Whether it follows the mask instead of the backed-up values.
    log_q, log_q_mask
        ``log q_h(y)`` and ``log q_mask(y)``.
    """

    __slots__ = ("log_q", "log_q_mask", "masked", "node", "rng")

    def __init__(self, root: Node, rng: np.random.Generator) -> None:
        self.node: Node | None = root
        self.rng, self.masked = rng, bool(rng.random() < DEFENSE)
        self.log_q = self.log_q_mask = 0.0

    @property
    def log_w(self) -> float:
        """``log p(y) - log (DEFENSE q_mask(y) + (1 - DEFENSE) q_h(y))``; ``-inf`` where it failed."""
        if self.node is None:
            return -math.inf
        log_q = np.logaddexp(math.log(DEFENSE) + self.log_q_mask, math.log1p(-DEFENSE) + self.log_q)
        return self.node.log_p - float(log_q)


@final
class AdaptiveTrajectories:
    """Trajectories ``v ~ q_h(v|y) = p(v|y) V(yv) / S(y)`` with backed-up values ``V``, dealt in rounds.

    The values stand still during a round, so every trajectory's weight is that of the proposal it was drawn from:
    ``E[w f | the rounds before] = Phi mu*(f)``, whatever it learns for the next round. How many there are is fixed beforehand.

    Parameters
    ----------
    tree
        The bounds; every trajectory expands its path.
    total
        How many.
    stream
        The random stream of each trajectory, by its number.
    max_bytes
        Memory that the tree may take, give or take one round.
    """

    def __init__(
        self, tree: BoundsTree, total: int, stream: Callable[[int], np.random.Generator], *, max_bytes: int
    ) -> None:
        self.tree = tree
        self._total, self._stream, self._max_bytes = total, stream, max_bytes
        self._values = BackedUpValues(tree)
        self._walking: list[Trajectory] = []
        self.trajectories: list[Trajectory] = []

    def advance(self) -> list[Node]:
        """Take every trajectory as far as it goes without the model and return the nodes they wait for, none at the end."""
        while True:
            self._walking = [trajectory for trajectory in self._walking if not self._walk(trajectory)]
            if self._walking:
                self.tree.drop_laws(self._max_bytes)
                return [trajectory.node for trajectory in self._walking if trajectory.node is not None]
            if len(self.trajectories) == self._total:
                return []
            self._begin_round()

    def _begin_round(self) -> None:
        self.tree.evict(self._max_bytes)
        self._values.refresh()
        first = len(self.trajectories)
        size = min(max(ROUND, math.ceil(self._total / ROUNDS)), self._total - first)
        self._walking = [Trajectory(self.tree.root, self._stream(first + i)) for i in range(size)]
        self.trajectories += self._walking

    def _walk(self, trajectory: Trajectory) -> bool:
        """Walk until the end, or until a node whose law is not known; return whether it was the end."""
        check_interruption()
        while trajectory.node is not None and trajectory.node.state != DONE:
            trajectory.node.touched = self.tree.clock
            if trajectory.node.law is None:
                return False
            self._step(trajectory, trajectory.node)
        return True

    def _step(self, trajectory: Trajectory, node: Node) -> None:
        """Draw the next token and keep account of both parts of the proposal."""
        children = list(node.children.values())
        p = np.array([child.p for child in children])
        v = np.array([self._values.of(node, child) for child in children])
        free, beyond = self._values.free(node), self._values.beyond(node)
        shares = np.concatenate([p * v, free.hope * beyond])
        masses = np.concatenate([p, free.mass])
        if not (masses if trajectory.masked else shares).any():
            trajectory.node = None
            return
        choice = draw(masses if trajectory.masked else shares, trajectory.rng)
        if choice < len(children):
            child = children[choice]
        else:
            assert node.law is not None
            tokens = np.flatnonzero(free.places == choice - len(children))
            weights = node.law.free if trajectory.masked else node.law.free * node.law.h
            token = int(node.law.moves.tokens[tokens[draw(weights[tokens], trajectory.rng)]])
            child = self.tree.child(node, token, node.law.target(token))
        value = v[choice] if choice < len(children) else child.h * beyond[choice - len(children)]
        log_p = child.log_p - node.log_p
        trajectory.log_q_mask += log_p - math.log(masses.sum())
        total = float(shares.sum())
        trajectory.log_q += log_p + math.log(value) - math.log(total) if value > 0 and total > 0 else -math.inf
        trajectory.node = child if child.state != DEAD else None


def draw(weights: np.ndarray, rng: np.random.Generator) -> int:
    """Draw an index in proportion to ``weights``, in float64."""
    cumulative = weights.cumsum(dtype=np.float64)
    index = int(cumulative.searchsorted(rng.random() * cumulative[-1], side="right"))
    return min(index, int(np.flatnonzero(weights)[-1]))
