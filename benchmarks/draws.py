"""Exact draws of JSON with free bounded strings, in model calls and model tokens, against plain masked draws.

    python -m benchmarks.draws

Counts, not times: they are the same on every machine. Plain draws are token by token under the mask; where many are made of
one prompt they share a prefix cache, as exact draws do.
"""

import statistics
from typing import Annotated

import torch
import typer
from pydantic import BaseModel, Field
from rich.progress import track

import outlines_phi
from benchmarks.report import Report
from outlines_phi.lm import bundled

NAMES = (
    "Aria",
    "Bram",
    "Cleo",
    "Dara",
    "Edda",
    "Finn",
    "Greta",
    "Hugo",
    "Ines",
    "Jonas",
    "Kaya",
    "Leo",
    "Mara",
    "Nora",
)
JOBS = ("baker", "teacher", "nurse", "painter", "farmer", "driver", "singer", "carpenter")
SHOPS = ("bakery", "library", "museum", "market", "bank", "garden", "station", "school")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
PROMPTS = {
    "on-prompt": [f"Person: {name} is a {job}. JSON: " for name in NAMES for job in JOBS],
    "off-prompt": [f"Question: is the {shop} open on {day}? Answer: " for shop in SHOPS for day in DAYS],
}


class Person(BaseModel):
    """A record with free bounded strings."""

    name: str = Field(max_length=30)
    age: int
    city: str = Field(max_length=30)


def quantile(values: list[float], q: float) -> float:
    """Return the ``q`` quantile."""
    return statistics.quantiles(values, n=100, method="inclusive")[round(100 * q) - 1]


def main(
    prompts: Annotated[int, typer.Option(help="Distinct prompts, each a cold tree.")] = 50,
    n: Annotated[int, typer.Option(help="Draws of one prompt.")] = 400,
) -> None:
    """Measure and write ``first_draw.json``, ``many_draws.json`` and ``batch.json``."""
    torch.set_num_threads(1)
    generator = outlines_phi.Generator(outlines_phi.from_transformers(*bundled.load()), Person, phi="exact")
    first = Report(
        "first_draw",
        "The first exact draw of a cold tree, relative to one plain draw",
        ["prompts", "Phi (median)", "calls p50", "calls p95", "tokens p50", "tokens p95"],
    )
    many = Report(
        "many_draws",
        f"{n} exact draws of one prompt, relative to {n} plain draws with the same prefix cache",
        ["prompt", "Phi", "plain tokens", "exact tokens", "ratio", "attempts", "ESS of plain draws"],
    )
    batch = Report(
        "batch", "A batch of 32 cold prompts", ["prompts", "calls of the longest alone", "calls of the batch", "ratio"]
    )
    for kind, texts in PROMPTS.items():
        texts = texts[:prompts]
        pairs, phis = [], []
        for seed, text in enumerate(track(texts, description=f"{kind}: first draws")):
            exact, plain = generator.sample(text, seed=seed), generator.sample(text, 8, phi="local", seed=seed)
            one = generator.sample(text, seed=seed, phi="local").counts
            pairs.append((exact.counts.calls / one.calls, exact.counts.tokens / one.tokens))
            phis.append(plain.log_z)
        calls, tokens = ([pair[i] for pair in pairs] for i in (0, 1))
        phi = float(torch.tensor(phis).median().exp())
        first.add(kind, phi, quantile(calls, 0.5), quantile(calls, 0.95), quantile(tokens, 0.5), quantile(tokens, 0.95))
        ratios = []
        for text in texts[:3]:
            exact, plain = generator.sample(text, n, seed=0), generator.sample(text, n, phi="local", seed=0)
            ratios.append(exact.counts.tokens / plain.counts.tokens)
            row = (plain.counts.tokens, exact.counts.tokens, ratios[-1], exact.counts.attempts, plain.ess)
            many.add(text, float(torch.tensor(plain.log_z).exp()), *row)
        alone = [generator.sample(text, seed=0).counts.calls for text in texts[:32]]
        together = generator.sample_batch(texts[:32], seed=0)[0].counts.calls
        batch.add(kind, max(alone), together, together / max(alone))
    first.write(prompts=prompts, type="name, age, city; strings of at most 30")
    many.write(n=n, width=outlines_phi.ExactPhi().width)
    batch.write(n=1)


if __name__ == "__main__":
    typer.run(main)
