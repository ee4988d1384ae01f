"""The examples of Outlines' own README and guides, through the wrapped model: the same calls, with and without ``phi=``.

The bundled model knows none of their subjects, so the exact road is tried where the format is short; a text of 80 free tokens
about what the model has never seen stalls, which the step estimators do not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, datetime
from enum import Enum
from typing import Any, List, Literal, Optional, Union  # noqa: UP035 - as the examples have it

import outlines
import pytest
from outlines.types import email, hex_str, integer, regex
from outlines.types.dsl import at_least, between, either, exactly, optional
from pydantic import BaseModel

import outlines_phi
from outlines_phi import PhiTransformers

SHORT = [None, "exact"]
LONG = ["local", "onestep"]
BUDGET = 80


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


DOCUMENT = """
<|im_start|>user
Classify the following document into exactly one category: {{ document }}
<|im_end|>
<|im_start|>assistant
"""


def sentiment(model: PhiTransformers, **phi: Any) -> None:
    answer = model("Analyze: 'This product completely changed my life!'", Literal["Positive", "Negative"], **phi)
    assert answer in ("Positive", "Negative")


def temperature(model: PhiTransformers, **phi: Any) -> None:
    assert int(model("What's the boiling point of water in Celsius? ", int, **phi)) is not None


def choice_of_a_list(model: PhiTransformers, **phi: Any) -> None:
    assert model("What's the best city? ", outlines.types.Choice(["Paris", "Lima"]), **phi) in ("Paris", "Lima")


def character(model: PhiTransformers, **phi: Any) -> None:
    Character.model_validate_json(model("New character: Aria. JSON: ", Character, **phi))


def generator_kept(model: PhiTransformers, **phi: Any) -> None:
    generator = outlines.Generator(model, Character)
    for prompt in ("New character: Aria. JSON: ", "New character: Hugo. JSON: "):
        Character.model_validate_json(generator(prompt, **phi))


def documents(model: PhiTransformers, **phi: Any) -> None:
    category = Literal["Financial Report", "Legal Contract"]
    template = outlines.Template.from_string(DOCUMENT)
    prompts = [
        template(document=text) for text in ("Revenue increased by 15%.", "This agreement is made between A and B.")
    ]
    assert set(model.batch(prompts, category, **phi)) <= {"Financial Report", "Legal Contract"}
    assert set(outlines.Generator(model, category).batch(prompts, **phi)) <= {"Financial Report", "Legal Contract"}


def application(model: PhiTransformers, **phi: Any) -> None:
    def template(name: str) -> str:
        return f"Is {name} a city? Answer: "

    for prompt in (template, outlines.Template.from_string("Is {{ name }} a city? Answer: ")):
        ask = outlines.Application(prompt, Literal["yes", "no"])
        assert ask(model, {"name": "Lima"}, **phi) in ("yes", "no")


def regex_term(model: PhiTransformers, **phi: Any) -> None:
    text = model("Date: ", regex(r"[0-9]{4}-[0-9]{2}"), **phi)
    assert len(text) == 7 and text[4] == "-"


def terms(model: PhiTransformers, **phi: Any) -> None:
    price = "$" + integer + optional("." + exactly(2, regex("[0-9]")))
    assert model("Price: ", price, **phi)[0] == "$"
    words = either("rest", "work") + between(1, 2, "!") + at_least(1, regex("[0-9]"))
    assert model("Today: ", words, **phi)[:4] in ("rest", "work")
    assert int(model("Hex: ", hex_str, **phi), 16) >= 0


def dates(model: PhiTransformers, **phi: Any) -> None:
    assert model("Date: ", date, **phi)[4] == "-"
    value = model("Date: ", Optional[date], **phi)  # noqa: UP045
    assert value == "None" or value[4] == "-"


def date_and_time(model: PhiTransformers, **phi: Any) -> None:
    assert model("Date and time: ", datetime, **phi)[13] == ":"


def several(model: PhiTransformers, **phi: Any) -> None:
    texts = model("Answer: ", bool, num_return_sequences=3, **{**phi, "do_sample": True})
    assert len(texts) == 3 and set(texts) <= {"True", "False"}


def union(model: PhiTransformers, **phi: Any) -> None:
    answer = model("New character: Aria. JSON: ", Union[Character, Literal["I don't know"]], **phi)  # noqa: UP007
    assert answer == "I don't know" or Character.model_validate_json(answer)


def product(model: PhiTransformers, **phi: Any) -> None:
    ProductCategory.model_validate_json(model("Categorize this product: a red stand mixer\n", ProductCategory, **phi))


def event(model: PhiTransformers, **phi: Any) -> None:
    answer = model("Extract information: DevCon 2023\n", Union[EventInfo, Literal["I don't know"]], **phi)  # noqa: UP007
    assert answer == "I don't know" or EventInfo.model_validate_json(answer)


def meeting(model: PhiTransformers, **phi: Any) -> None:
    def schedule_meeting(title, date, duration_minutes, attendees, location=None): ...  # type: ignore[no-untyped-def]

    schedule_meeting.__annotations__ = {
        "title": str,
        "date": date,
        "duration_minutes": int,
        "attendees": List[str],  # noqa: UP006
        "location": Optional[str],  # noqa: UP045
    }
    assert {"title", "date"} <= json.loads(model("Schedule a meeting: ", schedule_meeting, **phi)).keys()


def address(model: PhiTransformers, **phi: Any) -> None:
    assert "@" in model("Mail: ", email, **phi)


EXAMPLES: list[tuple[Callable[..., None], list[str | None]]] = [
    *((example, SHORT) for example in (sentiment, temperature, choice_of_a_list, character, generator_kept, documents)),
    *((example, SHORT) for example in (application, regex_term, dates, several, union)),
    *((example, LONG) for example in (date_and_time, terms, product, event, meeting, address)),
]


def cases() -> Iterator[Any]:
    """Every example; long ones with one of both step estimators, which take turns, and with both in `make test-full`."""
    for i, (example, roads) in enumerate(EXAMPLES):
        for j, phi in enumerate(roads):
            marks = [pytest.mark.full] if roads is LONG and (i + j) % 2 else []
            yield pytest.param(example, phi, id=f"{example.__name__}-{phi or 'plain'}", marks=marks)


@pytest.mark.parametrize(("example", "phi"), list(cases()))
def test_example(example: Callable[..., None], phi: str | None, model: PhiTransformers) -> None:
    # Room for the whole text: with phi=None Hugging Face's loop cuts at its max_new_tokens, 20 if none is given.
    options: dict[str, Any] = {"phi": None, "max_new_tokens": BUDGET, "do_sample": False}
    if phi:
        options = {"phi": phi, "max_new_tokens": BUDGET, "seed": 5}
    example(model, **options)
    example(outlines_phi.wrap(model, phi=phi), **{key: value for key, value in options.items() if key != "phi"})
