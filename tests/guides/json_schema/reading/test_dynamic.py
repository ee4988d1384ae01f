"""Dynamic references: what they lead to depends on the resources on the way, as the reference validator has it."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.reading.schema import Schema

META = {
    "https://json-schema.org/draft/2019-09/schema": jsonschema.Draft201909Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema.Draft202012Validator,
}
KEYWORDS = ("$defs", "items", "allOf", "not", "properties", "minimum", "type", "required", "if", "contains")


def some_schema(rng: random.Random, depth: int = 0) -> Any:
    """A schema, or what is nearly one."""
    if depth > 3 or rng.random() < 0.25:
        return rng.choice([True, 1, "string", "number", [], ["a"], {}, None])
    found: dict[str, Any] = {}
    for keyword in rng.sample(KEYWORDS, rng.randint(1, 2)):
        inner = some_schema(rng, depth + 1)
        wrapped = {"allOf": [inner], "$defs": {"foo": inner}, "properties": {"bar": inner}}
        found[keyword] = wrapped.get(keyword, inner) if rng.random() < 0.9 else inner
    return found


@pytest.mark.parametrize("uri", META)
def test_the_schemas_of_drafts_are_asked_of_schemas_within_schemas(uri: str) -> None:
    document = {"$schema": uri, "$ref": uri}
    validator, machine = META[uri](document), Machine(Schema.read(document), any_order=True)
    rng = random.Random(1)
    values = [{"$defs": {"foo": {"type": 1}}}, {"items": {"minimum": "a"}}, {"allOf": [{"items": {"minimum": 1}}]}]
    values += [some_schema(rng) for _ in range(300)]
    valid = [validator.is_valid(value) for value in values]
    assert [machine.accepts(json.dumps(value).encode()) for value in values] == valid
    assert 30 < sum(valid) < 270


def some_document(rng: random.Random) -> dict[str, Any]:
    """Four resources that refer to one another, each with an anchor ``n``, which is dynamic or not."""

    def target() -> dict[str, str]:
        name = rng.choice(["", "a", "b", "c"])
        return {"$dynamicRef": f"{name}#n"} if rng.random() < 0.7 else {"$ref": name or "#"}

    def resource(name: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "$id": name,
            "properties": {"x": target(), "y": {"type": rng.choice(["string", "null"])}},
        }
        anchored = {rng.choice(["$dynamicAnchor", "$anchor"]): "n", "required": ["x"]}
        return found | ({"$dynamicAnchor": "n"} if rng.random() < 0.6 else {"$defs": {"i": anchored}})

    outer = {"$id": "http://outer/", "$ref": rng.choice("abc"), "properties": {"z": target()}}
    anchor = {rng.choice(["$dynamicAnchor", "$anchor"]): "n", "type": rng.choice(["string", "object"])}
    return outer | {"$defs": {name: resource(name) for name in "abc"} | {"n": anchor}}


def some_value(rng: random.Random, depth: int = 0) -> Any:
    if depth > 2 or rng.random() < 0.3:
        return rng.choice([1, "s", None])
    return {name: some_value(rng, depth + 1) for name in rng.sample("xyz", rng.randint(0, 3))}


def test_the_outermost_resource_that_has_the_anchor_is_meant() -> None:
    rng = random.Random(2)
    verdicts = []
    for _ in range(60):
        document = some_document(rng)
        machine, validator = Machine(Schema.read(document), any_order=True), jsonschema.Draft202012Validator(document)
        for value in (some_value(rng) for _ in range(12)):
            verdicts.append(validator.is_valid(value))
            assert machine.accepts(json.dumps(value).encode()) == verdicts[-1], (document, value)
    assert 100 < sum(verdicts) < len(verdicts) - 100


def test_a_static_reference_to_a_dynamic_anchor_stays_where_it_leads() -> None:
    """The standard says so (2020-12, 8.2.3.1); the reference validator goes to the outermost one."""
    inner = {"$id": "inner", "$dynamicAnchor": "n", "type": "string"}
    document = {
        "$id": "http://outer/",
        "$dynamicAnchor": "n",
        "properties": {"a": {"$ref": "inner#n"}},
        "$defs": {"i": inner},
    }
    machine = Machine(Schema.read(document))
    assert machine.accepts(b'{"a": "text"}') and not machine.accepts(b'{"a": {}}')
