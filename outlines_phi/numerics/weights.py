"""Arithmetic of log weights."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Weights = NDArray[np.float64]


def scaled(log_w: Weights) -> Weights:
    """Return the weights divided by the largest; zeros where all are zero."""
    top = log_w.max(initial=-math.inf)
    return np.exp(log_w - top) if top > -math.inf else np.zeros(len(log_w))


def normalized(log_w: Weights) -> Weights:
    """Return the weights divided by their sum; zeros where all are zero."""
    w = scaled(log_w)
    return w / w.sum() if w.any() else w


def log_mean(log_w: ArrayLike) -> float:
    """Return the log of the mean weight; ``-inf`` of none."""
    values = np.asarray(log_w, dtype=np.float64)
    return float(np.logaddexp.reduce(values)) - math.log(len(values)) if len(values) else -math.inf


def effective_size(w: Weights) -> float:
    """Return ``(sum w)^2 / sum w^2`` of weights, the effective sample size; 0 where all are zero."""
    return float(w.sum() ** 2 / (w**2).sum()) if w.any() else 0.0
