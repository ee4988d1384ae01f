"""The tree's adaptive proposal: weighted draws that learn from one another (theory.md, section 5.9)."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...guides.guide import DEAD, DONE
from ...lm.model import check_interruption
from ...numerics.weights import draw, effective_size, largest_change, log_mean, log_sum, scaled
from ...phi.state_values import EMPTY, Observed
from ...phi.tree.tree import BoundsTree, Node

FLOOR = 1e-3  # Of the value of a state that is taken as usual, to the largest among its siblings


class FreeMass(NamedTuple):
    """The free part of a node's distribution by target."""

    states: NDArray[np.integer]  # The targets, and the log probability `log_mass[k]` of `states[k]`
    log_mass: NDArray[np.float64]


@final
class BackedUpValues:
    """An estimate ``V`` of Phi at every prefix of a tree, and beyond it, as logs.

    ``V(y) = sum_v p(v|y) V(yv)`` at expanded prefixes, held within the bounds ``[Lo, U]``. An unexpanded prefix has the mean value
    of the expanded ones in its guide state (the geometric mean: contexts differ by orders of magnitude, and an arithmetic one lets
    the few best promise too much for all others); a state without a visit is taken for an average one among its siblings. Phi is
    the least solution of its recursion, so visited states start at the values that their distributions alone give
    (:class:`Knowledge`). Of a large tree only the prefixes that were visited last are backed up, with all above them, so that a
    tree kept from many calls costs no more than one of a few. Not the likeliest: the way past a bottleneck is never among those.
    The numbers stand still between two calls of :meth:`refresh`. They may miss a prefix (be 0 where Phi is not), so a proposal
    needs a part that does not.
    """

    SWEEPS = 8
    SETTLED = 0.05  # largest change of the log of a state's value that ends the sweeps
    NODES = 2000

    def __init__(self, tree: BoundsTree) -> None:
        self._tree = tree
        self._of_node: dict[Node, float] = {}
        self._of_state: dict[int, float] = {}
        self._free: dict[Node, tuple[int, FreeMass]] = {}
        self._beyond: dict[Node, NDArray[np.float64]] = {}
        self._usual: dict[Node, NDArray[np.float64]] = {}
        self._seen: set[Node] = set()
        self._known = EMPTY

    def refresh(self) -> None:
        """Back up all values from what the tree knows by now."""
        known = (node for node in self._tree.walk() if node.expanded and node.state != DONE)
        latest = heapq.nlargest(self.NODES, known, key=lambda node: node.touched)
        nodes = list(dict.fromkeys([self._tree.root, *(above for node in latest for above in node.path())]))
        nodes.sort(key=lambda node: node.remaining)  # children first
        self._free = {node: self._free[node] for node in nodes if node in self._free and node.distribution is not None}
        self._observe(nodes)
        self._of_state = self._first(nodes)
        for _ in range(self.SWEEPS):
            if self._sweep(nodes) < self.SETTLED:
                break
        self._beyond, self._usual = {}, {}

    def _observe(self, nodes: Sequence[Node]) -> None:
        """Learn from distributions that were not there before, the latest visited last."""
        new = [
            node for node in nodes if node.distribution is not None and node.state != DEAD and node not in self._seen
        ]
        self._seen.update(new)
        observed = []
        for node in sorted(new, key=lambda node: node.touched):
            observed.append(Observed(node.state, self.free(node).states, np.exp(self._log_mass(node))))
        self._known = self._known.after(observed)

    def _first(self, nodes: Sequence[Node]) -> dict[int, float]:
        """Return the values that sweeps begin with: those of distributions alone."""
        states = list(dict.fromkeys(node.state for node in nodes if node.state != DEAD))
        log_values = self._known.log_values(np.array(states, dtype=np.int64)).tolist()
        known = {state: log_v for state, log_v in zip(states, log_values, strict=True) if log_v > -math.inf}
        return dict.fromkeys(states, -math.inf) | self._of_state | known

    def usual(self, node: Node) -> NDArray[np.float64]:
        """Return the log value of each target state of an evaluated node, by state alone; none far below its siblings."""
        if node not in self._usual:
            free = self.free(node)
            log_v = self._known.log_values(free.states)
            done = free.states == DONE
            inner = log_v[(log_v > -np.inf) & ~done]
            log_v = np.where(np.isnan(log_v), inner.mean() if inner.size else 0.0, log_v)
            least = log_v[~done].max(initial=-np.inf) + math.log(FLOOR)
            self._usual[node] = np.where(done, 0.0, np.maximum(log_v, least))
        return self._usual[node]

    def _sweep(self, nodes: Sequence[Node]) -> float:
        """Back up once from the deepest nodes to the root; return the largest change of the log of a state's value."""
        self._beyond = {}
        self._of_node = values = {}
        by_state: dict[int, list[float]] = defaultdict(list)
        for node in nodes:
            values[node] = self._backed_up(node)
            if node.state != DEAD:
                by_state[node.state].append(values[node])
        before = self._of_state
        self._of_state = before | {state: _mean(found) for state, found in by_state.items()}
        return largest_change(*(np.array([of[state] for state in by_state]) for of in (before, self._of_state)))

    def of(self, node: Node, child: Node) -> float:
        """Return ``log V`` of a child of an evaluated node."""
        if child.state == DONE:
            return 0.0
        if child in self._of_node:  # a child that was ruled out during the round keeps the value that it was chosen by
            return self._of_node[child]
        assert node.distribution is not None
        target = node.distribution.moves.target(child.token)
        if target == DONE:  # ruled out when the node was expanded
            return -math.inf
        return float(self.beyond(node)[self.free(node).states.searchsorted(target)])

    def beyond(self, node: Node) -> NDArray[np.float64]:
        """Return ``log V`` of what an evaluated node has not expanded, by target, in the order of :meth:`free`.

        The siblings of a target without a visit are all others, the expanded ones too.
        """
        if node not in self._beyond:
            states, log_mass = self.free(node).states.tolist(), self._log_mass(node)
            known = np.array([0.0 if state == DONE else self._of_state.get(state, np.nan) for state in states])
            live = known > -np.inf  # not nan
            log_shared = log_sum(log_mass[live].tolist())
            if log_shared > -math.inf:
                known[np.isnan(known)] = log_sum((log_mass[live] + known[live]).tolist()) - log_shared
            else:
                known[~live] = 0.0
            self._beyond[node] = known
        return self._beyond[node]

    def _log_mass(self, node: Node) -> NDArray[np.float64]:
        """Return the log probability of each target of an evaluated node, in the order of :meth:`free`."""
        free = self.free(node)
        log_mass = free.log_mass.copy()
        live = [child for child in node.children.values() if child.state != DEAD]
        places = free.states.searchsorted([child.state for child in live])
        np.logaddexp.at(log_mass, places, [child.log_step for child in live])
        return log_mass

    def free(self, node: Node) -> FreeMass:
        """Return the free part of an evaluated node by target."""
        count, free = self._free.get(node, (-1, None))
        if free is None or count != len(node.children):
            p = node.distribution
            assert p is not None
            states = p.moves.destinations.states
            log_mass: NDArray[np.float64] = np.full(len(states), -np.inf)
            if p.log_free.size:
                log_mass = p.moves.log_masses(p.log_free) + p.log_scale
            free = FreeMass(states, log_mass)
            self._free[node] = (len(node.children), free)
        return free

    def _backed_up(self, node: Node) -> float:
        if node.state == DEAD:
            return -math.inf
        if node.distribution is None:  # evicted: only its children and its bounds are left
            usual = self._of_state[node.state]
            inner = (child for child in node.children.values() if child.state != DONE)
            inside = (child.log_step + self._of_node.get(child, usual) for child in inner)
            value = log_sum([*inside, node.log_rest + usual, node.log_lower])
        else:
            beyond = (self.free(node).log_mass + self.beyond(node)).tolist()
            value = log_sum([*beyond, *(child.log_step + self.of(node, child) for child in node.children.values())])
        return min(max(value, node.log_lower), node.log_upper)


def _mean(log_values: Sequence[float]) -> float:
    """Return the log of the geometric mean of the positive ones; ``-inf`` where there is none."""
    positive = [log_v for log_v in log_values if log_v > -math.inf]
    return math.fsum(positive) / len(positive) if positive else -math.inf


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
    ``steps``: Of each token, ``log q(v | y)`` of the whole proposal, where accounts ask for it.
    ``turns``: How often it has waited for the model.
    """

    __slots__ = ("log_q", "node", "part", "rng", "steps", "turns")

    def __init__(self, root: Node, rng: np.random.Generator, *, accounts: bool = False) -> None:
        self.node: Node | None = root
        self.rng, self.part = rng, draw(np.array(SHARES), rng)
        self.log_q = [0.0] * len(SHARES)
        self.steps: list[float] | None = [] if accounts else None
        self.turns = 0

    @property
    def log_mixture(self) -> float:
        """``log sum_k SHARES[k] q_k(y)``, of what it has written so far."""
        return float(np.logaddexp.reduce(np.log(SHARES) + np.array(self.log_q)))

    @property
    def log_w(self) -> float:
        """``log p(y) - log sum_k SHARES[k] q_k(y)``; ``-inf`` where it failed."""
        return -math.inf if self.node is None else self.node.log_p - self.log_mixture


class Choices(NamedTuple):
    """The choices of a trajectory at a node: its children, then the targets of the tokens without a child."""

    children: list[Node]
    states: list[int]  # Of the children
    targets: NDArray[np.integer]
    # `[2, choices]`: logs, under the usual values of states and those of prefixes
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
    ``accounts``: Whether each tells by which probabilities its tokens were drawn.
    """

    def __init__(
        self,
        tree: BoundsTree,
        rounds: Sequence[int],
        stream: Callable[[int], np.random.Generator],
        *,
        max_bytes: int,
        others: Callable[[], Iterable[Node]] = tuple,
        accounts: bool = False,
    ) -> None:
        self.tree, self._accounts = tree, accounts
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
        streams = (self._stream(first + i) for i in range(size))
        self._walking = [Candidate(self.tree.root, stream, accounts=self._accounts) for stream in streams]
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
            token = node.distribution.draw(trajectory.rng, node.distribution.moves.leading_to(place))
            child = self.tree.child(node, token, int(choices.targets[place]))
        log_values = (0.0, *choices.log_values[:, choice].tolist())
        before = trajectory.log_mixture if trajectory.steps is not None else 0.0
        for part, (log_v, log_total) in enumerate(zip(log_values, choices.log_totals, strict=True)):
            found = log_v > -math.inf and log_total > -math.inf
            trajectory.log_q[part] += child.log_step + log_v - log_total if found else -math.inf
        if trajectory.steps is not None:
            trajectory.steps.append(trajectory.log_mixture - before)
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
        log_shares[:, n:] = free.log_mass
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
    """A candidate that was picked: where it ended, its turns and steps, the log of the mean weight of all, their number and ESS."""

    node: Node
    turns: int
    steps: Sequence[float] | None
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
    return Picked(picked.node, picked.turns, picked.steps, log_mean(log_w), len(log_w), effective_size(w))
