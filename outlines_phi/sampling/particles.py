"""One run of sequential Monte Carlo: its particles, and when and how they are resampled.

A scheme tells which particle each of the new ones continues. Every scheme is unbiased: of ``N`` new particles
``E[copies of i] = N W_i``, with ``W`` the normalised weights. They differ in the variance of the copies, of which multinomial
resampling has the most (Douc, Cappe and Moulines 2005).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, final, get_args
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..numerics.weights import at_quantiles, effective_size, log_mean, normalized, scaled
from .stepper import Trajectory

Scheme = Literal["systematic", "stratified", "residual"]

Ancestors = NDArray[np.int64]
"""``[N]``: the particle that each new particle continues, ascending."""


class Timing:
    """When the particles of one run are resampled: never, where a subclass says nothing else."""

    def moving(self, walks: Sequence[Trajectory]) -> list[Trajectory]:
        """Return those of the unfinished ``walks`` that go on; the others wait for the next resampling."""
        return _unfinished(walks)

    def due(self, walks: Sequence[Trajectory], moving: Sequence[Trajectory]) -> bool:
        """Return whether it is time to resample ``walks``, not all of which are finished."""
        return False

    def begin(self, walks: Sequence[Trajectory]) -> None:
        """Take note that an epoch begins with ``walks``."""


@final
@dataclass(frozen=True)
class ByEffectiveSize(Timing):
    """After any step whose effective sample size is below ``threshold`` times the particles, finished and failed ones included."""

    threshold: float

    def due(self, walks: Sequence[Trajectory], moving: Sequence[Trajectory]) -> bool:
        return effective_size(scaled(_log_w(walks))) < self.threshold * len(walks)


@final
class AtBoundaries(Timing):
    """When every particle is finished or has written a given number of boundaries, for which the faster ones wait.

    The number is one more than the slowest has after the last resampling. A token that writes several boundaries counts for all
    of them, so that tokenizations of one text by different tokens keep step.

    ``boundaries``: The bytes that are boundaries.
    ``tokens``: The bytes of each token.
    """

    def __init__(self, boundaries: frozenset[int], tokens: Sequence[bytes]) -> None:
        self._boundaries, self._tokens = boundaries, tokens
        self._written: dict[int, int] = {}
        # Tokens counted so far and boundaries among them, so that a step looks at the new tokens only.
        self._counted: WeakKeyDictionary[Trajectory, tuple[int, int]] = WeakKeyDictionary()
        self._level = 1

    def moving(self, walks: Sequence[Trajectory]) -> list[Trajectory]:
        return [walk for walk in _unfinished(walks) if self._passed(walk) < self._level]

    def due(self, walks: Sequence[Trajectory], moving: Sequence[Trajectory]) -> bool:
        return not moving

    def begin(self, walks: Sequence[Trajectory]) -> None:
        self._level = 1 + min(map(self._passed, _unfinished(walks)), default=0)

    def _passed(self, walk: Trajectory) -> int:
        """Return how many boundaries a walk has written."""
        length, count = self._counted.get(walk, (0, 0))
        for token in walk.tokens[length:]:
            if token not in self._written:
                self._written[token] = sum(byte in self._boundaries for byte in self._tokens[token])
            count += self._written[token]
        self._counted[walk] = (len(walk.tokens), count)
        return count


@final
class Particles:
    """The particles of one run.

    ``walks``: The particles, at the start.
    ``timing``, ``scheme``: When they are resampled, and how.
    ``rng``: The random stream of the run; particles propose by their own.
    ``moving``: Those that take the next step.
    ``resamplings``: How often they were resampled.
    """

    def __init__(
        self,
        walks: Sequence[Trajectory],
        timing: Timing,
        scheme: Callable[[NDArray[np.float64], np.random.Generator], Ancestors],
        rng: np.random.Generator,
    ) -> None:
        self.walks = self.moving = list(walks)
        self.rng, self.resamplings = rng, 0
        self._timing, self._scheme = timing, scheme

    @property
    def finished(self) -> bool:
        """Whether no particle goes on."""
        return not _unfinished(self.walks)

    def settle(self) -> bool:
        """Resample, if it is time after a step, and say who goes on; return whether there was a resampling."""
        self.moving = self._timing.moving(self.walks)
        if self.finished or not self._timing.due(self.walks, self.moving):
            return False
        self._resample()
        self._timing.begin(self.walks)
        self.moving = self._timing.moving(self.walks)
        return True

    def _resample(self) -> None:
        """Replace the particles by copies, each with the mean weight; each place keeps its random stream."""
        log_w = _log_w(self.walks)
        mean = log_mean(log_w)
        ancestors = self._scheme(log_w, self.rng).tolist()
        self.walks = [_continued(self.walks[i], place, mean) for place, i in zip(self.walks, ancestors, strict=True)]
        self.resamplings += 1


def _continued(walk: Trajectory, place: Trajectory, log_w: float) -> Trajectory:
    """Return a copy of ``walk`` in the place of another."""
    # By hand: copy() takes four times as long, for every particle of every resampling.
    return Trajectory(
        walk.row, place.number, place.rng, walk.node, walk.state, walk.remaining, list(walk.tokens), walk.log_p, log_w
    )


def _unfinished(walks: Sequence[Trajectory]) -> list[Trajectory]:
    return [walk for walk in walks if not walk.finished]


def _log_w(walks: Sequence[Trajectory]) -> NDArray[np.float64]:
    return np.array([walk.log_w for walk in walks])


def systematic(log_w: NDArray[np.float64], rng: np.random.Generator) -> Ancestors:
    """Return ancestors at the quantiles ``(i + u) / N`` with one ``u`` for all: copies of ``i`` are ``N W_i`` rounded up or down.

    Equal weights copy every particle once.

    ``log_w``: ``[N]`` log weights, at least one above ``-inf``; a particle of weight 0 is never an ancestor.
    ``rng``: Where the randomness comes from.
    """
    return at_quantiles(normalized(log_w), (np.arange(len(log_w)) + rng.random()) / len(log_w))


def stratified(log_w: NDArray[np.float64], rng: np.random.Generator) -> Ancestors:
    """Return ancestors at the quantiles ``(i + u_i) / N``, each ``u_i`` its own; parameters as for :func:`systematic`."""
    return at_quantiles(normalized(log_w), (np.arange(len(log_w)) + rng.random(len(log_w))) / len(log_w))


def residual(log_w: NDArray[np.float64], rng: np.random.Generator) -> Ancestors:
    """Return ``floor(N W_i)`` copies of ``i`` and draw the rest independently; parameters as for :func:`systematic`.

    The rest has the probabilities ``N W_i - floor(N W_i)``, normalised.
    """
    expected = len(log_w) * normalized(log_w)
    copies = np.floor(expected).astype(np.int64)
    sure = np.repeat(np.arange(len(log_w)), copies)
    if len(sure) == len(log_w):
        return sure
    return np.sort(np.concatenate([sure, at_quantiles(expected - copies, rng.random(len(log_w) - len(sure)))]))


SCHEMES: dict[Scheme, Callable[[NDArray[np.float64], np.random.Generator], Ancestors]] = dict(
    zip(get_args(Scheme), (systematic, stratified, residual), strict=True)
)
"""The schemes that ``SMC(scheme="...")`` may name."""
