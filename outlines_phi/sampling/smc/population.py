"""The particles of one run of sequential Monte Carlo: one weighted population."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ...numerics.checks import counted
from ...numerics.weights import draw, effective_size, log_mean, normalized, scaled
from ..draw import Draw, TextSequence, numbers_of


@final
@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Population(TextSequence[Draw]):
    """The particles of one run: not so many draws, but one weighted sample, whose members depend on one another.

    A particle's ``log_w`` is its weight since the last resampling times the mean weights of the epochs before it, so that for
    every function ``E[sum_i w_i f(y_i) / N] = Phi mu*(f)``, the sum over all ``N`` particles, those of weight 0 included.

    Attributes
    ----------
    items
        The particles that were completed, in order; after resampling, several may be equal.
    failures
        Particles of weight 0, which have no text.
    resamplings
        How often the run was resampled.
    """

    items: tuple[Draw, ...]
    failures: int = 0
    resamplings: int = 0

    def __repr__(self) -> str:
        failed = f" and {self.failures} of weight 0" if self.failures else ""
        return (
            f"<population of {counted(len(self), 'particle')}{failed}: ess {self.ess:.4g}, log Phi {self.log_z:.4g}, "
            f"{counted(self.resamplings, 'resampling')}>"
        )

    @cached_property
    def log_w(self) -> NDArray[np.float64]:
        """``[N]``: the log weights, in nats; ``-inf`` for the failed particles, which stand at the end."""
        return np.array([draw.log_w for draw in self.items] + [-np.inf] * self.failures)

    @property
    def weights(self) -> NDArray[np.float64]:
        """``[len(items)]``: weights that sum to 1."""
        return normalized(self.log_w)[: len(self.items)]

    @property
    def ess(self) -> float:
        """Effective sample size of the final weights; it knows nothing of what resampling has made equal."""
        return effective_size(scaled(self.log_w))

    @property
    def log_z(self) -> float:
        """``log Z_hat``, the log of the mean weight: ``E[Z_hat] = Phi(prompt)``; ``-inf`` where all particles failed."""
        return log_mean(self.log_w)

    def expectation(self, f: Callable[[Draw], float]) -> float:
        """Return the mean of ``f(particle)`` by the weights, an estimate of that under ``mu*``.

        Biased by the order of ``1 / N``, as every ratio of two estimates is.

        Raises
        ------
        UnsupportedError
            ``f`` is no function of a draw that returns a number.
        """
        return float(np.dot(self.weights, numbers_of(f, self.items)))

    def pick(self, rng: np.random.Generator) -> Draw:
        """Draw one particle in proportion to the weights; its ``log_w`` is ``log Z_hat``, so that ``E[w f] = Phi mu*(f)``."""
        index = draw(self.weights, rng)
        chosen = self.items[index]
        return replace(chosen, log_w=self.log_z, candidates=len(self.log_w), ess=self.ess)

    def read_by(self, reader: Callable[[str], Any]) -> Population:
        """Return the same particles, whose values ``reader`` makes of their texts."""
        return replace(self, items=tuple(replace(draw, reader=reader) for draw in self.items))
