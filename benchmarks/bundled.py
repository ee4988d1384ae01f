"""The bundled model's distribution: Phi and the bias of plain masking on the cases of its card.

python -m benchmarks.bundled
"""

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer
from pydantic import BaseModel, Field

import outlines_phi
from benchmarks.report import Report
from outlines_phi.fidelity.findings import frequencies, noise_floor, total_variation
from outlines_phi.lm import bundled


class Character(BaseModel):
    """Case b."""

    race: Literal["human", "elf", "dwarf", "halfling"]
    role: Literal["wizard", "rogue", "healer", "ranger captain"]
    level: Literal[1, 2, 3, 4, 5, 6, 7, 8, 9]
    alive: bool


class Person(BaseModel):
    """Case c."""

    name: str = Field(max_length=30)
    age: int
    city: str = Field(max_length=30)


Answer = Literal["yes", "no"]
Role = Literal["wizard", "rogue", "healer", "ranger captain"]
Read = Callable[[str], str]

CASES: tuple[tuple[str, str, Any, Read], ...] = (
    ("a, answer", "Question: is the bakery open on Sunday? Answer: ", Answer, str),
    ("a, role", "Character: Aria is a brave elf. Role: ", Role, str),
    ("b, role", "New character: Aria. JSON: ", Character, lambda text: json.loads(text)["role"]),
    ("b, race", "New character: Aria. JSON: ", Character, lambda text: json.loads(text)["race"]),
    (
        "b, off-prompt, role",
        "Character: Aria is a brave elf. Story: ",
        Character,
        lambda text: json.loads(text)["role"],
    ),
    ("c, city", "Person: Nora is a baker. JSON: ", Person, lambda text: json.loads(text)["city"]),
    (
        "c, off-prompt, city",
        "Question: is the bakery open on Sunday? Answer: ",
        Person,
        lambda text: json.loads(text)["city"],
    ),
)


def main(
    n: Annotated[int, typer.Option(help="Draws of each kind.")] = 1000,
    cases: Annotated[str, typer.Option(help="Only cases whose name begins so.")] = "",
) -> None:
    """Measure and write ``bundled.json``."""
    torch.set_num_threads(1)
    model = outlines_phi.from_transformers(*bundled.load())
    report = Report(
        "bundled",
        "The bundled model: Phi, and the distance of plain masking and of exact draws from the truth",
        ["case", "prompt", "Phi", "TV of masking", "TV between two exact sets", "noise floor of the latter"],
    )
    for name, prompt, output_type, read in CASES:
        if not name.startswith(cases):
            continue
        generator = outlines_phi.Generator(model, output_type, phi="exact")
        exact = generator.sample(prompt, 2 * n, seed=0, phi=outlines_phi.ExactPhi(normalizers=200))
        masked = generator.sample(prompt, n, seed=1, phi="local")
        values = [read(text) for text in exact.texts]
        first, second = frequencies(values[:n]), frequencies(values[n:])
        truth = frequencies(values)
        distance = total_variation(frequencies(map(read, masked.texts)), truth)
        between = total_variation(first, second)
        # Two independent sets of n differ as one set of n / 2 differs from its distribution.
        report.add(name, prompt, float(np.exp(exact.log_z)), distance, between, noise_floor(truth, n // 2))
    report.write(n=n)


if __name__ == "__main__":
    typer.run(main)
