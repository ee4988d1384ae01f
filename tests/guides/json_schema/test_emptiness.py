"""Objects under constraints on names, counts and kinds of members together: none is lost, and none is added."""

from __future__ import annotations

import json
import random
from itertools import combinations, product
from typing import Any

import jsonschema
import pytest

from outlines_phi.errors import EmptyLanguageError, UnsupportedError
from outlines_phi.guides.json_schema.machine import sizes
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.reading.schema import Schema

NAMES = ["1", "2", "3", "x"]
OBJECTS: list[Any] = [
    dict(zip(names, values, strict=True))
    for count in range(4)
    for names in combinations(NAMES, count)
    for values in product([0, ""], repeat=count)
]
VALUES: list[Any] = [*OBJECTS, None, 0, "", {"1": {}}, {"x": {"1": 0}}]
PATTERNS = ["^[12]$", "^[123]$", "[23]", "^x", "1|x"]


def without(*names: str) -> dict[str, Any]:
    return {"propertyNames": {"not": {"enum": list(names)}}}


def some_of(pattern: str, value: Any) -> dict[str, Any]:
    """Some member whose name matches is not as ``value`` says."""
    return {"not": {"patternProperties": {pattern: value}}}


CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "five members that may be one, or two": (
        {"not": {"anyOf": [without("1"), without("2"), without("2", "3"), without("2", "4"), without("1", "2")]}},
        {"1": 0, "2": 0},
    ),
    "a member that another one needs": (
        {
            "allOf": [some_of("^[ab]$", {"not": {"type": "integer"}}), some_of("^a$", {"not": {"type": "string"}})],
            "propertyNames": {"enum": ["a", "b"]},
        },
        {"a": "", "b": 0},
    ),
    "a name that is not short": (
        {"patternProperties": {"^.{0,2}$": {"type": "string"}}, **some_of("", {"not": {"type": "integer"}})},
        {"abc": 0},
    ),
    "as few members as may be": (
        {**some_of("^[ab]$", False), "allOf": [some_of("^[bc]$", False)], "maxProperties": 1},
        {"b": 0},
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("part", [True, False], ids=["in anyOf", "alone"])
def test_what_is_valid_is_not_lost(name: str, part: bool) -> None:
    schema, value = CASES[name]
    document = {"type": "object", **schema}
    machine = Machine(Schema.read({"anyOf": [{"type": "null"}, document]} if part else document), any_order=True)
    assert jsonschema.Draft202012Validator(document).is_valid(value)
    assert machine.accepts(json.dumps(value, separators=(",", ":")).encode())


def value_schema(rng: random.Random) -> Any:
    return rng.choice([True, False, {"type": "integer"}, {"type": "string"}, {"const": 0}, {"required": ["1"]}])


def keyword(rng: random.Random) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randint(1, 3))
    match rng.randrange(7):
        case 0:
            return without(*names)
        case 1:
            return {"propertyNames": rng.choice([{"enum": names}, {"pattern": rng.choice(PATTERNS)}])}
        case 2:
            return {"required": names[:2]}
        case 3:
            return {
                "properties": {name: value_schema(rng) for name in names},
                "additionalProperties": value_schema(rng),
            }
        case 4:
            return {"patternProperties": {rng.choice(PATTERNS): value_schema(rng)}}
        case 5:
            return {rng.choice(["minProperties", "maxProperties"]): rng.randint(0, 3)}
    return {"dependentRequired": {rng.choice(NAMES): names[:1]}}


def some_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    if depth == 3 or rng.random() < 0.3:
        return keyword(rng)
    join = rng.choice(["not", "anyOf", "allOf", "oneOf", "none"])
    if join == "not":
        return {"not": some_schema(rng, depth + 1)}
    if join == "none":
        return {"not": {"anyOf": [keyword(rng) for _ in range(rng.randint(2, 6))]}}
    return {join: [some_schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}


def test_random_schemas_are_those_of_the_reference_validator() -> None:
    """Over all values of an enumeration: acceptance, emptiness, and how long a shortest text is."""
    texts = [json.dumps(value, separators=(",", ":")).encode() for value in VALUES]
    empty = 0
    for seed in range(45):
        rng = random.Random(seed)
        document = {"allOf": [some_schema(rng)]} | ({"type": "object"} if rng.random() < 0.8 else {})
        validator = jsonschema.Draft202012Validator(document)
        valid = [validator.is_valid(value) for value in VALUES]
        try:
            machine = Machine(Schema.read(document), any_order=True)
        except EmptyLanguageError:
            assert not any(valid), document
            empty += 1
            continue
        assert [machine.accepts(text) for text in texts] == valid, document
        shortest = machine.shortest()
        assert validator.is_valid(json.loads(shortest)), document
        assert len(shortest) <= min(
            (len(text) for text, is_valid in zip(texts, valid, strict=True) if is_valid), default=999
        )
    assert 2 < empty < 25


def test_ways_beyond_counting_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "MOST_TRIED", 1)
    with pytest.raises(UnsupportedError, match="Ask for fewer members of some kind .* more than 1 ways"):
        Machine(Schema.read({"type": "object", **CASES["five members that may be one, or two"][0]}))
