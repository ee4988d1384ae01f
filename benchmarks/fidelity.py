"""The fidelity suite on the bundled model: ``results/fidelity.json``, and the tables and the figure of ``docs/fidelity.md``.

    python -m benchmarks.fidelity

The same as ``outlines-phi fidelity``, kept in the repository. ``--only local,auto`` measures two rows of each language anew, where
changes are against ``local``, and keeps all others. ``--rewrite`` makes tables and figure of the kept results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import outlines_phi
from benchmarks.report import RESULTS, surroundings
from outlines_phi.cli.fidelity_command import run
from outlines_phi.fidelity.plots import png
from outlines_phi.fidelity.report_text import TextTable
from outlines_phi.lm import bundled
from outlines_phi.settings import SamplingSettings
from outlines_phi.suite.cells import Cell
from outlines_phi.suite.experiment import Suite
from outlines_phi.suite.grid import LEGEND, Grid, Heading, change_of, draw_grid, is_noise, number
from outlines_phi.suite.languages import SUITE
from outlines_phi.suite.methods import methods

PAGE = Path(__file__).parent.parent / "docs" / "fidelity.md"
PICTURE = PAGE.parent / "images" / "fidelity.png"
RESULT = RESULTS / "fidelity.json"
START, END = "<!-- fidelity:start -->", "<!-- fidelity:end -->"

DISTANCES = (
    "local", "onestep", "dp-frozen", "dp-bigram", "learned", "exact-0.1", "auto", "local + smc-50"
)  # fmt: skip
SIZES = (
    "local", "onestep", "dp-frozen", "dp-bigram", "learned", "auto", "local + smc-5", "local + smc-50",
    "dp-bigram + smc-50",
)  # fmt: skip
"""Columns of the two tables of all languages."""

FIGURE = (*DISTANCES, "exact-0.01", "exact", "local + smc-5", "dp-bigram + smc-50")


def main(
    n: Annotated[int, typer.Option(help="Draws per cell.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of all draws.")] = 0,
    only: Annotated[str, typer.Option(help="Some of the rows, separated by commas; the others are kept.")] = "",
    rewrite: Annotated[bool, typer.Option(help="Measure nothing.")] = False,
) -> None:
    """Measure the suite and write what the page shows."""
    if not rewrite:
        torch.set_num_threads(1)
        model = outlines_phi.from_transformers(*bundled.load())
        settings = SamplingSettings()
        chosen = [method for method in methods() if not only or method.name in only.split(",")]
        grid = run(Suite(model=model, languages=SUITE, methods=chosen, settings=settings, n=n, seed=seed), None, {})
        if only:
            grid = kept_with(grid)
        title = "The distance of every estimator and sampler from the conditioned distribution, and its cost"
        RESULT.write_text(grid.json(title=title, settings={"n": n, "seed": seed}, **surroundings()))
    publish(json.loads(RESULT.read_text()))


def kept_with(measured: Grid) -> Grid:
    """Return the kept results with the cells that were measured anew in their places."""
    kept, fresh = json.loads(RESULT.read_text()), {(cell.language, cell.method): cell for cell in measured.cells}
    cells = [Cell(**cell) for cell in kept["cells"]]
    headings = [Heading(**heading) for heading in kept["languages"]]
    return Grid(headings, [fresh.get((cell.language, cell.method), cell) for cell in cells])


def publish(kept: dict[str, Any]) -> None:
    """Write the tables between the markers of the page, and the figure."""
    headings = [Heading(**heading) for heading in kept["languages"]]
    grid = Grid(headings, [Cell(**cell) for cell in kept["cells"]])
    machine, versions = kept["machine"], ", ".join(f"{name} {version}" for name, version in kept["versions"].items())
    measured = (
        f"n: {kept['settings']['n']}, seed: {kept['settings']['seed']}. {machine['device']}, {machine['threads']} threads, "
        f"Python {machine['python']}, {versions}, {machine['date']}."
    )
    parts = [
        "### Distances", "", "TV of one draw, and in brackets its change against masking.", "", matrix(grid, DISTANCES, distance),
        "", "### Effective sizes", "", "How many exact draws a weighted draw is worth.", "", matrix(grid, SIZES, worth),
        "", LEGEND, "", measured, "", grid.markdown(),
    ]  # fmt: skip
    before, rest = PAGE.read_text().split(START)
    PAGE.write_text(f"{before}{START}\n\n" + "\n".join(parts) + f"\n{END}{rest.split(END)[1]}")
    PICTURE.write_bytes(png(draw_grid(Grid(headings, [cell for cell in grid.cells if cell.method in FIGURE]))))


def matrix(grid: Grid, methods: Sequence[str], cell_text: Callable[[Cell], str]) -> str:
    """Return a table in Markdown with a row per language and a column per method, of what ``cell_text`` makes of a cell."""
    rows = []
    for heading in grid.headings:
        found = {cell.method: cell for cell in grid.of(heading)}
        phi = "?" if heading.log_phi is None else number(math.exp(heading.log_phi))
        texts = (cell_text(found[method]) if method in found else "" for method in methods)
        rows.append((heading.name, phi, *texts))
    return "\n".join(TextTable(("", "Phi", *methods), rows).markdown())


def distance(cell: Cell) -> str:
    """Return the TV of a cell and its change against masking."""
    if cell.tv is None or cell.how == "theorem":
        return "0 (theorem)" if cell.how == "theorem" else "-"
    if is_noise(cell):
        return "noise"
    return number(cell.tv) if cell.change is None else f"{number(cell.tv)} ({change_of(cell)})"


def worth(cell: Cell) -> str:
    """Return the effective size of a draw."""
    return number(cell.ess)


if __name__ == "__main__":
    typer.run(main)
