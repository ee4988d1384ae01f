"""The keywords of each draft, beside the reference validator of each."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from outlines_phi.errors import SchemaWarning, UnsupportedError
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.reading.keywords import KEYWORDS
from outlines_phi.guides.json_schema.reading.schema import Schema
from outlines_phi.vocabulary.vocabulary import Vocabulary

from .reading.test_schema import VALUES

DRAFTS: dict[str, tuple[str | None, Any]] = {
    "draft-04": ("http://json-schema.org/draft-04/schema#", jsonschema.Draft4Validator),
    "draft-06": ("http://json-schema.org/draft-06/schema#", jsonschema.Draft6Validator),
    "draft-07": ("http://json-schema.org/draft-07/schema", jsonschema.Draft7Validator),
    "draft2019-09": ("https://json-schema.org/draft/2019-09/schema", jsonschema.Draft201909Validator),
    "draft2020-12": ("https://json-schema.org/draft/2020-12/schema", jsonschema.Draft202012Validator),
    "no draft": (None, jsonschema.Draft202012Validator),
}
STRING = {"type": "string"}
SAID: dict[str, dict[str, Any]] = {
    "type": {"type": "string"},
    "const": {"const": "a"},
    "enum": {"enum": ["a", 1]},
    "minimum": {"minimum": 1},
    "maximum": {"maximum": 1},
    "exclusiveMinimum": {"exclusiveMinimum": 1},
    "exclusiveMaximum": {"exclusiveMaximum": 1},
    "multipleOf": {"multipleOf": 2},
    "minLength": {"minLength": 2},
    "maxLength": {"maxLength": 2},
    "pattern": {"pattern": "^a"},
    "format": {"format": "ipv4"},
    "items": {"items": STRING},
    "additionalItems": {"items": [STRING], "additionalItems": STRING},
    "prefixItems": {"prefixItems": [STRING], "items": STRING},
    "contains": {"contains": STRING},
    "minContains": {"contains": STRING, "minContains": 2},
    "maxContains": {"contains": STRING, "maxContains": 1},
    "minItems": {"minItems": 2},
    "maxItems": {"maxItems": 2},
    "uniqueItems": {"uniqueItems": True},
    "unevaluatedItems": {"anyOf": [{"items": STRING}, {"minItems": 2}], "unevaluatedItems": {"multipleOf": 2}},
    "properties": {"properties": {"a": STRING}},
    "required": {"required": ["a"]},
    "patternProperties": {"patternProperties": {"^a": STRING}},
    "additionalProperties": {"properties": {"a": {}}, "additionalProperties": STRING},
    "propertyNames": {"propertyNames": {"maxLength": 1}},
    "minProperties": {"minProperties": 2},
    "maxProperties": {"maxProperties": 1},
    "dependencies": {"dependencies": {"a": ["b"], "b": {"maxProperties": 1}}},
    "dependentRequired": {"dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {"dependentSchemas": {"a": {"maxProperties": 1}}},
    "unevaluatedProperties": {
        "anyOf": [{"dependencies": {"a": {"properties": {"b": {}}}}}], "properties": {"a": {}}, "unevaluatedProperties": False,
    },
    "allOf": {"allOf": [STRING]},
    "anyOf": {"anyOf": [STRING]},
    "oneOf": {"oneOf": [STRING, {"minLength": 2}]},
    "not": {"not": STRING},
    "if": {"if": STRING},
    "then": {"if": STRING, "then": {"minLength": 2}},
    "else": {"if": STRING, "else": {"type": "object"}},
    "$ref": {"$ref": "#/definitions/a", "maxLength": 1, "definitions": {"a": STRING}},
    "$recursiveRef": {"$recursiveRef": "#", "maxLength": 1},
    "$dynamicRef": {"$dynamicRef": "#/$defs/a", "maxLength": 1, "$defs": {"a": STRING}},
}  # fmt: skip
"""A schema with each keyword."""

MALFORMED = {
    ("exclusiveMinimum", "draft-04"), ("exclusiveMaximum", "draft-04"),
    ("additionalItems", "draft2020-12"), ("additionalItems", "no draft"), ("$recursiveRef", "draft2019-09"),
}  # fmt: skip
"""The keywords of a draft whose values are malformed in it."""


def of_draft(draft: str, document: dict[str, Any]) -> dict[str, Any]:
    dialect = DRAFTS[draft][0]
    return document if dialect is None else {"$schema": dialect, **document}


def test_every_keyword_is_looked_at() -> None:
    assert SAID.keys() == KEYWORDS.keys()


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("keyword", SAID)
def test_a_keyword_says_what_it_says_in_the_draft(keyword: str, draft: str) -> None:
    if (keyword, draft) in MALFORMED:
        pytest.skip("no schema of this draft")
    for document in (SAID[keyword], {"not": SAID[keyword]}, {"properties": {"a": SAID[keyword]}}):
        if keyword.lower().endswith("ref") and document is not SAID[keyword]:
            continue  # its pointer is that of the document
        if keyword == "uniqueItems" and "not" in document:
            continue  # that two items are equal is refused
        document = of_draft(draft, document)
        validator = DRAFTS[draft][1](document, format_checker=jsonschema.FormatChecker())
        schema = Schema.read(document)
        valid = [validator.is_valid(value) for value in VALUES]
        if any(valid):
            machine = Machine(schema, any_order=True)
            assert [machine.accepts(json.dumps(value).encode()) for value in VALUES] == valid, document


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("keyword", SAID)
def test_a_keyword_of_other_drafts_is_named(keyword: str, draft: str) -> None:
    if (keyword, draft) in MALFORMED:
        pytest.skip("no schema of this draft")
    known = KEYWORDS[keyword].drafts
    name = "draft2020-12" if draft == "no draft" else draft
    schema = Schema.read(of_draft(draft, SAID[keyword]))
    named = [left for left in schema.left_out if left.pointer == f"#/{keyword}" and "no keyword of draft" in left.why]
    assert len(named) == (name not in known)


def test_what_users_write_without_a_draft() -> None:
    items = Machine(Schema.read({"type": "array", "items": [STRING], "additionalItems": False}))
    assert items.accepts(b'["a"]') and not items.accepts(b'["a", "b"]') and not items.accepts(b"[1]")
    flag = Machine(Schema.read({"type": "number", "minimum": 1, "exclusiveMinimum": True}))
    assert flag.accepts(b"1.5") and not flag.accepts(b"1")
    schema = Schema.read({"$ref": "#/definitions/a", "definitions": {"a": STRING}, "maxLength": 1})
    definitions = Machine(schema)
    assert definitions.accepts(b'"a"') and not definitions.accepts(b'"ab"') and not schema.left_out
    (left,) = Schema.read({"dependencies": {"a": ["b"]}}).left_out
    assert left.pointer == "#/dependencies" and "no keyword of draft 2020-12" in left.why
    (left,) = Schema.read({"items": {}, "additionalItems": False}).left_out
    assert left.pointer == "#/additionalItems"
    assert not Schema.read({"items": {}, "additionalItems": True}).left_out


def test_the_warning_names_the_keyword() -> None:
    small = Vocabulary.from_tokens(["<eos>", *map(chr, range(0x20, 0x7F)), "\n"], 0)
    with pytest.warns(SchemaWarning, match=r"#/properties/a/const \(it is no keyword of draft 4"):
        JSONGuide.of(of_draft("draft-04", {"properties": {"a": {"const": 1}}}), small)


def tagged(tag: str, **members: Any) -> dict[str, Any]:
    return {"type": "object", "required": ["tag"], "properties": {"tag": {"const": tag}, **members}}


DAY, MOMENT = {"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}
LINKED: dict[str, Any] = {
    "type": "object",
    "required": ["day"],
    "properties": {"day": DAY, "next": {"$ref": "#/$defs/a"}},
}


@pytest.mark.parametrize(
    ("document", "pointers"),
    [
        ({"oneOf": [DAY, MOMENT]}, ["#"]),
        ({"items": {"type": "string", "oneOf": [{"format": "uri"}, {"enum": ["."]}]}}, ["#/items"]),
        ({"properties": {"a": {"type": "string", "not": {"format": "ipv4"}}}}, ["#/properties/a"]),
        ({"if": {"format": "date"}, "then": {"maxLength": 3}}, ["#"]),
        ({"contains": {"format": "date"}, "maxContains": 1}, ["#"]),
        (
            {
                "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
                "$defs": {"a": LINKED, "b": tagged("x", day=DAY)},
            },
            ["#"],
        ),
        ({"oneOf": [DAY, {"type": "integer"}]}, []),
        ({"oneOf": [tagged(tag, at={"anyOf": [DAY, MOMENT]}) for tag in "abc"]}, []),
        ({"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": LINKED}}, []),
        ({"oneOf": [{"maxLength": 3}, DAY], "maxLength": 3, "type": "string"}, ["#"]),
        ({"if": {"properties": {"tag": {"const": 1}}}, "then": {"properties": {"day": DAY}}}, []),
        ({"anyOf": [DAY, MOMENT], "allOf": [{"minLength": 12}]}, []),
        ({"oneOf": [{"const": {"format": "date"}}, {"type": "integer"}]}, []),
    ],
    ids=str,
)
def test_a_schema_that_formats_widen_is_named(document: dict[str, Any], pointers: list[str]) -> None:
    """A validator to which they are annotations, as they are by default, finds values invalid that are written."""
    machine = Machine(Schema.read(document))
    assert [left.pointer for left in machine.unlike()] == pointers
    plain = jsonschema.Draft202012Validator(document)
    texts = [value for value in SPOKEN if machine.accepts(json.dumps(value).encode())]
    assert pointers or all(map(plain.is_valid, texts))


SPOKEN: list[Any] = [
    "2024-02-29", "2024-02-29T01:02:03Z", "ab", ".", "", 3, None, [], ["a", "2024-02-29"], {"a": "b"}, {"format": "date"},
    {"tag": "a", "at": "2024-02-29"}, {"tag": 1, "day": "2024-02-29"}, {"day": "2024-02-29", "next": {"day": "2024-02-29"}},
]  # fmt: skip


def test_a_schema_that_formats_widen_is_warned_of() -> None:
    small = Vocabulary.from_tokens(["<eos>", *map(chr, range(0x20, 0x7F)), "\n"], 0)
    with pytest.warns(SchemaWarning, match=r"not by all validators: #/properties/a \(where formats are annotations, "):
        JSONGuide.of({"properties": {"a": {"oneOf": [DAY, MOMENT]}}}, small)


def test_a_dialect_that_is_not_known_is_named() -> None:
    (left,) = Schema.read({"$schema": "https://json-schema.org/draft-07/schema#"}).left_out
    assert left.pointer == "#/$schema" and "read as draft 2020-12" in left.why


def test_a_bound_of_a_later_draft_and_draft_3_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="#/exclusiveMinimum"):
        Schema.read(of_draft("draft-04", {"exclusiveMinimum": 1}))
    with pytest.raises(UnsupportedError, match=r"draft 4 or a later one.*#/\$schema"):
        Schema.read({"$schema": "http://json-schema.org/draft-03/schema#", "divisibleBy": 2})


def test_a_keyword_of_openapi_is_named() -> None:
    (left,) = Schema.read({"properties": {"a": {"type": "string", "nullable": True}}}).left_out
    assert left.pointer == "#/properties/a/nullable" and "add null to the types" in left.why
    assert not Schema.read({"properties": {"a": {"type": "string", "nullable": False}}}).left_out
