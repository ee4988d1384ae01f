"""Schemas that ask too much are refused where they are read, by the JSON pointer of the part that asks it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

import outlines_phi
from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.json_schema import kinds, limits
from outlines_phi.guides.json_schema.machine import sizes
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.reading.schema import Schema
from outlines_phi.plugin.types.output_types import JSONText
from outlines_phi.regex import builder

TEXT = {"type": "string"}
LETTERS = "abcdefgh"

LIMITS: dict[str, dict[str, Any]] = {
    "fewer items by contains": {"allOf": [{"contains": {"const": i}, "minContains": 5} for i in range(12)]},
    "fewer alternatives": {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(12)]},
    "Anchor the patterns of patternProperties": {
        "patternProperties": {f"{letter}x": {"minimum": i} for i, letter in enumerate(LETTERS)}
    },
    "Ask for at most 10,000 members": {"type": "object", "minProperties": 100_000},
    "Lower the bounds of lengths": {**TEXT, "maxLength": 30_000_000, "pattern": "a{3}"},
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


@pytest.mark.parametrize("keyword", ["allOf", "anyOf"])
@pytest.mark.parametrize("depth", [400, 3000])
@pytest.mark.parametrize("referred", [True, False])
def test_depth_is_refused(keyword: str, depth: int, referred: bool) -> None:
    def around(schema: Any) -> Any:
        return {keyword: [schema, {"minimum": 1}]}

    document: Any = {"type": ["integer", "object"]}
    if referred:
        definitions = {f"d{i}": around({"$ref": f"#/$defs/d{i + 1}"}) for i in range(depth)}
        document = {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{depth}": document}}
    for _ in range(0 if referred else depth):
        document = around(document)
    with pytest.raises(UnsupportedError, match="fewer schemas inside each other"):
        Machine(Schema.read(document))


@pytest.mark.parametrize("keyword", ["minimum", "const", "enum", "multipleOf"])
@pytest.mark.parametrize("digits", ["9" * 100_000, "1e400000000"])
def test_numbers_of_many_digits_are_refused(keyword: str, digits: str) -> None:
    text = f'{{"{keyword}": {"[" + digits + "]" if keyword == "enum" else digits}}}'
    with pytest.raises(UnsupportedError, match="at most 2,000 digits"):
        _ = JSONText(("json", text, None, False)).template


@pytest.mark.parametrize("digits", ["9" * 100_000, "1e400000000"])
def test_a_length_of_many_digits_is_one_that_no_text_has(digits: str) -> None:
    assert Machine(Schema.read({"maxLength": Decimal(digits)})).accepts(b'"text"')


@pytest.mark.parametrize(
    "pattern", ["A{" * 50_000, "(a{1000}){1000}", "a{100000000000}|(b|cd){20000}"], ids=["long", "repeats", "branches"]
)
def test_a_pattern_that_is_too_long_is_refused_before_its_states_are_made(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(builder._Builder, "subsets")
    with pytest.raises(UnsupportedError, match="more than 20,000 states"):
        Schema.read({"pattern": pattern})


def test_limits_are_raised() -> None:
    many = {"enum": list(range(20_001))}
    with pytest.raises(UnsupportedError, match=r"limits\(members=20001\).* #/enum "):
        Schema.read(many)
    with pytest.raises(UnsupportedError, match=r"limits\(source="):
        _ = JSONText(("json", json.dumps({"title": "x" * (1 << 20)}), None, False)).template
    with outlines_phi.limits(members=20_001, states=30):
        Schema.read(many)
        with pytest.raises(UnsupportedError, match="more than 30 states"):
            Schema.read({"pattern": "^x{31}$"})


def member_types(shift: int, count: int = 6) -> dict[str, Any]:
    types = ["integer", "string", "boolean", "null"]
    return {"type": "object", "properties": {f"p{i}": {"type": types[(shift + i) % 4]} for i in range(count)}}


TOLD_APART: dict[str, dict[str, Any]] = {
    "items": {
        "contains": member_types(0),
        "allOf": [{"contains": member_types(i)} for i in range(1, 4)],
        "minContains": 2,
    },
    "strings": {"contains": {"pattern": "a.{9}$"}, "allOf": [{"contains": {"pattern": f"{c}.{{9}}$"}} for c in "bc"]},
    "members": {"patternProperties": {c: {"pattern": f"{c}.{{9}}$"} for c in "abc"}},
    "shapes of members": {
        "patternProperties": {c: {"anyOf": [{"required": [f"{c}{i}"]} for i in range(20)]} for c in "abc"}
    },
}


@pytest.mark.parametrize("name", TOLD_APART)
@pytest.mark.parametrize("optional", [True, False], ids=["optional", "whole"])
def test_what_only_the_inside_of_a_text_would_meet_is_refused_when_compiled(name: str, optional: bool) -> None:
    schema = TOLD_APART[name]
    with pytest.raises(UnsupportedError, match="combinations|20,000 states"):
        Machine(Schema.read({"properties": {"x": schema}} if optional else schema))


WRITTEN: dict[str, tuple[Any, str]] = {
    "objects": (
        {"type": "array", "uniqueItems": True, "contains": member_types(0, 3), "items": {"type": "object"}},
        '[{"p0":1},{"p0":2,"p1":"a"},{"q":{"p0":[1]}},{"q":{"p0":[2]}},{"p2":true}]',
    ),
    "strings": ({"uniqueItems": True, "items": {"pattern": "a|b"}}, '["a","b","ab","ba","abc"]'),
    "numbers": ({"uniqueItems": True, "items": {"multipleOf": 0.37}}, f"[{'37' * 60},{'74' * 60},0.37,37]"),
    "digits": ({"uniqueItems": True}, f"[{'7' * 2_500},1,{'8' * 2_500}]"),
    "names": (
        {"patternProperties": {f"^{c}": {"minimum": i} for i, c in enumerate(LETTERS)}, "minProperties": 2},
        '{"a":1,"b":1,"zz":0}',
    ),
    "kinds of members": (
        {"not": {"anyOf": [{"propertyNames": {"enum": [c]}} for c in LETTERS]}},
        '{"a":1,"c":{"b":1}}',
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_was_compiled_is_not_refused_within_a_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schema, text = WRITTEN[name]
    machine = Machine(Schema.read(schema), any_order=True)
    monkeypatch.setattr(kinds, "MOST_SHAPES", 0)
    monkeypatch.setattr(limits, "MOST_CELLS", 0)
    monkeypatch.setattr(sizes, "MOST_TRIED", 0)
    monkeypatch.setattr(sizes, "MOST_APART", 0)
    with outlines_phi.limits(states=1):
        assert machine.accepts(text.encode())
