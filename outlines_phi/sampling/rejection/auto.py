"""Exact within an effort, weighted beyond it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import final

import numpy as np

from ...errors import warn_of_fidelity
from ...lm.watch import Progress, follow
from ...numerics.inverse_cdf import draw
from ...numerics.streams import Stream
from ...numerics.weights import log_mean
from ...phi.estimators.auto import AutoPhi
from ...phi.estimators.exact import ExactPhi
from ...phi.tree.evaluator import Evaluator
from ...phi.tree.frontier import grow
from ...phi.tree.possibility import refuse_impossible
from ...phi.tree.store import TreeStore, afresh
from ...phi.tree.tree import Node
from ..draw import NO_DISTANCE, Draw, Guarantee
from ..draws import DrawCounts, Draws
from ..sampler import Request, Sampler
from ..speculative.prefetch import Prefetch, drafted_counts
from .adaptive_proposal import Trajectory
from .attempts import RejectionAttempts
from .exact import foresight_of, handing_over, launch, logs, prepare
from .two_stages import TwoStages


@final
@dataclass(frozen=True)
class AutoSampler(Sampler):
    """Draws ``mu*`` by adaptive rejection while the effort lasts; the draws that are then missing are weighted.

    The draws that were accepted are kept: whether a further attempt is launched is decided before its text is known, so each of
    them has the law ``mu*`` given those before it. A missing draw is picked from ``k`` candidates of the adaptive proposal in
    proportion to their weights and has their mean weight: ``E[w f(y)] = Phi mu*(f)``. Both stages share one tree per prompt, and
    nothing is evaluated twice. A draft serves both, see :class:`~outlines_phi.sampling.rejection.exact.ExactSampler`: values stand
    still during a round of trajectories, whatever is expanded meanwhile.

    Attributes
    ----------
    phi
        The options.
    store
        Where trees live between calls; a seeded call uses fresh ones.
    draft
        What is evaluated ahead of the walks; ``None`` for nothing.
    """

    phi: AutoPhi
    store: TreeStore = field(default_factory=TreeStore)
    draft: Prefetch | None = None

    @afresh
    def sample(self, request: Request) -> list[Draws]:
        """See :meth:`Sampler.sample`.

        Raises
        ------
        InterruptedDraws
            Ctrl-C; carries the exact draws so far. Weighted ones are picked at the end, so there are none.
        EmptyLanguageError
            Truncation leaves no member of the language any probability.
        DraftError
            The drafter raised, or proposed what is no draft.
        """
        law = *request.law, request.prompts, request.budgets, request.constraint
        with self.store.lend(*law, self.phi.frontier, request.starts) as trees:
            evaluator = prepare(request, trees, self.phi.frontier)
            foresight = foresight_of(self.draft, request, trees)
            max_bytes = self.store.share(len(trees))
            rows = [
                TwoStages(attempts, request.n, self.phi, partial(_stream, request, index), max_bytes=max_bytes)
                for index, attempts in enumerate(
                    launch(RejectionAttempts, ExactPhi(width=self.phi.width), request, trees, self.store)
                )
            ]
            follow(lambda: _progress(request, rows, evaluator))

            def accepted() -> list[Draws]:
                return [self._draws(request, index, row, (), evaluator) for index, row in enumerate(rows)]

            with handing_over(accepted, request.n):
                grow(rows, evaluator, foresight)
            if not all(row.attempts.satisfied or row.trajectories for row in rows):
                refuse_impossible(trees, request.settings)
            results = [self._draws(request, index, row, row.trajectories, evaluator) for index, row in enumerate(rows)]
        if self.phi.share > 0:  # else weights are what was asked for
            _warn(request, results)
        return results

    def _draws(
        self,
        request: Request,
        index: int,
        row: TwoStages,
        trajectories: Sequence[Trajectory],
        evaluator: Evaluator,
    ) -> Draws:
        attempts, tree = row.attempts, row.tree
        # Without candidates there are the draws that were accepted, and no others.
        vocabulary, missing = request.table.vocabulary, request.n - len(attempts.accepted) if trajectories else 0
        picked, turns = [], attempts.turns
        for i in range(missing):  # strided, so that every draw has candidates of every round
            pick = _pick(trajectories[i::missing], request.stream(index, Stream.PICK + i))
            if pick is not None:
                node, waited, attributes = pick
                turns += waited
                picked.append(
                    Draw.of(vocabulary, node.tokens(), log_p=node.log_p, guarantee=Guarantee.WEIGHTED, **attributes)
                )
        log_w = [trajectory.log_w for trajectory in trajectories]
        log_z = log_mean(log_w) if trajectories else float(np.logaddexp(*logs(tree.bounds))) - math.log(2)
        exact = [
            Draw.of(vocabulary, node.tokens(), log_p=node.log_p, log_w=log_z, guarantee=Guarantee.EXACT)
            for node in attempts.accepted
        ]
        items = (*exact, *picked)
        written = sum(len(item.token_ids) for item in items)
        ahead = {} if self.draft is None else drafted_counts(evaluator, tree, written, turns)
        return Draws(
            items=items,
            counts=DrawCounts(
                **vars(evaluator.counts), **ahead, attempts=attempts.read + len(trajectories), accepted=len(items)
            ),
            budget=tree.budget,
            failures=len(attempts.accepted) + missing - len(items),
            log_z_bounds=logs(tree.bounds),
            certificate=NO_DISTANCE if not missing else None,
        )


def _progress(request: Request, rows: Sequence[TwoStages], evaluator: Evaluator) -> Progress:
    draws, attempts = map(sum, zip(*(row.finished for row in rows), strict=True))
    return Progress.of(
        evaluator.counts,
        draws=draws,
        wanted=request.n * len(rows),
        attempts=attempts,
        bounds=[row.tree.bounds for row in rows],
    )


def _stream(request: Request, row: int, number: int) -> np.random.Generator:
    return request.stream(row, Stream.CANDIDATE + number)


def _pick(candidates: Sequence[Trajectory], rng: np.random.Generator) -> tuple[Node, int, dict[str, float]] | None:
    """Pick one candidate by weight: where it ended, its turns, and what its draw says of it; ``None`` where all weigh nothing."""
    log_w = np.array([candidate.log_w for candidate in candidates])
    if log_w.max() == -math.inf:
        return None
    w = np.exp(log_w - log_w.max())
    picked = candidates[draw(w, rng)]
    assert picked.node is not None
    ess = float(w.sum() ** 2 / (w**2).sum())
    return picked.node, picked.turns, {"log_w": log_mean(log_w), "candidates": len(candidates), "ess": ess}


def _warn(request: Request, results: Sequence[Draws]) -> None:
    """Say once per call that not all of its draws are exact."""
    missed = [draw for draws in results for draw in draws if draw.guarantee == Guarantee.WEIGHTED]
    failures = sum(draws.failures for draws in results)
    if not missed and not failures:
        return
    ess = sorted(draw.ess for draw in missed) or [0.0]
    warn_of_fidelity(
        f"{len(missed) + failures} of {request.n * len(results)} draws are weighted, not exact: exact sampling ran out of its "
        f"effort. Each was picked by weight from several candidates, worth {ess[len(ess) // 2]:.1f} of them (the median of their "
        f"effective sample sizes). Use the weights of sample(), ask for more candidates "
        "(AutoPhi(candidates=...)) or a larger exact effort (phi='exact'), or move the prompt closer to the format.",
    )
