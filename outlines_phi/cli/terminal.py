"""Display of long commands on a terminal: a bar, and tables."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from ..fidelity.report_text import TextTable
from ..lm.model import Progress
from ..plugin.streaming import beside

Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress; a file or a pipe never gets any.")]


@final
@dataclass(frozen=True)
class Bar:
    """A bar that is moved from outside."""

    bars: Bars  # the display of rich that it is on
    shown: bool  # true if somebody sees it

    def move(self, completed: int | None = None, **fields: Any) -> None:
        """Move the bar to ``completed``, and show ``fields``: ``description`` before it, ``beside`` after it."""
        self.bars.update(self.bars.task_ids[0], completed=completed, **fields)

    def told(self, completed: bool) -> Callable[[Progress], None] | bool:
        """Return the ``progress=`` of a call: its counts stand beside the bar, which its draws move if ``completed``."""

        def tell(progress: Progress) -> None:
            self.move(progress.draws if completed else None, beside=beside(progress, draws=not completed))

        return tell if self.shown else False


@contextmanager
def bar(description: str, total: int, *, begin: int = 0, shown: bool = True) -> Iterator[Bar]:
    """Show a bar of ``total`` things, ``begin`` of them done, as long as the context lasts, if it is to be ``shown`` and can be."""
    console = Console(stderr=True)
    shown = shown and console.is_terminal
    columns = (
        TextColumn("{task.description}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[beside]}", style="dim"),
    )
    # The standard output is for results alone: rich would send it through the bar's console.
    with Bars(*columns, console=console, transient=True, disable=not shown, redirect_stdout=False) as bars:
        bars.add_task(description, total=total, completed=begin, beside="")
        yield Bar(bars, shown)


def print_table(
    table: TextTable, console: Console, *, styles: Sequence[str] = (), name_width: int | None = None, wrap: bool = True
) -> None:
    """Print a table between its title and its remark; a column without a head, such as one of bars, is aligned to the left.

    ``styles`` are those of the first columns, as rich names them; the names of rows are cut to ``name_width``; other cells ``wrap``
    where the terminal is narrow.
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
