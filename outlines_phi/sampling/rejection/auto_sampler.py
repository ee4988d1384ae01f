"""Attempts at exact draws, then the candidates of weighted ones, on one tree (theory.md, section 5.10)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import final

import numpy as np

from ...errors import BudgetError, FidelityWarning, warn_of
from ...lm.model import follow
from ...numerics.weights import log_mean
from ...phi.estimator import doubling
from ...phi.tree.best_first import grow_trees
from ...phi.tree.evaluator import TreeStore, afresh
from ...phi.tree.tree import Node, refuse_impossible
from ..draws import NO_DISTANCE, Draws, Guarantee, middle
from ..lookahead import WindowedDraws
from ..phi_options import AutoPhi, Effort, FieldsPhi
from ..sampler import Prefetch, Request, Sampler, Stream
from .adaptive_proposal import ROUND, AdaptiveTrajectories, Candidate, pick
from .attempts import Attempts, RejectionAttempts
from .exact_sampler import TreeCall

TRIAL = 8
"""Trial walks of the proposal: they show how long candidates walk, and the tree how texts end."""


TRIED_FROM = 0.6
"""The share of the first stage's cost from which trial walks go beside it: before, attempts mostly end it without them."""

MOST_FAILED = 32
"""Attempts by the model alone for each draw: where the tree knows that more would fail, no more are launched before fields."""

WHOLE_TOGETHER = 3
"""Attempts at one text with fields together at most: each of those launched is finished, and the longest is waited for."""


@final
class ShortAttempts:
    """Attempts of one prompt for ``share`` times the model calls of the shortest text, and for those of one more with each success.

    None any more where the tree knows that few can succeed, as it mostly does after a few tokens. It is looked at before every
    launch; what was launched is finished. A text that goes on for long does not prolong the time in which others are launched.
    """

    def __init__(self, attempts: Attempts, wanted: int, share: float) -> None:
        self.tree, self.attempts, self._share = attempts.tree, attempts, share
        self._log_least = -math.log(MOST_FAILED * wanted)
        self._shortest = self.tree.fewest_tokens(self.tree.root)
        self._calls = 0

    def advance(self) -> list[Node]:
        """Take every attempt as far as it goes without the model and return the nodes they wait for, none at the end."""
        most = (self._share + len(self.attempts.accepted)) * self._shortest
        if self._calls >= most or self.tree.root.log_upper < self._log_least:
            self.attempts.stop()
        self._calls += 1
        return self.attempts.advance()


@final
class TwoStages:
    """The walks of one prompt: attempts for as much as weighted draws would cost, then candidates for what is missing.

    Until an attempt has succeeded, that is as much as a single weighted draw would cost: where none does, many draws wait no
    longer than one. A model call over ``n`` prefixes costs ``1 + later (n - 1)`` (:class:`CallCost`). Weighted draws alone would
    come in rounds, each as many calls long as its longest walk has tokens. What that is, is learned from the walks so far:
    attempts, and, towards its end, some trial walks of the candidates' proposal, which are used for nothing else. It is looked at
    before every launch. Where it is used up the second stage begins for good, in the same calls as the attempts that are still
    under way. If these draw what was missing, the candidates are dropped, all of them.

    Candidates and attempts may walk side by side because neither can tell the other apart (theory.md, section 5.10). It would not
    hold if attempts were still launched: the longer the candidates walk, the more attempts there would be, and those of the
    weighted draws would be the short ones.
    """

    def __init__(
        self,
        attempts: Attempts,
        request: Request,
        phi: AutoPhi,
        stream: Callable[[int], np.random.Generator],
        *,
        max_bytes: int,
    ) -> None:
        self.tree, self.attempts, self._accounts = attempts.tree, attempts, request.top is not None
        self._wanted, self._later = request.n, request.lm.cost.later
        self._phi, self._stream, self._max_bytes = phi, stream, max_bytes
        self._cost = 0.0
        self._longest = 1  # the end of sequence; open formats ask for no token at all
        self._trial: AdaptiveTrajectories | None = None
        self._tried = 0  # prefixes that these have come to, each of them counted
        self._candidates: AdaptiveTrajectories | None = None
        self.one_round = False  # Whether all candidates have one proposal

    @property
    def finished(self) -> tuple[int, int]:
        """The number of draws, with those whose candidates have ended, and of the attempts and candidates that have ended."""
        accepted, read = len(self.attempts.accepted), self.attempts.read
        if self._candidates is None:
            return accepted, read
        ended, total = self._candidates.finished, self._candidates.total
        return accepted + (self._wanted - accepted) * ended // total, read + ended

    @property
    def trajectories(self) -> Sequence[Candidate]:
        """The candidates of the missing draws, all finished; none where nothing is missing."""
        return () if self.attempts.satisfied or self._candidates is None else self._candidates.trajectories

    def advance(self) -> list[Node]:
        """Take every walk as far as it goes without the model and return the nodes they wait for, none at the end."""
        if self._candidates is None:
            most = self._most_cost()
            if self._cost >= most:
                # Here exactness is given up for the draws that are missing: nothing is launched at them any more.
                self.attempts.stop()
            elif self._trial is None and self._cost >= TRIED_FROM * most:
                trial = self._trial = self._walks([TRIAL], Stream.DIAGNOSTIC)
                self.attempts.others = lambda: trial.waiting
        waiting = self.attempts.advance()
        if self.attempts.satisfied or (self._candidates is None and self.tree.root.log_upper == -math.inf):
            return []
        if self.attempts.stopped or not waiting:
            # Goes over to weighted draws, for good: candidates take the place of attempts.
            waiting += self._weighted().advance()
        elif self._trial is not None:
            ahead = self._trial.advance()
            waiting += ahead
            self._tried += len(ahead)
            self._longest = max([self._longest, *map(self.tree.fewest_tokens, ahead)])
        if self.tree.root.expanded:  # the prompt itself is evaluated for either stage
            self._cost += 1 + self._later * (len(set(waiting)) - 1)
        return waiting

    def _most_cost(self) -> float:
        """Return the cost that exact draws may have: that of one weighted draw until one is accepted, then that of all.

        A round of candidates takes as many calls as the longest has tokens, over as many prefixes as they have together, those that
        they share counted for each. They are as long as the trial walks were on average; until these have ended, as the longest.
        """
        longest = max(self._longest, self.attempts.longest)
        tried = self._trial is not None and not self._trial.waiting
        mean = self._tried / TRIAL if tried else longest
        rounds = self._rounds(self._wanted if self.attempts.accepted else 1)
        return self._phi.share * sum(longest + self._later * max(0.0, size * mean - longest) for size in rounds)

    def _weighted(self) -> AdaptiveTrajectories:
        if self._candidates is None:
            self.attempts.stop()
            rounds = self._rounds(self._wanted - len(self.attempts.accepted))
            self.one_round = len(rounds) == 1
            self._candidates = self._walks(rounds, Stream.CANDIDATE)
        return self._candidates

    def _walks(self, rounds: Sequence[int], kind: Stream) -> AdaptiveTrajectories:
        def stream(number: int) -> np.random.Generator:
            return self._stream(kind + number)

        return AdaptiveTrajectories(
            self.tree,
            rounds,
            stream,
            max_bytes=self._max_bytes,
            others=lambda: self.attempts.waiting,
            accounts=self._accounts,
        )

    def _rounds(self, missing: int) -> list[int]:
        """Return the sizes of the rounds of the candidates of that many missing draws.

        One draw is soonest made in one round, of twice as many; that is what the first stage has explored the tree for.
        """
        total = missing * self._phi.candidates * (2 if missing == 1 else 1)
        return [total] if missing == 1 and self._phi.share > 0 else doubling(total, ROUND)


@final
@dataclass(frozen=True)
class AutoSampler(Sampler):
    """Draws ``mu*`` by adaptive rejection while the effort lasts; the draws that are then missing are weighted.

    The draws that were accepted are kept: whether a further attempt is launched is decided before its text is known, so each of
    them has the distribution ``mu*`` given those before it. A missing draw is picked from ``k`` candidates of the adaptive
    proposal in proportion to their weights and has their mean weight: ``E[w f(y)] = Phi mu*(f)``. Where weights are not read, and
    the candidates are one round of one proposal, it is the last state of a chain over them, which is closer to ``mu*``. Both
    stages share one tree per prompt, and nothing is evaluated twice. A draft serves both, see
    :class:`~outlines_phi.sampling.rejection.exact_sampler.ExactSampler`: values stand still during a round of candidates,
    whatever is expanded meanwhile.
    """

    phi: AutoPhi
    # Where trees live between calls; a seeded call uses fresh ones
    store: TreeStore = field(default_factory=TreeStore)
    draft: Prefetch | None = None  # The drafts, evaluated ahead of the walks; `None` for none

    @afresh
    def sample(self, request: Request) -> list[Draws]:
        """See :meth:`Sampler.sample`.

        Raises :class:`InterruptedDraws`: ctrl-C; carries the exact draws so far. Weighted ones are picked at the end, so there
        are none.
        Raises :class:`EmptyLanguageError`: truncation leaves no member of the language any probability.
        Raises :class:`BudgetError`: truncation leaves a field no text that was found.
        Raises :class:`DraftError`: the drafter raised, or proposed what is no draft.
        """
        with self.store.lend(*request.tree_key) as trees:
            call = TreeCall(request, trees, self.store.share(len(trees)), self.draft)
            plain = not request.weighted and request.constraint is None and self.phi.share > 0
            # Truncation may leave nothing to go on with behind a field that was drawn for its own sake.
            fieldwise = plain and not request.settings.truncation and request.table.guide.blocks
            results = self._by_fields(call) if fieldwise else self._by_candidates(call)
        if self.phi.share > 0:  # else weights are what was asked for
            _warn(request, results, fieldwise=fieldwise)
        return results

    def _by_candidates(self, call: TreeCall) -> list[Draws]:
        """Draw the texts missing after the attempts from weighted candidates."""
        rows = [self._stages(call, index) for index in range(len(call.trees))]
        follow(lambda: call.progress(*map(sum, zip(*(row.finished for row in rows), strict=True))))
        with call.handing_over(lambda: [self._draws(call, index, row, ()) for index, row in enumerate(rows)]):
            grow_trees(rows, call.evaluator, call.foresight)
        if not all(row.attempts.satisfied or row.trajectories for row in rows):
            refuse_impossible(call.trees, call.request.settings)
        return [self._draws(call, index, row, row.trajectories) for index, row in enumerate(rows)]

    def _by_fields(self, call: TreeCall) -> list[Draws]:
        """Draw the texts missing after short attempts field by field, over the nodes that these have evaluated."""
        n = call.request.n
        attempts = [
            call.attempts(RejectionAttempts, index, width=self.phi.width, effort=Effort(), together=WHOLE_TOGETHER)
            for index in range(len(call.trees))
        ]
        done = lambda: (sum(len(row.accepted) for row in attempts), sum(row.read for row in attempts))  # noqa: E731
        follow(lambda: call.progress(*done()))
        fields: WindowedDraws | None = None
        results = lambda: [self._joined(call, *row, fields) for row in enumerate(attempts)]  # noqa: E731
        with call.handing_over(results):
            grow_trees([ShortAttempts(row, n, self.phi.share) for row in attempts], call.evaluator, call.foresight)
            refuse_impossible(call.trees, call.request.settings)
            missing = [n - len(row.accepted) for row in attempts]
            if any(missing):
                evaluator, first = call.evaluator, Stream.CANDIDATE
                fields = WindowedDraws(FieldsPhi(), call.request, self.draft, evaluator, missing, first, done())
                try:
                    for _ in fields.steps():
                        pass
                except BudgetError as error:
                    error.draws = results()
                    raise
        return results()

    def _joined(self, call: TreeCall, index: int, attempts: Attempts, fields: WindowedDraws | None) -> Draws:
        """Return the exact draws of a prompt, and those drawn field by field."""
        bounds = call.trees[index].log_bounds
        rest = Draws(items=(), budget=call.trees[index].budget) if fields is None else fields.draws()[index]
        exact = [call.draw(node, log_w=middle(bounds), guarantee=Guarantee.EXACT) for node in attempts.accepted]
        items = (*exact, *rest)
        return call.draws(
            index,
            items,
            turns=attempts.turns,
            attempts=attempts.read + rest.counts.attempts,
            failures=rest.failures,
            rejections=rest.rejections,
            certificate=NO_DISTANCE if not rest.items and not rest.failures else None,
        )

    def _stages(self, call: TreeCall, index: int) -> TwoStages:
        attempts = call.attempts(RejectionAttempts, index, width=self.phi.width, effort=Effort())
        stream = partial(call.request.stream, index)
        return TwoStages(attempts, call.request, self.phi, stream, max_bytes=call.max_bytes)

    def _draws(self, call: TreeCall, index: int, row: TwoStages, trajectories: Sequence[Candidate]) -> Draws:
        attempts, tree, request = row.attempts, row.tree, call.request
        # Without candidates there are the draws that were accepted, and no others.
        missing = request.n - len(attempts.accepted) if trajectories else 0
        picked, turns = [], attempts.turns
        bounds = tree.log_bounds
        log_z = log_mean([trajectory.log_w for trajectory in trajectories]) if trajectories else middle(bounds)
        chain = row.one_round and not request.weighted
        kind = Guarantee.APPROXIMATE if chain else Guarantee.WEIGHTED
        for i in range(missing):  # strided, so that every draw has candidates of every round
            found = pick(trajectories[i::missing], request.stream(index, Stream.PICK + i), chain=chain)
            if found is not None:
                turns += found.turns
                worth = {"log_w": found.log_w, "candidates": found.of, "ess": found.ess}
                picked.append(call.draw(found.node, found.steps or (), guarantee=kind, **worth))
        exact = (call.draw(node, log_w=log_z, guarantee=Guarantee.EXACT) for node in attempts.accepted)
        items = (*exact, *picked)
        return call.draws(
            index,
            items,
            turns=turns,
            attempts=attempts.read + len(trajectories),
            failures=len(attempts.accepted) + missing - len(items),
            certificate=NO_DISTANCE if not missing else None,
        )


def _warn(request: Request, results: Sequence[Draws], *, fieldwise: bool) -> None:
    """Say once per call that not all of its draws are exact."""
    missed = [draw for draws in results for draw in draws if draw.guarantee != Guarantee.EXACT]
    failures = sum(draws.failures for draws in results)
    if not missed and not failures:
        return
    which = f"{len(missed) + failures} of {request.n * len(results)} draws are not exact: exact ones would have taken longer"
    blocks, picked = (
        sum(numbers) for numbers in zip(*((draw.blocks, draw.picked) for draw in missed), (0, 0), strict=True)
    )
    if fieldwise:
        by_weight = f", but for {picked} of {blocks}, which were picked by weight" if picked else ""
        warn_of(
            FidelityWarning,
            f"{which}. Each field is drawn from the model's own distribution of that field, given what stands before "
            f"it{by_weight}. For the conditioned distribution of the whole use phi='exact', or the weights of sample(); "
            "phi='fields' draws like this without a warning.",
        )
        return
    ess = sorted(draw.ess for draw in missed) or [0.0]
    warn_of(
        FidelityWarning,
        f"{which} (AutoPhi(share=...)). Each was picked from several candidates with regard to their weights, worth "
        f"{ess[len(ess) // 2]:.1f} of them (the median of their effective sample sizes). Use the weights of sample(), ask for more "
        "candidates (AutoPhi(candidates=...)) or a larger exact effort (phi='exact'), or move the prompt closer to the format.",
    )
