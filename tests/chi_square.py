"""A goodness-of-fit test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar, final

import numpy as np

Outcome = TypeVar("Outcome", bound=Hashable)


@final
@dataclass(frozen=True)
class ChiSquare:
    """A goodness-of-fit test of draws against a law, with outcomes pooled into a few cells.

    Attributes
    ----------
    statistic
        ``sum (observed - expected)^2 / expected``.
    cells
        Number of cells; one more than the degrees of freedom.
    outside
        Draws that the law gives probability 0.
    """

    statistic: float
    cells: int
    outside: int

    @classmethod
    def of(cls, outcomes: Iterable[Outcome], law: Mapping[Outcome, float], *, max_cells: int = 10) -> ChiSquare:
        """Compare ``outcomes`` with ``law``; the likeliest outcomes have a cell each, the others share one."""
        counts = Counter(outcomes)
        ranked = sorted(law, key=lambda outcome: -law[outcome])
        groups: list[list[Outcome]] = [[outcome] for outcome in ranked[: max_cells - 1]]
        if ranked[max_cells - 1 :]:
            groups.append(ranked[max_cells - 1 :])
        n = sum(counts.values())
        observed = np.array([sum(counts[outcome] for outcome in group) for group in groups], dtype=float)
        expected = np.array([sum(law[outcome] for outcome in group) for group in groups]) * n
        used = expected > 0
        statistic = float((((observed - expected)[used] ** 2) / expected[used]).sum())
        outside = sum(count for outcome, count in counts.items() if law.get(outcome, 0.0) <= 0)
        return cls(statistic, int(used.sum()), outside)
