"""Reports and tables in a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..fidelity.audit_report import AuditReport
from ..fidelity.comparison import WHOLE, Report, View, label
from ..fidelity.report_text import TextTable, certainty, cost_table, distance_table, number, sections, verdict

ROWS = 12
"""Values of a field that are listed."""

BAR = 17
"""Width of the bar of the largest deviation."""

COLORS = ("red", "green")
"""Of the two samples of a report."""

NAME = 24
"""Width of the names of rows in a report."""


def print_table(
    table: TextTable, console: Console, *, styles: Sequence[str] = (), name_width: int | None = None, wrap: bool = True
) -> None:
    """Print a table between its title and its remark; a column without a head, such as one of bars, is aligned to the left.

    Parameters
    ----------
    table, console
        What is printed, and where.
    styles
        Of the columns, as rich names them; a table has more columns than styles where the last ones have none.
    name_width
        Most columns of the names of rows, cut where they are longer; as many as they need by default.
    wrap
        Whether other cells take several lines where the terminal is narrow.
    """
    if table.title:
        console.print(Text(table.title, "bold cyan"))
    if table.rows:
        grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for i, name in enumerate(table.head):
            style = styles[i] if i < len(styles) else ""
            cut = name_width is not None and i == 0
            grid.add_column(
                Text(name),
                style=style,
                header_style=style,
                justify="right" if i and name else "left",
                max_width=name_width if i == 0 else None,
                no_wrap=cut or not wrap,
                overflow="ellipsis" if cut else "fold",
            )
        for row in table.rows:
            grid.add_row(*map(Text, row))
        console.print(grid)
    if table.remark:
        console.print(Text(table.remark, "dim"))
    console.print()


def print_report(report: Report, console: Console) -> None:
    """Print the fields of a report, then how far each of its two samples is from the truth and what it cost."""
    asked = Table.grid("", "", padding=(0, 2))
    asked.add_row(Text("prompt", "dim"), Text(repr(report.prompt)))
    asked.add_row(Text("type", "dim"), Text(report.output_type))
    console.print(Panel(asked, title=report.title, title_align="left", border_style="cyan"))
    fields = [view for view in report.views if view.name != WHOLE]
    scale = max(abs(_excess(report, view, value)) for view in fields for value in view.values)
    for view in fields:
        names = [sample.name for sample in report.samples]
        more = len(view.values) - ROWS
        table = TextTable(
            (view.name, "truth", *names, "excess", ""),
            list(_shares(report, view, scale)),
            remark=f"... {more} more" if more > 0 else "",
        )
        print_table(table, console, styles=("", "bold", *COLORS), name_width=16, wrap=False)
    print_table(distance_table(report), console, styles=("", *COLORS), name_width=NAME)
    print_table(cost_table(report), console, name_width=NAME)
    console.print(
        f"{certainty(report)} Excess: the share of {report.samples[0].name} minus the truth, in percent. The noise floor is the "
        f"mean TV of {report.n:,} draws from the truth; the last column is what 95 of 100 such samples stay under.",
        "",
        style="dim",
    )


def _excess(report: Report, view: View, value: object) -> float:
    """Return how much too often the first sample gives ``value``."""
    return view.frequencies[report.samples[0].name].get(value, 0.0) - view.law.get(value, 0.0)


def _shares(report: Report, view: View, scale: float) -> Iterator[Sequence[str]]:
    for value in view.values[:ROWS]:
        shares = (view.law, *(view.frequencies[sample.name] for sample in report.samples))
        excess = _excess(report, view, value)
        bar = "█" * (round(BAR * abs(excess) / scale) if scale else 0)
        percent = (f"{100 * share.get(value, 0.0):.1f}%" for share in shares)
        yield (label(value), *percent, number(100 * excess, "+.1f"), bar)


def print_audit(report: AuditReport, console: Console) -> None:
    """Print what an audit found."""
    console.print(Text(verdict(report), "bold"), "", sep="\n")
    for warning in report.warnings:
        console.print(Text.assemble(("Warning: ", "bold yellow"), warning), "", sep="\n")
    for section in sections(report):
        print_table(section, console)
