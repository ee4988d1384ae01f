"""What a sampler returns: texts that know their law."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, final, overload

import numpy as np
from numpy.typing import NDArray

from ..vocabulary import Vocabulary


class Guarantee(IntEnum):
    """How the law of a draw stands to ``mu*``, weakest first.

    ``WEIGHTED``
        Drawn from a known proposal; expectations under ``mu*`` need the weight.
    ``CERTIFIED``
        Within a stated total variation of ``mu*``.
    ``EXACT``
        ``mu*`` itself.
    """

    WEIGHTED = 0
    CERTIFIED = 1
    EXACT = 2


@final
@dataclass(frozen=True, kw_only=True)
class Draw:
    """One member of the language.

    Attributes
    ----------
    text
        What was written, without the end of sequence.
    token_ids
        The generated ids, the end of sequence last.
    log_p
        ``log p(y)`` under the model and the settings, in nats.
    log_w
        ``log p(y) - log q(y)``, the importance weight; for exact and certified draws the constant estimate of ``log Phi``.
    guarantee
        What the draw's law is.
    candidates, ess
        Weighted draws may be picked from several candidates by weight: how many there were, and their effective number
        ``(sum w)^2 / sum w^2``.
    reader
        What makes the typed value of the text.
    """

    text: str
    token_ids: tuple[int, ...]
    log_p: float
    log_w: float
    guarantee: Guarantee
    candidates: int = 1
    ess: float = 1.0
    reader: Callable[[str], Any] = field(default=str, repr=False, compare=False)

    @classmethod
    def of(cls, vocabulary: Vocabulary, token_ids: Sequence[int], **attributes: Any) -> Draw:
        """Return the draw that ``token_ids`` spell."""
        return cls(text=vocabulary.decode(token_ids).decode(), token_ids=tuple(token_ids), **attributes)

    @cached_property
    def value(self) -> Any:
        """What the text means to its output type: an instance, a member, a number, ...; the text itself for a regex.

        Read when it is first asked for.

        Raises
        ------
        ValueReadError
            The type refuses the text, by a constraint that is not part of the format.
        """
        return self.reader(self.text)


@final
@dataclass(frozen=True, kw_only=True)
class DrawCounts:
    """What a call has cost.

    Attributes
    ----------
    calls
        Model calls, prompts included. Prompts of one batch share calls: each reports those of the whole batch.
    prompt_tokens, tokens
        Prompt tokens and generated tokens that the model evaluated, padding excluded, for the whole batch.
    attempts, accepted
        Attempts launched and finished in launch order up to the last draw, and those that gave a draw.
    """

    calls: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    attempts: int = 0
    accepted: int = 0


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Draws(Sequence[Draw]):
    """The draws of one prompt, with their counts.

    Attributes
    ----------
    items
        The draws, in order; i.i.d. from the sampler's law.
    counts
        What they cost.
    budget
        The ``N`` that the law depends on: the most tokens that a draw may have.
    failures
        Trajectories that found no allowed token (truncation can do this). They are draws of weight 0 and count in every mean.
    log_z_bounds
        ``(lower, upper)`` bounds of ``log Phi(prompt)``, in nats: those that the draws ended with, or, for certified draws, those
        of the certificate.
    normalizers
        Unbiased estimates of ``Phi(prompt)``, one per residual attempt.
    """

    items: tuple[Draw, ...]
    counts: DrawCounts = field(default_factory=DrawCounts)
    budget: int
    failures: int = 0
    log_z_bounds: tuple[float, float] = (-math.inf, 0.0)
    normalizers: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        failed = f" and {self.failures} of weight 0" if self.failures else ""
        return (
            f"<{len(self)} draws{failed}, {self.guarantee.name}: ess {self.ess:.4g}, log Phi {self.log_z:.4g}, "
            f"{self.counts.calls} model calls, {self.counts.tokens} tokens>"
        )

    @overload
    def __getitem__(self, index: int) -> Draw: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Draw, ...]: ...
    def __getitem__(self, index: int | slice) -> Draw | tuple[Draw, ...]:
        return self.items[index]

    @property
    def texts(self) -> list[str]:
        """The texts, in order."""
        return [draw.text for draw in self.items]

    @property
    def values(self) -> list[Any]:
        """The typed values, in order; see :attr:`Draw.value`."""
        return [draw.value for draw in self.items]

    def read_by(self, reader: Callable[[str], Any]) -> Draws:
        """Return the same draws, whose values ``reader`` makes of their texts."""
        return replace(self, items=tuple(replace(draw, reader=reader) for draw in self.items))

    @property
    def guarantee(self) -> Guarantee:
        """The weakest guarantee among the draws."""
        none = Guarantee.WEIGHTED if self.failures else Guarantee.EXACT
        return min((draw.guarantee for draw in self.items), default=none)

    @property
    def log_w(self) -> NDArray[np.float64]:
        """``[n + failures]``: the log weight of every trajectory, ``-inf`` for the failed ones."""
        return np.array([draw.log_w for draw in self.items] + [-math.inf] * self.failures)

    @property
    def ess(self) -> float:
        """Effective sample size ``(sum w)^2 / sum w^2``; equal to ``n`` for exact draws."""
        w = np.exp(self.log_w - self.log_w.max(initial=-math.inf)) if len(self.items) else np.zeros(1)
        return float(w.sum() ** 2 / (w**2).sum()) if w.any() else 0.0

    @property
    def weights(self) -> NDArray[np.float64]:
        """``[n]``: self-normalised weights of the draws, summing to 1; expectations under ``mu*`` use these."""
        log_w = np.array([draw.log_w for draw in self.items])
        if not len(log_w) or log_w.max() == -math.inf:
            return np.full(len(log_w), 1 / max(1, len(log_w)))
        w = np.exp(log_w - log_w.max())
        return w / w.sum()

    @property
    def log_z(self) -> float:
        """Estimate of ``log Phi(prompt)``, in nats; biased low, being the log of an unbiased estimate.

        From the residual attempts where there are any, from the weights of weighted draws, and else the middle of the bounds.
        """
        if self.normalizers:
            return math.log(math.fsum(self.normalizers) / len(self.normalizers)) if any(self.normalizers) else -math.inf
        if self.guarantee <= Guarantee.WEIGHTED and len(self.log_w):
            top = float(self.log_w.max())
            return top + math.log(float(np.exp(self.log_w - top).mean())) if top > -math.inf else top
        return middle(self.log_z_bounds)


def middle(log_bounds: tuple[float, float]) -> float:
    """Return the log of the mean of two numbers given by their logs."""
    return float(np.logaddexp(*log_bounds)) - math.log(2)
