"""Unsatisfiable JSON schemas, and the time at which they are found."""

from __future__ import annotations

from typing import Any

import pytest

from outlines_phi import EmptyLanguageError
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.reading import schema
from outlines_phi.guides.json_schema.reading.schema import Schema


def test_values_of_enums_are_not_tried_as_schemas() -> None:
    part = {"properties": {"y": {"enum": list(range(100))}}, "required": ["y"]}
    names = [f"k{i}" for i in range(5)]
    document = {
        "type": "object",
        "properties": dict.fromkeys(names, part),
        "required": [*names, "z"],
        "additionalProperties": False,
    }
    with pytest.raises(EmptyLanguageError, match="Relax #/(required|additionalProperties) of"):
        Machine(Schema.read(document))


def test_large_parts_are_tried_where_small_ones_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MOST_LOOKED_AT", 20 * 1002)
    tried: list[Any] = []

    def is_empty(document: Any) -> bool:
        tried.append(document)
        return "not" in document

    document = {"properties": {f"k{i}": {"minimum": i} for i in range(500)}, "not": {}}
    assert schema.culprit(document, is_empty) == "#/not"
    assert 20 < len(tried) < 40
