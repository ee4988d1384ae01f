"""The meaning of schemas: formulas and machine beside the reference validator."""

from __future__ import annotations

import json
from itertools import permutations, product
from typing import Any

import jsonschema
import pytest

from outlines_phi.errors import EmptyLanguageError, OutlinesPhiError, UnsupportedError
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.reading.schema import Schema

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2.5, 1.0, 10, 1e3, "", "a", "ab", "abc", "é", "a\"b\\", "2024-02-29", "2023-02-29",
    [], [1], [1, 2], [1, "a"], ["a", "a"], [[], {}], [None] * 4,
    {}, {"a": 1}, {"b": 1}, {"a": "x"}, {"a": 1, "b": 2}, {"a": 1, "b": "x"}, {"a": 1, "b": 2, "c": 3}, {"x1": 1}, {"x1": "y"},
    {"a": {"a": {"a": 1}}}, {"a": [1, {"b": None}]}, {"a": None}, {"kind": "cat", "lives": 9}, {"kind": "dog", "lives": 9},
]  # fmt: skip
"""Values that each schema is tried on; members are in alphabetical order."""

SCHEMAS: dict[str, Any] = {
    "everything": True,
    "empty": {},
    "types": {"type": ["integer", "null"]},
    "number": {"type": "number"},
    "const number": {"const": 1},
    "const object": {"const": {"a": 1, "b": 2}},
    "enum": {"enum": ["a", 1, None, [1, 2], {"a": "x"}]},
    "enum beside type": {"enum": ["a", 1, None], "type": "string"},
    "bounds": {"minimum": 0, "exclusiveMaximum": 10},
    "multiple": {"type": "number", "multipleOf": 0.5},
    "lengths": {"minLength": 1, "maxLength": 2},
    "pattern": {"pattern": "^a|b$"},
    "pattern and length": {"type": "string", "pattern": "b", "maxLength": 2},
    "date": {"format": "date"},
    "items": {"items": {"type": "integer"}},
    "prefix": {"prefixItems": [{"type": "integer"}], "items": {"type": "string"}},
    "items as a list, draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}], "additionalItems": False,
    },
    "contains": {"contains": {"type": "string"}, "maxContains": 1},
    "not contains": {"not": {"contains": {"type": "string"}}},
    "counts of items": {"minItems": 1, "maxItems": 2},
    "unique": {"uniqueItems": True},
    "properties": {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
    "closed": {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": False},
    "patterns": {"patternProperties": {"^x": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
    "names": {"propertyNames": {"maxLength": 1}},
    "names and counts": {"propertyNames": {"pattern": "^[a-c]$"}, "minProperties": 3},
    "long names and counts": {"type": "object", "propertyNames": {"pattern": "^x[0-9]$"}, "minProperties": 1},
    "counts of members": {"minProperties": 2, "maxProperties": 2},
    "dependent": {"dependentRequired": {"a": ["b"]}},
    "dependent schema": {"dependentSchemas": {"b": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}}},
    "all": {"allOf": [{"required": ["a"]}, {"properties": {"a": {"type": "integer"}}}, {"maxProperties": 1}]},
    "any": {"anyOf": [{"type": "string", "minLength": 2}, {"type": "array", "minItems": 2}, {"required": ["b"]}]},
    "one": {"oneOf": [{"type": "integer"}, {"minimum": 1}]},
    "one of objects": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
    "not": {"not": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    "not items": {"not": {"items": {"type": "integer"}}},
    "not members": {"type": "object", "not": {"additionalProperties": {"type": "integer"}}},
    "if": {
        "if": {"properties": {"kind": {"const": "cat"}}, "required": ["kind"]},
        "then": {"required": ["lives"]}, "else": {"maxProperties": 1},
    },
    "recursion": {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "integer"}]}}},
    "reference with siblings": {"$ref": "#/$defs/n", "minimum": 1, "$defs": {"n": {"type": "integer"}}},
    "siblings in draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/n", "minimum": 1,
        "definitions": {"n": {"type": "integer"}},
    },
    "anchor": {"$ref": "#n", "$defs": {"n": {"$anchor": "n", "type": "integer"}}},
    "exclusive in draft 4": {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True},
    "unevaluated": {
        "allOf": [{"properties": {"a": {}}}], "anyOf": [{"properties": {"b": {"type": "integer"}}, "required": ["b"]}, True],
        "unevaluatedProperties": False,
    },
    "unevaluated items": {"prefixItems": [True], "contains": {"type": "string"}, "unevaluatedItems": False},
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_formulas_and_texts_agree_with_the_validator(name: str) -> None:
    document = SCHEMAS[name]
    validator = jsonschema.validators.validator_for(document, default=jsonschema.Draft202012Validator)
    checker = validator(document, format_checker=validator.FORMAT_CHECKER)
    machine = Machine(Schema.read(document), any_order=True)
    valid = [checker.is_valid(value) for value in VALUES]
    for spelling in ({"separators": (",", ":")}, {}, {"indent": 2, "ensure_ascii": False}):
        assert [machine.accepts(json.dumps(value, **spelling).encode()) for value in VALUES] == valid
    assert any(valid)


@pytest.mark.parametrize(
    ("document", "texts"),
    [
        ({"properties": {"a": {}, "b": {}, "c": {}}}, "abc ab ac bc abx"),
        ({"required": ["b", "a"]}, "ab ba abc acb bac bca cab cba"),
        ({"properties": {"a": {}, "b": {}}, "required": ["c"]}, "abc acb cab ac ca bc cb c cabx acbx abcx abxc"),
        ({"dependentRequired": {"b": ["a"]}}, "ab ba a abx axb bax bxa xab xba"),
        (
            {"allOf": [{"properties": {"a": {}, "b": {}}}, {"properties": {"c": {}, "x": {}}}]},
            "abcx acbx acxb cabx caxb cxab",
        ),
        # Of two orders that disagree the first one holds.
        ({"allOf": [{"properties": {"a": {}, "b": {}}}, {"properties": {"b": {}, "a": {}}}]}, "ab abx"),
        ({"enum": [{"a": 1, "b": 2}, {"b": 3, "c": 4}]}, ""),
    ],
    ids=str,
)
def test_one_properties_puts_its_names_in_an_order(document: Any, texts: str) -> None:
    """Beside all orders of three of four names: those that are listed are read, and of those with the same names no other."""
    machine, free = Machine(Schema.read(document)), Machine(Schema.read(document), any_order=True)
    for order in (each for n in range(1, 5) for each in permutations("abcx", n)):
        text = json.dumps(dict.fromkeys(order, 1)).encode()
        assert machine.accepts(text) <= free.accepts(text)
        if any(sorted(order) == sorted(listed) for listed in texts.split()):
            assert machine.accepts(text) == ("".join(order) in texts.split()), order
    assert machine.accepts(machine.shortest())


def test_members_come_in_the_order_of_the_schema_unless_any_order_is_allowed() -> None:
    schema = Schema.read({"properties": {"a": {}, "b": {}}})
    other = b'{"b":1,"a":2}'
    assert not Machine(schema).accepts(other) and Machine(schema, any_order=True).accepts(other)
    assert Machine(schema).accepts(b'{"a":1,"b":2,"x":3}') and not Machine(schema).accepts(b'{"a":1,"a":2}')


def test_names_are_compared_decoded() -> None:
    machine = Machine(
        Schema.read({"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}})
    )
    assert machine.accepts(b'{"a":1}') and not machine.accepts(rb'{"\u0061":"x"}')
    assert machine.accepts(rb'{"\u0062":"x"}') and not machine.accepts(rb'{"\u0061":1}')


def test_what_a_schema_lists_is_written_as_it_is() -> None:
    """Raw where JSON lets a character stand; other strings in any spelling."""
    machine = Machine(
        Schema.read({"type": "array", "prefixItems": [{"enum": ["a/b", "\u00e9\n"]}, {"type": "string"}]})
    )
    for listed in (b'"a/b"', '"\u00e9\\n"'.encode(), rb'"\u00e9\u000A"', rb'"\u00E9\n"'):
        assert machine.accepts(b"[" + listed + rb',"\u0061\/"]')
    for listed in (rb'"a\/b"', rb'"\u0061/b"', b'"\xc3\xa9\n"'):
        assert not machine.accepts(b"[" + listed + b',""]')


def test_one_member_may_be_all_that_is_asked_for() -> None:
    some = [{"not": {"propertyNames": {"not": {"pattern": pattern}}}} for pattern in ("a1", "b2", "2a")]
    machine = Machine(
        Schema.read({"type": "object", "allOf": some, "propertyNames": {"pattern": "^....$"}, "maxProperties": 1})
    )
    assert machine.accepts(b'{"b2a1":0}') and not machine.accepts(b'{"b2b1":0}')


MEMBERS = ['"a":1', '"a":"x"', '"b":2', '"x":1', '"x":"y"', '"\\u0078":null', '"kind":"cat"', '"y":[]']


@pytest.mark.parametrize("name", [*SCHEMAS, "at most", "one of some kind", "not so many"])
def test_what_is_read_where_a_name_comes_twice_is_valid(name: str) -> None:
    """Readers keep the last member of a name."""
    more: dict[str, Any] = {
        "at most": {"maxProperties": 2},
        "one of some kind": {"type": "object", "not": {"additionalProperties": {"type": "integer"}}},
        "not so many": {"not": {"minProperties": 2}, "required": ["x"]},
    }
    document = (SCHEMAS | more)[name]
    validator = jsonschema.validators.validator_for(document, default=jsonschema.Draft202012Validator)(document)
    machine = Machine(Schema.read(document), any_order=True)
    for count in (2, 3):
        for members in product(MEMBERS, repeat=count):
            text = "{" + ",".join(members) + "}"
            assert not machine.accepts(text.encode()) or validator.is_valid(json.loads(text)), text


def test_a_name_of_which_nothing_is_said_may_come_twice() -> None:
    machine = Machine(Schema.read({"properties": {"a": {}}, "required": ["b"], "minProperties": 1}))
    assert machine.accepts(b'{"b":0,"x":1,"x":2}')
    assert not machine.accepts(b'{"a":1,"a":2,"b":0}') and not machine.accepts(b'{"b":0,"b":0}')


def test_a_member_that_is_asked_for_has_a_name_that_is_allowed() -> None:
    long = {"not": {"propertyNames": {"maxLength": 5}}}
    machine = Machine(Schema.read({"type": "object", "propertyNames": {"pattern": "^x{3}"}, **long}))
    assert machine.accepts(b'{"xxxyyy":1}') and not machine.accepts(b'{"xxx":1}')
    with pytest.raises(EmptyLanguageError):
        Machine(Schema.read({"type": "object", "propertyNames": {"pattern": "^[a-c]$"}, "minProperties": 4}))


def test_names_are_counted_once() -> None:
    machine = Machine(Schema.read({"minProperties": 2}))
    assert machine.accepts(b'{"x":1,"y":1}') and not machine.accepts(b'{"x":1,"x":1}')


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"$ref": "https://example.com/a.json"}, "#/$ref"),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "#/properties/a/$ref"),
        ({"allOf": [{"$ref": "#"}], "$defs": {}}, "refer to one another"),
        ({"properties": {"a": {"type": "text"}}}, "#/properties/a/type"),
        ({"properties": {"a": {"pattern": "("}}}, "#/properties/a/pattern"),
        ({"properties": {"a": {"pattern": r"(a)\1"}}}, "#/properties/a/pattern"),
        ({"minLength": "2"}, "#/minLength"),
        ({"multipleOf": 0}, "#/multipleOf"),
        ([], "#"),
        ({"$dynamicRef": "#nowhere"}, "#/$dynamicRef"),
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_refused_by_its_pointer(document: Any, words: str) -> None:
    with pytest.raises(OutlinesPhiError) as caught:
        Schema.read(document)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "document",
    [
        False,
        {"type": "string", "enum": [1]},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object", "required": ["a"], "properties": {"a": False}},
        {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}},
        {"type": "array", "minItems": 2, "maxItems": 1},
        {"type": "array", "contains": {"type": "string"}, "items": {"type": "integer"}},
        {"type": "object", "minProperties": 2, "properties": {"a": {}}, "additionalProperties": False},
        {"type": "string", "pattern": "^a$", "minLength": 2},
        {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    ],
    ids=str,
)
def test_a_schema_of_nothing_is_empty(document: Any) -> None:
    with pytest.raises(EmptyLanguageError):
        Machine(Schema.read(document))


def test_what_is_left_out_is_told() -> None:
    schema = Schema.read({"properties": {"a": {"format": "shoe-size"}, "b": {"required": True}}})
    assert [pointer for pointer, _ in schema.left_out] == ["#/properties/a/format", "#/properties/b/required"]


def test_blanks_are_those_that_are_given() -> None:
    schema = Schema.read({"type": "array"})
    tight = Machine(schema, blanks="")
    assert tight.accepts(b"[1,2]") and not tight.accepts(b"[1, 2]")
    with pytest.raises(UnsupportedError, match="whitespace_pattern"):
        Machine(schema, blanks="x*")
