"""What the demo asks the bundled model: the only place that knows its prompts and schemas."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, final

from pydantic import BaseModel

BUDGET = 128
"""More tokens than any text of the types below has, so that nothing is ever cut short."""


@final
@dataclass(frozen=True)
class Case:
    """One prompt and one output type with finitely many values.

    Attributes
    ----------
    title
        What happens here.
    prompt, output_type
        What the model is asked, and what it may write.
    source
        The output type as an application would write it.
    read
        The fields of a text.
    """

    title: str
    prompt: str
    output_type: Any
    source: str
    read: Callable[[str], Mapping[str, Hashable]]

    def asking(self, prompt: str) -> Case:
        """Return the case with another prompt."""
        return replace(self, prompt=prompt)


class Character(BaseModel):
    """A character of a game."""

    race: Literal["human", "elf", "dwarf", "halfling"]
    role: Literal["wizard", "rogue", "healer", "ranger captain"]
    level: Literal[1, 2, 3, 4, 5, 6, 7, 8, 9]
    alive: bool


ANSWER = Case(
    title="A choice of two",
    prompt="Question: is the bakery open on Sunday? Answer: ",
    output_type=Literal["yes", "no"],
    source='Literal["yes", "no"]',
    read=lambda text: {"answer": text},
)
CHARACTER = Case(
    title="A pydantic model",
    prompt="New character: Aria. JSON: ",
    output_type=Character,
    source="\n".join(line for line in inspect.getsource(Character).splitlines() if line),
    read=json.loads,
)
