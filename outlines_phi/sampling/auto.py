"""Exact within an effort, weighted beyond it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import final

import numpy as np

from ..errors import warn_of_fidelity
from ..lm.watch import Progress, follow
from ..phi.auto import AutoPhi
from ..phi.evaluator import Evaluator
from ..phi.exact import Effort, ExactPhi
from ..phi.frontier import grow
from ..phi.possibility import refuse_impossible
from ..phi.stale import afresh
from ..phi.store import TreeStore
from ..phi.tree import BoundsTree, Node
from .adaptive import ROUND, AdaptiveTrajectories, Trajectory, draw
from .attempts import Attempts
from .certificate import EXACT
from .draws import Draw, DrawCounts, Draws, Guarantee
from .exact import foresight_of, handing_over, launch, logs, prepare, progress_of
from .prefetch import Prefetch, drafted_counts
from .rejection import RejectionAttempts
from .sampler import Request, Sampler

CANDIDATE_STREAM = 2**41
"""Candidates take their random streams from here on, out of the reach of attempts and residual attempts."""

PICK_STREAM = 2**42
"""The picks among candidates take theirs from here on."""


@final
@dataclass(frozen=True)
class AutoSampler(Sampler):
    """Draws ``mu*`` by adaptive rejection while the effort lasts; the draws that are then missing are weighted.

    The draws that were accepted are kept: whether a further attempt is launched is decided before its text is known, so each of
    them has the law ``mu*`` given those before it. A missing draw is picked from ``k`` candidates of the adaptive proposal in
    proportion to their weights and has their mean weight: ``E[w f(y)] = Phi mu*(f)``. Both stages share one tree per prompt, and
    nothing is evaluated twice. A draft serves both, see :class:`~outlines_phi.sampling.exact.ExactSampler`: values stand still
    during a round of trajectories, whatever is expanded meanwhile.

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
            rows = launch(RejectionAttempts, self._exact(request), request, trees, self.store)
            follow(lambda: progress_of(request, trees, rows, evaluator))

            def accepted() -> list[Draws]:
                return [self._draws(request, i, tree, rows[i], (), evaluator) for i, tree in enumerate(trees)]

            with handing_over(accepted, request.n):
                if self.phi.share > 0:
                    grow(rows, evaluator, foresight)
                refuse_impossible(trees, request.settings)
                candidates = [
                    AdaptiveTrajectories(
                        tree,
                        self._candidates(request.n - len(row.accepted)),
                        partial(_stream, request, index),
                        max_bytes=self.store.share(len(trees)),
                    )
                    for index, (tree, row) in enumerate(zip(trees, rows, strict=True))
                ]
                follow(lambda: _progress(progress_of(request, trees, rows, evaluator), candidates))
                grow(candidates, evaluator, foresight)
            results = [
                self._draws(request, index, tree, row, found.trajectories, evaluator)
                for index, (tree, row, found) in enumerate(zip(trees, rows, candidates, strict=True))
            ]
        if self.phi.share > 0:  # else weights are what was asked for
            _warn(request, results)
        return results

    def _candidates(self, missing: int) -> int:
        """Return how many candidates that many missing draws have together."""
        return missing * self.phi.candidates * (2 if missing == 1 else 1)

    def _exact(self, request: Request) -> ExactPhi:
        # Candidates share prefixes: half of the tokens of those after the first round are counted as another's.
        least, candidates = max(map(request.table.guide.min_tokens, request.starts)), self._candidates(request.n)
        cost = least * min(candidates, (candidates + ROUND * 2) / 2)
        return ExactPhi(effort=Effort(tokens=max(1, int(self.phi.share * cost / request.n))), width=self.phi.width)

    def _draws(
        self,
        request: Request,
        index: int,
        tree: BoundsTree,
        row: Attempts,
        trajectories: Sequence[Trajectory],
        evaluator: Evaluator,
    ) -> Draws:
        # Without candidates there are the draws that were accepted, and no others.
        vocabulary, missing = request.table.vocabulary, request.n - len(row.accepted) if trajectories else 0
        picked, turns = [], row.turns
        for i in range(missing):  # strided, so that every draw has candidates of every round
            pick = _pick(trajectories[i::missing], request.stream(index, PICK_STREAM + i))
            if pick is not None:
                node, waited, attributes = pick
                turns += waited
                picked.append(
                    Draw.of(vocabulary, node.tokens(), log_p=node.log_p, guarantee=Guarantee.WEIGHTED, **attributes)
                )
        log_w = [trajectory.log_w for trajectory in trajectories]
        log_z = _log_mean(log_w) if trajectories else float(np.logaddexp(*logs(tree.bounds))) - math.log(2)
        exact = [
            Draw.of(vocabulary, node.tokens(), log_p=node.log_p, log_w=log_z, guarantee=Guarantee.EXACT)
            for node in row.accepted
        ]
        items = (*exact, *picked)
        written = sum(len(item.token_ids) for item in items)
        ahead = {} if self.draft is None else drafted_counts(evaluator, tree, written, turns)
        return Draws(
            items=items,
            counts=DrawCounts(
                **vars(evaluator.counts), **ahead, attempts=row.read + len(trajectories), accepted=len(items)
            ),
            budget=tree.budget,
            failures=len(row.accepted) + missing - len(items),
            log_z_bounds=logs(tree.bounds),
            certificate=EXACT if not missing else None,
        )


def _progress(exact: Progress, candidates: Sequence[AdaptiveTrajectories]) -> Progress:
    """Return how far a call has come that had made the ``exact`` draws when it turned to ``candidates``."""
    finished, total = sum(each.finished for each in candidates), sum(each.total for each in candidates)
    missing = (exact.wanted - exact.draws) * finished // max(1, total)
    return replace(exact, draws=exact.draws + missing, attempts=exact.attempts + finished)


def _stream(request: Request, row: int, number: int) -> np.random.Generator:
    return request.stream(row, CANDIDATE_STREAM + number)


def _pick(candidates: Sequence[Trajectory], rng: np.random.Generator) -> tuple[Node, int, dict[str, float]] | None:
    """Pick one candidate by weight: where it ended, its turns, and what its draw says of it; ``None`` where all weigh nothing."""
    log_w = np.array([candidate.log_w for candidate in candidates])
    if log_w.max() == -math.inf:
        return None
    w = np.exp(log_w - log_w.max())
    picked = candidates[draw(w, rng)]
    assert picked.node is not None
    ess = float(w.sum() ** 2 / (w**2).sum())
    return picked.node, picked.turns, {"log_w": _log_mean(log_w.tolist()), "candidates": len(candidates), "ess": ess}


def _log_mean(log_w: Sequence[float]) -> float:
    return float(np.logaddexp.reduce(np.array(log_w))) - math.log(len(log_w))


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
