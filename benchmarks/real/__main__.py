"""All measurements on the real model, and the page about them; what was measured already is not measured again.

python -m benchmarks.real
"""

from __future__ import annotations

import os
from typing import Annotated

import torch
import typer

from benchmarks import real_model, report
from benchmarks.real import accuracy, bias, cost, overhead, page
from benchmarks.real.model import folder, load
from benchmarks.real.rows import say

DYCK_PROMPT = "Write a balanced sequence of at most 8 brackets, of ( and ). Answer with the brackets alone."
LANGUAGES = "dyck1-upto8,dyck1-8"


def dyck() -> None:
    """Measure Dyck words, of all tokens that are brackets."""
    if not (report.RESULTS / "real" / "dyck.json").exists():
        where = os.path.relpath(folder())
        real_model.main(model=where, device="cpu", prompt=DYCK_PROMPT, languages=LANGUAGES, out="real/dyck")


def main(
    phi: Annotated[str, typer.Option(help="Values of phi=, separated by commas.")] = "local,auto,exact",
    seeds: Annotated[int, typer.Option(help="Trials of each row of costs.")] = 10,
    seconds: Annotated[float, typer.Option(help="CPU seconds after which a draw is broken off.")] = 120.0,
) -> None:
    """Measure what is missing, and write the page."""
    torch.set_num_threads(1)
    loaded = load()
    for name, step in {
        "Overhead": lambda: overhead.run(loaded, seeds),
        "Dyck words": dyck,
        "Bias": lambda: bias.run(loaded, bias.TASKS, 10, 300),
        "Cost": lambda: cost.run(loaded, "", phi, seeds, seconds),
        "Accuracy": lambda: accuracy.run(loaded, ",".join(accuracy.SETS), phi, "1,0.7,0.3", 60, seconds),
    }.items():
        say(name)
        step()
        page.write()


if __name__ == "__main__":
    typer.run(main)
