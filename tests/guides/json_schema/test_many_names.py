"""Objects of many names: what a mask makes does not grow with them, whether they have schemas or are required alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

import outlines_phi
from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.reading.schema import Schema
from outlines_phi.lm import bundled

VOCABULARY = outlines_phi.from_transformers(*bundled.load()).lm.vocabulary
TEXT = b'{"k0":1,"k1":2,"k2":3'


def names(count: int) -> list[str]:
    return [f"k{i}" for i in range(count)]


def properties(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(names(count), {"type": ["integer", "string"]})}


def required(count: int) -> dict[str, Any]:
    return {"type": "object", "required": names(count)}


def states(schema: dict[str, Any]) -> int:
    """Return the number of states that the masks along the beginning of an object make."""
    guide = JSONGuide.of(schema, VOCABULARY)
    state = guide.start
    for byte in TEXT:
        live = guide.live_classes(state, 100_000)
        token = VOCABULARY.tokens.index(bytes([byte]))
        assert live[guide.row(state).partition.class_of[token]]
        state = guide.advance(state, token)
    return len(guide.machine._kept)


@pytest.mark.parametrize("schema", [properties, required])
def test_a_mask_makes_no_state_for_each_name(schema: Any) -> None:
    assert states(schema(2_000)) < 1.2 * states(schema(40)) < 500


def test_names_that_are_required_alone_cost_no_more_than_properties() -> None:
    assert states(required(20)) < 1.5 * states(properties(20))


@pytest.mark.parametrize(
    "beside",
    [
        {},
        {"minProperties": 3},
        {"maxProperties": 3},
        {"required": ["k3"]},
        {"not": {"patternProperties": {"k": {"minimum": 2}}}},
    ],
    ids=str,
)
def test_shortest_texts_are_found_behind_every_name(beside: dict[str, Any]) -> None:
    """The bounds behind names hold: after each first member the completion is as short as its size says, and valid."""
    machine = Machine(Schema.read({**properties(12), "additionalProperties": False, **beside}))
    for name in names(12):
        at = machine.read(f'{{"{name}":1'.encode())
        if at is not None:
            text, size = f'{{"{name}":1', machine.size(at)
            while left := machine.size(at):
                byte = next(b for b in range(256) if (after := machine.advance(at, b)) and machine.size(after) < left)
                at, text = machine.advance(at, byte), text + chr(byte)
                assert at is not None
            assert len(text) == len(f'{{"{name}":1') + size and machine.accepts(text.encode())
            assert beside.get("minProperties", 0) <= len(json.loads(text)) <= beside.get("maxProperties", 12)


@pytest.mark.parametrize(
    "beside", [{"minProperties": 3}, {"not": {"patternProperties": {"k": {"minimum": 2}}}}], ids=str
)
def test_many_names_of_which_some_must_come_are_refused(beside: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="Name fewer members .*2,000 ways"):
        Machine(Schema.read({**properties(2_000), **beside}))
