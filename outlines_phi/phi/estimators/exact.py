"""Future validity itself, by the token tree."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, final

from ...errors import UnsupportedError
from ...numerics.checks import check_counts, check_fits, check_kind, is_number
from ..estimator import Need, Phi


@final
@dataclass(frozen=True, kw_only=True)
class Effort:
    """The compute limit of a call. Work that was started is always finished.

    Attributes
    ----------
    attempts
        Attempts launched per requested draw.
    tokens
        Model tokens per requested draw, prompts excluded, counted for each prompt alone when an attempt is launched.
    seconds
        Seconds of the whole call, from when it is its turn at the model; ``None`` for no limit. Read between model calls, before an
        attempt is launched or more is expanded. Every draw that is there then is as good as any other. *How many* there are, and
        in a seeded call whether they are all there, depends on the machine: to use such a set as if it were complete costs at most
        the probability that the time runs out, in total variation.
    """

    attempts: int = 5_000
    tokens: int = 20_000
    seconds: float | None = None

    def __post_init__(self) -> None:
        check_counts("Effort", attempts=self.attempts, tokens=self.tokens)
        if self.seconds is not None and not (is_number(self.seconds) and 0 < self.seconds < math.inf):
            raise UnsupportedError(
                f"Effort(seconds={self.seconds!r}) was given; expected a positive number, or None for no limit of time."
            )


@final
@dataclass(frozen=True, kw_only=True)
class ExactPhi(Phi):
    """Exact draws of ``mu*`` by adaptive rejection over a tree of bounds (theory.md, section 5).

    Attributes
    ----------
    tolerance
        0 for exact draws. A positive ``eps`` enumerates best-first until ``U - Lo <= eps Lo`` and then draws without rejection,
        with a total variation to ``mu*`` of at most ``(U - Lo) / U``.
    confidence
        ``None`` for certainty. Else, in (0, 1) and beside a tolerance ``eps``: what enumeration leaves undecided is tested by
        residual attempts, and draws are made, from the members that were enumerated, as soon as ``TV(law, mu*) <= eps`` is
        certified at this confidence. A part of the effort's tokens goes to the attempts, the last quarter at least.
    effort
        When to give up with a :class:`BudgetError`. A certificate may take ``tokens`` model tokens and ``attempts`` residual
        attempts in all, for any number of draws; its seconds are those of certificate and draws together.
    normalizers
        Residual attempts after the draws; each gives an unbiased estimate of ``Phi`` within the tree's bounds.
    width
        Attempts in flight at once, per prompt; more mean fewer model calls and, for few draws, more model tokens.
    """

    tolerance: float = 0.0
    confidence: float | None = None
    effort: Effort = field(default_factory=Effort)
    normalizers: int = 0
    width: int = 32
    name: ClassVar[str] = "exact"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide", "logits", "model"})

    def __post_init__(self) -> None:
        check_kind("ExactPhi", "effort", self.effort, Effort, "Effort(attempts=..., tokens=..., seconds=...)")
        if not is_number(self.tolerance) or not 0 <= self.tolerance < 1:
            raise UnsupportedError(f"ExactPhi(tolerance={self.tolerance!r}) was given; expected a number in [0, 1).")
        if self.confidence is not None and (not is_number(self.confidence) or not 0 < self.confidence < 1):
            raise UnsupportedError(
                f"ExactPhi(confidence={self.confidence!r}) was given; expected a number between 0 and 1, such as 0.95, or None "
                "for a certificate that is certain."
            )
        if self.confidence is not None and self.tolerance == 0:
            raise UnsupportedError(
                f"ExactPhi(confidence={self.confidence!r}) was given with tolerance=0, which asks for exact draws; these need no "
                "certificate. Leave confidence out, or give the total variation that will do as well: ExactPhi(tolerance=0.05, "
                f"confidence={self.confidence!r})."
            )
        check_counts("ExactPhi", least=0, normalizers=self.normalizers)
        check_counts("ExactPhi", width=self.width)
        check_fits("normalizers", self.normalizers, each=32, things="residual attempts")
        check_fits("width", self.width, each=4096, things="attempts at once")
