"""The price of `auto` for trying to be exact, and the worth of its weighted draws, where exact sampling stalls and where not.

    python -m benchmarks.auto

Counts, not times: they are the same on every machine.
"""

from __future__ import annotations

import math
import statistics
import warnings
from typing import Annotated, Any, Literal

import torch
import typer
from pydantic import BaseModel, Field
from rich.progress import track

import outlines_phi
from benchmarks.report import Report
from outlines_phi.lm import bundled

PROMPT = "Person: Nora is a teacher. JSON: "


class Stalled(BaseModel):
    """A record whose last field the model never writes: the improbable part comes late, after text that differs each time."""

    name: str = Field(max_length=20)
    age: int
    colour: Literal["red", "green", "blue"]


class Easy(BaseModel):
    """A record as the model writes them."""

    name: str = Field(max_length=20)
    age: int
    city: str = Field(max_length=20)


def masked(generator: Any, tokens: int, seed: int) -> outlines_phi.Draws:
    """Return masked draws that cost ``tokens`` model tokens or a few more, with the prefix cache that all draws have."""
    n = 16
    while (draws := generator.sample(PROMPT, n, phi="local", seed=seed)).counts.tokens < tokens:
        n = math.ceil(n * min(2.0, 1.02 * tokens / draws.counts.tokens))
    return draws


def main(
    seeds: Annotated[int, typer.Option(help="Calls of each kind.")] = 4,
    draws: Annotated[str, typer.Option(help="Draws of a call, one row for each.")] = "1 4 16",
) -> None:
    """Measure and write ``auto.json``."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", outlines_phi.FidelityWarning)
    model = outlines_phi.from_transformers(*bundled.load())
    report = Report(
        "auto",
        "`auto` where exact sampling stalls, and where it does not",
        [
            "language",
            "Phi",
            "n",
            "exact draws",
            "calls",
            "ratio to share=0",
            "tokens",
            "tokens, ratio to share=0",
            "ESS of a draw's candidates",
            "the same, share=0",
            "masking at equal tokens, ESS per draw",
        ],
    )
    for name, output_type in (("stalled", Stalled), ("easy", Easy)):
        generator = outlines_phi.Generator(model, output_type)
        for n in map(int, draws.split()):
            rows = []
            for seed in track(range(seeds), description=f"{name}, {n}"):
                auto = generator.sample(PROMPT, n, phi=outlines_phi.AutoPhi(), seed=seed)
                weighted = generator.sample(PROMPT, n, phi=outlines_phi.AutoPhi(share=0), seed=seed)
                plain = masked(generator, auto.counts.tokens, seed)
                rows.append((auto, weighted, plain))
            both, alone, plain = zip(*rows, strict=True)
            calls, tokens = (sum(getattr(one.counts, unit) for one in both) for unit in ("calls", "tokens"))
            ess = [draw.ess for one in both for draw in one if draw.guarantee != outlines_phi.Guarantee.EXACT]
            report.add(
                name,
                math.exp(statistics.median(one.log_z for one in plain)),
                n,
                f"{n * seeds - len(ess)} of {n * seeds}",
                calls / seeds,
                calls / sum(one.counts.calls for one in alone),
                round(tokens / seeds),
                tokens / sum(one.counts.tokens for one in alone),
                statistics.mean(ess) if ess else "exact",
                statistics.mean(draw.ess for one in alone for draw in one),
                statistics.mean(one.ess / n for one in plain),
            )
    auto_phi = outlines_phi.AutoPhi()
    report.write(seeds=seeds, candidates=auto_phi.candidates, share=auto_phi.share, prompt=PROMPT)


if __name__ == "__main__":
    typer.run(main)
