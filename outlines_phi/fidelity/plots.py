"""Pictures and pages of reports. matplotlib is imported where a picture is made, and nowhere else.

A page is from a template: text, Markdown, or self-contained HTML without script, font or picture from elsewhere.
"""

import io
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from ..errors import UnsupportedError
from .findings import WHOLE, Findings, Report, label
from .report_text import (
    TITLE,
    certainty,
    cost_table,
    distance_table,
    number,
    sections,
    shown,
    to_markdown,
    verdict,
    worst,
)

ROWS = 10  # Rows of a panel, or values of a field, that are drawn


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


COLORS = ("#e4572e", "#1b998b", "#5c6bc0", "#8d6e63")
"""Of the columns of a picture, in their order."""

TRUTH, INK, FAINT = "#1c2330", "#3c4454", "#eef0f4"


def comparison_panels(report: Report) -> list[list[Panel]]:
    """Return a row of charts per field, one per sample: its frequencies as bars, the truth as a mark across each bar."""
    return [
        [
            Panel(
                f"{view.name}: {sample.name}, TV {view.distances[sample.name]:.3f}",
                f"TV of noise {view.floor:.3f}, up to {view.limit:.3f}",
                [
                    Measured(
                        label(value), "", part=view.frequencies[sample.name].get(value, 0.0), mark=p, low=p, high=p
                    )
                    for value in view.values[:ROWS]
                    for p in (view.truth.get(value, 0.0),)
                ],
                min(1.0, 1.12 * view.largest),
            )
            for sample in report.samples
        ]
        for view in report.views
        if view.name != WHOLE
    ]


def draw_reports(reports: Sequence[Report], path: Path, *, dpi: int = 160) -> None:
    """Write a picture of ``reports`` to ``path``, in the format that its suffix names."""
    grid = [row for report in reports for row in comparison_panels(report)]
    prompts = ", then ".join(repr(report.prompt.strip()) for report in reports)
    title = (
        f"{reports[0].n:,} draws after {prompts}\nmark: truth, the model's own distribution, conditioned on the format"
    )
    figure = draw_panels(grid, title, 4.9)
    for axis, panel in zip(figure.axes, chain(*grid), strict=True):
        axis.set_xlim(0, panel.scale)
        axis.xaxis.set_major_formatter(lambda p, _: f"{100 * p:.0f}%")
    figure.savefig(path, dpi=dpi)


def audit_figure(report: Findings) -> Any:
    """Return a picture of an audit: where legal mass is lost, and the most distorted values."""
    bias = report.pooled.bias
    low, high = bias.tv.interval
    title = (
        f"Plain masking: TV to the conditioned distribution {number(low, '.2f')} to {number(high, '.2f')}, "
        f"Phi {bias.phi.value:.3g}, {bias.draws:,} draws"
    )
    return draw_panels([audit_panels(report)[1:]], title, 4.8)


def draw_panels(grid: Sequence[Sequence[Panel]], title: str, width: float) -> Any:
    """Return a ``matplotlib.figure.Figure`` of rows of panels, ``width`` inches wide each; errors as :func:`figure_class`."""
    heights = [max(3, *(len(panel.rows) for panel in row)) + 4 for row in grid]
    columns = len(grid[0])
    size = (width * columns, 0.3 * sum(heights) + 0.6)
    figure = figure_class()(figsize=size, layout="constrained", facecolor="white")
    axes = figure.subplots(len(grid), columns, squeeze=False, gridspec_kw={"height_ratios": heights})
    for line, row in zip(axes, grid, strict=True):
        # An audit has one colour; the samples of a comparison have one each.
        for axis, panel, color in zip(line, row, COLORS if len(grid) > 1 else COLORS[:1] * columns, strict=False):
            bars(axis, panel.rows, color)
            axis.set_title(panel.title, loc="left", fontsize=10, fontweight="bold", color=INK)
            axis.set_xlabel(panel.remark, fontsize=7, color=INK)
    figure.suptitle(title, fontsize=11, color=INK)
    return figure


def bars(axis: Any, rows: Sequence[Measured], color: str) -> None:
    """Draw a bar for each row, the first at the top: its coloured part, and its mark with an interval."""
    from matplotlib.ticker import MaxNLocator

    places = range(len(rows))
    axis.barh(places, [row.bar for row in rows], height=0.68, color=FAINT)
    axis.barh(places, [row.part for row in rows], height=0.68, color=color, alpha=0.85)
    for place, row in enumerate(rows):
        if row.mark is not None:
            axis.hlines(place, max(0.0, row.low), row.high, color=TRUTH, linewidth=1.0)
            axis.vlines(row.mark, place - 0.44, place + 0.44, color=TRUTH, linewidth=2.4)
    axis.set_yticks(places, [row.name for row in rows], fontsize=9, color=INK)
    axis.set_ylim(max(len(rows), 1) - 0.4, -0.6)
    axis.set_xlim(left=0)
    axis.xaxis.set_major_locator(MaxNLocator(4))
    axis.tick_params(axis="x", labelsize=8, colors=INK, length=0)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", color=FAINT, linewidth=1.2)
    axis.set_axisbelow(True)
    axis.spines[:].set_visible(False)


def png(figure: Any, *, dpi: int = 110) -> bytes:
    """Return the PNG of a figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def figure_class() -> Any:
    """Return matplotlib's ``Figure``; raise UnsupportedError where it is not installed."""
    if find_spec("matplotlib") is None:
        raise UnsupportedError(
            "Install the extra, pip install 'outlines_phi[cli]', or take the text, Markdown or HTML: a picture was asked for and "
            "matplotlib is not installed."
        )
    from matplotlib.figure import Figure

    return Figure


SHOWN = 16  # Values of a field that a page shows


def page(reports: Sequence[Report], *, command: str) -> str:
    """Return the HTML of ``reports``, each of two samples and made by ``command``."""
    return _render(
        "comparison.html",
        title="The bias of masking, and its removal",
        reports=reports,
        command=command,
        whole=WHOLE,
        rows=SHOWN,
        distances=distance_table,
        costs=cost_table,
        truth_of=certainty,
    )


def audit_page(report: Findings, suffix: str) -> str:
    """Return an audit as a page (``html``), as Markdown (``md``) or as text for a terminal (``txt``)."""
    said = {"title": TITLE, "verdict": verdict(report), "warnings": report.warnings, "tables": sections(report)}
    return _render(f"audit.{suffix}", panels=[panel for panel in audit_panels(report) if panel.rows], **said)


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader(__package__),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {"label": label, "to_markdown": to_markdown}
    return templates


def _render(name: str, **values: object) -> str:
    return _templates().get_template(name).render(values)
