"""Schemas and texts that went wrong once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outlines_phi.errors import EmptyLanguageError, UnsupportedError
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.reading.schema import Schema

from .test_json_guide import SMALL, random_text

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def accepted(document: Any, *texts: str) -> list[bool]:
    """Return the mask of the texts that spell values that the document is true of."""
    machine = Machine(Schema.read(document), any_order=True)
    return [machine.accepts(text.encode()) for text in texts]


def test_definitions_may_lead_far() -> None:
    far = 700
    definitions: dict[str, Any] = {
        f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}, "minItems": 1} for i in range(far)
    }
    guide = JSONGuide.of({"$ref": "#/$defs/d0", "$defs": definitions | {f"d{far}": {"type": "null"}}}, SMALL)
    assert guide.min_tokens(guide.start) == 2 * far + 5
    guide = JSONGuide.of({"type": "array", "contains": {"const": 1}, "minContains": 2_000}, SMALL)
    assert guide.min_tokens(guide.start) == 2 * 2_000 + 2
    nested = "[" * 300 + "]" * 300
    assert accepted({"const": json.loads(nested)}, nested, nested[1:-1]) == [True, False]


def test_alternatives_may_be_deep() -> None:
    """Each ``oneOf`` says what is inside of it twice, once denied."""
    document: dict[str, Any] = {"type": "integer"}
    for _ in range(40):
        document = {"oneOf": [document, {"type": "string", "maxLength": 3}]}
    document = {"$defs": {"deep": document}, "$ref": "#/$defs/deep"}
    assert accepted(document, "1", '"abc"', '"abcd"', "1.5", "[]") == [True, False, False, False, False]


def test_counted_items_are_told_by_few_shapes() -> None:
    """An item that is counted need not be passed over as well, so 400 of them are read as fast as one each."""
    machine = Machine(Schema.read({"type": "array", "contains": {"type": "integer"}, "minContains": 400}))
    text = json.dumps([*range(399), "a", None]).encode()
    at = machine.read(text[:-1])
    assert at is not None and machine.size(at) == len(", 0]")
    assert machine.accepts(text[:-1] + b", 0]") and not machine.accepts(text)


def test_too_many_counts_are_refused() -> None:
    parts = [{"contains": {"const": one}} for one in range(12)]
    assert accepted({"type": "array", "allOf": parts[:5]}, "[0,4,3,2,1]", "[0,1,2,3]") == [True, False]
    with pytest.raises(UnsupportedError, match="minContains"):
        Machine(Schema.read({"type": "array", "allOf": parts}))


def test_a_list_of_numbers_may_be_long() -> None:
    values = [*range(0, 30_000, 3), 0.5, -12.25]
    texts = ("0", "-0", "0.0", "29997", "29997.0", "29998", "29997.5", "0.5", "0.50", "-12.25", "12.25", "1e0", "30")
    assert accepted({"enum": values}, *texts) == accepted({"enum": [0, 0.5, -12.25, 30, 29997]}, *texts)


def test_numbers_that_must_differ_may_have_any_digits() -> None:
    unique = {"type": "array", "uniqueItems": True}
    for digits in (1_500, 2_500, 5_000):
        assert accepted(unique, f"[{'1' * digits},2]", f"[{'1' * digits},{'1' * digits}]") == [True, False]


def test_names_that_many_patterns_tell_apart_are_refused() -> None:
    loose = {"type": "object", "patternProperties": {letter * 2: {} for letter in "abcdefghijklmn"}}
    with pytest.raises(UnsupportedError, match="patternProperties"):
        accepted(loose, '{"x":1}')
    anchored = {"type": "object", "patternProperties": {f"^{letter}": {"type": "null"} for letter in "abcdefghijklmn"}}
    assert accepted(anchored, '{"x":1,"a":null}', '{"a":1}') == [True, False]


def test_texts_may_be_deep() -> None:
    guide = JSONGuide.of({"type": "array"}, SMALL)
    one, two = (SMALL.tokens.index(token) for token in (b"[", b"[["))
    even, odd = guide.start, guide.advance(guide.start, one)
    for _ in range(3_000):
        even, odd = guide.advance(even, two), guide.advance(odd, two)
    assert guide.advance(even, one) == odd


def test_counts_and_bounds_may_be_huge() -> None:
    assert accepted({"maximum": 10**400, "type": "number"}, "1", f"1{'0' * 400}", f"1{'0' * 401}") == [
        True,
        True,
        False,
    ]
    guide = JSONGuide.of({"type": "string", "minLength": 1, "maxLength": 10**30}, SMALL)
    guide.row(guide.advance(guide.start, SMALL.tokens.index(b'"')))
    with pytest.raises(UnsupportedError, match="members of an object"):
        JSONGuide.of({"type": "object", "minProperties": 10**9}, SMALL)


def test_a_name_that_no_text_spells_is_never_there() -> None:
    assert accepted({"required": ["\ud800"]}, "1", "{}") == [True, False]
    with pytest.raises(EmptyLanguageError):
        JSONGuide.of({"type": "object", "required": ["\ud800"]}, SMALL)


def test_keywords_of_later_drafts_say_nothing() -> None:
    document = {"$schema": DRAFT_7, "prefixItems": [True], "items": {"type": "integer"}}
    assert accepted(document, '["x"]', "[1]") == [False, True]
    assert [left.pointer for left in Schema.read(document).left_out] == ["#/prefixItems"]


def test_references_into_another_document_stay_there() -> None:
    document = {
        "$schema": DRAFT_7,
        "properties": {"a": {"$ref": DRAFT_7}, "b": {"$ref": "#/definitions/nonNegativeInteger"}, "c": {"$ref": "#"}},
        "definitions": {"nonNegativeInteger": {"type": "string"}},
    }
    assert accepted(document, '{"b": "x"}', '{"a": {"minLength": 1}}') == [True] * 2
    assert (
        accepted(document, '{"b": 1}', '{"a": {"minLength": "x"}}', '{"c": {"b": 1}}', '{"a": {"not": 3}}')
        == [False] * 4
    )


def test_an_integer_of_draft_4_is_one_in_its_text() -> None:
    texts = ("1", "1.0", "1e0", "0.5", '"x"')
    for keywords, expected in [
        ({"type": "integer"}, [True, False, False, False, False]),
        ({"type": "number"}, [True, True, True, True, False]),
        ({"anyOf": [{"type": "integer"}, {"enum": [0.5]}]}, [True, False, False, True, False]),
        ({"type": "number", "not": {"type": "integer"}}, [False, True, True, True, False]),
        ({"anyOf": [{"type": "integer"}, {"not": {"multipleOf": 1}}]}, [True, False, False, True, False]),
        ({"enum": [1, "x"]}, [True, True, False, False, True]),
    ]:
        assert accepted({"$schema": DRAFT_4, **keywords}, *texts) == expected


@pytest.mark.parametrize(
    "document", [{"const": "é"}, {"type": "object", "required": ["é"]}, {"pattern": "^é$", "type": "string"}]
)
def test_characters_without_single_bytes_are_escaped(document: Any) -> None:
    guide = JSONGuide.of(document, SMALL)
    assert "é" in json.dumps(json.loads(random_text(guide, 0, slack=0)), ensure_ascii=False)


def test_blanks_that_no_token_spells_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="a token for each byte"):
        JSONGuide.of({"type": "array"}, SMALL, blanks=r"\t")


def test_one_member_may_be_all_that_is_asked_for() -> None:
    others = [{"additionalProperties": {"type": "integer"}}, {"additionalProperties": {"minimum": 5}}]
    document = {"type": "object", "not": {"anyOf": others}, "maxProperties": 1}
    assert accepted(document, '{"":0.5}', '{"":1}', '{"":5.5}') == [True, False, False]
    random_text(JSONGuide.of(document, SMALL), 0, slack=0)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"pattern": "("}, r"Write a regular expression of ECMA-262 at #/pattern .* is never closed"),
        ({"unevaluatedProperties": False, "allOf": {"a": {}}}, r"Write a list at #/allOf"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_to_write(document: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        JSONGuide.of(document, SMALL)


def test_a_list_of_objects_may_be_long() -> None:
    listed = [{"n": n} for n in range(1_000)]
    for document in ({"enum": listed}, {"type": "object", "enum": listed}):
        assert accepted(document, '{"n":7}', '{"n": 999}', '{"n":1000}', "{}") == [True, True, False, False]


@pytest.mark.parametrize("value", [0, -7, 100, 10**15, 10**16, 10**30, 2.5, 1e-7])
def test_the_shortest_text_of_a_number_is_that_of_its_spellings(value: float) -> None:
    kinds = Machine(Schema.read({"enum": [value, 123]})).kinds
    formula = Schema.read({"enum": [value, 123]}).formula
    spellings = kinds.spellings(formula)
    assert kinds.shortest_number(formula) == spellings.distances[spellings.start]
