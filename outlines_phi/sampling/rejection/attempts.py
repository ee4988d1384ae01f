"""Rejection sampling over a token tree, and its residual attempts at what is undecided (theory.md, sections 5.3 and 5.7)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, final

import numpy as np

from ...guides.guide import DEAD, DONE
from ...lm.model import check_interruption, current
from ...numerics.weights import log_sum, ratio
from ...phi.tree.tree import BoundsTree, Node
from ..phi_options import Effort

FIRST_TOGETHER, MOST_TOGETHER = 4, 8
"""Attempts at a single draw at once: at first, and at most, however many have failed."""


@final
@dataclass
class Launches:
    """The rule by which attempts at the draws of a prompt are launched, whoever makes them.

    ``wanted``: Draws that are to be made.
    ``width``: Attempts in flight at most, at first. So many more with every step while most of those launched go on: as many as
        draws are missing, up to ``most``.
    ``effort``: When to stop launching.
    ``together``: Attempts at one draw in flight at most, while none has succeeded.
    ``launched``, ``successes``: How many were launched so far, and found a member.
    """

    wanted: int
    width: int
    effort: Effort
    most: int
    together: int = MOST_TOGETHER
    launched: int = 0
    successes: int = 0
    grown: int = 0

    def widen(self, failed: int) -> None:
        """Let more be in flight at the next step, unless most of those launched have failed."""
        if 2 * failed <= self.launched:
            self.grown += self.width

    def more(self, in_flight: int, finished: int, log_bounds: tuple[float, float], spent: int, least: int) -> int:
        """Return the number of attempts to launch beside those in flight: while fewer successes are at hand or to be hoped for than
        are wanted, within width and effort.

        ``spent``, ``least``: The model tokens spent, and those that an attempt in flight will come to, at the least.
        """
        missing = self.wanted - self.successes
        room = max(self.width, min(self.grown, self.most, missing))
        # The guessed share of attempts that succeed. It falls with every failure, down to that of `together` attempts at a draw:
        # what is improbable is tried in wider model calls rather than in more of them.
        unsuccessful = 1 / min(self.together, FIRST_TOGETHER + finished)
        hope = max(unsuccessful, self.successes / max(1, finished), ratio(*log_bounds))
        attempts, tokens = self.effort.attempts * self.wanted, self.effort.tokens * self.wanted
        flying, before = in_flight, self.launched - in_flight
        while (
            flying < room and flying * hope < missing and before + flying < attempts and spent + flying * least < tokens
        ):
            flying += 1
        return flying - in_flight


@final
class Attempt:
    """One walk from the root.

    ``number``, ``node``: Its place in the launch order, and where it stands.
    ``log_bound``: The upper bound of ``node`` when the walk chose it, less that of the children that it has decided against.
    ``since``: The number of these children, the first of ``node``: all that there were when the walk chose a free token, which was
        not drawn yet; else 0.
    ``turns``: How often it has waited for the model.
    """

    __slots__ = ("log_bound", "node", "number", "rng", "since", "turns")

    def __init__(self, number: int, root: Node, rng: np.random.Generator) -> None:
        self.number, self.node, self.log_bound, self.rng = number, root, root.log_upper, rng
        self.since = self.turns = 0


class Attempts(ABC):
    """The walks of one prompt: launched in order, read in order, sharing and growing one tree.

    How a walk goes down, and when it fails, is the subclass's. Walks that finish are read strictly in launch order, so one that
    is under way holds up the later ones; first-to-finish would favour short texts. What was launched after the last one read
    is dropped as a whole, finished or not: dropping by outcome would favour short texts too.

    ``width``, ``most``, ``together``, ``effort``: As of :class:`Launches`, counted over this prompt alone; the seconds of an effort
        are those of the call that is watched.
    ``launches``: The rule, and how many were launched and succeeded so far.
    ``read``, ``accepted``, ``turns``: Walks read so far, the members that they found, and how often these waited for the model.
    ``longest``: The fewest tokens of a text that begins as the longest walk so far.
    ``others``: Where other walks on the tree stand: nothing on the way there is forgotten.
    """

    def __init__(
        self,
        tree: BoundsTree,
        wanted: int,
        stream: Callable[[int], np.random.Generator],
        *,
        width: int,
        effort: Effort,
        max_bytes: int,
        most: int = 0,
        together: int = MOST_TOGETHER,
    ) -> None:
        self.tree, self._stream, self._max_bytes = tree, stream, max_bytes
        self.launches = Launches(wanted, width, effort, most, together)
        self._watch = current()
        self._spent_before = tree.expansions
        self._waiting: list[Attempt] = []
        self._finished: dict[int, tuple[Node | None, int]] = {}  # by number: the member found, and the turns
        self.read = self.turns = 0
        self.accepted: list[Node] = []
        self.longest = tree.fewest_tokens(tree.root)
        self.stopped = False
        self.others: Callable[[], Iterable[Node]] = tuple

    @property
    def satisfied(self) -> bool:
        """True if all wanted draws have been read."""
        return len(self.accepted) >= self.launches.wanted

    @property
    def waiting(self) -> list[Node]:
        """The nodes that walks wait for."""
        return [attempt.node for attempt in self._waiting]

    def stop(self) -> None:
        """Launch nothing any more; what was launched is finished. Others walk on the tree from now on, and see to its memory."""
        self.stopped = True

    def advance(self) -> list[Node]:
        """Launch walks, take every walk as far as it goes without the model, and return the nodes they wait for.

        Empty when the draws are complete, when nothing is possible, or when the effort is spent.
        """
        moving, self._waiting = self._waiting, []
        self.launches.widen(len(self._finished) + self.read - self.launches.successes)
        while True:
            self._launch(moving)
            if not moving:
                break
            check_interruption()  # where the tree knows everything, all draws are made here
            for attempt in moving:
                success = self._walk(attempt)
                if success is None:
                    attempt.turns += 1
                    self.longest = max(self.longest, self.tree.fewest_tokens(attempt.node))
                    self._waiting.append(attempt)
                    continue
                self._finished[attempt.number] = attempt.node if success else None, attempt.turns
                self.launches.successes += success
            moving = []
            self._read_in_order()
        if self.satisfied:
            self._waiting = []
        if not self.stopped:
            self._evict()
        return self.waiting

    def _launch(self, moving: list[Attempt]) -> None:
        """Launch as many walks as :class:`Launches` says."""
        root, launches = self.tree.root, self.launches
        possible = root.log_upper > -math.inf
        if self.stopped or self.satisfied or not possible or self._watch.over:
            return
        spent, least = self.tree.expansions - self._spent_before, self.tree.table.guide.min_tokens(root.state)
        finished = len(self._finished) + self.read
        log_bounds = root.log_lower, root.log_upper
        many = launches.more(len(self._waiting) + len(moving), finished, log_bounds, spent, least)
        first, launches.launched = launches.launched, launches.launched + many
        moving += [Attempt(number, root, self._stream(number)) for number in range(first, first + many)]

    @abstractmethod
    def _walk(self, attempt: Attempt) -> bool | None:
        """Take an attempt down; return whether it found a member, ``None`` where it waits for a distribution."""

    def _evict(self) -> None:
        """Drop distributions down to the bound of memory. Nodes and bounds stay: walks under way keep their distribution."""
        self.tree.drop_distributions(self._max_bytes)

    def _read_in_order(self) -> None:
        while self.read in self._finished and not self.satisfied:
            node, turns = self._finished.pop(self.read)
            self.read += 1
            if node is not None:
                self.accepted.append(node)
                self.turns += turns


@final
class RejectionAttempts(Attempts):
    """Walks that return each member with probability ``p(y) / U_launch(root)``: i.i.d. ``mu*`` (theory.md, section 5.3)."""

    def _evict(self) -> None:
        """Drop distributions and subtrees, sparing the paths of the walks that wait; see :meth:`BoundsTree.evict`."""
        self.tree.evict(self._max_bytes, pinned=[*self.waiting, *self.others()])

    def _walk(self, attempt: Attempt) -> bool | None:
        return descend(self.tree, attempt)


def descend(tree: BoundsTree, attempt: Attempt) -> bool | None:
    """Take an attempt down as far as it goes without the model; return whether it found a member, ``None`` where it waits."""
    while attempt.node.state != DONE:
        node = attempt.node
        tree.visit(node)
        if node.state == DEAD:
            return False
        if node.free is None:
            return None
        # The coin of thinning: the walk survives with probability (upper bound now) / (upper bound when it chose the node), 0 where
        # nothing is open. Both are 1 of a member, so none is tossed for it.
        if attempt.rng.random() >= ratio(node.log_open(attempt.since), attempt.log_bound):
            return False
        child = tree.choose(node, attrgetter("log_upper"), attempt.rng, since=attempt.since)
        if child is None:
            # It has chosen among the free tokens of now. Those that become children before it goes on are still among them.
            attempt.since, attempt.log_bound = len(node.children), node.log_rest
            tree.forget(node)
            return None
        attempt.node, attempt.log_bound, attempt.since = child, child.log_upper, 0
    return True


@final
class FrozenWalks(Attempts):
    """Walks by ``p`` and the bounds of the tree as they are at the start, without a coin.

    By upper bounds, and by ``p`` of live tokens below the tree: within ``(U - Lo) / U`` of ``mu*``. One fails where truncation
    leaves no token, or the constraint rules out what it wrote. By lower ones: to members that the tree holds whole, in proportion
    to ``p``, at ``1 - Lo / Phi`` of ``mu*``; without the model, but for distributions that were dropped.
    """

    def __init__(self, tree: BoundsTree, *arguments: Any, upper: bool, **options: Any) -> None:
        super().__init__(tree, *arguments, **options)
        self._upper, frozen = upper, {node: node.log_upper if upper else node.log_lower for node in tree.walk()}
        # Of what was not there: by lower bounds, the ends of texts that their parent held.
        self._log_weight = lambda node: frozen.get(node, 0.0 if upper or node.state == DONE else -math.inf)

    def _walk(self, attempt: Attempt) -> bool | None:
        while (node := attempt.node).state not in (DONE, DEAD):
            self.tree.visit(node)
            log_free = node.log_rest if self._upper else node.log_ends
            if node.distribution is None and (self._upper or log_free > -math.inf):
                return None
            shares = (child.log_step + self._log_weight(child) for child in node.children.values())
            if max(log_free, *shares, -math.inf) == -math.inf:
                return False
            ended = node.distribution.moves.ended if node.distribution is not None and not self._upper else slice(None)
            child = self.tree.choose(node, self._log_weight, attempt.rng, log_free, ended)
            assert child is not None  # a whole distribution always has the token that is drawn from it
            attempt.node = child
        return node.state == DONE


@final
class ResidualWalk:
    """A walk at what is undecided: by ``p(v|y) (U - Lo)(yv)`` to a prefix that was unexpanded at its launch, then by ``p``.

    On its way it may lose, of the gap that it was chosen by, what others have decided since, and then the mass of dead tokens.
    With ``coins`` it fails with the probability of what is lost; without, ``log_success`` is the share that is left.

    ``node``: Where it stands; ``None`` once it has failed.
    ``arrived``: True if it has come to the prefix.
    """

    def __init__(self, tree: BoundsTree, rng: np.random.Generator, *, coins: bool) -> None:
        self.tree, self._rng, self._coins = tree, rng, coins
        self._log_gap = tree.root.log_gap
        self.node: Node | None = tree.root if self._log_gap > -math.inf else None
        self.arrived, self.log_success = False, 0.0

    @property
    def waiting(self) -> Node | None:
        """The node that it waits for; ``None`` where it has ended."""
        return None if self.node is None or self.node.state == DONE else self.node

    def descend(self) -> None:
        """Go down what is expanded; to the prefix, unless a distribution on the way was dropped."""
        while not self.arrived and (node := self.node) is not None and node.expanded and node.distribution is not None:
            self._go(node, node.log_gap, self._log_gap, self.tree.choose_undecided)
            self._log_gap = -math.inf if self.node is None else self.node.log_gap
        self.arrived |= self.waiting is None or not self.waiting.expanded

    def go_on(self) -> None:
        """Go on from the prefix as far as distributions are known."""
        while (node := self.waiting) is not None and node.distribution is not None:
            self._go(node, node.log_live, 0.0, lambda node, rng: self.tree.choose(node, lambda child: 0.0, rng))

    def _go(
        self,
        node: Node,
        log_left: float,
        log_whole: float,
        choose: Callable[[Node, np.random.Generator], Node | None],
    ) -> None:
        self.tree.visit(node)
        if self._coins:
            lost = self._rng.random() >= ratio(log_left, log_whole)
        else:
            self.log_success += min(0.0, log_left - log_whole)
            lost = log_left == -math.inf
        child = None if lost else choose(node, self._rng)
        self.node = None if child is None or child.state == DEAD else child


@final
class ResidualAttempts:
    """Unbiased estimator of the normaliser within the bounds of a tree: ``Z_hat = Lo + (U - Lo) 1[success]`` of walks that are
    launched after the draws (theory.md, section 5.7).

    Each is a :class:`ResidualWalk` with coins. All walks reach their prefix before the first of them expands anything.

    ``width``: Walks that go on from their prefixes at once, at most; the next one goes on where one has finished.
    """

    def __init__(self, tree: BoundsTree, streams: list[np.random.Generator], *, width: int) -> None:
        self.tree, self._width = tree, width
        self._log_lower, self._log_gap = tree.root.log_lower, tree.root.log_gap
        self._walks = [ResidualWalk(tree, rng, coins=True) for rng in streams]
        self._walking = self._walks

    def advance(self) -> list[Node]:
        """Walk every attempt as far as it goes without the model; return the nodes they wait for, none when all are finished."""
        for each in self._walks:
            each.descend()
        if evicted := [walk.node for walk in self._walks if walk.node is not None and not walk.arrived]:
            return evicted
        going, rest = list[ResidualWalk](), iter(self._walking)
        while len(going) < self._width and (walk := next(rest, None)) is not None:
            walk.go_on()
            if walk.waiting is not None:
                going.append(walk)
        self._walking = [*going, *rest]
        return [walk.node for walk in going if walk.node is not None]

    @property
    def successes(self) -> int:
        """The number of finished attempts that found a member."""
        return sum(walk.node is not None for walk in self._walks)

    @property
    def log_estimates(self) -> tuple[float, ...]:
        """``log Z_hat`` of each finished attempt."""
        success = log_sum([self._log_lower, self._log_gap])
        return tuple(self._log_lower if walk.node is None else success for walk in self._walks)
