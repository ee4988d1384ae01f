"""Exact sampling by adaptive rejection (theory.md, section 5), or within a certified distance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any, final

import numpy as np

from ...errors import COST, BudgetError, InterruptedDraws
from ...lm.model import Progress, current, follow, limited
from ...numerics.weights import Evidence, Wave, log_difference, log_mean, ratio
from ...phi.tree.best_first import SHORTEST, USUAL, BestFirst, expand_usual, grow_trees, is_decided, likeliest_beside
from ...phi.tree.evaluator import Evaluator, Pair, TreeStore, afresh
from ...phi.tree.tree import BoundsTree, Node, refuse_impossible
from ..draws import NO_DISTANCE, Certificate, Draw, DrawCounts, Draws, Guarantee, middle
from ..phi_options import Effort, ExactPhi
from ..sampler import Prefetch, Prefetching, Request, Sampler, Stream
from ..stepper import path_accounts
from .attempts import Attempts, FrozenWalks, RejectionAttempts, ResidualAttempts


@final
class TreeCall:
    """A request with the trees of its prompts, those of short languages expanded: as for walks, or, of any length, ``enumerated``.

    ``trees``, ``max_bytes``: The tree of each prompt, in their order, and the memory that each may take.
    ``ahead``: Whether tokens may be drawn ahead in place of whole distributions: for attempts by rejection, which go down and look
        at nothing.
    ``evaluator``: Expands the nodes of all trees.
    """

    def __init__(
        self,
        request: Request,
        trees: Sequence[BoundsTree],
        max_bytes: int,
        draft: Prefetch | None = None,
        *,
        enumerated: bool = False,
        ahead: bool = False,
    ) -> None:
        self.request, self.trees, self.max_bytes = request, trees, max_bytes
        self.evaluator = Evaluator(
            request.lm,
            request.settings,
            request.prompts,
            trees,
            ahead=partial(request.stream, number=Stream.AHEAD) if ahead else None,
            top=request.top or 0,
        )
        self._drafts = None if draft is None else Prefetching(draft, request, trees)
        expand_usual(trees, self.evaluator, *(() if enumerated else (USUAL, SHORTEST)))
        self._beside = None if enumerated else likeliest_beside

    def attempts(
        self, kind: Callable[..., Attempts], row: int, *, width: int, effort: Effort, **options: int
    ) -> Attempts:
        """Return the attempts of the prompt ``row``, ready to be grown."""
        stream = partial(self.request.stream, row)
        limits = {"width": width, "effort": effort, "max_bytes": self.max_bytes}
        return kind(self.trees[row], self.request.n, stream, **limits, **options)

    def foresight(self, wanted: Sequence[Pair]) -> list[Pair]:
        """Return the nodes that walks will probably come to: drafts, and likely prefixes of short languages."""
        drafts = [] if self._drafts is None else self._drafts.below(wanted)
        return [*(() if self._beside is None else self._beside(wanted)), *drafts]

    def progress(self, draws: int, attempts: int) -> Progress:
        """Return the progress of the call."""
        return Progress.of(
            self.evaluator.counts,
            draws=draws,
            wanted=self.request.n * len(self.trees),
            attempts=attempts,
            log_bounds=[tree.log_bounds for tree in self.trees],
        )

    def draw(self, node: Node, log_q: Iterable[float | None] = repeat(None), **attributes: object) -> Draw:
        """Return the draw that ``node`` stands for, a finished text; its tokens were proposed by ``log_q``, where they were."""
        path, top, table = node.path(), self.request.top, self.request.table
        accounts = () if top is None else path_accounts(table, path, top, _kept, log_q)
        return Draw.of(
            table.guide, [each.token for each in path], log_p=node.log_p, tokens=tuple(accounts), **attributes
        )

    def draws(self, row: int, items: Sequence[Draw], *, turns: int, attempts: int, **attributes: Any) -> Draws:
        """Return the draws of a prompt with their cost; their walks have waited ``turns`` times for the model."""
        tree, drafted = self.trees[row], {}
        if self._drafts is not None:
            ahead, followed = self._drafts.drafted(row)
            written = sum(len(item.token_ids) for item in items)
            drafted = {"drafted": ahead, "followed": followed, "written": written, "turns": turns}
        return Draws(
            items=tuple(items),
            counts=DrawCounts(**vars(self.evaluator.counts), **drafted, attempts=attempts, accepted=len(items)),
            budget=tree.budget,
            beginnings=tree.beginnings,
            **{"log_z_bounds": tree.log_bounds, **attributes},
        )

    @contextmanager
    def handing_over(self, draws: Callable[[], Sequence[Draws]]) -> Iterator[None]:
        """Let Ctrl-C carry the exact ``draws()`` that there are by then, if there are any."""
        try:
            yield
        except KeyboardInterrupt as error:
            if any(made := draws()):
                raise InterruptedDraws.of(made, self.request.n).with_traceback(error.__traceback__) from None
            raise


def _kept(node: Node, top: int) -> dict[int, float] | None:
    """Return ``log p`` of the likeliest tokens after a node, as they were read with its distribution."""
    return None if node.free is None else node.free.top


FIRST = 64  # Model tokens of the first of several turns of enumeration


@final
@dataclass(eq=False)
class Certification:
    """Grows one tree until its bounds certify a total variation to ``mu*``: until ``U - Lo <= tolerance * Lo``.

    At a confidence below 1 enumeration and residual attempts take turns, each until it has cost as much as all turns before it.
    """

    tree: BoundsTree
    tolerance: float
    confidence: float
    stream: Callable[[int], np.random.Generator]  # That of each attempt; their numbers begin at `Stream.CONFIDENCE`
    effort: Effort  # Tokens and attempts at most; what has begun is finished. The time is that of the watched call
    width: int  # Attempts in flight
    max_bytes: int = 2**40  # Memory that the tree may take, give or take one call
    evidence: Evidence = field(default_factory=Evidence)

    def __post_init__(self) -> None:
        self._last, self._watch = self.tree.expansions + self.effort.tokens, current()
        self._turns = self._take_turns()

    @property
    def certain(self) -> bool:
        """True if the bounds alone certify the tolerance."""
        return is_decided(self.tree, self.tolerance)

    @property
    def reached(self) -> bool:
        """True if the tolerance is certified, for certain or at the confidence."""
        log_goal = self.tree.root.log_lower - math.log1p(-self.tolerance)
        return self.certain or self.evidence.rules_out(log_goal, 1 - self.confidence)

    @property
    def certificate(self) -> Certificate:
        """The certificate by now, reached or not."""
        total_variation = ratio(log_difference(self._log_upper, self.tree.root.log_lower), self._log_upper)
        certain = self.certain or not self.evidence.attempts
        return Certificate(total_variation=total_variation, confidence=1.0 if certain else self.confidence)

    @property
    def log_bounds(self) -> tuple[float, float]:
        """Bounds of log Phi: those of the certificate where it holds at a confidence, else the tree's, which are certain."""
        certain = self.certain or not self.reached
        return self.tree.log_bounds if certain else (self.tree.root.log_lower, self._log_upper)

    @property
    def _log_upper(self) -> float:
        root, alpha = self.tree.root, 0.0 if self.certain else 1 - self.confidence
        return max(root.log_lower, min(root.log_upper, self.evidence.log_limit(alpha)))

    @property
    def _goes_on(self) -> bool:
        return not self.reached and self.tree.expansions < self._last and not self._watch.over

    def advance(self) -> list[Node]:
        """Return the nodes to expand next; none when the tolerance is certified or the effort is spent."""
        return next(self._turns, [])

    def _take_turns(self) -> Iterator[list[Node]]:
        tree, evidence, first, before, spent = self.tree, self.evidence, self.tree.expansions, -1, 0
        attempts, part = (self.effort.attempts, 2 / 3) if self.confidence < 1 else (0, 1.0)
        share = FIRST if attempts else self.effort.tokens
        while self._goes_on and tree.expansions + evidence.attempts > before:
            before = tree.expansions + evidence.attempts
            # A third of what is left is for attempts: enumeration that ends undecided certifies less than they do.
            enumerated = min(share, math.ceil(part * (self._last - tree.expansions)))
            search = BestFirst(tree, self.tolerance, enumerated, self.max_bytes)
            while not self.reached and (nodes := search.advance()):
                yield nodes
            share = max(share, 2 * (tree.expansions - first))
            while self._goes_on and tree.expansions < first + share and evidence.attempts < attempts:
                root, number, begun = tree.root, evidence.attempts, tree.expansions
                # As many as there were, so that their number doubles; no more than the tokens are for at the cost of those before.
                cost = max(1.0, spent / number if number else tree.fewest_tokens(root))
                affordable = math.ceil((min(first + share, self._last) - begun) / cost)
                last = min(number + min(max(self.width, number), affordable), attempts)
                log_lower, log_gap = root.log_lower, root.log_gap
                streams = [self.stream(Stream.CONFIDENCE + i) for i in range(number, last)]
                walks = ResidualAttempts(tree, streams, width=self.width)
                while nodes := walks.advance():
                    tree.drop_distributions(self.max_bytes)
                    yield nodes
                spent += tree.expansions - begun
                evidence.waves.append(Wave(log_lower, log_gap, len(streams), walks.successes))


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
        phi, enumerated = self.phi, self.phi.tolerance > 0
        with limited(phi.effort.seconds), self.store.lend(*request.tree_key) as trees:
            # Searches and residual attempts tell what ends a text from what does not, and go by whole distributions.
            ahead = not (phi.normalizers or enumerated)
            share = self.store.share(len(trees))
            call = TreeCall(request, trees, share, self.draft, enumerated=enumerated, ahead=ahead)
            return self._draw(call, self._certify(call) if enumerated else ())

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

    def _draw(self, call: TreeCall, certified: Sequence[Certification]) -> list[Draws]:
        """Draw for every prompt; where certificates were asked for, those that have one, whatever becomes of the others."""
        phi, trees = self.phi, call.trees
        kinds: dict[int, Callable[..., Attempts]] = dict.fromkeys(range(len(trees)), RejectionAttempts)
        if certified:
            kinds = {i: partial(FrozenWalks, upper=row.certain) for i, row in enumerate(certified) if row.reached}
        limits = {"width": phi.width, "most": MOST // len(trees)}
        rows = {index: call.attempts(kind, index, effort=phi.effort, **limits) for index, kind in kinds.items()}
        # Certificates as they are now: draws may make the bounds better, but not the distribution that is frozen here.
        stated = [(row.certificate, row.log_bounds) for row in certified]
        estimates: Sequence[tuple[float, ...]] = [()] * len(trees)

        def results() -> list[Draws]:
            known = stated or [(NO_DISTANCE, tree.log_bounds) for tree in trees]
            return [
                self._draws(call, index, rows.get(index), *each)
                for index, each in enumerate(zip(known, estimates, strict=True))
            ]

        attempts = list(rows.values())
        follow(lambda: call.progress(sum(len(row.accepted) for row in attempts), sum(row.read for row in attempts)))
        with call.handing_over(results):
            grow_trees(attempts, call.evaluator, call.foresight)
            satisfied = all(row.satisfied for row in attempts)
            stated = stated or [(NO_DISTANCE, tree.log_bounds) for tree in trees]  # before anything else is expanded
            if phi.normalizers and satisfied and len(rows) == len(trees):
                estimates = self._normalize(call)
        if len(rows) < len(trees):
            self._refuse_certificate(certified, results())
        if not satisfied:
            self._refuse(call.request, attempts, results())
        return results()

    def _normalize(self, call: TreeCall) -> Sequence[tuple[float, ...]]:
        streams = range(Stream.DIAGNOSTIC, Stream.DIAGNOSTIC + self.phi.normalizers)
        rows = [
            ResidualAttempts(tree, [call.request.stream(row, i) for i in streams], width=self.phi.width)
            for row, tree in enumerate(call.trees)
        ]
        grow_trees(rows, call.evaluator, call.foresight)
        return [row.log_estimates for row in rows]

    def _draws(
        self,
        call: TreeCall,
        index: int,
        row: Attempts | None,
        known: tuple[Certificate, tuple[float, float]],
        log_estimates: tuple[float, ...],
    ) -> Draws:
        """Return the draws of a prompt; none where its ``row`` of attempts was not begun."""
        certificate, log_bounds = known
        if row is None:
            return Draws(items=(), budget=call.trees[index].budget, log_z_bounds=log_bounds, certificate=certificate)
        estimated = max(log_estimates, default=-math.inf) > -math.inf
        log_w = log_mean(log_estimates) if estimated else middle(log_bounds)
        guarantee = Guarantee.CERTIFIED if certificate.confidence == 1 else Guarantee.CONFIDENT
        if self.phi.tolerance == 0:
            guarantee = Guarantee.EXACT
        items = tuple(call.draw(node, log_w=log_w, guarantee=guarantee) for node in row.accepted)
        return call.draws(
            index,
            items,
            turns=row.turns,
            attempts=row.read,
            log_z_bounds=log_bounds,
            log_normalizers=log_estimates,
            certificate=certificate,
        )

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
