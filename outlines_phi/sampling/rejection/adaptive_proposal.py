"""The tree's adaptive proposal: weighted draws that learn from one another (theory.md, section 5.9)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...guides.guide import DEAD, DONE
from ...lm.watch import check_interruption
from ...numerics.weights import draw, effective_size, log, log_mean, log_sum, scaled
from ...phi.tree.state_averages import BackedUpValues
from ...phi.tree.tree import BoundsTree, Node

MASK, STATE, TREE = 0, 1, 2
SHARES = (0.1, 0.4, 0.5)
"""Shares of the trajectories that follow the mask, the usual values of guide states, and the values of prefixes.

No weight exceeds that of masking by more than ten times, nor that of values by state by more than two and a half: what was
found of some prefixes says little of all others, where each context has a Phi of its own.
"""

ROUND = 16
"""Trajectories of the first round, where there are several."""


@final
class Candidate:
    """One draw in the making, with its log probability under all parts of the proposal.

    ``node``: Where it stands; ``None`` once it has found no allowed token.
    ``part``: Which part of the proposal it follows: ``MASK``, ``STATE`` or ``TREE``.
    ``log_q``: ``[3]``: ``log q(y)`` under each part.
    ``turns``: How often it has waited for the model.
    """

    __slots__ = ("log_q", "node", "part", "rng", "turns")

    def __init__(self, root: Node, rng: np.random.Generator) -> None:
        self.node: Node | None = root
        self.rng, self.part = rng, draw(np.array(SHARES), rng)
        self.log_q = [0.0] * len(SHARES)
        self.turns = 0

    @property
    def log_w(self) -> float:
        """``log p(y) - log sum_k SHARES[k] q_k(y)``; ``-inf`` where it failed."""
        if self.node is None:
            return -math.inf
        return self.node.log_p - float(np.logaddexp.reduce(np.log(SHARES) + np.array(self.log_q)))


class Choices(NamedTuple):
    """The choices of a trajectory at a node: its children, then the targets of the tokens without a child."""

    children: list[Node]
    states: list[int]  # Of the children
    targets: NDArray[np.integer]
    # `[2, choices]`: logs, under the usual values of states and those of prefixes; of targets `V / h`
    log_values: NDArray[np.float64]
    log_shares: NDArray[np.float64]  # `[3, choices]`: in proportion to the probability under each part
    log_totals: list[float]  # Of the shares of each part


@final
class AdaptiveTrajectories:
    """Trajectories ``v ~ q(v|y) = p(v|y) V(yv) / S(y)`` of a mixture of values ``V``: see :data:`SHARES`.

    They come in rounds, during which values stand still (theory.md, section 5.9). How many there are is fixed beforehand.

    ``rounds``: How many there are in each round.
    ``max_bytes``: Memory that the tree may take, give or take one round.
    ``others``: Where other walks on the tree stand: a new round forgets nothing on the way there.
    """

    def __init__(
        self,
        tree: BoundsTree,
        rounds: Sequence[int],
        stream: Callable[[int], np.random.Generator],
        *,
        max_bytes: int,
        others: Callable[[], Iterable[Node]] = tuple,
    ) -> None:
        self.tree = tree
        self._rounds, self._stream, self._max_bytes, self._others = list(rounds), stream, max_bytes, others
        self._values = BackedUpValues(tree)
        self._choices: dict[Node, Choices] = {}
        self._walking: list[Candidate] = []
        self.trajectories: list[Candidate] = []

    @property
    def finished(self) -> int:
        """The number of trajectories that have ended."""
        return len(self.trajectories) - len(self._walking)

    @property
    def total(self) -> int:
        """The number of trajectories in the end."""
        return len(self.trajectories) + sum(self._rounds)

    @property
    def waiting(self) -> list[Node]:
        """The nodes that trajectories wait for."""
        return [trajectory.node for trajectory in self._walking if trajectory.node is not None]

    def advance(self) -> list[Node]:
        """Take every trajectory as far as it goes without the model and return the nodes they wait for, none at the end."""
        while True:
            self._walking = [trajectory for trajectory in self._walking if not self._walk(trajectory)]
            if self._walking:
                self.tree.drop_distributions(self._max_bytes)
                return self.waiting
            if not self._rounds:
                return []
            self._begin_round(self._rounds.pop(0))

    def _begin_round(self, size: int) -> None:
        self.tree.evict(self._max_bytes, pinned=self._others())
        self._values.refresh()
        self._choices = {}
        first = len(self.trajectories)
        self._walking = [Candidate(self.tree.root, self._stream(first + i)) for i in range(size)]
        self.trajectories += self._walking

    def _walk(self, trajectory: Candidate) -> bool:
        """Walk until the end, or until a node whose distribution is not known; return whether it was the end."""
        check_interruption()
        while trajectory.node is not None and trajectory.node.state != DONE:
            self.tree.visit(trajectory.node)
            if trajectory.node.distribution is None:
                trajectory.turns += 1
                return False
            self._step(trajectory, trajectory.node)
        return True

    def _step(self, trajectory: Candidate, node: Node) -> None:
        """Draw the next token and keep account of all parts of the proposal."""
        assert node.distribution is not None
        choices = self._choices_at(node)
        if choices.log_totals[trajectory.part] == -math.inf:
            trajectory.node = None
            return
        choice = draw(scaled(choices.log_shares[trajectory.part]), trajectory.rng)
        place = choice - len(choices.children)
        if place < 0:
            child = choices.children[choice]
        else:
            token = node.distribution.draw_leading_to(place, trajectory.rng, by_h=trajectory.part == TREE)
            child = self.tree.child(node, token, int(choices.targets[place]))
        of_state, of_tree = choices.log_values[:, choice].tolist()
        log_values = (0.0, of_state, of_tree if place < 0 else log(child.h) + of_tree)
        for part, (log_v, log_total) in enumerate(zip(log_values, choices.log_totals, strict=True)):
            found = log_v > -math.inf and log_total > -math.inf
            trajectory.log_q[part] += child.log_step + log_v - log_total if found else -math.inf
        trajectory.node = child if child.state != DEAD else None

    def _choices_at(self, node: Node) -> Choices:
        """Return the choices at a node: that of the last walk here, unless a child was made or ruled out since."""
        children = list(node.children.values())
        states = [child.state for child in children]
        known = self._choices.get(node)
        if known is not None and known.children == children and known.states == states:
            return known
        free, beyond, usual = self._values.free(node), self._values.beyond(node), self._values.usual(node)
        n = len(children)
        log_shares, log_values = np.empty((3, n + len(usual))), np.empty((2, n + len(usual)))
        # A child that was ruled out keeps the place of its target for the mask, and has no value.
        log_values[0, :n] = [usual[free.states.searchsorted(state)] if state != DEAD else -np.inf for state in states]
        log_values[1, :n] = [self._values.of(node, child) for child in children]
        log_values[0, n:], log_values[1, n:] = usual, beyond
        log_shares[:, :n] = [child.log_step for child in children]
        log_shares[:2, n:], log_shares[2, n:] = free.log_mass, free.log_expected
        log_shares[1:] += log_values
        log_totals = [log_sum(row) for row in log_shares.tolist()]
        found = Choices(children, states, free.states, log_values, log_shares, log_totals)
        self._choices[node] = found
        return found


def last_state(log_w: NDArray[np.float64], rng: np.random.Generator) -> int:
    """Return the place where an independence Metropolis chain over candidates of one proposal ends.

    From the first one that has a weight, ``w``, it moves to the next with probability ``min(1, w' / w)``, which leaves ``mu*``
    unchanged (theory.md, section 4.3).
    """
    thresholds = log_w + rng.exponential(size=len(log_w))  # log w' - log u
    state = int(np.argmax(log_w > -math.inf))
    for place in range(state + 1, len(log_w)):
        if thresholds[place] > log_w[state]:
            state = place
    return state


class Picked(NamedTuple):
    """A candidate that was picked: where it ended, its turns, the log of the mean weight of all, their number, and their ESS."""

    node: Node
    turns: int
    log_w: float
    of: int
    ess: float


def pick(candidates: Sequence[Candidate], rng: np.random.Generator, *, chain: bool) -> Picked | None:
    """Pick one candidate in proportion to the weights, or by :func:`last_state`; ``None`` where all weigh nothing."""
    log_w = np.array([candidate.log_w for candidate in candidates])
    if log_w.max() == -math.inf:
        return None
    w = scaled(log_w)
    picked = candidates[last_state(log_w, rng) if chain else draw(w, rng)]
    assert picked.node is not None
    return Picked(picked.node, picked.turns, log_mean(log_w), len(log_w), effective_size(w))
