"""The worth of the layout that each array and object chooses once: Phi and model calls of records, beside blanks that are free.

    python -m benchmarks.layouts

Each record is written by the bundled model under three rules of blanks: the default, where the first blank of an array or object
decides about the rest of it; blanks that are free in all places, ``whitespace_pattern=r"( |\\n *)?"``; and none,
``whitespace_pattern=""``. Phi is that of weighted draws, calls and tokens those of one cold draw by ``auto``, a median over seeds.
Counts, not times: they are the same on every machine.
"""

import statistics
import warnings
from typing import Annotated, Literal

import torch
import typer
from outlines.types import JsonSchema
from pydantic import BaseModel, Field
from rich.progress import track

import outlines_phi
from benchmarks.report import Report
from outlines_phi.errors import FidelityWarning
from outlines_phi.lm import bundled

RULES = {"chosen once": None, "free": r"( |\n *)?", "none": ""}


class Pair(BaseModel):
    name: str = Field(max_length=20)
    age: int


class Person(Pair):
    city: str = Field(max_length=20)


class Six(BaseModel):
    name: str = Field(max_length=20)
    race: Literal["human", "elf"]
    role: Literal["wizard", "rogue"]
    level: Literal[1, 2, 3]
    alive: bool
    city: str = Field(max_length=20)


class Aged(BaseModel):
    name: str = Field(max_length=20)
    ages: list[Literal[31, 42, 53]] = Field(min_length=4, max_length=4)


class Home(BaseModel):
    name: str = Field(max_length=20)
    home: Pair


RECORDS = {"2 fields": Pair, "3 fields": Person, "6 fields": Six, "a list": Aged, "an object in one": Home}
PROMPTS = {"on-prompt": "Person: Nora is a baker. JSON: ", "off-prompt": "Question: is the bakery open? Answer: "}


def main(
    seeds: Annotated[int, typer.Option(help="Cold draws of each kind.")] = 5,
    n: Annotated[int, typer.Option(help="Weighted draws that Phi is measured by.")] = 300,
    only: Annotated[str, typer.Option(help="Only the record of this name.")] = "",
) -> None:
    """Measure and write ``layouts.json``."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FidelityWarning)
    report = Report(
        "layouts",
        "Blanks that each array and object chooses once, beside free ones and none",
        ["record", "prompt", "blanks", "log Phi", "ESS of it", "calls p50", "tokens p50"],
    )
    model = outlines_phi.from_transformers(*bundled.load())
    pairs = [(one, asked) for one in RECORDS.items() for asked in PROMPTS.items() if only in ("", one[0])]
    for (name, record), (kind, prompt) in track(pairs, description="records"):
        for rule, blanks in RULES.items():
            generator = outlines_phi.Generator(model, JsonSchema(record.model_json_schema(), whitespace_pattern=blanks))
            measured = generator.sample(prompt, n, phi="local", seed=0)
            costs = []
            for seed in range(seeds):
                model.clear_cache()
                counts = generator.sample(prompt, phi="auto", seed=seed).counts
                costs.append((counts.calls, counts.tokens))
            calls, tokens = (statistics.median(cost[i] for cost in costs) for i in (0, 1))
            report.add(name, kind, rule, measured.log_z, measured.ess, calls, tokens)
    report.write(seeds=seeds, n=n, model="bundled")


if __name__ == "__main__":
    typer.run(main)
