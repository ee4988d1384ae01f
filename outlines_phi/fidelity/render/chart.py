"""Bar charts inside a page: inline SVG in the page's own colours, without a library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from ..findings import Findings
from .summary import number, shown, worst

ROWS = 10
"""Rows of a panel."""

HEIGHT, LEFT, WIDTH, RIGHT = 26, 250, 390, 80
"""Pixels: of a row, and of the names, bars and numbers in it."""

STYLE = """
svg { max-width: 100%; height: auto; font: 13px system-ui, sans-serif; fill: var(--ink); }
svg .bar { fill: var(--line); } svg .part { fill: var(--first); }
svg line { stroke: var(--truth); stroke-width: 1.2; } svg .mark { stroke-width: 3; }
"""


class Row(NamedTuple):
    """A name, a number, a bar with a coloured part, and a mark with an interval."""

    name: str
    said: str
    bar: float = 0.0
    part: float = 0.0
    mark: float | None = None
    low: float = 0.0
    high: float = 0.0


def panel(title: str, remark: str, rows: Sequence[Row], scale: float) -> str:
    """Return a chart of ``rows``, the width of which is ``scale``, with a line that explains it."""
    lines = "".join(_row(row, index, WIDTH / (scale or 1.0)) for index, row in enumerate(rows))
    width, height = LEFT + WIDTH + RIGHT, HEIGHT * len(rows)
    return (
        f'<section class="card"><h2>{escape(title)}</h2>'
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{escape(title)}">{lines}</svg>'
        f'<p class="soft">{escape(remark)}</p></section>\n'
    )


def audit_charts(report: Findings) -> str:
    """Return the charts of an audit: how far off, where mass is lost, and what that distorts."""
    several = [finding for finding in report.findings if finding is not report.pooled]
    ranked = sorted(several, key=lambda finding: -finding.bias.tv.interval.low)[: ROWS - 1]
    distances = [(shown(finding.name), finding.bias.tv) for finding in (report.pooled, *ranked)]
    charts = panel(
        "Distance to the conditioned law",
        f"Total variation, from 0 to 1: the estimate, and its interval of {report.confidence:.0%} confidence.",
        [
            Row(name, number(tv.value, ".3f"), mark=tv.value, low=tv.interval.low, high=tv.interval.high)
            for name, tv in distances
        ],
        1.0,
    )
    if places := worst(report.pooled.places, ROWS):
        charts += panel(
            f"Legal mass lost, by {'field' if report.by_field else 'step'}",
            "Nats per draw; coloured: beyond what the conditioned law loses there, which is what distorts.",
            [Row(shown(p.place), number(p.nats, ".3f"), p.nats, max(0.0, min(p.excess, p.nats))) for p in places],
            max(place.nats for place in places),
        )
    if values := report.pooled.distortions[:ROWS]:
        charts += panel(
            "Most distorted values, drawn and meant",
            "Bar: its share under masking; mark: its share under the conditioned law, estimated, with the noise of the difference.",
            [
                Row(
                    shown(f"{v.field}: {v.value}"),
                    number(v.masked, ".3f"),
                    0.0,
                    v.masked,
                    v.model,
                    v.model - v.noise,
                    v.model + v.noise,
                )
                for v in values
            ],
            max(max(v.masked, v.model + v.noise) for v in values),
        )
    return charts


def _row(row: Row, index: int, unit: float) -> str:
    top, middle = HEIGHT * index + 4, HEIGHT * index + HEIGHT / 2
    parts = [f'<text x="0" y="{middle + 4}">{escape(row.name)}</text>']
    for kind, value in (("bar", row.bar), ("part", row.part)):
        if value > 0:
            parts.append(
                f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{value * unit:.2f}" height="{HEIGHT - 8}"/>'
            )
    if row.mark is not None:
        low, high, mark = (LEFT + unit * max(0.0, value) for value in (row.low, row.high, row.mark))
        parts.append(f'<line x1="{low:.2f}" y1="{middle}" x2="{high:.2f}" y2="{middle}"/>')
        parts.append(f'<line class="mark" x1="{mark:.2f}" y1="{top}" x2="{mark:.2f}" y2="{top + HEIGHT - 8}"/>')
    parts.append(f'<text x="{LEFT + WIDTH + RIGHT}" y="{middle + 4}" text-anchor="end">{escape(row.said)}</text>')
    return "".join(parts)
