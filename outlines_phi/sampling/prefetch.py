"""Drafts that are evaluated in the same model call as the text before them (theory.md, sections 7.2 and 7.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from ..drafting.combine import COST, HITS, TESTS, best_length
from ..drafting.drafter import Drafter, DraftRun, Proposer, Site, check_length
from ..numerics.distributions import AT_ONCE
from ..phi.tree.tree import BoundsTree, Node
from .sampler import Request, Stream


@final
@dataclass(frozen=True)
class Prefetch:
    """The drafts that a sampler evaluates ahead: a walk that draws one of them goes on without a model call.

    Raises :class:`UnsupportedError`: ``length`` is not a positive whole number.
    """

    drafter: Drafter
    length: int = 8  # The most tokens of a draft
    encode: Callable[[str], Sequence[int]] | None = None  # The tokenizer, where one is known
    asked: bool = True  # True if the call named the drafter: one by default gives way to a constraint

    def __post_init__(self) -> None:
        check_length(self.length)

    def proposer(self, request: Request, trees: Sequence[BoundsTree] | None = None) -> Proposer:
        """Return the drafter at work in a call; ``trees`` are those of its prompts, where it has trees of bounds."""
        return Proposer(
            self.drafter, DraftRun(request.table, request.settings, request.prompts, trees=trees, encode=self.encode)
        )


@final
class Prefetching:
    """The drafts of a call whose sampler keeps evaluated texts in trees.

    Its walks draw by random numbers of their own, of which the drafter knows nothing, so drafts that come with distributions need
    no coupling here, and a wrong draft costs time alone.

    ``drafted``: How many of a prompt's latest nodes were drafted, and to how many of these walks have come, where many walks fail:
    they do so on the way along a draft, too, and a chain is as long as pays at that share
    (:func:`~outlines_phi.drafting.combine.best_length`). None where a drafter's own account (:class:`AdaptedLength`) is enough.
    """

    def __init__(
        self,
        options: Prefetch,
        request: Request,
        drafted: Callable[[int], tuple[int, int]] | None = None,
        trees: Sequence[BoundsTree] | None = None,
    ) -> None:
        self._options, self._request, self._drafted, self._trees = options, request, drafted, trees
        self._room = AT_ONCE // len(request.table.vocabulary)

    @cached_property
    def _proposer(self) -> Proposer:
        """The drafter, which begins where walks wait for the model."""
        return self._options.proposer(self._request, self._trees)

    @cached_property
    def _streams(self) -> list[np.random.Generator]:
        """A stream per prompt: what is drafted for it does not depend on the others."""
        return [self._request.stream(row, Stream.DRAFT) for row in range(len(self._request.prompts))]

    def chains(self, sites: Sequence[Site]) -> list[tuple[int, ...]]:
        """Return the chain that will probably follow each of ``sites``, as far as the guide allows it; it may be empty.

        Where many walks of a prompt wait, a call has enough to do, and memory no room for the distributions of long chains. Other
        prompts do not count: the draws of one would depend on them, since a tree that knows more throws other coins.
        """
        if not sites:
            return []
        streams = [self._streams[site.row] for site in sites]
        waiting = Counter(site.row for site in sites)
        best = {row: self._best(row, count) for row, count in waiting.items()}
        drafts = self._proposer.propose(sites, [best[site.row] for site in sites], streams)
        return [draft.tokens for draft in drafts]

    def _best(self, row: int, waiting: int) -> int:
        most = min(self._options.length, self._room // waiting)
        if self._drafted is None:
            return most
        drafted, followed = self._drafted(row)
        return best_length((HITS + followed) / (TESTS + drafted), COST, most, waiting)

    def below(self, waiting: Sequence[tuple[BoundsTree, Node]]) -> list[tuple[int, ...]]:
        """Return the drafts after each of the nodes that walks wait for: the foresight of an :class:`Evaluator`."""
        rows = {tree: row for row, tree in enumerate(self._trees or ())}
        prompts, pairs = self._request.prompts, [(rows[tree], node) for tree, node in waiting]
        return self.chains([Site(row, prompts[row], node.tokens(), node.state, node.remaining) for row, node in pairs])
