"""Ancestral sampling from a proposal, with importance weights (theory.md, sections 1.4, 4.1 and 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar, final

from ..errors import UnsupportedError
from ..phi.branches import Branches
from ..phi.estimator import ProposalPhi
from .drafted_stepper import DraftedStepper, Prefetch
from .draw import Draw, Guarantee
from .draws import DrawCounts, Draws
from .sampler import Request, Sampler
from .stepper import Observer, Stepper, Trajectory

Group = TypeVar("Group")

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
            for _ in grow(stepper, together):
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
        return chain.from_iterable(grow(stepper, stepper.launch(size)) for size in self.phi.rounds(request.n))

    def _stepper(self, request: Request) -> Stepper | DraftedStepper:
        if self.draft is None or not (self.draft.asked or request.constraint is None):
            return Stepper(request, self.phi, self.observer, weighted=request.weighted)
        if self.observer is not None:
            raise UnsupportedError(
                "Leave out the draft or the observer: a step that follows a draft is not one token long."
            )
        if request.constraint is not None:
            raise UnsupportedError(
                f"{request.constraint} was given beside a draft; a constraint is asked about few tokens of a step, so the "
                "distribution that a draft would be held against is not known. Leave out one of them; a type or a regex "
                "in place of the constraint goes with drafts."
            )
        return DraftedStepper(request, self.phi, self.draft)


def grow(stepper: Stepper | DraftedStepper, walks: Sequence[Trajectory]) -> Iterator[Sequence[Trajectory]]:
    """Take ``walks``, at the start, to their ends, a limited number of prefixes at a time.

    Yields them all, then those that have grown after every model call.
    """
    together = min(TOGETHER, stepper.room) if isinstance(stepper, DraftedStepper) else TOGETHER

    def advance(group: Sequence[Trajectory]) -> list[list[Trajectory]]:
        stepper.advance(group)
        return _groups(group, together)

    stepper.first(walks)
    yield walks
    yield from depth_first(stepper.branches, _groups(walks, together), advance, lambda group: group)


def depth_first(
    branches: Branches,
    groups: list[Group],
    advance: Callable[[Group], list[Group]],
    walks_of: Callable[[Group], Iterable[Trajectory]],
) -> Iterator[Group]:
    """Take groups of walks to their ends, those that began last first, and yield each group after its model call.

    ``advance`` returns the groups that one becomes; ``walks_of`` those whose prefixes it needs.
    """
    while groups:
        group = groups.pop()
        below = advance(group)
        yield group
        groups += below
        needed = {walk.node: len(walk.tokens) for waiting in groups for walk in walks_of(waiting)}
        if below:
            branches.tidy(needed)
        elif groups:
            branches.compact(needed)


def _groups(walks: Sequence[Trajectory], together: int) -> list[list[Trajectory]]:
    """Return the trajectories that go on, in groups of few prefixes; no prefix is in two groups, so none is evaluated twice."""
    prefixes: dict[tuple[int, int], list[Trajectory]] = {}
    for walk in walks:
        if not walk.finished:
            prefixes.setdefault((walk.node, walk.tokens[-1]), []).append(walk)
    sharing = list(prefixes.values())
    starts = range(0, len(sharing), together)
    return [[walk for same in sharing[i : i + together] for walk in same] for i in starts]


def _draws_of(request: Request, stepper: Stepper | DraftedStepper, walks: Sequence[Trajectory], budget: int) -> Draws:
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
    drafted = stepper.draft_counts(walks) if isinstance(stepper, DraftedStepper) else {}
    counts = DrawCounts(**vars(stepper.branches.trees.counts), **drafted, attempts=len(walks), accepted=len(items))
    return Draws(items=items, counts=counts, budget=budget, failures=len(walks) - len(items))
