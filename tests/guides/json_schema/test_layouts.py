"""Blanks in JSON: each array and object chooses its layout once, beside a writer that tries all choices."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.guide import DEAD, DONE
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.reading.schema import Schema
from outlines_phi.vocabulary.vocabulary import Vocabulary

from .test_walks import WHOLE

ANY = Machine(Schema.read({}))


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
        assert [byte for byte in range(256) if ANY.advance(at, byte) is not None] == [ord(following)], text


def test_states_are_made_as_deep_as_texts_are_and_no_deeper() -> None:
    machine = Machine(Schema.read({}))
    spaced = b'{"a": {"b": ['
    made = []
    for depth in (1, 20, 40):
        assert machine.read(spaced * depth) is not None
        made.append(len(machine._kept))
    assert made[1] == made[2], "in one line, no state tells how deep it is"
    text = b"{" + b"".join(b"\n" + b" " * 4 * depth + b'"a": {' for depth in range(1, 80))
    assert machine.read(text) is not None, "nor is there a deepest line"


SCHEMAS: dict[str, Any] = {
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

WIDE = Vocabulary.from_tokens(
    [
        "<eos>",
        *map(chr, range(0x20, 0x7F)),
        "\n",
        ",\n",
        '{\n  "',
        '{\n    "',
        '": ',
        '": {\n',
        '", "',
        " " * 8,
        " " * 16,
    ]
    + [
        "\n  ",
        "\n    ",
        "\n      ",
        "\n        ",
        "  ",
        "]\n}",
        "\n}",
        "\n  }",
        "}\n",
        "[\n",
        "1,\n    ",
        ", ",
        '[{"',
        ': "',
    ],
    0,
)


@pytest.mark.parametrize("blanks", [None, "", " ", r"[ \n]*", "\n ?"])
@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("vocabulary", [WHOLE, WIDE], ids=["bytes", "wide"])
def test_rows_are_those_of_single_steps_and_sizes_are_exact(
    name: str, vocabulary: Vocabulary, blanks: str | None
) -> None:
    guide = JSONGuide.of(SCHEMAS[name], vocabulary, blanks=blanks)
    machine = guide.machine
    for seed in range(6):
        rng, state, at = random.Random(seed), guide.start, machine.start
        for _ in range(14):
            row = guide.row(state)
            targets = row.targets[row.partition.class_of]
            assert [guide.advance(state, token) for token in range(len(vocabulary))] == targets.tolist()
            ways = [way for byte in range(256) if (way := machine.advance(at, byte)) is not None]
            assert machine.size(at) == (0 if machine.may_end(at) else min(map(machine.size, ways)) + 1)
            live = [token for token in np.flatnonzero(targets != DEAD).tolist() if targets[token] != DONE]
            if not live:
                break
            broken = [
                token for token in live if vocabulary.tokens[token].strip(b' "{},:[]') != vocabulary.tokens[token]
            ]
            token = rng.choice(broken if broken and rng.random() < 0.7 else live)
            state = int(targets[token])
            for byte in vocabulary.tokens[token]:
                found = machine.advance(at, byte)
                assert found is not None
                at = found


def test_a_blank_that_must_stand_is_counted() -> None:
    document = {
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"type": "array", "items": {"const": 1}, "minItems": 2}},
    }
    for blanks, text in [(" ", '{ "a" : [ 1 , 1 ] }'), ("\n", '{\n"a"\n:\n[\n1\n,\n1\n]\n}'), ("[ ]?", '{"a":[1,1]}')]:
        machine = Machine(Schema.read(document), blanks=blanks)
        assert machine.shortest() == text.encode() and machine.size(machine.start) == len(text)
        assert machine.accepts(b'{"a":[1,1]}') == (blanks == "[ ]?")


def test_a_vocabulary_without_a_line_end_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"has none for b'\\n'"):
        JSONGuide.of({}, Vocabulary.from_tokens(["<eos>", *map(chr, range(0x20, 0x7F))], 0))
