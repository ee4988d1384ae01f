"""Drafters of speculative decoding: their interface, the checks of what they propose, and drafters that are made of others."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, Any, ClassVar, TypeVar, final

import numpy as np
import torch
from torch import Tensor

from ..errors import DraftError, OutlinesPhiError, UnsupportedError
from ..guides.guide import DEAD, DONE
from ..guides.table import Table
from ..lm.model import CallCost
from ..numerics.checks import Checked, check, is_count, of_kind, shown
from ..phi.tree.tree import BoundsTree
from ..settings import SamplingSettings
from ..vocabulary.vocabulary import Vocabulary

Answer = TypeVar("Answer")

SUM_TOLERANCE = 1e-3
"""The largest distance from 1 of the sum of a distribution's probabilities: rounding in single precision, and nothing coarser."""
TOGETHER = 2**20  # Numbers of distributions that are checked in one piece


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
    guessed
        How many of the last ``tokens`` have not been written: they are drafts themselves.
    """

    row: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    state: int
    remaining: int
    guessed: int = 0

    def after(self, token: int, table: Table) -> Site:
        """Return the site one ``token`` further; its state is :data:`DEAD` where that is not live."""
        state = table.advance(self.state, token, self.remaining)
        if table.guide.min_tokens(state) > self.remaining - 1:
            state = DEAD
        return Site(self.row, self.prompt, (*self.tokens, token), state, self.remaining - 1, self.guessed)


@final
@dataclass(frozen=True, eq=False)
class Draft:
    """A chain of tokens that may follow a site.

    Attributes
    ----------
    tokens
        The chain; empty for none.
    log_r
        ``[K, V]``: the distribution that each token was drawn from, in single precision at least; ``None`` where a site always
        gets the same draft.
    """

    tokens: tuple[int, ...]
    log_r: Tensor | None = None

    def distributions(self, other: Tensor) -> Tensor:
        """Return ``log_r``, on the device of ``other``; of a deterministic draft ``[K, V]``, like ``other``, 0 on its tokens."""
        if self.log_r is not None:
            return self.log_r.to(other.device)
        log_r = torch.full_like(other[:1], -math.inf).repeat(len(self.tokens), 1)
        log_r[range(len(self.tokens)), list(self.tokens)] = 0.0
        return log_r


NOTHING = Draft(())
"""No draft."""


@final
@dataclass(frozen=True, eq=False)
class DraftRun:
    """The part of a call that a drafter sees.

    Attributes
    ----------
    table
        The compiled guide.
    settings
        The sampling settings, which define ``p``.
    prompts
        The token ids of each prompt.
    trees
        The tree of bounds of each prompt; ``None`` where the sampler keeps no trees of bounds.
    encode
        The token ids of a text as the tokenizer writes them, without anything added; ``None`` where no tokenizer is known.
    cost
        The time of the model's calls, by their tokens.
    """

    table: Table
    settings: SamplingSettings
    prompts: Sequence[tuple[int, ...]]
    trees: Sequence[BoundsTree] | None = None
    encode: Callable[[str], Sequence[int]] | None = None
    cost: CallCost = CallCost()

    @property
    def vocabulary(self) -> Vocabulary:
        """The exact bytes of every token."""
        return self.table.vocabulary


@final
@dataclass(eq=False)
class Chain:
    """A draft in the making: where it has arrived, how many tokens it may still take, and the parts that it is made of."""

    site: Site
    room: int
    rng: np.random.Generator
    parts: list[Draft] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """True if no further token can follow."""
        return self.room <= 0 or self.site.state in (DEAD, DONE)

    def extend(self, part: Draft, table: Table) -> None:
        """Go on by a part."""
        self.parts.append(part)
        self.room -= len(part.tokens)
        for token in part.tokens:
            self.site = self.site.after(token, table)
        self.site = replace(self.site, guessed=self.site.guessed + len(part.tokens))

    def draft(self) -> Draft:
        """Return the draft; where some parts are drawn, a deterministic one has the distributions that are 1 on its tokens."""
        tokens = tuple(token for part in self.parts for token in part.tokens)
        drawn = next((part.log_r for part in self.parts if part.log_r is not None), None)
        return Draft(tokens, None if drawn is None else torch.cat([part.distributions(drawn) for part in self.parts]))


class Drafting(ABC):
    """A drafter at work in one call."""

    # True if proposals are taken as they are: tokens within the length limit that the guide allows, with the distributions that
    # they were drawn from. To read `K V` numbers a second time would cost as much as verification does.
    checked: ClassVar[bool] = False

    @abstractmethod
    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        """Return a draft for every site, of at most ``lengths[i]`` tokens; what is random comes from ``streams[i]`` alone.

        The draft of a site depends on the site, its stream and earlier rounds; each token, and whether there is one, on those
        before it. A draft never needs to be right: a bad one costs time and changes no distribution.
        """


@final
@dataclass(frozen=True, eq=False)
class SiteDrafting(Drafting):
    """A drafter at work that answers for each site alone, and draws nothing."""

    draft: Callable[[Site, int], Draft]

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        return list(map(self.draft, sites, lengths))


class Drafter(ABC):
    """Speculative decoding's drafter: proposes tokens, so that one model call may write several (theory.md, section 7).

    Of a deterministic draft, a sampler evaluates the nodes ahead: it draws its own token from its own distribution and goes on
    while it finds that among them, so its distribution cannot change. A sampled draft comes with the distributions that it was
    drawn from, ``r_i``; its token is kept with probability ``min(1, q_i / r_i)``, and replaced by a draw from the positive part
    of ``q_i - r_i`` (Leviathan et al., arXiv 2211.17192). The result is a draw from ``q_i`` because the token is one from
    ``r_i``.

    A drafter of one's own defines ``name``, :meth:`begin`, and :meth:`Drafting.propose` of what that returns; and
    ``sampled = True`` if its drafts come with distributions.

    Attributes
    ----------
    name
        Its name in messages.
    cheap
        True if a deterministic proposal costs next to nothing, as what is looked up does: :class:`AdaptedLength` asks for one at
        every token then, and compares.
    """

    name: ClassVar[str]
    cheap: ClassVar[bool] = False

    @property
    def sampled(self) -> bool:
        """True if drafts are drawn, and come with their distributions. A deterministic one serves all walks at its site."""
        return False

    @abstractmethod
    def begin(self, run: DraftRun) -> Drafting:
        """Return the drafter at work in a call."""


@final
class Proposer:
    """A drafter at work, with its proposals checked and cut where the guide dies.

    Deterministic chains end before the first token that is not live, and before the end of sequence, which is no prefix to
    evaluate. A sampled one ends *with* such a token: its coupling decides what stands in its place. To leave it out would give
    the position to ``q_i`` whenever the drafter drew such a token, and the other tokens more than ``q_i`` in all.

    Raises :class:`DraftError`: the drafter raised; its proposals are not one :class:`Draft` per site; tokens are outside the
    vocabulary; distributions have another shape than ``[K, V]``, do not sum to one, exclude the token that was drawn, or were
    not announced by :attr:`Drafter.sampled`. Errors of this package pass as they are.
    """

    def __init__(self, drafter: Drafter, run: DraftRun) -> None:
        self._drafter, self._run = drafter, run
        self._drafting = self._guarded("begin", drafter.begin, run)
        if not isinstance(self._drafting, Drafting):
            raise self._error(f"began with {type(self._drafting).__name__}; expected a Drafting, with a method propose")

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        """Return a draft of at most ``lengths[i]`` tokens for each site, one site per walk.

        No draft reaches the end of the budget: the token after it is drawn anyway.
        """
        keys: list[object] = []
        asked: dict[object, tuple[Site, int, np.random.Generator]] = {}
        for i, (site, length, stream) in enumerate(zip(sites, lengths, streams, strict=True)):
            limit = 0 if site.state in (DEAD, DONE) else min(length, site.remaining - 1)
            keys.append(i if self._drafter.sampled else (site.row, site.tokens, limit))
            if limit > 0:
                asked.setdefault(keys[i], (site, limit, stream))
        if not asked:
            return [NOTHING] * len(sites)
        places, limits, own_streams = zip(*asked.values(), strict=True)
        answer = self._guarded("propose", self._drafting.propose, places, limits, own_streams)
        if not isinstance(answer, Sequence) or len(answer) != len(places):
            given = f"{len(answer)} drafts" if isinstance(answer, Sequence) else type(answer).__name__
            raise self._error(f"proposed {given} for {len(places)} sites; expected a list with one Draft per site")
        if not self._drafting.checked:
            answer = list(map(self._fitted, answer, places, limits))
            self._check_distributions(answer)
        fitted = dict(zip(asked, answer, strict=True))
        return [fitted.get(key, NOTHING) for key in keys]

    def _fitted(self, draft: Draft, site: Site, limit: int) -> Draft:
        """Return ``draft`` without what cannot follow ``site``."""
        if not isinstance(draft, Draft) or not isinstance(draft.tokens, (tuple, list)):
            raise self._error(f"proposed {shown(draft)}; expected a Draft with a tuple of tokens")
        size = len(self._run.vocabulary)
        for token in draft.tokens:
            if not is_count(token) or token >= size:
                raise self._error(f"proposed the token {shown(token)}; expected ids of the vocabulary, 0 to {size - 1}")
        tokens = tuple(map(int, draft.tokens))[:limit]
        live = self._live(tokens, site)
        if draft.log_r is None:
            return Draft(live)
        self._check_shape(draft.log_r, (len(draft.tokens), size))
        tokens = tokens[: len(live) + 1]
        log_r = draft.log_r[: len(tokens)]
        return Draft(tokens, log_r.float() if log_r.element_size() < 4 else log_r) if tokens else NOTHING

    def _live(self, tokens: tuple[int, ...], site: Site) -> tuple[int, ...]:
        """Return the tokens before the first that cannot follow, or ends the text."""
        for length, token in enumerate(tokens):
            site = site.after(token, self._run.table)
            if site.state in (DEAD, DONE):
                return tokens[:length]
        return tokens

    def _check_shape(self, log_r: Tensor, expected: tuple[int, int]) -> None:
        if not self._drafter.sampled:
            raise self._error(
                "gave distributions with a draft but says sampled = False; set sampled = True, or leave log_r out"
            )
        if not isinstance(log_r, Tensor) or not log_r.is_floating_point() or tuple(log_r.shape) != expected:
            given = f"{log_r.dtype} {tuple(log_r.shape)}" if isinstance(log_r, Tensor) else type(log_r).__name__
            raise self._error(
                f"gave distributions of {given}; expected floating point log_r of shape {expected}: tokens, vocabulary"
            )
        if log_r.is_meta:
            raise self._error(
                "gave distributions on the device 'meta', which have no numbers; load its model onto a device"
            )

    def _check_distributions(self, drafts: Sequence[Draft]) -> None:
        """Refuse distributions that do not sum to one or exclude their token; one transfer from the device for all of them."""
        drawn = [(draft.log_r, draft.tokens) for draft in drafts if draft.log_r is not None]
        if not drawn:
            return
        first, tokens = drawn[0][0], [token for _, chain in drawn for token in chain]
        alike = all(log_r.dtype == first.dtype and log_r.device == first.device for log_r, _ in drawn)
        if alike and len(tokens) * first.shape[1] <= TOGETHER:
            drawn = [(torch.cat([log_r for log_r, _ in drawn]), tuple(tokens))]
        sums = torch.cat([torch.logsumexp(log_r, -1).double().to(first.device) for log_r, _ in drawn])
        chosen = [log_r[range(len(chain)), list(chain)].double().to(first.device) for log_r, chain in drawn]
        for token, log_sum, log_r in zip(tokens, *torch.stack([sums, torch.cat(chosen)]).tolist(), strict=True):
            if not abs(log_sum) <= SUM_TOLERANCE:
                raise self._error(
                    f"gave a distribution whose probabilities sum to exp({log_sum:.4g}); expected 1. log_r is log-probabilities in "
                    "single precision, as torch.log_softmax(logits.float(), -1) gives them"
                )
            if log_r == -np.inf:
                raise self._error(
                    f"drew the token {token}, which has probability 0 in the distribution that came with it"
                )

    def _guarded(self, method: str, call: Callable[..., Answer], *arguments: Any) -> Answer:
        try:
            return call(*arguments)
        except OutlinesPhiError:
            raise
        except Exception as error:
            raise self._error(f"raised {type(error).__name__} in {method}: {error}") from error

    def _error(self, what: str) -> DraftError:
        name = getattr(self._drafter, "name", type(self._drafter).__name__)
        return DraftError(f"The drafter {name!r} {what}. Correct it, or leave draft= out.")


def check_length(length: object) -> int:
    """Return ``length`` if it is the length of a draft.

    Raises :class:`UnsupportedError`: it is not a positive whole number.
    """
    if not isinstance(length, int | np.integer) or not is_count(length, 1):
        raise UnsupportedError(
            f"A draft length of {shown(length)} was given; expected a whole number of at least 1. Give draft=[] for no drafts."
        )
    return int(length)


@final
@dataclass(frozen=True)
class FirstOf(Drafter):
    """Drafts with the first of several drafters that has something to propose, and goes on from there in the same way.

    So text that the guide forces is drafted as such, up to where a value begins, which may be one of the prompt, after which text
    is forced again. Where others of the chain are drawn, a token of a deterministic drafter has the distribution that is 1 on it.

    Attributes
    ----------
    drafters
        The drafters, the one to ask first leading.

    Raises
    ------
    UnsupportedError
        No drafter was given, or something else.
    """

    drafters: tuple[Drafter, ...]
    name: ClassVar[str] = "first_of"

    def __post_init__(self) -> None:
        given: object = self.drafters
        holds = isinstance(given, tuple | list) and bool(given) and all(isinstance(one, Drafter) for one in given)
        check("FirstOf", holds, "a tuple of at least one drafter, such as ForcedDrafter()", drafters=given)
        object.__setattr__(self, "drafters", tuple(self.drafters))

    @property
    def sampled(self) -> bool:
        return any(drafter.sampled for drafter in self.drafters)

    def begin(self, run: DraftRun) -> Drafting:
        return _FirstOf([Proposer(drafter, run) for drafter in self.drafters], run.table)


@final
class _FirstOf(Drafting):
    checked = True

    def __init__(self, proposers: Sequence[Proposer], table: Table) -> None:
        self._proposers, self._table = proposers, table

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        chains = [Chain(*asked) for asked in zip(sites, lengths, streams, strict=True)]
        growing = chains
        while growing:
            waiting, growing = growing, []
            for proposer in self._proposers:
                parts = proposer.propose(
                    [chain.site for chain in waiting], [chain.room for chain in waiting], [c.rng for c in waiting]
                )
                for chain, part in zip(waiting, parts, strict=True):
                    if part.tokens:
                        chain.extend(part, self._table)
                        growing.append(chain)
                waiting = [chain for chain, part in zip(waiting, parts, strict=True) if not part.tokens]
        return [chain.draft() for chain in chains]


FORGETTING = 0.95
"""The weight of a tested token one test later: the last twenty or so make the rate."""

HITS, TESTS = 3.0, 4.0
"""The counts of the prior of the rate, as if so many of so many tokens had been accepted."""

SILENT_HITS = 1.0
"""Those hits where the first tests cost nothing."""

TRIED = 16
"""The period, in tokens of a text, of a draft all the same: what is not tried is never found to be better."""

REMEMBERED = 4096
"""Sites whose drafts wait for their outcome."""

NONE: tuple[int, list[Draft]] = (0, [])
"""No drafts, of no round."""


@lru_cache(4096)
def best_length(acceptance: float, cost: CallCost, most: int, walks: int = 2) -> int:
    """Return the ``k <= most`` that writes the most tokens in the time of a call: the maximum of ``E(k) / (1 + later k)``.

    ``E(k) = 1 + a + ... + a^k`` tokens are expected of a call with ``k`` drafts that are accepted with probability ``a`` each
    (Leviathan et al., arXiv 2211.17192, equation 1), and such a call takes ``1 + later k`` times as long as one without; of a
    single walk, ``second`` more.
    """
    expected = list(accumulate(acceptance**k for k in range(most + 1)))
    second = cost.second if walks == 1 else 0.0
    return max(range(most + 1), key=lambda k: expected[k] / (1 + cost.later * k + second * (k > 0)))


@final
@dataclass(frozen=True)
class AdaptedLength(Checked, Drafter):
    """Another drafter's proposals, as long as its running acceptance makes worth while (:func:`best_length`), down to none.

    So a text that cannot be guessed costs as good as no drafts. Where a proposal costs next to nothing (:attr:`Drafter.cheap`), one
    is made at every site and compared with the text that is written there, whether it pays to evaluate it or not; of other
    drafters, one token is tried now and then.

    The outcome of a draft is read from the texts that go on from its site in later rounds: the length depends on rounds that are
    over, never on the random numbers of the one that it is for. Each prompt has a rate of its own.

    Attributes
    ----------
    drafter
        The drafter.

    Raises
    ------
    UnsupportedError
        ``drafter`` is no drafter.
    """

    drafter: Annotated[Drafter, of_kind(Drafter, "a drafter, such as ForcedDrafter()")]
    name: ClassVar[str] = "adapted_length"

    @property
    def sampled(self) -> bool:
        return self.drafter.sampled

    def begin(self, run: DraftRun) -> Drafting:
        return _Adapted(Proposer(self.drafter, run), run.cost, silent=self.drafter.cheap)


@final
class Acceptance:
    """The share of tested tokens that were accepted; old tests are forgotten little by little."""

    def __init__(self, hits: float = HITS) -> None:
        self._hits, self._tests = hits, TESTS

    @property
    def rate(self) -> float:
        """The share."""
        return self._hits / self._tests

    def observe(self, accepted: int, rejected: int) -> None:
        """Take note of a chain: tokens that were accepted, and one or none that was rejected."""
        for hit in [1.0] * accepted + [0.0] * rejected:
            self._hits = FORGETTING * self._hits + hit
            self._tests = FORGETTING * self._tests + 1.0


@final
class _Adapted(Drafting):
    checked = True

    def __init__(self, proposer: Proposer, cost: CallCost, *, silent: bool) -> None:
        self._proposer, self._cost, self._silent = proposer, cost, silent
        hits = SILENT_HITS if silent else HITS
        self._acceptance: dict[int, Acceptance] = defaultdict(lambda: Acceptance(hits))
        # Per site, the round of its last drafts, and these: several where they are drawn.
        self._waiting: OrderedDict[tuple[int, tuple[int, ...]], tuple[int, list[Draft]]] = OrderedDict()
        self._round = self._longest = 0

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        self._round += 1
        for site in sites:
            self._learn(site)
        walks = Counter(site.row for site in sites)  # other prompts do not count: the draws of one would depend on them
        best = [self._best(site, length, walks[site.row]) for site, length in zip(sites, lengths, strict=True)]
        least = int(self._silent)
        asked = [max(length, min(least, most)) for length, most in zip(best, lengths, strict=True)]
        drafts = self._proposer.propose(sites, asked, streams)
        for site, draft in zip(sites, drafts, strict=True):
            self._remember(site, draft)
        return [draft if length else NOTHING for length, draft in zip(best, drafts, strict=True)]

    def _best(self, site: Site, most: int, walks: int) -> int:
        tried = int(not self._silent and len(site.tokens) % TRIED == 0)
        return max(best_length(self._acceptance[site.row].rate, self._cost, most, walks), min(tried, most))

    def _learn(self, site: Site) -> None:
        """Compare the text that was written with the drafts that were made on its way, each once."""
        written = len(site.tokens) - site.guessed
        for at in range(max(0, written - self._longest - 1), written):
            _, drafts = self._waiting.get((site.row, site.tokens[:at]), NONE)
            if drafts:
                self._acceptance[site.row].observe(*_outcome(drafts.pop(0).tokens, site.tokens[at:written]))

    def _remember(self, site: Site, draft: Draft) -> None:
        if draft.tokens:
            key = site.row, site.tokens
            if self._waiting.get(key, NONE)[0] < self._round:
                self._waiting[key] = self._round, []
            self._waiting[key][1].append(draft)
            self._longest = max(self._longest, len(draft.tokens))
        while len(self._waiting) > REMEMBERED:
            self._waiting.popitem(last=False)


def _outcome(chain: tuple[int, ...], taken: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of accepted tokens of a chain, and that of rejected ones after them, given the tokens written."""
    agrees = [drafted == token for drafted, token in zip(chain, taken, strict=False)]
    accepted = agrees.index(False) if False in agrees else len(agrees)
    return accepted, int(accepted < len(agrees))
