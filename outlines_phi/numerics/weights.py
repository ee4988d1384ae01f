"""Arithmetic of log weights, draws in proportion to weights, and an anytime-valid upper confidence limit of Phi by betting.

Draws go by the inverse of the cumulative sums of weights. Rounding may put a quantile at the total mass itself; a draw is then the
last index that has any mass.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, final

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


STAKES = np.array([1.0, 0.85, 0.6, 0.4, 0.2, 0.07])
"""Shares of its capital that each of the bettors stakes on the failure of an attempt."""

CAPITAL = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
"""The capital that each begins with. Half goes to the one who stakes all, the fastest where nothing undecided is valid."""

HALVINGS = 60  # Bisections of the bracket of a limit, in nats


class Wave(NamedTuple):
    """Residual attempts launched at the same bounds: the logs of ``(Lo, U - Lo)`` of the root then, and how many succeeded."""

    log_lower: float
    log_gap: float
    attempts: int
    successes: int


@final
@dataclass(eq=False)
class Evidence:
    """Residual attempts, wave by wave, and the values of Phi that they rule out, by betting (theory.md, section 5.8).

    Against ``Phi >= phi``, with ``t = (phi - Lo) / R`` for a wave at the bounds ``Lo``, ``R = U - Lo``, a bet that stakes the share
    ``c`` of a capital multiplies it by ``1 - c`` at a success and by ``1 + c t / (1 - t)`` at a failure. The probability that all
    bettors together *ever* have ``1 / alpha`` times what they began with is at most ``alpha`` (Ville's inequality): one may look
    at any time, launch attempts in view of earlier ones, and let the bounds move from wave to wave.
    """

    waves: list[Wave] = field(default_factory=list)  # Those that are finished, all of each

    @property
    def attempts(self) -> int:
        """Attempts in all waves."""
        return sum(wave.attempts for wave in self.waves)

    def log_limit(self, alpha: float) -> float:
        """Return a limit that ``log Phi`` exceeds with probability at most ``alpha``, no more than a certain bound of the waves."""
        high = min((log_sum([wave.log_lower, wave.log_gap]) for wave in self.waves), default=0.0)
        low = max((wave.log_lower for wave in self.waves), default=-math.inf)
        if not self.rules_out(high, alpha):
            return high
        # Shares of the bracket, laid out by masses above its lower end
        _, above = bisected(0.0, 1.0, lambda share: not self.rules_out(_between(low, high, share), alpha), HALVINGS)
        return _between(low, high, above)

    def rules_out(self, log_phi: float, alpha: float) -> bool:
        """Return True if ``log Phi`` is under ``log_phi``; the error over all times together is at most ``alpha``."""
        return alpha > 0 and float(np.logaddexp.reduce(self._log_capital(log_phi))) >= -math.log(alpha)

    def _log_capital(self, log_phi: float) -> NDArray[np.float64]:
        """Return the log of what each bettor has, against ``log Phi >= log_phi``."""
        log_capital = np.log(CAPITAL)
        with np.errstate(divide="ignore"):  # a whole stake is lost at the first success
            lost = np.log1p(-STAKES)
        for log_lower, log_gap, attempts, successes in self.waves:
            t = _share(log_phi, log_lower, log_gap)
            log_capital += (attempts - successes) * np.log1p(STAKES * t / (1 - t))
            if successes:
                log_capital += successes * lost
        return log_capital


def _between(log_low: float, log_high: float, share: float) -> float:
    """Return the log of the number at a share of the way from one to another."""
    return log_sum([log_low, log(share) + log_difference(log_high, log_low)])


def _share(log_phi: float, log_lower: float, log_gap: float) -> float:
    """Return the success rate at which ``log Phi`` would be ``log_phi``, a little under 1 at most."""
    return min(ratio(log_difference(log_phi, log_lower), log_gap), 1 - 1e-12)
