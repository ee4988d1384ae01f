"""Regular expressions over bytes and JSON values; layouts that arrays and objects choose once, beside a writer that tries all."""

import itertools
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from outlines_phi import UnsupportedError
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.reading.schema import Schema, Template
from outlines_phi.regex.patterns import compile_regex
from tests.guides.json_schema.schemas import machine


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
    machine = Machine(Template.sequence([value(document, str(place)) for place, document in enumerate(documents)]))
    assert machine.accepts(b'["a"]["b"]') and not machine.accepts(b'["a"]["a"]')


ANY = machine({})


def written(value: Any, step: int, width: int = 0) -> Iterator[str]:
    """Yield all texts of a value whose lines are indented by ``step`` more than those around them."""
    if not isinstance(value, list | dict) or not value:
        yield json.dumps(value)
        return
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    for blank in " ", "":
        for inner in members(value, step, width, blank):
            yield opening + f",{blank}".join(inner) + closing
    line = "\n" + (width + step) * " "
    for inner in members(value, step, width + step, " "):
        yield opening + line + f",{line}".join(inner) + "\n" + width * " " + closing


def members(value: Any, step: int, width: int, blank: str) -> Iterator[list[str]]:
    """Yield the texts of all members or items, by all choices of those within."""
    pairs = list(value.items()) if isinstance(value, dict) else [(None, item) for item in value]
    ways: list[list[str]] = [[]]
    for name, inner in pairs:
        before = "" if name is None else f"{json.dumps(name)}:{blank}"
        ways = [[*way, before + text] for way in ways for text in written(inner, step, width)]
    yield from ways


VALUES: list[Any] = [
    1,
    [],
    {},
    [1],
    [1, 2],
    {"a": 1},
    {"a": [1, 2], "b": 3},
    [[1, 2], [3, 4]],
    [{"a": 1}, {"b": [5]}],
    {"a": {"b": {"c": [1]}}, "d": {}},
    [[[1]], [[], [2, 3]]],
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_the_texts_of_a_value_are_those_of_all_choices(value: Any) -> None:
    """And no other text of it that a blank or a line end, put in or taken out, makes of one of them."""
    texts = {text for step in (2, 4) for text in written(value, step)}
    assert all(ANY.accepts(text.encode()) for text in texts)
    rng = random.Random(0)
    for text in sorted(texts) if len(texts) < 60 else rng.sample(sorted(texts), 60):
        changed = {text[:i] + put + text[i:] for i in range(len(text) + 1) for put in (" ", "\n", "  ", "\n  ", "\t")}
        changed |= {
            text[:i] + text[i + n :] for i in range(len(text)) for n in (1, 2, 3) if not text[i : i + n].strip()
        }
        for other in changed:
            if not set(re.findall('"([^"]*)"', other)) - set("abcd"):  # blanks in names make other values
                assert ANY.accepts(other.encode()) == (other in texts), other


@pytest.mark.parametrize(
    "options", [{}, {"separators": (",", ":")}, {"indent": 2}, {"indent": 4}], ids=["spaced", "compact", "2", "4"]
)
def test_what_json_writes_is_read(options: Any) -> None:
    for value in [*VALUES, {"a": VALUES, "b": {"c": VALUES}}]:
        assert ANY.accepts(json.dumps(value, **options).encode())


def test_the_step_is_that_of_the_first_lines_of_the_document() -> None:
    first = '[{"a": [\n  1\n], "b": 2}, '
    assert ANY.accepts((first + "[\n  3\n]]").encode()) and not ANY.accepts((first + "[\n    3\n]]").encode())
    inside = '{\n    "a": [1, 2],\n    "b": [{\n        "c": 1\n    }]\n}'
    assert ANY.accepts(inside.encode())


def test_a_chosen_layout_leaves_one_way() -> None:
    """No byte but one may follow where blanks stand, once an array or object has chosen."""
    for text, following in [
        ('{"a": 1,', " "), ('{"a":1,', '"'), ('{\n  "a":', " "), ('{\n  "a": 1,', "\n"), ('{\n  "a": 1,\n  ', '"'),
        ('{\n    "a": [\n', " "), ('{\n    "a": [\n       ', " "), ('{"a": 1, "b":', " "),
    ]:  # fmt: skip
        at = ANY.read(text.encode())
        assert at is not None
        assert [byte for byte in range(256) if ANY.step(at, byte) is not None] == [ord(following)], text
