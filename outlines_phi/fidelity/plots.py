"""Pictures of reports. matplotlib is imported where a picture is made, and nowhere else."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UnsupportedError
from .comparison import WHOLE, Report, Sample, View, label
from .findings import Findings
from .report_text import number, shown, worst

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
"""Of the samples, in their order."""

TRUTH, INK, FAINT = "#1c2330", "#3c4454", "#eef0f4"


def draw_reports(reports: Sequence[Report], path: Path, *, dpi: int = 160) -> None:
    """Write a picture of ``reports`` to ``path``, in the format that its suffix names.

    One row of panels per field, one column per sample: its frequencies as bars, the truth as a mark across each bar.
    """
    figure_of = figure_class()
    from matplotlib.lines import Line2D

    rows = [(report, view) for report in reports for view in report.views if view.name != WHOLE]
    samples = reports[0].samples
    heights = [min(len(view.values), ROWS) + 2.1 for _, view in rows]
    figure = figure_of(figsize=(4.9 * len(samples), 0.27 * sum(heights) + 0.9), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
    axes = figure.subplots(len(rows), len(samples), squeeze=False, gridspec_kw={"height_ratios": heights})
    for line, (report, view) in zip(axes, rows, strict=True):
        for axis, sample, color in zip(line, report.samples, COLORS, strict=False):
            _panel(axis, view, sample, color)
        _caption(line[0], report, view)
    for axis, sample, color in zip(axes[0], samples, COLORS, strict=False):
        _write_above(axis, sample.name, 0.5, 40, ha="center", fontsize=13, fontweight="bold", color=color)
    truth = Line2D([], [], color=TRUTH, marker="|", markersize=12, markeredgewidth=2.5, linestyle="none")
    figure.legend(
        [truth],
        [f"truth: the model's own distribution, conditioned on the format      (bars: {reports[0].n:,} draws)"],
        loc="outside lower center",
        frameon=False,
        fontsize=10,
    )
    figure.savefig(path, dpi=dpi)


def audit_figure(report: Findings) -> Any:
    """Return a picture of an audit: where legal mass is lost, and the most distorted values."""
    figure_of = figure_class()
    bias, panels = report.pooled.bias, audit_panels(report)[1:]
    height = 0.3 * max(3, *(len(panel.rows) for panel in panels)) + 1.7
    figure = figure_of(figsize=(9.6, height), layout="constrained", facecolor="white")
    for axis, panel in zip(figure.subplots(1, 2), panels, strict=True):
        bars(axis, panel.rows, COLORS[0])
        axis.set_title(panel.title, loc="left", fontsize=10, fontweight="bold", color=INK)
        axis.set_xlabel(panel.remark, fontsize=7, color=INK)
    low, high = bias.tv.interval
    title = (
        f"Plain masking: TV to the conditioned distribution {number(low, '.2f')} to {number(high, '.2f')}, "
        f"Phi {bias.phi.value:.3g}, {bias.draws:,} draws"
    )
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


def _panel(axis: Any, view: View, sample: Sample, color: str) -> None:
    drawn = view.frequencies[sample.name]
    rows = [
        Measured(label(value), "", part=drawn.get(value, 0.0), mark=p, low=p, high=p)
        for value in view.values[:ROWS]
        for p in (view.truth.get(value, 0.0),)
    ]
    bars(axis, rows, color)
    axis.set_xlim(0, min(1.0, 1.12 * view.largest))
    axis.xaxis.set_major_formatter(lambda p, _: f"{100 * p:.0f}%")
    axis.set_title(
        f"TV {view.distances[sample.name]:.3f}  (noise {view.floor:.3f}, up to {view.limit:.3f})",
        loc="right",
        fontsize=9,
        color=INK,
    )


def _caption(axis: Any, report: Report, view: View) -> None:
    axis.set_title(view.name, loc="left", fontsize=11, fontweight="bold", color=INK)
    if view is report.views[0]:
        _write_above(axis, f"after {report.prompt.strip()!r}", 0, 22, fontsize=9, style="italic", color=INK)


def _write_above(axis: Any, text: str, x: float, points: int, **style: Any) -> None:
    axis.annotate(text, (x, 1), (0, points), "axes fraction", "offset points", **style)
