"""The interface of every sampler, the request of a call, and drafts that are evaluated ahead (theory.md, section 7.4)."""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import final

import numpy as np
import torch

from ..drafting.drafter import HITS, TESTS, Drafter, DraftRun, Proposer, Site, best_length
from ..errors import ModelError, UnsupportedError, too_small
from ..guides.table import Table
from ..lm.model import LanguageModel
from ..numerics.checks import check_counts, check_fits, counted
from ..numerics.distributions import AT_ONCE
from ..phi.constraint import Constraint
from ..phi.tree.evaluator import Pair, TreeKey
from ..phi.tree.tree import BoundsTree, Node
from ..settings import SamplingSettings
from .draws import Draws

DEFAULT_BUDGET = 256
"""The least default budget, in tokens."""

DRAFT_LENGTH = 8
"""The most tokens of a draft, where nothing else is said."""

RECENT = 128
"""Drafted nodes of a prompt that tell whether further ones pay."""


class Stream(IntEnum):
    """The first numbers of the random streams of a prompt other than its numbered attempts, walks or trajectories.

    A seed, the row of a prompt and a number name a stream; that of number ``i`` of one kind is ``kind + i``. Attempts, walks and
    trajectories are numbered from 0, and never reach the first of these.
    """

    DIAGNOSTIC = 2**40
    """Walks beside those that make a draw: residual attempts, trial walks of ``auto``, weights and counts of a look-ahead."""
    CANDIDATE = 2**41
    """Candidates of ``auto``."""
    PICK = 2**42
    """The pick of ``auto`` among its candidates."""
    CONFIDENCE = 2**43
    """Attempts of a certificate by confidence."""
    RESAMPLING = 2**44
    """Resampling of particles."""
    ESTIMATE = 2**46
    """Estimators of future validity."""
    DRAFT = 2**47
    """Drafters."""
    AHEAD = 2**48
    """Tokens drawn ahead of walks."""
    ANSWER = 2**49
    """The seeds of answers after thoughts."""


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """The checked arguments of a call.

    Raises :class:`UnsupportedError`: ``n`` is not a positive number, or a prompt is empty.
    Raises :class:`ModelError`: a prompt leaves no room in the model's context.
    Raises :class:`EmptyLanguageError`: the language has no member after a prompt; or the shortest does not fit the budget: says
    the least that would do.
    """

    # The language model, and the compiled guide
    lm: LanguageModel
    table: Table
    prompts: Sequence[tuple[int, ...]]  # Token ids, one sequence per prompt
    settings: SamplingSettings  # The sampling settings, which define `p`; their seed keys the random streams
    n: int = 1  # Draws per prompt
    constraint: Constraint | None = None  # The constraint beside the table
    # Whether the weights of the draws will be read. Where they are not, step estimators without a state do not ask about an end
    # that alone is allowed, which is taken to have some probability; `log_p` and `log_w` of such draws are `nan`.
    weighted: bool = True
    # What draws have written already at the end of each prompt; of their budgets and of the language it is a part
    written: Sequence[tuple[int, ...]] = ()
    # Whether draws keep an account of each token, and with how many alternatives: `None` for no accounts
    top: int | None = None
    starts: tuple[int, ...] = field(init=False)  # The guide state in which the text of each prompt begins
    budgets: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        check_counts("a call", ", for the draws", n=self.n)
        check_fits(
            "n",
            self.n,
            count=self.n * len(self.prompts),
            each=1024,
            things="draws, of all prompts together,",
            instead="Draw in several calls, with a seed each",
        )
        seed = self.settings.seed
        if isinstance(seed, tuple) and len(seed) != len(self.prompts):
            raise UnsupportedError(
                f"Give one seed, or one for each prompt: {counted(len(seed), 'seed')} came with "
                f"{counted(len(self.prompts), 'prompt')}."
            )
        starts, budgets = zip(*map(self._start, range(len(self.prompts))), strict=True) if self.prompts else ((), ())
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "budgets", budgets)

    @property
    def tree_key(self) -> TreeKey:
        """The key of the kept trees: the arguments of :meth:`TreeStore.lend`."""
        return self.lm, self.settings, self.table, self.prompts, self.budgets, self.constraint, self.starts

    def _start(self, row: int) -> tuple[int, int]:
        """Return the state in which the text of a prompt goes on, and the tokens left to it."""
        written = self.written[row] if self.written else ()
        prompt = self.prompts[row][: len(self.prompts[row]) - len(written)]
        if not prompt:
            raise no_tokens(row, len(self.prompts))
        state = self.table.start_after(prompt)
        shortest, least = self.table.guide.min_tokens(state), self.table.guide.least_budget(state)
        budget = self.settings.max_new_tokens or max(DEFAULT_BUDGET, 4 * shortest) + least - shortest
        if self.lm.max_length is not None:
            # The end of sequence is predicted, never evaluated: the context holds the prompt and N - 1 tokens.
            left = self.lm.max_length - len(prompt) + 1
            if left < least:
                raise ModelError(
                    f"The prompt has {len(prompt)} tokens and the model's context {self.lm.max_length}; the shortest output needs "
                    f"{least} more (end of sequence included). Shorten the prompt"
                    + (", give Thinking a smaller max_tokens," if least > shortest else "")
                    + " or use a model with a longer context."
                )
            budget = min(budget, left)
        if budget < least:
            raise too_small(budget, least)
        for token in written:
            state, budget = self.table.advance(state, token, budget), budget - 1
        return state, budget

    @cached_property
    def _seeds(self) -> list[tuple[int, int]]:
        return seeds(self.settings, len(self.prompts))

    def stream(self, row: int, number: int) -> np.random.Generator:
        """Return the random stream of one attempt (or trajectory) of one prompt."""
        return random_stream(*self._seeds[row], number)


def seeds(settings: SamplingSettings, prompts: int) -> list[tuple[int, int]]:
    """Return the seed of each prompt of a call, and the row of its streams.

    A prompt with a seed of its own has row 0, as in a call by itself. Without a seed a call follows torch's generator, as users of
    torch.manual_seed expect; in a forked process, whose generator is that of its parent, until it is seeded anew.
    """
    given = settings.seed
    if isinstance(given, tuple):
        return [(seed, 0) for seed in given]
    inherited, word = _forked
    word = word if torch.initial_seed() == inherited else 0
    seed = int(torch.randint(2**62, ())) ^ word if given is None else given
    return [(seed, row) for row in range(prompts)]


_forked = 0, 0
"""The seed of torch's generator when this process was forked, and a random word that tells its draws from its parent's."""


def _note_fork() -> None:
    global _forked
    _forked = torch.initial_seed(), secrets.randbits(62)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def random_stream(seed: int, row: int, number: int) -> np.random.Generator:
    """Return the random stream of a seed, a row and a number: that of NumPy for ``(seed, row, number)``."""
    # NumPy would make the same words of 32 bits of the three, lowest first, in more time than all else of a stream takes.
    words = list[int]()
    for rest in (seed, row, number):
        words.append(rest & 0xFFFFFFFF)
        while rest := rest >> 32:
            words.append(rest & 0xFFFFFFFF)
    return np.random.default_rng(np.array(words, dtype=np.uint32))


def no_tokens(row: int, rows: int) -> UnsupportedError:
    """Return the error for an empty prompt: that of ``row`` among ``rows``."""
    which = "The prompt" if rows == 1 else f"Prompt {row} of {rows} (counted from 0)"
    return UnsupportedError(
        f"{which} has no tokens, so the model has nothing to condition on; give at least one (a BOS token or a space)."
    )


class Sampler(ABC):
    """Draws from a distribution that it can name (theory.md, sections 4 and 5)."""

    @abstractmethod
    def sample(self, request: Request) -> list[Draws]:
        """Return ``request.n`` draws for each prompt.

        All prompts advance together, in shared model calls; the distribution of a prompt's draws does not depend on the others.
        """


@final
@dataclass(frozen=True)
class Prefetch:
    """The drafts that a sampler evaluates ahead: a walk that draws one of them goes on without a model call."""

    drafter: Drafter
    length: int = DRAFT_LENGTH  # The most tokens of a draft
    encode: Callable[[str], Sequence[int]] | None = None  # The tokenizer, where one is known
    asked: bool = True  # True if the call named the drafter: one by default gives way to particles and to a constraint

    def proposer(self, request: Request, trees: Sequence[BoundsTree] | None = None) -> Proposer:
        """Return the drafter at work in a call; ``trees`` are those of its prompts, where it has trees of bounds."""
        known = trees, self.encode, request.lm.cost
        return Proposer(self.drafter, DraftRun(request.table, request.settings, request.prompts, *known))


@final
class Prefetching:
    """The drafts of a call whose sampler keeps evaluated texts in trees.

    Its walks draw by random numbers of their own, of which the drafter knows nothing, so drafts that come with distributions need
    no coupling here, and a wrong draft costs time alone.

    ``trees``: The trees of bounds of the prompts, if there are any. Many walks on them fail: they do so on the way along a draft,
    too, and a chain is as long as pays at the share of the latest drafted nodes that walks have come to
    (:func:`~outlines_phi.drafting.drafter.best_length`). Elsewhere a drafter's own account (:class:`AdaptedLength`) is enough.
    """

    def __init__(
        self,
        options: Prefetch,
        request: Request,
        trees: Sequence[BoundsTree] | None = None,
    ) -> None:
        self._options, self._request, self._trees = options, request, trees
        self._drafted = defaultdict[int, list[Node]](list)
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
        if self._trees is None:
            return most
        drafted, followed = self.drafted(row, RECENT)
        return best_length((HITS + followed) / (TESTS + drafted), self._request.lm.cost, most, waiting)

    def drafted(self, row: int, latest: int = 0) -> tuple[int, int]:
        """Return the number of nodes of a tree that were drafted, and of those that walks have come to since.

        ``latest``: Of so many nodes at most, those that were drafted last; 0 for all.
        """
        nodes = self._drafted[row][-latest:]
        return len(nodes), sum(node.visited for node in nodes)

    def below(self, wanted: Sequence[Pair]) -> list[Pair]:
        """Return the drafts after each of the nodes that walks wait for: the foresight of an :class:`Evaluator`."""
        rows = {tree: row for row, tree in enumerate(self._trees or ())}
        waiting = [(tree, node) for tree, node in wanted if node.free is None]
        prompts, pairs = self._request.prompts, [(rows[tree], node) for tree, node in waiting]
        chains = self.chains(
            [Site(row, prompts[row], node.tokens(), node.state, node.remaining) for row, node in pairs]
        )
        found: dict[Pair, None] = {}
        for (tree, node), chain in zip(waiting, chains, strict=True):
            found |= dict.fromkeys((tree, below) for below in tree.along(node, chain) if below.free is None)
        asked_for = set(wanted)
        drafts = [pair for pair in found if pair not in asked_for]
        for tree, node in drafts:
            self._drafted[rows[tree]].append(node)
        return drafts
