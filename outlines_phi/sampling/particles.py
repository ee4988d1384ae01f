"""One run of sequential Monte Carlo: its particles, and when and how they are resampled.

Resampling is systematic: of ``N`` new particles ``E[copies of i] = N W_i``, with ``W`` the normalised weights, and of the usual
schemes its copies vary least (Douc, Cappe and Moulines 2005).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..numerics.weights import at_quantiles, effective_size, log_mean, normalized, scaled
from .stepper import Trajectory

Ancestors = NDArray[np.int64]
"""``[N]``: the particle that each new particle continues, ascending."""


@final
class Particles:
    """The particles of one run.

    ``walks``: The particles, at the start.
    ``threshold``: They are resampled after any step whose effective sample size is below so many times the particles, finished and
        failed ones included; 0 for never.
    ``rng``: The random stream of the run; particles propose by their own.
    ``resamplings``: How often they were resampled.
    """

    def __init__(self, walks: Sequence[Trajectory], threshold: float, rng: np.random.Generator) -> None:
        self.walks, self._threshold, self.rng = list(walks), threshold, rng
        self.resamplings = 0

    @property
    def moving(self) -> list[Trajectory]:
        """Those that take the next step."""
        return [walk for walk in self.walks if not walk.finished]

    @property
    def finished(self) -> bool:
        """Whether no particle goes on."""
        return not self.moving

    def settle(self) -> None:
        """Resample, if it is time after a step."""
        if not self.finished and effective_size(scaled(_log_w(self.walks))) < self._threshold * len(self.walks):
            self._resample()

    def _resample(self) -> None:
        """Replace the particles by copies, each with the mean weight; each place keeps its random stream."""
        log_w = _log_w(self.walks)
        mean = log_mean(log_w)
        ancestors = systematic(log_w, self.rng).tolist()
        self.walks = [_continued(self.walks[i], place, mean) for place, i in zip(self.walks, ancestors, strict=True)]
        self.resamplings += 1


def _continued(walk: Trajectory, place: Trajectory, log_w: float) -> Trajectory:
    """Return a copy of ``walk`` in the place of another."""
    # By hand: copy() takes four times as long, for every particle of every resampling.
    return Trajectory(
        walk.row, place.number, place.rng, walk.node, walk.state, walk.remaining, list(walk.tokens), walk.log_p, log_w
    )


def _log_w(walks: Sequence[Trajectory]) -> NDArray[np.float64]:
    return np.array([walk.log_w for walk in walks])


def systematic(log_w: NDArray[np.float64], rng: np.random.Generator) -> Ancestors:
    """Return ancestors at the quantiles ``(i + u) / N`` with one ``u`` for all: copies of ``i`` are ``N W_i`` rounded up or down.

    Equal weights copy every particle once.

    ``log_w``: ``[N]`` log weights, at least one above ``-inf``; a particle of weight 0 is never an ancestor.
    ``rng``: Where the randomness comes from.
    """
    return at_quantiles(normalized(log_w), (np.arange(len(log_w)) + rng.random()) / len(log_w))
