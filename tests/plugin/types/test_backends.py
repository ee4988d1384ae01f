"""Stock Outlines beside this package: plain calls seed for seed, and its backends where nothing is corrected."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any, Literal

import outlines
import pytest
from genson import SchemaBuilder
from outlines.types import JsonSchema, cfg, json_schema, regex
from outlines.types.dsl import to_regex
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from outlines_phi import Generator, PhiTransformers, UnsupportedError, install, uninstall, wrap
from outlines_phi.plugin.types.output_types import to_core_language
from outlines_phi.plugin.types.tables import MASKING
from outlines_phi.regex.patterns import compile_regex
from tests.plugin.loops import seeded

ANSWER = Literal["yes", "no", "maybe"]

engines = pytest.mark.parametrize("backend", MASKING)

Door = Callable[[PhiTransformers, str], Any]
DOORS: dict[str, Door] = {
    "call": lambda model, backend: model("Answer:", ANSWER, backend, phi="exact", max_new_tokens=8),
    "ban": lambda model, backend: model("Answer:", ANSWER, backend, banned_phrases=["no"], max_new_tokens=8),
    "batch": lambda model, backend: model.batch(["Answer:"], ANSWER, backend, phi="local", max_new_tokens=8),
    "stream": lambda model, backend: list(model.stream("Answer:", ANSWER, backend, phi="exact", max_new_tokens=8)),
    "default of the model": lambda model, backend: wrap(model, phi="local")("Answer:", ANSWER, backend),
    "generator": lambda model, backend: Generator(model, ANSWER, backend=backend),
    "masking generator": lambda model, backend: Generator(model, ANSWER, phi=None, backend=backend),
    "table": lambda model, backend: model.table(ANSWER, backend=backend),
}


@engines
@pytest.mark.parametrize("door", DOORS.values(), ids=list(DOORS))
def test_refused_with_what_to_do(backend: str, door: Door, model: PhiTransformers) -> None:
    with pytest.raises(UnsupportedError, match=f"^Leave backend='{backend}' out: .* only plain masking can use it"):
        door(model, backend)


@engines
def test_refused_by_the_installed_generator(backend: str, stock: outlines.models.Transformers) -> None:
    install()
    try:
        with pytest.raises(UnsupportedError, match=f"^Leave backend='{backend}' out"):
            outlines.Generator(stock, ANSWER, backend, phi="exact")
    finally:
        uninstall()


def test_the_own_backend_is_read(fresh: PhiTransformers) -> None:
    assert fresh.table(ANSWER, backend="outlines_core") is fresh.table(ANSWER)


def test_an_unknown_name(model: PhiTransformers) -> None:
    with pytest.raises(UnsupportedError, match="expected one of outlines_core, llguidance, xgrammar, or None"):
        Generator(model, ANSWER, backend="regex")


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
        Generator(model, list[Cups], backend="outlines_core")
    drawn = Generator(model, Cups, phi="local").sample("Cups: ", 5, seed=1).values
    assert all(1 <= cups.n <= 3 for cups in drawn)
    indented = json.dumps({"n": 1}, indent=2).encode()
    assert model.table(Cups).guide.machine.accepts(indented)


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


CALLS: dict[str, dict[str, Any]] = {
    "sampling": {},
    "greedy": {"do_sample": False},
    "warped": {"temperature": 0.7, "top_k": 20, "top_p": 0.9},
    "penalty": {"repetition_penalty": 1.3},
    "several": {"num_return_sequences": 3},
    "truncated": {"max_new_tokens": 2},
}
FAITHFUL = ("regex", "literal", "enum", "number")
"""Types over ASCII whose members stock Outlines keeps on any vocabulary, so that its own generators are compared."""


@pytest.mark.parametrize(
    ("name", "call"),
    [*((name, "sampling") for name in TYPES), *((name, call) for name in FAITHFUL for call in [*CALLS][1:])],
)
def test_plain_calls_are_those_of_outlines_seed_for_seed(
    name: str, call: str, model: PhiTransformers, stock: outlines.models.Transformers
) -> None:
    """The same generator again and again, too, and batches; of schemas, which stock Outlines compiles at every call, one seed."""
    untouched, options = wrap(stock), {"max_new_tokens": 40, **CALLS[call]}
    generators = [outlines.Generator(each, TYPES[name]) for each in (model, stock)] if name in FAITHFUL else []
    for seed in range(3 if name in FAITHFUL and call != "greedy" else 1):
        texts = [seeded(each, PROMPT, TYPES[name], seed=seed, **options) for each in (stock, model, untouched)]
        texts += [seeded(each, PROMPT, seed=seed, **options) for each in generators]
        assert texts == texts[:1] * len(texts)
    if name in ("pydantic", *FAITHFUL):
        ours, theirs = (seeded(each.batch, [PROMPT, "x"], TYPES[name], **options) for each in (model, stock))
        assert ours == theirs


REFUSED: dict[str, tuple[Any, Any]] = {
    "not": (
        json_schema({"not": {"type": ["object", "array", "number", "string"]}}),
        lambda value: value in (None, True, False),
    ),
    "in a list": (list[json_schema({"not": {"type": ["object", "array", "number", "string"]}})], None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_types_that_outlines_refuses_are_still_written(
    name: str, model: PhiTransformers, stock: outlines.models.Transformers
) -> None:
    output_type, holds = REFUSED[name]
    with pytest.raises(ValueError, match="^Unsupported JSON Schema structure"):
        seeded(stock, PROMPT, output_type, max_new_tokens=40)
    text = seeded(model, PROMPT, output_type, max_new_tokens=40)
    assert holds(json.loads(text)) if holds else text.startswith("[")
