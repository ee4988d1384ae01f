"""Items that must differ, beside the reference validator."""

from __future__ import annotations

import json
import random
from itertools import product
from typing import Any

import jsonschema
import numpy as np
import pytest

from outlines_phi.errors import EmptyLanguageError, UnsupportedError
from outlines_phi.guides.guide import DEAD, DONE
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.reading.schema import Schema
from outlines_phi.guides.table import Table
from outlines_phi.vocabulary.vocabulary import Vocabulary

SMALL = Vocabulary.from_tokens(
    [
        "<eos>", *map(chr, range(0x20, 0x7F)), "\n", '{"', '"a":', '"}', "true", "null", '","', "1]", "[1", '["', '"a","b"', "1,1",
        '[["', '"],["', '"a"],["a"', '"]],[["',
    ],
    0,
)  # fmt: skip

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
}  # fmt: skip

ITEMS = [
    "1", "{}", "2", '{"c":1}', "3", "[[]]", '"a"', r'"\u0061"', "null", "[]", "1.0", '""', "true", "false", "[1]", "[1,2]",
    '{"a":1}', '["a",1]', '[1,"a"]', '{"a":true}', '{"a":1,"b":1}', '{"a": 1.0}', '{"b":1,"a":1}',
]  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_texts_agree_with_the_validator(name: str) -> None:
    validator = jsonschema.Draft202012Validator(SETS[name])
    machine, verdicts = Machine(Schema.read(SETS[name]), any_order=True), set()
    for count in range(4):
        for items in product(ITEMS[:: 1 if count < 3 else 2], repeat=count):
            text = f"[{','.join(items)}]"
            value = json.loads(text)
            expected = validator.is_valid(value)
            # What a schema lists is written as it is.
            odd = name in ("contains", "in parts") and r"\u0061" in text
            assert machine.accepts(text.encode()) == expected or (odd and expected), text
            verdicts.add(expected)
    assert verdicts == {True, False}


@pytest.mark.parametrize("name", SETS)
def test_masks_lead_to_valid_texts_within_any_budget(name: str) -> None:
    validator = jsonschema.Draft202012Validator(SETS[name])
    guide = JSONGuide.of(SETS[name], SMALL)
    table, machine = Table(guide), guide.machine
    for seed, slack in enumerate((0, 1, 2, 3, 5, 8, 13, 30)):
        rng, state, text = random.Random(seed), guide.start, b""
        remaining = guide.min_tokens(state) + slack
        while True:
            moves = table.moves(state, remaining)
            assert len(moves.tokens), "a dead end"
            if seed == 4:
                row = guide.row(state)
                targets = row.targets[row.partition.class_of]
                read = [machine.read(text + token) if token else None for token in SMALL.tokens]
                sizes = [0 if at is None else machine.size(at) + 1 for at in read]
                assert [0 if target in (DEAD, DONE) else guide.min_tokens(int(target)) for target in targets] == sizes
                assert guide.min_tokens_of(targets[1:]).tolist() == [guide.min_tokens(int(t)) for t in targets[1:]]
                assert guide.min_tokens(state) == 1 or min(filter(None, sizes)) < guide.min_tokens(state)
            token = int(moves.tokens[rng.randrange(len(moves.tokens))])
            target = guide.advance(state, token)
            assert target == moves.target(token)
            if target == DONE:
                break
            state, remaining, text = target, remaining - 1, text + SMALL.tokens[token]
        validator.validate(json.loads(text))


@pytest.mark.parametrize(
    "document",
    [
        {"items": {"type": "boolean"}, "minItems": 3},
        {"items": {"enum": [1, 1.0, "a"]}, "minItems": 3},
        {"items": {"enum": [{}, []]}, "minItems": 3},
        {"items": {"type": "integer", "minimum": 1, "maximum": 9}, "minItems": 10},
        {"items": {"type": "string", "pattern": "^[ab]$"}, "minItems": 3},
        {"prefixItems": [{"const": 1}, {"const": 1}], "minItems": 2},
        {"prefixItems": [{"enum": [1, 2]}, {"enum": [1, 2]}, {"enum": [1, 2]}], "minItems": 3},
        {"contains": {"const": 1}, "minContains": 2},
        {"items": {"$ref": "#"}, "minItems": 2},
    ],
    ids=str,
)
def test_more_items_than_values_are_empty(document: dict[str, Any]) -> None:
    with pytest.raises(EmptyLanguageError):
        Machine(Schema.read(UNIQUE | document))


def test_many_items_are_asked_for() -> None:
    machine = Machine(Schema.read(UNIQUE | {"items": {"type": "integer", "minimum": 0}, "minItems": 100}))
    assert machine.size(machine.start) == len(json.dumps([*range(100)], separators=(",", ":")))
    assert machine.accepts(json.dumps([*range(100)]).encode())
    assert not machine.accepts(json.dumps([*range(99), 0]).encode())


def test_many_objects_differ() -> None:
    people = [{"name": f"n{i % 7}", "age": i, "tags": [i % 3]} for i in range(40)]
    machine = Machine(Schema.read(UNIQUE))
    assert machine.accepts(json.dumps(people).encode())
    assert not machine.accepts(json.dumps([*people, people[8]]).encode())


@pytest.mark.parametrize("document", [{"not": UNIQUE}, {"oneOf": [{"maxItems": 2}, UNIQUE]}], ids=str)
def test_equal_items_cannot_be_asked_for(document: Any) -> None:
    with pytest.raises(UnsupportedError, match="uniqueItems"):
        Machine(Schema.read(document))


def test_how_many_arrays_of_their_own_kind_differ_is_not_counted() -> None:
    with pytest.raises(UnsupportedError, match="at most one item beside #/uniqueItems"):
        Machine(Schema.read(UNIQUE | {"items": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "minItems": 2}))


def test_states_of_texts_that_are_kept_are_told_apart() -> None:
    """Each prefix of a string is a state of its own, and the same one each time."""
    guide = JSONGuide.of(UNIQUE | {"items": {"type": "string"}}, SMALL)
    state = guide.advance(guide.start, SMALL.tokens.index(b'["'))
    row = guide.row(state)
    live = row.targets[row.targets > DONE]
    assert len(np.unique(live)) == len(live) > 90
    assert guide.advance(state, SMALL.tokens.index(b"a")) == guide.advance(state, SMALL.tokens.index(b"a"))
