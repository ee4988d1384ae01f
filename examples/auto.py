"""Draws by phi="auto" where exact ones are cheap, and where they are not.

python examples/auto.py
"""

from __future__ import annotations

import warnings
from typing import Literal

from pydantic import BaseModel, Field

import outlines_phi
from outlines_phi.lm import bundled

PROMPT = "Person: Nora is a teacher. JSON: "


class Person(BaseModel):
    """A person, as the bundled model writes people."""

    name: str = Field(max_length=20)
    age: int
    city: str = Field(max_length=20)


class Painted(BaseModel):
    """A late bottleneck: after a name and an age the bundled model never writes a colour."""

    name: str = Field(max_length=20)
    age: int
    colour: Literal["red", "green", "blue"]


def main(n: int = 8) -> None:
    """Draw ``n`` of each schema."""
    model = outlines_phi.from_transformers(*bundled.load())
    for schema in (Person, Painted):
        generator = outlines_phi.Generator(model, schema)  # phi="auto"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            draws = generator.sample(PROMPT, n=n, seed=0)
        print(
            f"{schema.__name__}: {draws.guarantee.name}, log Phi about {draws.log_z:.1f}, {draws.counts.tokens} model tokens"
        )
        for warning in caught:
            print(f"  {warning.category.__name__}: {warning.message}")
        for draw in draws[:3]:
            print(f"  {draw.guarantee.name}, worth {draw.ess:.1f} of {draw.candidates}: {draw.text}")
        print(f"  effective sample size of the set: {draws.ess:.1f} of {len(draws)}")


if __name__ == "__main__":
    main()
