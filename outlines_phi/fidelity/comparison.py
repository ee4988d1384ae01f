"""A comparison of samplers with the distribution that they should follow, and the noise of such a comparison."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, final

import numpy as np
from numpy.typing import NDArray

from .probabilities import Probabilities

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
    draws = np.random.default_rng(seed).multinomial(n, p, size=repeats) / n
    return np.abs(draws - p).sum(axis=1) / 2


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
