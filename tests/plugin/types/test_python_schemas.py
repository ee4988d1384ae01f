"""Draws for a Python type validate."""

# ruff: noqa: UP007, UP045 - both spellings of a union are given by users

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from typing import Annotated, Any, Literal, Optional, Union

import outlines.types
import pytest
from outlines.types import JsonSchema
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from outlines_phi import Generator, PhiTransformers, SchemaWarning, UnsupportedError
from outlines_phi.plugin.types.output_types import JSONText, to_language
from outlines_phi.plugin.types.pydantic_schemas import PythonSchema, term_of


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool = True


class Kept(BaseModel):
    model_config = ConfigDict(extra="allow")
    n: int


def test_keys_that_a_type_does_not_declare_are_not_written() -> None:
    @dataclasses.dataclass
    class Data:
        n: int

    class Typed(TypedDict):
        n: int

    class Plain(BaseModel):
        n: int

    def function(n: int) -> None: ...

    more = b'{"n":1,"x":2}'
    for output_type in (Data, Typed, Plain, function):
        machine = to_language(output_type).machine
        assert machine.accepts(b'{"n":1}') and not machine.accepts(more)
    for output_type in (Kept, JsonSchema(Plain.model_json_schema())):
        assert to_language(output_type).machine.accepts(more)
    assert not to_language(Plain).machine.accepts(b'{"n":1.0}'), "as Python writes an int"


def test_parts_of_other_types_are_found() -> None:
    class Tool(Enum):
        OTHER = "other"

    cats, row, _ = term_of(Union[list[Cat], tuple[Dog, Tool], None]).terms
    cat, dog = cats.terms[1], row.terms[1]
    assert isinstance(cat, PythonSchema) and isinstance(dog, PythonSchema)
    assert all(json.loads(one.schema)["additionalProperties"] is False for one in (cat, dog))
    assert term_of(int) == outlines.types.integer and not isinstance(term_of(JsonSchema({})), PythonSchema)


def book(room: Literal["sea", "garden"], nights: Annotated[int, Field(ge=1, le=3)] = 1) -> None: ...


@pytest.mark.parametrize(
    ("output_type", "members", "strangers"),
    [
        (
            book,
            ['{"room":"sea","nights":3}', '{"room": "garden"}'],
            ['{"room":"sea","nights":4}', '{"nights":1}'],
        ),
        (
            list[Cat],
            ['[{"kind":"cat","lives":1}, {"kind": "cat", "lives": 9}]'],
            ["[]", '[{"kind":"cat","lives":10}]', "[, ]"],
        ),
        (Optional[Cat], ["None", '{"kind":"cat","lives":3}'], ["null", "Nonenone"]),
        (Union[Cat, Dog], ['{"kind":"dog"}', '{"kind":"cat","lives":2}'], ['{"kind":"cat"}', '{"kind":"cow"}']),
        (Union[Cat, int, str], ["12", '"x"', '{"kind":"cat","lives":2}'], ['{"kind":"cat"}']),
        (dict[str, Dog], ["{}", '{"a":{"kind":"dog"}, "b":{"kind":"dog","good":false}}'], ['{"a":{"kind":"cat"}}']),
        (tuple[Dog, int], ['({"kind":"dog"}, 3)'], ['({"kind":"dog"})', '({"kind":"dog"}, 3']),
        ("<a>" + JsonSchema({"type": "boolean"}) + "</a>", ["<a>true</a>"], ["<a></a>", "true", "<a>true"]),
        (JsonSchema({"type": "null"}).between(1, 3), ["null", "nullnullnull"], ["", "null" * 4]),
        (JsonSchema({"type": "null"}).at_least(2), ["nullnull", "null" * 5], ["", "null"]),
        (JsonSchema({"type": "null"}).zero_or_more(), ["", "null" * 5], ["nul"]),
        (JsonSchema({"type": "null"}).exactly(2), ["nullnull"], ["null", "null" * 3]),
    ],
)
def test_containers_and_terms_hold_values(output_type: Any, members: list[str], strangers: list[str]) -> None:
    language = to_language(output_type)
    assert isinstance(language, JSONText)
    assert [text for text in members + strangers if language.machine.accepts(text.encode())] == members


@pytest.mark.parametrize(
    ("output_type", "message"),
    [
        (Union[Cat, dict[str, int]], "b'{' is what a JSON value begins with"),
        (JsonSchema({"type": "integer"}) + outlines.types.regex("[0-9]"), "what a number may go on with"),
        (
            JsonSchema({"type": "null"}, whitespace_pattern="") + JsonSchema({"type": "null"}, whitespace_pattern=" "),
            "Give the JSON schemas of one output type the same whitespace_pattern",
        ),
        (JsonSchema({}).exactly(20_000), "Repeat a part of the output type fewer times"),
    ],
)
def test_what_would_take_two_readings_at_once_is_refused(
    output_type: Any, message: str, model: PhiTransformers
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        Generator(model, output_type)


class TestDraws:
    def test_what_is_not_asked_of_a_value_is_named_once(self, fresh: PhiTransformers) -> None:
        class Shoe(BaseModel):
            size: Annotated[str, Field(max_length=3, json_schema_extra={"format": "shoe-size"})]

        with pytest.warns(SchemaWarning, match="#/properties/size/format") as caught:
            fresh("Shoe: ", Shoe, phi="local", max_new_tokens=60)
        (said,) = (each for each in caught if issubclass(each.category, SchemaWarning))
        assert said.filename == __file__
        fresh("Shoe: ", Shoe, phi="local", max_new_tokens=60)  # what is at hand says nothing: warnings are errors here
        fresh.clear_cache()
        with pytest.warns(SchemaWarning, match="#/properties/size/format") as caught:  # in the host's loop
            fresh("Shoe: ", Shoe, phi=None, banned_phrases=["boot"], max_new_tokens=60)
        assert [each.filename for each in caught] == [__file__]


def many(*names: str) -> None: ...


def lost(at: Nowhere) -> None: ...  # type: ignore[name-defined] # noqa: F821


def untyped(name) -> Nowhere: ...  # type: ignore[no-untyped-def, name-defined] # noqa: ANN001, F821


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (many, "Give each argument of many a name"),
        (lost, "Define the types that annotate the arguments of lost .* 'Nowhere' of 'at'"),
        (untyped, "Annotate each argument of untyped"),
    ],
)
def test_an_argument_without_a_name_or_a_type_is_refused(function: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        to_language(function)
