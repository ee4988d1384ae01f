"""Weighted draws: masking keeps its speed, and its weights undo the bias in expectations.

A draw of ``phi="local"`` is a draw of plain masking that knows its weight ``w = p(y) / q(y)``. The mean of ``w`` is an
unbiased estimate of Phi, the probability that the model meets the format by itself, and weighted means are means under
the model's own distribution. The effective sample size (ESS) says how many exact draws they are worth.
"""

from __future__ import annotations

import json
import math
from typing import Literal

from pydantic import BaseModel

import outlines_phi
from outlines_phi.lm import bundled

PROMPT = "New character: Aria. JSON: "


class Character(BaseModel):
    """A character of a game."""

    race: Literal["human", "elf", "dwarf", "halfling"]
    role: Literal["wizard", "rogue", "healer", "ranger captain"]
    level: Literal[1, 2, 3, 4, 5, 6, 7, 8, 9]
    alive: bool


def main(n: int = 400) -> None:
    """Estimate the mean level and the share of captains from ``n`` draws, three ways."""
    model = outlines_phi.from_transformers(*bundled.load())
    generator = outlines_phi.Generator(model, Character, phi="local")
    masked = generator.sample(PROMPT, n, seed=0, max_new_tokens=100)
    exact = generator.sample(PROMPT, n, seed=0, max_new_tokens=100, phi=outlines_phi.ExactPhi(normalizers=50))

    print(f"{'':24}{'mean level':>12}{'captains':>10}{'ESS':>8}{'log Phi':>9}")
    equal = [1 / n] * n
    for name, draws, weights, ess in (
        ("masking, as it is", masked, equal, ""),
        ("masking, weighted", masked, masked.weights.tolist(), f"{masked.ess:.0f}"),
        ("exact", exact, equal, f"{exact.ess:.0f}"),
    ):
        records = [json.loads(text) for text in draws.texts]
        level = math.fsum(w * record["level"] for w, record in zip(weights, records, strict=True))
        captains = math.fsum(
            w for w, record in zip(weights, records, strict=True) if record["role"] == "ranger captain"
        )
        print(f"{name:24}{level:12.2f}{captains:10.1%}{ess:>8}{draws.log_z:9.2f}")
    low, high = exact.log_z_bounds
    print(f"\nlog Phi lies between {low:.2f} and {high:.2f}, by the token tree of the exact draws.")


if __name__ == "__main__":
    main()
