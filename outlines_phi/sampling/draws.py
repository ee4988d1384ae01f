"""The draws of a prompt: a weighted sample, with its effective size and the estimate of the normaliser."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import EmptyLanguageError, UnsupportedError, ValueReadError
from ..numerics.checks import counted, is_number, shown
from ..numerics.marginals import Marginals
from ..numerics.weights import effective_size, log_mass_text, log_mean, normalized, scaled
from ..phi.tree.distribution import Beginnings
from .draw import Certificate, Draw, Guarantee, Population, TextSequence, numbers_of


@final
@dataclass(frozen=True, kw_only=True)
class DrawCounts:
    """The cost of a call."""

    # Model calls, prompts included. Prompts of one batch share calls: each reports those of the whole batch.
    calls: int = 0
    # Prompt tokens and generated tokens that the model evaluated, padding excluded, for the whole batch
    prompt_tokens: int = 0
    tokens: int = 0
    # Attempts launched and finished in launch order up to the last draw, and those that gave a draw. Under `sampler=` they are
    # runs of particles. Under a look-ahead they are attempts at windows, and the windows that were committed.
    attempts: int = 0
    accepted: int = 0
    # Under a draft: tokens that were drafted for the texts of this prompt, and those of them that were kept
    drafted: int = 0
    followed: int = 0
    # Under a draft: tokens that these texts have, and the model calls that each took part in, added up
    written: int = 0
    turns: int = 0

    @property
    def acceptance(self) -> float:
        """Accepted attempts per attempt; 1 where there were none."""
        return self.accepted / self.attempts if self.attempts else 1.0

    @property
    def draft_acceptance(self) -> float:
        """Drafted tokens that were kept, per drafted token; 0 where none were drafted."""
        return self.followed / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_call(self) -> float:
        """Tokens that a text grew by in a model call that it took part in, in the mean; 1 without a draft."""
        return self.written / self.turns if self.turns else 1.0


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Draws(TextSequence[Draw]):
    """The draws of one prompt, with their counts.

    Attributes
    ----------
    items
        The draws, in order; i.i.d. from the sampler's distribution.
    counts
        Their cost.
    budget
        The ``N`` that the distribution depends on: the most tokens that a draw may have.
    failures
        Trajectories that found no allowed token (truncation can do this). They are draws of weight 0 and count in every mean.
    log_z_bounds
        ``(lower, upper)`` bounds of ``log Phi(prompt)``, in nats: those that the draws ended with, or, for certified and
        confident draws, those of the certificate; these hold at its confidence.
    log_normalizers
        Logs of unbiased estimates of ``Phi(prompt)``, :attr:`normalizers`, one per residual attempt.
    certificate
        How far the distribution of a draw is from ``mu*``, at most: 0 for exact draws. ``None`` where nothing bounds it. Where a
        ``BudgetError`` has draws that are missing for want of a certificate: what was certified by then.
    populations
        The population that each draw was picked from, under ``sampler=``.
    rejections
        Under a look-ahead, with weights or without: how many of the failed attempts would have completed which phrase, by its
        name; phrases that cost none are left out. In free text these are all that failed, ``counts.attempts -
        counts.accepted``, as far as the model writes no special tokens; beside an output type some come upon what the type
        itself rules out, or upon a dead end. Other samplers count attempts alone: a mask has none that fails, and exact draws
        keep no distributions of dead tokens.
    beginnings
        The likeliest first tokens of the model and of the format, where the draws have read them.
    """

    items: tuple[Draw, ...]
    counts: DrawCounts = field(default_factory=DrawCounts)
    budget: int
    failures: int = 0
    log_z_bounds: tuple[float, float] = (-math.inf, 0.0)
    log_normalizers: tuple[float, ...] = ()
    certificate: Certificate | None = None
    populations: tuple[Population, ...] = field(default=(), compare=False)
    rejections: Mapping[str, int] = field(default_factory=dict, hash=False)
    beginnings: Beginnings | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        failed = f" and {self.failures} of weight 0" if self.failures else ""
        certified = f" ({self.certificate})" if self.certificate and self.certificate.total_variation else ""
        rejected = (
            f", {counted(sum(self.rejections.values()), 'attempt')} upon banned phrases" if self.rejections else ""
        )
        drafted = f", {self.counts.tokens_per_call:.3g} tokens per call by drafts" if self.counts.turns else ""
        return (
            f"<{counted(len(self), 'draw')}{failed}, {self.guarantee}{certified}: ess {self.ess:.4g}, log Phi {self._log_phi}, "
            f"{counted(self.counts.calls, 'model call')}, {counted(self.counts.tokens, 'token')}{drafted}{rejected}>"
        )

    @property
    def _log_phi(self) -> str:
        """``log Phi`` as text: bounds where there are any, and an estimate where it is more than their middle."""
        estimated = bool(self.log_normalizers) or self.guarantee <= Guarantee.WEIGHTED
        return log_mass_text(self.log_z_bounds, self.log_z if estimated else math.nan)

    def read_by(self, reader: Callable[[str], Any]) -> Draws:
        """Return the same draws, whose values ``reader`` makes of their texts."""
        read = {population: population.read_by(reader) for population in self.populations}
        return replace(
            self,
            items=tuple(replace(draw, reader=reader) for draw in self.items),
            populations=tuple(read[population] for population in self.populations),
        )

    def expectation(self, f: Callable[[Draw], float]) -> float:
        """Return the mean of ``f(draw)`` by the weights, an estimate of that under ``mu*``; over all particles where there are any.

        Raises
        ------
        EmptyLanguageError
            There is no draw.
        UnsupportedError
            ``f`` is no function of a draw that returns a number.
        """
        if not self.items:
            raise self._nothing
        means = [population.expectation(f) for population in self.populations] or numbers_of(f, self.items)
        return float(np.dot(self.weights, means))

    def marginals(self, confidence: float = 0.95) -> Marginals:
        """Return the distribution of each field of the values, with intervals at this confidence, each by itself.

        Those of Wilson at the effective sample size, of the distribution that was drawn from where the weights are not known. What
        a certificate leaves open is added to both sides.

        Raises
        ------
        EmptyLanguageError
            There is no draw.
        UnsupportedError
            ``confidence`` is not between 0 and 1.
        """
        if not is_number(confidence) or not 0 < confidence < 1:
            raise UnsupportedError(
                f"confidence={shown(confidence)} was given to marginals(); expected a number between 0 and 1."
            )
        if not self.items:
            raise self._nothing
        slack = self.certificate.total_variation if self.certificate else 0.0
        return Marginals.by_weight(
            list(map(_value_or_error, self.items)), self.weights, confidence, self.ess, slack, f"{self!r:.300}"
        )

    @property
    def _nothing(self) -> EmptyLanguageError:
        return EmptyLanguageError(
            f"There is no draw to take a mean of: all {self.failures} were of weight 0. Draw more, or with another sampler."
        )

    @property
    def guarantee(self) -> Guarantee:
        """The weakest guarantee among the draws."""
        none = Guarantee.WEIGHTED if self.failures else Guarantee.EXACT
        return min((draw.guarantee for draw in self.items), default=none)

    @property
    def weighed(self) -> bool:
        """True if the weights are known; a look-ahead estimates them only where it is asked to."""
        return not any(math.isnan(draw.log_w) for draw in self.items)

    @property
    def log_w(self) -> NDArray[np.float64]:
        """``[n + failures]``: the log weight of every trajectory, ``-inf`` for the failed ones, ``nan`` where it is not known."""
        return np.array([draw.log_w for draw in self.items] + [-math.inf] * self.failures)

    @property
    def ess(self) -> float:
        """Effective sample size ``(sum w)^2 / sum w^2``; equal to ``n`` for exact draws.

        ``n`` where the weights are not known: that of the distribution that they were drawn from.
        """
        if not self.weighed:
            return float(len(self.items))
        return effective_size(scaled(self.log_w))

    @property
    def weights(self) -> NDArray[np.float64]:
        """``[n]``: self-normalised weights of the draws, summing to 1; expectations under ``mu*`` use these.

        Equal where they are not known: expectations are then those under the distribution that was drawn from.
        """
        w = normalized(self.log_w[: len(self.items)]) if self.weighed else np.zeros(len(self.items))
        return w if w.any() else np.full(len(w), 1 / max(1, len(w)))

    @property
    def normalizers(self) -> tuple[float, ...]:
        """Unbiased estimates of ``Phi(prompt)``, one per residual attempt."""
        return tuple(map(math.exp, self.log_normalizers))

    @property
    def log_z(self) -> float:
        """Estimate of ``log Phi(prompt)``, in nats; biased low, being the log of an unbiased estimate.

        From the residual attempts where there are any, from the weights of weighted draws, and else the middle of the bounds.
        ``nan`` where the weights are not known.
        """
        if not self.weighed:
            return math.nan
        if self.log_normalizers:
            return log_mean(self.log_normalizers)
        if self.guarantee <= Guarantee.WEIGHTED and len(self.log_w):
            return log_mean(self.log_w)
        return middle(self.log_z_bounds)


def _value_or_error(draw: Draw) -> Any:
    try:
        return draw.value
    except ValueReadError as error:
        return error


def middle(log_bounds: tuple[float, float]) -> float:
    """Return the log of the mean of two numbers given by their logs."""
    return float(np.logaddexp(*log_bounds)) - math.log(2)
