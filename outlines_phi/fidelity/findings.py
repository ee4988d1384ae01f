"""The findings of an audit: the bias, the places where legal mass is lost, and the values that this distorts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..lm.model import ModelCounts
from ..numerics.weights import effective_size, scaled
from ..settings import SamplingSettings
from .bias import Bias
from .comparison import WHOLE
from .traces import Trace, byte_places, field_values

ENOUGH = 30.0  # Effective draws per prompt from which on values are compared
SEEN = 5  # Draws that a value must have to be compared: an error is taken to be normal


@final
@dataclass(frozen=True, kw_only=True)
class Loss:
    """The loss of legal mass by masking in one place, a field or a step."""

    place: str  # the field's path, or the step's number, counted from 1
    steps: int  # steps that all draws took there
    failures: int  # draws that ended there without a legal token
    nats: float  # ``- sum_t log S(y_t)`` over the steps there, on the average over completed draws
    # ``nats`` less the same under ``mu*`` (by self-normalised weights): what a masked draw loses there beyond what a draw of
    # the conditioned distribution does. Over all places these sum to ``E_mask[-log w] - E_mu*[-log w]``, the divergence
    # ``KL(mu_proj || mu*) + KL(mu* || mu_proj)``: the part of the bias that arises there. A loss that all draws share has none.
    excess: float
    # Log probability of the model's likeliest token less that of the likeliest legal one, on the average over the steps there,
    # in nats. 0 where the model's first choice is legal.
    margin: float


@final
@dataclass(frozen=True, kw_only=True)
class Distortion:
    """A value that masking writes too often, or too rarely."""

    field: str  # the field's path
    value: str  # the value as JSON; of other formats the whole text
    masked: float  # its share of the completed draws: its probability under masking
    model: float  # its self-normalised weighted share: its estimated probability under ``mu*``
    # The bound that ``abs(model - masked)`` exceeds by chance with probability at most ``1 - confidence``, for all values together.
    noise: float


def field_places(trace: Trace) -> list[str]:
    """Return the JSON field that each step of a trace is about: where the text stands when the step is taken."""
    places = byte_places(b"".join(trace.pieces))
    begins = accumulate(map(len, trace.pieces), initial=0)
    return [places[begin] for begin, _ in zip(begins, trace.log_legal, strict=False)]


def step_places(trace: Trace) -> list[str]:
    """Return the number of each step of a trace."""
    return [str(step) for step in range(1, len(trace.log_legal) + 1)]


def is_json(traces: Sequence[Trace]) -> bool:
    """Return True if the completed texts, of which there are some, are JSON objects or arrays."""
    texts = {trace.text for trace in traces if not trace.failed}
    return bool(texts) and all(field_values(text) is not None for text in texts)


def losses(prompts: Sequence[Sequence[Trace]], places: Callable[[Trace], list[str]]) -> tuple[Loss, ...]:
    """Return the loss in each place, in the order in which draws come to them; a mean over the prompts."""
    # By place: steps, failures, the sum of margins, nats, excess
    sums = defaultdict[str, NDArray[np.float64]](lambda: np.zeros(5))
    first: dict[str, int] = {}
    measured = sum(any(not trace.failed for trace in traces) for traces in prompts)
    for traces in prompts:
        log_w = log_weights(traces)
        completed = (log_w > -math.inf) / max(1, (log_w > -math.inf).sum())
        w = np.exp(log_w - log_w.max()) if completed.any() else np.zeros(len(traces))
        meant = w / max(w.sum(), math.ulp(0.0))
        for trace, share, share_meant in zip(traces, completed.tolist(), meant.tolist(), strict=True):
            for step, (place, log_s, margin) in enumerate(
                zip(places(trace), trace.log_legal, trace.margin, strict=True)
            ):
                first[place] = min(first.get(place, step), step)
                failed, lost = log_s == -math.inf, -log_s / measured if measured else 0.0
                sums[place] += (1, 1, 0, 0, 0) if failed else (1, 0, margin, share * lost, (share - share_meant) * lost)
    return tuple(
        Loss(
            place=place,
            steps=int(steps),
            failures=int(failures),
            nats=max(0.0, nats),
            excess=excess,
            margin=margins / max(1, steps - failures),
        )
        for place in sorted(first, key=lambda place: first[place])
        for steps, failures, margins, nats, excess in (sums[place].tolist(),)
    )


def distortions(prompts: Sequence[Sequence[Trace]], alpha: float, *, as_json: bool) -> tuple[Distortion, ...]:
    """Return the values whose share under masking differs from that under ``mu*`` by more than noise, the worst first.

    With ``r = w / mean(w)`` and ``c = 1[w > 0] / Pr(w > 0)``, the difference of the two shares of a value has the influence
    function ``r (1[value] - model) - c (1[value] - masked)``; its errors are taken to be normal, with Bonferroni's correction for
    all values of all fields. Prompts of fewer than :data:`ENOUGH` effective draws are left out.
    """
    used = [traces for traces in prompts if effective_size(scaled(log_weights(traces))) >= ENOUGH]
    read = [_draws_of_values(traces, as_json) for traces in used]
    seen = Counter({item: 0 for draws in read for item in draws})
    for draws in read:
        seen.update({item: len(numbers) for item, numbers in draws.items()})
    compared = [item for item, count in seen.items() if count >= SEEN]
    if not compared:
        return ()
    limit = NormalDist().inv_cdf(1 - alpha / 2 / len(compared))
    masked, model, variance = np.zeros((3, len(compared)))
    for traces, draws in zip(used, read, strict=True):
        log_w = log_weights(traces)
        w = np.exp(log_w - log_w.max())
        r, c = w / w.mean(), (w > 0) / (w > 0).mean()
        for i, item in enumerate(compared):
            has = np.zeros(len(traces))
            has[draws.get(item, [])] = 1.0
            here, there = float((c * has).mean()), float((r * has).mean())
            influence = r * (has - there) - c * (has - here)
            masked[i] += here / len(used)
            model[i] += there / len(used)
            variance[i] += float(influence @ influence) / len(has) / (len(has) - 1) / len(used) ** 2
    noise = limit * np.sqrt(variance) + 1e-9
    found = [
        Distortion(field=field, value=value, masked=float(masked[i]), model=float(model[i]), noise=float(noise[i]))
        for i, (field, value) in enumerate(compared)
        if abs(model[i] - masked[i]) > noise[i]
    ]
    return tuple(sorted(found, key=lambda one: -abs(one.model - one.masked)))


def _draws_of_values(traces: Sequence[Trace], as_json: bool) -> dict[tuple[str, str], list[int]]:
    """Return the numbers of the draws that have each value of each field."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, trace in enumerate(traces):
        if not trace.failed:
            values = (field_values(trace.text) or {}) if as_json else {WHOLE: trace.text}
            for item in values.items():
                found[item].append(number)
    return found


def log_weights(traces: Sequence[Trace]) -> NDArray[np.float64]:
    """Return ``[n]``: the log weight of each trace."""
    return np.array([trace.log_w for trace in traces])


@final
@dataclass(frozen=True, kw_only=True)
class PromptFinding:
    """The findings of an audit after one prompt, or for all prompts together."""

    name: str  # the prompt as it was given, or how many there are
    bias: Bias  # Phi, total variation, divergence and effective sample size
    # Where legal mass is lost: by JSON field, in the order of the text; by step for other formats. The same by step.
    places: tuple[Loss, ...]
    steps: tuple[Loss, ...]
    distortions: tuple[Distortion, ...]  # the values written too often or too rarely, beyond noise; the worst first


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The findings of an audit."""

    findings: tuple[PromptFinding, ...]  # one per prompt
    pooled: (
        PromptFinding  # all prompts together, each with the same weight; the finding itself where there is one prompt
    )
    by_field: bool  # true if ``places`` are fields of JSON; else they are steps
    confidence: float  # of each interval by itself, and of all distortions together
    # The settings of the distribution, and the most tokens of a draw after each prompt.
    settings: SamplingSettings
    budgets: tuple[int, ...]
    counts: ModelCounts  # the cost of the audit
    warnings: tuple[str, ...]  # notes to read before believing a number
    traces: tuple[tuple[Trace, ...], ...]  # the draws, per prompt, step by step

    @property
    def n(self) -> int:
        """Draws per prompt."""
        return len(self.traces[0])
