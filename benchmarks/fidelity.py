"""The fidelity suite on the bundled model: ``results/fidelity.json``, and the pages of ``benchmarks.fidelity_page``.

    python -m benchmarks.fidelity

The same as ``outlines-phi fidelity``, kept in the repository. ``--only local,auto`` measures two rows of each language anew, where
changes are against ``local``, and keeps all others. ``--rewrite`` makes tables and figure of the kept results.
"""

from __future__ import annotations

import json
from typing import Annotated

import torch
import typer

import outlines_phi
from benchmarks.fidelity_page import publish
from benchmarks.report import RESULTS, surroundings
from outlines_phi.lm import bundled
from outlines_phi.settings import SamplingSettings
from outlines_phi_workbench.commands.fidelity_command import run
from outlines_phi_workbench.suite.cells import Cell
from outlines_phi_workbench.suite.experiment import Suite
from outlines_phi_workbench.suite.grid import Grid, Heading
from outlines_phi_workbench.suite.languages import SUITE
from outlines_phi_workbench.suite.methods import methods

RESULT = RESULTS / "fidelity.json"


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


if __name__ == "__main__":
    typer.run(main)
