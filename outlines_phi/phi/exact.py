"""Future validity itself, by the token tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

from ..errors import UnsupportedError
from .estimator import Need, Phi


@final
@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much work a call may start before it gives up. Work that was started is always finished.

    Attributes
    ----------
    attempts
        Attempts launched per requested draw.
    tokens
        Model tokens per requested draw, prompts excluded, counted for each prompt alone when an attempt is launched.
    """

    attempts: int = 5_000
    tokens: int = 20_000

    def __post_init__(self) -> None:
        for name in ("attempts", "tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UnsupportedError(f"Effort({name}={value!r}) was given; expected a whole number of at least 1.")


@final
@dataclass(frozen=True, kw_only=True)
class ExactPhi(Phi):
    """Exact draws of ``mu*`` by adaptive rejection over a tree of bounds (mathematics.md, section 5).

    Attributes
    ----------
    tolerance
        0 for exact draws. A positive ``eps`` enumerates best-first until ``U - Lo <= eps Lo`` and then draws without rejection,
        with a total variation to ``mu*`` of at most ``(U - Lo) / U``.
    effort
        When to give up with a :class:`BudgetError`.
    normalizers
        Residual attempts after the draws; each gives an unbiased estimate of ``Phi`` within the tree's bounds.
    width
        Attempts in flight at once, per prompt; more mean fewer model calls and, for few draws, more model tokens.
    """

    tolerance: float = 0.0
    effort: Effort = field(default_factory=Effort)
    normalizers: int = 0
    width: int = 32
    name: ClassVar[str] = "exact"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide", "logits", "model"})

    def __post_init__(self) -> None:
        if not isinstance(self.effort, Effort):
            raise UnsupportedError(
                f"ExactPhi(effort={self.effort!r}) was given; expected Effort(attempts=..., tokens=...)."
            )
        if not isinstance(self.tolerance, (int, float)) or not 0 <= self.tolerance < 1:
            raise UnsupportedError(f"ExactPhi(tolerance={self.tolerance!r}) was given; expected a number in [0, 1).")
        if not isinstance(self.normalizers, int) or self.normalizers < 0:
            raise UnsupportedError(f"ExactPhi(normalizers={self.normalizers!r}) was given; expected 0 or more.")
        if not isinstance(self.width, int) or self.width < 1:
            raise UnsupportedError(f"ExactPhi(width={self.width!r}) was given; expected a whole number of at least 1.")
