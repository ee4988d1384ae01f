"""Drafts that are evaluated in the same model call as the text before them (theory.md, sections 7.2 and 7.4)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..drafting.combine import COST, HITS, TESTS, best_length
from ..drafting.drafter import Draft, Drafter, DraftRun, Proposer, Site, check_length
from ..guides.guide import DEAD, DONE
from ..guides.table import Table
from ..numerics.distributions import AT_ONCE, Distributions
from ..numerics.transfers import Exchange
from ..phi.estimator import Prefixes, ProposalPhi
from ..phi.tree.tree import BoundsTree, Node
from .coupling import Chains, CouplingResult, Proposals, verify
from .sampler import Request, Stream
from .stepper import BaseStepper, Trajectory


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
        self._length, self._prompts, self._drafted = options.length, request.prompts, drafted
        self._room = AT_ONCE // len(request.table.vocabulary)
        self._rows = {tree: row for row, tree in enumerate(trees or ())}
        self._proposer = options.proposer(request, trees)
        # One stream per prompt: what is drafted for it does not depend on the others.
        self._streams = [request.stream(row, Stream.DRAFT) for row in range(len(request.prompts))]

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
        most = min(self._length, self._room // waiting)
        if self._drafted is None:
            return most
        drafted, followed = self._drafted(row)
        return best_length((HITS + followed) / (TESTS + drafted), COST, most, waiting)

    def below(self, waiting: Sequence[tuple[BoundsTree, Node]]) -> list[tuple[int, ...]]:
        """Return the drafts after each of the nodes that walks wait for: the foresight of an :class:`Evaluator`."""
        rows = [self._rows[tree] for tree, _ in waiting]
        return self.chains(
            [
                Site(row, self._prompts[row], node.tokens(), node.state, node.remaining)
                for row, (_, node) in zip(rows, waiting, strict=True)
            ]
        )


KEPT = 2**28
"""Logits that a round may keep of drafts: 1 GiB in single precision."""

PROMPT = -1
"""Stands for the token of a prompt, which has none."""


@dataclass(eq=False)
class DraftState:
    """The drafts of a walk, from round to round."""

    stream: np.random.Generator  # Of its drafts, apart from its own
    # Numbers of the walk's own stream that no token has used yet. Token `i` of a walk uses number `i` and no other, so a walk
    # that follows deterministic drafts writes, token for token, what it would have written without.
    ahead: list[float] = field(default_factory=list)
    drafted: int = 0
    followed: int = 0
    turns: int = 0

    def uniforms(self, walk: Trajectory, n: int) -> list[float]:
        """Return the next ``n`` numbers of the stream of ``walk``; they stay its next ones until it writes tokens."""
        if len(self.ahead) < n:
            self.ahead += walk.rng.random(n - len(self.ahead)).tolist()
        return self.ahead[:n]

    def observe(self, drafted: int, followed: int, written: int) -> None:
        """Count a round, by its tokens that were drafted, kept, and written in all."""
        self.turns, self.drafted, self.followed = self.turns + 1, self.drafted + drafted, self.followed + followed
        del self.ahead[:written]


class Chain(NamedTuple):
    """The draft of one walk."""

    # The distribution of the walk's next token, and that after each drafted one; -1 after one that ends the text, or cannot be
    # written
    rows: tuple[int, ...]
    tokens: tuple[int, ...]


@final
class DraftBatch:
    """Distinct prefixes in the order of their distributions' numbers, each one token below an earlier one or a known node.

    Walks that stand on one prefix share its distribution, and those that were drafted the same share the chain.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self.roots: list[int] = []  # The nodes of the prompts among the prefixes, which stand before all others
        # The other prefixes: a known node, or `~i` for the `i`-th of them, and the token after it
        self.parents: list[int] = []
        self.tokens: list[int] = []
        self._sites: list[Site] = []
        self._drafted: list[bool] = []
        self._number: dict[tuple[int, int], int] = {}
        self._chains: dict[tuple[int, tuple[int, ...]], Chain] = {}

    def stand(self, node: int, site: Site) -> int:
        """Return the number of the distribution at ``site``, whose last token was drawn at ``node``."""
        return self._add(node, site.tokens[-1] if site.tokens else PROMPT, site, drafted=False)

    def chain(self, row: int, tokens: tuple[int, ...]) -> Chain:
        """Return the chain of ``tokens`` after the prefix that ``row`` is the number of."""
        key = row, tokens
        if key not in self._chains:
            site, rows = self._sites[row], [row]
            for token in tokens:
                site = site.after(token, self._table)
                if site.state in (DEAD, DONE):
                    rows.append(-1)
                    break
                above = rows[-1] - len(self.roots)
                rows.append(self._add(~above if above >= 0 else self.roots[rows[-1]], token, site, drafted=True))
            self._chains[key] = Chain(tuple(rows), tokens[: len(rows) - 1])
        return self._chains[key]

    def prefixes(self, nodes: list[int]) -> Prefixes:
        """Return all prefixes; ``nodes`` are where those after :attr:`roots` are now."""
        return Prefixes(
            rows=[site.row for site in self._sites],
            nodes=[*self.roots, *nodes],
            states=[site.state for site in self._sites],
            remaining=[site.remaining for site in self._sites],
            tokens=[site.tokens for site in self._sites],
            drafted=self._drafted,
        )

    def _add(self, parent: int, token: int, site: Site, *, drafted: bool) -> int:
        key = parent, token
        if key in self._number:
            return self._number[key]
        if token == PROMPT:
            self.roots.append(parent)
        else:
            self.parents.append(parent)
            self.tokens.append(token)
        self._number[key] = len(self._sites)
        self._sites.append(site)
        self._drafted.append(drafted)
        return self._number[key]


@final
class DraftedStepper(BaseStepper):
    """Takes walks further by as many tokens as their drafts hold good for, and one more.

    A round evaluates where every walk stands and the chains that were drafted for it, in one model call, and the distributions
    ``q_h`` of all positions, in one call of the estimator; :func:`~outlines_phi.sampling.coupling.verify` then tells
    how far each walk goes.

    The distribution of a position depends on the text before it and on what was known before the round: an estimator learns
    between rounds of walks, and only from where walks have been.
    """

    def __init__(self, request: Request, phi: ProposalPhi, draft: Prefetch) -> None:
        super().__init__(request, phi, weighted=request.weighted)
        self._length, self._sampled = draft.length, draft.drafter.sampled
        self._proposer = draft.proposer(request)
        self._states: dict[Trajectory, DraftState] = {}

    @property
    def room(self) -> int:
        """The number of drafts of full length that a round may evaluate."""
        return max(1, KEPT // (len(self._request.table.vocabulary) * (self._length + 1)))

    def launch(self, n: int) -> list[Trajectory]:
        walks = super().launch(n)
        for walk in walks:
            self._states[walk] = DraftState(self._request.stream(walk.row, Stream.DRAFT + walk.number))
        return walks

    def draft_counts(self, walks: Sequence[Trajectory]) -> dict[str, int]:
        """Return the counts of the drafts of some walks, as in :class:`~outlines_phi.sampling.draws.DrawCounts`."""
        states = [self._states[walk] for walk in walks]
        return {
            "drafted": sum(state.drafted for state in states),
            "followed": sum(state.followed for state in states),
            "written": sum(len(walk.tokens) for walk in walks),
            "turns": sum(state.turns for state in states),
        }

    def first(self, walks: Sequence[Trajectory]) -> None:
        """Take every walk from the start."""
        self.advance(walks)

    def advance(self, walks: Sequence[Trajectory]) -> None:
        """Evaluate every distinct prefix that unfinished ``walks`` stand on, with drafts, and take each of them further."""
        batch = DraftBatch(self._request.table)
        sites = self._sites(walks)
        standing = [batch.stand(walk.node, site) for walk, site in zip(walks, sites, strict=True)]
        drafts = self._drafts(walks, sites)
        own_chains = [batch.chain(row, draft.tokens) for row, draft in zip(standing, drafts, strict=True)]
        nodes, logits = self.branches.reach(batch.parents, batch.tokens)
        if batch.roots:
            # Under the check of this call, or one that was read before.
            prompts = self.branches.plant()[1].each()
            logits = logits.of([*(prompts[root] for root in batch.roots), *logits.each()])
        prefixes = batch.prefixes(nodes)
        # Neighbours of one guide state are treated together.
        order = sorted(range(len(logits)), key=lambda row: (prefixes.states[row], prefixes.remaining[row]))
        place = np.argsort(order)
        exchange = Exchange(logits)
        logits_of = exchange.rows(order)
        ragged = self._chains(walks, own_chains, place)
        sent = exchange.send(*ragged, *_drawn_from(drafts, ragged[1].shape[1]))
        log_p, scores = self.distributions(prefixes.arranged(order), exchange)(logits_of())
        *drafted, drawn, drawn_from = sent()
        distributions, chains = Distributions.of(scores), Chains(*drafted)
        log_r = [draft.log_r.to(log_p.device) for draft in drafts if draft.log_r is not None]
        verdict = verify(distributions, chains, Proposals(drawn, drawn_from, torch.cat(log_r)) if log_r else None)
        came = self._decide(walks, own_chains, prefixes.nodes, chains, verdict, log_p, distributions, exchange)
        self.estimate.reached(sorted(int(place[row]) for row in came if prefixes.drafted[row]))
        self.branches.prune(prefixes.nodes, ((walk.node, walk.tokens[-1]) for walk in walks if not walk.finished))

    def _sites(self, walks: Sequence[Trajectory]) -> list[Site]:
        """Return the site of each walk; one object for all walks on one prefix."""
        found: dict[tuple[int, ...], Site] = {}
        keys = [(walk.node, *walk.tokens[-1:]) for walk in walks]
        for key, walk in zip(keys, walks, strict=True):
            if key not in found:
                prompt = self._request.prompts[walk.row]
                found[key] = Site(walk.row, prompt, tuple(walk.tokens), walk.state, walk.remaining)
        return [found[key] for key in keys]

    def _drafts(self, walks: Sequence[Trajectory], sites: Sequence[Site]) -> list[Draft]:
        """Return a draft per walk. Drafts that are drawn are as many chains: where memory has no room some walks go without."""
        lengths = [self._length] * len(walks)
        if self._sampled:
            lengths[self.room :] = [0] * (len(walks) - self.room)
        return self._proposer.propose(sites, lengths, [self._states[walk].stream for walk in walks])

    def _decide(
        self,
        walks: Sequence[Trajectory],
        own_chains: Sequence[Chain],
        nodes: Sequence[int],
        drafted: Chains,
        verdict: CouplingResult,
        log_p: Tensor,
        distributions: Distributions,
        exchange: Exchange,
    ) -> set[int]:
        """Let every walk write what it keeps of its draft and the token after it; return the rows that walks have come to."""
        own = verdict.tokens.clamp_min(0)[:, None]
        tokens = torch.cat([drafted.tokens, own], 1).scatter(1, verdict.accepted[:, None], own)
        rows = drafted.rows.clamp_min(0)
        log_p_v = log_p[rows, tokens].double()
        log_s = distributions.log_s[rows.gather(1, verdict.accepted[:, None])]
        head = torch.stack([verdict.accepted, verdict.tokens], 1).double()
        # The one thing of a round that is read back.
        (found,) = exchange.read(torch.cat([head, log_s, log_p_v, log_p_v - distributions.log_q(rows, tokens)], 1))
        came = set[int]()
        for walk, chain, (accepted, token, log_s_y, *steps) in zip(walks, own_chains, found.tolist(), strict=True):
            written = [*chain.tokens[: int(accepted)], int(token)]
            log_p_y, log_w_y = steps[: tokens.shape[1]], steps[tokens.shape[1] :]
            last, allowed = chain.rows[int(accepted)], log_s_y > -math.inf
            if last < 0 or not allowed:  # no distribution, or nothing in it, to draw a further token from
                written.pop()
            self._states[walk].observe(len(chain.tokens), int(accepted), len(written))
            for account in zip(written, log_p_y, log_w_y, strict=False):
                self.take(walk, *account)
            if last >= 0:
                walk.node = nodes[last]
                walk.log_w = walk.log_w if allowed else -math.inf
            self.end_free(walk)
            came.update(chain.rows[: int(accepted) + 1])
        return came - {-1}

    def _chains(
        self, walks: Sequence[Trajectory], chains: Sequence[Chain], place: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Return the parts of :class:`Chains`; ``place`` is the place of each prefix among the distributions."""
        lengths = np.array([len(chain.tokens) for chain in chains])
        longest = int(lengths.max())
        rows = np.full((len(walks), longest + 1), -1)
        tokens = np.zeros((len(walks), longest), dtype=np.int64)
        uniforms = np.zeros((len(walks), longest + 1))
        for i, (walk, chain, size) in enumerate(zip(walks, chains, lengths.tolist(), strict=True)):
            rows[i, : size + 1], tokens[i, :size] = chain.rows, chain.tokens
            uniforms[i, : size + 1] = self._states[walk].uniforms(walk, size + 1)
        return np.where(rows < 0, -1, place[rows]), tokens, lengths, uniforms


def _drawn_from(drafts: Sequence[Draft], longest: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the drawn drafts, and for each the rows of :class:`Proposals` of its tokens, ``[S, K]``."""
    drawn = [(i, len(draft.log_r)) for i, draft in enumerate(drafts) if draft.log_r is not None]
    rows, first = np.zeros((len(drawn), longest), dtype=np.int64), 0
    for place, (_, length) in enumerate(drawn):
        rows[place, :length] = range(first, first := first + length)
    return np.array([i for i, _ in drawn], dtype=np.int64), rows
