"""What `auto` pays for trying to be exact, and what its weighted draws are worth, where exact sampling stalls and where not.

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
from outlines_phi.plugin.options import CallOptions
from outlines_phi.sampling.auto import AutoSampler
from outlines_phi.settings import SamplingSettings

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


def exact_part(generator: Any, n: int, seed: int) -> int:
    """Return the model tokens that a call with ``AutoPhi()`` spends on exact draws: those of an exact call of that effort."""
    model, table = generator.model, generator.logits_processor.table
    request = model._request([PROMPT], table, CallOptions(SamplingSettings(seed=seed), n))
    try:
        return generator.sample(
            PROMPT, n, phi=AutoSampler(outlines_phi.AutoPhi())._exact(request), seed=seed
        ).counts.tokens
    except outlines_phi.BudgetError as error:
        return error.draws[0].counts.tokens


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
            "tokens",
            "of them weighted",
            "ratio",
            "tokens with share=0",
            "ratio to that",
            "ESS of a draw's candidates",
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
                exact = sum(draw.guarantee == outlines_phi.Guarantee.EXACT for draw in auto)
                ess = [draw.ess for draw in auto if draw.guarantee != outlines_phi.Guarantee.EXACT]
                plain = masked(generator, auto.counts.tokens, seed)
                own = auto.counts.tokens - exact_part(generator, n, seed)
                rows.append((auto.counts.tokens, own, weighted.counts.tokens, exact, ess, plain.ess / n, plain.log_z))
            tokens, own, alone, exact, ess, plain_ess, log_z = zip(*rows, strict=True)
            found = [one for call in ess for one in call]
            report.add(
                name,
                math.exp(statistics.median(log_z)),
                n,
                f"{sum(exact)} of {n * seeds}",
                round(statistics.mean(tokens)),
                round(statistics.mean(own)),
                sum(tokens) / sum(own) if any(own) else "exact",
                round(statistics.mean(alone)),
                sum(tokens) / sum(alone),
                statistics.mean(found) if found else "exact",
                statistics.mean(plain_ess),
            )
    auto_phi = outlines_phi.AutoPhi()
    report.write(seeds=seeds, candidates=auto_phi.candidates, share=auto_phi.share, prompt=PROMPT)


if __name__ == "__main__":
    typer.run(main)
