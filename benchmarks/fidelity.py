"""The fidelity suite on the bundled model: ``results/fidelity.json``, and the summary of ``docs/fidelity.md``.

    python -m benchmarks.fidelity

The same as ``outlines-phi fidelity``, kept in the repository. ``--only local,auto`` measures two rows of each language anew, where
changes are against ``local``, and keeps all others. ``--rewrite`` measures nothing: it prints
all tables of the kept results, and writes the summary and the figure.
"""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import outlines_phi
from benchmarks.report import RESULTS, rewrite, surroundings
from benchmarks.table import PAPER
from outlines_phi.fidelity.plots import png
from outlines_phi.fidelity.report_text import TextTable
from outlines_phi.lm import bundled
from outlines_phi.settings import SamplingSettings
from outlines_phi_workbench.commands.fidelity_command import run
from outlines_phi_workbench.suite.cells import Cell
from outlines_phi_workbench.suite.experiment import Suite
from outlines_phi_workbench.suite.grid import Grid, Heading, draw_grid, is_noise, number
from outlines_phi_workbench.suite.languages import SUITE
from outlines_phi_workbench.suite.methods import methods

RESULT = RESULTS / "fidelity.json"
DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "fidelity.md"
PICTURE = DOCS / "images" / "fidelity.png"

FIGURE = (
    "local", "onestep", "dp-bigram", "learned", "exact-0.1", "exact-0.01", "exact", "auto",
    "local + smc-5", "local + smc-50", "dp-bigram + smc-50",
)  # fmt: skip
"""Methods of the figure."""

SAME = 0.01
"""Distances that differ by a smaller part of the larger one count as equal."""


def grid_of(kept: dict[str, Any]) -> Grid:
    """Return the cells of a kept result."""
    return Grid([Heading(**heading) for heading in kept["languages"]], [Cell(**cell) for cell in kept["cells"]])


def publish(kept: dict[str, Any]) -> None:
    """Write the summary between the markers of the page, and the figure."""
    grid = grid_of(kept)
    machine, versions = kept["machine"], ", ".join(f"{name} {version}" for name, version in kept["versions"].items())
    measured = (
        f"n: {kept['settings']['n']}, seed: {kept['settings']['seed']}. {machine['device']}, {machine['threads']} threads, "
        f"Python {machine['python']}, {versions}, {machine['date']}."
    )
    rewrite(PAGE, "fidelity", f"{summary(grid)}\n\n{measured}")
    figure = draw_grid(Grid(grid.headings, [cell for cell in grid.cells if cell.method in FIGURE]))
    figure.set_facecolor(PAPER)
    for axis in figure.axes:
        axis.set_facecolor("white")
    PICTURE.write_bytes(png(figure))


def summary(grid: Grid) -> str:
    """Return a table in Markdown with a row per method: how often it is closer than masking, and the middle of the languages."""
    masked = {cell.language: cell for cell in grid.cells if cell.method == "local"}
    rows = []
    for method in dict.fromkeys(cell.method for cell in grid.cells):
        cells = [cell for cell in grid.cells if cell.method == method]
        distances = [cell for cell in cells if cell.tv is not None and cell.how != "theorem"]
        sides = [side(cell, masked[cell.language]) for cell in distances]
        counts = ("", "") if method == "local" else (str(sides.count(-1)), str(sides.count(1)))
        noisy = sum(map(is_noise, distances)) * 2 >= len(distances)
        row = ("noise" if noisy else middle(distances, "tv"), middle(cells, "ess"), middle(cells, "tokens"))
        rows.append((method, str(len(distances)), *counts, *row))
    head = ("", "languages", "closer", "farther", "TV, middle", "ESS, middle", "tokens, middle")
    return "\n".join(TextTable(head, rows).markdown())


def side(cell: Cell, masked: Cell) -> int:
    """Return -1 where a cell is closer to the truth than masking, 1 where it is farther, 0 where nothing tells."""
    assert cell.tv is not None and masked.tv is not None
    if is_noise(cell):
        return -1 if masked.tv > 2 * (cell.floor or 0.0) else 0
    change = cell.tv - masked.tv
    return 0 if abs(change) <= SAME * masked.tv else int(math.copysign(1, change))


def middle(cells: Sequence[Cell], name: str) -> str:
    """Return the median of a figure over the languages where it is known."""
    return number(statistics.median(value for cell in cells if (value := getattr(cell, name)) is not None))


def main(
    n: Annotated[int, typer.Option(help="Draws per cell.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of all draws.")] = 0,
    only: Annotated[str, typer.Option(help="Some of the rows, separated by commas; the others are kept.")] = "",
    rewrite: Annotated[bool, typer.Option(help="Measure nothing.")] = False,
) -> None:
    """Measure the suite and write the summary of the page."""
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
    kept = json.loads(RESULT.read_text())
    if rewrite:
        print(grid_of(kept).markdown())
    publish(kept)


def kept_with(measured: Grid) -> Grid:
    """Return the kept results with the cells that were measured anew in their places."""
    kept = grid_of(json.loads(RESULT.read_text()))
    fresh = {(cell.language, cell.method): cell for cell in measured.cells}
    return Grid(kept.headings, [fresh.get((cell.language, cell.method), cell) for cell in kept.cells])


if __name__ == "__main__":
    typer.run(main)
