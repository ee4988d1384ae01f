"""The token tree: upper and lower bounds of future validity over visited prefixes (theory.md, section 5)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import final

import numpy as np
from numpy.typing import NDArray

from ...errors import EmptyLanguageError
from ...guides.guide import DEAD, DONE
from ...guides.table import Moves, Table
from ...numerics.weights import log_difference, log_sum, ratio, scaled
from ...settings import SamplingSettings
from ..constraint import Constraint
from .distribution import Beginnings, Distribution, RunningMass, TokensAhead, likeliest

NODE_BYTES = 600  # Measured footprint of a node without its distribution, on CPython 3.11
NEVER = -1  # When a node was last visited that a draft was evaluated for, and no walk has come to


@final
class Node:
    """A prefix ``y`` of generated tokens.

    ``parent``, ``token``: the prefix without its last token, and that token; ``None`` and -1 at the root.
    ``state``, ``remaining``: the guide state after ``y``, and the tokens that may still be written, the end of sequence included.
    ``log_step``, ``log_p``: ``log p(last token | parent)``, and ``log p(y)`` of the whole path in nats; ``nan`` while the parent
        is unexpanded.
    ``log_upper``, ``log_lower``: ``log_lower <= log Phi(y) <= log_upper``, the numbers that the walk samples with.
    ``children``: the materialised children. All others are in the distribution's free part.
    ``log_rest``, ``log_ends``: log probability of the free part, and of those free tokens that end the text: all others have
        bounds (1, 0), these (1, 1). A constraint has not been asked about any of them, so beside one ``log_ends`` is ``-inf``.
    ``distribution``: that of the next token, whole; ``None`` before it is evaluated, after its eviction, and where ``drawn`` stands
        for it.
    ``drawn``: the next tokens drawn ahead; all that a walk needs as long as there are some, and nothing to search.
    ``touched``: when the node was last visited, in the tree's own clock; :data:`NEVER` where a draft was first and no walk since.
    """

    __slots__ = (
        "children", "distribution", "drawn", "expanded", "log_ends", "log_lower", "log_p", "log_rest", "log_step",
        "log_upper", "parent", "remaining", "state", "token", "touched",
    )  # fmt: skip

    def __init__(self, parent: Node | None, token: int, state: int, remaining: int) -> None:
        self.parent, self.token, self.state, self.remaining = parent, token, state, remaining
        self.log_step = self.log_p = 0.0 if parent is None else math.nan
        done = state == DONE
        self.log_upper, self.log_lower = 0.0, 0.0 if done else -math.inf
        self.children: dict[int, Node] = {}
        self.log_rest = self.log_ends = -math.inf
        self.distribution: Distribution | None = None
        self.drawn: TokensAhead | None = None
        self.expanded = done
        self.touched = 0

    @property
    def visited(self) -> bool:
        """True if its distribution was learned for a walk, or a walk has come to it since."""
        return self.touched != NEVER

    @property
    def free(self) -> Distribution | TokensAhead | None:
        """The distribution of the tokens without a child; ``None`` where the model has to be asked."""
        return self.drawn if self.distribution is None else self.distribution

    @property
    def log_gap(self) -> float:
        """``log(U - Lo)``, of the probability that is not decided yet."""
        return log_difference(self.log_upper, self.log_lower)

    @property
    def log_live(self) -> float:
        """The log probability of the live tokens of an evaluated node."""
        return log_sum([self.log_rest, *(child.log_step for child in self.children.values())])

    def log_open(self, since: int) -> float:
        """Return the upper bound without the first ``since`` children: :attr:`log_upper` itself where that is 0."""
        if since == 0:
            return self.log_upper
        children = islice(self.children.values(), since, None)
        return log_sum([self.log_rest, *(child.log_step + child.log_upper for child in children)])

    def path(self) -> list[Node]:
        """Return the nodes from the root's child down to this one."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    @property
    def root(self) -> Node:
        """The root above it."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def tokens(self) -> tuple[int, ...]:
        """Return the token ids of ``y``."""
        return tuple(node.token for node in self.path())

    def rule_out(self) -> None:
        """Mark the prefix as one that nothing in the language begins with."""
        self.state, self.log_upper, self.log_lower, self.expanded = DEAD, -math.inf, -math.inf, True

    def end(self) -> None:
        """Mark an unexpanded prefix as a member."""
        self.state, self.log_lower, self.expanded = DONE, 0.0, True

    def recompute(self) -> bool:
        """Sum both bounds afresh from the children; return whether either changed."""
        children = self.children.values()
        log_upper = log_sum([self.log_rest, *(child.log_step + child.log_upper for child in children)])
        log_lower = log_sum([self.log_ends, *(child.log_step + child.log_lower for child in children)])
        changed = log_upper != self.log_upper or log_lower != self.log_lower
        self.log_upper, self.log_lower = log_upper, log_lower
        return changed


@final
class BoundsTree:
    """Bounds on future validity over the visited prefixes of one (prompt, guide, settings) (theory.md, section 5.1).

    ``U(y) = sum_v p(v|y) U(yv)`` and ``Lo`` likewise, with ``(U, Lo) = (1, 0)`` at live unexpanded prefixes, ``(0, 0)`` at dead
    ones and ``(1, 1)`` at the end of sequence. A node keeps the distribution of its first evaluation, because batched
    low-precision logits differ with the shape of the batch.

    ``budget``: the most tokens to write, end of sequence included.
    ``start``, ``moves``: the guide state of the prompt, and the live tokens at a node; those of the table by default.

    ``expansions``: distributions learned so far: the model tokens used. Those learned for drafts count when a walk comes to them,
        so an effort allows with any draft what it allows without.
    ``beginnings``: the likeliest first tokens, of the format or not; ``None`` while the root's whole distribution was not read.
    """

    def __init__(
        self,
        table: Table,
        budget: int,
        constraint: Constraint | None = None,
        start: int | None = None,
        moves: Callable[[Node], Moves] | None = None,
    ) -> None:
        self.table, self.budget, self.constraint = table, budget, constraint
        self._moves = moves or (lambda node: table.moves(node.state, node.remaining))
        self.root = Node(None, -1, table.start if start is None else start, budget)
        self.clock = 0
        self.nodes = 1
        self.distribution_bytes = 0
        self.expansions = 0
        self.beginnings: Beginnings | None = None
        # `(lower, upper)` bounds of `log Phi` of the prompt, as reported: they only ever tighten
        self.log_bounds = -math.inf, 0.0

    @property
    def bytes(self) -> int:
        """Memory held by the tree, as counted."""
        verdicts = 0 if self.constraint is None else self.constraint.bytes
        return self.nodes * NODE_BYTES + self.distribution_bytes + verdicts

    def target(self, node: Node, token: int) -> int:
        """Return the guide state that ``token`` leads to from ``node``, :data:`DEAD` where it is not live."""
        if node.distribution is not None:
            return node.distribution.moves.target(token)
        if node.drawn is not None:  # what was drawn is live
            return self.table.advance(node.state, token, node.remaining)
        return self._moves(node).target(token)

    def fewest_tokens(self, node: Node) -> int:
        """Return the fewest tokens of a text that begins with ``node``, the end of sequence included."""
        return self.budget - node.remaining + self.table.guide.min_tokens(node.state)

    def visit(self, node: Node) -> None:
        """Take note that a walk stands at ``node``."""
        self.expansions += node.touched == NEVER
        node.touched = self.clock

    def child(self, node: Node, token: int, target: int) -> Node:
        """Return the child of ``node`` at a live ``token``, made if need be; bounds change if the constraint rules it out."""
        child = node.children.get(token)
        if child is None:
            child = self._add(node, token, target)
            if (free := node.free) is not None:
                self._attach(free, node, child)
                node.log_rest, node.log_ends = free.log_mass(), self._log_ends(free)
                if child.state == DEAD:
                    self.propagate([node])
        return child

    def along(self, node: Node, chain: Sequence[int]) -> Iterator[Node]:
        """Yield the nodes of a chain below ``node``, as far as the guide goes.

        Below a node that was expanded before and only lost its distribution, lost distributions are learned again and nothing else,
        so that its bounds stay as they are. Walks rely on that.
        """
        for token in chain:
            expanded, target = node.expanded, self.target(node, token) if not node.expanded else DEAD
            if not expanded and target in (DEAD, DONE):
                return
            child = node.children.get(token) if expanded else self.child(node, token, target)
            if child is None or child.expanded != expanded or (expanded and child.state in (DEAD, DONE)):
                return
            yield (node := child)

    def expand(
        self,
        node: Node,
        log_p: NDArray[np.floating],
        *,
        ahead: bool = False,
        top: int = 0,
    ) -> None:
        """Give ``node`` its whole distribution, ``log_p[V]``; see :meth:`learn`.

        The ``top`` likeliest tokens are kept beside it, live or not.
        """
        moves, most = self._moves(node), likeliest(log_p, top) if top else None
        free = Distribution(moves, log_p[moves.tokens], most)
        if node is self.root:
            self.beginnings = Beginnings.of(log_p, moves, free.log_mass(), self.table.vocabulary)
        self.learn(node, free, ahead=ahead)

    def learn(self, node: Node, free: Distribution | TokensAhead, *, ahead: bool = False) -> None:
        """Give ``node`` its distribution, or tokens drawn ahead from it. Bounds change only with :meth:`propagate`.

        ``ahead`` says that a draft asked for it, and no walk.

        On a node whose distribution was evicted a whole one restores the free part at the mass that it had and keeps its children's
        probabilities: a second evaluation may differ where precision is low, and a node has one distribution. So does one for a
        node whose tokens drawn ahead are used up.
        """
        self.forget(node)
        self.distribution_bytes += free.nbytes
        if ahead:
            node.touched = NEVER
        else:
            self.expansions += 1
        eos = self.table.vocabulary.eos_ids[0]
        match free:
            case Distribution():
                node.distribution, can_end = free, free.moves.target(eos) == DONE
            case TokensAhead():
                node.drawn, can_end = free, free.can_end
        if not node.expanded:
            if can_end and eos not in node.children:
                self._add(node, eos, DONE)
            node.expanded = True
            for child in node.children.values():
                self._attach(free, node, child)
        elif isinstance(free, Distribution):
            for child in node.children.values():
                free.take(child.token)
            free.rescale(node.log_rest)
        node.log_rest, node.log_ends = free.log_mass(), self._log_ends(free)

    def forget(self, node: Node) -> None:
        """Drop the distribution of the tokens without a child; bounds stay, and the model is asked where a walk needs it again."""
        self.distribution_bytes -= node.free.nbytes if node.free is not None else 0
        node.distribution = node.drawn = None

    def _log_ends(self, free: Distribution | TokensAhead) -> float:
        """Return the free log mass that is known to end the text: none where a constraint has still to be asked about it."""
        return free.log_ends() if self.constraint is None else -math.inf

    def _add(self, node: Node, token: int, target: int) -> Node:
        child = node.children[token] = Node(node, token, target, node.remaining - 1)
        child.touched = self.clock
        self.nodes += 1
        if self.constraint is not None:
            written = node.tokens() if token == self.table.vocabulary.eos_ids[0] else child.tokens()
            if not self.constraint.allows(written, finished=target == DONE):
                child.rule_out()
            elif target == DONE and token != self.table.vocabulary.eos_ids[0]:
                # Undecided, as the other ends at the limit that are still to be asked about.
                child.log_lower = -math.inf
        return child

    def _attach(self, free: Distribution | TokensAhead, node: Node, child: Node) -> None:
        child.log_step = free.take(child.token)
        child.log_p = node.log_p + child.log_step

    def drift(self, log_p: NDArray[np.floating]) -> float:
        """Return the distance of the root's distribution ``p`` from a second evaluation, ``log_p'[V]``, in nats.

        ``sqrt(sum_v q(v) (log p(v) - log p'(v))^2)``, with ``q`` the distribution ``p`` restricted to the live tokens.
        """
        first = self.root.distribution
        assert first is not None
        if not first.log_free.size:  # truncation left nothing
            return 0.0
        before = first.log_free.astype(np.float64) + first.log_scale
        now = log_p[first.moves.tokens].astype(np.float64)
        for child in self.root.children.values():
            before[first.moves.tokens.searchsorted(child.token)] = child.log_step
        weights = scaled(before)
        held = weights > 0
        return float(np.sqrt(np.average((before[held] - now[held]) ** 2, weights=weights[held])))

    def propagate(self, nodes: Iterable[Node]) -> None:
        """Recompute the bounds of ``nodes`` and of every ancestor that they change, deepest first."""
        heap = [(node.remaining, id(node), node) for node in nodes]
        heapq.heapify(heap)
        last = None
        while heap:
            _, _, node = heapq.heappop(heap)
            if node is not last and node.recompute() and node.parent is not None:
                heapq.heappush(heap, (node.parent.remaining, id(node.parent), node.parent))
            last = node
        low, high = self.log_bounds
        self.log_bounds = max(low, self.root.log_lower), min(high, self.root.log_upper)

    def choose(
        self,
        node: Node,
        log_weight: Callable[[Node], float],
        rng: np.random.Generator,
        log_rest: float | None = None,
        places: NDArray[np.int64] | slice | None = None,
        since: int = 0,
    ) -> Node | None:
        """Draw a child of an evaluated node in proportion to ``p(child) weight(child)``, a free token's weight being 1.

        ``log_rest``, ``places``: the log mass of the free tokens to choose from, and where they are, of a whole distribution.
        ``since``: the first so many children are not chosen.

        ``None`` where it is a free token, and those that were drawn ahead are used up.
        """
        log_rest = node.log_rest if log_rest is None else log_rest
        children = list(islice(node.children.values(), since, None))
        log_shares = [child.log_step + log_weight(child) for child in children]
        log_total = log_sum([log_rest, *log_shares])
        threshold = rng.random()
        last: Node | None = None
        for child, log_share in zip(children, log_shares, strict=True):
            threshold -= ratio(log_share, log_total)
            if threshold < 0:
                return child
            last = child if log_share > -math.inf else last
        if log_rest == -math.inf and last is not None:
            return last  # rounding pushed the threshold past the sum
        free = node.free if places is None else node.distribution
        assert free is not None
        token = free.draw(rng) if places is None else free.draw(rng, places)  # type: ignore[call-arg]
        return None if token is None else self.child(node, token, self.target(node, token))

    def choose_undecided(self, node: Node, rng: np.random.Generator) -> Node | None:
        """Draw a child of a node with a distribution in proportion to ``p(child) (U - Lo)(child)``."""
        free, log_gap = node.distribution, attrgetter("log_gap")
        assert free is not None
        if self.constraint is not None:
            return self.choose(node, log_gap, rng)
        unended = free.unended()
        log_undecided = RunningMass(unended).log + free.log_scale
        return self.choose(node, log_gap, rng, log_undecided, np.flatnonzero(unended > -np.inf))

    def drop_distributions(self, max_bytes: int) -> None:
        """Drop distributions but the root's, least recently visited first, until they take half of ``max_bytes`` or the tree fits.

        Bounds stay as they are; a distribution is learned again when a walk needs it.
        """
        self.clock += 1
        if self.bytes <= max_bytes:
            return
        for node in sorted((node for node in self.walk() if node.free is not None), key=attrgetter("touched")):
            if self.distribution_bytes <= max_bytes // 2:
                break
            if node is not self.root:
                self.forget(node)

    def evict(self, max_bytes: int, pinned: Iterable[Node] = ()) -> None:
        """Drop distributions, then subtrees, least recently visited first, until the tree fits ``max_bytes``.

        A dropped subtree's root gets ``(U, Lo) = (1, 0)``, propagated up at once: a bound kept below would bias the next attempt.
        The root, and the paths to ``pinned`` nodes, stay.
        """
        self.drop_distributions(max_bytes)
        if self.bytes <= max_bytes:
            return
        kept = {self.root} | {above for node in pinned for above in (*self.walk(node), *node.path())}
        inner = (node for node in self.walk() if node.children and node not in kept)
        for node in sorted(inner, key=attrgetter("touched")):
            if self.bytes <= max_bytes:
                break
            if node.children:
                self._forget(node)

    def _forget(self, node: Node) -> None:
        for below in list(self.walk(node)):
            self.forget(below)
            self.nodes -= 1
            below.children, below.log_rest, below.log_ends = {}, -math.inf, -math.inf
        self.nodes += 1
        node.expanded, node.log_upper, node.log_lower = False, 0.0, -math.inf
        assert node.parent is not None
        self.propagate([node.parent])

    def walk(self, start: Node | None = None) -> Iterator[Node]:
        """Yield every node below ``start`` (the root by default), itself first."""
        stack = [self.root if start is None else start]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


def refuse_impossible(trees: Sequence[BoundsTree], settings: SamplingSettings) -> None:
    """Raise :class:`EmptyLanguageError` where no member of a tree has any probability."""
    for index, tree in enumerate(trees):
        if tree.root.log_upper > -math.inf:
            continue
        cause = f" under {settings.truncation}" if settings.truncation else ""
        remedy = "Loosen the truncation"
        if (phrases := tree.table.guide.phrases) is not None:
            cause += f" without the banned phrases {phrases.listed}"
            remedy += ", ban less"
        if tree.constraint is not None:
            raise EmptyLanguageError(
                f"Prompt {index}: {tree.constraint} leaves no member of the language any probability{cause}; it was asked about "
                f"{tree.nodes - 1} sequences of tokens, and what it refused proves Phi = 0. It is asked about unfinished texts "
                "too, and has to allow every beginning of what it allows."
            )
        raise EmptyLanguageError(
            f"Prompt {index}: no member of the language has any probability{cause}; the tree of all live prefixes proves "
            f"Phi = 0. {remedy}, or check that the model gives the format any probability at all."
        )
