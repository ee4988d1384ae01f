"""The classic API: functions that return typed values, as Outlines 0.x had them, with the correction built in.

Then the same under Outlines' own names, for an application that is not to be edited.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Literal

import outlines
from pydantic import BaseModel

import outlines_phi
from outlines_phi import generate, samplers
from outlines_phi.lm import bundled

QUESTION = "Question: is the bakery open on Sunday? Answer: "
ARIA = "New character: Aria. JSON: "


class Answer(Enum):
    """An answer to a question."""

    YES = "yes"
    NO = "no"


class Character(BaseModel):
    """A character of a game."""

    race: Literal["human", "elf", "dwarf", "halfling"]
    role: Literal["wizard", "rogue", "healer", "ranger captain"]
    alive: bool


def main(n: int = 500) -> None:
    """Draw ``n`` answers with and without the correction, then characters."""
    model = outlines_phi.from_transformers(*bundled.load())

    for phi in ("exact", None):
        answer = generate.choice(model, Answer, samplers.multinomial(n), phi=phi)
        counts = Counter(answer(QUESTION, seed=0, max_tokens=8))  # members of the Enum
        print(f"phi={phi!s:6}", {member.name: counts[member] / n for member in Answer})

    character = generate.json(model, Character, phi="exact")
    print(repr(character(ARIA, seed=0)))  # an instance
    print([c.role for c in character([ARIA, "New character: Hugo. JSON: "], seed=0)])
    print("most probable:", generate.json(model, Character, samplers.greedy())(ARIA))
    print("streamed:", "|".join(character.stream(ARIA, seed=0)))
    print("free text:", repr(generate.text(model)(QUESTION, max_tokens=20, stop_at=".", seed=0)))

    # An application of 0.x, over a stock Outlines model
    stock = outlines.from_transformers(*bundled.load())
    outlines_phi.install()
    print("installed:", outlines.generate.format(stock, bool, phi="exact")(QUESTION, seed=0))
    print("installed:", outlines.Generator(stock, Character, phi="exact").sample(ARIA, seed=0)[0].value)
    outlines_phi.uninstall()


if __name__ == "__main__":
    main()
