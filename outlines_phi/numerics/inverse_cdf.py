"""Draws by the inverse of a cumulative distribution function.

Rounding may put a quantile at the total mass itself; every function here then answers with the last index that has any mass.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def draw(weights: NDArray[np.floating], rng: np.random.Generator) -> int:
    """Draw an index in proportion to ``weights``, in float64; their sum is positive."""
    return int(at_quantiles(weights, rng.random()))


def at_quantiles(weights: NDArray[np.floating], quantiles: NDArray[np.float64] | float) -> NDArray[np.int64]:
    """Return the index at each quantile of weights that are laid end to end; none whose weight is 0."""
    cumulative = weights.cumsum(dtype=np.float64)
    total = cumulative[-1]
    return np.minimum(cumulative.searchsorted(quantiles * total, side="right"), cumulative.searchsorted(total))


def columns_at(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    """Return the column at each quantile of each row.

    Parameters
    ----------
    cumulative
        ``[..., V]`` float64: sums of the masses of a row, from the left.
    uniforms
        ``[..., n]`` float64 in [0, 1).

    Returns
    -------
    Tensor
        ``[..., n]``. Means nothing in a row without mass.
    """
    found = torch.searchsorted(cumulative, masses_at(cumulative, uniforms), right=True)
    return found.clamp_(max=cumulative.shape[-1] - 1)


def masses_at(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    """Return the mass at each quantile of each row, ``[..., n]``, below that of the whole row."""
    total = cumulative[..., -1:]
    return torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
