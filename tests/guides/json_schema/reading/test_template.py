"""Regular expressions over bytes and JSON values: rows, draws of their language, and what is refused."""

from __future__ import annotations

import itertools
import random
import re

import numpy as np
import pytest

from outlines_phi.errors import EmptyLanguageError, UnsupportedError
from outlines_phi.guides.guide import DEAD, DONE
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.reading.schema import Schema
from outlines_phi.guides.json_schema.reading.template import Template
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.vocabulary.vocabulary import Vocabulary

PIECES = ["ab", "[]", '["', "][", "[1]", "1,", "][1]<", "b[", "<<", "a<", "é", "[1]["]
TOKENS = ["<eos>", *(bytes([byte]) for byte in range(256)), *PIECES]
VOCABULARY = Vocabulary.from_tokens(TOKENS, 0)


def text(pattern: str) -> Template:
    return Template.of_bytes(compile_regex(pattern))


def value(document: object, label: str = "") -> Template:
    return Template.of_value(Schema.read(document, label=label))


ONE = value({"enum": [[1], []]})
OTHER = value({"enum": [["a"], [1]]}, "1")
NUMBER = value({"enum": [1, 12]})

CASES: dict[str, tuple[Template, str]] = {
    "a value": (ONE, r"\[1\]|\[\]"),
    "a text before it": (Template.sequence([text("[^\\[]*"), ONE]), r"[^\[]*(\[1\]|\[\])"),
    "between texts": (Template.sequence([text("<"), NUMBER, text("<|b")]), "<(1|12)(<|b)"),
    "alternatives": (Template.one_of([text("a|b"), ONE, OTHER]), r'a|b|\[1\]|\[\]|\["a"\]'),
    "one of two, then what tells which": (
        Template.one_of([Template.sequence([ONE, text("a")]), Template.sequence([OTHER, text("b")])]),
        r'(\[1\]|\[\])a|(\["a"\]|\[1\])b',
    ),
    "repeated": (Template.sequence([ONE, text(", ")]).repeated(0, None), r"((\[1\]|\[\]), )*"),
    "once or more": (ONE.repeated(1, None), r"(\[1\]|\[\])+"),
    "two or three": (ONE.repeated(2, 3), r"(\[1\]|\[\]){2,3}"),
    "at most two": (Template.sequence([ONE.repeated(0, 2), text("a?")]), r"(\[1\]|\[\]){0,2}a?"),
    "none": (Template.sequence([text("ab"), ONE.repeated(0, 0)]), "ab"),
    "an empty piece between": (
        Template.sequence([ONE, text("a*"), text("b*"), OTHER]),
        r'(\[1\]|\[\])a*b*(\["a"\]|\[1\])',
    ),
    "values of no end": (Template.one_of([value({"not": {}}), text("a")]), "a"),
}


@pytest.mark.parametrize("name", CASES)
def test_texts_are_those_of_the_regular_expression(name: str) -> None:
    template, pattern = CASES[name]
    machine = Machine(template, blanks="")
    pieces = ["a", "b", "<", "[1]", "[]", '["a"]', ", ", "1", "12", "["]
    matched = 0
    for size in range(5):
        for parts in itertools.product(pieces, repeat=size):
            one = "".join(parts)
            expected = re.fullmatch(pattern, one) is not None
            matched += expected
            assert machine.accepts(one.encode()) == expected, one
    assert matched


@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_single_steps(name: str) -> None:
    guide, rng = JSONGuide.of_template(CASES[name][0], VOCABULARY), random.Random(2)
    for _ in range(4):
        state = guide.start
        for _ in range(10):
            row = guide.row(state)
            targets = row.targets[row.partition.class_of]
            assert [guide.advance(state, token) for token in range(len(VOCABULARY))] == targets.tolist()
            live = [token for token in np.flatnonzero(targets != DEAD).tolist() if targets[token] != DONE]
            least = guide.min_tokens(state)
            assert least == 1 or least > min(guide.min_tokens(int(targets[token])) for token in live)
            if not live:
                break
            long = [token for token in live if token > 256]
            state = int(targets[rng.choice(long or live)])


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (Template.one_of([ONE, text(r"\[x\]")]), r"b'\[' is what a JSON value begins with"),
        (Template.sequence([text("[^a]*"), ONE]), "begins with"),
        (Template.sequence([value({"type": "integer"}), text("[0-9]")]), "a number may go on with"),
        (Template.sequence([value({"type": "number"}), value({"type": "number"}, "1")]), "a number may go on with"),
    ],
)
def test_a_byte_that_may_be_read_in_two_ways_is_refused(template: Template, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        Machine(template)


def test_parts_refer_to_their_own_documents() -> None:
    documents = [{"$ref": "#/$defs/x", "$defs": {"x": {"const": [text]}}} for text in ("a", "b")]
    parts = [value(document, str(place)) for place, document in enumerate(documents)]
    machine = Machine(Template.sequence(parts))
    assert machine.accepts(b'["a"]["b"]') and not machine.accepts(b'["a"]["a"]')


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"not": {}}, "#/not"),
        ({"type": "array", "items": {"type": "null"}, "minItems": 3, "maxItems": 1}, "#/minItems"),
        ({"type": "object", "properties": {"a/b": False}, "required": ["a/b"]}, "#/properties/a~1b"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "#/allOf/1/type"),
        (
            {"$ref": "#/$defs/x", "$defs": {"x": {"type": "string", "minLength": 3, "maxLength": 1}}},
            "#/$defs/x/minLength",
        ),
        ({"enum": []}, "#/enum"),
        (False, "#"),
    ],
)
def test_an_unsatisfiable_schema_is_named_by_what_makes_it_so(document: object, pointer: str) -> None:
    with pytest.raises(EmptyLanguageError) as caught:
        JSONGuide.of(document, VOCABULARY)
    assert str(caught.value).startswith(f"Relax {pointer} of the JSON schema.")


@pytest.mark.parametrize(
    ("blanks", "members", "strangers"),
    [
        (
            None,
            ['{"a":[1,2]}', '{"a": [1, 2]}', '{"a":[1, 2]}', '{\n  "a": [\n    1,\n    2\n  ]\n}'],
            ['{"a" :[1,2]}', '{ "a": [1, 2] }', '{\n "a": [1, 2]\n}'],
        ),
        ("", ['{"a":[1,2]}'], ['{"a": [1,2]}', '{"a":[1, 2]}', '{ "a":[1,2]}']),
        (r"[ \t\n]?", ['{ "a" : [ 1 , 2 ] }', '{"a":[1,2]}', '{\t"a"\n:[1,2]}'], ['{"a":  [1,2]}']),
    ],
)
def test_blanks_stand_where_they_may(blanks: str | None, members: list[str], strangers: list[str]) -> None:
    machine = Machine(value({"properties": {"a": {"type": "array"}}, "type": "object"}), blanks=blanks)
    assert [one for one in members if not machine.accepts(one.encode())] == []
    assert [one for one in strangers if machine.accepts(one.encode())] == []
