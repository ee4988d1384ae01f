"""Populations of look-ahead walks, resampled between windows (theory.md, sections 6.3 and 8.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from ...errors import UnsupportedError
from ...lm.watch import follow
from ...numerics.streams import Stream
from ...phi.estimators.lookahead import LookaheadPhi
from ..draws import Draws
from ..sampler import Request, Sampler
from ..smc.particles import SCHEMES, Particles
from ..smc.smc import SMC, finished, picks
from ..trajectory import Trajectory
from .lookahead_sampler import Lookahead, side_by_side
from .walk import CommittingWalk


@final
@dataclass(frozen=True)
class LookaheadSMCSampler(Sampler):
    """Runs populations of walks that write window by window, and picks one walk of each by weight.

    As :class:`~outlines_phi.sampling.smc.smc.SMCSampler`, with a window in the place of a token: its proposal is the window's
    distribution, and its weight the estimate of ``Psi(r)``, which has mean ``Psi(r)`` whatever the window is; so everything stays
    unbiased. A step is over when every particle that moves has committed a window and knows its weight.

    Attributes
    ----------
    phi
        The options of the look-ahead, with weights.
    options
        The options of the population.

    Raises
    ------
    UnsupportedError
        A look-ahead without weights.
    """

    phi: LookaheadPhi
    options: SMC

    def __post_init__(self) -> None:
        if not self.phi.weights:
            raise UnsupportedError(
                "sampler=SMC(...) was given with phi='lookahead' without weights, by which particles are picked. Give "
                "phi=LookaheadPhi(weights=True), or leave sampler out."
            )

    def sample(self, request: Request) -> list[Draws]:
        """See :meth:`Sampler.sample`: the draws of a prompt are picks from one run each."""
        run, size = Lookahead(self.phi, request), self.options.particles
        numbers = [(row, i) for row in range(len(request.prompts)) for i in range(request.n)]
        flocks: list[Flock] = []
        follow(lambda: run.progress(len(numbers), sum(flock.particles.finished for flock in flocks)))
        at_once = side_by_side(len(request.table.vocabulary), walks=size)
        for first in range(0, len(numbers), at_once):
            together = [
                Flock(run, self.options, request, row, run.launch([(row, i * size + k) for k in range(size)]))
                for row, i in numbers[first : first + at_once]
            ]
            _advance(run, together)
            flocks += together
        run.refuse_exhausted(lambda: [])
        return [
            replace(picks(request, row, found, run.counts), rejections=run.rejections(row))
            for row, found in enumerate(finished(request, [flock.particles for flock in flocks]))
        ]


@final
class Flock:
    """One population, and the walks of its particles.

    Parameters
    ----------
    run
        The look-ahead that all walks belong to.
    options, request, row
        The options, the call, and the number of the prompt.
    walks
        The walks, at the start.
    """

    def __init__(
        self, run: Lookahead, options: SMC, request: Request, row: int, walks: Sequence[CommittingWalk]
    ) -> None:
        self._run = run
        self._walks = {walk.trajectory: walk for walk in walks}
        place = walks[0].trajectory.number // options.particles
        self.particles = Particles(
            list(self._walks),
            options.timing(request.table.vocabulary.tokens),
            SCHEMES[options.scheme or "systematic"],
            request.stream(row, Stream.RESAMPLING + place),
        )
        # Without resampling no particle waits for another.
        self._windows = math.inf if options.resample == "never" else 1
        self._send(self.particles.moving)

    @property
    def walks(self) -> list[CommittingWalk]:
        """The walks that particles go on with, those that wait included."""
        return list(self._walks.values())

    def turn(self) -> list[CommittingWalk]:
        """Return the walks that wait for distributions; where there are none, resample if it is time and send particles on."""
        while not (moving := [walk for walk in self.walks if walk.under_way]) and not self._over:
            if self.particles.settle():
                self._replace()
            self._send(self.particles.moving)
        return moving

    @property
    def _over(self) -> bool:
        return self.particles.finished or any(walk.account.exhausted for walk in self.walks)

    def _send(self, moving: Sequence[Trajectory]) -> None:
        for trajectory in moving:
            walk = self._walks[trajectory]
            walk.limit = walk.account.committed + self._windows

    def _replace(self) -> None:
        """Give every unfinished particle a walk of its own that goes on where its ancestor stood."""
        stems = {(walk.stem.parent, walk.stem.token): walk.stem for walk in self.walks if not walk.trajectory.finished}
        self._walks = {
            particle: self._run.resume(particle, stems[particle.node, particle.tokens[-1]])
            for particle in self.particles.walks
            if not particle.finished
        }
        for walk in self.walks:
            walk.limit = 0


def _advance(run: Lookahead, flocks: Sequence[Flock]) -> None:
    """Take every population to its end, in shared model calls."""
    while walks := [walk for flock in flocks for walk in flock.turn()]:
        for _ in run.step(walks, [walk for flock in flocks for walk in flock.walks]):
            pass
