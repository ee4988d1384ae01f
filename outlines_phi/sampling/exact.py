"""The exact sampler: many prompts, many attempts, one model call per step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import final

from ..errors import BudgetError
from ..lm.model import ModelCounts
from ..phi.enumerate import FINITE_PREFIXES, enumerate_together, expand_finite
from ..phi.evaluator import Evaluator
from ..phi.exact import ExactPhi
from ..phi.frontier import grow
from ..phi.possibility import refuse_impossible
from ..phi.store import TreeStore
from ..phi.tree import BoundsTree
from .attempts import Attempts
from .certified import CertifiedAttempts
from .draws import Draw, DrawCounts, Draws, Guarantee, middle
from .rejection import RejectionAttempts
from .residual import ResidualAttempts
from .sampler import Request, Sampler

NORMALIZER_STREAM = 2**40
"""Residual attempts take their random streams from here on, out of the reach of ordinary attempts."""


@final
@dataclass(frozen=True)
class ExactSampler(Sampler):
    """Draws ``mu*`` by adaptive rejection, or within a certified distance of it.

    Attributes
    ----------
    phi
        The options.
    store
        Where trees live between calls; a seeded call uses fresh ones.
    """

    phi: ExactPhi
    store: TreeStore = field(default_factory=TreeStore)

    def sample(self, request: Request) -> list[Draws]:
        """See :meth:`Sampler.sample`.

        Raises
        ------
        BudgetError
            The effort ran out; carries what was drawn so far.
        EmptyLanguageError
            Truncation leaves no member of the language any probability.
        """
        with self.store.lend(*request.law, request.prompts, request.budgets, request.constraint) as trees:
            return self._draw(request, trees, prepare(request, trees))

    def _draw(self, request: Request, trees: Sequence[BoundsTree], evaluator: Evaluator) -> list[Draws]:
        certified = self.phi.tolerance > 0
        if certified:
            self._certify(trees, evaluator)
        bounds = [tree.bounds for tree in trees]
        kind = CertifiedAttempts if certified else RejectionAttempts
        rows = launch(kind, self.phi, request, trees, self.store)
        grow(rows, evaluator)
        if not certified:
            bounds = [tree.bounds for tree in trees]
        complete = all(row.satisfied for row in rows)
        normalizers = self._normalize(request, trees, evaluator) if complete else [()] * len(trees)
        guarantee = Guarantee.CERTIFIED if certified else Guarantee.EXACT
        results = [
            _draws(request, row, tree.budget, evaluator.counts, known, estimates, guarantee)
            for row, tree, known, estimates in zip(rows, trees, bounds, normalizers, strict=True)
        ]
        if not complete:
            self._refuse(request, rows, results)
        return results

    def _certify(self, trees: Sequence[BoundsTree], evaluator: Evaluator) -> None:
        tokens, share = self.phi.effort.tokens, self.store.share(len(trees))
        reached = enumerate_together(trees, evaluator, self.phi.tolerance, tokens, share)
        if all(reached):
            return
        row = reached.index(False)
        lower, upper = trees[row].bounds
        empty = [Draws(items=(), budget=tree.budget, log_z_bounds=logs(tree.bounds)) for tree in trees]
        raise BudgetError(
            f"Prompt {row}: enumeration left Phi between {lower:.3g} and {upper:.3g}, short of "
            f"tolerance={self.phi.tolerance}, when it had used its {tokens} model tokens or its memory. Raise the "
            "tolerance or the effort, or use tolerance=0 (rejection needs no certificate).",
            draws=empty,
            log_z_bounds=logs((lower, upper)),
        )

    def _normalize(
        self, request: Request, trees: Sequence[BoundsTree], evaluator: Evaluator
    ) -> Sequence[tuple[float, ...]]:
        streams = range(NORMALIZER_STREAM, NORMALIZER_STREAM + self.phi.normalizers)
        rows = [ResidualAttempts(tree, [request.stream(row, i) for i in streams]) for row, tree in enumerate(trees)]
        grow(rows, evaluator)
        return [row.estimates for row in rows]

    def _refuse(self, request: Request, rows: Sequence[Attempts], results: list[Draws]) -> None:
        refuse_impossible([row.tree for row in rows], request.settings)
        index = next(i for i, row in enumerate(rows) if not row.satisfied)
        bounds = results[index].log_z_bounds
        raise BudgetError(
            f"Prompt {index}: the effort ran out with {len(results[index])} of {request.n} exact draws "
            f"(log Phi between {bounds[0]:.4g} and {bounds[1]:.4g}). The error's .draws holds them: each is exact, and using the "
            f"set as if it were complete costs at most the probability that the effort runs out, in total variation. "
            f"Raise ExactPhi(effort=Effort(...)), move the prompt closer to the format, or draw with weights (phi='auto').",
            draws=results,
            log_z_bounds=bounds,
        )


def prepare(request: Request, trees: Sequence[BoundsTree]) -> Evaluator:
    """Return what expands the trees, short languages expanded whole."""
    evaluator = Evaluator(request.lm, request.settings, request.prompts, trees)
    expand_finite(trees, evaluator, FINITE_PREFIXES)
    return evaluator


def launch(
    kind: type[Attempts], phi: ExactPhi, request: Request, trees: Sequence[BoundsTree], store: TreeStore
) -> list[Attempts]:
    """Return the attempts of every prompt, ready to be grown."""
    share = store.share(len(trees))
    return [
        kind(tree, request.n, partial(request.stream, row), width=phi.width, effort=phi.effort, max_bytes=share)
        for row, tree in enumerate(trees)
    ]


def _draws(
    request: Request,
    row: Attempts,
    budget: int,
    counts: ModelCounts,
    bounds: tuple[float, float],
    estimates: tuple[float, ...],
    guarantee: Guarantee,
) -> Draws:
    log_w = _log(math.fsum(estimates) / len(estimates)) if any(estimates) else middle(logs(bounds))
    vocabulary = request.table.vocabulary
    items = [
        Draw.of(vocabulary, node.tokens(), log_p=node.log_p, log_w=log_w, guarantee=guarantee) for node in row.accepted
    ]
    return Draws(
        items=tuple(items),
        counts=DrawCounts(**vars(counts), attempts=row.read, accepted=len(items)),
        budget=budget,
        log_z_bounds=logs(bounds),
        normalizers=estimates,
    )


def logs(bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the logs of two bounds, in nats."""
    return _log(bounds[0]), _log(bounds[1])


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf
