"""Measurements of one estimator, run by one sampler, on one language."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import numpy as np
from numpy.typing import ArrayLike

from outlines_phi.fidelity.findings import frequencies, noise_floor, total_variation

from .reference import Ids, Reference

How = Literal["computed", "draws", "groups", "weights", "theorem", ""]  # Where a distance comes from; see `Cell`


@final
@dataclass(frozen=True, kw_only=True)
class Truth:
    """The knowledge of ``mu*`` on a language; ``None`` where something is not known."""

    log_phi: float  # log Phi(prompt) in nats
    # Half the width of certified bounds on it, or the standard error of an estimate; 0 if it is exact.
    error: float = 0.0
    texts: Mapping[str, float] | None = None  # the distribution of texts, all tokenizations summed
    masked: Mapping[str, float] | None = None  # that of plain masking
    tolerance: float = 0.0  # total variation that ``texts`` may be off
    reference: Reference | None = None  # every member with its probabilities, where the language was enumerated
    source: str  # in words


@final
@dataclass(frozen=True, kw_only=True)
class Cell:
    """One estimator, run by one sampler, on one language; ``None`` where something is not known."""

    family: str
    language: str
    estimator: str
    sampler: str
    # The origin of the distance: computed, over every member; draws, by their frequencies; groups of texts, a lower limit, where
    # these are too many for the draws; weights, 1 - mean min(1, w / Phi), of token sequences; theorem, nothing was measured.
    how: How = ""
    tv: float | None = None  # total variation from mu*, of texts, all tokenizations of one summed, but for weights
    # The mean TV that as many draws of mu* show, or the standard error of an estimate from weights.
    floor: float | None = None
    change: float | None = None  # (tv - tv_mask) / tv_mask, of plain masking; None where noise would decide it
    tv_tokens: float | None = None  # of token sequences
    kl: float | None = None  # KL(q || mu*) of token sequences, in nats
    ess: float | None = None  # (E w)^2 / E w^2: how many draws of mu* one weighted draw is worth
    lost: float | None = None  # share of mu* that the estimator can never draw; 0 unless it is wrong
    log_z_error: float | None = None  # log of the mean weight of n draws, minus log Phi
    certificate: float | None = None  # an upper limit of the TV (of token sequences) by the sampler's own account
    calls: float | None = None  # model calls of one draw in a call of its own
    tokens: float | None = None  # and the generated tokens that it evaluates
    # TV of n draws from the distribution that was computed over the mean noise of so many; about 1.
    agreement: float | None = None
    n: int = 0  # draws that were made
    note: str = ""  # what went wrong

    @property
    def method(self) -> str:
        """Estimator and sampler as one name."""
        return self.estimator if self.sampler == "draw" else f"{self.estimator} + {self.sampler}"


class Figures(NamedTuple):
    """Figures of a distribution; names as in :class:`Cell`. Those that draws tell by their weights have no ``tv`` of texts."""

    tv_tokens: float
    kl: float
    ess: float
    tv: float | None = None
    lost: float | None = None
    floor: float = 0.0  # the standard error of ``tv_tokens`` where it is an estimate


def computed(reference: Reference, name: str, text_of: Callable[[Ids], str]) -> Figures:
    """Return the exact figures of ``q_h``, ``h`` being the estimator ``name`` of ``reference``, by summation over all members.

    Where ``q_h`` loses trajectories (truncation leaves them no token), the distances are those of the completed ones, and lost
    ones count in the effective sample size with weight 0.
    """
    members = list(reference.log_p)
    log_p = np.array([reference.log_p[ids] for ids in members])
    log_q = np.array([reference.log_q[name][ids] for ids in members])
    mu, q = np.exp(log_p - reference.log_phi), np.exp(log_q)
    drawn = q > 0
    completed = float(q.sum())
    if completed <= 0:
        return Figures(1.0, math.nan, 0.0, tv=1.0, lost=1.0)
    finished = q / completed
    texts = [text_of(ids) for ids in members]
    difference: Counter[str] = Counter()
    for text, gap in zip(texts, (finished - mu).tolist(), strict=True):
        difference[text] += gap
    log_ratio = log_q[drawn] - math.log(completed) - (log_p[drawn] - reference.log_phi)
    w = np.exp(log_p[drawn] - reference.log_phi - log_q[drawn])  # w / Phi
    mean, square = float((q[drawn] * w).sum()), float((q[drawn] * w**2).sum())
    return Figures(
        tv_tokens=float(np.abs(finished - mu).sum()) / 2,
        kl=max(0.0, float((finished[drawn] * log_ratio).sum())),
        ess=mean**2 / square,
        tv=sum(map(abs, difference.values())) / 2,
        lost=float(mu[~drawn].sum()),
    )


def drawn(texts: Sequence[Hashable], target: Mapping[Any, float]) -> tuple[float, float]:
    """Return the TV of the frequencies of ``texts`` from ``target``, and the mean TV that as many draws of ``target`` show."""
    if not texts:
        return math.nan, math.nan
    return total_variation(frequencies(texts), target), noise_floor(target, len(texts))


def ordered_groups(target: Mapping[str, float], other: Mapping[str, float], groups: int) -> dict[str, int]:
    """Return the group of each text of ``target``: texts that ``other`` has too seldom first, too often last.

    Each group has about the same share of the mean of the two distributions. The TV of the two over groups is close to that over
    texts, because what one of them has too much of is kept apart from what it has too little of; for any other it is a lower limit.
    """
    ratio = {text: other.get(text, 0.0) / p if p > 0 else math.inf for text, p in target.items()}
    texts = sorted(target, key=lambda text: ratio[text])
    mean = np.array([(target[text] + other.get(text, 0.0)) / 2 for text in texts])
    place = (np.cumsum(mean) - mean / 2) / mean.sum() * groups
    return dict(zip(texts, np.minimum(place.astype(int), groups - 1).tolist(), strict=True))


def weighed(log_w: ArrayLike, log_phi: float) -> Figures:
    """Estimate the distances of a proposal by weights of its draws, ``Phi`` being known (theory.md, section 4.4).

    ``TV(q, mu*) = 1 - E_q min(1, w / Phi)`` and ``KL(q || mu*) = log Phi - E_q log w``, of token sequences; where draws of weight
    0 are among them, of the distribution of the others.
    """
    log_ratio = np.asarray(log_w, dtype=np.float64) - log_phi
    finished = log_ratio[log_ratio > -math.inf]
    if not len(finished):
        return Figures(1.0, math.nan, 0.0)
    log_completed = math.log(len(finished) / len(log_ratio))
    least = np.exp(np.minimum(0.0, finished + log_completed))
    w = np.exp(log_ratio - log_ratio.max())
    return Figures(
        tv_tokens=1.0 - float(least.mean()),
        kl=-float(finished.mean()) - log_completed,
        ess=float(w.mean() ** 2 / (w**2).mean()),
        floor=float(least.std()) / math.sqrt(len(least)),
    )
