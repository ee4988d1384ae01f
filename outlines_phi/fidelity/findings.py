"""The findings of an audit: the legal mass at each step of masked draws, the bias, and the values that this distorts.

And comparisons of samplers with the distribution that they should follow, and the noise of such a comparison.
"""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import NormalDist
from typing import Any, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..lm.model import ModelCounts
from ..numerics.weights import effective_size, scaled
from ..settings import SamplingSettings
from ..vocabulary.vocabulary import Vocabulary
from .bias import Bias
from .probabilities import Probabilities

ROOT = "(whole value)"  # The outermost value; its own punctuation and keys
END = "(end of text)"  # After the outermost value, where only the end of sequence is left
PLAIN_KEY = re.compile(r"[^\W\d][\w-]*")  # Keys that a path shows as they are; others are quoted

TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*(?:(")|\\?)|[][{}:,\s]|[^][{}:,\s"]+', re.DOTALL)
"""A lexeme of JSON or the beginning of one; the group is the quote that ends a string."""


def byte_places(data: bytes) -> list[str]:
    """Return the path of the value that a JSON text stands in before each of its bytes, and after the last: ``[len + 1]``.

    ``address.city``, ``tags[]`` (all elements share a place). Keys and punctuation belong to the object or array that they
    structure, :data:`ROOT` for the outermost one; from the colon on, a place is the field's. It never fails: a text that is cut
    short, or is not JSON, has a place at every byte.
    """
    containers: list[tuple[str, bool]] = []  # paths of what is open, and whether it is an object
    value: str | None = ROOT  # the path of the value that is due or being written
    key, is_open = b"", False
    places = [ROOT]
    for found in TOKEN.finditer(data):
        token = found[0]
        if is_open:  # a number: that it has ended shows only in what follows
            value, is_open = None, False
        path, in_object = containers[-1] if containers else (ROOT, False)
        match token:
            case b"{" | b"[" if value is not None:
                containers.append((value, token == b"{"))
                value = None if token == b"{" else _element(value)
            case b"}" | b"]":
                del containers[-1:]
                value = None
            case b"," if containers and not in_object:
                value = _element(path)
            case b":" if in_object:
                value = _member(path, key)
            case _ if token.isspace() or token in b"{[,:":
                pass
            case _ if value is None:
                key = token[1:-1]
            case _:
                is_open = token not in (b"true", b"false", b"null") and not found[1]
                value = value if is_open else None
        outside = containers[-1][0] if containers else END
        places += [places[-1]] * (len(token) - 1) + [outside if value is None else value]
    return places


def _element(path: str) -> str:
    return "[]" if path == ROOT else f"{path}[]"


def _member(path: str, key: bytes) -> str:
    try:
        name = json.loads(b'"' + key + b'"')
    except ValueError:
        name = key.decode(errors="replace")
    shown = name if PLAIN_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)
    return shown if path == ROOT else f"{path}.{shown}"


def field_values(text: str) -> dict[str, str] | None:
    """Return the value of each field of a JSON object or array, as JSON; ``None`` where ``text`` is neither.

    Objects are opened, so ``address.city`` is a field; an array is one value.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return dict(_leaves(ROOT, record)) if isinstance(record, dict | list) else None


def _leaves(path: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict) and value:
        inner = ((_member(path, json.dumps(key)[1:-1].encode()), member) for key, member in value.items())
        return [leaf for below, member in inner for leaf in _leaves(below, member)]
    return [(path, json.dumps(value, ensure_ascii=False))]


ROUNDING = 1e-15
"""Relative to a node's legal mass: more than the rounding of the sums below, so that an upper bound stays one."""


@final
@dataclass
class Trace:
    """One trajectory of plain masking, step by step."""

    # The tokens written, and the bytes of each; the end of sequence last, unless the trajectory failed.
    token_ids: list[int] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    log_p: list[float] = field(default_factory=list)  # ``log p(v | y)`` of each token, in nats
    # ``log S(y)`` of each step, the log of the probability that the model itself writes a legal token. One more than
    # there are tokens, ``-inf``, where the trajectory failed: truncation had left no legal token.
    log_legal: list[float] = field(default_factory=list)
    # The top log probability less that of the top legal token, at each step, in nats; ``inf`` at a failure.
    margin: list[float] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """True if a step had no legal token: a draw of weight 0."""
        return len(self.log_legal) > len(self.token_ids)

    @property
    def log_w(self) -> float:
        """``sum_t log S(y_t)``: the log weight, which is at most 0."""
        return min(0.0, math.fsum(self.log_legal)) if not self.failed else -math.inf

    @property
    def text(self) -> str:
        """The text that was written."""
        return b"".join(self.pieces).decode(errors="replace")


@final
class TraceRecorder:
    """Records every step of ``n`` trajectories of plain masking of each prompt; an observer of ``AncestralSampler(LocalPhi())``."""

    def __init__(self, vocabulary: Vocabulary, prompts: int, n: int) -> None:
        self.traces = [[Trace() for _ in range(n)] for _ in range(prompts)]
        self._vocabulary = vocabulary

    def step(
        self,
        draws: Sequence[tuple[int, int]],
        rows: Sequence[int],
        tokens: Sequence[int],
        log_p: Tensor,
        scores: Tensor,
    ) -> None:
        """Record one step of each of ``draws``; see :class:`outlines_phi.sampling.stepper.Observer`."""
        log_s = torch.logsumexp(scores.double(), -1)
        margin = (log_p.amax(-1) - scores.amax(-1)).double()
        chosen = log_p[torch.tensor(rows, device=log_p.device), torch.tensor(tokens, device=log_p.device)].double()
        log_legal, margins = log_s.tolist(), margin.tolist()
        for (prompt, number), row, token, log_p_v in zip(draws, rows, tokens, chosen.tolist(), strict=True):
            trace = self.traces[prompt][number]
            trace.log_legal.append(log_legal[row])
            trace.margin.append(margins[row])
            if log_legal[row] > -math.inf:
                trace.token_ids.append(token)
                trace.pieces.append(self._vocabulary.text_of(token))
                trace.log_p.append(log_p_v)


def tree_bounds(traces: Sequence[Trace]) -> tuple[float, float]:
    """Return ``(Lo, U)`` with ``Lo <= Phi <= U`` for certain, from the distributions that the traces of one prompt have met.

    The recursion of the token tree (theory.md, sections 5.1 and 10) over the prefixes that were visited: each knows its legal mass
    ``S(y)`` and the probability of every token that some trace took there. On a small language the two meet.
    """
    legal: list[float] = []
    taken: list[dict[int, list[Any]]] = []  # by token: its probability, and the number of the prefix that it leads to
    for trace in traces:
        edge: list[Any] = [1.0, 0]
        for step, log_legal in enumerate(trace.log_legal):
            if edge[1] is None:
                edge[1] = len(legal)
            node = edge[1]
            if node == len(legal):
                legal.append(math.exp(log_legal))
                taken.append({})
            if step < len(trace.token_ids):
                edge = taken[node].setdefault(trace.token_ids[step], [math.exp(trace.log_p[step]), None])
    lower, upper = [0.0] * len(legal), [0.0] * len(legal)
    # A node is numbered after its parent, so from the last one back every child is known. No child: the end of sequence.
    for node in reversed(range(len(legal))):
        edges = taken[node].values()
        rest = max(0.0, legal[node] - math.fsum(p for p, _ in edges)) + ROUNDING * legal[node]
        lower[node] = math.fsum(p * (1.0 if child is None else lower[child]) for p, child in edges)
        upper[node] = rest + math.fsum(p * (1.0 if child is None else upper[child]) for p, child in edges)
    return min(lower[0], upper[0]), min(1.0, upper[0])


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


Outcome = TypeVar("Outcome", bound=Hashable)


def total_variation(left: Mapping[Outcome, float], right: Mapping[Outcome, float]) -> float:
    """Return ``TV = sum |left - right| / 2`` of two distributions; an outcome that is missing has probability 0."""
    return sum(abs(left.get(outcome, 0.0) - right.get(outcome, 0.0)) for outcome in {*left, *right}) / 2


def frequencies(outcomes: Iterable[Outcome], weights: Iterable[float] | None = None) -> dict[Outcome, float]:
    """Return the relative frequency of each outcome, of weighted draws when ``weights`` are given."""
    items = list(outcomes)
    counts: dict[Outcome, float] = defaultdict(float)
    for outcome, weight in zip(items, [1.0] * len(items) if weights is None else weights, strict=True):
        counts[outcome] += weight
    total = sum(counts.values())
    return {outcome: weight / total for outcome, weight in counts.items()} if total else {}


def noise_floor(target: Mapping[Outcome, float], n: int, *, repeats: int = 200, seed: int = 0) -> float:
    """Return the mean TV to ``target`` that ``n`` draws from ``target`` itself show.

    A measured TV means something only beside it.
    """
    return float(_noise(target, n, repeats, seed).mean())


def noise_limit(
    target: Mapping[Outcome, float], n: int, *, share: float = 0.95, repeats: int = 2000, seed: int = 0
) -> float:
    """Return the TV to ``target`` that ``n`` draws from ``target`` itself stay under in this ``share`` of all cases."""
    return float(np.quantile(_noise(target, n, repeats, seed), share))


def _noise(target: Mapping[Outcome, float], n: int, repeats: int, seed: int) -> NDArray[np.float64]:
    """Return ``[repeats]``: the TV to ``target`` of as many samples of ``n`` draws."""
    p = np.array(list(target.values()))
    p = p / p.sum()
    return np.abs(np.random.default_rng(seed).multinomial(n, p, size=repeats) / n - p).sum(axis=1) / 2


Reader = Callable[[str], Mapping[str, Hashable]]
"""A reader of the value of each field of a text. Raises ``ValueError`` on a text outside the format."""

OUTSIDE = "(not in the format)"
"""Stands for the value of a text that is outside the format, such as one that was cut short."""

WHOLE = "whole text"  # The name of the view that compares the texts themselves


def label(value: Hashable) -> str:
    """Return ``value`` as reports write it: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


@final
@dataclass(frozen=True, kw_only=True)
class Sample:
    """The texts of one way of sampling, and their cost."""

    name: str  # its name in reports
    texts: Sequence[str]
    # Model calls, and generated tokens that the model evaluated (prompts and padding excluded).
    calls: int
    tokens: int
    seconds: float  # wall-clock time


@final
@dataclass(frozen=True, kw_only=True)
class View:
    """One field of the texts: its true distribution, and how often each sample gave each value."""

    name: str  # the field
    truth: dict[Hashable, float]  # the true probability of each value, the likeliest first
    frequencies: dict[str, dict[Hashable, float]]  # the relative frequency of each value, by the sample's name
    distances: dict[str, float]  # the total variation between frequencies and truth, by the sample's name
    # The total variation that as many draws from the truth itself show: its mean, and what it stays under in 95 of 100
    # cases.
    floor: float
    limit: float

    @property
    def largest(self) -> float:
        """The largest probability or frequency of a value."""
        return max(p for p_of in (self.truth, *self.frequencies.values()) for p in p_of.values())

    @property
    def values(self) -> list[Hashable]:
        """Every value that the truth or a sample gives, those of the truth first."""
        drawn = dict.fromkeys(value for found in self.frequencies.values() for value in found)
        return [*self.truth, *(value for value in drawn if value not in self.truth)]


@final
@dataclass(frozen=True, kw_only=True)
class Report:
    """Samples of one output type after one prompt, beside the truth."""

    # The request; the type as source text.
    title: str
    prompt: str
    output_type: str
    truth: Probabilities  # the probability of each text, with its certificate
    samples: tuple[Sample, ...]  # the samples compared
    costs: tuple[Sample, ...]  # samples that are there for their cost alone
    views: tuple[View, ...]  # one per field, then the whole text where there is more than one field

    @property
    def n(self) -> int:
        """Draws per sample."""
        return len(self.samples[0].texts)


def compare(
    title: str,
    prompt: str,
    output_type: str,
    truth: Probabilities,
    samples: Sequence[Sample],
    read: Reader,
    *,
    costs: Sequence[Sample] = (),
) -> Report:
    """Return the report of ``samples`` against ``truth``, field by field as ``read`` finds them.

    A text that ``read`` refuses counts as the value :data:`OUTSIDE` of every field.
    """
    fields = _fields(truth.distribution, read)
    drawn = {sample.name: _fields(frequencies(sample.texts), read, names=fields) for sample in samples}
    n = min(len(sample.texts) for sample in samples)
    views = [
        View(
            name=name,
            truth=_ordered(probabilities),
            frequencies={sample: fields[name] for sample, fields in drawn.items()},
            distances={sample: total_variation(probabilities, fields[name]) for sample, fields in drawn.items()},
            floor=noise_floor(probabilities, n),
            limit=noise_limit(probabilities, n),
        )
        for name, probabilities in fields.items()
    ]
    if len(views) == 2:
        del views[1]  # the only field is the whole text
    return Report(
        title=title,
        prompt=prompt,
        output_type=output_type,
        truth=truth,
        samples=tuple(samples),
        costs=tuple(costs),
        views=tuple(views),
    )


def _fields(masses: Mapping[str, float], read: Reader, names: Iterable[str] = ()) -> dict[str, dict[Hashable, float]]:
    """Return the mass of each value of each field; ``names`` are the fields of a text that cannot be read."""
    fields: dict[str, dict[Hashable, float]] = {name: defaultdict(float) for name in names}
    for text, mass in masses.items():
        try:
            values = read(text)
        except ValueError:
            values = dict.fromkeys(names, OUTSIDE)
        for name, value in {**values, WHOLE: text}.items():
            fields.setdefault(name, defaultdict(float))[value] += mass
    return fields


def _ordered(masses: Mapping[Hashable, float]) -> dict[Hashable, float]:
    """Return ``masses`` with numbers in their own order, and other values the likeliest first."""
    numeric = all(type(value) in (int, float) for value in masses)
    return dict(sorted(masses.items(), key=lambda item: item[0] if numeric else -item[1]))  # type: ignore[arg-type,return-value]
