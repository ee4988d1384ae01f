"""Walks that draw token by token, or along a draft (theory.md, sections 4.1 and 7.2), and the accounts of their tokens."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..drafting.drafter import NOTHING, Draft, Site
from ..errors import EmptyLanguageError, UnsupportedError
from ..guides.guide import DEAD, DONE
from ..guides.table import Table
from ..lm.model import Progress, follow
from ..numerics.distributions import Distributions, Exchange, together
from ..phi.branches import Branch, Branches
from ..phi.constraint import Constraint
from ..phi.estimator import Prefixes, ProposalPhi, SampledRun
from ..phi.tree.tree import Node
from ..vocabulary.vocabulary import Vocabulary
from .awrs import draw_allowed
from .coupling import Chains, Proposals, verify
from .draws import Alternative, TokenAccount
from .sampler import Prefetch, Request, Stream

KEPT = 2**28
"""Logits that a round may keep of drafts: 1 GiB in single precision."""


@dataclass(eq=False)
class Trajectory:
    """One draw in the making."""

    # Its prompt, and its number among those of the prompt
    row: int
    number: int
    rng: np.random.Generator  # Its random stream
    at: Branch  # What it has written, among the prefixes of the run
    # The guide state, and the tokens that may still be written
    state: int
    remaining: int
    tokens: list[int] = field(default_factory=list)  # The tokens that it has written
    # `log p(y)` and `log p(y) - log q(y)` so far, in nats; `log_w` is `-inf` where it failed
    log_p: float = 0.0
    log_w: float = 0.0
    # Of its drafts, the random stream, apart from its own; how many tokens were drafted and kept, and the model calls in all
    drafts: np.random.Generator | None = None
    drafted: int = 0
    followed: int = 0
    turns: int = 0
    # Numbers of its own stream that no token has used yet. Token `i` uses number `i` and no other, so a walk that follows
    # deterministic drafts writes, token for token, what it would have written without.
    ahead: list[float] = field(default_factory=list)
    accounts: list[TokenAccount] = field(default_factory=list)  # Of its tokens, where the request asks for them

    @property
    def finished(self) -> bool:
        """True if the end of sequence was written, or no token was allowed."""
        return self.state == DONE or self.failed

    @property
    def failed(self) -> bool:
        """True if no token that guide and constraint allow had any probability: a draw of weight 0."""
        return self.log_w == -math.inf

    def uniforms(self, n: int) -> list[float]:
        """Return the next ``n`` numbers of its stream; they stay its next ones until it writes tokens."""
        if len(self.ahead) < n:
            self.ahead += self.rng.random(n - len(self.ahead)).tolist()
        return self.ahead[:n]

    def observe(self, drafted: int, followed: int, written: int) -> None:
        """Count a round, by its tokens that were drafted, kept, and written in all."""
        self.turns, self.drafted, self.followed = self.turns + 1, self.drafted + drafted, self.followed + followed
        del self.ahead[:written]


class Observer(Protocol):
    """Sees the distribution of every step of every trajectory; the draws are the same with or without one."""

    def step(
        self,
        draws: Sequence[tuple[int, int]],
        rows: Sequence[int],
        tokens: Sequence[int],
        log_p: Tensor,
        scores: Tensor,
    ) -> None:
        """Take note of one step of some trajectories.

        ``draws``: Prompt and number of each trajectory.
        ``rows``: The row of ``log_p`` and ``scores`` that each stands on.
        ``tokens``: The token that each takes there; meaningless where its row of ``scores`` is ``-inf`` throughout, which ends
        it.
        ``log_p``, ``scores``: ``[distributions, V]``: ``log p(v|y)``, and ``log p(v|y) + log h(yv)``.
        """


@final
class Batch:
    """The distinct prefixes of a round, with the site of each: where walks stand, then what was drafted for them."""

    def __init__(self, walks: Sequence[Trajectory], request: Request) -> None:
        self._table, self.sites = request.table, dict[Branch, Site]()
        for at, walk in {walk.at: walk for walk in walks}.items():
            self.sites[at] = Site(walk.row, request.prompts[walk.row], tuple(walk.tokens), walk.state, walk.remaining)
        self.standing = len(self.sites)

    def chain(self, prefix: Branch, tokens: Sequence[int]) -> list[Branch | None]:
        """Return ``prefix`` and those along a draft; ``None`` after a token that ends the text, or cannot be written."""
        chain: list[Branch | None] = [prefix]
        for token in tokens:
            below = prefix.foreseen(token)
            if below not in self.sites:
                site = self.sites[prefix].after(token, self._table)
                if site.state in (DEAD, DONE):
                    return [*chain, None]
                self.sites[below] = site
            prefix = below
            chain.append(prefix)
        return chain

    def prefixes(self, order: Sequence[int]) -> Prefixes:
        """Return the prefixes in another order."""
        nodes, sites = [prefix.node for prefix in self.sites], list(self.sites.values())
        return Prefixes(
            rows=[sites[i].row for i in order],
            nodes=[nodes[i] for i in order],
            states=[sites[i].state for i in order],
            remaining=[sites[i].remaining for i in order],
            tokens=[sites[i].tokens for i in order],
            drafted=[i >= self.standing for i in order] if len(sites) > self.standing else (),
        )


class WalkStep(NamedTuple):
    """The walks on a prefix in a round that have one draft: whatever is the same for all is done once."""

    walks: list[Trajectory]
    # The rows of the distributions of its next token, and of that after each drafted one; -1 after one that ends the text, or
    # cannot be written
    rows: list[int]
    draft: Draft


@final
class Stepper:
    """The walks of a call: their launch, the distributions of where they stand, their accounts, and their steps.

    A step evaluates where every walk stands, with the chains that were drafted for it, in one model call, and the distributions
    ``q_h`` of all positions, in one call of the estimator; :func:`~outlines_phi.sampling.coupling.verify` then tells how far each
    walk goes: as many tokens as its draft holds good for, and one more. ``log_w`` of a walk grows by ``log S(y) - log h(yv)`` with
    each (theory.md, section 4.1). Where the request has a constraint, ``S`` is the mass of what it allows too, of which
    :mod:`~outlines_phi.sampling.awrs` has an unbiased estimate.

    The distribution of a position depends on the text before it and on what was known before the round: an estimator learns
    between rounds of walks, and only from where walks have been.

    ``weighted``: Whether anybody will read the weights of the walks.

    Raises :class:`UnsupportedError`: a draft beside a constraint.
    """

    def __init__(
        self,
        request: Request,
        phi: ProposalPhi,
        observer: Observer | None = None,
        draft: Prefetch | None = None,
        *,
        weighted: bool = True,
    ) -> None:
        constraint = request.constraint
        # With drafts a step is not one token long, and the mass that a constraint allows is not known.
        assert observer is None or (draft is None and constraint is None)
        if draft is not None and constraint is not None:
            raise UnsupportedError(
                f"{constraint} was given beside a draft; a constraint is asked about few tokens of a step, so the "
                "distribution that a draft would be held against is not known. Leave out one of them; a type or a regex "
                "in place of the constraint goes with drafts."
            )
        self._request, self._observer, self._draft = request, observer, draft
        self.branches = Branches(request.lm, request.prompts)
        self._run = SampledRun(
            lm=request.lm,
            table=request.table,
            settings=request.settings,
            prompts=request.prompts,
            budgets=request.budgets,
            branches=self.branches,
            stream=lambda row: request.stream(row, Stream.ESTIMATE),
        )
        self.estimate = phi.begin(self._run)
        # Under truncation or a constraint a text that can only end may still be refused.
        refusing = bool(request.settings.truncation) or constraint is not None
        unread = not weighted and observer is None
        self._ends_free = unread and not refusing and self.estimate.stateless
        self._proposer = None if draft is None else draft.proposer(request)
        self._launched = 0

    @property
    def room(self) -> int:
        """The number of drafts of full length that a round may evaluate."""
        length = 0 if self._draft is None else self._draft.length
        return max(1, KEPT // (len(self._request.table.vocabulary) * (length + 1)))

    def launch(self, n: int) -> list[Trajectory]:
        """Return ``n`` more walks of every prompt, at the start; the estimator has learned from those before."""
        request = self._request
        self.estimate.learn()
        numbers = range(self._launched, self._launched + n)
        self._launched += n
        roots = [Branch(-1, -1, root) for root in self.branches.roots]
        walks = [
            Trajectory(row, i, request.stream(row, i), root, request.starts[row], request.budgets[row])
            for row, root in enumerate(roots)
            for i in numbers
        ]
        if self._draft is not None:
            for walk in walks:
                walk.drafts = request.stream(walk.row, Stream.DRAFT + walk.number)
        return walks

    def follow(self, walks: Callable[[], Iterable[Trajectory]], wanted: int, particles: int = 1) -> None:
        """Let the finished ones of ``walks()`` tell how far the call has come; so many of them make one of the draws ``wanted``."""

        def progress() -> Progress:
            finished = sum(walk.finished for walk in walks())
            return Progress.of(
                self.branches.trees.counts, draws=finished // particles, wanted=wanted, attempts=finished
            )

        follow(progress)

    def draft_counts(self, walks: Sequence[Trajectory]) -> dict[str, int]:
        """Return the counts of the drafts of some walks, as in :class:`~outlines_phi.sampling.draws.DrawCounts`."""
        if self._draft is None:
            return {}
        return {
            "drafted": sum(walk.drafted for walk in walks),
            "followed": sum(walk.followed for walk in walks),
            "written": sum(len(walk.tokens) for walk in walks),
            "turns": sum(walk.turns for walk in walks),
        }

    def distributions(self, prefixes: Prefixes, exchange: Exchange) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Return the function of ``log p`` and ``log p + log h``, ``[n, V]``, of raw logits after ``prefixes``."""
        scores = self.estimate.step(prefixes, exchange)

        def distributions(logits: Tensor) -> tuple[Tensor, Tensor]:
            log_p = self._run.log_p(logits, zip(prefixes.rows, prefixes.tokens, strict=True))
            return log_p, scores(log_p)

        return distributions

    def take(self, walk: Trajectory, token: int, log_p: float, log_w: float, beside: Sequence[float] = ()) -> None:
        """Let ``walk`` write ``token``, which has ``log p`` and adds ``log p - log q`` to the weight.

        ``beside`` is what :meth:`_beside` says of its prefix, for its account.
        """
        walk.log_p, walk.log_w = walk.log_p + log_p, walk.log_w + log_w
        if self._request.top is not None:
            walk.accounts.append(self._account(token, log_p, log_w, *beside))
        walk.tokens.append(token)
        walk.at = walk.at.child(token)
        walk.state = self._request.table.advance(walk.state, token, walk.remaining)
        walk.remaining -= 1

    def _account(self, token: int, log_p: float, log_w: float, log_s: float = math.nan, *found: float) -> TokenAccount:
        """Return the account of a token; of an end that the model was not asked about nothing is known."""
        vocabulary, k = self._request.table.vocabulary, len(found) // 3
        written = vocabulary.text_of(token)
        if math.isnan(log_s):
            return TokenAccount(token, written, None, None, None, -math.inf, 0.0, None)
        top = alternatives(
            vocabulary, zip(map(int, found[:k]), found[k : 2 * k], map(bool, found[2 * k :]), strict=True)
        )
        return TokenAccount(token, written, log_p, log_p - log_w, log_s, -math.inf, min(0.0, log_s), top)

    def end_free(self, walk: Trajectory) -> None:
        """Let ``walk`` end without the model where its text can only end, if weights are not read: its own is not known then."""
        table = self._request.table
        if self._ends_free and not walk.finished and table.only_ends(walk.state, walk.remaining):
            self.take(walk, table.vocabulary.eos_ids[0], math.nan, math.nan)

    def advance(self, walks: Sequence[Trajectory]) -> None:
        """Evaluate every distinct prefix that unfinished ``walks`` stand on, with drafts, and take each of them further."""
        batch = Batch(walks, self._request)
        alike = dict[tuple[Branch, Draft], list[Trajectory]]()
        for walk, draft in zip(walks, self._drafts(walks, batch), strict=True):
            alike.setdefault((walk.at, draft), []).append(walk)
        chains = [batch.chain(at, draft.tokens) for at, draft in alike]
        prefixes, sites = list(batch.sites), list(batch.sites.values())
        logits = self.branches.reach(prefixes)
        # Neighbours of one guide state are treated together: prefixes, and the walks on them.
        order = sorted(range(len(sites)), key=lambda i: (sites[i].state, sites[i].remaining))
        place: dict[Branch | None, int] = {prefixes[i]: row for row, i in enumerate(order)}
        steps = [
            WalkStep(same, [place.get(at, -1) for at in chain], draft)
            for ((_, draft), same), chain in zip(alike.items(), chains, strict=True)
        ]
        steps.sort(key=lambda step: step.rows[0])
        came = self._take_steps(steps, order, batch, Exchange(logits))
        if self._draft is not None:
            self.estimate.reached(sorted(row for row in came if order[row] >= batch.standing))
            self._keep(
                {walk.at for walk in walks if not walk.finished}, dict(zip(prefixes, logits.each(), strict=True))
            )

    def _keep(self, wanted: Set[Branch], answers: Mapping[Branch, Tensor]) -> None:
        """Keep the answers about drafts that walks stand on next, and no others."""
        for prefix in answers:
            prefix.answer = None
        for prefix in wanted & answers.keys():
            prefix.answer = answers[
                prefix
            ].clone()  # a row alone would hold the memory of all that was evaluated with it

    def _drafts(self, walks: Sequence[Trajectory], batch: Batch) -> list[Draft]:
        """Return a draft per walk. Drafts that are drawn are as many chains: where memory has no room some walks go without."""
        if self._proposer is None or self._draft is None:
            return [NOTHING] * len(walks)
        lengths = [self._draft.length] * len(walks)
        if self._draft.drafter.sampled:
            lengths[self.room :] = [0] * (len(walks) - self.room)
        sites = [batch.sites[walk.at] for walk in walks]
        return self._proposer.propose(sites, lengths, [walk.drafts for walk in walks if walk.drafts is not None])

    def _take_steps(
        self, steps: Sequence[WalkStep], order: Sequence[int], batch: Batch, exchange: Exchange
    ) -> set[int]:
        """Let every walk write what it keeps of its draft and the token after it; return the rows that walks have come to.

        Few rows at a time where they are many, and one transfer each way.
        """
        # An estimator with a state is asked about a step as a whole, an observer is told of one, and chains have rows anywhere.
        apart = self._draft is None and self._observer is None and self.estimate.stateless
        size = together(exchange.answer.matrix) if apart else len(order)
        if self._observer is not None or self._request.constraint is not None:
            exchange.answer.read()  # what others see before it is read below is checked before
        moving = [walk for step in steps for walk in step.walks]
        firsts, heads = range(0, len(order), size), [step.rows[0] for step in steps for _ in step.walks]
        logits_of, sent = exchange.rows(order), exchange.send(*self._arrays(steps, moving))
        asked = [self.distributions(batch.prefixes(order[first : first + size]), exchange) for first in firsts]
        chosen = list[Tensor]()
        for first, distributions in zip(firsts, asked, strict=True):
            here = slice(bisect_left(heads, first), bisect_left(heads, first + size))
            log_p, scores = distributions(logits_of(slice(first, first + size)))
            rows, tokens, lengths, uniforms, drawn, drawn_from = sent()
            chains = Chains(rows[here] - first, tokens[here], lengths[here], uniforms[here])
            log_r = [step.draft.log_r.to(log_p.device) for step in steps if step.draft.log_r is not None]
            proposals = Proposals(drawn, drawn_from, torch.cat(log_r)) if log_r else None
            chosen.append(
                self._choose(moving[here], [head - first for head in heads[here]], chains, proposals, log_p, scores)
            )
        (read,) = exchange.read(torch.cat(chosen))
        accounts = zip(*read.T.tolist(), strict=True)
        return {row for step in steps for row in step.rows[: self._write(step, accounts) + 1] if row >= 0}

    def _write(self, step: WalkStep, accounts: Iterator[Any]) -> int:
        """Let walks write what they keep of their draft, and the token after it; return the most that one of them keeps.

        ``accounts`` are of these walks and of further ones: a row of :meth:`_choose` for each.
        """
        furthest, width = 0, 3 + self._columns_beside
        for walk, (kept, log_s, *account) in zip(step.walks, accounts, strict=False):
            if not log_s < math.inf:
                raise _no_scores()
            accepted = int(kept)
            goes_on, allowed = step.rows[accepted] >= 0, log_s > -math.inf
            # Without a distribution, or anything in it, there is no further token to draw.
            written = accepted + (goes_on and allowed)
            walk.observe(len(step.rows) - 1, accepted, written)
            furthest = max(furthest, accepted)
            for i in range(written):
                token, log_p, log_w, *beside = account[width * i : width * (i + 1)]
                self.take(walk, int(token), log_p, log_w, beside)
            if goes_on and not allowed:
                walk.log_w = -math.inf
            self.end_free(walk)
        return furthest

    def _arrays(self, steps: Sequence[WalkStep], walks: Sequence[Trajectory]) -> list[NDArray[Any]]:
        """Return the parts of :class:`Chains`, the indices of the drawn drafts, and the rows of :class:`Proposals` of each."""
        lengths = np.array([len(step.rows) - 1 for step in steps])
        longest = int(lengths.max())
        rows = np.array([step.rows + [-1] * (longest + 1 - len(step.rows)) for step in steps])
        tokens = np.array([(*step.draft.tokens, *[0] * longest)[:longest] for step in steps], dtype=np.int64)
        drawn = np.array([0 if step.draft.log_r is None else len(step.draft.log_r) for step in steps])
        of = np.repeat(np.arange(len(steps)), [len(step.walks) for step in steps])
        sampled = np.flatnonzero(drawn[of])
        drawn_from = np.minimum((drawn.cumsum() - drawn)[of[sampled], None] + np.arange(longest), drawn.sum() - 1)
        drawing = self._request.constraint is None  # a constraint draws for itself
        uniforms = np.array([walk.uniforms(longest + 1) for walk in walks]) if drawing else np.zeros((len(walks), 1))
        return [rows[of], tokens[of], lengths[of], uniforms, sampled, drawn_from]

    def _choose(
        self,
        walks: Sequence[Trajectory],
        heads: Sequence[int],
        chains: Chains,
        proposals: Proposals | None,
        log_p: Tensor,
        scores: Tensor,
    ) -> Tensor:
        """Draw the tokens that each walk writes, ``heads`` being the rows that they stand on.

        Returns ``[n, 2 + 3 (K + 1)]`` float64: how many tokens of the draft are kept, ``log S`` after them, and of these tokens and
        the one that follows each itself, its ``log p``, and ``log p - log q``, with what :meth:`_beside` says of its prefix.
        """
        rows, constraint = chains.rows.clamp_min(0), self._request.constraint
        if constraint is None:
            distributions = Distributions.of(scores)
            accepted, tokens = verify(distributions, chains, proposals)
            log_s = distributions.log_s[rows]
        else:
            accepted = torch.zeros_like(chains.lengths)
            tokens, log_s = self._draw_allowed(walks, heads, scores.double(), constraint)
        if self._observer is not None:
            draws = [(walk.row, walk.number) for walk in walks]
            self._observer.step(draws, heads, tokens.tolist(), log_p, scores.double())
        own = tokens.clamp_min(0)[:, None]
        written = torch.cat([chains.tokens, own], 1).scatter(1, accepted[:, None], own)
        log_p_v, log_q_v = log_p[rows, written].double(), scores[rows, written].double() - log_s
        head = torch.stack([accepted.double(), log_s.gather(1, accepted[:, None])[:, 0]], 1)
        # log p - log q = log S - log h
        taken = [written.double(), log_p_v, log_p_v - log_q_v, *self._beside(log_p, scores, rows)]
        return torch.cat([head, torch.stack(taken, -1).flatten(1)], 1)

    @property
    def _columns_beside(self) -> int:
        """The number of columns of :meth:`_beside`."""
        top, size = self._request.top, len(self._request.table.vocabulary)
        return 0 if top is None else 1 + 3 * min(top, size)

    def _beside(self, log_p: Tensor, scores: Tensor, rows: Tensor) -> list[Tensor]:
        """Return a column for each number that accounts have of the prefixes ``rows``; none where nobody asks for accounts.

        ``log S`` of the mask; then the likeliest tokens, ``log p`` of each, and whether each is allowed.
        """
        if self._request.top is None:
            return []
        live = scores > -math.inf
        log_s = Distributions.of(log_p.where(live, -math.inf)).log_s
        likeliest = log_p.topk(self._columns_beside // 3)
        columns = [likeliest.indices, likeliest.values, live.gather(-1, likeliest.indices)]
        return [log_s[rows], *torch.cat(columns, -1).double()[rows].unbind(-1)]

    def _draw_allowed(
        self, walks: Sequence[Trajectory], rows: Sequence[int], scores: Tensor, constraint: Constraint
    ) -> tuple[Tensor, Tensor]:
        """Return a token per walk that ``constraint`` allows too, and an estimate of the log of the mass that both allow.

        Raises :class:`EmptyLanguageError`: the constraint allows no first token of a prompt: not one draw of any number would
        be completed.
        """
        if not (scores.amax(-1) < math.inf).all():
            raise _no_scores()
        head, table = dict(zip(rows, walks, strict=True)), self._request.table

        def allows(row: int, token: int) -> bool:
            walk = head[row]
            finished = table.advance(walk.state, token, walk.remaining) == DONE
            written = walk.tokens if token == table.vocabulary.eos_ids[0] else [*walk.tokens, token]
            return constraint.allows(written, finished=finished)

        keys = [int(walk.rng.integers(2**63)) for walk in walks]
        outcomes = draw_allowed(scores, rows, keys, allows, constraint.further)
        for walk, outcome in zip(walks, outcomes, strict=True):
            if outcome.token < 0 and outcome.tests and not walk.tokens:
                truncation = self._request.settings.truncation
                raise EmptyLanguageError(
                    f"Prompt {walk.row}: {constraint} allows no output at all{truncation and f' under {truncation}'}: it was asked "
                    f"about every first token that the output type leaves, {outcome.tests} in all, and refused each. It is asked "
                    "about unfinished texts too, and has to allow every beginning of what it allows."
                )
        tokens = torch.tensor([max(0, outcome.token) for outcome in outcomes], device=scores.device)
        log_s = torch.tensor([outcome.log_s for outcome in outcomes], dtype=scores.dtype, device=scores.device)
        return tokens, log_s[:, None]


def _no_scores() -> UnsupportedError:
    return UnsupportedError(
        "Return numbers from log_h(), -inf where nothing can be completed. The scores of phi= are NaN or +inf."
    )


def alternatives(vocabulary: Vocabulary, found: Iterable[tuple[int, float, bool]]) -> tuple[Alternative, ...]:
    """Return the tokens ``(id, log p, allowed)`` that have a probability, the likeliest first, ties by their ids."""
    order = sorted((each for each in found if each[1] > -math.inf), key=lambda each: (-each[1], each[0]))
    return tuple(Alternative(token, vocabulary.text_of(token), log_p, allowed) for token, log_p, allowed in order)


def path_accounts(
    table: Table,
    path: Sequence[Node],
    top: int,
    likeliest: Callable[[Node, int], dict[int, float] | None],
    log_q: Iterable[float | None] = repeat(None),
    *,
    whole: bool = True,
) -> Iterator[TokenAccount]:
    """Yield the account of the last token of each node of a path.

    ``likeliest`` returns ``log p`` of the likeliest tokens after a prefix, ``None`` where they are not known any more. The lower
    bounds of a tree that is not of ``whole`` texts, but of windows, say nothing of them.
    """
    for node, proposed in zip(path, log_q, strict=False):
        above = node.parent
        assert above is not None
        log_s = above.log_live
        yield TokenAccount(
            node.token,
            table.vocabulary.text_of(node.token),
            node.log_step,
            proposed,
            log_s if log_s > -math.inf else None,
            above.log_lower if whole else -math.inf,
            min(0.0, above.log_upper),
            _alternatives(table, above, likeliest(above, top)) if top else (),
        )


def _alternatives(table: Table, node: Node, known: dict[int, float] | None) -> tuple[Alternative, ...] | None:
    """Return the tokens after ``node`` of which ``log p`` is known; ``None`` where that of none is."""
    if known is None:
        return None
    moves = table.moves(node.state, node.remaining)
    found = ((token, log_p, moves.target(token) != DEAD) for token, log_p in known.items())
    return alternatives(table.vocabulary, found)
