"""Single schemas: texts that they accept and others, what is empty, refused or left out and why, and limits."""

import json
import random
import warnings
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

from outlines_phi import (
    EmptyLanguageError,
    Generator,
    OutlinesPhiError,
    SchemaWarning,
    UnsupportedError,
    Vocabulary,
    from_transformers,
    limits,
    lm,
)
from outlines_phi.guides import JSONGuide
from outlines_phi.guides.json_schema.machine import sizes
from outlines_phi.guides.json_schema.machine.sizes import NEVER
from outlines_phi.guides.json_schema.reading import schema as reading
from tests.guides.json_schema.schemas import SAID, SMALL, STRING, accepted, dumped, machine, valid
from tests.guides.json_schema.test_validity import connected
from tests.guides.walking import random_text, read
from tests.inner import DEAD, DONE, JSONText, Schema, builder, kinds, shapes
from tests.refusals import refused

DRAFT_4, DRAFT_7 = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"
INTEGER, DAY, MOMENT = (
    {"type": "integer"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "date-time"},
)
UNIQUE: dict[str, Any] = {"type": "array", "uniqueItems": True}
OBJECT = {"type": "object"}


def without(*names: str) -> dict[str, Any]:
    return {"propertyNames": {"not": {"enum": list(names)}}}


def some_of(pattern: str, value: Any) -> dict[str, Any]:
    """Some member whose name matches is not as ``value`` says."""
    return {"not": {"patternProperties": {pattern: value}}}


def nested(depth: int) -> dict[str, Any]:
    """Return alternatives inside each other: each ``oneOf`` says what is inside of it twice, once denied."""
    document: dict[str, Any] = INTEGER
    for _ in range(depth):
        document = {"oneOf": [document, {"type": "string", "maxLength": 3}]}
    return {"$defs": {"deep": document}, "$ref": "#/$defs/deep"}


DEEP = "[" * 300 + "]" * 300
TAGGED = [{"properties": {"k": {"const": f"v{i}"}, f"x{i}": INTEGER}, "required": ["k", f"x{i}"]} for i in range(10)]
PEOPLE = [{"name": f"n{i % 7}", "age": i, "tags": [i % 3]} for i in range(40)]
NUMBERS = [*range(0, 30_000, 3), 0.5, -12.25]
FIVE = {"not": {"anyOf": [without("1"), without("2"), without("2", "3"), without("2", "4"), without("1", "2")]}}
NAMES_OF_KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "five members that may be one, or two": (FIVE, '{"1":0,"2":0}'),
    "a member that another one needs": (
        {
            "allOf": [some_of("^[ab]$", {"not": INTEGER}), some_of("^a$", {"not": STRING})],
            "propertyNames": {"enum": ["a", "b"]},
        },
        '{"a":"","b":0}',
    ),
    "a name that is not short": (
        {"patternProperties": {"^.{0,2}$": STRING}, **some_of("", {"not": INTEGER})}, '{"abc":0}',
    ),
    "as few members as may be": (
        {**some_of("^[ab]$", False), "allOf": [some_of("^[bc]$", False)], "maxProperties": 1}, '{"b":0}',
    ),
}  # fmt: skip
CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    **{name: (OBJECT | schema, [text], ["1"]) for name, (schema, text) in NAMES_OF_KINDS.items()},
    **{
        f"{name}, or null": ({"anyOf": [{"type": "null"}, OBJECT | schema]}, [text, "null"], ["1"])
        for name, (schema, text) in NAMES_OF_KINDS.items()
    },
    "members in the order of the schema": (
        {"properties": {"a": {}, "b": {}}}, ['{"a":1,"b":2,"x":3}'], ['{"b":1,"a":2}', '{"a":1,"a":2}'],
    ),
    "names are compared decoded": (
        {"properties": {"a": INTEGER}, "additionalProperties": STRING},
        ['{"a":1}', r'{"\u0062":"x"}'],
        [r'{"\u0061":"x"}', r'{"\u0061":1}'],
    ),
    "what is listed is written as it is, raw where it may be": (
        {"type": "array", "prefixItems": [{"enum": ["a/b", "é\n"]}, STRING]},
        [f'[{one},"\\u0061\\/"]' for one in ('"a/b"', '"é\\n"', r'"\u00e9\u000A"', r'"\u00E9\n"')],
        [f'[{one},""]' for one in (r'"a\/b"', r'"\u0061/b"', '"é\n"')],
    ),
    "one member of three patterns": (
        {
            **OBJECT, "propertyNames": {"pattern": "^....$"}, "maxProperties": 1,
            "allOf": [{"not": {"propertyNames": {"not": {"pattern": pattern}}}} for pattern in ("a1", "b2", "2a")],
        },
        ['{"b2a1":0}'], ['{"b2b1":0}'],
    ),
    "one member of two kinds": (
        {
            **OBJECT, "not": {"anyOf": [{"additionalProperties": one} for one in (INTEGER, {"minimum": 5})]}, "maxProperties": 1,
        },
        ['{"":0.5}'], ['{"":1}', '{"":5.5}'],
    ),
    "a name of which nothing is said may come twice": (
        {"properties": {"a": {}}, "required": ["b"], "minProperties": 1},
        ['{"b":0,"x":1,"x":2}'], ['{"a":1,"a":2,"b":0}', '{"b":0,"b":0}'],
    ),
    "a member that is asked for has a name that is allowed": (
        {**OBJECT, "propertyNames": {"pattern": "^x{3}"}, "not": {"propertyNames": {"maxLength": 5}}},
        ['{"xxxyyy":1}'], ['{"xxx":1}'],
    ),
    "names are counted once": ({"minProperties": 2}, ['{"x":1,"y":1}'], ['{"x":1,"x":1}']),
    "a list of items of any draft": (
        {"type": "array", "items": [STRING], "additionalItems": False}, ['["a"]'], ['["a", "b"]', "[1]"],
    ),
    "a flag of draft 4": ({"type": "number", "minimum": 1, "exclusiveMinimum": True}, ["1.5"], ["1"]),
    "siblings of a reference": (
        {"$ref": "#/definitions/a", "definitions": {"a": STRING}, "maxLength": 1}, ['"a"'], ['"ab"'],
    ),
    "no keyword of the draft": ({"$schema": DRAFT_7, "prefixItems": [True], "items": INTEGER}, ["[1]"], ['["x"]']),
    "references into another document stay there": (
        {
            "$schema": DRAFT_7,
            "properties": {"a": {"$ref": DRAFT_7}, "b": {"$ref": "#/definitions/nonNegativeInteger"}, "c": {"$ref": "#"}},
            "definitions": {"nonNegativeInteger": STRING},
        },
        ['{"b": "x"}', '{"a": {"minLength": 1}}'],
        ['{"b": 1}', '{"a": {"minLength": "x"}}', '{"c": {"b": 1}}', '{"a": {"not": 3}}'],
    ),
    # The standard says so (2020-12, 8.2.3.1); the reference validator goes to the outermost one.
    "a static reference to a dynamic anchor stays where it leads": (
        {
            "$id": "http://outer/", "$dynamicAnchor": "n", "properties": {"a": {"$ref": "inner#n"}},
            "$defs": {"i": {"$id": "inner", "$dynamicAnchor": "n", "type": "string"}},
        },
        ['{"a": "text"}'], ['{"a": {}}'],
    ),
    "a list with no kind of items that none can be of": (
        {"items": INTEGER, "contains": {"uniqueItems": True}, "type": "array"}, ["[1]"], ["[]"],
    ),
    "strings longer than any text": ({"minLength": 10**400}, ["1"], ['""', '"a"']),
    "a length of many digits": ({"maxLength": Decimal("9" * 100_000)}, ['"text"'], []),
    "a length of a huge exponent": ({"maxLength": Decimal("1e400000000")}, ['"text"'], []),
    "a huge bound": ({"maximum": 10**400, "type": "number"}, ["1", f"1{'0' * 400}"], [f"1{'0' * 401}"]),
    "one of many tagged objects": (OBJECT | {"oneOf": TAGGED}, ['{"k":"v3","x3":1}'], ['{"k":"v3","x4":1}']),
    "deep values": ({"const": json.loads(DEEP)}, [DEEP], [DEEP[1:-1]]),
    "deep alternatives": (nested(40), ["1"], ['"abc"', '"abcd"', "1.5", "[]"]),
    "counted items": (
        {"type": "array", "contains": INTEGER, "minContains": 400},
        [json.dumps([*range(399), "a", None, 0])], [json.dumps([*range(399), "a", None])],
    ),
    "five counts": ({"type": "array", "allOf": [{"contains": {"const": i}} for i in range(5)]}, ["[0,4,3,2,1]"], ["[0,1,2,3]"]),
    "a long list of numbers": (
        {"enum": NUMBERS},
        ["0", "-0", "0.0", "29997", "29997.0", "0.5", "-12.25", "30"], ["29998", "29997.5", "0.50", "12.25", "1e0"],
    ),
    "a long list of objects": (
        {**OBJECT, "enum": [{"n": n} for n in range(1_000)]}, ['{"n":7}', '{"n": 999}'], ['{"n":1000}', "{}"],
    ),
    **{
        f"numbers of {n} digits that must differ": (UNIQUE, [f"[{'1' * n},2]"], [f"[{'1' * n},{'1' * n}]"])
        for n in (1_500, 2_500, 5_000)
    },
    "many numbers that must differ": (
        UNIQUE | {"items": {"type": "integer", "minimum": 0}, "minItems": 100},
        [json.dumps([*range(100)])], [json.dumps([*range(99), 0])],
    ),
    "many objects that must differ": (UNIQUE, [json.dumps(PEOPLE)], [json.dumps([*PEOPLE, PEOPLE[8]])]),
    "names that anchored patterns tell apart": (
        {**OBJECT, "patternProperties": {f"^{letter}": {"type": "null"} for letter in "abcdefghijklmn"}},
        ['{"x":1,"a":null}'], ['{"a":1}'],
    ),
    "a name that no text spells": ({"required": ["\ud800"]}, ["1"], ["{}"]),
    **{
        f"draft 4, {keywords}": ({"$schema": DRAFT_4, **keywords}, texts.split(), others.split())
        for keywords, texts, others in [
            (INTEGER, "1", '1.0 1e0 0.5 "x"'),
            ({"type": "number"}, "1 1.0 1e0 0.5", '"x"'),
            ({"anyOf": [INTEGER, {"enum": [0.5]}]}, "1 0.5", '1.0 1e0 "x"'),
            ({"type": "number", "not": INTEGER}, "1.0 1e0 0.5", '1 "x"'),
            ({"anyOf": [INTEGER, {"not": {"multipleOf": 1}}]}, "1 0.5", '1.0 1e0 "x"'),
            ({"enum": [1, "x"]}, '1 1.0 "x"', "1e0 0.5"),
        ]
    },
}  # fmt: skip
"""A schema, texts that it accepts, and others."""


@pytest.mark.parametrize("name", CASES)
def test_texts_of_a_schema(name: str) -> None:
    document, texts, others = CASES[name]
    assert accepted(document, *texts, *others, any_order=False) == [True] * len(texts) + [False] * len(others)


@pytest.mark.parametrize(
    ("blanks", "texts", "others"),
    [
        (
            None,
            ['{"a":[1,2]}', '{"a": [1, 2]}', '{"a":[1, 2]}', '{\n  "a": [\n    1,\n    2\n  ]\n}'],
            ['{"a" :[1,2]}', '{ "a": [1, 2] }', '{\n "a": [1, 2]\n}'],
        ),
        ("", ['{"a":[1,2]}'], ['{"a": [1,2]}', '{"a":[1, 2]}', '{ "a":[1,2]}']),
        (r"[ \t\n]?", ['{ "a" : [ 1 , 2 ] }', '{"a":[1,2]}', '{\t"a"\n:[1,2]}'], ['{"a":  [1,2]}']),
        (" ", ['{ "a" : [ 1 , 2 ] }'], ['{"a":[1,2]}']),
        ("\n", ['{\n"a"\n:\n[\n1\n,\n2\n]\n}'], ['{"a":[1,2]}']),
    ],
)
def test_blanks_stand_where_they_may(blanks: str | None, texts: list[str], others: list[str]) -> None:
    document = {
        **OBJECT,
        "required": ["a"],
        "properties": {"a": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2}},
    }
    assert accepted(document, *texts, *others, blanks=blanks) == [True] * len(texts) + [False] * len(others)
    of = machine(document, blanks=blanks)
    assert len(of.shortest()) == of.size(of.start) == min(map(len, texts))


EMPTY: dict[str, list[Any]] = {
    "#": [False],
    "#/not": [{"not": {}}],
    "#/enum": [{"enum": []}, {"type": "string", "enum": [1]}],
    "#/minItems": [
        {"type": "array", "items": {"type": "null"}, "minItems": 3, "maxItems": 1},
    ],
    "#/properties/a~1b": [{**OBJECT, "properties": {"a/b": False}, "required": ["a/b"]}],
    "#/allOf/1/type": [{"allOf": [STRING, INTEGER]}],
    "#/$defs/x/minLength": [{"$ref": "#/$defs/x", "$defs": {"x": {"type": "string", "minLength": 3, "maxLength": 1}}}],
    "": [
        *(
            {**UNIQUE, "items": items, "minItems": least}
            for items, least in [
                ({"type": "boolean"}, 3), ({"enum": [1, 1.0, "a"]}, 3), ({"enum": [{}, []]}, 3),
                ({"type": "string", "pattern": "^[ab]$"}, 3),
                ({"type": "integer", "minimum": 1, "maximum": 9}, 10), ({"$ref": "#"}, 2),
            ]
        ),
        {**UNIQUE, "prefixItems": [{"const": 1}, {"const": 1}], "minItems": 2},
        {**UNIQUE, "prefixItems": [{"enum": [1, 2]}] * 3, "minItems": 3},
        {**OBJECT, "required": ["a"], "properties": {"a": {"$ref": "#"}}}, {"type": "array", "contains": STRING, "items": INTEGER},
        {**OBJECT, "minProperties": 2, "properties": {"a": {}}, "additionalProperties": False},
        {"type": "string", "pattern": "^a$", "minLength": 2}, {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {**UNIQUE, "contains": {"const": 1}, "minContains": 2}, {"type": "string", "minLength": 10**400},
        {**OBJECT, "propertyNames": {"pattern": "^[a-c]$"}, "minProperties": 4}, {**OBJECT, "required": ["\ud800"]},
    ],
}  # fmt: skip
"""By the part that the message names, if it is one, schemas that are true of nothing."""


@pytest.mark.parametrize(
    ("pointer", "document"), [(p, one) for p, several in EMPTY.items() for one in several], ids=str
)
def test_an_unsatisfiable_schema_is_named_by_what_makes_it_so(pointer: str, document: Any) -> None:
    caught = refused(r"^Relax #", JSONGuide.of, document, SMALL, error=EmptyLanguageError)
    assert str(caught.value).startswith(f"Relax {pointer} of the JSON schema." if pointer else "Relax #")


def test_the_part_is_found_in_few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of enums are not tried as schemas, and large parts are where small ones take too long."""
    part = {"properties": {"y": {"enum": list(range(100))}}, "required": ["y"]}
    names = [f"k{i}" for i in range(5)]
    refused(
        "Relax #/(required|additionalProperties) of",
        machine,
        {**OBJECT, "properties": dict.fromkeys(names, part), "required": [*names, "z"], "additionalProperties": False},
        error=EmptyLanguageError,
    )
    monkeypatch.setattr(reading, "MOST_LOOKED_AT", 20 * 1002)
    tried: list[Any] = []
    document = {"properties": {f"k{i}": {"minimum": i} for i in range(500)}, "not": {}}
    assert reading.culprit(document, lambda one: tried.append(one) or "not" in one) == "#/not"
    assert 20 < len(tried) < 40


def member_types(shift: int, count: int = 6) -> dict[str, Any]:
    types = ["integer", "string", "boolean", "null"]
    return {**OBJECT, "properties": {f"p{i}": {"type": types[(shift + i) % 4]} for i in range(count)}}


LETTERS = "abcdefgh"
LIMITS: dict[str, dict[str, Any]] = {
    "fewer items by contains": {"allOf": [{"contains": {"const": i}, "minContains": 5} for i in range(12)]},
    "fewer alternatives": {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(12)]},
    "Anchor the patterns of patternProperties": {"patternProperties": {f"{c}x": {"minimum": i} for i, c in enumerate(LETTERS)}},
    "Ask for at most 10,000 members": {**OBJECT, "minProperties": 100_000},
    "Lower the bounds of lengths": {**STRING, "maxLength": 30_000_000, "pattern": "a{3}"},
    "drop one of what restricts the same string": {**STRING, "allOf": [{"pattern": f"{c}.{{9}}$"} for c in LETTERS]},
    "look-ahead behind the look-behind": {**STRING, "pattern": "(?<=a(?=b))c"},
    "Combine fewer different multipleOf": {"anyOf": [{"multipleOf": p} for p in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)]},
    "Give a smaller multipleOf": {"type": "integer", "allOf": [{"multipleOf": 1009}, {"multipleOf": 1013}]},
    "Give numbers of at most": {"minimum": 10**6000},
    "beside at most 8 branches": {
        "anyOf": [{"required": [f"k{i}"], "properties": {f"k{i}": {}}} for i in range(9)], "unevaluatedProperties": False,
    },
    "Leave uniqueItems out of not": {"not": {"uniqueItems": True}},
}  # fmt: skip


@pytest.mark.parametrize("remedy", LIMITS)
@pytest.mark.parametrize("required", [True, False], ids=["required", "optional"])
def test_a_limit_names_the_part_and_what_to_do(remedy: str, required: bool) -> None:
    inner = {**OBJECT, "properties": {"c~/d": LIMITS[remedy]}, "required": ["c~/d"]}
    properties = {"a": INTEGER, "b": {"items": {}, "$ref": "#/$defs/inner"}}
    schema = {**OBJECT, "properties": properties, "required": ["b"] if required else [], "$defs": {"inner": inner}}
    caught = refused(None, machine, schema)
    assert remedy in str(caught.value) and "#/$defs/inner/properties/c~0~1d" in str(caught.value)
    assert str(caught.value).count(". ") == 1


def many(count: int) -> dict[str, Any]:
    return {**OBJECT, "properties": dict.fromkeys((f"k{i}" for i in range(count)), {"type": ["integer", "string"]})}


def around(depth: int, referred: bool) -> Any:
    """Return schemas inside each other."""
    document: Any = {"type": ["integer", "object"]}
    if referred:
        definitions = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"minimum": 1}]} for i in range(depth)}
        return {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{depth}": document}}
    for _ in range(depth):
        document = {"anyOf": [document, {"minimum": 1}]}
    return document


TOLD_APART: list[dict[str, Any]] = [
    {"contains": member_types(0), "allOf": [{"contains": member_types(i)} for i in range(1, 4)], "minContains": 2},
    {"contains": {"pattern": "a.{9}$"}, "allOf": [{"contains": {"pattern": f"{c}.{{9}}$"}} for c in "bc"]},
    {"patternProperties": {c: {"pattern": f"{c}.{{9}}$"} for c in "abc"}},
    {"patternProperties": {c: {"anyOf": [{"required": [f"{c}{i}"]} for i in range(20)]} for c in "abc"}},
]
REFUSED: list[tuple[Any, str]] = [
    *(
        ({"properties": {"a": {"items": part}}}, "#/properties/a/items/not/uniqueItems")
        for part in [{"not": {"uniqueItems": True}}]
    ),
    ({"contains": {"uniqueItems": True}}, "#/contains/uniqueItems"),
    ({"prefixItems": [{"type": "null"}], "contains": {"uniqueItems": True}}, "#/contains/uniqueItems"),
    ({"not": UNIQUE}, "uniqueItems"),
    ({"oneOf": [{"maxItems": 2}, UNIQUE]}, "uniqueItems"),
    (
        UNIQUE | {"items": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "minItems": 2},
        "at most one item beside #/uniqueItems",
    ),
    ({"type": "array", "allOf": [{"contains": {"const": one}} for one in range(12)]}, "minContains"),
    ({**OBJECT, "patternProperties": {letter * 2: {} for letter in "abcdefghijklmn"}}, "patternProperties"),
    ({**OBJECT, "minProperties": 10**9}, "members of an object"),
    ({**many(2_000), "minProperties": 3}, "Name fewer members .*2,000 ways"),
    ({**many(2_000), "not": {"patternProperties": {"k": {"minimum": 2}}}}, "Name fewer members .*2,000 ways"),
    ({"pattern": "("}, r"Write a regular expression of ECMA-262 at #/pattern .* is never closed"),
    ({"properties": {"a": {"pattern": r"(a)\1"}}}, "#/properties/a/pattern"),
    ({"unevaluatedProperties": False, "allOf": {"a": {}}}, "Write a list at #/allOf"),
    ({"$ref": "https://example.com/a.json"}, r"#/\$ref"),
    ({"properties": {"a": {"$ref": "#/nowhere"}}}, r"#/properties/a/\$ref"),
    ({"$dynamicRef": "#nowhere"}, r"#/\$dynamicRef"),
    ({"allOf": [{"$ref": "#"}], "$defs": {}}, "refer to one another"),
    ({"properties": {"a": {"type": "text"}}}, "#/properties/a/type"),
    ({"minLength": "2"}, "#/minLength"),
    ({"multipleOf": 0}, "#/multipleOf"),
    ([], "#"),
    ({"$schema": DRAFT_4, "exclusiveMinimum": 1}, "#/exclusiveMinimum"),
    ({"$schema": "http://json-schema.org/draft-03/schema#", "divisibleBy": 2}, r"draft 4 or a later one.*#/\$schema"),
    *(
        (around(depth, referred), "fewer schemas inside each other")
        for depth in (400, 3000)
        for referred in (True, False)
    ),
    *(
        (document, "combinations|20,000 states")
        for part in TOLD_APART
        for document in (part, {"properties": {"x": part}})
    ),
]


@pytest.mark.parametrize(("document", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_be_honoured_is_refused_with_its_part_and_remedy(document: Any, said: str) -> None:
    refused(said, JSONGuide.of, document, SMALL, error=OutlinesPhiError)


def test_alternatives_that_a_member_before_tells_apart_are_not_combined() -> None:
    """Eight alternatives of one member come to more combinations than there may be, but where its kind is known before it."""
    inner = [{"properties": {f"{kind}{i}": INTEGER for i in range(3)}} for kind in "abcdefgh"]
    union = {
        "anyOf": [
            {"type": "object", "properties": {"kind": {"const": kind}, "of": of}, "required": ["kind"]}
            for kind, of in zip("abcdefgh", inner, strict=True)
        ]
    }
    texts = ['{"kind": "a", "of": {"a0": 1, "b0": ""}}', '{"kind": "b", "of": {"a0": 1, "b0": ""}}', '{"kind": "h"}']
    assert accepted(union, *texts, any_order=False) == [True, False, True]
    refused("fewer alternatives", machine, union, any_order=True)


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (Vocabulary.from_tokens(["<eos>", "true"], 0), {}, "a token for each byte"),
        (Vocabulary.from_tokens(["<eos>", *map(chr, range(0x20, 0x7F))], 0), {}, r"has none for b'\\n'"),
        (SMALL, {"blanks": r"\t"}, "a token for each byte"),
        (SMALL, {"blanks": "x*"}, "whitespace_pattern"),
    ],
)
def test_vocabularies_and_blanks_that_do_not_do_are_refused(
    given: Vocabulary, options: dict[str, str], said: str
) -> None:
    refused(said, JSONGuide.of, {"type": "array"}, given, **options)


@pytest.mark.parametrize("digits", ["9" * 100_000, "1e400000000"])
def test_numbers_of_many_digits_are_refused(digits: str) -> None:
    for text in (
        *(f'{{"{keyword}": {digits}}}' for keyword in ("minimum", "const", "multipleOf")),
        f'{{"enum": [{digits}]}}',
    ):
        refused("at most 2,000 digits", getattr, JSONText(("json", text, None, False)), "template")


@pytest.mark.parametrize("pattern", ["A{" * 50_000, "(a{1000}){1000}", "a{100000000000}|(b|cd){20000}"], ids=len)
def test_a_pattern_that_is_too_long_is_refused_before_its_states_are_made(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(builder._Builder, "subsets")
    refused("more than 20,000 states", Schema.read, {"pattern": pattern})


def test_limits_are_raised() -> None:
    enum = {"enum": list(range(20_001))}
    refused(r"limits\(members=20001\).* #/enum ", Schema.read, enum)
    long = JSONText(("json", json.dumps({"title": "x" * (1 << 20)}), None, False))
    refused(r"limits\(source=", lambda: long.template)
    with limits(members=20_001, states=30):
        Schema.read(enum)
        refused("more than 30 states", Schema.read, {"pattern": "^x{31}$"})


WRITTEN: dict[str, tuple[Any, str]] = {
    "objects": (
        UNIQUE | {"contains": member_types(0, 3), "items": OBJECT},
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
    of = machine(schema, any_order=True)
    for module, limit in ((kinds, "MOST_SHAPES"), (shapes, "MOST_CELLS"), (sizes, "MOST_TRIED"), (sizes, "MOST_APART")):
        monkeypatch.setattr(module, limit, 0)
    with limits(states=1):
        assert of.accepts(text.encode())
    if name == "names":
        refused("more than 0 (ways|sets)", machine, OBJECT | FIVE)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            {"properties": {"a": {"format": "shoe-size"}, "b": {"required": True}}},
            ["#/properties/a/format", "#/properties/b/required"],
        ),
        ({"$schema": DRAFT_7, "prefixItems": [True]}, ["#/prefixItems"]),
        ({"dependencies": {"a": ["b"]}}, ["#/dependencies (it is no keyword of draft 2020-12"]),
        ({"items": {}, "additionalItems": False}, ["#/additionalItems"]),
        ({"items": {}, "additionalItems": True}, []),
        ({"$schema": "https://json-schema.org/draft-07/schema#"}, ["#/$schema", "read as draft 2020-12"]),
        (
            {"$schema": DRAFT_4, "properties": {"a": {"const": 1}}},
            ["#/properties/a/const (it is no keyword of draft 4"],
        ),
        (
            {"properties": {"a": {"type": "string", "nullable": True}}},
            ["#/properties/a/nullable", "add null to the types"],
        ),
        ({"properties": {"a": {"type": "string", "nullable": False}}}, []),
        ({"title": "x", "description": "y", "default": 1}, []),
    ],
    ids=str,
)
def test_what_is_left_out_is_warned_of_at_the_line_of_the_call(document: Any, said: list[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        JSONGuide.of(document, SMALL)
    assert [(one.category, one.filename) for one in caught] == [(SchemaWarning, __file__)] * bool(said)
    assert all(words in str(caught[0].message) for words in said)


def tagged(tag: str, **members: Any) -> dict[str, Any]:
    return {**OBJECT, "required": ["tag"], "properties": {"tag": {"const": tag}, **members}}


LINKED: dict[str, Any] = {**OBJECT, "required": ["day"], "properties": {"day": DAY, "next": {"$ref": "#/$defs/a"}}}
WIDENED: list[tuple[dict[str, Any], list[str]]] = [
    ({"oneOf": [DAY, MOMENT]}, ["#"]),
    ({"items": {"type": "string", "oneOf": [{"format": "uri"}, {"enum": ["."]}]}}, ["#/items"]),
    ({"properties": {"a": {"type": "string", "not": {"format": "ipv4"}}}}, ["#/properties/a"]),
    ({"if": {"format": "date"}, "then": {"maxLength": 3}}, ["#"]),
    ({"contains": {"format": "date"}, "maxContains": 1}, ["#"]),
    (
        {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": LINKED, "b": tagged("x", day=DAY)}},
        ["#"],
    ),
    ({"oneOf": [DAY, INTEGER]}, []),
    ({"oneOf": [tagged(tag, at={"anyOf": [DAY, MOMENT]}) for tag in "abc"]}, []),
    ({"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": LINKED}}, []),
    ({"oneOf": [{"maxLength": 3}, DAY], "maxLength": 3, "type": "string"}, ["#"]),
    ({"if": {"properties": {"tag": {"const": 1}}}, "then": {"properties": {"day": DAY}}}, []),
    ({"anyOf": [DAY, MOMENT], "allOf": [{"minLength": 12}]}, []),
    ({"oneOf": [{"const": {"format": "date"}}, INTEGER]}, []),
]
SPOKEN: list[Any] = [
    "2024-02-29", "2024-02-29T01:02:03Z", "ab", ".", "", 3, None, [], ["a", "2024-02-29"], {"a": "b"}, {"format": "date"},
    {"tag": "a", "at": "2024-02-29"}, {"tag": 1, "day": "2024-02-29"}, {"day": "2024-02-29", "next": {"day": "2024-02-29"}},
]  # fmt: skip


@pytest.mark.parametrize(("document", "pointers"), WIDENED, ids=str)
def test_a_schema_that_formats_widen_is_named(document: dict[str, Any], pointers: list[str]) -> None:
    """A validator to which they are annotations, as they are by default, finds values invalid that are written."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        of = JSONGuide.of(document, SMALL).machine
    said = [f"not by all validators: {pointer} (where formats are annotations, " for pointer in pointers]
    assert len(caught) == len(said) and all(one in str(caught[0].message) for one in said)
    plain = jsonschema.Draft202012Validator(document)
    assert pointers or all(map(plain.is_valid, [value for value in SPOKEN if of.accepts(json.dumps(value).encode())]))


ODD: list[Any] = [
    None, True, False, 0, -1, 2, 0.5, 1e308, float("nan"), float("inf"), 10**400, "", "#", "#/items", "#/$defs/a", "a", "(a)\\1",
    "^a", "\ud800", "date", "string", "object", "array", [], {}, [{}], ["a", "a"], [1, 1],
]  # fmt: skip
"""Values that somebody gave a keyword by mistake."""


def odd_document(rng: random.Random, depth: int) -> Any:
    """Return a document in which any keyword holds anything."""
    kind = rng.random()
    if not depth or kind < 0.25:
        return rng.choice(ODD)
    if kind < 0.35:
        return [odd_document(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice([*SAID, "$id", "$defs"]): odd_document(rng, depth - 1) for _ in range(rng.randrange(4))}


def odd_schema(rng: random.Random, depth: int) -> Any:
    """Return a document in which nearly every keyword holds what it may."""
    if not depth:
        return rng.choice([True, False, STRING, {"const": 1}, INTEGER, {"uniqueItems": True}, {"$ref": "#"}])
    found = connected(odd_schema(rng, depth - 1), odd_schema(rng, depth - 1), rng)
    for keyword in rng.sample(list(SAID), rng.randrange(3)):
        found |= SAID[keyword]
    return found | ({rng.choice(list(SAID)): rng.choice(ODD)} if rng.random() < 0.05 else {})


@pytest.mark.parametrize("make", [odd_document, odd_schema])
def test_odd_documents_are_refused_or_read(make: Any) -> None:
    """Nothing else than an error of the package for any JSON document, and no way that ends dead."""
    taken = 0
    for seed in range(600):
        rng = random.Random(seed)
        document = make(rng, rng.randrange(1, 4))
        try:
            of = machine(document)
        except (UnsupportedError, EmptyLanguageError):
            continue
        at, taken = of.start, taken + 1
        for _ in range(12):
            ways = [way for byte in range(0x20, 0x80) if (way := of.step(at, byte)) is not None]
            assert all(of.size(way) < NEVER for way in ways), document
            assert not of.size(at) or min(map(of.size, ways)) < of.size(at), document
            if not ways:
                break
            at = rng.choice(ways)
    assert 40 < taken < 600


def test_definitions_and_counts_may_lead_far() -> None:
    far = 700
    definitions: dict[str, Any] = {
        f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}, "minItems": 1} for i in range(far)
    }
    guide = JSONGuide.of({"$ref": "#/$defs/d0", "$defs": definitions | {f"d{far}": {"type": "null"}}}, SMALL)
    assert guide.min_tokens(guide.start) == 2 * far + 5
    guide = JSONGuide.of({"type": "array", "contains": {"const": 1}, "minContains": 2_000}, SMALL)
    assert guide.min_tokens(guide.start) == 2 * 2_000 + 2
    guide = JSONGuide.of({"type": "string", "minLength": 1, "maxLength": 10**30}, SMALL)
    assert guide.row(read(guide, '"')).targets.any()


@pytest.mark.parametrize(
    "document", [{"const": "é"}, {**OBJECT, "required": ["é"]}, {"pattern": "^é$", "type": "string"}]
)
def test_characters_without_single_bytes_are_escaped(document: Any) -> None:
    text = random_text(JSONGuide.of(document, SMALL), random.Random(0), 0)
    assert b"\xc3" not in text and "é" in json.dumps(json.loads(text), ensure_ascii=False)


@pytest.mark.parametrize("value", [0, -7, 100, 10**15, 10**16, 10**30, 2.5, 1e-7])
def test_the_shortest_text_of_a_number_is_that_of_its_spellings(value: float) -> None:
    kinds_, formula = machine({"enum": [value, 123]}).kinds, Schema.read({"enum": [value, 123]}).formula
    spellings = kinds_.spellings(formula)
    assert kinds_.shortest_number(formula) == spellings.distances[spellings.start]


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
    """After each first member the completion is as short as it is said to be, and valid."""
    document = {**many(12), "additionalProperties": False, **beside}
    guide, found = JSONGuide.of(document, SMALL), 0
    for begun in (f'{{"k{i}":1' for i in range(12)):
        state = read(guide, begun)
        if state != DEAD:
            text = begun.encode() + guide.shortest_text(state)
            assert len(text) == len(begun) + guide.machine.size(guide.machine.read(begun.encode()))
            assert accepted(document, text, any_order=False) == [True] and valid(document, [json.loads(text)]) == [True]
            found += 1
    assert found > 3


def test_a_mask_makes_no_state_for_each_name() -> None:
    """Of names that have schemas, and of those that are required alone."""

    def states(document: dict[str, Any]) -> int:
        guide = JSONGuide.of(document, SMALL)
        for place in range(20):
            guide.row(read(guide, dumped({"k0": 1, "k1": 2, "k2": 3})[:place]))
        return len(guide.machine._kept)

    made = [
        [states(of(count)) for count in (20, 40, 2_000)]
        for of in (many, lambda n: {**OBJECT, "required": [f"k{i}" for i in range(n)]})
    ]
    assert all(large < 1.2 * few < 600 for _, few, large in made) and made[1][0] < 1.5 * made[0][0]


def test_a_guide_is_an_output_type_and_its_states_are_described() -> None:
    model = from_transformers(*lm.bundled.load())
    age = {"type": "integer", "minimum": 18, "maximum": 99}
    schema = {**OBJECT, "properties": {"age": age}, "required": ["age"], "additionalProperties": False}
    generator = Generator(model, JSONGuide.of(schema, model.lm.vocabulary))
    for text in generator.sample("Person: Nora is a teacher. JSON: ", 4, seed=0, phi="local").texts:
        assert 18 <= json.loads(text)["age"] <= 99
    # From the inside out.
    guide = JSONGuide.of({}, SMALL)
    assert [guide.describe(state) for state in (read(guide, "[["), DONE, DEAD)] == ["array in array", "done", "dead"]
    assert guide.describe(read(guide, '[[{"a":[')) == "array in object in array in array"
