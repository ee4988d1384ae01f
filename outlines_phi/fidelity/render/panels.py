"""The charts of an audit, as numbers: a page draws them as SVG, a picture by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..findings import Findings
from .summary import number, shown, worst

ROWS = 10
"""Rows of a panel."""


class Measured(NamedTuple):
    """A name, a number, a bar with a coloured part, and a mark with an interval."""

    name: str
    said: str
    bar: float = 0.0
    part: float = 0.0
    mark: float | None = None
    low: float = 0.0
    high: float = 0.0


class Panel(NamedTuple):
    """A titled bar chart with a line that explains it; ``scale`` is the value at its right edge."""

    title: str
    remark: str
    rows: Sequence[Measured]
    scale: float


def audit_panels(report: Findings) -> tuple[Panel, Panel, Panel]:
    """Return the charts of an audit: how far off, where mass is lost, and what that distorts. The last two may have no rows."""
    several = [finding for finding in report.findings if finding is not report.pooled]
    ranked = sorted(several, key=lambda finding: -finding.bias.tv.interval.low)[: ROWS - 1]
    distances = [(shown(finding.name), finding.bias.tv) for finding in (report.pooled, *ranked)]
    places = worst(report.pooled.places, ROWS)
    values = report.pooled.distortions[:ROWS]
    return (
        Panel(
            "Distance to the conditioned distribution",
            f"Total variation, from 0 to 1: the estimate, and its interval of {report.confidence:.0%} confidence.",
            [
                Measured(name, number(tv.value, ".3f"), mark=tv.value, low=tv.interval.low, high=tv.interval.high)
                for name, tv in distances
            ],
            1.0,
        ),
        Panel(
            f"Legal mass lost, by {'field' if report.by_field else 'step'}",
            "Nats per draw; coloured: beyond the loss of the conditioned distribution; this distorts.",
            [Measured(shown(p.place), number(p.nats, ".3f"), p.nats, max(0.0, min(p.excess, p.nats))) for p in places],
            max((p.nats for p in places), default=0.0),
        ),
        Panel(
            "Most distorted values",
            "Bar: masked; mark: the conditioned distribution, with noise."
            if values
            else "None differs by more than noise.",
            [
                Measured(
                    shown(f"{v.field}: {v.value}"),
                    number(v.masked, ".3f"),
                    part=v.masked,
                    mark=v.model,
                    low=v.model - v.noise,
                    high=v.model + v.noise,
                )
                for v in values
            ],
            max((max(v.masked, v.model + v.noise) for v in values), default=0.0),
        ),
    )
