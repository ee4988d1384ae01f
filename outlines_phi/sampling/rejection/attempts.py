"""Rejection sampling over a token tree: walks launched in order, read in order (theory.md, sections 5.3 and 5.8)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, final

import numpy as np

from ...guides.guide import DEAD, DONE
from ...lm.watch import check_interruption, current
from ...numerics.weights import draw, ratio, scaled
from ...phi.tree.tree import BoundsTree, Node
from ..phi_options import Effort

LEAST_HOPE = 1 / 4
"""A single draw is tried by at most the inverse of this many attempts at once, however many have failed."""


@final
class Attempt:
    """One walk from the root.

    ``number``: Its place in the launch order.
    ``node``: Where it stands.
    ``log_bound``: The upper bound that ``node`` had when the walk chose it, without the first ``since`` of its children.
    ``since``: How many children of ``node`` it has decided against: all that there were when it chose a free token while none was
        left of those drawn ahead; else 0.
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

    ``tree``: The bounds, which may know anything from earlier calls.
    ``wanted``: Draws to make.
    ``stream``: The random stream of each attempt, by its number.
    ``width``: Attempts in flight at most, at first. So many more with every model call while most of those launched go on:
        as many as draws are missing, up to ``most``.
    ``effort``: When to stop launching, counted over this prompt alone; its seconds are those of the call that is watched.
    ``max_bytes``: Memory that the tree may take, give or take one call.
    ``read``, ``accepted``: Walks read so far, and the members that they found.
    ``turns``: How often the walks that found these have waited for the model, all together.
    ``longest``: The fewest tokens of a text that begins as the longest walk so far.
    ``stopped``: Whether nothing is launched any more, see :meth:`stop`.
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
    ) -> None:
        self.tree, self._wanted, self._stream = tree, wanted, stream
        self._width, self._most, self._effort, self._max_bytes = width, most, effort, max_bytes
        self._watch = current()
        self._spent_before = tree.expansions
        self._launched = self._grown = 0
        self._waiting: list[Attempt] = []
        self._finished: dict[int, Node | None] = {}
        self._turns: dict[int, int] = {}
        self._successes = 0
        self.read = self.turns = 0
        self.accepted: list[Node] = []
        self.longest = tree.fewest_tokens(tree.root)
        self.stopped = False
        self.others: Callable[[], Iterable[Node]] = tuple

    @property
    def satisfied(self) -> bool:
        """Whether all wanted draws have been read."""
        return len(self.accepted) >= self._wanted

    @property
    def impossible(self) -> bool:
        """Whether the tree knows by now that nothing in the language has any probability."""
        return self.tree.root.log_upper == -math.inf

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
        failed = len(self._finished) + self.read - self._successes
        if 2 * failed <= self._launched:
            self._grown += self._width
        while True:
            self._launch(moving)
            if not moving:
                break
            check_interruption()  # where the tree knows everything, all draws are made here
            for attempt in moving:
                self._take(attempt, self._walk(attempt))
            moving = []
            self._read_in_order()
        if self.satisfied:
            self._waiting = []
        if not self.stopped:
            self._evict()
        return self.waiting

    def _launch(self, moving: list[Attempt]) -> None:
        """Launch while fewer successes are at hand or to be hoped for than are wanted, within width and effort."""
        if self.stopped or self.satisfied or self.impossible or self._watch.over:
            return
        root, effort = self.tree.root, self._effort
        missing = self._wanted - self._successes
        room = max(self._width, min(self._grown, self._most, missing))
        # How many attempts in one may succeed: a guess, that decides only how many to launch.
        succeeded = self._successes / max(1, len(self._finished) + self.read)
        hope = max(LEAST_HOPE, succeeded, ratio(root.log_lower, root.log_upper))
        # The model tokens of this call are those spent, and the least that the attempts in flight will come to.
        spent, least = self.tree.expansions - self._spent_before, self.tree.table.guide.min_tokens(root.state)
        in_flight = len(self._waiting) + len(moving)
        while (
            in_flight < room
            and in_flight * hope < missing
            and self._launched < effort.attempts * self._wanted
            and spent + in_flight * least < effort.tokens * self._wanted
        ):
            moving.append(Attempt(self._launched, root, self._stream(self._launched)))
            self._launched += 1
            in_flight += 1

    @abstractmethod
    def _walk(self, attempt: Attempt) -> bool | None:
        """Take an attempt down; return whether it found a member, ``None`` where it waits for a distribution."""

    def _evict(self) -> None:
        """Drop distributions down to the bound of memory. Nodes and bounds stay: walks under way keep their distribution."""
        self.tree.drop_distributions(self._max_bytes)

    def _take(self, attempt: Attempt, success: bool | None) -> None:
        """Take note of what :meth:`_walk` has come to."""
        if success is None:
            attempt.turns += 1
            self.longest = max(self.longest, self.tree.fewest_tokens(attempt.node))
            self._waiting.append(attempt)
            return
        self._finished[attempt.number] = attempt.node if success else None
        if success:
            self._turns[attempt.number] = attempt.turns
        self._successes += success

    def _read_in_order(self) -> None:
        while self.read in self._finished and not self.satisfied:
            node, turns = self._finished.pop(self.read), self._turns.pop(self.read, 0)
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
        # The coin of thinning: fails with probability 1 - upper / bound, always where nothing is open. A member has the bound 1, so
        # none is tossed for it.
        if attempt.rng.random() >= ratio(node.log_open(attempt.since), attempt.log_bound):
            return False
        child = tree.choose_since(node, attempt.since, attempt.rng)
        if child is None:
            # It has chosen among the free tokens of now. Those that become children before it goes on are still among them.
            attempt.since, attempt.log_bound = len(node.children), node.log_rest
            tree.forget(node)
            return None
        attempt.node, attempt.log_bound, attempt.since = child, child.log_upper, 0
    return True


def unweighted(node: Node) -> float:
    """Weigh every child alike, by ``log 1``: a choice by ``p`` alone."""
    return 0.0


@final
class CertifiedAttempts(Attempts):
    """The ``U``-walk, completed by plain masking below the tree, under bounds frozen at the start.

    Its distribution is within ``(U - Lo) / U`` of ``mu*`` in total variation (theory.md, section 5.8). A walk fails where
    truncation leaves it no token, or the constraint rules out what it has written.
    """

    def __init__(self, tree: BoundsTree, *arguments: Any, **options: Any) -> None:
        super().__init__(tree, *arguments, **options)
        self._frozen = {node: node.log_upper for node in tree.walk()}

    def _walk(self, attempt: Attempt) -> bool | None:
        while attempt.node.state != DONE:
            node = attempt.node
            self.tree.visit(node)
            if node.state == DEAD:
                return False
            if node.distribution is None:
                return None
            shares = (child.log_step + self._log_weight(child) for child in node.children.values())
            if max(node.log_rest, *shares, -math.inf) == -math.inf:
                return False
            attempt.node = self.tree.choose(node, self._log_weight, attempt.rng)
        return True

    def _log_weight(self, node: Node) -> float:
        return self._frozen.get(node, 0.0)


@final
class ConfidentAttempts(Attempts):
    """Draws of the members that the tree holds whole, in proportion to ``p``.

    Their total variation to ``mu*`` is ``1 - Lo / Phi`` (theory.md, section 5.8). No walk fails, and none needs the model, but
    where the distribution of a prefix was dropped. At its limit free text ends with any token: those ends have no nodes, and are
    held by the prefix before them.
    """

    def __init__(self, tree: BoundsTree, *arguments: Any, **options: Any) -> None:
        super().__init__(tree, *arguments, **options)
        nodes = list(tree.walk())
        members = [node for node in nodes if node.state == DONE and node.log_p > -math.inf]
        ending = [node for node in nodes if node.log_ends > -math.inf]
        self._held, self._members = members + ending, set(members)
        log_p = [node.log_p for node in members] + [node.log_p + node.log_ends for node in ending]
        self._p = scaled(np.array(log_p))
        self._chosen: dict[int, Node] = {}

    def _walk(self, attempt: Attempt) -> bool | None:
        if attempt.number not in self._chosen:
            self._chosen[attempt.number] = attempt.node = self._held[draw(self._p, attempt.rng)]
        if attempt.node.state != DONE:
            if attempt.node.distribution is None:
                return None
            attempt.node = self._ended(attempt.node, attempt.rng)
        return True

    def _ended(self, node: Node, rng: np.random.Generator) -> Node:
        """Draw one of the ends of ``node`` that had no node at the start."""
        assert node.distribution is not None
        made = [child for child in node.children.values() if child.state == DONE and child not in self._members]
        place = draw(scaled(np.array([*(child.log_step for child in made), node.log_ends])), rng)
        return made[place] if place < len(made) else self.tree.child(node, node.distribution.draw_ended(rng), DONE)
