"""Vocabularies, schemas, values, and random schemas; and the machine of a schema beside the reference validator."""

import json
import random
from collections.abc import Iterable
from typing import Any

import jsonschema

from outlines_phi import Vocabulary
from tests.inner import QUOTE, ByteAutomaton, Machine, Schema, StringSet, in_ascii, in_json, spelled

SMALL = Vocabulary.from_tokens(
    [
        "<eos>", *map(chr, range(0x20, 0x7F)), "\n", '{"', '"a":', '"}', "true", "null", '","', "1]", "[1", '["', "[[", '"a","b"',
        "1,1", ",\n", '{\n  "', '{\n    "', '": ', '": {\n', '", "', " " * 8, " " * 16, "\n  ", "\n    ", "\n      ",
        "\n        ", "  ", "]\n}", "\n}", "\n  }", "}\n", "[\n", "1,\n    ", ", ", '[{"', ': "',
        '[["', '"],["', '"a"],["a"', '"]],[["',
    ],
    0,
)  # fmt: skip
"""ASCII alone, with tokens that cross the structure of JSON."""

PIECES = [
    '"', '":', '","', '", "', '"a":', '{"', '{"a', '"}', '"]', '",', "ab", "abc", "b\\", "\\u", "\\u00", "e9", "E9", "\\ud83d",
    "\\ude00", "😀", "é", "éa", '\\"', '\\\\"', "aaaa", "a:", '": "', '":"', "  ", "\n  ", "\n    ", '\n  "', "12", "-1", "1.",
    "e+", "true", "]}", 'a":1,"b":', '":1,"', '","a":"', "null,", "[[", "[]", "{}", '""', '"":', "alse",
]  # fmt: skip
CUT = [b'\xa9"', "😀".encode()[:2], "😀".encode()[1:], b'"' + "😀".encode()[:3], "€".encode()[:2]]
WHOLE = Vocabulary.from_tokens(
    ["<eos>", *dict.fromkeys([*(bytes([byte]) for byte in range(256)), *(piece.encode() for piece in PIECES), *CUT])], 0
)
"""All bytes, and pieces that cut strings anywhere."""

ONLY_ASCII = Vocabulary.from_tokens(
    ["<eos>", *map(chr, range(0x20, 0x7F)), "\n", *(p for p in PIECES if len(p) > 1)], 0
)
ESCAPED = Vocabulary.from_tokens(["<eos>", *WHOLE.tokens[1:], b"\\u0061b", b'\\u0061"', b'x\\u00e9":'], 0)
"""With tokens that go on behind a character spelled by its code."""


def machine(document: Any, **options: Any) -> Machine:
    """Return the texts of a schema."""
    return Machine(Schema.read(document), **options)


def accepted(document: Any, *texts: str | bytes, **options: Any) -> list[bool]:
    """Return the verdict of the machine of a schema on each text; members may come in any order unless it is said."""
    of = machine(document, **{"any_order": True, **options})
    return [of.accepts(text.encode() if isinstance(text, str) else text) for text in texts]


def validator(document: Any) -> Any:
    """Return the reference validator of the draft that a document names, formats included."""
    kind = jsonschema.validators.validator_for(document, default=jsonschema.Draft202012Validator)
    return kind(document, format_checker=kind.FORMAT_CHECKER)


def valid(document: Any, values: Iterable[Any]) -> list[bool]:
    """Return the verdict of the reference validator on each value."""
    return list(map(validator(document).is_valid, values))


def dumped(value: Any, **options: Any) -> str:
    return json.dumps(value, **{"separators": (",", ":"), **options})


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
"""Schemas, each of which is tried on all values."""

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

UNIQUE: dict[str, Any] = {"type": "array", "uniqueItems": True}
SETS: dict[str, Any] = {
    "free": {"uniqueItems": True},
    "not asked for": {"uniqueItems": False, "maxItems": 2},
    "booleans": UNIQUE | {"items": {"type": "boolean"}, "minItems": 2},
    "values": UNIQUE | {"items": {"enum": [1, 2, "a", None, [1], {"a": 1}]}, "minItems": 3},
    "few numbers": UNIQUE | {"items": {"type": "integer", "minimum": 0, "maximum": 3}, "minItems": 3},
    "short strings": UNIQUE | {"items": {"type": "string", "maxLength": 1}, "maxItems": 3},
    "strings": UNIQUE | {"items": {"type": "string"}, "minItems": 2},
    "objects": UNIQUE | {"items": {"type": "object"}, "minItems": 2},
    "closed objects": UNIQUE | {
        "items": {
            "type": "object", "properties": {"a": {"enum": [1, True]}, "b": {"enum": [1, "a"]}}, "additionalProperties": False,
        },
        "minItems": 2,
    },
    "arrays": UNIQUE | {"items": {"type": "array", "items": {"enum": [1, "a"]}}},
    "sets of sets": UNIQUE | {"items": UNIQUE | {"items": {"enum": [1, 2, "a"]}}, "minItems": 2},
    "sets of lists of sets": UNIQUE | {"items": {"type": "array", "items": UNIQUE | {"items": {"type": "string"}}}},
    "set within a list": {"type": "array", "items": UNIQUE | {"items": {"type": "number"}}},
    "prefix": UNIQUE | {"prefixItems": [{"enum": [1, 2]}, {"enum": [1, 2]}, {"enum": [2, None]}], "minItems": 3},
    "contains": UNIQUE | {"contains": {"enum": [1, "a"]}, "minContains": 2, "maxItems": 3},
    "at most one is": UNIQUE | {"contains": {"type": "number"}, "maxContains": 1},
    "beside others": {"anyOf": [UNIQUE | {"items": {"type": "integer"}}, {"type": "array", "maxItems": 2}]},
    "in parts": {"allOf": [UNIQUE, {"contains": {"type": "integer"}}, {"items": {"enum": [1, "a", None]}}], "minItems": 2},
    "tree": UNIQUE | {"items": {"$ref": "#"}},
    "patterns with an end": UNIQUE | {"items": {"pattern": "^(a|ab?a?|b+)$", "type": "string"}},
}  # fmt: skip
"""Schemas of items that must differ."""

LAID_OUT: dict[str, Any] = {
    "any": {},
    "closed": {
        "type": "object", "properties": {"a": {"type": "array", "items": {"enum": [1, "x"]}, "minItems": 1}, "b": {"const": 1}},
        "required": ["b"], "additionalProperties": False,
    },
    "one of": {
        "type": "object", "minProperties": 1, "additionalProperties": {"type": "null"},
        "anyOf": [{"required": ["aaaaaaaaaaaaaaaaaa"]}, {"required": ["b", "c"]}],
    },
    "set": {"type": "array", "uniqueItems": True, "items": {"enum": [1, 2, [3], {"a": [4, 5]}]}, "minItems": 2},
    "counted": {"type": "array", "items": {"type": ["array", "boolean"]}, "contains": {"const": True}, "minContains": 2},
    "recursion": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2, "minItems": 0},
}  # fmt: skip
"""Schemas with places for blanks of every kind."""

NAMES = ["a", "ab", "abc", "", "é", "b\\", 'q"', "😀", "a:"]


def random_schema(rng: random.Random, depth: int = 2) -> Any:
    kind = rng.randrange(9 if depth else 5)
    if kind == 0:
        return {"type": "string", "minLength": rng.randrange(3), "maxLength": rng.randrange(2, 6)}
    if kind == 1:
        return {"enum": rng.sample([*NAMES, 1, None, "abd", "aé"], 4)}
    if kind == 2:
        return rng.choice([{"type": "string"}, {"type": "integer"}, {"not": {"enum": ["a", "ab"]}}, True])
    if kind == 3:
        counted = {"minLength": rng.randrange(4), "maxLength": rng.randrange(2, 8)} if rng.random() < 0.5 else {}
        return {"type": "string", "pattern": rng.choice(["^a+é?$", "b", "^[^a]*$", "^(ab|😀)*$"]), **counted}
    if kind == 4:
        other = rng.choice([{"type": "string", "minLength": 3}, {"pattern": "^a.*b$", "maxLength": 6}])
        return {"anyOf": [{"const": rng.choice(NAMES)}, other]}
    if kind == 5:
        return {"type": "array", "items": random_schema(rng, depth - 1), "maxItems": 3}
    names = rng.sample(NAMES, rng.randrange(1, 5))
    found: dict[str, Any] = {"type": "object", "properties": {name: random_schema(rng, depth - 1) for name in names}}
    found["required"] = rng.sample(names, rng.randrange(len(names)))
    if kind == 6:
        found["additionalProperties"] = rng.choice([False, {"type": "integer"}])
    if kind == 7:
        found["patternProperties"] = {rng.choice(["^a", "é"]): random_schema(rng, depth - 1)}
    if kind == 8:
        found |= rng.choice([{"minProperties": 2}, {"maxProperties": 2}, {"propertyNames": {"maxLength": 3}}])
    return found


def combined(rng: random.Random) -> Any:
    """Return a schema in which alternatives overlap."""
    parts = [random_schema(rng, depth=1) for _ in range(2)]
    return rng.choice(
        [{"oneOf": parts}, {"allOf": parts}, {"anyOf": parts}, {"if": parts[0], "then": parts[1]}, random_schema(rng)]
    )


def quoted(strings: StringSet, *, ascii: bool = False) -> ByteAutomaton:
    """Return the automaton of the spellings of the members, from after the opening quote on."""
    return spelled(strings.code_automaton, in_ascii if ascii else in_json, closing=QUOTE)
