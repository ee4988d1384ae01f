"""The summary and the figure of ``docs/fidelity.md``, made of the kept results of the suite."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import rewrite
from benchmarks.summary import PAPER
from outlines_phi.fidelity.plots import png
from outlines_phi.fidelity.report_text import TextTable
from outlines_phi_workbench.suite.cells import Cell
from outlines_phi_workbench.suite.grid import Grid, Heading, draw_grid, is_noise, number

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
