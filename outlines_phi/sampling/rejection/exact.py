"""The exact sampler: many prompts, many attempts, one model call per step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import final

from ...errors import COST, BudgetError, InterruptedDraws
from ...lm.watch import Progress, current, follow, limited
from ...numerics.streams import Stream
from ...phi.estimator import ProposalPhi
from ...phi.estimators.exact import ExactPhi
from ...phi.tree.enumerate import FINITE_PREFIXES, expand_short, expand_towards
from ...phi.tree.evaluator import Evaluator, Foresight
from ...phi.tree.frontier import grow
from ...phi.tree.possibility import refuse_impossible
from ...phi.tree.store import TreeStore, afresh
from ...phi.tree.tree import BoundsTree
from ..draw import NO_DISTANCE, Certificate, Draw, Guarantee
from ..draws import DrawCounts, Draws, middle
from ..sampler import Request, Sampler
from ..speculative.prefetch import Prefetch, drafted_counts
from .attempts import Attempts, CertifiedAttempts, ConfidentAttempts, RejectionAttempts
from .certify import Certification, certify
from .residual import ResidualAttempts


@final
@dataclass(frozen=True)
class ExactSampler(Sampler):
    """Draws ``mu*`` by adaptive rejection, or within a certified distance of it.

    A draft has nodes expanded that no attempt has come to. The law stays what it is, because an attempt draws by random numbers of
    its own and throws a coin where bounds were refreshed on its way. The draws of a seed are others than without a draft: a tree
    that knows more throws other coins. A seed and a drafter name one result. What is enumerated, for a certificate or because the
    language is small, is the same with a draft.

    Attributes
    ----------
    phi
        The options.
    store
        Where trees live between calls; a seeded call uses fresh ones.
    draft
        What is evaluated ahead of the attempts; ``None`` for nothing.
    """

    phi: ExactPhi
    store: TreeStore = field(default_factory=TreeStore)
    draft: Prefetch | None = None

    @afresh
    def sample(self, request: Request) -> list[Draws]:
        """See :meth:`Sampler.sample`.

        Raises
        ------
        BudgetError
            The effort ran out; carries what was drawn so far.
        InterruptedDraws
            Ctrl-C; carries what was drawn so far, too.
        EmptyLanguageError
            Truncation leaves no member of the language any probability.
        DraftError
            The drafter raised, or proposed what is no draft.
        """
        law = *request.law, request.prompts, request.budgets, request.constraint
        with limited(self.phi.effort.seconds), self.store.lend(*law, starts=request.starts) as trees:
            foresight = foresight_of(self.draft, request, trees)
            if self.phi.tolerance > 0:
                expand = partial(expand_towards, tolerance=self.phi.tolerance)
                return self._draw_certified(request, trees, prepare(request, trees, expand=expand), foresight)
            return self._draw(request, trees, prepare(request, trees), foresight)

    def _draw(
        self, request: Request, trees: Sequence[BoundsTree], evaluator: Evaluator, foresight: Foresight | None
    ) -> list[Draws]:
        rows = launch(RejectionAttempts, self.phi, request, trees, self.store)
        results = self._finish(request, trees, dict(enumerate(rows)), evaluator, foresight)
        if not all(row.satisfied for row in rows):
            self._refuse(request, rows, results)
        return results

    def _draw_certified(
        self, request: Request, trees: Sequence[BoundsTree], evaluator: Evaluator, foresight: Foresight | None
    ) -> list[Draws]:
        """Draw under certificates; prompts that have one are drawn, whatever becomes of the others."""
        share = self.store.share(len(trees))
        follow(lambda: progress_of(request, trees, (), evaluator))
        found = certify(
            trees,
            evaluator,
            self.phi.tolerance,
            1.0 if self.phi.confidence is None else self.phi.confidence,
            request.stream,
            max_tokens=self.phi.effort.tokens,
            max_attempts=self.phi.effort.attempts,
            width=self.phi.width,
            max_bytes=share,
        )
        # As they are now: draws may make the bounds better, but not the law that was frozen here.
        stated = [(row.certificate, row.bounds) for row in found]
        rows = {
            index: start(_kind(certificate), self.phi, request, index, row.tree, share)
            for index, (row, (certificate, _)) in enumerate(zip(found, stated, strict=True))
            if row.reached
        }
        results = self._finish(request, trees, rows, evaluator, foresight, stated)
        if len(rows) < len(trees):
            self._refuse_certificate(found, results)
        if not all(row.satisfied for row in rows.values()):
            self._refuse(request, list(rows.values()), results)
        return results

    def _finish(
        self,
        request: Request,
        trees: Sequence[BoundsTree],
        rows: Mapping[int, Attempts],
        evaluator: Evaluator,
        foresight: Foresight | None,
        stated: Sequence[tuple[Certificate, tuple[float, float]]] = (),
    ) -> list[Draws]:
        """Take the attempts of some prompts to their ends; return the draws of all prompts, under the certificates ``stated``."""
        known = stated
        estimates: Sequence[tuple[float, ...]] = [()] * len(trees)

        def results() -> list[Draws]:
            return [
                self._draws(request, rows[index], evaluator, bounds, each, certificate)
                if index in rows
                else Draws(items=(), budget=trees[index].budget, log_z_bounds=logs(bounds), certificate=certificate)
                for index, ((certificate, bounds), each) in enumerate(
                    zip(known or _exactly(trees), estimates, strict=True)
                )
            ]

        attempts = list(rows.values())
        follow(lambda: progress_of(request, trees, attempts, evaluator))
        with handing_over(results, request.n):
            grow(attempts, evaluator, foresight)
            known = stated or _exactly(trees)  # before anything else is expanded
            if len(rows) == len(trees) and all(row.satisfied for row in attempts):
                estimates = self._normalize(request, trees, evaluator, foresight)
        return results()

    def _normalize(
        self, request: Request, trees: Sequence[BoundsTree], evaluator: Evaluator, foresight: Foresight | None
    ) -> Sequence[tuple[float, ...]]:
        streams = range(Stream.NORMALIZER, Stream.NORMALIZER + self.phi.normalizers)
        rows = [
            ResidualAttempts(tree, [request.stream(row, i) for i in streams], width=self.phi.width)
            for row, tree in enumerate(trees)
        ]
        grow(rows, evaluator, foresight)
        return [row.estimates for row in rows]

    def _draws(
        self,
        request: Request,
        row: Attempts,
        evaluator: Evaluator,
        bounds: tuple[float, float],
        estimates: tuple[float, ...],
        certificate: Certificate,
    ) -> Draws:
        log_w = _log(math.fsum(estimates) / len(estimates)) if any(estimates) else middle(logs(bounds))
        vocabulary, guarantee = request.table.vocabulary, self._guarantee(certificate)
        items = [
            Draw.of(vocabulary, node.tokens(), log_p=node.log_p, log_w=log_w, guarantee=guarantee)
            for node in row.accepted
        ]
        written = sum(len(item.token_ids) for item in items)
        ahead = {} if self.draft is None else drafted_counts(evaluator, row.tree, written, row.turns)
        return Draws(
            items=tuple(items),
            counts=DrawCounts(**vars(evaluator.counts), **ahead, attempts=row.read, accepted=len(items)),
            budget=row.tree.budget,
            log_z_bounds=logs(bounds),
            normalizers=estimates,
            certificate=certificate,
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
        lower, upper = found[index].tree.bounds
        reached, attempts = results[index].certificate, found[index].evidence.attempts
        by = f"what {attempts} residual attempts certify: {reached}" if attempts else f"what that certifies: {reached}"
        tested = "" if attempts else "confidence=0.95 for residual attempts on what is undecided, "
        raise BudgetError.of(
            f"Give a larger tolerance or effort, {tested}or tolerance=0 (rejection needs no certificate)",
            f"Prompt {index}: enumeration left Phi between {lower:.3g} and {upper:.3g}, short of tolerance={self.phi.tolerance}, "
            f"when {current().end_of(f'its effort ({self.phi.effort.tokens} model tokens) or its memory was used')}",
            by,
            draws=results,
            log_z_bounds=logs((lower, upper)),
        )


def progress_of(
    request: Request, trees: Sequence[BoundsTree], rows: Sequence[Attempts], evaluator: Evaluator
) -> Progress:
    """Return how far the attempts ``rows`` have come."""
    return Progress.of(
        evaluator.counts,
        draws=sum(len(row.accepted) for row in rows),
        wanted=request.n * len(trees),
        attempts=sum(row.read for row in rows),
        bounds=[tree.bounds for tree in trees],
    )


@contextmanager
def handing_over(draws: Callable[[], Sequence[Draws]], n: int) -> Iterator[None]:
    """Let Ctrl-C carry the exact ``draws()`` that there are by then, of ``n`` for each prompt, if there are any."""
    try:
        yield
    except KeyboardInterrupt as error:
        if any(made := draws()):
            raise InterruptedDraws.of(made, n).with_traceback(error.__traceback__) from None
        raise


def prepare(
    request: Request,
    trees: Sequence[BoundsTree],
    frontier: ProposalPhi | None = None,
    expand: Callable[[Sequence[BoundsTree], Evaluator, int], None] = expand_short,
) -> Evaluator:
    """Return what expands the trees, those of short languages expanded by ``expand``; it asks ``frontier`` about what it meets."""
    stream = partial(request.stream, attempt=Stream.ESTIMATE)
    evaluator = Evaluator(request.lm, request.settings, request.prompts, trees, frontier=frontier, stream=stream)
    expand(trees, evaluator, FINITE_PREFIXES)
    return evaluator


def foresight_of(draft: Prefetch | None, request: Request, trees: Sequence[BoundsTree]) -> Foresight | None:
    """Return what ``draft`` foresees of the walks on ``trees``."""
    return None if draft is None else draft.begin(request, trees).below


def launch(
    kind: type[Attempts], phi: ExactPhi, request: Request, trees: Sequence[BoundsTree], store: TreeStore
) -> list[Attempts]:
    """Return the attempts of every prompt, ready to be grown."""
    share = store.share(len(trees))
    return [start(kind, phi, request, row, tree, share) for row, tree in enumerate(trees)]


def start(
    kind: type[Attempts], phi: ExactPhi, request: Request, row: int, tree: BoundsTree, max_bytes: int
) -> Attempts:
    """Return the attempts of the prompt ``row``, ready to be grown."""
    stream = partial(request.stream, row)
    return kind(tree, request.n, stream, width=phi.width, effort=phi.effort, max_bytes=max_bytes)


def _kind(certificate: Certificate) -> type[Attempts]:
    return CertifiedAttempts if certificate.confidence == 1 else ConfidentAttempts


def _exactly(trees: Sequence[BoundsTree]) -> list[tuple[Certificate, tuple[float, float]]]:
    return [(NO_DISTANCE, tree.bounds) for tree in trees]


def logs(bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the logs of two bounds, in nats."""
    return _log(bounds[0]), _log(bounds[1])


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf
