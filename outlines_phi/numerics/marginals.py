"""The distribution of each field of structured values, with an interval for each of its values."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from statistics import NormalDist
from typing import Any, NamedTuple, final

from pydantic import BaseModel

from .weights import Weights

ROWS = 8  # Values of a field that a printed table shows


class MarginalValue(NamedTuple):
    """The probability ``p`` that a field has a value, in the interval from ``lo`` to ``hi``."""

    value: Any
    p: float
    lo: float
    hi: float


@final
@dataclass(frozen=True)
class Marginal:
    """The values of one field, the likeliest first; the rest of the mass is where there is no such field, or another value.

    ``other``: The upper end of the interval of a value that is not listed.
    """

    entries: tuple[MarginalValue, ...]
    other: float

    def __iter__(self) -> Iterator[MarginalValue]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, value: Any) -> MarginalValue:
        """Return the entry of ``value``, with ``p = 0`` where it is not listed."""
        same = (entry for entry in self.entries if frozen(entry.value) == frozen(value))
        return next(same, MarginalValue(value, 0.0, 0.0, self.other))


@final
@dataclass(frozen=True, repr=False)
class Marginals(Mapping[str, Marginal]):
    """The marginal distribution of each field, by its dotted path: names of members and places in lists, ``items.0.name``.

    ``""`` is a value without fields. An empty list or object is a value of its own path. A text that its type refuses has no field.

    Attributes
    ----------
    of
        The distribution of each field.
    confidence
        Of each interval by itself; 1 where it is certified.
    source
        Their source, with ``log Phi``.
    """

    of: Mapping[str, Marginal]
    confidence: float
    source: str

    def __getitem__(self, path: str) -> Marginal:
        return self.of[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self.of)

    def __len__(self) -> int:
        return len(self.of)

    @property
    def certified(self) -> bool:
        """True if every interval holds for certain."""
        return self.confidence == 1.0

    def __repr__(self) -> str:
        """Return a table of the likeliest values of each field, and ``log Phi``."""
        lines = [f"{'field':24}  {'value':24}  {'p':>8}  {'lo':>8}  {'hi':>8}"]
        for path, marginal in self.items():
            for value, *numbers in marginal.entries[:ROWS]:
                lines.append("  ".join([f"{path:24.24}", f"{value!r:24.24}", *map("{:8.4f}".format, numbers)]))
            if len(marginal) > ROWS:
                lines.append(f"{path:24.24}  ... {len(marginal) - ROWS:,} more")
        held = "certified" if self.certified else f"{self.confidence:.0%} intervals"
        return "\n".join([*lines, f"{held}; {self.source}"])

    @classmethod
    def by_weight(
        cls, values: Sequence[Any], weights: Weights, confidence: float, ess: float, slack: float, source: str
    ) -> Marginals:
        """Return estimates from weighted ``values``, whose ``weights`` sum to 1; an exception among them has no fields.

        ``p = sum w f``, and Wilson's interval of the effective size ``n`` of this estimate: ``p (1 - p) / sum w^2 (f - p)^2``, or
        ``ess`` where that is less. Both ends are ``slack`` farther out.
        """
        z, squares = NormalDist().inv_cdf((1 + confidence) / 2), float((weights**2).sum())

        def entry(value: Any, places: Sequence[int]) -> MarginalValue:
            p = min(1.0, float(weights[places].sum()))
            inside = float((weights[places] ** 2).sum())
            variance = inside * (1 - p) ** 2 + max(0.0, squares - inside) * p**2
            n = min(ess, p * (1 - p) / variance) if 0 < p < 1 else ess
            low, high = wilson(p, n, z)
            return MarginalValue(value, p, max(0.0, low - slack), min(1.0, high + slack))

        return cls(_marginals(values, entry, entry(None, []).hi), confidence, source)

    @classmethod
    def certain(
        cls, values: Sequence[Any], bounds: Sequence[tuple[float, float, float]], other: float, gap: float, source: str
    ) -> Marginals:
        """Return certified bounds from all ``values`` that were found, each with its ``(p, lo, hi)``.

        ``p`` are shares of what was enumerated, and ``gap`` the share of the whole that was not: the bounds of an event are those
        of its values added up, or ``p (1 - gap)`` and ``p (1 - gap) + gap`` where these are closer. ``other`` is what the values
        that were not found have, at most.
        """

        def entry(value: Any, places: Sequence[int]) -> MarginalValue:
            p, lo, hi = (math.fsum(bounds[place][i] for place in places) for i in range(3))
            known = p * (1 - gap)
            return MarginalValue(value, min(1.0, p), min(1.0, max(lo, known)), min(1.0, hi + other, known + gap))

        return cls(_marginals(values, entry, min(other, gap)), 1.0, source)


def wilson(p: float, n: float, z: float) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion ``p`` of ``n`` draws, ``z`` standard deviations wide to each side."""
    if n <= 0:
        return 0.0, 1.0
    middle, half = p + z**2 / (2 * n), z * math.sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)
    return max(0.0, (middle - half) / (1 + z**2 / n)), min(1.0, (middle + half) / (1 + z**2 / n))


def _marginals(
    values: Sequence[Any], entry: Callable[[Any, Sequence[int]], MarginalValue], other: float
) -> dict[str, Marginal]:
    """Return the distribution of each field by the ``entry`` of each of its values, given with the places that have it."""
    tables: dict[str, dict[Hashable, tuple[Any, list[int]]]] = defaultdict(dict)
    for place, value in enumerate(values):
        for path, part in leaves(value):
            tables[path].setdefault(frozen(part), (part, []))[1].append(place)
    ranked = {
        path: sorted((entry(*found) for found in table.values()), key=lambda one: -one.p)
        for path, table in tables.items()
    }
    return {path: Marginal(tuple(entries), other) for path, entries in ranked.items()}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every field of a value that has no fields itself, with its dotted path; none of an exception."""
    match value:
        case Exception():
            return
        case Mapping():
            below: Iterable[tuple[Any, Any]] = value.items()
        case list() | tuple():
            below = enumerate(value)
        case _:
            below = (record_of(value) or {}).items()
    if not (parts := list(below)):
        yield path, value
    for name, part in parts:
        yield from leaves(part, f"{path}.{name}" if path else str(name))


def record_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of an instance of a pydantic model, extra ones too, or of a dataclass; ``None`` for other values."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return dict(value) if isinstance(value, BaseModel) else None


def frozen(value: Any) -> Hashable:
    """Return something hashable that is equal for equal values: containers, records and unhashable instances by their content.

    Truth values are kept apart from the numbers 0 and 1, which Python calls equal to them.
    """
    match value:
        case bool():
            return bool, value
        case Mapping():
            return Mapping, frozenset((frozen(key), frozen(part)) for key, part in value.items())
        case list() | tuple():
            return type(value), tuple(map(frozen, value))
    if (record := record_of(value)) is not None:
        return type(value), frozen(record)
    try:
        hash(value)
    except TypeError:
        return type(value), frozen(vars(value)) if hasattr(value, "__dict__") else repr(value)
    return value
