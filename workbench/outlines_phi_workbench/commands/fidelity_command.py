"""``outlines-phi fidelity``: how close every estimator and sampler comes to the model's own distribution, and what it costs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.text import Text

from outlines_phi import UnsupportedError, __version__
from outlines_phi.cli.app import INTERRUPTED, Debug, note, tell
from outlines_phi.cli.command_options import FORMAT, MODEL, PROMPTS, SETTINGS, Given, taking
from outlines_phi.cli.inputs import BUNDLED, model_input
from outlines_phi.cli.terminal import Quiet, bar, print_table
from outlines_phi.fidelity.plots import png
from outlines_phi.numerics.cache import make_folder, write_atomically
from outlines_phi.plugin.call import CallOptions

from ..suite.cells import Cell
from ..suite.experiment import Suite
from ..suite.grid import COLUMNS, LEGEND, Grid, Heading, draw_grid
from ..suite.languages import QUICK, SUITE, Language, own
from ..suite.methods import chosen_of, methods

FILES = ("fidelity.json", "fidelity.md", "fidelity.png")  # The files in the folder of the results
QUICK_DRAWS = 120  # Draws per cell under `--quick`

WIDE, NARROW = 110, ("TV", "to masking", "noise", "ESS", "tokens")
"""Columns of a terminal that shows the whole table, and what a narrower one shows of it; files have all."""

Names = list[str] | None


@taking(PROMPTS, MODEL, FORMAT, SETTINGS)
def fidelity(
    given: Given,
    languages: Annotated[
        Names, typer.Option(help="Languages of the suite, by name or pattern (dyck*); several by commas.")
    ] = None,
    estimators: Annotated[Names, typer.Option(help="Estimators, by name; several by commas. By default all.")] = None,
    samplers: Annotated[Names, typer.Option(help="Samplers, by name; several by commas.")] = None,
    n: Annotated[int, typer.Option(min=10, help="Draws per cell.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws.")] = 0,
    output: Annotated[
        Path | None, typer.Option(help=f"Folder for {', '.join(FILES)}, made where there is none.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="A few small languages, and few draws: under a minute.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure the distance of every estimator and sampler from the model's own distribution, conditioned on a format.

    On a suite of small languages of known distribution; with prompts and an output type, on those. Ctrl-C keeps what is finished.
    """
    settings = given.keywords()
    chosen = methods(estimators, samplers)
    if given.prompts or any(getattr(given, name) is not None for name in ("file", *FORMAT)):
        if languages or quick:
            raise UnsupportedError(
                "Give one or the other: --languages and --quick choose from the suite's own languages, and prompts or an output "
                "type were given as well."
            )
        asked = given.read_prompts()
        _, output_type = given.read_type()
        subjects = [own(f"own-{i}", model_input(prompt), output_type) for i, prompt in enumerate(asked)]
    else:
        asked, subjects = [], _suite(languages, quick, given.max_new_tokens)
    if output is not None:
        make_folder(output, f"--output {output}")
    torch.set_num_threads(1 if given.model == BUNDLED else torch.get_num_threads())
    loaded = given.load(asked)
    read = CallOptions.read(settings, loaded.defaults).settings
    draws = min(n, QUICK_DRAWS) if quick else n
    suite = Suite(model=loaded, languages=subjects, methods=chosen, settings=read, n=draws, seed=seed)
    run(suite, output, {"model": given.model, "n": draws, "seed": seed, **settings}, quiet=quiet)


def run(suite: Suite, output: Path | None, context: dict[str, Any], *, quiet: bool = False) -> Grid:
    """Measure a suite, show its table, and write the results to the folder ``output`` with what they depend on.

    After Ctrl-C, what is finished is shown and written all the same, and the command ends with its exit code.
    """
    headings: dict[str, Heading] = {}
    cells: list[Cell] = []
    started, interrupted = time.perf_counter(), False
    with bar("", len(suite), shown=not quiet) as progress:
        try:
            for heading, cell in suite.cells(lambda what: progress.move(description=what)):
                if output is not None and cells and heading.name not in headings:
                    _write_data(Grid(list(headings.values()), cells), output, {**context, "complete": False})
                headings[heading.name] = heading
                cells.append(cell)
                progress.move(len(cells))
        except KeyboardInterrupt:
            interrupted = True
    grid = Grid(list(headings.values()), cells)
    show(grid, Console(highlight=False))
    seconds = time.perf_counter() - started
    note(f"{len(cells)} of {len(suite)} cells in {seconds:.0f} seconds.")
    if output is not None and cells:
        write(grid, output, {**context, "complete": not interrupted, "seconds": round(seconds)})
    if interrupted:
        tell("Interrupted", "yellow", "the table holds what was finished.")
        raise typer.Exit(INTERRUPTED)
    return grid


def write(grid: Grid, folder: Path, context: dict[str, Any]) -> None:
    """Write the results to ``folder``: as data, as Markdown, and as a picture."""
    _, table, picture = (folder / name for name in FILES)
    _write_data(grid, folder, context)
    write_atomically(table, (grid.markdown() + "\n" + LEGEND + "\n").encode())
    write_atomically(picture, png(draw_grid(grid)))
    note(f"Results: {', '.join(str(folder / name) for name in FILES)}")


def _write_data(grid: Grid, folder: Path, context: dict[str, Any]) -> None:
    write_atomically(folder / FILES[0], grid.json(outlines_phi=__version__, **context).encode())


def show(grid: Grid, console: Console) -> None:
    """Print a table for each language, of as many columns as the terminal has room for."""
    columns = COLUMNS if console.width >= WIDE else NARROW
    for heading in grid.headings:
        console.print(Text.assemble((heading.name, "bold cyan"), f": {heading.title}"))
        console.print(Text(f"{heading.phi}; {heading.source}", "dim"))
        print_table(grid.table(heading, columns), console, wrap=False)
        for note_of in grid.notes(heading):
            console.print(Text(note_of, "yellow"), "", sep="\n")
    if grid.cells:
        console.print(Text(LEGEND, "dim"))


def _suite(patterns: Names, quick: bool, max_new_tokens: int | None) -> list[Language]:
    if max_new_tokens is not None:
        raise UnsupportedError(
            "Leave it out, or give prompts and an output type of your own: each language of the suite has a budget of its own, and "
            f"--max-new-tokens {max_new_tokens} was given."
        )
    names = chosen_of("language", patterns, [language.name for language in SUITE])
    return [each for each in SUITE if each.name in names and (each.name in QUICK or not quick)]
