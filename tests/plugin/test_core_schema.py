"""JSON schemas on the road through outlines_core: read right, refused, or named in a warning."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import numpy as np
import outlines
import pytest
from outlines.types import JsonSchema
from pydantic import AnyUrl, BaseModel, Field
from typing_extensions import TypedDict

import outlines_phi
from outlines_phi import EmptyLanguageError, GrammarError, PhiTransformers, SchemaWarning, UnsupportedError, generate
from outlines_phi.automaton import ByteAutomaton
from outlines_phi.guides.regex import compile_regex
from outlines_phi.plugin.core_schema.forms import to_core, what_is_dropped
from outlines_phi.plugin.core_schema.patterns import FORMATS, PatternError, to_json_pattern
from outlines_phi.plugin.core_schema.table import KEYWORDS
from outlines_phi.plugin.output_types import to_pattern
from outlines_phi.reachability import UNREACHABLE

ROOT = Path(__file__).parent.parent.parent

A, B = {"const": "a"}, {"const": "b"}
NUMBER, INTEGER, STRING, NULL = ({"type": kind} for kind in ("number", "integer", "string", "null"))


def record(required: tuple[str, ...] = (), /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


RIGHT: list[tuple[str, Any, list[str], list[str]]] = [
    ("type", {"type": ["integer", "null"]}, ["3", "null"], ["true"]),
    ("type", {"title": "anything"}, ["3", "null", "[]", '{"a": {}}'], ["a"]),
    ("type", {"minLength": 2}, ['"ab"'], ['"a"']),
    ("enum", {"enum": ["a", 1, None], "type": ["string", "null"]}, ['"a"', "null"], ["1"]),
    ("enum", {"enum": [1, 5, 9], "minimum": 4}, ["5", "9"], ["1"]),
    ("enum", {"enum": [{'a"': [1]}]}, [r'{"a\"":[1]}'], ['{"a"":[1]}']),
    ("enum", {"enum": [{"a.b-{}": ["c.d"]}]}, ['{"a.b-{}":["c.d"]}'], ['{"axb-{}":["c.d"]}', '{"a.b-{}":["cxd"]}']),
    ("const", {"const": 'say "a"\\'}, [r'"say \"a\"\\"'], ['"say "a"\\"']),
    ("properties", record(("a",), a={}), ['{"a":null}', '{"a":[1]}'], ["null", "[1]"]),
    ("properties", record(("a",), a=True, b=False), ['{"a":null}'], ['{"a":null,"b":1}']),
    ("properties", record((), **{'a"\n': NULL}), [r'{"a\"\n":null}', "{}"], ['{"a"\n":null}']),
    (
        "required",
        {"type": "object", "properties": {"a": NULL}, "required": ["b"]},
        ['{"b":3}', '{"a":null,"b":3}'],
        ["{}"],
    ),
    ("required", {"required": ["b"]}, ['{"b":3}'], ["{}", "3"]),
    ("additionalProperties", {"type": "object", "additionalProperties": INTEGER}, ['{"x":1}', "{}"], ['{"x":"1"}']),
    ("additionalProperties", {"type": "object", "additionalProperties": False}, ["{}"], ['{"x":1}']),
    ("additionalProperties", {**record(a=NULL), "additionalProperties": False}, ["{}", '{"a":null}'], ['{"x":1}']),
    ("patternProperties", {**record(a=NULL), "patternProperties": {"^x": NULL}}, ['{"a":null}'], ['{"x":1}']),
    ("propertyNames", {**record(a=NULL), "propertyNames": {"maxLength": 2}}, ['{"a":null}'], ['{"x":1}']),
    ("minProperties", {"type": "object", "minProperties": 1}, ['{"x":1}'], ["{}"]),
    ("maxProperties", {"type": "object", "maxProperties": 0}, ["{}"], ['{"x":1}']),
    ("maxProperties", {**record(a=NULL), "maxProperties": 1}, ["{}", '{"a":null}'], []),
    (
        "dependentRequired",
        {**record(("b",), a=NULL, b=NULL), "dependentRequired": {"a": ["b"]}},
        ['{"b":null}'],
        ["{}"],
    ),
    ("dependentSchemas", {**record(a=NULL), "dependentSchemas": {"z": False}}, ['{"a":null}'], []),
    ("dependencies", {**record(a=NULL), "dependencies": {"z": ["a"]}}, ["{}"], []),
    ("unevaluatedProperties", {**record(a=NULL), "unevaluatedProperties": False}, ["{}"], ['{"b":1}']),
    ("items", {"type": "array", "items": {"type": ["null", "boolean"]}}, ["[]", "[null,true]"], ["[1]"]),
    ("items", {"type": "array", "items": False}, ["[]"], ["[1]"]),
    (
        "items",
        {"$schema": "http://json-schema.org/draft-07/schema#", "items": [NULL, INTEGER]},
        ["[null,1]"],
        ["[1,1]"],
    ),
    (
        "prefixItems",
        {"prefixItems": [NULL, {}], "items": INTEGER, "minItems": 3},
        ["[null,true,1]"],
        ["[null,true,null]"],
    ),
    ("prefixItems", {"prefixItems": [NULL, INTEGER], "maxItems": 1}, ["[null]"], ["[null,1]"]),
    (
        "additionalItems",
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "items": [NULL],
            "additionalItems": INTEGER,
            "minItems": 2,
        },
        ["[null,1]"],
        ["[null,null]"],
    ),
    ("minItems", {"type": "array", "minItems": 1, "items": NULL}, ["[null]"], ["[]"]),
    ("maxItems", {"type": "array", "maxItems": 1, "items": NULL}, ["[null]", "[]"], ["[null,null]"]),
    ("uniqueItems", {"type": "array", "maxItems": 1, "uniqueItems": True, "items": NULL}, ["[null]"], ["[null,null]"]),
    ("unevaluatedItems", {"type": "array", "items": NULL, "unevaluatedItems": False}, ["[null]"], ["[1]"]),
    ("minLength", {"type": "string", "minLength": 2.0}, ['"ab"'], ['"a"']),
    ("minLength", {"type": "string", "minLength": 1, "pattern": "^[a-z]+$"}, ['"ab"'], ['"A"', '""']),
    ("minLength", {"type": "string", "minLength": 1, "format": "date"}, ['"2024-02-29"'], ['"ab"']),
    ("maxLength", {"type": "string", "maxLength": 2}, ['"ab"', r'"\"\""'], ['"abc"']),
    ("pattern", {"type": "string", "pattern": "^a|b$"}, ['"a"', '"b"'], ['"a', 'b"', '"ab"']),
    ("pattern", {"type": "string", "pattern": ".*"}, ['"ab"'], ['"a"b"', r'"\"', '"\n"']),
    ("pattern", {"type": "string", "pattern": r"^[^a]\S\D\W$"}, ['"b,x-"'], ['""""', r'"\\\\"']),
    ("pattern", {"type": "string", "pattern": r"^\d$"}, ['"3"'], ['"٣"']),
    ("pattern", {"type": "string", "pattern": '^"\\\\\\n$'}, [r'"\"\\\n"'], ['""\\\n"']),
    ("format", {"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"٢٠٢٤-02-29"']),
    ("format", {"type": "string", "format": "time"}, ['"12:00:00.5Z"', '"12:00:00"'], [r'"12:00:00\.5Z"']),
    ("format", {"type": "string", "format": "email"}, ['"ab@c.de"'], ['""a"@c.de"']),
    ("format", {"type": "integer", "format": "date"}, ["3"], []),
    ("minimum", {"type": "integer", "minimum": -1, "maximum": 1}, ["-1", "0", "1"], ["2", "-0", "01"]),
    ("exclusiveMinimum", {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 2}, ["1"], ["0", "2"]),
    ("multipleOf", {"type": "integer", "minimum": 0, "maximum": 9, "multipleOf": 4}, ["0", "4", "8"], ["2"]),
    ("minDigits", {"type": "integer", "maxDigits": 3}, ["123"], ["1234"]),
    ("allOf", {"allOf": [record(("a",), a=NULL)]}, ['{"a":null}'], ["{}"]),
    (
        "allOf",
        {"allOf": [record(("a",), a=NULL), record(("b",), b=NULL)]},
        ['{"a":null,"b":null}'],
        ['{"a":null}{"b":null}'],
    ),
    ("allOf", {"allOf": [record(a=NULL, b=NULL), {"additionalProperties": False}]}, ["{}"], ['{"a":null}']),
    ("allOf", {"allOf": [{"type": "number"}, {"type": ["integer", "null"]}]}, ["3"], ["3.5", "null"]),
    ("allOf", {"allOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}, ['"b"'], ['"a"', '"c"']),
    ("anyOf", {"anyOf": [NULL, INTEGER]}, ["3", "null"], ["true"]),
    ("anyOf", {**record(a=NULL, b=NULL), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, ['{"b":null}'], ["{}"]),
    ("anyOf", {"type": "string", "anyOf": [{"maxLength": 1}, {"minLength": 3}]}, ['"a"', '"abc"'], ['"ab"', "3"]),
    ("oneOf", {"oneOf": [STRING, INTEGER]}, ['"a"', "3"], ["null"]),
    ("oneOf", {"oneOf": [A, {"type": "array", "items": NULL}]}, ['"a"', "[null]"], ["null"]),
    ("oneOf", {"oneOf": [A, B]}, ['"a"', '"b"'], ['"c"']),
    (
        "oneOf",
        {"oneOf": [record(("k",), k=A, x=NULL), record(("k",), k=B, y=NULL)]},
        ['{"k":"b","y":null}'],
        ['{"k":"b","x":null}'],
    ),
    ("$ref", {"$ref": "#/$defs/a~1b", "$defs": {"a/b": INTEGER}}, ["3"], ["null"]),
    (
        "$ref",
        {
            "$ref": "#/$defs/a",
            "$defs": {
                x: {"items": {"$ref": f"#/$defs/{y}"}, "minItems": 1} for x, y in zip("abcdef", "bcdefg", strict=True)
            }
            | {"g": NULL},
        },
        ["[[[[[[null]]]]]]"],
        ["[[[[[[]]]]]]", "[[[[[]]]]]", "null"],
    ),
    (
        "$ref",
        {"properties": {"a": {"$ref": "#"}, "b": NULL}, "required": ["b"]},
        ['{"b":null}', '{"a":{"a":{"b":null},"b":null},"b":null}'],
        ["{}", '{"a":{},"b":null}'],
    ),
    (
        "$ref",
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {"a": {"$ref": "#/definitions/a", "maximum": 3}},
            "definitions": {"a": INTEGER},
        },
        ['{"a":7}'],
        ['{"a":null}'],
    ),
    ("not", {"type": "string", "not": False}, ['"a"'], []),
    ("if", {"type": "string", "if": {}}, ['"a"'], []),
]
"""The keyword, a schema that is read right without a word, some of its texts, and some that are none of it."""

WARNED: list[tuple[str, Any, list[str]]] = [
    ("patternProperties", {"type": "object", "patternProperties": {"^x": NULL}}, ["/patternProperties"]),
    ("patternProperties", {**record(xa=INTEGER), "patternProperties": {"^x": NULL}}, ["/patternProperties"]),
    ("propertyNames", {"type": "object", "propertyNames": {"maxLength": 2}}, ["/propertyNames"]),
    ("propertyNames", {**record(abc=NULL), "propertyNames": {"maxLength": 2}}, ["/propertyNames"]),
    ("minProperties", {"type": "object", "minProperties": 2}, ["/minProperties"]),
    ("minProperties", {**record(a=NULL), "minProperties": 1}, ["/minProperties"]),
    ("maxProperties", {"type": "object", "maxProperties": 2}, ["/maxProperties"]),
    ("dependentRequired", {**record(a=NULL, b=NULL), "dependentRequired": {"a": ["b"]}}, ["/dependentRequired"]),
    ("dependentSchemas", {**record(a=NULL), "dependentSchemas": {"a": False}}, ["/dependentSchemas"]),
    ("dependencies", {"type": "object", "dependencies": {"a": ["b"]}}, ["/dependencies"]),
    ("unevaluatedProperties", {"type": "object", "unevaluatedProperties": False}, ["/unevaluatedProperties"]),
    ("uniqueItems", {"type": "array", "items": NULL, "uniqueItems": True}, ["/uniqueItems"]),
    ("contains", {"type": "array", "contains": NULL, "minContains": 2}, ["/contains"]),
    ("unevaluatedItems", {"type": "array", "unevaluatedItems": False}, ["/unevaluatedItems"]),
    ("maxLength", {"type": "string", "maxLength": 9, "format": "uri"}, ["/maxLength"]),
    ("pattern", {"type": "string", "minLength": 2, "pattern": "a(?=b)"}, ["/pattern"]),
    ("format", {"type": "string", "format": "hostname"}, ["/format"]),
    ("format", {"type": "string", "format": "date", "pattern": "a"}, ["/format"]),
    ("minimum", record(n={"type": "integer", "minimum": 0}), ["/properties/n/minimum"]),
    ("maximum", {"type": "number", "minimum": 0, "maximum": 1}, ["/minimum", "/maximum"]),
    ("exclusiveMinimum", {"type": "array", "items": {"exclusiveMinimum": 0}}, ["/items/exclusiveMinimum"]),
    ("exclusiveMaximum", {"exclusiveMaximum": 0}, ["/exclusiveMaximum"]),
    ("multipleOf", {"type": "integer", "multipleOf": 2}, ["/multipleOf"]),
    ("minimum", {"allOf": [{"minimum": 1}, {"minimum": 2}]}, ["/allOf/0/minimum", "/allOf/1/minimum"]),
    ("oneOf", {"oneOf": [INTEGER, NUMBER]}, ["/oneOf"]),
    ("oneOf", {**record(a=NULL, b=NULL), "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, ["/oneOf"]),
    ("not", {"type": "string", "not": A}, ["/not"]),
    ("if", {"type": "string", "if": A, "then": B}, ["/if"]),
    ("$ref", {"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"minimum": 1}}}, ["/$defs/a/minimum"]),
]
"""The keyword, a schema with what cannot be honoured, and where."""

REFUSED: list[tuple[str, Any, type[Exception], str]] = [
    ("enum", {"enum": [123456789.123456789]}, UnsupportedError, "at /enum with 15 digits at most"),
    ("enum", {"enum": [2**64 + 1]}, UnsupportedError, "at /enum with 15 digits at most"),
    ("enum", {"enum": ["a"], "type": "null"}, EmptyLanguageError, "at /enum: none of the values fits"),
    ("required", {**record(("a",)), "additionalProperties": False}, EmptyLanguageError, "`false` fits no value"),
    ("properties", record(("a",), a=False), EmptyLanguageError, "at /properties/a: `false`"),
    ("minItems", {"type": "array", "minItems": 1, "items": False}, EmptyLanguageError, "at /items: `false`"),
    ("pattern", {"items": {"pattern": "^(?!a).*$"}}, UnsupportedError, r"at /items/pattern differently: `\(\?!`"),
    ("minDigitsFraction", {"type": "number", "maxDigitsFraction": 2}, UnsupportedError, "at /maxDigitsFraction it allows `1.`"),
    ("allOf", {"allOf": [{"prefixItems": [NULL]}, {"items": NULL}]}, UnsupportedError, "those of /allOf/1|hold at once"),
    ("allOf", {"allOf": [INTEGER, STRING]}, EmptyLanguageError, "at /allOf/1/type: no value has the types of /allOf/0/type"),
    ("$ref", {"$ref": "https://example.org/a"}, UnsupportedError, r"at /\$ref is not one. Nothing is fetched"),
    ("$ref", {"$ref": "#anchor", "$defs": {"a": {"$anchor": "anchor"}}}, UnsupportedError, "by a JSON pointer"),
    ("$ref", {"$ref": "#/nowhere"}, GrammarError, "leads nowhere"),
    ("$ref", {"$ref": "#"}, UnsupportedError, "leads to itself without end"),
    ("$ref", {"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, UnsupportedError, r"/properties/a/\$ref as an optional"),
    ("$ref", {"type": "array", "items": {"anyOf": [{"$ref": "#"}] * 20}}, UnsupportedError, "more than 20,000 parts"),
    ("$dynamicRef", {"$dynamicRef": "#a"}, UnsupportedError, r"Leave `\$dynamicRef` out"),
    ("dependentRequired", {**record(a=NULL), "dependentRequired": 3}, GrammarError, "a value of its kind"),
]  # fmt: skip
"""The keyword, a schema that would not be read right, and what is said."""


def automaton_of(schema: Any) -> ByteAutomaton:
    return compile_regex(to_pattern(JsonSchema(schema)))


def named(case: tuple[Any, ...]) -> str:
    return f"{case[0]} in {json.dumps(case[1])}"[:60]


def walks(automaton: ByteAutomaton, count: int, longest: int = 60) -> Iterator[bytes]:
    """Texts of random walks, which take a shortest way to the end when they become long."""
    rng = np.random.default_rng(0)
    targets = automaton.targets[:, automaton.byte_class]
    for _ in range(count):
        state, text = automaton.start, bytearray()
        while True:
            live = np.flatnonzero(automaton.distances[targets[state]] < UNREACHABLE)
            if automaton.accepting[state] and (not len(live) or rng.random() < 0.5 or len(text) > longest):
                break
            if len(text) > longest:
                left = automaton.distances[targets[state, live]]
                live = live[left == left.min()]
            structure = [byte for byte in live.tolist() if byte in b'",:{}[]\\']
            byte = int(rng.choice(structure if structure and rng.random() < 0.4 else live))
            text.append(byte)
            state = int(targets[state, byte])
        yield bytes(text)


@pytest.mark.parametrize(("keyword", "schema", "members", "strangers"), RIGHT, ids=map(named, RIGHT))
class TestRight:
    def test_the_language_is_that_of_the_schema(
        self, keyword: str, schema: Any, members: list[str], strangers: list[str]
    ) -> None:
        assert to_core(json.dumps(schema)).dropped == ()
        automaton = automaton_of(schema)
        assert [text for text in members if not automaton.accepts(text.encode())] == []
        assert [text for text in strangers if automaton.accepts(text.encode())] == []

    def test_every_text_fits_the_schema(
        self, keyword: str, schema: Any, members: list[str], strangers: list[str]
    ) -> None:
        draft = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        validator = draft(schema, format_checker=draft.FORMAT_CHECKER)
        for text in [*map(str.encode, members), *walks(automaton_of(schema), 60)]:
            validator.validate(json.loads(text))


@pytest.mark.parametrize(("keyword", "schema", "pointers"), WARNED, ids=map(named, WARNED))
def test_what_is_left_out_is_named(keyword: str, schema: Any, pointers: list[str]) -> None:
    assert list(to_core(json.dumps(schema)).dropped) == pointers
    for text in walks(automaton_of(schema), 20):
        json.loads(text)


@pytest.mark.parametrize(("keyword", "schema", "error", "message"), REFUSED, ids=map(named, REFUSED))
def test_what_would_be_wrong_is_refused(keyword: str, schema: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        to_pattern(JsonSchema(schema))


def test_every_keyword_is_tested_and_documented() -> None:
    tested = {case[0] for case in (*RIGHT, *WARNED, *REFUSED)}
    with_others = {"minContains", "maxContains"}
    assert KEYWORDS.keys() <= tested | with_others
    page = (ROOT / "docs" / "output-types.md").read_text(encoding="utf-8")
    assert [keyword for keyword, fate in KEYWORDS.items() if f"| `{keyword}` | {fate} |" not in page] == []


@pytest.mark.parametrize(
    "keyword", ["title", "description", "default", "examples", "deprecated", "readOnly", "$comment", "$id", "x-mine"]
)
def test_annotations_say_nothing(keyword: str) -> None:
    annotated = {**record(("a",), a={**NULL, keyword: "a"}), keyword: "b"}
    assert to_core(json.dumps(annotated)) == to_core(json.dumps(record(("a",), a=NULL)))


NOT_READ = [
    "a^b",
    "a$b",
    "(^a)*",
    r"\bfoo",
    r"(a)\1",
    "(?=a)",
    "(?i)a",
    "a{",
    "a**",
    "[",
    "(",
    ")",
    r"\Z",
    "[^]",
    "\\ud83d",
]


@pytest.mark.parametrize("pattern", NOT_READ)
def test_patterns_that_are_not_read(pattern: str) -> None:
    with pytest.raises(PatternError):
        to_json_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "a|bc",
        "^a|b$",
        "^(a|b)$",
        "(^a$|^b$)",
        r"[\w.-]+@\w+",
        r"[^\s\d]{2,3}?",
        r"a\/\"b",
        r"[\"\\]a|\t",
        r"\x41B\.",
        ".+",
        r"[\]\-^]+",
        "(?:ab?)+,",
        r"[\b\n-~]",
    ],
)
def test_a_pattern_has_json_strings_that_it_matches_as_a_whole(pattern: str) -> None:
    own = re.compile(re.sub(r"(?<!\\)[$^](?![^\[]*\])", "", pattern))
    for text in walks(compile_regex(f'"{to_json_pattern(pattern)}"'), 60):
        assert own.fullmatch(json.loads(text)), text


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_has_values_of_it(name: str) -> None:
    validator = jsonschema.Draft202012Validator(
        {"format": name}, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    for text in walks(automaton_of({"type": "string", "format": name}), 60):
        validator.validate(json.loads(text))


class Counted(BaseModel):
    n: int = Field(ge=0)


class Linked(BaseModel):
    to: AnyUrl
    next: Linked | None = None


@dataclasses.dataclass
class CountedData:
    n: Annotated[int, Field(ge=0)]


class CountedDict(TypedDict):
    n: Annotated[int, Field(ge=0)]


def counted(n: int) -> None: ...


counted.__annotations__["n"] = Annotated[int, Field(ge=0)]  # Outlines reads annotations, not their text


SCHEMA = Counted.model_json_schema()
PROMPT = "JSON: "
DOORS = {
    "pydantic": lambda model: model(PROMPT, Counted, phi="local", max_new_tokens=40),
    "dataclass": lambda model: model(PROMPT, CountedData, phi="local", max_new_tokens=40),
    "TypedDict": lambda model: model(PROMPT, CountedDict, phi="local", max_new_tokens=40),
    "function": lambda model: model(PROMPT, counted, phi="local", max_new_tokens=40),
    "schema": lambda model: model(PROMPT, JsonSchema(SCHEMA), phi="local", max_new_tokens=40),
    "list": lambda model: model(PROMPT, list[Counted], phi="local", max_new_tokens=40),
    "union": lambda model: model(PROMPT, Counted | bool, phi="local", max_new_tokens=40),
    "Generator": lambda model: outlines_phi.Generator(model, Counted, phi="local"),
    "union, engine": lambda model: outlines_phi.Generator(model, Counted | bool, phi="local", backend="llguidance"),
    "generate.json": lambda model: generate.json(model, Counted, phi="local")(PROMPT, max_tokens=40),
    "generate.json, text": lambda model: generate.json(model, json.dumps(SCHEMA), phi="local")(PROMPT, max_tokens=40),
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_every_door_warns_once_where_it_compiles(door: str, fresh: PhiTransformers) -> None:
    with pytest.warns(SchemaWarning, match=r"texts may violate the JSON schema at /properties/n/minimum\.") as caught:
        DOORS[door](fresh)
    assert len(caught) == 1 and caught[0].filename == __file__
    DOORS[door](fresh)  # what is at hand says nothing: warnings are errors here


def test_another_schema_of_the_same_language_warns_too(fresh: PhiTransformers) -> None:
    with pytest.warns(SchemaWarning, match="/properties/n/minimum"):
        one = fresh.table(Counted)
    other = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 2}}, "required": ["n"]}
    with pytest.warns(SchemaWarning, match="/properties/n/multipleOf"):
        assert fresh.table(JsonSchema(other)) is one


def test_what_stock_outlines_compiles_is_its_own(fresh: PhiTransformers) -> None:
    outlines.Generator(fresh, Counted)(PROMPT, max_new_tokens=40)
    with pytest.warns(SchemaWarning, match="/properties/n/minimum"):
        fresh(PROMPT, Counted, max_new_tokens=40)  # compiled here, with phi= or without


def test_the_warning_names_a_few_and_says_what_to_do() -> None:
    said = what_is_dropped(tuple(f"/{number}" for number in range(20)))
    assert said.startswith("Check the values") and "/7 and 12 more" in said and "/8" not in said


def test_nested_models_are_as_deep_as_they_are_read() -> None:
    automaton = compile_regex(to_pattern(Linked))
    inside = '{"to":"https://a.de"}'
    for depth in range(6):
        assert automaton.accepts(inside.encode()) == (depth < 4)
        inside = f'{{"to":"https://a.de","next":{inside}}}'


def test_choices_may_hold_schemas() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compile_regex(to_pattern(Literal["none"] | Counted)).accepts(b'{"n":1}')
