"""A game character as pydantic JSON: plain Outlines beside phi="exact".

``ranger`` is common in the model's world and ``ranger captain`` is rare. Masking takes every ranger for a captain,
because it has paid for ``ranger`` before it learns that only captains fit the schema.
"""

from __future__ import annotations

from collections import Counter
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


def main(n: int = 200) -> None:
    """Draw ``n`` characters each way and compare their roles."""
    model = outlines_phi.from_transformers(*bundled.load())

    # One call of stock Outlines, without and with the correction.
    print("plain:", model(PROMPT, Character, max_new_tokens=100))
    print("exact:", model(PROMPT, Character, max_new_tokens=100, phi="exact"))

    plain = model(PROMPT, Character, max_new_tokens=100, num_return_sequences=n)
    exact = model(PROMPT, Character, max_new_tokens=100, num_return_sequences=n, phi="exact")
    print(f"\n{'role':16}{'plain':>8}{'exact':>8}   of {n} draws")
    before, after = (Counter(Character.model_validate_json(text).role for text in texts) for texts in (plain, exact))
    for role in sorted(before | after):
        print(f"{role:16}{before[role] / n:8.1%}{after[role] / n:8.1%}")


if __name__ == "__main__":
    main()
