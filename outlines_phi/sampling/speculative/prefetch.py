"""Prefetching of drafts: evaluated in the same model call as the text before them (theory.md, section 7.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from ...drafting.drafter import Drafter, DraftRun, Proposer, Site
from ...drafting.length import check_length
from ...numerics.streams import Stream
from ...phi.tree.tree import BoundsTree, Node
from ..sampler import Request
from .coupling import AT_ONCE


@final
@dataclass(frozen=True)
class Prefetch:
    """The options of the drafts that a sampler evaluates ahead of its walks.

    A sampler waits for the distribution of a text, and then draws the next token from it. With a draft, the texts that will
    probably follow are evaluated in the same call, and a walk that draws one of them goes on without a call.

    Attributes
    ----------
    drafter
        The drafter that proposes them.
    length
        The most tokens of a draft.
    encode
        The tokenizer, as a function of a text; ``None`` where no tokenizer is known.

    Raises
    ------
    UnsupportedError
        ``length`` is not a positive whole number.
    """

    drafter: Drafter
    length: int = 8
    encode: Callable[[str], Sequence[int]] | None = None

    def __post_init__(self) -> None:
        check_length(self.length)

    def proposer(self, request: Request, trees: Sequence[BoundsTree] | None = None) -> Proposer:
        """Return the drafter at work in a call; ``trees`` are those of its prompts, where it has trees of bounds."""
        run = DraftRun(
            table=request.table,
            settings=request.settings,
            prompts=request.prompts,
            trees=trees,
            encode=self.encode,
        )
        return Proposer(self.drafter, run)

    def begin(self, request: Request, trees: Sequence[BoundsTree] | None = None) -> Prefetching:
        """Return the drafts of a call whose sampler keeps evaluated texts in trees."""
        return Prefetching(self, request, trees)


@final
class Prefetching:
    """The drafts of a call whose sampler keeps evaluated texts in trees.

    Its walks draw by random numbers of their own, of which the drafter knows nothing, so drafts that come with distributions need
    no coupling here, and a wrong draft costs time alone.

    Parameters
    ----------
    options
        The options.
    request
        The call.
    trees
        The trees of its prompts; ``None`` where it has none.

    Raises
    ------
    DraftError
        The drafter raised, or proposed what is no draft.
    """

    def __init__(self, options: Prefetch, request: Request, trees: Sequence[BoundsTree] | None) -> None:
        self._length, self._width, self._prompts = options.length, options.drafter.width, request.prompts
        self._room = AT_ONCE // len(request.table.vocabulary)
        self._rows = {tree: row for row, tree in enumerate(trees or ())}
        self._proposer = options.proposer(request, trees)
        # One stream per prompt: what is drafted for it does not depend on the others.
        self._streams: list[np.random.Generator] = [
            request.stream(row, Stream.DRAFT) for row in range(len(request.prompts))
        ]

    def chains(self, sites: Sequence[Site]) -> list[tuple[tuple[int, ...], ...]]:
        """Return the chains that will probably follow each of ``sites``, as far as the guide allows them; some may be empty.

        Where many walks wait, a call has enough to do, and memory no room for the distributions of long chains.
        """
        if not sites:
            return []
        streams = [self._streams[site.row] for site in sites]
        length = min(self._length, self._room // (len(sites) * self._width))
        drafts = self._proposer.propose(sites, [length] * len(sites), streams)
        return [draft.chains for draft in drafts]

    def below(self, waiting: Sequence[tuple[BoundsTree, Node]]) -> list[tuple[tuple[int, ...], ...]]:
        """Return what will probably follow each of the nodes that walks wait for: the foresight of an :class:`Evaluator`."""
        return self.chains([self._site(self._rows[tree], node) for tree, node in waiting])

    def _site(self, row: int, node: Node) -> Site:
        return Site(row, self._prompts[row], node.tokens(), node.state, node.remaining)
