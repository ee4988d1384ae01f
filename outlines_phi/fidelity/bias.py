"""The distance of plain masking from the conditioned distribution, from its own draws (theory.md, sections 4.4 and 10).

And the fit of a format with the texts of a model by itself: ``log Phi``, and the remedies where it is low.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..numerics.weights import Evidence, bisected, effective_size, log, log_mass_text, log_mean, scaled
from ..phi.tree.distribution import Beginnings

STAKES = np.array([1.0, *(1 / (1 + np.exp(np.linspace(-5.0, 9.0, 15))))])
"""Shares of the capital that are bet, on a logit scale: large for narrow distributions, small for heavy tails."""

HALVINGS = 42  # Of the bracket of a limit, on a logarithmic scale: to 1e-12 of it


class Interval(NamedTuple):
    """``low <= high``, both included."""

    low: float
    high: float

    @property
    def width(self) -> float:
        """``high - low``."""
        return self.high - self.low


def lower_limit(x: ArrayLike, alpha: float, copies: float = 1.0) -> float:
    """Return a number that the mean of nonnegative variables is under with probability at most ``alpha``.

    The variables ``x`` (``[n]``) are independent and their distributions may differ (the mean is then that of their means). It is
    the least ``m`` at which a fixed mixture of the bets ``prod_i (1 - c + c x_i / m)`` and ``mean(x) / m`` is at most ``1 / alpha``
    (theory.md, section 10). It is monotone in every ``x_i``, scales with ``x``, and is at least half of Markov's ``alpha mean(x)``.
    The method is betting: Waudby-Smith and Ramdas, arXiv 2010.09686. With ``copies`` it is the limit of so many copies of ``x``.
    """
    values, found = np.unique(np.asarray(x, dtype=np.float64), return_counts=True)
    counts = found * copies
    mean = float((values * counts).sum() / counts.sum())
    if mean <= 0:
        return 0.0
    goal = -math.log(alpha)
    # The mixture falls as m grows: it is over 1 / alpha at the lower end, and at most 1 at the mean.
    low, high = math.log(mean) + math.log(alpha / 2), math.log(mean)
    with np.errstate(divide="ignore"):  # a whole stake is lost at the first 0
        low, _ = bisected(low, high, lambda log_m: _log_capital(values, counts, mean, log_m) >= goal, HALVINGS)
    return math.exp(low)


def unit_interval(x: ArrayLike, alpha: float, copies: float = 1.0) -> Interval:
    """Return an interval that holds the mean of variables in [0, 1] with probability at least ``1 - alpha``.

    :func:`lower_limit` from both sides, ``alpha / 2`` each. Where the variables hardly vary it is far narrower than
    Hoeffding's ``mean -+ sqrt(log(2 / alpha) / 2n)``; it does not know how rare a value may be that no draw has shown, so its
    upper limit is never under about ``log(1 / alpha) / n``.
    """
    values = np.clip(np.asarray(x, dtype=np.float64), 0.0, 1.0)
    return Interval(lower_limit(values, alpha / 2, copies), 1.0 - lower_limit(1.0 - values, alpha / 2, copies))


def _log_capital(values: NDArray[np.float64], counts: NDArray[np.floating], mean: float, log_m: float) -> float:
    """Return the log of the mixture of bets against a mean of at most ``exp(log_m)``."""
    ratio = values * math.exp(-log_m)
    won = np.log1p(STAKES[:, None] * (ratio - 1.0)) @ counts
    mixed = float(np.logaddexp.reduce(won)) - math.log(len(STAKES))
    return float(np.logaddexp(mixed, math.log(mean) - log_m)) - math.log(2)


Limit: TypeAlias = Callable[[float], float]  # An upper limit, by the probability at which it may fail
RESAMPLES = 400  # Of a bootstrap interval

TOLERANCE = 0.05
"""The total variation up to which masking passes for not biased, where nothing else is said."""

GROWTH = tuple(2 ** (step / 2) for step in range(1, 25))
"""The multiples of the draws that are tried for a verdict that they do not reach, up to 4,096."""


class AuditVerdict(str, Enum):
    """The side of the tolerance on which the interval of the total variation of plain masking lies: above, not above, or both."""

    BIASED, NOT_BIASED, UNDECIDED = "biased", "not biased", "undecided"

    def __str__(self) -> str:
        return self.value

    @classmethod
    def of(cls, interval: Interval, tolerance: float) -> AuditVerdict:
        """Return the verdict of an interval."""
        if interval.low > tolerance:
            return cls.BIASED
        return cls.NOT_BIASED if interval.high <= tolerance else cls.UNDECIDED


class IntervalEstimate(NamedTuple):
    """A point estimate, ``nan`` where there is none, and its confidence interval."""

    value: float
    interval: Interval


@final
@dataclass(frozen=True, kw_only=True)
class Bias:
    """The distance of masking from ``mu*`` after one prompt, or on the average over prompts.

    All of it is about token sequences; what is said of total variation is an upper bound of the same for texts.
    """

    draws: int  # trajectories
    failures: int  # those of weight 0: truncation left them no legal token
    ess: float  # effective sample size of the weights; summed over prompts
    mean_w: float  # the mean of the weights: an unbiased estimate of Phi
    # Future validity, the probability that the model meets the format by itself, in nats: ``log mean_w`` (biased low), brought
    # inside ``certain`` and ``residual``. Its interval assumes nothing about tails (:func:`lower_limit`).
    log_phi: IntervalEstimate
    certain: (
        Interval  # ``(Lo, U)``, which hold Phi for certain: the tree of what the draws have visited, or an enumeration
    )
    # ``TV(mu_proj, mu*) = 1 - E min(1, w / Phi)``. The value plugs the estimate of Phi in; the interval holds at the stated
    # confidence, from the interval of Phi and the limits of a bounded mean.
    tv: IntervalEstimate
    # ``KL(mu_proj given completion || mu*) = log Phi - log Pr(w > 0) - E[log w | w > 0]``, in nats; read it beside ``failed``.
    # The interval is a bootstrap's, which covers less than it says where weights have heavy tails.
    kl: IntervalEstimate
    failed: IntervalEstimate  # ``Pr(w = 0)``
    attempts: int = 0  # residual attempts on what an enumeration left undecided
    # ``(Lo, limit)``: the limit of Phi that they give, at the confidence of an interval; ``None`` without attempts.
    residual: Interval | None = None
    tolerance: float = TOLERANCE  # the total variation that passes for no bias
    verdict: AuditVerdict = AuditVerdict.UNDECIDED  # where the interval of ``tv`` lies to it
    needed: int | None = None  # see :func:`draws_needed`; ``None`` where there is a verdict

    @property
    def phi(self) -> IntervalEstimate:
        """The exponential of ``log_phi``."""
        value, (low, high) = self.log_phi
        return IntervalEstimate(math.exp(value), Interval(math.exp(low), math.exp(high)))


def measure(
    log_w: Sequence[NDArray[np.float64]],
    certain: Sequence[tuple[float, float]],
    alpha: float,
    evidence: Sequence[Evidence] = (),
    tolerance: float = TOLERANCE,
) -> Bias:
    """Return the bias after some prompts, on the average over them (theory.md, section 10).

    ``log_w`` are, per prompt, ``[n]``: the log weight of every trajectory, at most 0, ``-inf`` for failures; as many for each.
    ``certain`` are certain bounds of Phi. Each interval fails with probability ``alpha`` at most: for TV, half of it goes to the
    limits of Phi, of all prompts together, and half to the mean of ``min(1, w / limit)``. ``evidence`` are residual attempts that
    know more of Phi than the certain bounds: an upper limit is then the lower one of two, each with half of the probability.
    """

    def by_attempts(rows: Sequence[int]) -> Limit | None:
        """The upper limit of the mean Phi of some prompts, each of which may fail with an equal share."""
        if not any(evidence[row].attempts for row in rows):
            return None
        return lambda share: float(
            np.mean([min(certain[row][1], math.exp(evidence[row].log_limit(share / len(rows)))) for row in rows])
        )

    every_row = range(len(log_w)) if evidence else ()
    bounds = [Interval(log(low), log(high)) for low, high in certain]
    mean_bounds = Interval(*np.mean(np.array(certain), axis=0).tolist())
    every = np.concatenate(log_w)
    pooled, single = by_attempts(every_row), [by_attempts([row]) for row in every_row] or [None] * len(log_w)
    rows = list(zip(log_w, bounds, single, strict=True))
    log_phi = [
        float(np.clip(log_mean(weights), known.low, known.high if limit is None else log(limit(alpha))))
        for weights, known, limit in rows
    ]

    def tv_of(copies: float) -> Interval:
        """The interval of TV, of so many copies of every draw."""
        share = alpha / 2 / len(rows)
        limits = [log_phi_interval(weights, known, share, limit, copies) for weights, known, limit in rows]
        most, least = (unit_interval(_overlaps(log_w, side), alpha / 2, copies) for side in zip(*limits, strict=True))
        return Interval(1.0 - most.high, 1.0 - least.low)

    failed, tv = every == -math.inf, tv_of(1.0)
    verdict = AuditVerdict.of(tv, tolerance)
    return Bias(
        draws=every.size,
        failures=int(failed.sum()),
        ess=sum(effective_size(scaled(weights)) for weights in log_w),
        mean_w=math.exp(log_mean(every)),
        log_phi=IntervalEstimate(
            log_mean(np.array(log_phi)),
            log_phi_interval(every, Interval(log(mean_bounds.low), log(mean_bounds.high)), alpha, pooled),
        ),
        certain=mean_bounds,
        tv=IntervalEstimate(1.0 - float(_overlaps(log_w, log_phi).mean()), tv),
        kl=_divergence(log_w, bounds, alpha),
        failed=IntervalEstimate(float(failed.mean()), unit_interval(failed, alpha)),
        attempts=sum(one.attempts for one in evidence),
        residual=Interval(mean_bounds.low, max(mean_bounds.low, pooled(alpha))) if pooled else None,
        tolerance=tolerance,
        verdict=verdict,
        needed=draws_needed(tv_of, tolerance, len(log_w[0])) if verdict is AuditVerdict.UNDECIDED else None,
    )


def draws_needed(tv_of: Callable[[float], Interval], tolerance: float, n: int) -> int | None:
    """Return about how many draws after each prompt decide what ``n`` leave undecided; ``None`` beyond the last of :data:`GROWTH`.

    ``tv_of(c)`` is the interval that ``c n`` draws give whose weights are distributed as those that were drawn: ``c`` copies of
    each. A limit by betting depends on the draws by their mean and the sum of their log bets, so copies multiply that sum by ``c``.
    Where weights vary, the sum falls with the square of a limit's distance from the mean, and the width goes as ``1 / sqrt(c)``;
    where they hardly do it is linear, and the width goes as ``1 / c``, as that of the upper limit of Phi does while no draw has
    shown a large weight. The number is the least ``c`` that decides, times ``n``. It carries the error of the weights that it
    stands on, and takes the certain bounds of Phi, which more draws tighten, as they are.
    """
    found = bisect_left(
        GROWTH, True, key=lambda copies: AuditVerdict.of(tv_of(copies), tolerance) is not AuditVerdict.UNDECIDED
    )
    return round(GROWTH[found] * n) if found < len(GROWTH) else None


def log_phi_interval(
    log_w: NDArray[np.float64], certain: Interval, alpha: float, attempted: Limit | None = None, copies: float = 1.0
) -> Interval:
    """Return an interval of the log of the mean weight that fails with probability at most ``alpha``, inside ``certain`` (logs).

    ``attempted(share)`` is another upper limit of the mean, which fails with probability at most ``share``.
    """
    top = float(log_w.max())
    # The lower limit scales with the weights, so it is computed where they do not underflow.
    low = top + log(lower_limit(np.exp(log_w - top), alpha / 2, copies)) if top > -math.inf else top
    share = alpha if attempted is None else alpha / 2
    high = min(log(unit_interval(np.exp(log_w), share, copies).high), certain.high)
    if attempted is not None:
        high = min(high, log(attempted(alpha / 4)))
    return Interval(min(max(low, certain.low), high), high)


def _overlaps(log_w: Sequence[NDArray[np.float64]], log_phi: Sequence[float]) -> NDArray[np.float64]:
    """Return ``min(1, w / Phi)`` of every trajectory of every prompt; 0 for failures, also where a limit of Phi is 0."""
    parts = [
        np.exp(np.minimum(0.0, weights - max(known, -1e300))) for weights, known in zip(log_w, log_phi, strict=True)
    ]
    return np.concatenate(parts)


def _divergence(log_w: Sequence[NDArray[np.float64]], bounds: Sequence[Interval], alpha: float) -> IntervalEstimate:
    value = float(np.mean([_kl(weights, known) for weights, known in zip(log_w, bounds, strict=True)]))
    if math.isnan(value):
        return IntervalEstimate(value, Interval(0.0, math.inf))
    rng = np.random.default_rng(0)
    resampled = [
        np.mean([_kl(rng.choice(weights, weights.size), known) for weights, known in zip(log_w, bounds, strict=True)])
        for _ in range(RESAMPLES)
    ]
    low, high = np.nanquantile(resampled, [alpha / 2, 1 - alpha / 2]).tolist()
    return IntervalEstimate(value, Interval(min(low, value), max(high, value)))


def _kl(log_w: NDArray[np.float64], certain: Interval) -> float:
    completed = log_w[log_w > -math.inf]
    if not completed.size:
        return math.nan
    log_phi = float(np.clip(log_mean(log_w), *certain))
    return max(0.0, log_phi - math.log(completed.size / log_w.size) - float(completed.mean()))


LOW = -5.0
"""``log Phi`` below which a format is said to fit badly: the model itself would write it less than once in 148 texts."""

REMEDIES = {
    "case": "begin the values with the capital or small letters that the model begins with",
    "blank": "move the blank: from the end of the prompt into the format, or out of it",
    "ask": "ask for the format in the prompt, with an example",
    "ends": "let the text go on after the value (ends='open')",
    "fields": "in an object, draw each field by itself (phi='fields')",
}
"""Remedies of a low ``log Phi``."""


@final
@dataclass(frozen=True, kw_only=True)
class FormatFit:
    """The fit of a format after a prompt.

    Attributes
    ----------
    prompt, form
        The names of the prompt and the format.
    log_z, log_z_bounds
        The estimate of ``log Phi(prompt)``, and ``(lower, upper)`` bounds, in nats.
    beginnings
        The likeliest first tokens of the model and of the format; ``None`` where they were not read.
    line
        The line that greedy decoding writes without a format; ``None`` where nobody asked for it.
    """

    prompt: str
    form: str
    log_z: float
    log_z_bounds: tuple[float, float]
    beginnings: Beginnings | None = None
    line: str | None = None

    @property
    def low(self) -> bool:
        """True where the model hardly ever writes the format by itself."""
        return self.log_z < LOW

    @property
    def log_phi(self) -> str:
        """``log Phi``, or its bounds, as a text."""
        return log_mass_text(self.log_z_bounds, self.log_z)

    @property
    def advice(self) -> tuple[str, ...]:
        """Those of :data:`REMEDIES` that fit: some are for mass that is lost at the first token, others for what is lost later."""
        if not self.low:
            return ()
        if self.beginnings is None:
            return tuple(REMEDIES[name] for name in ("ask", "ends", "fields"))
        later = ("ends", "fields") if self.beginnings.log_live > self.log_z / 2 else ()
        return tuple(REMEDIES[name] for name in (*_respelled(self.beginnings), "ask", *later))

    @property
    def warning(self) -> str:
        """Message of a call where :attr:`low`: remedies first."""
        said = ", or ".join(self.advice)
        _, _, mass, outside, inside = self.cells
        begun = f". First tokens outside of the format: {outside}; in it: {inside}, of {mass} together" if mass else ""
        return (
            f"{said[0].upper()}{said[1:]}; generator.fit(prompt) compares formats. log Phi is {self.log_phi} after "
            f"{self.prompt!r:.80}: {self.form} is what the model writes by itself with a probability of "
            f"{math.exp(self.log_z):.1g}{begun}."
        )

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table, under :data:`HEAD`."""
        if (first := self.beginnings) is None:
            return self.form, self.log_phi, "", "", ""
        return (
            self.form,
            self.log_phi,
            f"{math.exp(first.log_live):.2g}",
            first.listed(live=False),
            first.listed(live=True),
        )


HEAD = ("format", "log Phi", "first tokens", "outside of the format", "in the format")
"""The columns of a table of fits."""


@final
@dataclass(frozen=True, repr=False)
class FitTable(Sequence[FormatFit]):
    """The fits of some formats after some prompts; formats of one prompt together."""

    fits: tuple[FormatFit, ...]

    def __len__(self) -> int:
        return len(self.fits)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self.fits[index]

    def __repr__(self) -> str:
        """Return a table for each prompt, with the model's own line, and the advice."""
        parts = []
        for prompt, found in groupby(self.fits, lambda fit: fit.prompt):
            fits = list(found)
            cells = [HEAD, *(fit.cells for fit in fits)]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            rows = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
            advice = (f"{fit.form}: {', or '.join(fit.advice)}." for fit in fits if fit.low)
            line = f"Greedy decoding without a format: {fits[0].line!r}"
            parts.append("\n".join([f"After {prompt!r}", *rows, line, *advice]))
        return "\n\n".join(parts)


def _respelled(beginnings: Beginnings) -> tuple[str, ...]:
    """Return the remedies for first tokens outside of the format that differ from one in it by a blank before them, or by case."""
    outside, inside = ([token.text for token in beginnings.tokens if token.live == live] for live in (False, True))
    pairs = [(a, b) for a in outside for b in inside]
    blank = any(a[:1].isspace() != b[:1].isspace() and _alike(a.strip(), b.strip()) for a, b in pairs)
    case = any(
        not _alike(a.strip(), b.strip()) and _alike(a.strip().casefold(), b.strip().casefold()) for a, b in pairs
    )
    return ("blank",) * blank + ("case",) * case


def _alike(first: str, second: str) -> bool:
    """Return True if two texts are one, or one of more than a letter begins the other."""
    short, long = sorted((first, second), key=len)
    return bool(short) and (first == second or (len(short) > 1 and long.startswith(short)))
