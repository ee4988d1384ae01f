"""Evaluated texts that walks may stand on, return to, and share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...drafting.drafter import Site
from ...lm.model import ModelCounts
from ..sampler import Request
from ..speculative.prefetch import Prefetch

WASTE = 512
"""Nodes that the model's cache may grow by, however short the texts, before those that no walk needs are given back."""


@final
@dataclass
class DraftTally:
    """How many texts of a prompt were evaluated because a drafter foresaw them, and how many of these walks have come to."""

    drafted: int = 0
    followed: int = 0


@final
class Stem:
    """A prompt and what was written after it, with its distribution once that is known.

    A stem holds those one token longer that were asked for, and none that is shorter: it lives as long as a walk may come back to
    it, and is freed by being forgotten.

    Attributes
    ----------
    parent, token
        The model's node of the text without its last token, and that token; -1 for a prompt.
    handle
        The model's node of the text; -1 before it is evaluated.
    log_p
        ``[V]``, the distribution of the next token; ``None`` before the text is evaluated.
    children
        The texts one token longer, by that token.
    ahead
        Where a drafter foresaw it and no walk has come to it since: who counts that.
    """

    __slots__ = ("ahead", "children", "handle", "log_p", "parent", "token")

    def __init__(self, parent: int, token: int, handle: int = -1, log_p: NDArray[np.floating] | None = None) -> None:
        self.parent, self.token, self.handle, self.log_p = parent, token, handle, log_p
        self.children: dict[int, Stem] = {}
        self.ahead: DraftTally | None = None

    def child(self, token: int) -> Stem:
        """Return the text that is ``token`` longer, which a walk has come to."""
        child = self.foreseen(token)
        if child.ahead is not None:
            child.ahead.followed += 1
            child.ahead = None
        return child

    def foreseen(self, token: int) -> Stem:
        """Return the text that is ``token`` longer, which a walk may come to."""
        if token not in self.children:
            self.children[token] = Stem(self.handle, token)
        return self.children[token]

    def walk(self) -> Iterator[Stem]:
        """Yield this text and all longer ones that it holds."""
        stack = [self]
        while stack:
            stem = stack.pop()
            yield stem
            stack.extend(stem.children.values())


@final
class Stems:
    """The texts of a call, each evaluated once while it is held.

    Parameters
    ----------
    request
        The call.
    draft
        The drafts, evaluated ahead of walks; ``None`` for none.

    Attributes
    ----------
    tallies
        The counts of the drafts of each prompt.
    """

    def __init__(self, request: Request, draft: Prefetch | None = None) -> None:
        self._request = request
        self._drafts = None if draft is None else draft.begin(request)
        self.tallies = [DraftTally() for _ in request.prompts]
        self._trees = request.lm.trees(request.prompts)
        self._roots: list[NDArray[np.floating]] = []
        self._compacted = 0

    @property
    def counts(self) -> ModelCounts:
        """The cost of the model calls so far."""
        return self._trees.counts

    def root(self, row: int) -> Stem:
        """Return the prompt ``row``, which holds nothing longer; all prompts are evaluated in one call, the first time."""
        if not self._roots:
            self._roots = self._laws(self._trees.roots().logits, self._request.prompts)
        return Stem(-1, -1, row, self._roots[row])

    def evaluate(self, wanted: Mapping[Stem, Callable[[], Site]]) -> None:
        """Give every wanted text its distribution, in one model call, and those that a drafter foresees after it theirs.

        Parameters
        ----------
        wanted
            Texts one token longer than evaluated ones, and what tells where each stands; asked only where the drafter or ``p``
            depends on it.
        """
        first = self._trees.next_node
        for i, stem in enumerate(wanted):
            stem.handle = first + i  # beforehand, for those below
        ahead = self._ahead(wanted, first + len(wanted))
        stems = [*wanted, *ahead]
        evaluation = self._trees.extend([stem.parent for stem in stems], [stem.token for stem in stems])
        laws = self._laws(evaluation.logits, self._contexts(wanted, ahead))
        for stem, log_p in zip(stems, laws, strict=True):
            stem.log_p = log_p

    def _ahead(self, wanted: Mapping[Stem, Callable[[], Site]], first: int) -> dict[Stem, Sequence[int]]:
        """Return what is foreseen after ``wanted`` texts, with their token ids; ``first`` is the handle of the first of them."""
        if self._drafts is None:
            return {}
        ahead: dict[Stem, Sequence[int]] = {}
        sites = [site() for site in wanted.values()]
        for stem, site, chains in zip(wanted, sites, self._drafts.chains(sites), strict=True):
            tally, before = self.tallies[site.row], len(ahead)
            for chain in chains:
                at = stem
                for length, token in enumerate(chain, 1):
                    # New, as all that is below a text without a distribution, or of an earlier chain.
                    at = at.foreseen(token)
                    if at not in ahead:
                        at.handle, at.ahead = first + len(ahead), tally
                        ahead[at] = (*site.prompt, *site.tokens, *chain[:length])
            tally.drafted += len(ahead) - before
        return ahead

    def _contexts(
        self, wanted: Mapping[Stem, Callable[[], Site]], ahead: Mapping[Stem, Sequence[int]]
    ) -> Iterator[Sequence[int]]:
        for site in wanted.values():
            yield (*(at := site()).prompt, *at.tokens)
        yield from ahead.values()

    def tidy(self, held: Callable[[], Iterable[Stem]], size: int) -> None:
        """Give back what no walk needs where it may outweigh the rest: ``held`` texts and all above them, about ``size`` nodes."""
        if self._trees.next_node - self._compacted > max(WASTE, size):
            self._trees.compact([stem.parent if stem.log_p is None else stem.handle for stem in held()])
            self._compacted = self._trees.next_node

    def _laws(self, logits: Tensor, contexts: Iterable[Sequence[int]]) -> list[NDArray[np.floating]]:
        log_p = self._request.settings.log_p(logits, self._request.lm.vocabulary, contexts).cpu().numpy()
        # One by one: a row alone would hold the memory of all that were evaluated with it.
        return [row.copy() for row in log_p] if len(log_p) > 1 else list(log_p)
