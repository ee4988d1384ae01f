"""Regular expressions over bytes and JSON values: their texts, and what is refused."""

import itertools
import re

import pytest

from outlines_phi import UnsupportedError
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.reading.schema import Schema
from outlines_phi.guides.json_schema.reading.template import Template
from outlines_phi.regex.patterns import compile_regex


def text(pattern: str) -> Template:
    return Template.of_bytes(compile_regex(pattern))


def value(document: object, label: str = "") -> Template:
    return Template.of_value(Schema.read(document, label=label))


ONE = value({"enum": [[1], []]})
OTHER = value({"enum": [["a"], [1]]}, "1")
NUMBER = value({"enum": [1, 12]})

TEMPLATES: dict[str, tuple[Template, str]] = {
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


@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_are_those_of_the_regular_expression(name: str) -> None:
    template, pattern = TEMPLATES[name]
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
