"""Exact sampling within an effort, sampling-importance-resampling beyond it (theory.md, section 5.10)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import final

import numpy as np

from ...errors import warn_of_fidelity
from ...lm.watch import follow
from ...numerics.streams import Stream
from ...numerics.weights import draw, effective_size, log_mean, scaled
from ...phi.estimators.auto import AutoPhi
from ...phi.estimators.exact import Effort
from ...phi.tree.store import TreeStore, afresh
from ...phi.tree.tree import Node, refuse_impossible
from ..draw import NO_DISTANCE, Guarantee
from ..draws import Draws, middle
from ..sampler import Request, Sampler
from ..speculative.prefetch import Prefetch
from .adaptive_proposal import Candidate
from .attempts import RejectionAttempts
from .tree_call import TreeCall, logs
from .two_stages import TwoStages


@final
@dataclass(frozen=True)
class AutoSampler(Sampler):
    """Draws ``mu*`` by adaptive rejection while the effort lasts; the draws that are then missing are weighted.

    The draws that were accepted are kept: whether a further attempt is launched is decided before its text is known, so each of
    them has the distribution ``mu*`` given those before it. A missing draw is picked from ``k`` candidates of the adaptive proposal
    in proportion to their weights and has their mean weight: ``E[w f(y)] = Phi mu*(f)``. Both stages share one tree per prompt, and
    nothing is evaluated twice. A draft serves both, see :class:`~outlines_phi.sampling.rejection.exact_sampler.ExactSampler`:
    values stand still during a round of candidates, whatever is expanded meanwhile.

    Attributes
    ----------
    phi
        The options.
    store
        Where trees live between calls; a seeded call uses fresh ones.
    draft
        The drafts, evaluated ahead of the walks; ``None`` for none.
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
            call = TreeCall.begin(request, trees, self.store.share(len(trees)), self.draft, self.phi.frontier)
            rows = [self._stages(call, index) for index in range(len(trees))]
            follow(lambda: call.progress(*map(sum, zip(*(row.finished for row in rows), strict=True))))
            with call.handing_over(lambda: [self._draws(call, index, row, ()) for index, row in enumerate(rows)]):
                call.grow(rows)
            if not all(row.attempts.satisfied or row.trajectories for row in rows):
                refuse_impossible(trees, request.settings)
            results = [self._draws(call, index, row, row.trajectories) for index, row in enumerate(rows)]
        if self.phi.share > 0:  # else weights are what was asked for
            _warn(request, results)
        return results

    def _stages(self, call: TreeCall, index: int) -> TwoStages:
        attempts = call.attempts(RejectionAttempts, index, width=self.phi.width, effort=Effort())
        stream = partial(_stream, call.request, index)
        return TwoStages(attempts, call.request.n, self.phi, stream, max_bytes=call.max_bytes)

    def _draws(self, call: TreeCall, index: int, row: TwoStages, trajectories: Sequence[Candidate]) -> Draws:
        attempts, tree, request = row.attempts, row.tree, call.request
        # Without candidates there are the draws that were accepted, and no others.
        missing = request.n - len(attempts.accepted) if trajectories else 0
        picked, turns = [], attempts.turns
        for i in range(missing):  # strided, so that every draw has candidates of every round
            pick = _pick(trajectories[i::missing], request.stream(index, Stream.PICK + i))
            if pick is not None:
                node, waited, attributes = pick
                turns += waited
                picked.append(call.draw(node, guarantee=Guarantee.WEIGHTED, **attributes))
        bounds = logs(tree.bounds)
        log_z = log_mean([trajectory.log_w for trajectory in trajectories]) if trajectories else middle(bounds)
        exact = (call.draw(node, log_w=log_z, guarantee=Guarantee.EXACT) for node in attempts.accepted)
        items = (*exact, *picked)
        return Draws(
            items=items,
            counts=call.counts(index, items, turns=turns, attempts=attempts.read + len(trajectories)),
            budget=tree.budget,
            failures=len(attempts.accepted) + missing - len(items),
            log_z_bounds=bounds,
            certificate=NO_DISTANCE if not missing else None,
        )


def _stream(request: Request, row: int, number: int) -> np.random.Generator:
    return request.stream(row, Stream.CANDIDATE + number)


def _pick(candidates: Sequence[Candidate], rng: np.random.Generator) -> tuple[Node, int, dict[str, float]] | None:
    """Pick one candidate by weight: where it ended, its turns, and what its draw says of it; ``None`` where all weigh nothing."""
    log_w = np.array([candidate.log_w for candidate in candidates])
    if log_w.max() == -math.inf:
        return None
    w = scaled(log_w)
    picked = candidates[draw(w, rng)]
    assert picked.node is not None
    attributes = {"log_w": log_mean(log_w), "candidates": len(candidates), "ess": effective_size(w)}
    return picked.node, picked.turns, attributes


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
