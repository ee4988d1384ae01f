"""Text while it is written, and many questions at once under a time limit.

A stream yields what is final and nothing else. Asynchronous calls leave the event loop free; one that takes too long is cancelled,
and the others do not notice.
"""

from __future__ import annotations

import asyncio
import time
from typing import Literal

from outlines.types import regex
from pydantic import BaseModel

import outlines_phi
from outlines_phi.lm import bundled

CHARACTER = "New character: Aria. JSON: "
QUESTION = "Question: is the bakery open on {}? Answer: "
DAYS = ("Monday", "Friday", "Sunday")


class Character(BaseModel):
    """A character of a game."""

    race: Literal["human", "elf", "dwarf", "halfling"]
    role: Literal["wizard", "rogue", "healer", "ranger captain"]
    level: Literal[1, 2, 3, 4, 5, 6, 7, 8, 9]
    alive: bool


def stream(model: outlines_phi.PhiTransformers) -> None:
    """Print the pieces of a text on each road, and when the first one came."""
    for phi in (None, "local", "exact"):
        model(CHARACTER, Character, phi=phi, max_new_tokens=60)  # what is done only once is not timed
        start = time.perf_counter()
        pieces, first = [], 0.0
        for piece in model.stream(CHARACTER, Character, phi=phi, max_new_tokens=60):
            first = first or time.perf_counter() - start
            pieces.append(piece)
        total = time.perf_counter() - start
        print(f"phi={phi}: {'|'.join(pieces)}")
        print(f"    first piece after {1000 * first:.0f} of {1000 * total:.0f} ms")


async def ask(model: outlines_phi.PhiTransformers, n: int) -> None:
    """Ask every question ``n`` times, side by side; and cancel a call that would take too long."""
    answers = outlines_phi.Generator(model, Literal["yes", "no"])
    results = await asyncio.gather(*(answers.asample(QUESTION.format(day), n, seed=1) for day in DAYS))
    for day, draws in zip(DAYS, results, strict=True):
        print(f"{day:10} {draws.texts.count('yes') / n:.0%} yes")

    essay = outlines_phi.Generator(model, regex("[a-z ]{150,200}"), phi="local")
    try:
        await asyncio.wait_for(essay.asample("Story: ", 200 * n), timeout=0.1)
    except asyncio.TimeoutError:
        print("cancelled: the essays took too long")
    print("and the next call:", await answers.agenerate(QUESTION.format("Sunday"), seed=1))


def main(n: int = 200) -> None:
    """Stream on three roads, then ask ``n`` times about every day."""
    model = outlines_phi.from_transformers(*bundled.load())
    stream(model)
    asyncio.run(ask(model, n))


if __name__ == "__main__":
    main()
