"""The exact sampler: many prompts, many attempts, one model call per step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

from ..errors import BudgetError, EmptyLanguageError
from ..lm.model import ModelCounts
from ..phi.enumerate import Enumeration, live_prefixes
from ..phi.evaluator import Evaluator
from ..phi.exact import ExactPhi
from ..phi.store import TreeStore
from ..phi.tree import BoundsTree
from .attempts import Attempts
from .certified import CertifiedAttempts
from .draws import Draw, DrawCounts, Draws, Guarantee, middle
from .rejection import RejectionAttempts
from .residual import ResidualAttempts
from .sampler import Request, Sampler

FINITE_PREFIXES = 512
"""A language of at most this many live prefixes is expanded whole, in one model call, before the first attempt."""

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
        trees = self._trees(request)
        try:
            return self._draw(request, trees)
        except (BudgetError, EmptyLanguageError):
            raise
        except BaseException:
            # Interrupted between learning a law and updating the bounds above it, a tree would bias later calls.
            self.store.discard(trees)
            raise
        finally:
            self.store.trim()

    def _draw(self, request: Request, trees: Sequence[BoundsTree]) -> list[Draws]:
        evaluator = Evaluator(request.lm, request.settings, request.prompts, trees)
        self._expand_finite(trees, evaluator)
        certified = self.phi.tolerance > 0
        if certified:
            self._certify(trees, evaluator)
        bounds = [tree.bounds for tree in trees]
        kind = CertifiedAttempts if certified else RejectionAttempts
        options: dict[str, Any] = {"width": self.phi.width, "effort": self.phi.effort}
        rows = [kind(tree, request.n, partial(request.stream, row), **options) for row, tree in enumerate(trees)]
        while any(waiting := [row.advance() for row in rows]):
            for row in rows:
                row.evict(self.store.max_bytes // len(rows))
            evaluator.expand((tree, node) for tree, nodes in zip(trees, waiting, strict=True) for node in nodes)
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

    def _trees(self, request: Request) -> list[BoundsTree]:
        if request.settings.seed is not None:
            return [BoundsTree(request.table, budget) for budget in request.budgets]
        law = (request.lm, request.lm.version(), request.table, request.settings.law_key)
        seen: set[tuple[int, ...]] = set()
        trees = []
        for prompt, budget in zip(request.prompts, request.budgets, strict=True):
            # Two rows of one batch with the same prompt keep a tree each: rows are independent.
            fresh = prompt in seen
            seen.add(prompt)
            key = (law, prompt, budget)
            trees.append(BoundsTree(request.table, budget) if fresh else self.store.tree(key, request.table, budget))
        return trees

    def _expand_finite(self, trees: Sequence[BoundsTree], evaluator: Evaluator) -> None:
        cold = [(tree, live_prefixes(tree, FINITE_PREFIXES)) for tree in trees if not tree.root.expanded]
        evaluator.expand((tree, node) for tree, nodes in cold for node in nodes or ())

    def _certify(self, trees: Sequence[BoundsTree], evaluator: Evaluator) -> None:
        tokens, share = self.phi.effort.tokens, self.store.max_bytes // len(trees)
        reached = [Enumeration(tree, evaluator).run(self.phi.tolerance, tokens, share) for tree in trees]
        if all(reached):
            return
        row = reached.index(False)
        lower, upper = trees[row].bounds
        empty = [Draws(items=(), budget=tree.budget, log_z_bounds=_logs(tree.bounds)) for tree in trees]
        raise BudgetError(
            f"Prompt {row}: enumeration left Phi between {lower:.3g} and {upper:.3g}, short of "
            f"tolerance={self.phi.tolerance}, when it had used its {tokens} model tokens or its memory. Raise the "
            "tolerance or the effort, or use tolerance=0 (rejection needs no certificate).",
            draws=empty,
            log_z_bounds=_logs((lower, upper)),
        )

    def _normalize(
        self, request: Request, trees: Sequence[BoundsTree], evaluator: Evaluator
    ) -> Sequence[tuple[float, ...]]:
        streams = range(NORMALIZER_STREAM, NORMALIZER_STREAM + self.phi.normalizers)
        rows = [ResidualAttempts(tree, [request.stream(row, i) for i in streams]) for row, tree in enumerate(trees)]
        while any(waiting := [row.advance() for row in rows]):
            evaluator.expand((tree, node) for tree, nodes in zip(trees, waiting, strict=True) for node in nodes)
        return [row.estimates for row in rows]

    def _refuse(self, request: Request, rows: Sequence[Attempts], results: list[Draws]) -> None:
        index = next(i for i, row in enumerate(rows) if not row.satisfied)
        bounds = results[index].log_z_bounds
        if rows[index].impossible:
            cause = f" under {request.settings.truncation}" if request.settings.truncation else ""
            raise EmptyLanguageError(
                f"Prompt {index}: no member of the language has any probability{cause}; the tree of all live prefixes proves "
                f"Phi = 0. Loosen the truncation, or check that the model gives the format any probability at all."
            )
        raise BudgetError(
            f"Prompt {index}: the effort ran out with {len(results[index])} of {request.n} exact draws "
            f"(log Phi between {bounds[0]:.4g} and {bounds[1]:.4g}). The error's .draws holds them: each is exact, and using the "
            f"set as if it were complete costs at most the probability that the effort runs out, in total variation. "
            f"Raise ExactPhi(effort=Effort(...)), move the prompt closer to the format, or draw with weights (phi='local').",
            draws=results,
            log_z_bounds=bounds,
        )


def _draws(
    request: Request,
    row: Attempts,
    budget: int,
    counts: ModelCounts,
    bounds: tuple[float, float],
    estimates: tuple[float, ...],
    guarantee: Guarantee,
) -> Draws:
    log_w = _log(math.fsum(estimates) / len(estimates)) if any(estimates) else middle(_logs(bounds))
    items = []
    for node in row.accepted:
        ids = node.tokens()
        text = request.table.vocabulary.decode(ids).decode()
        items.append(Draw(text=text, token_ids=ids, log_p=node.log_p, log_w=log_w, guarantee=guarantee))
    return Draws(
        items=tuple(items),
        counts=DrawCounts(**vars(counts), attempts=row.read, accepted=len(items)),
        budget=budget,
        log_z_bounds=_logs(bounds),
        normalizers=estimates,
    )


def _logs(bounds: tuple[float, float]) -> tuple[float, float]:
    return _log(bounds[0]), _log(bounds[1])


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf
