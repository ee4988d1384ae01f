"""A report in a terminal of 80 columns."""

from __future__ import annotations

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..fidelity.audit import AuditReport
from ..fidelity.bias import Bias
from ..fidelity.render.summary import Section, bias_section, number, sections, verdict
from ..fidelity.report import WHOLE, Report, View, label

ROWS = 12
"""Values of a field that are listed."""

BAR = 18
"""Width of the bar of the largest deviation."""

COLORS = ("red", "green")
"""Of the two samples of a report."""


def print_report(report: Report, console: Console) -> None:
    """Print the fields of a report, then how far each of its two samples is from the truth and what it cost."""
    asked = Table.grid("", "", padding=(0, 2))
    asked.add_row(Text("prompt", "dim"), Text(repr(report.prompt)))
    asked.add_row(Text("type", "dim"), Text(report.output_type))
    console.print(Panel(asked, title=report.title, title_align="left", border_style="cyan"))
    scale = max(
        abs(_excess(report, view, value)) for view in report.views for value in view.values if view.name != WHOLE
    )
    for view in report.views:
        if view.name != WHOLE:
            console.print(_field(report, view, scale), "")
    console.print(_distances(report), "")
    console.print(_costs(report), "")
    truth = report.truth
    console.print(
        "The truth is the model's own law, conditioned on the type: enumerated to a total variation (TV) of at most "
        f"{truth.tolerance:.1e} with {truth.tokens:,} model tokens. The model meets the type by itself with "
        f"probability {truth.phi_bounds[0]:.4g}. The noise floor is the mean TV of {report.n:,} draws from the truth; "
        "the last column is what 95 of 100 such samples stay under.",
        "",
        style="dim",
    )


def _excess(report: Report, view: View, value: object) -> float:
    """Return how much too often the first sample gives ``value``."""
    return view.frequencies[report.samples[0].name].get(value, 0.0) - view.law.get(value, 0.0)


def _field(report: Report, view: View, scale: float) -> Table:
    table = _table(Text(view.name, "bold"), 16)
    table.add_column("truth", width=7, justify="right", style="bold")
    for sample, color in zip(report.samples, COLORS, strict=True):
        table.add_column(sample.name, width=len(sample.name), justify="right", style=color)
    table.add_column("  plain minus truth", width=BAR + 8)
    for value in view.values[:ROWS]:
        shares = (
            view.law.get(value, 0.0),
            *(view.frequencies[sample.name].get(value, 0.0) for sample in report.samples),
        )
        table.add_row(
            Text(label(value)), *(f"{100 * p:.1f}%" for p in shares), _bar(_excess(report, view, value), scale)
        )
    if len(view.values) > ROWS:
        table.add_row(f"... {len(view.values) - ROWS} more")
    return table


def _bar(excess: float, scale: float) -> Text:
    length = round(BAR * abs(excess) / scale) if scale else 0
    return Text.assemble(
        (f"{number(100 * excess, '+.1f'):>6} ", "red" if length > 1 else "dim"),
        ("█" * length, "red" if excess > 0 else "yellow"),
    )


def _distances(report: Report) -> Table:
    table = _table(Text("distance", "bold"), 16)
    for sample, color in zip(report.samples, COLORS, strict=True):
        table.add_column(sample.name, width=14, justify="right", style=color)
    table.add_column("noise floor", width=14, justify="right")
    table.add_column("noise, 95 %", width=14, justify="right")
    for view in report.views:
        distances = (*(view.distances[sample.name] for sample in report.samples), view.floor, view.limit)
        table.add_row(Text(f"TV, {view.name}"), *(f"{distance:.3f}" for distance in distances))
    return table


def _costs(report: Report) -> Table:
    table = _table(Text("cost", "bold"), 24)
    for name in ("model calls", "model tokens", "seconds"):
        table.add_column(name, width=14, justify="right")
    for sample, color in zip((*report.samples, *report.costs), (*COLORS, "dim"), strict=False):
        table.add_row(Text(sample.name, color), f"{sample.calls:,}", f"{sample.tokens:,}", f"{sample.seconds:.1f}")
    return table


def print_audit(report: AuditReport, console: Console) -> None:
    """Print what an audit found."""
    console.print(Text(verdict(report), "bold"), "", sep="\n")
    for warning in report.warnings:
        console.print(Text.assemble(("Warning: ", "bold yellow"), warning), "", sep="\n")
    for section in sections(report):
        _print_section(section, console)


def print_bias(bias: Bias, confidence: float, console: Console) -> None:
    """Print how far masking is from the conditioned law."""
    console.print()
    _print_section(bias_section(bias, confidence), console)


def _print_section(section: Section, console: Console) -> None:
    console.print(Text(section.title, "bold cyan"))
    if section.rows:
        first, *rest = section.head
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(Text(first))
        for name in rest:
            table.add_column(Text(name), justify="right")
        for row in section.rows:
            table.add_row(*map(Text, row))
        console.print(table)
    if section.remark:
        console.print(Text(section.remark, "dim"))
    console.print()


def _table(title: Text, width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(title, width=width, no_wrap=True, overflow="ellipsis")
    return table
