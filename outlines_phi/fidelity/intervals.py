"""Confidence limits of means that assume nothing about tails."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

STAKES = np.array([1.0, *(1 / (1 + np.exp(np.linspace(-5.0, 9.0, 15))))])
"""Shares of the capital that are bet, on a logit scale: large for narrow laws, small for heavy tails."""

HALVINGS = 60
"""Of the bracket of a limit, on a logarithmic scale."""


class Interval(NamedTuple):
    """``low <= high``, both included."""

    low: float
    high: float

    @property
    def width(self) -> float:
        """``high - low``."""
        return self.high - self.low


def lower_limit(x: ArrayLike, alpha: float) -> float:
    """Return a number that the mean of nonnegative variables is under with probability at most ``alpha``.

    The variables are independent and their laws may differ (the mean is then that of their means). If the mean is at most
    ``m``, then for any share ``c``

    ``prod_i (1 - c + c x_i / m)`` and ``mean(x) / m``

    have expectation at most 1 (the product by the inequality of arithmetic and geometric means), so by Markov's inequality a
    fixed mixture of them exceeds ``1 / alpha`` with probability at most ``alpha``. The limit is the least ``m`` at which it
    does not. It is monotone in every ``x_i``, scales with ``x``, and is at least half of Markov's own ``alpha mean(x)``.
    The method is betting: Waudby-Smith and Ramdas, arXiv 2010.09686.

    Parameters
    ----------
    x
        ``[n]``, nonnegative, at least one.
    alpha
        In (0, 1).
    """
    values, counts = np.unique(np.asarray(x, dtype=np.float64), return_counts=True)
    mean = float((values * counts).sum() / counts.sum())
    if mean <= 0:
        return 0.0
    goal = -math.log(alpha)
    # The mixture falls as m grows: it is over 1 / alpha at the lower end, and at most 1 at the mean.
    low, high = math.log(mean) + math.log(alpha / 2), math.log(mean)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _log_capital(values, counts, mean, middle) >= goal else (low, middle)
    return math.exp(low)


def unit_interval(x: ArrayLike, alpha: float) -> Interval:
    """Return an interval that holds the mean of variables in [0, 1] with probability at least ``1 - alpha``.

    :func:`lower_limit` from both sides, ``alpha / 2`` each. Where the variables hardly vary it is far narrower than
    Hoeffding's ``mean -+ sqrt(log(2 / alpha) / 2n)``; it does not know how rare a value may be that no draw has shown, so its
    upper limit is never under about ``log(1 / alpha) / n``.
    """
    values = np.clip(np.asarray(x, dtype=np.float64), 0.0, 1.0)
    return Interval(lower_limit(values, alpha / 2), 1.0 - lower_limit(1.0 - values, alpha / 2))


def _log_capital(values: NDArray[np.float64], counts: NDArray[np.int64], mean: float, log_m: float) -> float:
    """Return the log of the mixture of bets against a mean of at most ``exp(log_m)``."""
    ratio = values * math.exp(-log_m)
    with np.errstate(divide="ignore"):
        won = np.log1p(STAKES[:, None] * (ratio - 1.0)) @ counts  # a whole stake is lost at the first 0
    mixed = float(np.logaddexp.reduce(won)) - math.log(len(STAKES))
    return float(np.logaddexp(mixed, math.log(mean) - log_m)) - math.log(2)
