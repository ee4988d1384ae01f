"""Backward induction over guide states: what both surrogates of ``dp`` share (theory.md, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedError
from ..guides.guide import DEAD, DONE, UNREACHABLE, Guide, Row

SETTLED = 1e-9
"""Largest relative change of any value from one budget to the next at which larger budgets count as equal.

The recursion is monotone and linear, so the change of one step bounds that of every later one.
"""


MOST = 2**14  # Guide states of an induction over all of them: a matrix of so many rows takes 2 GiB


class Reachable(NamedTuple):
    """Guide states in the order of their distance, with their rows."""

    rows: dict[int, Row]  # The explored states and their transitions
    # Steps for which every state on the way has been explored; `UNREACHABLE` where nothing is left out
    depth: int


def explore(guide: Guide, first: Iterable[int], *, depth: int | None, states: int | None) -> Reachable:
    """Return the live states within ``depth`` steps, those in ``first`` being one step away.

    ``states``: how many to explore at most: a step that would take more is not made. ``None`` for all of them, which are refused
        where they are more than :data:`MOST`, as in a grammar whose texts nest.
    """
    rows: dict[int, Row] = {}
    level, steps = _inner(guide, first), 0
    while level:
        if depth is not None and steps >= depth or rows and states is not None and len(rows) + len(level) > states:
            return Reachable(rows, steps)
        if states is None and len(rows) + len(level) > MOST:
            raise UnsupportedError(
                f"An induction over all guide states was asked for, and there are more than {MOST:,}, perhaps without end. Give "
                "states=, how many to look at, or a nearer horizon=."
            )
        rows.update((state, guide.row(state)) for state in level)
        below = np.unique(np.concatenate([rows[state].targets for state in level]))
        level, steps = [state for state in _inner(guide, below.tolist()) if state not in rows], steps + 1
    return Reachable(rows, UNREACHABLE)


def _inner(guide: Guide, states: Iterable[int]) -> list[int]:
    inner = dict.fromkeys(state for state in states if state not in (DEAD, DONE))
    return [state for state in inner if guide.min_tokens(state) < UNREACHABLE]


@final
class Layers:
    """The values of a backward induction for every remaining budget, under a bound on memory.

    Budgets beyond the one where the values settle share its layer. Where the others take more than ``max_bytes``, every second
    of them is kept, every fourth, and so on; a budget in between has the values of the next larger one.
    ``first`` are the values at budget 0, in log space; ``step`` maps those of one budget to those of the next larger one.
    """

    def __init__(
        self,
        first: NDArray[np.float64],
        step: Callable[[NDArray[np.float64]], NDArray[np.float64]],
        budget: int,
        max_bytes: int,
    ) -> None:
        self._every, self.top, last = 1, 0, first
        self._kept = {0: first}
        while self.top < budget:
            values = step(last)
            if largest_change(last, values) <= SETTLED:
                break
            self.top += 1
            last = values
            if self.top % self._every == 0:
                self._kept[self.top] = values
            while len(self._kept) > 2 and len(self._kept) * first.nbytes > max_bytes:
                self._every *= 2
                self._kept = {left: kept for left, kept in self._kept.items() if left % self._every == 0}
        self._kept[self.top] = last

    def at(self, remaining: int) -> NDArray[np.float64]:
        """Return the values for ``remaining`` tokens."""
        return self._kept[min(self.top, -(-remaining // self._every) * self._every)]

    def __len__(self) -> int:
        return len(self._kept)


def largest_change(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    """Return the largest difference of two arrays of logarithms, infinite where one of them alone is ``-inf``."""
    different = before != after  # not where both are -inf
    with np.errstate(invalid="ignore"):
        return float(np.abs(after[different] - before[different]).max(initial=0.0))


def log_product(log_x: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``log(exp(log_x) @ weights)`` for ``log_x[n, k]`` and ``weights[k, m]``, each row at a scale of its own."""
    top = log_x.max(-1, keepdims=True, initial=-np.inf)
    top[top == -np.inf] = 0.0
    with np.errstate(divide="ignore"):
        return np.log(np.exp(log_x - top) @ weights) + top
