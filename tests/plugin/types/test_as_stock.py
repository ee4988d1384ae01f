"""Plain calls of a wrapped model beside stock Outlines, seed for seed; and types that Outlines refuses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any, Literal

import outlines
import pytest
import torch
from genson import SchemaBuilder
from outlines.types import JsonSchema, cfg, json_schema, regex
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

import outlines_phi

PROMPT = "City: Lisbon. JSON: "


class City(BaseModel):
    name: Literal["Lisbon", "Laderao"]
    hills: bool


class Country(BaseModel):
    cities: list[City] = Field(max_length=2)
    area: int


@dataclass
class Point:
    x: bool
    y: Literal[1, 2]


class Named(TypedDict):
    name: Literal["a", "b"]


def added(first: bool, second: Literal["x", "y"]) -> None: ...


def example() -> Any:
    builder = SchemaBuilder()
    builder.add_object({"seen": True})
    return builder


class Kind(Enum):
    ONE = 1
    WORD = "two"


SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": [1, "x"]}}, "required": ["a", "b"]}
TYPES: dict[str, Any] = {
    "pydantic": City,
    "nested": Country,
    "dataclass": Point,
    "typed dict": Named,
    "function": added,
    "dict": json_schema(SCHEMA),
    "text": JsonSchema(json.dumps(SCHEMA)),
    "blanks": JsonSchema(SCHEMA, whitespace_pattern=r"[\n ]?"),
    "what outlines_core leaves out": json_schema({"type": "integer", "minimum": 10, "maximum": 12}),
    "genson": example(),
    "any JSON": dict,
    "list": list[City],
    "tuple": tuple[City, int],
    "union": City | Point,
    "optional": Named | None,
    "sequence": regex("Answer: ") + JsonSchema(SCHEMA),
    "enum": Kind,
    "literal": Literal["yes", "no"],
    "number": int,
    "date": date,
    "regex": regex("[a-c]{1,5}"),
    "grammar": cfg('start: "(" start ")" | "x"'),
}


def text_of(model: Any, output_type: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    return model(PROMPT, output_type, max_new_tokens=40)


@pytest.mark.parametrize("name", TYPES)
def test_plain_calls_are_those_of_outlines_seed_for_seed(
    name: str, model: outlines_phi.PhiTransformers, stock: outlines.models.Transformers
) -> None:
    untouched = outlines_phi.wrap(stock)
    for seed in range(3):
        expected = text_of(stock, TYPES[name], seed)
        assert text_of(model, TYPES[name], seed) == expected
        assert text_of(untouched, TYPES[name], seed) == expected


def test_batches_and_streams_are_those_of_outlines(
    model: outlines_phi.PhiTransformers, stock: outlines.models.Transformers
) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        expected = stock.batch([PROMPT, "x"], City, max_new_tokens=40)
        torch.manual_seed(seed)
        assert model.batch([PROMPT, "x"], City, max_new_tokens=40) == expected
        torch.manual_seed(seed)
        assert "".join(model.stream(PROMPT, City, max_new_tokens=40)) == text_of(stock, City, seed)


REFUSED: dict[str, tuple[Any, Any]] = {
    "not": (
        json_schema({"not": {"type": ["object", "array", "number", "string"]}}),
        lambda value: value in (None, True, False),
    ),
    "in a list": (list[json_schema({"not": {"type": ["object", "array", "number", "string"]}})], None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_types_that_outlines_refuses_are_still_written(
    name: str, model: outlines_phi.PhiTransformers, stock: outlines.models.Transformers
) -> None:
    output_type, holds = REFUSED[name]
    with pytest.raises(ValueError, match="^Unsupported JSON Schema structure"):
        text_of(stock, output_type, 0)
    text = text_of(model, output_type, 0)
    assert holds(json.loads(text)) if holds else text.startswith("[")
