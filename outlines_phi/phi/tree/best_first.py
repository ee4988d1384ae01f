"""Best-first search on token trees: enumeration (theory.md, section 5.2), ahead of walks too, and the mode (section 9)."""

import heapq
import math
from bisect import insort
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ...guides.guide import DEAD, DONE
from ...guides.guide_texts import list_texts
from ...lm.model import current
from ...numerics.weights import log, ratio
from ...vocabulary.trie import merged_tokens
from .evaluator import Evaluator, Foresight, Pair
from .tree import BoundsTree, Node

SHORT_LIST = 256  # Tokens of a node that are ranked at a time, at most

NEXT = 1e-3
"""Of a node's open tokens, those of at least this share of the likeliest are ranked at a time: few of a large vocabulary."""

FREE = 16  # A model call of so many tokens costs hardly more than one of a single token, on any machine

LEFT = 2.0**-12
"""The mass that a larger call leaves for later, in shares of ``tolerance * U``: together it hardly ever decides anything."""

LEAST_WIDTH, MOST_WIDTH = 16, 256
"""Prefixes per model call, at least and at most; in between, a part of what was expanded so far."""

SPECULATION = 4
"""A call takes at most one prefix for this many expanded so far, so what turns out needless stays a fraction of the work."""

SHORT = 512  # A language is short where its texts have at most so many prefixes, in bytes
USUAL = 32  # Where usual tokenizations have more prefixes than this, a draw comes to few of them
SHORTEST = 16  # A draw comes to one of the shortest of them at least, and so many cost less than a second call

BESIDE = 4  # A model call of so many tokens more costs less than a second call
OPEN = 1 / 16  # What may stay undecided beside a walk, in shares of ``Lo``: few walks come to it

BEAM = 8  # Prefixes of the beam that finds the first members, where no more members are asked for


OpenTokens: TypeAlias = Iterator[tuple[float, int]]
"""``log p`` and the token of some prefixes one token longer, by falling ``log p``."""


@final
class Frontier:
    """The prefixes of a tree, in any state, that wait for their distribution, by falling ``log p(y)``.

    A prefix becomes a node only when it is taken. The tree may be grown by others meanwhile, if what is expanded is offered here.
    """

    def __init__(self, tree: BoundsTree) -> None:
        self._tree = tree
        # Of each entry a node, or a token below one and those that follow it.
        self._heap: list[tuple[float, int, Node, int, OpenTokens | None]] = []
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
        """Queue the open part of a node: itself before its evaluation, else its free tokens by falling probability, lazily."""
        if not node.expanded or (node.distribution is None and node.log_rest > -math.inf):
            self._push(node.log_p, node)
        elif node.distribution is not None and node.log_rest > -math.inf:
            self._push_next(node, self._open(node))

    def pop(self) -> Node | None:
        """Take the likeliest open prefix, as a node; ``None`` where none is left."""
        self._settle()
        while self._heap:
            _, _, node, token, rest = heapq.heappop(self._heap)
            if rest is None:
                return node
            child = self._tree.child(node, token, self._tree.target(node, token))
            self._push_next(node, rest)
            if child.state not in (DEAD, DONE):
                return child
            self._settle()
        return None

    def make_nodes(self, least: float) -> None:
        """Make nodes of all open prefixes of at least ``log p = least`` and give up the others, for eviction."""
        heap, self._heap = self._heap, []
        for _, _, node, _, rest in heap:
            if rest is None:
                self._push(node.log_p, node)
                continue
            assert node.distribution is not None
            open_ = np.flatnonzero(self._free(node) > -np.inf)
            log_p = node.log_p + node.distribution.log_scale + node.distribution.log_free[open_].astype(np.float64)
            self._forgotten = max(self._forgotten, log_p[log_p < least].max(initial=-math.inf))
            likely = open_[log_p >= least]
            for token in node.distribution.moves.tokens[likely].tolist():
                child = self._tree.child(node, token, node.distribution.moves.target(token))
                self._push(child.log_p, child)

    def _free(self, node: Node) -> NDArray[np.floating]:
        """Return the free part that is open: what ends the text is not, unless a constraint has still to be asked about it."""
        assert node.distribution is not None
        closed = not self._tree.table.guide.ends_by_tokens or self._tree.constraint is not None
        return node.distribution.log_free if closed else node.distribution.unended()

    def _settle(self) -> None:
        """Drop settled entries from the top of the heap."""
        while self._heap:
            _, _, node, token, rest = self._heap[0]
            p = node.distribution
            if p is None or (rest is not None and p.log_p(token) > -math.inf):
                return
            heapq.heappop(self._heap)
            if rest is not None:
                self._push_next(node, rest)

    def _open(self, node: Node) -> OpenTokens:
        """Yield ``log p`` and the token of open free tokens, from short lists of the likeliest, each made when it is needed."""
        while (order := _likeliest(self._free(node))).size:
            for place in order.tolist():
                p = node.distribution
                assert p is not None
                # A token that a walk has materialised since is offered as a child already, and is free no more.
                if p.log_free[place] > -math.inf:
                    yield node.log_p + p.log_scale + float(p.log_free[place]), int(p.moves.tokens[place])

    def _push_next(self, node: Node, tokens: OpenTokens) -> None:
        if (following := next(tokens, None)) is not None:
            log_p, token = following
            self._push(log_p, node, token, tokens)

    def _push(self, log_p: float, node: Node, token: int = -1, rest: OpenTokens | None = None) -> None:
        if log_p > -math.inf:
            self._ticket += 1
            heapq.heappush(self._heap, (-log_p, self._ticket, node, token, rest))


def _likeliest(free: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the next indices of the log probabilities ``free``, by falling value; none where nothing is left."""
    most = free.max(initial=-math.inf)
    if most == -math.inf:
        return np.empty(0, dtype=np.int64)
    best = np.flatnonzero(free >= most + math.log(NEXT))
    if best.size > SHORT_LIST:
        best = np.sort(best[np.argpartition(-free[best], SHORT_LIST)[:SHORT_LIST]])
    return best[np.argsort(-free[best], kind="stable")]


class TreeWalks(Protocol):
    """Something that grows one tree: an enumeration, a search."""

    tree: BoundsTree

    def advance(self) -> list[Node]:
        """Return the nodes to expand next, after those returned before have been expanded; none when it is finished."""


def grow_trees(rows: Sequence[TreeWalks], evaluator: Evaluator, foresight: Foresight | None = None) -> None:
    """Run ``rows`` to their ends, each on its own tree, in shared model calls; ``foresight`` as of :meth:`Evaluator.expand`."""
    while any(waiting := [row.advance() for row in rows]):
        wanted = ((row.tree, node) for row, nodes in zip(rows, waiting, strict=True) for node in nodes)
        evaluator.expand(wanted, foresight)
    evaluator.confirm()


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
    """Run a :class:`BestFirst` on every tree together, of whose tokens ``spent`` are; return which reached ``tolerance``."""
    rows = [
        BestFirst(tree, tolerance, max_tokens - n, max_bytes, width)
        for tree, n in zip(trees, spent or [0] * len(trees), strict=True)
    ]
    grow_trees(rows, evaluator)
    return [row.reached for row in rows]


def is_decided(tree: BoundsTree, tolerance: float) -> bool:
    """Return True if ``U - Lo <= tolerance * Lo`` at the root."""
    return tree.root.expanded and tree.root.log_gap <= tree.root.log_lower + log(tolerance)


@final
class BestFirst:
    """Expands the prefixes that decide most, until the bounds of the root are close enough.

    The next prefixes are those of the highest ``p(y)``: an unexpanded prefix holds ``p(y)`` of the undecided mass ``U - Lo``. A
    call takes :data:`FREE` of them, and more as long as what it leaves may count (:data:`LEFT`).

    ``tolerance``: expand until ``U - Lo <= tolerance * Lo`` at the root.
    ``max_tokens``, ``max_bytes``: model tokens to spend here at most, the root not counted, and memory of the tree, give or take
        one call. The time of the call that is watched ends the work as well.
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
        """True if the bounds are that close."""
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
        log_upper = self.tree.root.log_upper
        left, enough = ratio(self.tree.root.log_gap, log_upper), LEFT * self._tolerance
        if self._tolerance == 0:
            enough = -math.inf  # whatever rounding makes of the sums
        while len(self._batch) < width and (left > enough or len(self._batch) < FREE):
            if (node := self._frontier.pop()) is None:
                break
            self._batch.append(node)
            left -= ratio(node.log_p, log_upper)
        return self._batch


@final
class ModeSearch:
    """Finds the ``top`` members ``y`` of the highest ``log p(y)``, with a certificate.

    ``p`` never rises along a path, so a member below an open prefix has at most that prefix's ``log p``. The search expands
    the likeliest open prefixes and ends when none of them reaches the last of the ``top`` members found: every prefix with more
    than that has been expanded, as in any search with this certificate. A beam runs ahead until its members are complete. Its
    members set the mark below which no prefix is expanded, and are there to hand over if the effort runs out.

    Members of equal ``log p`` are ordered by their token ids. Open prefixes that could still tie are expanded too, so the
    result depends on the distribution alone. See :class:`BestFirst` for the limits.

    ``tolerance``: end when no other member can have more than ``1 + tolerance`` times the probability of the last one found.
    """

    def __init__(
        self, tree: BoundsTree, top: int, *, tolerance: float = 0.0, max_tokens: int, max_bytes: int = 2**40
    ) -> None:
        self.tree, self._top, self._slack, self._max_bytes = tree, top, math.log1p(tolerance), max_bytes
        self._before, self._max_tokens, self._watch = tree.expansions, max_tokens, current()
        self._found: list[tuple[float, tuple[int, ...], Node]] = []
        self._collected: set[Node] = set()
        for node in list(tree.walk()):
            self._collect(node)
        self._frontier = Frontier(tree)
        self._batch: dict[Node, None] = {}
        self._beam = [tree.root]

    @property
    def members(self) -> list[Node]:
        """The best members found, at most ``top`` of them, the likeliest first."""
        return [node for _, _, node in self._found[: self._top]]

    @property
    def bound(self) -> float:
        """No member outside :attr:`members` has a ``log p`` above this; ``-inf`` where there is none."""
        next_found = -self._found[self._top][0] if len(self._found) > self._top else -math.inf
        return max(self._frontier.log_p, next_found)

    @property
    def finished(self) -> bool:
        """True if the certificate holds."""
        return self._frontier.log_p < self._least or self._frontier.log_p == -math.inf

    @property
    def _least(self) -> float:
        """The ``log p`` under which a prefix cannot change the result."""
        return -self._found[self._top - 1][0] + self._slack if len(self._found) >= self._top else -math.inf

    def advance(self) -> list[Node]:
        """Return the prefixes to expand next, after those returned before have been; none at the certificate or the limits."""
        for expanded in self._batch:
            self._collect(expanded)
            self._frontier.offer(expanded)
        self._batch = {}
        if self.finished or self._exhausted():
            return []
        self._descend()
        self._batch = dict.fromkeys(node for node in self._beam if node.distribution is None)
        # No member is likelier than the best of the beam, or one that lies elsewhere is hardly: what is above is needed anyway.
        least = max([self._least, *(node.log_p for node in self._beam)])
        while len(self._batch) < self._width() and self._frontier.log_p >= least:
            node = self._frontier.pop()
            if node is None:
                break
            self._batch[node] = None
        return list(self._batch)

    def _collect(self, node: Node) -> None:
        """Take note of the members one token below a node; of tokens that all end the text, of the likeliest."""
        if node.distribution is not None and self.tree.table.guide.ends_by_tokens:
            tokens, log_p = node.distribution.ended()
            most = self._top + 1
            least = np.partition(log_p, -most)[-most] if len(log_p) > most else -math.inf
            for token in tokens[(log_p >= least) & (log_p > -math.inf)].tolist():
                self.tree.child(node, token, DONE)
        for child in node.children.values():
            # A node whose distribution was evicted is expanded a second time.
            if child.state == DONE and child.log_p > -math.inf and child not in self._collected:
                self._collected.add(child)
                insort(self._found, (-child.log_p, child.tokens(), child))

    def _width(self) -> int:
        return min(MOST_WIDTH, max(LEAST_WIDTH, (self.tree.expansions - self._before) // SPECULATION))

    def _exhausted(self) -> bool:
        if self.tree.bytes > self._max_bytes and self._least > -math.inf:
            self._frontier.make_nodes(self._least)
            self.tree.drop_distributions(self._max_bytes)
        spent = self.tree.expansions - self._before
        over = spent >= self._max_tokens or self.tree.bytes > self._max_bytes or self._watch.over
        return self.tree.root.expanded and over

    def _descend(self) -> None:
        """Move the beam to the best prefixes one token further down, on through what is known; members drop out of it."""
        size = max(BEAM, min(self._top, MOST_WIDTH))
        while self._beam and all(node.distribution is not None for node in self._beam):
            below = sorted(
                (step for node in self._beam for step in _continuations(node, size)), key=lambda step: -step[0]
            )
            nodes = [self.tree.child(node, token, target) for _, node, token, target in below[:size]]
            self._beam = [node for node in nodes if node.state not in (DEAD, DONE) and node.log_p >= self._least]
            for node in nodes:
                # What leaves the beam stays open, as a node now.
                if not node.expanded:
                    self._frontier.offer(node)


def _continuations(node: Node, size: int) -> Iterator[tuple[float, Node, int, int]]:
    """Yield ``log p``, parent, token and target of the ``size`` likeliest free tokens of a node, and of its children."""
    assert node.distribution is not None
    yield from (
        (child.log_p, node, child.token, child.state) for child in node.children.values() if child.log_step > -math.inf
    )
    free, moves = node.distribution.log_free, node.distribution.moves
    for i in np.argpartition(-free, size)[:size] if free.size > size else range(free.size):
        if free[i] > -math.inf:
            log_p = node.log_p + node.distribution.log_scale + float(free[i])
            yield log_p, node, int(moves.tokens[i]), int(moves.leads[moves.classes[i]])


def expand_usual(trees: Sequence[BoundsTree], evaluator: Evaluator, limit: int = SHORT, first: int = 0) -> None:
    """Expand the :func:`usual_prefixes` of trees of which nothing is known yet, in one call, where they are few enough.

    These decide nearly everything where the model was asked for the language: other prefixes are of tokenizations that no
    tokenizer writes. Few enough are at most ``limit`` prefixes of a tree. With ``first``, for walks, that many of the shortest
    ones where there are more; and the first byte of each text, which begins what a model would write in its place: its ``p(y)`` is
    far more than what comes of it, and walks go where bounds do not know.
    """
    wanted: list[tuple[BoundsTree, Node]] = []
    for tree in trees:
        prefixes = () if tree.root.expanded else usual_prefixes(tree, first_bytes=first > 0) or ()
        if len(prefixes) > limit:
            lengths = [len(tokens) for tokens in prefixes]
            # Whole lengths alone: a prefix has no probability before all that it begins with is expanded.
            prefixes = prefixes[: lengths.index(lengths[first])]
        if prefixes:
            wanted += ((tree, node) for node in _nodes(tree, prefixes))
    if wanted:
        evaluator.expand(wanted)


def likeliest_beside(wanted: Sequence[Pair]) -> Iterator[Pair]:
    """Yield likely prefixes of short languages, a foresight for walks: beside every new node of these.

    A node whose distribution is only learned again is no new one: the bounds stay as they are.
    """
    for tree in dict.fromkeys(tree for tree, node in wanted if not node.expanded):
        if usual_prefixes(tree, first_bytes=True) is not None:
            yield from ((tree, node) for node in likeliest(tree) if not node.expanded)


def likeliest(tree: BoundsTree) -> list[Node]:
    """Return the likeliest open prefixes, at most :data:`BESIDE`; none where little is open."""
    return BestFirst(tree, OPEN, BESIDE).advance()


def usual_prefixes(tree: BoundsTree, *, first_bytes: bool = False) -> tuple[tuple[int, ...], ...] | None:
    """Return the prefixes of the texts of a short language in their :func:`merged_tokens`, by length; ``None`` for others."""
    table, state, budget = tree.table, tree.root.state, min(tree.budget, SHORT)

    def build() -> tuple[tuple[int, ...], ...] | None:
        texts = list_texts(table, state, budget, SHORT)
        if texts is None:
            return None
        parts = [*texts, *(text[:1] for text in texts if first_bytes)]
        written = [merged_tokens(table.vocabulary, part) for part in parts]
        prefixes = {tokens[:end] for tokens in written for end in range(1, len(tokens) + 1)}
        return tuple(sorted(prefixes, key=lambda tokens: (len(tokens), tokens)))

    name = ("usual prefixes", budget, first_bytes)
    return table.keep(name, state, build, lambda found: 64 * sum(map(len, found or ())))


def _nodes(tree: BoundsTree, prefixes: Sequence[Sequence[int]]) -> list[Node]:
    """Return the nodes of some prefixes, the root first, as far as guide, budget and constraint go."""
    nodes: dict[Sequence[int], Node] = {(): tree.root}
    for tokens in prefixes:
        before = nodes.get(tokens[:-1])
        if before is not None and (target := tree.target(before, tokens[-1])) not in (DEAD, DONE):
            child = tree.child(before, tokens[-1], target)
            if child.state != DEAD:
                nodes[tokens] = child
    return list(nodes.values())
