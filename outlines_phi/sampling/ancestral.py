"""Token by token from ``q_h``, with the weight of every draw (theory.md, sections 1.4 and 4.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, final

from ..lm.model import ModelCounts
from ..phi.branches import Branches
from ..phi.estimator import ProposalPhi
from .draw import Draw, Guarantee
from .draws import DrawCounts, Draws
from .sampler import Request, Sampler
from .stepper import Observer, Stepper
from .trajectory import Trajectory

TOGETHER = 512
"""Prefixes that grow at a time: a tree's attention costs as the square of its nodes."""


@final
@dataclass(frozen=True)
class AncestralSampler(Sampler):
    """Draws ``v ~ q_h(v|y) = p(v|y) h(yv) / S(y)`` step by step; ``log_w = sum_t [log S(y_t) - log h(y_{t+1})]``.

    ``E[w] = Phi(prompt)`` for any ``h`` that is positive where ``Phi`` is, trajectories without an allowed token counting
    with weight 0. It may depend on all that was seen before its step: an estimator that learns sets the rounds. Equal prefixes of
    a round are evaluated once.

    Attributes
    ----------
    phi
        The estimator, ``h``.
    observer
        Who is told of every step; ``None`` for nobody.
    """

    phi: ProposalPhi
    observer: Observer | None = None

    def sample(self, request: Request) -> list[Draws]:
        """See :meth:`Sampler.sample`."""
        stepper = self._stepper(request)
        walks: list[Trajectory] = []
        stepper.follow(lambda: walks, request.n * len(request.prompts))
        for size in self.phi.rounds(request.n):
            walks += (together := stepper.launch(size))
            for _ in grow(stepper, together):
                pass
        counts = stepper.branches.trees.counts
        return [
            draws_of(request, [walk for walk in walks if walk.row == row], request.budgets[row], counts)
            for row in range(len(request.prompts))
        ]

    def steps(self, request: Request) -> Iterator[Sequence[Trajectory]]:
        """Draw as :meth:`sample` does, and yield the trajectories that grew after every model call.

        A token is final when it is drawn: a trajectory only ever grows.
        """
        stepper = self._stepper(request)
        return chain.from_iterable(grow(stepper, stepper.launch(size)) for size in self.phi.rounds(request.n))

    def _stepper(self, request: Request) -> Stepper:
        return Stepper(request, self.phi, self.observer, weighted=request.weighted)


class Advancing(Protocol):
    """Takes walks further, all together in one model call: by one token, or as many as a draft allows."""

    @property
    def branches(self) -> Branches:
        """The prefixes of the run."""

    def first(self, walks: Sequence[Trajectory]) -> None:
        """Evaluate the prompts and take every walk from the start."""

    def advance(self, walks: Sequence[Trajectory]) -> None:
        """Evaluate every distinct prefix that unfinished ``walks`` stand on, and take each of them further."""


def grow(stepper: Advancing, walks: Sequence[Trajectory], together: int = TOGETHER) -> Iterator[Sequence[Trajectory]]:
    """Take ``walks``, at the start, to their ends, ``together`` prefixes at a time.

    Yields them all, then those that have grown after every model call.
    """
    stepper.first(walks)
    yield walks
    groups = _groups(walks, together)
    while groups:
        group = groups.pop()
        stepper.advance(group)
        yield group
        below = _groups(group, together)
        groups += below
        needed = {walk.node: len(walk.tokens) for waiting in groups for walk in waiting}
        if below:
            stepper.branches.tidy(needed)
        elif groups:
            stepper.branches.compact(needed)


def _groups(walks: Sequence[Trajectory], together: int) -> list[list[Trajectory]]:
    """Return the trajectories that go on, in groups of few prefixes; no prefix is in two groups, so none is evaluated twice."""
    prefixes: dict[tuple[int, int], list[Trajectory]] = {}
    for walk in walks:
        if not walk.finished:
            prefixes.setdefault((walk.node, walk.tokens[-1]), []).append(walk)
    sharing = list(prefixes.values())
    starts = range(0, len(sharing), together)
    return [[walk for same in sharing[i : i + together] for walk in same] for i in starts]


def draws_of(request: Request, walks: Sequence[Trajectory], budget: int, counts: ModelCounts) -> Draws:
    """Return the draws that finished ``walks`` of one prompt are."""
    vocabulary = request.table.vocabulary
    items = tuple(
        Draw.of(
            vocabulary,
            walk.tokens,
            log_p=walk.log_p,
            log_w=walk.log_w,
            guarantee=Guarantee.WEIGHTED,
        )
        for walk in walks
        if not walk.failed
    )
    finished = DrawCounts(**vars(counts), attempts=len(walks), accepted=len(items))
    return Draws(items=items, counts=finished, budget=budget, failures=len(walks) - len(items))
