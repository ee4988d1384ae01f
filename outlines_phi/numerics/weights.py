"""Arithmetic of log weights, and draws in proportion to weights by the inverse of their cumulative sums.

Rounding may put a quantile at the total mass itself; a draw is then the last index that has any mass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Weights = NDArray[np.float64]
Real = TypeVar("Real", bound=np.floating[Any])

STRETCH = 128  # Weights that are summed together where there are more than so many times as many


def log(x: float) -> float:
    """Return the natural logarithm; ``-inf`` of 0."""
    return math.log(x) if x > 0 else -math.inf


def log_sum(log_x: Iterable[float]) -> float:
    """Return the log of the sum of numbers given by their logs; ``-inf`` of none."""
    values = [x for x in log_x if x > -math.inf]
    top = max(values, default=-math.inf)
    return top + math.log(sum([math.exp(x - top) for x in values])) if len(values) > 1 else top


def log_difference(log_x: float, log_y: float) -> float:
    """Return the log of the difference of two numbers given by their logs; ``-inf`` where it is not positive."""
    return log_x + math.log(-math.expm1(log_y - log_x)) if log_x > log_y else -math.inf


def ratio(log_part: float, log_whole: float) -> float:
    """Return the ratio of two numbers given by their logs, 1 at most; 0 of 0."""
    if log_part == -math.inf:
        return 0.0
    return math.exp(log_part - log_whole) if log_part < log_whole else 1.0


def top_of(log_w: NDArray[np.floating]) -> float:
    """Return the largest of log weights; ``-inf`` of none."""
    return float(np.maximum.reduce(log_w, axis=None, initial=-math.inf))  # what `max` calls, by way of Python


def scaled(log_w: NDArray[Real]) -> NDArray[Real]:
    """Return the weights divided by the largest, in the precision of their logs; zeros where all are zero."""
    top = top_of(log_w)
    return np.exp(log_w - top) if top > -math.inf else np.zeros_like(log_w)


def normalized(log_w: Weights) -> Weights:
    """Return the weights divided by their sum; zeros where all are zero."""
    w = scaled(log_w)
    return w / w.sum() if w.any() else w


def log_mean(log_w: ArrayLike) -> float:
    """Return the log of the mean weight; ``-inf`` of none."""
    values = np.asarray(log_w, dtype=np.float64)
    return float(np.logaddexp.reduce(values)) - math.log(len(values)) if len(values) else -math.inf


def largest_change(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    """Return the largest difference of two arrays of logarithms, infinite where one of them alone is ``-inf``."""
    different = before != after  # not where both are -inf
    with np.errstate(invalid="ignore"):
        return float(np.abs(after[different] - before[different]).max(initial=0.0))


def bounds_text(log_bounds: tuple[float, float]) -> str:
    """Return bounds of a log mass as a text: a number where both are shown as it."""
    low, high = (f"{bound + 0.0:.4g}" for bound in log_bounds)  # + 0.0: not -0
    return low if low == high else f"in [{low}, {high}]"


def log_mass_text(log_bounds: tuple[float, float], estimate: float = math.nan) -> str:
    """Return a log mass as a text: its bounds where they are one number, else an estimate and the bounds."""
    bounds = bounds_text(log_bounds)
    if not bounds.startswith("in"):
        return bounds
    parts = [] if math.isnan(estimate) else [f"{estimate:.4g}"]
    return " ".join([*parts, *([bounds] if log_bounds != (-math.inf, 0.0) else [])]) or "unknown"


def bisected(low: float, high: float, holds: Callable[[float], bool], halvings: int) -> tuple[float, float]:
    """Return the bracket of where a condition ceases to hold, which it does once between ``low`` and ``high``, by bisection."""
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def effective_size(w: Weights) -> float:
    """Return ``(sum w)^2 / sum w^2`` of weights, the effective sample size; 0 where all are zero."""
    return float(w.sum() ** 2 / (w**2).sum()) if w.any() else 0.0


def draw(weights: NDArray[np.floating], rng: np.random.Generator) -> int:
    """Draw an index in proportion to ``weights``, in float64; their sum is positive.

    Of many weights stretches are summed first, and one of them is laid end to end: a fifth of the time.
    """
    quantile = rng.random()
    if len(weights) <= STRETCH**2:
        return at_quantile(weights, quantile)
    sums = np.add.reduceat(weights, np.arange(0, len(weights), STRETCH), dtype=np.float64)
    cumulative = sums.cumsum()
    target = quantile * cumulative[-1]
    first = min(int(cumulative.searchsorted(target, side="right")), int(cumulative.searchsorted(cumulative[-1])))
    inside = weights[first * STRETCH : (first + 1) * STRETCH]
    rest = (target - (cumulative[first - 1] if first else 0.0)) / sums[first]
    return first * STRETCH + at_quantile(inside, min(rest, 1.0))


def at_quantile(weights: NDArray[np.floating], quantile: float) -> int:
    """Return the index at one quantile, as :func:`at_quantiles`, without the overhead of arrays of one."""
    cumulative = weights.cumsum(dtype=np.float64)
    total = float(cumulative[-1])
    return int(
        cumulative.searchsorted(quantile * total, side="right")
        if quantile * total < total
        else cumulative.searchsorted(total)
    )


def at_quantiles(weights: NDArray[np.floating], quantiles: NDArray[np.float64] | float) -> NDArray[np.int64]:
    """Return the index at each quantile of weights that are laid end to end; none whose weight is 0."""
    cumulative = weights.cumsum(dtype=np.float64)
    total = cumulative[-1]
    return np.minimum(cumulative.searchsorted(quantiles * total, side="right"), cumulative.searchsorted(total))


def columns_at(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    """Return the column at each quantile of each row.

    ``cumulative``: ``[..., V]`` float64: sums of the masses of a row, from the left.
    ``uniforms``: ``[..., n]`` float64 in [0, 1).

    Returns ``[..., n]``. Means nothing in a row without mass.
    """
    found = torch.searchsorted(cumulative, masses_at(cumulative, uniforms), right=True)
    return found.clamp_(max=cumulative.shape[-1] - 1)


def masses_at(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    """Return the mass at each quantile of each row, ``[..., n]``, below that of the whole row."""
    total = cumulative[..., -1:]
    return torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
