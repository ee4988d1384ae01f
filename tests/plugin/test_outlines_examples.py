"""The examples of Outlines' own README and guides, through the wrapped model: the same calls, with and without ``phi=``.

The bundled model knows none of their subjects, so the exact road is tried where the format is short; a text of 80 free tokens
about what the model has never seen stalls, which the step estimators do not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, datetime
from enum import Enum
from itertools import product
from typing import Any, List, Literal, Optional, Union  # noqa: UP035 - as the examples have it

import outlines
import pytest
from outlines.types import email, hex_str, integer, regex
from outlines.types.dsl import at_least, between, either, exactly, optional
from pydantic import BaseModel

from outlines_phi import PhiTransformers, wrap

LONG = ["local", "onestep"]


class Role(Enum):
    wizard = "wizard"
    rogue = "rogue"
    healer = "healer"


class Character(BaseModel):
    """A character, as in the examples of 0.x, of the fields that the bundled model knows."""

    race: Literal["human", "elf", "dwarf", "halfling"]
    role: Role
    alive: bool


class ProductCategory(BaseModel):
    main_category: str
    sub_category: str
    attributes: List[str]  # noqa: UP006
    brand_match: Optional[str]  # noqa: UP045


class EventType(str, Enum):
    conference = "conference"
    webinar = "webinar"
    other = "other"


class EventInfo(BaseModel):
    """Structured information about a tech event"""

    name: str
    event_type: EventType
    topics: List[str]  # noqa: UP006
    registration_required: bool


def schedule_meeting(title, date, duration_minutes, attendees, location=None): ...  # type: ignore[no-untyped-def]


schedule_meeting.__annotations__ = {
    "title": str,
    "date": date,
    "duration_minutes": int,
    "attendees": List[str],  # noqa: UP006
    "location": Optional[str],  # noqa: UP045
}


WORDS = either("rest", "work") + between(1, 2, "!") + at_least(1, regex("[0-9]"))
ARIA, UNKNOWN = "New character: Aria. JSON: ", Literal["I don't know"]

Holds = Callable[[str], object]
TYPED: list[tuple[str, Any, Holds]] = [
    (
        "Analyze: 'This product completely changed my life!'",
        Literal["Positive", "Negative"],
        lambda text: text in ("Positive", "Negative"),
    ),
    ("What's the boiling point of water in Celsius? ", int, lambda text: int(text) is not None),
    ("What's the best city? ", outlines.types.Choice(["Paris", "Lima"]), lambda text: text in ("Paris", "Lima")),
    (ARIA, Character, Character.model_validate_json),
    ("Date: ", regex(r"[0-9]{4}-[0-9]{2}"), lambda text: len(text) == 7 and text[4] == "-"),
    ("Date: ", date, lambda text: text[4] == "-"),
    ("Date: ", Optional[date], lambda text: text == "None" or text[4] == "-"),  # noqa: UP045
    (ARIA, Union[Character, UNKNOWN], lambda text: text == "I don't know" or Character.model_validate_json(text)),  # noqa: UP007
]
"""A prompt, a type, and what its texts hold."""

LONG_TYPED: list[tuple[str, Any, Holds]] = [
    ("Date and time: ", datetime, lambda text: text[13] == ":"),
    ("Price: ", "$" + integer + optional("." + exactly(2, regex("[0-9]"))), lambda text: text[0] == "$"),
    ("Today: ", WORDS, lambda text: text[:4] in ("rest", "work")),
    ("Hex: ", hex_str, lambda text: int(text, 16) >= 0),
    ("Categorize this product: a red stand mixer\n", ProductCategory, ProductCategory.model_validate_json),
    (
        "Extract information: DevCon 2023\n",
        Union[EventInfo, UNKNOWN],  # noqa: UP007
        lambda text: text == "I don't know" or EventInfo.model_validate_json(text),
    ),
    ("Schedule a meeting: ", schedule_meeting, lambda text: {"title", "date"} <= json.loads(text).keys()),
    ("Mail: ", email, lambda text: "@" in text),
]


def cases() -> Iterator[Any]:
    """Every example; long ones with one of both step estimators, which take turns, and with both in `make test-full`."""
    for roads, examples in (([None, "exact"], TYPED), (LONG, LONG_TYPED)):
        for (i, example), (j, phi) in product(enumerate(examples), enumerate(roads)):
            marks = [pytest.mark.full] if roads is LONG and (i + j) % 2 else []
            yield pytest.param(*example, phi, id=f"{example[0][:12]}-{i}-{phi or 'plain'}", marks=marks)


def options_of(phi: str | None) -> dict[str, Any]:
    """Room for the whole text: with phi=None Hugging Face's loop cuts at its max_new_tokens, 20 if none is given."""
    return {"phi": phi, "max_new_tokens": 80} | ({"seed": 5} if phi else {"do_sample": False})


@pytest.mark.parametrize(("prompt", "output_type", "holds", "phi"), list(cases()))
def test_types(prompt: str, output_type: Any, holds: Holds, phi: str | None, model: PhiTransformers) -> None:
    options = options_of(phi)
    assert holds(model(prompt, output_type, **options))
    assert holds(wrap(model, phi=options.pop("phi"))(prompt, output_type, **options))
