"""Schemes that turn weighted particles into equally weighted ones: which particle each of the new ones continues.

Every scheme is unbiased: of ``N`` new particles ``E[copies of i] = N W_i``, with ``W`` the normalised weights. They differ in the
variance of the copies, which multinomial resampling has the most of (Douc, Cappe and Moulines 2005).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ...numerics.inverse_cdf import at_quantiles
from ...numerics.weights import normalized

Scheme = Literal["systematic", "stratified", "residual"]

Ancestors = NDArray[np.int64]
"""``[N]``: the particle that each new particle continues, ascending."""


def systematic(log_w: NDArray[np.float64], rng: np.random.Generator) -> Ancestors:
    """Return ancestors at the quantiles ``(i + u) / N`` with one ``u`` for all: copies of ``i`` are ``N W_i`` rounded up or down.

    Equal weights copy every particle once.

    Parameters
    ----------
    log_w
        ``[N]`` log weights, at least one above ``-inf``; a particle of weight 0 is never an ancestor.
    rng
        Where the randomness comes from.
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
"""What ``SMC(scheme="...")`` may name."""
