"""How far apart two laws are, and how far sampling noise alone would put them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Outcome = TypeVar("Outcome", bound=Hashable)


def total_variation(left: Mapping[Outcome, float], right: Mapping[Outcome, float]) -> float:
    """Return ``TV = sum |left - right| / 2`` of two laws; an outcome that is missing has probability 0."""
    return sum(abs(left.get(outcome, 0.0) - right.get(outcome, 0.0)) for outcome in {*left, *right}) / 2


def frequencies(outcomes: Iterable[Outcome], weights: Iterable[float] | None = None) -> dict[Outcome, float]:
    """Return the relative frequency of each outcome, of weighted draws when ``weights`` are given."""
    counts: Counter[Outcome] = Counter()
    items = list(outcomes)
    for outcome, weight in zip(items, [1.0] * len(items) if weights is None else weights, strict=True):
        counts[outcome] += weight  # type: ignore[assignment]
    total = sum(counts.values())
    return {outcome: weight / total for outcome, weight in counts.items()}


def noise_floor(law: Mapping[Outcome, float], n: int, *, repeats: int = 200, seed: int = 0) -> float:
    """Return the mean TV to ``law`` that ``n`` draws from ``law`` itself show.

    A measured TV means something only beside it.
    """
    return float(_noise(law, n, repeats, seed).mean())


def noise_limit(
    law: Mapping[Outcome, float], n: int, *, share: float = 0.95, repeats: int = 2000, seed: int = 0
) -> float:
    """Return the TV to ``law`` that ``n`` draws from ``law`` itself stay under in this ``share`` of all cases."""
    return float(np.quantile(_noise(law, n, repeats, seed), share))


def _noise(law: Mapping[Outcome, float], n: int, repeats: int, seed: int) -> NDArray[np.float64]:
    """Return ``[repeats]``: the TV to ``law`` of as many samples of ``n`` draws."""
    p = np.array(list(law.values()))
    p = p / p.sum()
    draws = np.random.default_rng(seed).multinomial(n, p, size=repeats) / n
    return np.abs(draws - p).sum(axis=1) / 2
