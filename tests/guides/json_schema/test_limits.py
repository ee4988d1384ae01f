"""What a schema asks too much of is refused where it is read, by the JSON pointer of the part that asks it."""

from __future__ import annotations

from typing import Any

import pytest

from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.reading.schema import Schema

TEXT = {"type": "string"}
LETTERS = "abcdefgh"

LIMITS: dict[str, dict[str, Any]] = {
    "fewer items by contains": {"allOf": [{"contains": {"const": i}, "minContains": 5} for i in range(12)]},
    "fewer alternatives": {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(12)]},
    "Anchor the patterns of patternProperties": {
        "patternProperties": {f"{letter}x": {"minimum": i} for i, letter in enumerate(LETTERS)}
    },
    "Ask for at most 10,000 members": {"type": "object", "minProperties": 100_000},
    "Lower the bounds of lengths": {**TEXT, "maxLength": 30_000, "pattern": "a{3}"},
    "drop one of what restricts the same string": {**TEXT, "allOf": [{"pattern": f"{c}.{{9}}$"} for c in LETTERS]},
    "look-ahead behind the look-behind": {**TEXT, "pattern": "(?<=a(?=b))c"},
    "Combine fewer different multipleOf": {"anyOf": [{"multipleOf": p} for p in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)]},
    "Give a smaller multipleOf": {"type": "integer", "allOf": [{"multipleOf": 1009}, {"multipleOf": 1013}]},
    "Give numbers of at most": {"minimum": 10**6000},
    "beside at most 8 branches": {
        "anyOf": [{"required": [f"k{i}"], "properties": {f"k{i}": {}}} for i in range(9)],
        "unevaluatedProperties": False,
    },
    "Leave uniqueItems out of not": {"not": {"uniqueItems": True}},
}


@pytest.mark.parametrize("remedy", LIMITS)
@pytest.mark.parametrize("required", [True, False], ids=["required", "optional"])
def test_a_limit_names_the_part_and_what_to_do(remedy: str, required: bool) -> None:
    document = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"items": {}, "$ref": "#/$defs/inner"}},
        "required": ["b"] if required else [],
        "$defs": {"inner": {"type": "object", "properties": {"c~/d": LIMITS[remedy]}, "required": ["c~/d"]}},
    }
    with pytest.raises(UnsupportedError) as refused:
        Machine(Schema.read(document))
    assert remedy in str(refused.value) and "#/$defs/inner/properties/c~0~1d" in str(refused.value)
    assert str(refused.value).count(". ") == 1
