"""Names of cases that are the same in every process, and tolerances of numbers that come from float32 forward passes."""

import math
import re
from typing import Any

import pytest

ROUNDOFF = 2.0**-24  # Half the distance of float32 numbers, over the number
LOGIT = 16  # The largest logit of the bundled model is 15.7; those of the tiny random models are smaller
ADDITIONS = 2 * 4 * 128  # Terms of the sums on the way to a logit: two branches in each of 4 layers, 128 wide
TOKENS = 12  # Of the texts that are compared

TOKEN = ROUNDOFF * LOGIT * math.sqrt(ADDITIONS)
"""The tolerance of the log-probability of one token, 3.1e-5 nats at temperature 1.

Kernels add in different orders, and each addition rounds by at most ``ROUNDOFF`` of what is added. Errors of both signs add up as
in a random walk, over the terms of a logit. Over 1.2 million of them ATEN_CPU_CAPABILITY=default is 1.1e-5 from avx2 at most.
"""

NATS = TOKEN * math.sqrt(TOKENS)
"""The tolerance of the log-probability of a text, 1.1e-4 nats: the same walk goes on over its tokens."""

SHARE = math.expm1(2 * NATS)
"""The relative tolerance of a probability: of a share, whose numerator and denominator are both ``exp`` of such numbers."""


def near_log(expected: Any) -> Any:
    """Return the approximation of log-probabilities, weights and log normalisers within :data:`NATS`."""
    return pytest.approx(expected, rel=0, abs=NATS)


def near(expected: Any) -> Any:
    """Return the approximation of probabilities within :data:`SHARE` of each."""
    return pytest.approx(expected, rel=SHARE)


def named(value: object) -> str:
    """Return the text of a value without addresses, which differ between the processes that collect the same tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
