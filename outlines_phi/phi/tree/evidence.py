"""An anytime-valid upper confidence limit of Phi, by betting on residual attempts (theory.md, section 5.8)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...numerics.weights import bisected, log, log_difference, log_sum, ratio

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
