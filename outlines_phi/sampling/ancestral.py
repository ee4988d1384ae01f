"""Ancestral sampling from a proposal, with importance weights (theory.md, sections 1.4, 4.1 and 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar, final

from ..phi.branches import Branch
from ..phi.estimator import ProposalPhi
from .draws import Draw, DrawCounts, Draws, Guarantee
from .prefetch import Prefetch
from .sampler import Request, Sampler
from .stepper import Observer, Stepper, Trajectory

Unit = TypeVar("Unit")

TOGETHER = 512
"""Prefixes that grow at a time: a tree's attention costs as the square of its nodes."""


@final
@dataclass(frozen=True)
class AncestralSampler(Sampler):
    """Draws ``v ~ q_h(v|y) = p(v|y) h(yv) / S(y)`` step by step; ``log_w = sum_t [log S(y_t) - log h(y_{t+1})]``.

    ``E[w] = Phi(prompt)`` for any ``h`` that is positive where ``Phi`` is, trajectories without an allowed token counting
    with weight 0. It may depend on all that was seen before its step: an estimator that learns sets the rounds. Equal prefixes of
    a round are evaluated once.

    With a draft, one model call writes several tokens. The distribution of the draws and their weights are those without a draft,
    whatever is drafted. Where drafts are deterministic the draws themselves are, seed for seed.
    """

    phi: ProposalPhi
    observer: Observer | None = None  # An object that is told of every step; `None` for none
    draft: Prefetch | None = None  # The drafts of the walks; `None` for none

    def sample(self, request: Request) -> list[Draws]:
        """See :meth:`Sampler.sample`.

        Raises :class:`UnsupportedError`: a draft beside a constraint, or beside an observer.
        Raises :class:`DraftError`: the drafter raised, or proposed something that is no draft.
        """
        stepper = self._stepper(request)
        walks: list[Trajectory] = []
        stepper.follow(lambda: walks, request.n * len(request.prompts))
        for size in self.phi.rounds(request.n):
            walks += (together := stepper.launch(size))
            for _ in grow_walks(stepper, together):
                pass
        return [
            _draws_of(request, stepper, [walk for walk in walks if walk.row == row], request.budgets[row])
            for row in range(len(request.prompts))
        ]

    def steps(self, request: Request) -> Iterator[Sequence[Trajectory]]:
        """Draw as :meth:`sample` does, and yield the trajectories that grew after every model call, by one token or several.

        A token is final when it is drawn: a trajectory only ever grows.
        """
        stepper = self._stepper(request)
        return chain.from_iterable(grow_walks(stepper, stepper.launch(size)) for size in self.phi.rounds(request.n))

    def _stepper(self, request: Request) -> Stepper:
        draft = self.draft if self.draft is not None and (self.draft.asked or request.constraint is None) else None
        return Stepper(request, self.phi, self.observer, draft, weighted=request.weighted)


def grow(
    stepper: Stepper,
    units: Sequence[Unit],
    moving: Callable[[Unit], Iterable[Trajectory]],
    settled: Callable[[Sequence[Unit]], Sequence[Unit]],
) -> Iterator[Sequence[Unit]]:
    """Take units of walks to their ends, few prefixes at a time, and yield those that have grown after every model call.

    Those that began last go first. ``moving`` returns the walks of a unit that go on, ``settled`` the units after a step. All begin
    together; then a unit is never split.
    """
    groups: list[list[Unit]] = [list(units)]
    while groups:
        group = groups.pop()
        stepper.advance([walk for unit in group for walk in moving(unit)])
        below = _groups(settled(group), moving, min(TOGETHER, stepper.room))
        yield group
        groups += below
        lengths = {walk.at: len(walk.tokens) for waiting in groups for unit in waiting for walk in moving(unit)}
        needed = {prefix.held: length for prefix, length in lengths.items()}
        if below:
            stepper.branches.tidy(needed, sum(needed.values()))
        elif groups:
            stepper.branches.compact(needed)


def _groups(units: Sequence[Unit], moving: Callable[[Unit], Iterable[Trajectory]], together: int) -> list[list[Unit]]:
    """Return the units that go on, in groups of few prefixes."""
    groups: list[list[Unit]] = []
    prefixes: set[Branch] = set()
    for unit in units:
        own = {walk.at for walk in moving(unit)}
        if own and (not groups or len(prefixes) + len(own - prefixes) > together):
            groups.append([])
            prefixes = set()
        if own:
            groups[-1].append(unit)
            prefixes |= own
    return groups


def grow_walks(stepper: Stepper, walks: Sequence[Trajectory]) -> Iterator[Sequence[Trajectory]]:
    """Take ``walks``, at the start, to their ends; yield those that have grown after every model call.

    No prefix is in two groups, so none is evaluated twice.
    """
    for group in grow(stepper, _sharing([walks]), iter, _sharing):
        yield list(chain.from_iterable(group))


def _sharing(groups: Sequence[Sequence[Trajectory]]) -> list[list[Trajectory]]:
    """Return the unfinished walks of some groups, those on one prefix together."""
    prefixes: dict[Branch, list[Trajectory]] = {}
    for walk in chain.from_iterable(groups):
        if not walk.finished:
            prefixes.setdefault(walk.at, []).append(walk)
    return list(prefixes.values())


def _draws_of(request: Request, stepper: Stepper, walks: Sequence[Trajectory], budget: int) -> Draws:
    """Return the draws that finished ``walks`` of one prompt are."""
    items = tuple(
        Draw.of(
            request.table.guide,
            walk.tokens,
            log_p=walk.log_p,
            log_w=walk.log_w,
            guarantee=Guarantee.WEIGHTED,
        )
        for walk in walks
        if not walk.failed
    )
    drafted = stepper.draft_counts(walks)
    counts = DrawCounts(**vars(stepper.branches.trees.counts), **drafted, attempts=len(walks), accepted=len(items))
    return Draws(items=items, counts=counts, budget=budget, failures=len(walks) - len(items))
