"""Exact sampling by adaptive rejection (theory.md, section 5), or within a certified distance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import final

from ...errors import COST, BudgetError
from ...lm.watch import current, follow, limited
from ...numerics.weights import log_mean
from ...phi.tree.best_first import grow_trees
from ...phi.tree.preexpand import expand_usual
from ...phi.tree.store import TreeStore, afresh
from ...phi.tree.tree import BoundsTree, refuse_impossible
from ..drafted_stepper import Prefetch
from ..draw import NO_DISTANCE, Certificate, Guarantee
from ..draws import Draws, middle
from ..phi_options import ExactPhi
from ..sampler import Request, Sampler, Stream
from .attempts import Attempts, FrozenWalks, RejectionAttempts, ResidualAttempts
from .certify import Certification
from .tree_call import TreeCall

MOST = 512
"""Attempts in flight of all prompts together, at most, where many draws are wanted and most attempts succeed."""


@final
@dataclass(frozen=True)
class ExactSampler(Sampler):
    """Draws ``mu*`` by adaptive rejection, or within a certified distance of it.

    A draft has nodes expanded that no attempt has come to. The distribution stays what it is, because an attempt draws by
    random numbers of its own and throws a coin where bounds were refreshed on its way. The draws of a seed are others than
    without a draft: a tree that knows more throws other coins. A seed and a drafter name one result. What is enumerated, for a
    certificate or because the language is small, is the same with a draft.
    """

    phi: ExactPhi
    # Where trees live between calls; a seeded call uses fresh ones
    store: TreeStore = field(default_factory=TreeStore)
    draft: Prefetch | None = None  # The drafts, evaluated ahead of the attempts; `None` for none

    @afresh
    def sample(self, request: Request) -> list[Draws]:
        """See :meth:`Sampler.sample`.

        Raises :class:`BudgetError`: the effort ran out; carries what was drawn so far.
        Raises :class:`InterruptedDraws`: ctrl-C; carries what was drawn so far, too.
        Raises :class:`EmptyLanguageError`: truncation leaves no member of the language any probability.
        Raises :class:`DraftError`: the drafter raised, or proposed what is no draft.
        """
        with limited(self.phi.effort.seconds), self.store.lend(*request.tree_key, starts=request.starts) as trees:
            share = self.store.share(len(trees))
            if self.phi.tolerance > 0:
                call = TreeCall.begin(request, trees, share, self.draft, expand=expand_usual)
                return self._draw(call, self._certify(call))
            # Residual attempts tell what ends a text from what does not, and go by whole distributions.
            return self._draw(TreeCall.begin(request, trees, share, self.draft, ahead=not self.phi.normalizers))

    def _draw(self, call: TreeCall, certified: Sequence[Certification] = ()) -> list[Draws]:
        """Draw for every prompt; where certificates were asked for, those that have one, whatever becomes of the others."""
        # As they are now: draws may make the bounds better, but not the distribution that is frozen here.
        stated = [(row.certificate, row.log_bounds) for row in certified]
        kinds: dict[int, Callable[..., Attempts]] = dict.fromkeys(range(len(call.trees)), RejectionAttempts)
        if certified:
            kinds = {i: partial(FrozenWalks, upper=row.certain) for i, row in enumerate(certified) if row.reached}
        most = MOST // len(call.trees)
        rows = {
            index: call.attempts(kind, index, width=self.phi.width, effort=self.phi.effort, most=most)
            for index, kind in kinds.items()
        }
        results = self._finish(call, rows, stated)
        if len(rows) < len(call.trees):
            self._refuse_certificate(certified, results)
        if not all(row.satisfied for row in rows.values()):
            self._refuse(call.request, list(rows.values()), results)
        return results

    def _certify(self, call: TreeCall) -> list[Certification]:
        follow(lambda: call.progress(0, 0))
        phi, stream = self.phi, call.request.stream
        confidence = 1.0 if phi.confidence is None else phi.confidence
        rows = [
            Certification(tree, phi.tolerance, confidence, partial(stream, row), phi.effort, phi.width, call.max_bytes)
            for row, tree in enumerate(call.trees)
        ]
        grow_trees(rows, call.evaluator)
        return rows

    def _finish(
        self,
        call: TreeCall,
        rows: Mapping[int, Attempts],
        stated: Sequence[tuple[Certificate, tuple[float, float]]] = (),
    ) -> list[Draws]:
        """Take the attempts of some prompts to their ends; return the draws of all prompts, under the certificates ``stated``."""
        trees, attempts = call.trees, list(rows.values())
        known = stated
        estimates: Sequence[tuple[float, ...]] = [()] * len(trees)

        def results() -> list[Draws]:
            return [
                self._draws(call, index, rows[index], log_bounds, each, certificate)
                if index in rows
                else Draws(items=(), budget=trees[index].budget, log_z_bounds=log_bounds, certificate=certificate)
                for index, ((certificate, log_bounds), each) in enumerate(
                    zip(known or _exactly(trees), estimates, strict=True)
                )
            ]

        follow(lambda: call.progress(sum(len(row.accepted) for row in attempts), sum(row.read for row in attempts)))
        with call.handing_over(results):
            call.grow(attempts)
            known = stated or _exactly(trees)  # before anything else is expanded
            if len(rows) == len(trees) and all(row.satisfied for row in attempts):
                estimates = self._normalize(call)
        return results()

    def _normalize(self, call: TreeCall) -> Sequence[tuple[float, ...]]:
        streams = range(Stream.DIAGNOSTIC, Stream.DIAGNOSTIC + self.phi.normalizers)
        rows = [
            ResidualAttempts(tree, [call.request.stream(row, i) for i in streams], width=self.phi.width)
            for row, tree in enumerate(call.trees)
        ]
        call.grow(rows)
        return [row.log_estimates for row in rows]

    def _draws(
        self,
        call: TreeCall,
        index: int,
        row: Attempts,
        log_bounds: tuple[float, float],
        log_estimates: tuple[float, ...],
        certificate: Certificate,
    ) -> Draws:
        known = max(log_estimates, default=-math.inf) > -math.inf
        log_w = log_mean(log_estimates) if known else middle(log_bounds)
        items = tuple(call.draw(node, log_w=log_w, guarantee=self._guarantee(certificate)) for node in row.accepted)
        return Draws(
            items=items,
            counts=call.counts(index, items, turns=row.turns, attempts=row.read),
            budget=row.tree.budget,
            log_z_bounds=log_bounds,
            log_normalizers=log_estimates,
            certificate=certificate,
            beginnings=row.tree.beginnings,
        )

    def _guarantee(self, certificate: Certificate) -> Guarantee:
        if self.phi.tolerance == 0:
            return Guarantee.EXACT
        return Guarantee.CERTIFIED if certificate.confidence == 1 else Guarantee.CONFIDENT

    def _refuse(self, request: Request, rows: Sequence[Attempts], results: list[Draws]) -> None:
        refuse_impossible([row.tree for row in rows], request.settings)
        index = next(i for i, row in enumerate(rows) if not row.satisfied)
        bounds = results[index].log_z_bounds
        constraint = request.constraint and f", let {request.constraint} refuse earlier what comes to nothing"
        raise BudgetError.of(
            f"Draw with weights (phi='auto'), give a larger ExactPhi(effort=Effort(...)){constraint or ''}, or move the prompt "
            "closer to the format",
            f"Prompt {index}: {current().end_of('the effort ran out')} with {len(results[index])} of {request.n} {self._kind} "
            f"draws (log Phi between {bounds[0]:.4g} and {bounds[1]:.4g})",
            f"each of the error's .draws is {self._kind}, and {COST}" if any(results) else "",
            draws=results,
            log_z_bounds=bounds,
        )

    @property
    def _kind(self) -> str:
        return "certified" if self.phi.tolerance > 0 else "exact"

    def _refuse_certificate(self, found: Sequence[Certification], results: list[Draws]) -> None:
        index = next(i for i, row in enumerate(found) if not row.reached)
        low, high = found[index].tree.log_bounds
        reached, attempts = results[index].certificate, found[index].evidence.attempts
        by = f"what {attempts} residual attempts certify: {reached}" if attempts else f"what that certifies: {reached}"
        tested = "" if attempts else "confidence=0.95 for residual attempts on what is undecided, "
        raise BudgetError.of(
            f"Give a larger tolerance or effort, {tested}or tolerance=0 (rejection needs no certificate)",
            f"Prompt {index}: enumeration left log Phi between {low:.4g} and {high:.4g}, short of tolerance={self.phi.tolerance}, "
            f"when {current().end_of(f'its effort ({self.phi.effort.tokens} model tokens) or its memory was used')}",
            by,
            draws=results,
            log_z_bounds=(low, high),
        )


def _exactly(trees: Sequence[BoundsTree]) -> list[tuple[Certificate, tuple[float, float]]]:
    return [(NO_DISTANCE, tree.log_bounds) for tree in trees]
