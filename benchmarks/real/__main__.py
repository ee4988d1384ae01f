"""All measurements on the real model, and the page about them; what was measured already is not measured again.

python -m benchmarks.real
"""

import os
from typing import Annotated

import torch
import typer

from benchmarks import real_model, report
from benchmarks.real import accuracy, agents, bias, calibration, choices, cost, fit, overhead, page
from benchmarks.real.model import folder, load
from benchmarks.real.rows import say

DYCK_PROMPT = "Write a balanced sequence of at most 8 brackets, of ( and ). Answer with the brackets alone."
LANGUAGES = "dyck1-upto8,dyck1-8"
WHAT = "overhead", "dyck", "bias", "cost", "fit", "accuracy", "calibration", "choices", "agents"


def dyck() -> None:
    """Measure Dyck words, of all tokens that are brackets."""
    if not (report.RESULTS / "real" / "dyck.json").exists():
        where = os.path.relpath(folder())
        real_model.main(model=where, device="cpu", prompt=DYCK_PROMPT, languages=LANGUAGES, out="real/dyck")


def main(
    what: Annotated[str, typer.Option(help="Tables, separated by commas.")] = ",".join(WHAT),
    only: Annotated[str, typer.Option(help="Tasks of bias and cost, separated by semicolons.")] = "",
    phi: Annotated[str, typer.Option(help="Values of phi= in cost and accuracy.")] = "local,fields,auto",
    seeds: Annotated[int, typer.Option(help="Trials of each row of cost, bias and overhead.")] = 10,
    seconds: Annotated[float, typer.Option(help="CPU seconds after which a draw of cost is broken off.")] = 120.0,
    masked: Annotated[int, typer.Option(help="Masked draws of each prompt, of bias.")] = 300,
    temperatures: Annotated[str, typer.Option(help="Temperatures of accuracy.")] = "1,0.3",
    sets: Annotated[str, typer.Option(help="Labelled sets of accuracy.")] = ",".join(accuracy.SETS),
    texts: Annotated[int, typer.Option(help="Texts of each labelled set, at most.")] = 60,
    device: Annotated[str, typer.Option(help="cpu or cuda, for cost alone.")] = "cpu",
) -> None:
    """Measure the missing rows, and write the page."""
    torch.set_num_threads(1)
    loaded = load(device)
    steps = {
        "overhead": lambda: overhead.run(loaded, seeds),
        "dyck": dyck,
        "bias": lambda: bias.run(loaded, only, seeds, masked),
        "cost": lambda: cost.run(loaded, only, phi, seeds, seconds),
        "accuracy": lambda: accuracy.run(loaded, sets, phi, temperatures, texts),
        "fit": lambda: fit.run(loaded),
        "calibration": lambda: calibration.run(loaded),
        "choices": lambda: choices.run(loaded),
        "agents": lambda: agents.run(loaded, texts // 2),
    }
    names = what.split(",")
    if unknown := [name for name in names if name not in steps]:
        raise typer.BadParameter(f"Give some of {','.join(WHAT)}. --what {','.join(unknown)} was given.")
    for name in names:
        say(name)
        steps[name]()
        page.write()


if __name__ == "__main__":
    typer.run(main)
