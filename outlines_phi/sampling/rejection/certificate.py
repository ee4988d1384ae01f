"""How far the law of some draws is from ``mu*``, at most."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from ...numerics.checks import check_counts


@final
@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A bound on the distance of the law of draws to ``mu*``.

    Attributes
    ----------
    total_variation
        ``TV(law of one draw, mu*)`` is at most this; 0 for exact draws. Of token sequences, so also of texts.
    confidence
        1 where that is certain. Less where it rests on residual attempts: the probability that a certificate is issued that does
        not hold is at most ``1 - confidence``.
    """

    total_variation: float
    confidence: float = 1.0

    def for_draws(self, n: int) -> float:
        """Return a bound on the total variation of the joint law of ``n`` draws: ``1 - (1 - eps)^n``, they are independent.

        Raises
        ------
        UnsupportedError
            ``n`` is no whole number of at least 0.
        """
        check_counts("for_draws()", least=0, n=n)
        return -math.expm1(n * math.log1p(-self.total_variation)) if self.total_variation < 1 else float(n > 0)

    def __str__(self) -> str:
        at = "for certain" if self.confidence == 1 else f"at {self.confidence:.6g} confidence"
        return f"TV at most {self.total_variation:.4g} {at}"


EXACT = Certificate(total_variation=0.0)
"""That of exact draws."""
