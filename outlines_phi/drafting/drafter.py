"""What will probably follow: the interface of every drafter, and the checks of what it proposes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar, final

import numpy as np
import torch
from torch import Tensor

from ..errors import DraftError, OutlinesPhiError
from ..guides.guide import DEAD, DONE
from ..guides.table import Table
from ..phi.tree import BoundsTree
from ..settings import SamplingSettings
from ..vocabulary import Vocabulary

Answer = TypeVar("Answer")

DRAFT_STREAM = 2**47
"""Drafters that draw take their random streams from here, out of the reach of the draws."""

SUM_TOLERANCE = 1e-3
"""How far from 1 the probabilities of a law may sum: rounding in single precision, and nothing coarser."""


@final
@dataclass(frozen=True)
class Site:
    """A text that is to be continued: all that a drafter may know of it.

    Attributes
    ----------
    row
        Its prompt, by its number.
    prompt, tokens
        The token ids of the prompt, and of what has been written.
    state
        The guide state after them.
    remaining
        Tokens that may still be written, the end of sequence included.
    """

    row: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    state: int
    remaining: int

    def after(self, token: int, table: Table) -> Site:
        """Return the site one ``token`` further; its state is :data:`DEAD` where that is not live."""
        state = table.advance(self.state, token, self.remaining)
        if table.guide.min_tokens(state) > self.remaining - 1:
            state = DEAD
        return Site(self.row, self.prompt, (*self.tokens, token), state, self.remaining - 1)


@final
@dataclass(frozen=True, eq=False)
class Draft:
    """A chain of tokens that may follow a site.

    Attributes
    ----------
    tokens
        The chain; empty for none.
    log_r
        ``[K, V]``: the law that each token was drawn from, in single precision at least; ``None`` where a site always gets the same
        draft.
    """

    tokens: tuple[int, ...]
    log_r: Tensor | None = None


NOTHING = Draft(())
"""No draft."""


@final
@dataclass(frozen=True, eq=False)
class DraftRun:
    """What a call offers to a drafter.

    Attributes
    ----------
    table
        What is allowed.
    settings
        What defines ``p``.
    prompts
        The token ids of each prompt.
    trees
        What is known of each prompt; ``None`` where the sampler keeps no trees of bounds.
    encode
        The token ids of a text as the tokenizer writes them, without anything added; ``None`` where no tokenizer is known.
    """

    table: Table
    settings: SamplingSettings
    prompts: Sequence[tuple[int, ...]]
    trees: Sequence[BoundsTree] | None = None
    encode: Callable[[str], Sequence[int]] | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        """The exact bytes of every token."""
        return self.table.vocabulary


class Drafting(ABC):
    """A drafter at work in one call."""

    @abstractmethod
    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        """Return a draft for every site, of at most ``lengths[i]`` tokens; what is random comes from ``streams[i]`` alone.

        The draft of a site depends on the site, its stream and earlier rounds; each token, and whether there is one, on those
        before it. A draft never needs to be right: a bad one costs time and changes no law.
        """


class LawfulDrafting(Drafting):
    """A drafter of this package at work, whose laws are laws already.

    They come out of a softmax with the token that was drawn from them, or out of another :class:`Proposer`; to read ``K V`` numbers
    a second time would cost as much as verification does. A drafter of one's own is a :class:`Drafting`, whose laws are checked.
    """


class ProposedDrafting(LawfulDrafting):
    """A drafter at work that puts together what :class:`Proposer` has checked and cut already."""


class Drafter(ABC):
    """Proposes what probably follows, so that one model call may write several tokens (mathematics.md, section 7).

    Of a deterministic draft, a sampler evaluates the nodes ahead: it draws its own token from its own law and goes on while it
    finds that among them, so its law cannot change. A sampled draft comes with the laws that it was drawn from, ``r_i``; its token
    is kept with probability ``min(1, q_i / r_i)``, and replaced by a draw from the positive part of ``q_i - r_i`` (Leviathan et
    al., arXiv 2211.17192). That has the law ``q_i`` because the token has the law ``r_i``.

    A drafter of one's own defines ``name``, :meth:`begin`, and :meth:`Drafting.propose` of what that returns; and
    ``sampled = True`` if its drafts come with laws.

    Attributes
    ----------
    name
        What messages call it.
    """

    name: ClassVar[str]

    @property
    def sampled(self) -> bool:
        """Whether drafts are drawn, and come with their laws. A deterministic draft serves all walks that stand at its site."""
        return False

    @abstractmethod
    def begin(self, run: DraftRun) -> Drafting:
        """Return the drafter at work in a call."""


@final
class Proposer:
    """A drafter at work, with its proposals checked and cut where the guide dies.

    A deterministic chain ends before its first token that is not live, and before the end of sequence, which is no prefix to
    evaluate. A sampled one ends *with* such a token: its coupling decides what stands in its place. To leave it out would give
    the position to ``q_i`` whenever the drafter drew such a token, and the other tokens more than ``q_i`` in all.

    Parameters
    ----------
    drafter, run
        The drafter, and the call.

    Raises
    ------
    DraftError
        The drafter raised; its proposals are not one :class:`Draft` per site; tokens are outside the vocabulary; laws have
        another shape than ``[K, V]``, are no laws, exclude the token that was drawn, or were not announced by
        :attr:`Drafter.sampled`. Errors of this package pass as they are.
    """

    def __init__(self, drafter: Drafter, run: DraftRun) -> None:
        self._drafter, self._run = drafter, run
        self._drafting = self._guarded("begin", lambda: drafter.begin(run))
        if not isinstance(self._drafting, Drafting):
            raise self._error(f"began with {type(self._drafting).__name__}; expected a Drafting, with a method propose")

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        """Return a draft of at most ``lengths[i]`` tokens for each site, one site per walk.

        No draft reaches the end of the budget: the token after it is drawn anyway.
        """
        keys: list[object] = []
        asked: dict[object, tuple[int, int]] = {}
        for i, (site, length) in enumerate(zip(sites, lengths, strict=True)):
            limit = _limit(site, length)
            keys.append(i if self._drafter.sampled else (site.row, site.tokens, limit))
            if limit > 0:
                asked.setdefault(keys[i], (i, limit))
        if not asked:
            return [NOTHING] * len(sites)
        chosen, limits = zip(*asked.values(), strict=True)
        request = [sites[i] for i in chosen], limits, [streams[i] for i in chosen]
        answer = self._guarded("propose", lambda: self._drafting.propose(*request))
        if not isinstance(answer, Sequence) or len(answer) != len(chosen):
            given = f"{len(answer)} drafts" if isinstance(answer, Sequence) else type(answer).__name__
            raise self._error(f"proposed {given} for {len(chosen)} sites; expected a list with one Draft per site")
        if not isinstance(self._drafting, ProposedDrafting):
            answer = [
                self._fitted(draft, sites[i], limit) for draft, (i, limit) in zip(answer, asked.values(), strict=True)
            ]
        if not isinstance(self._drafting, LawfulDrafting):
            self._check_laws(answer)
        fitted = dict(zip(asked, answer, strict=True))
        return [fitted.get(key, NOTHING) for key in keys]

    def _fitted(self, draft: Draft, site: Site, limit: int) -> Draft:
        """Return ``draft`` without what cannot follow ``site``."""
        if not isinstance(draft, Draft) or not isinstance(draft.tokens, (tuple, list)):
            raise self._error(f"proposed {draft!r}; expected a Draft with a tuple of tokens")
        size = len(self._run.vocabulary)
        for token in draft.tokens:
            if isinstance(token, bool) or not isinstance(token, (int, np.integer)) or not 0 <= token < size:
                raise self._error(f"proposed the token {token!r}; expected ids of the vocabulary, 0 to {size - 1}")
        tokens = tuple(map(int, draft.tokens))
        if draft.log_r is not None:
            self._check_shape(draft.log_r, (len(tokens), size))
        tokens = tokens[:limit]
        length = 0
        for token in tokens:
            site = site.after(token, self._run.table)
            if site.state in (DEAD, DONE):
                length += draft.log_r is not None
                break
            length += 1
        if draft.log_r is None or not length:
            return Draft(tokens[:length])
        log_r = draft.log_r[:length]
        return Draft(tokens[:length], log_r.float() if log_r.element_size() < 4 else log_r)

    def _check_shape(self, log_r: Tensor, expected: tuple[int, int]) -> None:
        if not self._drafter.sampled:
            raise self._error("gave laws with a draft but says sampled = False; set sampled = True, or leave log_r out")
        if not isinstance(log_r, Tensor) or not log_r.is_floating_point() or tuple(log_r.shape) != expected:
            given = f"{log_r.dtype} {tuple(log_r.shape)}" if isinstance(log_r, Tensor) else type(log_r).__name__
            raise self._error(
                f"gave laws of {given}; expected floating point log_r of shape {expected}: tokens, vocabulary"
            )
        if log_r.is_meta:
            raise self._error("gave laws on the device 'meta', which have no numbers; load its model onto a device")

    def _check_laws(self, drafts: Sequence[Draft]) -> None:
        """Refuse laws that do not sum to one or exclude their token; one transfer from the device for all of them."""
        laws = [(draft.log_r, draft.tokens) for draft in drafts if draft.log_r is not None]
        if not laws:
            return
        device = laws[0][0].device
        sums = torch.cat([torch.logsumexp(log_r, -1).double().to(device) for log_r, _ in laws])
        chosen = torch.cat([log_r[range(len(tokens)), list(tokens)].double().to(device) for log_r, tokens in laws])
        tokens = [token for _, chain in laws for token in chain]
        for token, log_sum, log_r in zip(tokens, *torch.stack([sums, chosen]).tolist(), strict=True):
            if not abs(log_sum) <= SUM_TOLERANCE:
                raise self._error(
                    f"gave a law whose probabilities sum to exp({log_sum:.4g}); expected 1. log_r is log-probabilities in single "
                    "precision, as torch.log_softmax(logits.float(), -1) gives them"
                )
            if log_r == -np.inf:
                raise self._error(f"drew the token {token}, which has probability 0 in the law that came with it")

    def _guarded(self, method: str, call: Callable[[], Answer]) -> Answer:
        try:
            return call()
        except OutlinesPhiError:
            raise
        except Exception as error:
            raise self._error(f"raised {type(error).__name__} in {method}: {error}") from error

    def _error(self, what: str) -> DraftError:
        name = getattr(self._drafter, "name", type(self._drafter).__name__)
        return DraftError(f"The drafter {name!r} {what}. Correct it, or leave draft= out.")


def _limit(site: Site, length: int) -> int:
    """Return the most tokens that are of use after ``site``."""
    return 0 if site.state in (DEAD, DONE) else min(length, site.remaining - 1)
