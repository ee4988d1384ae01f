"""Finite types: one exact draw against one plain call of stock Outlines, both in the same run.

    python -m benchmarks.finite

Each after a prompt that asks for something else; two of them also after one that asks for them.
"""

import statistics
import time
from typing import Annotated, Any, Literal

import outlines
import torch
import typer

import outlines_phi
from benchmarks.report import Report
from outlines_phi.lm import bundled
from outlines_phi_workbench.suite.reference import count_prefixes

TYPES: dict[str, Any] = {
    "yes, no": Literal["yes", "no"],
    "bool": bool,
    "four roles": Literal["ranger", "rogue", "wizard", "warrior"],
    "ten cities": Literal[
        "Lisbon", "Paris", "Oslo", "Rome", "Berlin", "Lima", "Cairo", "Kyoto", "San Francisco", "Rio de Janeiro"
    ],
    "date of 2026": outlines.types.regex("2026-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"),
}
QUESTION = "Question: is the bakery open on Monday? Answer: "
ASKED_FOR = {
    "four roles": "Character: Aria is a brave elf. Role: ",
    "ten cities": "Person: Nora is a baker. City: ",
}


def main(repeats: Annotated[int, typer.Option(help="Calls of each kind, taken in turn.")] = 100) -> None:
    """Measure and write ``finite.json``."""
    torch.set_num_threads(1)
    model = outlines_phi.from_transformers(*bundled.load())
    report = Report(
        "finite",
        "Finite types: one exact draw from a cold tree against one plain call",
        [
            "type",
            "asked for",
            "live prefixes",
            "model calls",
            "model tokens",
            "plain, ms",
            "exact, ms",
            "exact / plain",
        ],
    )
    for name, output_type in TYPES.items():
        plain = outlines.Generator(outlines.from_transformers(*bundled.load()), output_type)
        exact = outlines_phi.Generator(model, output_type, phi="exact")
        prefixes = count_prefixes(exact.logits_processor.table, 64, 100_000)
        for prompt in [QUESTION, *([ASKED_FOR[name]] if name in ASKED_FOR else [])]:
            times: dict[str, list[float]] = {"plain": [], "exact": []}
            counts = []
            for repeat in range(repeats + 2):
                for kind, generator, options in (("plain", plain, {}), ("exact", exact, {"seed": repeat})):
                    start = time.perf_counter()
                    generator(prompt, **options)
                    if repeat > 1:
                        times[kind].append(1e3 * (time.perf_counter() - start))
                counts.append(exact.sample(prompt, seed=repeat).counts)
            median = {kind: statistics.median(values) for kind, values in times.items()}
            report.add(
                name,
                "no" if prompt == QUESTION else "yes",
                prefixes or 0,
                statistics.mean(count.calls for count in counts),
                statistics.mean(count.tokens for count in counts),
                median["plain"],
                median["exact"],
                median["exact"] / median["plain"],
            )
    report.write(repeats=repeats, prompt=QUESTION, **{f"prompt of {name}": text for name, text in ASKED_FOR.items()})


if __name__ == "__main__":
    typer.run(main)
