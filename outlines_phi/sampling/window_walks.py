"""One window: the texts it is drawn over, attempts at it, and its normaliser (theory.md, section 6.3)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..drafting.drafter import Site
from ..guides.guide import DEAD, DONE
from ..numerics.distributions import Rows
from ..numerics.weights import draw, log, log_difference, log_sum, ratio
from ..phi.branches import Branch, Branches, DraftTally
from ..phi.tree.best_first import TreeWalks
from ..phi.tree.distribution import likeliest
from ..phi.tree.evaluator import Evaluator
from ..phi.tree.tree import BoundsTree, Node
from ..phi.tree.window import Windows
from .phi_options import Effort
from .rejection.attempts import Attempt, Attempts, ResidualWalk, descend
from .sampler import Prefetch, Prefetching, Request

WASTE = 512
"""Nodes that the model's cache may grow by, however short the texts, before those that no walk needs are given back."""


@final
class EvaluatedTexts:
    """The texts of a call, each evaluated once while it is held; ``tallies`` count the drafts of each prompt.

    ``evaluator``: What has expanded trees of the same prompts; its texts are known from the beginning.
    """

    def __init__(self, request: Request, draft: Prefetch | None = None, evaluator: Evaluator | None = None) -> None:
        self._request = request
        self.tallies = [DraftTally() for _ in request.prompts]
        self._drafts = None if draft is None else Prefetching(draft, request)
        self._branches = Branches(request.lm, request.prompts) if evaluator is None else evaluator.branches
        self.counts = self._branches.trees.counts  # the cost of the model calls so far
        # Whole rows of the vocabulary: those that memory has no room for are evaluated a second time where a walk comes to them.
        most = max(1, WINDOW_BYTES // (4 * len(request.table.vocabulary) * len(request.prompts)))
        self._known = {} if evaluator is None else evaluator.hand_over(most)
        self._roots = {row: text.answer for row, text in self._known.items()}

    def root(self, row: int) -> Branch:
        """Return the prompt ``row``, with what was known below it; all other prompts are evaluated in one call, the first time."""
        if row in self._known:
            return self._known.pop(row)  # walks hold it from now on
        if row not in self._roots:
            self._roots.update(enumerate(self._distributions(self._branches.plant(), self._request.prompts)))
        return Branch(-1, -1, self._branches.roots[row], self._roots[row])

    def evaluate(self, wanted: Mapping[Branch, Site], drafted: Set[Branch]) -> None:
        """Give every wanted text its distribution, in one model call, and those that a drafter foresees after it theirs.

        ``wanted``: Texts one token longer than evaluated ones, and where each stands.
        ``drafted``: Those of them that are drafted for.
        """
        contexts = {text: (*site.prompt, *site.tokens) for text, site in wanted.items()}
        if self._drafts is not None:
            contexts |= self._ahead({text: wanted[text] for text in wanted if text in drafted}, self._drafts)
        rows = self._branches.reach(list(contexts))
        for text, log_p in zip(contexts, self._distributions(rows, contexts.values()), strict=True):
            text.answer = log_p

    def _ahead(self, wanted: Mapping[Branch, Site], drafts: Prefetching) -> dict[Branch, tuple[int, ...]]:
        """Return the foreseen texts after ``wanted`` ones, with their token ids."""
        ahead: dict[Branch, tuple[int, ...]] = {}
        for (at, site), tokens in zip(wanted.items(), drafts.chains(list(wanted.values())), strict=True):
            tally = self.tallies[site.row]
            tally.drafted += len(tokens)
            for length, token in enumerate(tokens, 1):
                at = at.foreseen(token)  # new, as all that is below a text without a distribution
                at.ahead = tally
                ahead[at] = (*site.prompt, *site.tokens, *tokens[:length])
        return ahead

    def tidy(self, held: Iterable[Branch], size: int) -> None:
        """Give back what no walk needs where it may outweigh the rest: ``held`` texts and all above them, about ``size`` nodes."""
        later = (text for root in self._known.values() for text in root.walk())  # of walks that are to begin
        self._branches.tidy((text.held for text in chain(held, later)), size, WASTE)

    def _distributions(self, rows: Rows, contexts: Iterable[Sequence[int]]) -> list[NDArray[np.floating]]:
        logits = rows.unchecked(range(len(rows)))
        (log_p,) = rows.read(self._request.settings.log_p(logits, self._request.lm.vocabulary, contexts))
        # One by one: a row alone would hold the memory of all that were evaluated with it.
        return [row.copy() for row in log_p] if len(log_p) > 1 else list(log_p)


WINDOW_BYTES = 2**28
"""Memory of a window's distributions; beyond it the least recently visited are dropped, and come back without the model."""

COARSENESS = 1 / 4
"""The most by which one walk may change the estimate of ``Psi``, relative to it, where it is launched by chance."""


@final
class WindowTree:
    """The token tree of a window over the texts that the model has evaluated.

    ``state``, ``remaining``: The guide state that it begins in, and the tokens left to write.
    ``text``, ``written``: The text that the window begins at, and how many tokens it has, the prompt's not counted.
    """

    def __init__(self, windows: Windows, state: int, remaining: int, text: Branch, written: int) -> None:
        self.windows, self.text, self.written = windows, text, written
        self.tree = windows.tree(state, remaining)
        self._texts = {self.tree.root: text}

    def text_of(self, node: Node) -> Branch:
        """Return the text of ``node``."""
        if node not in self._texts:
            assert node.parent is not None
            self._texts[node] = self.text_of(node.parent).child(node.token)
        return self._texts[node]

    def likeliest(self, node: Node, top: int) -> dict[int, float] | None:
        """Return ``log p`` of the ``top`` likeliest tokens after ``node``; ``None`` where the answer of the model is forgotten."""
        log_p = self.text_of(node).answer
        return None if log_p is None else likeliest(log_p, top)

    def plant(self, tokens: Sequence[int]) -> Node:
        """Return the prefix ``tokens`` of the window, whose distributions are known but for the last."""
        node = self.tree.root
        for token in tokens:
            log_p = self.text_of(node).answer
            assert log_p is not None
            self.tree.expand(node, log_p)
            assert node.distribution is not None
            node = self.tree.child(node, token, node.distribution.moves.target(token))
        self.tree.propagate([above for above in (self.tree.root, *node.path()) if above.distribution is not None])
        return node

    def grow(self, walks: TreeWalks) -> list[Node]:
        """Take ``walks`` as far as they go without the model; return the nodes that they wait for, none when they have ended."""
        while nodes := walks.advance():
            if unknown := [node for node in nodes if self.text_of(node).answer is None]:
                return unknown
            self.tree.propagate([self._learn(node) for node in nodes])
        return []

    def _learn(self, node: Node) -> Node:
        """Give ``node`` its distribution, or have the window end there; return the deepest node whose bounds are to be summed."""
        log_p = self.text_of(node).answer
        assert log_p is not None
        if not node.expanded and self.windows.ends_before(node, log_p):
            node.end()
        if node.state == DONE:
            assert node.parent is not None
            return node.parent
        if node.distribution is None:
            self.tree.expand(node, log_p)
        return node


@final
class WindowAttempts(Attempts):
    """Attempts at one window, by thinning: the one that is accepted has the distribution ``p(x | r) 1[no phrase] / Psi(r)``.

    They walk as :class:`~outlines_phi.sampling.rejection.attempts.RejectionAttempts` do. As many go at once as have failed: the
    first attempt mostly succeeds, and others beside it would cost model tokens.

    ``diagnostics``: A random stream for what the attempts do not depend on.
    ``first``: Where the first attempt stands already, at an unexpanded prefix; at the root by default.
    ``failed``: The prefix whose dead tokens an attempt has failed for, by its number.
    """

    def __init__(
        self,
        tree: BoundsTree,
        rng: np.random.Generator,
        *,
        width: int,
        effort: Effort,
        diagnostics: np.random.Generator,
        first: Node | None = None,
    ) -> None:
        super().__init__(tree, 1, lambda number: rng, width=1, effort=effort, max_bytes=WINDOW_BYTES)
        self._most, self._diagnostics = width, diagnostics
        self.failed: dict[int, Node] = {}
        if first is not None:
            attempt = Attempt(0, tree.root, rng)
            attempt.node, attempt.log_bound = first, first.log_upper
            self._waiting, self.launches.launched = [attempt], 1

    def _walk(self, attempt: Attempt) -> bool | None:
        arrived = descend(self.tree, attempt)
        if arrived is False:
            self.failed[attempt.number] = lost_at(attempt.node, attempt.log_bound, self._diagnostics)
            self.launches.width = min(self._most, len(self.failed))
        return arrived

    def failures(self) -> Iterator[Node]:
        """Yield the nodes at which the attempts that the window has cost failed; none that was launched after the accepted one."""
        return (node for number, node in self.failed.items() if number < self.read)


def lost_at(node: Node, log_bound: float, rng: np.random.Generator) -> Node:
    """Return the prefix whose dead tokens an attempt fails for at ``node``, which it chose with an upper bound of ``log_bound``.

    That is ``node`` itself, or one below it, where other attempts have been meanwhile: drawn by what is lost there.
    """
    fresh = log_bound >= 0  # nothing was known to be lost when it was chosen
    while True:
        children = [child for child in node.children.values() if child.log_upper < 0 and child.state != DEAD]
        if not children:
            return node
        lost = [-math.exp(child.log_step) * math.expm1(child.log_upper) for child in children]
        here = -math.expm1(min(0.0, node.log_live)) if fresh else 0.0
        if not any(lost) or (place := draw(np.array([*lost, here]), rng)) == len(children):
            return node
        node, fresh = children[place], True


@final
class NormalizerWalk:
    """An unbiased estimate of ``Psi(r)`` of a window, from one walk after the accepted attempt (theory.md, section 6.3).

    It is a :class:`~outlines_phi.sampling.rejection.attempts.ResidualWalk` without coins, of which the share ``s`` is left. It is
    launched with the probability ``c``, such that the estimate is never below ``(1 - COARSENESS) U`` where ``c < 1``.
    """

    def __init__(self, window: WindowTree, rng: np.random.Generator) -> None:
        self.window, self.tree = window, window.tree
        root = window.tree.root
        self._log_lower, self._log_gap = root.log_lower, root.log_gap
        self._chance = min(1.0, ratio(root.log_gap, root.log_upper) / COARSENESS)
        self._walk = ResidualWalk(self.tree, rng, coins=False)
        if rng.random() >= self._chance:
            self._walk.node = None

    def advance(self) -> list[Node]:
        """Walk as far as distributions are known; return the node that the walk waits for, none when the estimate is there."""
        self._walk.descend()
        if self._walk.arrived:
            self._walk.go_on()
        return [] if self._walk.waiting is None else [self._walk.waiting]

    @property
    def log_estimate(self) -> float:
        """``log Psi_hat``, with ``Psi_hat = Lo + (U - Lo) (1 - (1 - s) / c)``."""
        log_success = self._walk.log_success
        if self._chance == 1 or log_success == 0:
            return log_sum([self._log_lower, self._log_gap + log_success])
        log_missed = log(-math.expm1(log_success) / self._chance) + self._log_gap
        return log_difference(log_sum([self._log_lower, self._log_gap]), log_missed)
