"""Several tokens per model call, whatever is drafted from the law of the undrafted walk (theory.md, section 7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import final

from ...errors import UnsupportedError
from ...phi.estimator import ProposalPhi
from ..ancestral import TOGETHER, draws_of, grow
from ..draws import Draws
from ..sampler import Request, Sampler
from ..trajectory import Trajectory
from .prefetch import Prefetch
from .step import DraftedStepper


@final
@dataclass(frozen=True)
class SpeculativeSampler(Sampler):
    """Draws from ``q_h`` as :class:`~outlines_phi.sampling.ancestral.AncestralSampler` does, by fewer model calls.

    The law of the draws and their weights are those of the walks without a draft, whatever is drafted. Where drafts are
    deterministic the draws themselves are, seed for seed.

    Attributes
    ----------
    phi
        The estimator, ``h``.
    draft
        What is drafted.
    """

    phi: ProposalPhi
    draft: Prefetch

    def sample(self, request: Request) -> list[Draws]:
        """See :meth:`Sampler.sample`.

        Raises
        ------
        UnsupportedError
            A constraint beside the guide.
        DraftError
            The drafter raised, or proposed what is no draft.
        """
        stepper = self._stepper(request)
        walks: list[Trajectory] = []
        stepper.follow(lambda: walks, request.n * len(request.prompts))
        for size in self.phi.rounds(request.n):
            walks += (together := stepper.launch(size))
            for _ in grow(stepper, together, min(TOGETHER, stepper.room)):
                pass
        return [
            self._draws(request, stepper, [walk for walk in walks if walk.row == row], row)
            for row in range(len(request.prompts))
        ]

    def steps(self, request: Request) -> Iterator[Sequence[Trajectory]]:
        """Draw as :meth:`sample` does, and yield the trajectories that grew after every model call, by one token or several.

        A token is final when it is drawn: a trajectory only ever grows.
        """
        stepper = self._stepper(request)
        return chain.from_iterable(
            grow(stepper, stepper.launch(size), min(TOGETHER, stepper.room)) for size in self.phi.rounds(request.n)
        )

    def _stepper(self, request: Request) -> DraftedStepper:
        if request.constraint is not None:
            raise UnsupportedError(
                f"{request.constraint} was given beside a draft; a constraint is asked about few tokens of a step, so nobody knows "
                "the law that a draft would be held against. Leave out one of them; a type or a regular expression that says what "
                "the constraint says goes with drafts."
            )
        return DraftedStepper(request, self.phi, self.draft)

    def _draws(self, request: Request, stepper: DraftedStepper, walks: Sequence[Trajectory], row: int) -> Draws:
        draws = draws_of(request, walks, request.budgets[row], stepper.branches.trees.counts)
        pens = [stepper.pen(walk) for walk in walks]
        counts = replace(
            draws.counts,
            drafted=sum(pen.drafted for pen in pens),
            followed=sum(pen.followed for pen in pens),
            written=sum(len(walk.tokens) for walk in walks),
            turns=sum(pen.turns for pen in pens),
        )
        return replace(draws, counts=counts)
