"""The bundled model, read once in a process, and types that it knows."""

from __future__ import annotations

import copy
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field

from outlines_phi.lm import bundled

if TYPE_CHECKING:
    import torch


MONDAY = "Question: is the bakery open on Monday? Answer: "
SUNDAY = MONDAY.replace("Monday", "Sunday")
ARIA = "New character: Aria. JSON: "
A_PERSON = "A person as JSON: "
ANSWER = Literal["yes", "no", "not now", "nobody"]


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int
    city: str = Field(max_length=20)


class Character(BaseModel):
    race: Literal["human", "elf", "dwarf", "halfling"]
    role: Literal["wizard", "rogue", "healer", "ranger captain"]
    level: Literal[1, 2, 3, 4, 5, 6, 7, 8, 9]
    alive: bool


read = cache(bundled.load)


@cache
def tried(dtype: torch.dtype | None) -> dict[tuple[str, int], str | None]:
    """Return the verdicts of the model's trial."""
    from outlines_phi.lm.transformers import roads
    from outlines_phi.lm.transformers.transformers_model import TransformersModel

    model, tokenizer = read(dtype)
    assert TransformersModel.with_tokenizer(model, tokenizer).road == "packed"
    return {(name, border): verdict for (_, name, border), verdict in roads.VERDICTS[model].items()}


def copied_model(dtype: torch.dtype | None = None) -> tuple[Any, Any]:
    """Return a copy of the model and of its tokenizer that a test may change; as it is, it needs no trial of its own."""
    from outlines_phi.lm.transformers import roads
    from outlines_phi.lm.transformers.forward import structure

    verdicts = tried(dtype)
    model, tokenizer = copy.deepcopy(read(dtype))
    roads.VERDICTS[model] = {(structure(model), *trial): verdict for trial, verdict in verdicts.items()}
    return model, tokenizer
