"""JSON schemas under ``backend="outlines_core"``: those that it reads as they are meant."""

from __future__ import annotations

import json
from typing import Any

import pytest
from outlines.types import JsonSchema
from outlines.types.dsl import to_regex
from pydantic import BaseModel, Field

import outlines_phi
from outlines_phi import PhiTransformers, UnsupportedError
from outlines_phi.plugin.types.output_types import to_core_language
from outlines_phi.regex.patterns import compile_regex

INTEGER: dict[str, Any] = {"type": "integer"}


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


READ: list[tuple[Any, list[str], list[str]]] = [
    (record(a=INTEGER, b={"type": "boolean"}), ['{"a": 3, "b": true}'], ['{"a":3}', '{"b":true,"a":3}']),
    ({**record(a={"type": "null"}), "required": []}, ["{}", '{"a":null}'], ['{"b":1}']),
    ({"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 2}, ["[1]", "[1,2]"], ["[]", "[1,2,3]", "[true]"]),
    ({"type": "string", "minLength": 1, "maxLength": 2}, ['"ab"'], ['""', '"abc"']),
    ({"enum": ["a.b", 3, None]}, ['"a.b"', "3", "null"], ['"axb"']),
    ({"anyOf": [{"const": "x"}, INTEGER]}, ['"x"', "12"], ['"y"']),
    ({**record(a={"$ref": "#/$defs/b"}), "$defs": {"b": record(c=INTEGER)}}, ['{"a":{"c":1}}'], ['{"a":1}']),
]

LEFT: list[tuple[Any, str]] = [
    (record(a={}), "#/properties/a"),
    (record(a={"type": "integer", "minimum": 3}), "#/properties/a/minimum"),
    (record(a={"type": "string", "pattern": "a"}), "#/properties/a/pattern"),
    (record(a={"type": "string", "format": "date"}), "#/properties/a/format"),
    ({**record(a=INTEGER), "patternProperties": {}}, "#/patternProperties"),
    ({**record(a=INTEGER), "additionalProperties": True}, "#/additionalProperties"),
    ({**record(a=INTEGER), "required": ["b"]}, "#/required"),
    ({"type": "array", "uniqueItems": True, "items": INTEGER}, "#/uniqueItems"),
    ({"type": "array"}, "#/items"),
    ({"allOf": [INTEGER, {}]}, "#/allOf"),
    ({"oneOf": [INTEGER]}, "#/oneOf"),
    ({"anyOf": [INTEGER, {"not": {}}]}, "#/anyOf/1/not"),
    ({"anyOf": [INTEGER], "type": "integer"}, "#/anyOf"),
    ({"enum": [{"a": 1}]}, "#/enum"),
    ({"const": 'a"'}, "#/const"),
    (record(**{"a/b": {"type": "integer", "multipleOf": 2}}), "#/properties/a~1b/multipleOf"),
    ({"$ref": "#/$defs/b", "$defs": {"b": {"items": {"$ref": "#/$defs/b"}, "type": "array"}}}, "#/$defs/b/items/$ref"),
    ({"$ref": "#/properties/a"}, "#/$ref"),
    ({"type": ["integer", "null"]}, "#/type"),
]


@pytest.mark.parametrize(("schema", "members", "strangers"), READ)
def test_what_is_read_is_what_outlines_core_compiles(schema: Any, members: list[str], strangers: list[str]) -> None:
    term = JsonSchema(schema)
    pattern = to_core_language(term)
    assert pattern == to_regex(term)
    automaton = compile_regex(pattern)
    assert all(automaton.accepts(text.encode()) for text in members)
    assert not any(automaton.accepts(text.encode()) for text in strangers)


@pytest.mark.parametrize(("schema", "pointer"), LEFT, ids=[pointer for _, pointer in LEFT])
def test_what_is_not_honoured_is_refused_by_its_pointer(schema: Any, pointer: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        to_core_language(JsonSchema(schema))
    assert str(caught.value).startswith("Leave the backend out") and str(caught.value).endswith(f"stands at {pointer}.")


def test_the_backend_is_asked_for_at_every_door(model: PhiTransformers) -> None:
    class Cups(BaseModel):
        n: int = Field(ge=1, le=3)

    with pytest.raises(UnsupportedError, match="#/properties/n/maximum"):
        outlines_phi.Generator(model, list[Cups], backend="outlines_core")
    drawn = outlines_phi.Generator(model, Cups, phi="local").sample("Cups: ", 5, seed=1).values
    assert all(1 <= cups.n <= 3 for cups in drawn)
    indented = json.dumps({"n": 1}, indent=2).encode()
    assert model.table(Cups).guide.machine.accepts(indented)
