"""The fidelity suite on the bundled model: ``results/fidelity.json``, and the summary of ``docs/fidelity.md``.

    python -m benchmarks.fidelity

The same as ``outlines-phi fidelity``, kept in the repository. ``--only local,auto`` measures two rows of each language anew, where
changes are against ``local``, and keeps all others. ``--rewrite`` measures nothing: it prints
all tables of the kept results, and writes the summary and the figure.
"""

from __future__ import annotations

import json
from typing import Annotated

import torch
import typer

import outlines_phi
from benchmarks.fidelity_page import grid_of, publish
from benchmarks.report import RESULTS, surroundings
from outlines_phi.lm import bundled
from outlines_phi.settings import SamplingSettings
from outlines_phi_workbench.commands.fidelity_command import run
from outlines_phi_workbench.suite.experiment import Suite
from outlines_phi_workbench.suite.grid import Grid
from outlines_phi_workbench.suite.languages import SUITE
from outlines_phi_workbench.suite.methods import methods

RESULT = RESULTS / "fidelity.json"


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
