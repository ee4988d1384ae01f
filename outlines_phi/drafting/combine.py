"""Drafters that are made of others."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, ClassVar, final

import numpy as np

from ..guides.table import Table
from ..lm.model import CallCost
from ..numerics.checks import Checked, check, of_kind
from .drafter import NOTHING, Chain, Draft, Drafter, Drafting, DraftRun, Proposer, Site


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
