"""Machines of schemas beside the reference validator of each draft; the page of output types says what becomes of keywords."""

import json
import random
import warnings
from decimal import Decimal
from itertools import combinations, combinations_with_replacement, permutations, product
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from jsonschema.exceptions import FormatError
from jsonschema_specifications import REGISTRY

from outlines_phi import EmptyLanguageError, SchemaWarning, UnsupportedError, Vocabulary
from outlines_phi.guides import JSONGuide
from outlines_phi.guides.json_schema.reading.keywords import KEYWORDS
from tests.guides.json_schema.reading.keyword_tables import ANNOTATIONS, END, START, summary, write
from tests.guides.json_schema.schemas import SAID, SCHEMAS, SETS, VALUES, accepted, dumped, machine, valid, validator
from tests.guides.walking import random_text
from tests.inner import FORMATS, LEFT_OUT, Schema, bundled, format_strings
from tests.refusals import refused

SPELLINGS: tuple[dict[str, Any], ...] = ({"separators": (",", ":"), "ensure_ascii": False}, {}, {"indent": 2})


@pytest.mark.parametrize("name", SCHEMAS)
def test_texts_of_values_are_accepted_where_the_values_are_valid(name: str) -> None:
    expected = valid(SCHEMAS[name], VALUES)
    for spelling in SPELLINGS:
        assert accepted(SCHEMAS[name], *(json.dumps(value, **spelling) for value in VALUES)) == expected
    assert any(expected)


DRAFTS: dict[str, str] = {
    "draft-04": "http://json-schema.org/draft-04/schema#",
    "draft-06": "http://json-schema.org/draft-06/schema#",
    "draft-07": "http://json-schema.org/draft-07/schema",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "no draft": "",
}
MALFORMED = {
    ("exclusiveMinimum", "draft-04"), ("exclusiveMaximum", "draft-04"),
    ("additionalItems", "draft2020-12"), ("additionalItems", "no draft"), ("$recursiveRef", "draft2019-09"),
}  # fmt: skip
"""The keywords of a draft whose values are malformed in it."""


def of_draft(draft: str, document: dict[str, Any]) -> dict[str, Any]:
    return {"$schema": DRAFTS[draft], **document} if DRAFTS[draft] else document


@pytest.mark.in_turn
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("keyword", SAID)
def test_a_keyword_says_what_it_says_in_the_draft(keyword: str, draft: str) -> None:
    """And it is named where it is one of other drafts."""
    if (keyword, draft) in MALFORMED:
        pytest.skip("no schema of this draft")
    name = "draft2020-12" if draft == "no draft" else draft
    left_out = Schema.read(of_draft(draft, SAID[keyword])).left_out
    named = [left for left in left_out if left.pointer == f"#/{keyword}" and "no keyword of draft" in left.why]
    assert len(named) == (name not in KEYWORDS[keyword].drafts)
    own = keyword.lower().endswith("ref")  # its pointer is that of the document
    inside = (
        [] if own else [{"properties": {"a": SAID[keyword]}}, *([{"not": SAID[keyword]}] * (keyword != "uniqueItems"))]
    )
    for document in (of_draft(draft, part) for part in (SAID[keyword], *inside)):
        expected = valid(document, VALUES)
        assert not any(expected) or accepted(document, *map(json.dumps, VALUES)) == expected, document


SCALARS = ["null", "true", "0", "1", "-1", "2", "1.5", "10", '""', '"a"', '"ab"', '"ba"', r'"\u0061"', '"1.1.1.1"']
FEW = ["1", "2", '"a"', '"ab"', "[]", '{"a":1}']
MEMBERS = [f"{name}:{value}" for name in ('"a"', '"b"', '"ab"', r'"\u0062"') for value in FEW]
ARRAYS = [f"[{','.join(items)}]" for count in range(4) for items in product(FEW[: 7 - count], repeat=count)]
OBJECTS = [f"{{{','.join(members)}}}" for count in range(3) for members in product(MEMBERS, repeat=count)]
TEXTS = [*SCALARS, *ARRAYS, *OBJECTS]
SOME = random.Random(0).sample(TEXTS, 60)


def is_plain(text: str) -> bool:
    """Return True if nothing is escaped and no name comes twice: else a text may be left out, for the value has another."""
    pairs: list[list[str]] = []
    json.loads(text, object_pairs_hook=lambda members: pairs.append([name for name, _ in members]))
    return "\\" not in text and all(len(set(names)) == len(names) for names in pairs)


PLAIN = {text: is_plain(text) for text in TEXTS}


def assert_texts(document: Any, texts: list[str], meant: Any = None) -> set[bool]:
    """Compare machine and validator, of another document if it is ``meant``; return which verdicts there are."""
    verdicts = valid(document if meant is None else meant, map(json.loads, texts))
    for text, expected, found in zip(texts, verdicts, accepted(document, *texts, blanks=""), strict=True):
        assert expected or not found, (document, text)
        assert found or not expected or not PLAIN[text], (document, text)
    return set(verdicts)


TOLD = SAID | {
    "if": {"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"type": "number"}},
    "$recursiveRef": {"type": ["array", "string"], "items": {"$recursiveRef": "#"}},
}
"""A schema with each keyword, of which some values are valid and some are not."""


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_texts_are_those_that_the_validator_holds_valid(keyword: str) -> None:
    same = TOLD[keyword] is SAID[keyword]
    known = [draft for draft in KEYWORDS[keyword].drafts if not same or (keyword, draft) not in MALFORMED]
    assert assert_texts(of_draft(known[-1], TOLD[keyword]), TEXTS) == {True, False}


def test_a_keyword_that_is_dropped_is_told() -> None:
    """The control: the comparison sees each keyword that a reader would pass over."""
    for keyword in ("multipleOf", "oneOf", "uniqueItems", "patternProperties", "dependentRequired", "not", "contains"):
        refused(None, assert_texts, {}, TEXTS, SAID[keyword], error=AssertionError)


def connected(one: Any, other: Any, rng: random.Random) -> dict[str, Any]:
    """Return a schema of both."""
    names = rng.choice([["a"], ["b"], ["a", "b"]])
    return rng.choice(
        [
            {"allOf": [one, other]}, {"anyOf": [one, other]}, {"oneOf": [one, other]}, {"if": one, "then": other},
            {"if": one, "else": other}, {"allOf": [one, {"not": other}]}, {"items": one, "additionalProperties": other},
            {"properties": dict.fromkeys(names, one), "additionalProperties": other}, {"contains": one, "items": other},
            {"prefixItems": [one], "items": other, "patternProperties": {"b": other}}, {"not": {"anyOf": [one, other]}},
        ]
    )  # fmt: skip


@pytest.mark.in_turn
@pytest.mark.parametrize("part", range(6))
def test_pairs_of_keywords_under_every_connective(part: int) -> None:
    other_drafts = ("ef", "additionalItems")
    here = [SAID[k] for k in SAID if "draft2020-12" in KEYWORDS[k].drafts and not k.endswith(other_drafts)]
    rng, compared = random.Random(part), 0
    for one, other in list(combinations_with_replacement(here, 2))[part::6]:
        try:
            assert_texts(connected(one, other, rng), SOME)
            compared += 1
        except (EmptyLanguageError, UnsupportedError):
            continue
    assert compared > 80


DIGITS = ["1", "2", "3", "x"]
KINDS: list[Any] = [
    *(dict(zip(names, of)) for n in range(4) for names in combinations(DIGITS, n) for of in product([0, ""], repeat=n)),  # noqa: B905
    None, 0, "", {"1": {}}, {"x": {"1": 0}},
]  # fmt: skip


def members_schema(rng: random.Random) -> dict[str, Any]:
    """Return a keyword about the members of objects."""
    names, pattern = rng.sample(DIGITS, rng.randint(1, 3)), rng.choice(["^[12]$", "^[123]$", "[23]", "^x", "1|x"])
    values = [True, False, {"type": "integer"}, {"type": "string"}, {"const": 0}, {"required": ["1"]}]
    return rng.choice(
        [
            {"propertyNames": {"not": {"enum": names}}}, {"propertyNames": rng.choice([{"enum": names}, {"pattern": pattern}])},
            {"required": names[:2]}, {"patternProperties": {pattern: rng.choice(values)}}, {"minProperties": rng.randint(0, 3)},
            {"properties": {name: rng.choice(values) for name in names}, "additionalProperties": rng.choice(values)},
            {"maxProperties": rng.randint(0, 3)}, {"dependentRequired": {rng.choice(DIGITS): names[:1]}},
        ]
    )  # fmt: skip


def joined(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    if depth == 3 or rng.random() < 0.3:
        return members_schema(rng)
    join = rng.choice(["not", "anyOf", "allOf", "oneOf", "none"])
    if join == "none":
        return {"not": {"anyOf": [members_schema(rng) for _ in range(rng.randint(2, 6))]}}
    parts = [joined(rng, depth + 1) for _ in range(rng.randint(1, 3))]
    return {join: parts[0] if join == "not" else parts}


def test_random_constraints_on_names_counts_and_kinds_of_members_together() -> None:
    """Over all values of an enumeration: acceptance, emptiness, and how long a shortest text is."""
    empty, texts = 0, list(map(dumped, KINDS))
    for seed in range(70):
        rng = random.Random(seed)
        document = {"allOf": [joined(rng)]} | ({"type": "object"} if rng.random() < 0.8 else {})
        expected = valid(document, KINDS)
        try:
            assert accepted(document, *texts) == expected, document
        except EmptyLanguageError:
            assert not any(expected), document
            empty += 1
            continue
        shortest = machine(document, any_order=True).shortest()
        assert validator(document).is_valid(json.loads(shortest)), document
        assert len(shortest) <= min(
            (len(text) for text, found in zip(texts, expected, strict=True) if found), default=999
        )
    assert 2 < empty < 35


ITEMS = [
    "1", "{}", "2", '{"c":1}', "3", "[[]]", '"a"', r'"\u0061"', "null", "[]", "1.0", '""', "true", "false", "[1]", "[1,2]",
    '{"a":1}', '["a",1]', '[1,"a"]', '{"a":true}', '{"a":1,"b":1}', '{"a": 1.0}', '{"b":1,"a":1}',
]  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_items_that_must_differ(name: str) -> None:
    lists = [items for count in range(4) for items in product(ITEMS[:: 1 if count < 3 else 2], repeat=count)]
    texts = [f"[{','.join(items)}]" for items in lists]
    expected = valid(SETS[name], map(json.loads, texts))
    for text, found, valid_ in zip(texts, accepted(SETS[name], *texts), expected, strict=True):
        # What a schema lists is written as it is.
        assert found == valid_ or (valid_ and name in ("contains", "in parts") and r"\u0061" in text), text
    assert set(expected) == {True, False}


MEMBERS_TWICE = ['"a":1', '"a":"x"', '"b":2', '"x":1', '"x":"y"', '"\\u0078":null', '"kind":"cat"', '"y":[]']
COUNTED: dict[str, Any] = {
    "at most": {"maxProperties": 2},
    "one of some kind": {"type": "object", "not": {"additionalProperties": {"type": "integer"}}},
    "not so many": {"not": {"minProperties": 2}, "required": ["x"]},
}


@pytest.mark.parametrize("name", [*SCHEMAS, *COUNTED])
def test_what_is_read_where_a_name_comes_twice_is_valid(name: str) -> None:
    """Readers keep the last member of a name."""
    document = (SCHEMAS | COUNTED)[name]
    texts = [f"{{{','.join(members)}}}" for count in (2, 3) for members in product(MEMBERS_TWICE, repeat=count)]
    read = [text for text, found in zip(texts, accepted(document, *texts), strict=True) if found]
    assert all(valid(document, map(json.loads, read)))


@pytest.mark.parametrize(
    ("document", "orders"),
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
        # Each alternative has its own, whatever the others, beside those that differ before it is known; one object has one.
        (
            {
                "anyOf": [
                    {"properties": {"a": {"const": 2}, "b": {}}},
                    {"properties": {"b": {}, "a": {"const": 1}, "c": {}}},
                ]
            },
            "ab ba abx bax ac acx bc bcx abc bac abcx bacx",
        ),
        (
            {
                "oneOf": [
                    {"properties": {"a": {}, "b": {}}, "required": ["a", "b"], "additionalProperties": False},
                    {"properties": {"a": {}, "x": {}, "b": {}}, "required": ["x"], "additionalProperties": False},
                ]
            },
            "ab axb ax xb x",
        ),
        (
            {
                "allOf": [{"properties": {"a": {}, "b": {}}}, {"properties": {"b": {}, "a": {}}}],
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            },
            "ab abx ax bx",
        ),
    ],
    ids=str,
)
def test_one_properties_puts_its_names_in_an_order(document: Any, orders: str) -> None:
    """Beside all orders of three of four names: those that are listed are read, and of those with the same names no other."""
    every = [each for n in range(1, 5) for each in permutations("abcx", n)]
    texts, listed = [json.dumps(dict.fromkeys(order, 1)) for order in every], set(map(tuple, orders.split()))
    ordered, free = accepted(document, *texts, any_order=False), accepted(document, *texts)
    for order, one, other in zip(every, ordered, free, strict=True):
        assert one <= other
        assert one == (order in listed) or not any(sorted(order) == sorted(each) for each in listed), order
    assert accepted(document, machine(document).shortest(), any_order=False) == [True]


META_KEYWORDS = ("$defs", "items", "allOf", "not", "properties", "minimum", "type", "required", "if", "contains")


def nearly_a_schema(rng: random.Random, depth: int = 0) -> Any:
    if depth > 3 or rng.random() < 0.25:
        return rng.choice([True, 1, "string", "number", [], ["a"], {}, None])
    found: dict[str, Any] = {}
    for keyword in rng.sample(META_KEYWORDS, rng.randint(1, 2)):
        inner = nearly_a_schema(rng, depth + 1)
        wrapped = {"allOf": [inner], "$defs": {"foo": inner}, "properties": {"bar": inner}}
        found[keyword] = wrapped.get(keyword, inner) if rng.random() < 0.9 else inner
    return found


@pytest.mark.parametrize("draft", ["draft2019-09", "draft2020-12"])
def test_the_schemas_of_drafts_are_asked_of_schemas_within_schemas(draft: str) -> None:
    document, rng = of_draft(draft, {"$ref": DRAFTS[draft]}), random.Random(1)
    values = [{"$defs": {"foo": {"type": 1}}}, {"items": {"minimum": "a"}}, {"allOf": [{"items": {"minimum": 1}}]}]
    values += [nearly_a_schema(rng) for _ in range(300)]
    expected = valid(document, values)
    assert accepted(document, *map(json.dumps, values)) == expected and 30 < sum(expected) < 270


def resources(rng: random.Random) -> dict[str, Any]:
    """Four resources that refer to one another, each with an anchor ``n``, which is dynamic or not."""

    def target() -> dict[str, str]:
        name = rng.choice(["", "a", "b", "c"])
        return {"$dynamicRef": f"{name}#n"} if rng.random() < 0.7 else {"$ref": name or "#"}

    def resource(name: str) -> dict[str, Any]:
        properties = {"x": target(), "y": {"type": rng.choice(["string", "null"])}}
        anchored = {rng.choice(["$dynamicAnchor", "$anchor"]): "n", "required": ["x"]}
        anchor = {"$dynamicAnchor": "n"} if rng.random() < 0.6 else {"$defs": {"i": anchored}}
        return {"$id": name, "properties": properties, **anchor}

    outer = {"$id": "http://outer/", "$ref": rng.choice("abc"), "properties": {"z": target()}}
    anchor = {rng.choice(["$dynamicAnchor", "$anchor"]): "n", "type": rng.choice(["string", "object"])}
    return outer | {"$defs": {name: resource(name) for name in "abc"} | {"n": anchor}}


def members_of_members(rng: random.Random, depth: int = 0) -> Any:
    if depth > 2 or rng.random() < 0.3:
        return rng.choice([1, "s", None])
    return {name: members_of_members(rng, depth + 1) for name in rng.sample("xyz", rng.randint(0, 3))}


def test_the_outermost_resource_that_has_a_dynamic_anchor_is_meant() -> None:
    rng, verdicts = random.Random(2), list[bool]()
    for _ in range(60):
        document, values = resources(rng), [members_of_members(rng) for _ in range(12)]
        verdicts += (expected := valid(document, values))
        assert accepted(document, *map(json.dumps, values)) == expected, document
    assert 100 < sum(verdicts) < len(verdicts) - 100


VOCABULARY = Vocabulary.from_tokenizer(bundled.load()[1])
REAL: dict[str, dict[str, Any]] = {
    name: task
    for path in sorted((Path(__file__).parent / "schemas").glob("*.json"))
    for name, task in json.loads(path.read_text(encoding="utf-8")).items()
}
"""Schemas in the spirit of real ones, with valid instances and others."""


def with_own_formats(schema: Any) -> Any:
    """The reference validator, with the formats of this package: those of jsonschema need other packages."""
    checker = jsonschema.FormatChecker(formats=())

    def conforms(instance: Any, name: str) -> None:
        strings = format_strings(name)
        if strings is not None and isinstance(instance, str) and not strings.contains(instance):
            raise FormatError(f"{instance!r} is no {name}")

    checker.check = conforms  # type: ignore[method-assign]
    return jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(
        schema, format_checker=checker
    )


def number(text: str) -> Any:
    """A number as it is written: a float would be no multiple of 0.01."""
    _, _, exponent = text.lower().partition("e")
    value = float(text) if abs(int(exponent or 0)) > 50 else Decimal(text)
    return value if isinstance(value, float) or value != value.to_integral_value() else int(value)


def reversed_members(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: reversed_members(item) for name, item in reversed(value.items())}
    return [reversed_members(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", REAL)
def test_real_schemas(name: str) -> None:
    """Valid instances are accepted and nothing else, and random texts are valid."""
    schema, instances = REAL[name]["schema"], [*REAL[name]["valid"], *REAL[name]["invalid"]]
    expected = [True] * len(REAL[name]["valid"]) + [False] * len(REAL[name]["invalid"])
    assert len(REAL) >= 60 and set(expected) == {True, False}
    assert list(map(with_own_formats(schema).is_valid, instances)) == expected
    for options in SPELLINGS:
        assert accepted(schema, *[json.dumps(value, **options) for value in instances], any_order=False) == expected
        assert accepted(schema, *(json.dumps(reversed_members(value), **options) for value in instances)) == expected
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SchemaWarning)
        guide = JSONGuide.of(schema, VOCABULARY)
    checker = with_own_formats(json.loads(json.dumps(schema), parse_float=number))
    for seed in range(2):
        checker.validate(json.loads(random_text(guide, random.Random(seed), 30), parse_float=number))


PAGE = Path(__file__).parents[3] / "docs" / "output-types.md"


def test_the_page_holds_the_tables() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"{START}\n{summary()}\n{END}" in text, (
        "python -m tests.guides.json_schema.reading.keyword_tables docs/output-types.md"
    )


def test_the_tables_name_everything(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{START}\nobsolete\n{END}\nafter\n")
    write(page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "obsolete" not in text
    assert all(f"`{name}`" in text for name in (*KEYWORDS, *FORMATS)) and LEFT_OUT.keys() <= FORMATS.keys()
    assert "| `const` | from 6 |" in text and "| `dependencies` | 4 to 7 |" in text and "| `type` | all |" in text


def test_every_word_of_the_standard_is_in_the_tables() -> None:
    named = set(KEYWORDS) | {name.strip("`()") for names in ANNOTATIONS for name in names.replace(",", " ").split()}
    words: set[str] = set()  # of the schemas of schemas
    for uri in REGISTRY:
        if "draft-03" not in uri and isinstance(contents := REGISTRY.contents(uri), dict):
            words.update(contents.get("properties", {}))
    assert len(words) > 50 and words <= named
