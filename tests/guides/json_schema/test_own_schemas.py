"""Schemas in the spirit of real ones, with instances: each is taken, and accepts what is valid and nothing else."""

from __future__ import annotations

import json
import random
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from jsonschema.exceptions import FormatError

import outlines_phi
from outlines_phi.errors import SchemaWarning
from outlines_phi.guides.guide import DONE
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.guides.json_schema.strings.formats import format_strings
from outlines_phi.guides.table import Table
from outlines_phi.lm import bundled

VOCABULARY = outlines_phi.from_transformers(*bundled.load()).lm.vocabulary
SCHEMAS: dict[str, dict[str, Any]] = {
    name: task
    for path in sorted((Path(__file__).parent / "schemas").glob("*.json"))
    for name, task in json.loads(path.read_text(encoding="utf-8")).items()
}
SPELLINGS: tuple[dict[str, Any], ...] = ({"separators": (",", ":"), "ensure_ascii": False}, {}, {"indent": 2})
TEXTS, SLACK = 2, 30


def validator(schema: Any) -> Any:
    """The reference validator, with the formats of this package: those of jsonschema need other packages."""
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind.check_schema(schema)
    checker = jsonschema.FormatChecker(formats=())

    def conforms(name: str, value: Any) -> None:
        strings = format_strings(name)
        if strings is not None and isinstance(value, str) and not strings.contains(value):
            raise FormatError(f"{value!r} is no {name}")

    checker.check = lambda instance, format: conforms(format, instance)  # type: ignore[method-assign]
    return kind(schema, format_checker=checker)


def number(text: str) -> Any:
    """A number as it is written: a float would be no multiple of 0.01."""
    _, _, exponent = text.lower().partition("e")
    if abs(int(exponent or 0)) > 50:
        return float(text)
    value = Decimal(text)
    return int(value) if value == value.to_integral_value() else value


def guide_of(schema: Any, *, any_order: bool = False) -> JSONGuide:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SchemaWarning)
        return JSONGuide.of(schema, VOCABULARY, any_order=any_order)


def reversed_members(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: reversed_members(item) for name, item in reversed(value.items())}
    return [reversed_members(item) for item in value] if isinstance(value, list) else value


def test_there_are_enough_of_them() -> None:
    assert len(SCHEMAS) >= 60
    assert all(task["valid"] and task["invalid"] for task in SCHEMAS.values())


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_is_valid_is_accepted_and_nothing_else(name: str) -> None:
    task = SCHEMAS[name]
    checker = validator(task["schema"])
    ordered, free = guide_of(task["schema"]).machine, guide_of(task["schema"], any_order=True).machine
    for value in task["valid"]:
        checker.validate(value)
        for spelling in SPELLINGS:
            assert ordered.accepts(json.dumps(value, **spelling).encode()), value
            assert free.accepts(json.dumps(reversed_members(value), **spelling).encode()), value
    for value in task["invalid"]:
        assert not checker.is_valid(value), value
        for spelling in SPELLINGS:
            text = json.dumps(value, **spelling).encode()
            assert not ordered.accepts(text) and not free.accepts(text), value


@pytest.mark.parametrize("name", SCHEMAS)
def test_random_texts_are_valid(name: str) -> None:
    schema = SCHEMAS[name]["schema"]
    checker = validator(json.loads(json.dumps(schema), parse_float=number))
    guide, rng = guide_of(schema), random.Random(0)
    table = Table(guide)
    for _ in range(TEXTS):
        state, tokens = guide.start, list[int]()
        remaining = guide.min_tokens(state) + SLACK
        while state != DONE:
            moves = table.moves(state, remaining)
            assert len(moves.tokens), "a dead end"
            choice = rng.randrange(len(moves.tokens))
            tokens.append(int(moves.tokens[choice]))
            state, remaining = int(moves.targets[choice]), remaining - 1
        checker.validate(json.loads(VOCABULARY.decode(tokens), parse_float=number))
