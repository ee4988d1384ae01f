"""The guide of a schema: masks beside the machine, random texts beside the reference validator, and the laws of draws."""

from __future__ import annotations

import json
import pickle
import random
import warnings
from functools import cached_property
from typing import Any

import jsonschema
import numpy as np
import pytest

import outlines_phi
from outlines_phi.errors import EmptyLanguageError, SchemaWarning, UnsupportedError
from outlines_phi.guides.guide import DEAD, DONE
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.machine.sizes import NEVER
from outlines_phi.guides.json_schema.reading.keywords import KEYWORDS
from outlines_phi.guides.json_schema.reading.schema import Schema
from outlines_phi.guides.table import Table
from outlines_phi.lm import bundled
from outlines_phi.lm.table_model import TableModel
from outlines_phi.vocabulary.vocabulary import Vocabulary
from tests.languages import Language

from .reading.test_schema import SCHEMAS

MODEL = outlines_phi.from_transformers(*bundled.load())
SMALL = Vocabulary.from_tokens(
    ["<eos>", *map(chr, range(0x20, 0x7F)), "\n", '{"', '"a":', "true", "null", '","', "1]", "[1", "[["], 0
)


def random_text(guide: JSONGuide, seed: int, slack: int = 40) -> str:
    """Return the text of a random walk over the mask, each token as likely; every mask is compared with single steps."""
    table, rng = Table(guide), random.Random(seed)
    state, tokens = guide.start, list[int]()
    remaining = guide.min_tokens(state) + slack
    while state != DONE:
        moves = table.moves(state, remaining)
        assert len(moves.tokens), "a dead end"
        choice = rng.randrange(len(moves.tokens))
        tokens.append(int(moves.tokens[choice]))
        state, remaining = guide.advance(state, tokens[-1]), remaining - 1
        assert state == moves.targets[choice]
    return guide.vocabulary.decode(tokens).decode()


@pytest.mark.parametrize("name", [name for name in SCHEMAS if name != "siblings in draft 7"])
def test_random_texts_are_valid_and_never_end_dead(name: str) -> None:
    document = SCHEMAS[name]
    validator = jsonschema.validators.validator_for(document, default=jsonschema.Draft202012Validator)
    checker = validator(document, format_checker=validator.FORMAT_CHECKER)
    guide = JSONGuide.of(document, MODEL.lm.vocabulary)
    for seed in range(4):
        checker.validate(json.loads(random_text(guide, seed)))


@pytest.mark.parametrize("name", ["bounds", "closed", "any", "recursion", "names", "pattern"])
def test_masks_are_those_of_single_steps(name: str) -> None:
    guide, rng = JSONGuide.of(SCHEMAS[name], SMALL), random.Random(1)
    state = guide.start
    for _ in range(12):
        row = guide.row(state)
        targets = row.targets[row.partition.class_of]
        assert [guide.advance(state, token) for token in range(len(SMALL))] == targets.tolist()
        live = np.flatnonzero((targets != DEAD) & (targets != DONE))
        if not len(live):
            break
        distance = guide.min_tokens(state)
        assert distance == 1 or min(guide.min_tokens(int(target)) for target in targets[live]) < distance
        state = int(targets[rng.choice(live.tolist())])


class SchemaLanguage(Language):
    """A JSON schema, as ``pattern``, under a random law."""

    @cached_property
    def table(self) -> Table:
        return Table(JSONGuide.of(json.loads(self.pattern), SMALL, blanks=""))

    @cached_property
    def lm(self) -> TableModel:
        return TableModel.random(SMALL, seed=self.seed, scale=self.scale)


LANGUAGES = [
    SchemaLanguage("bounds", '{"type": "integer", "minimum": -12, "exclusiveMaximum": 21, "multipleOf": 3}', 5, seed=1),
    SchemaLanguage(
        "keys",
        '{"type": "object", "properties": {"a": {"enum": [1, true]}}, "additionalProperties": false}',
        10,
        seed=2,
    ),
    SchemaLanguage(
        "one of", '{"oneOf": [{"enum": [1, 2, null]}, {"type": "integer", "minimum": 2, "maximum": 4}]}', 5, seed=3
    ),
    SchemaLanguage(
        "all of",
        '{"type": "array", "allOf": [{"items": {"enum": [1, 2]}}, {"contains": {"const": 2}}], "maxItems": 2}',
        7,
        seed=4,
    ),
    SchemaLanguage(
        "set", '{"type": "array", "uniqueItems": true, "items": {"enum": [1, 2, "a"]}, "minItems": 1}', 9, seed=6
    ),
    SchemaLanguage("recursion", '{"type": "array", "items": {"$ref": "#"}, "maxItems": 2}', 9, seed=5),
]


def test_a_guide_is_pickled_without_its_states() -> None:
    guide = JSONGuide.of(SCHEMAS["recursion"], SMALL, any_order=True)
    copy = pickle.loads(pickle.dumps(guide))
    assert random_text(copy, 3) == random_text(guide, 3) and copy.machine.any_order


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        (
            {"properties": {"a": {"items": {"not": {"uniqueItems": True}}}}},
            "#/properties/a/items/not/uniqueItems",
        ),
        ({"contains": {"uniqueItems": True}}, "#/contains/uniqueItems"),
        ({"prefixItems": [{"type": "null"}], "contains": {"uniqueItems": True}}, "#/contains/uniqueItems"),
    ],
)
def test_what_cannot_be_honoured_deep_inside_is_refused_at_once(document: Any, pointer: str) -> None:
    with pytest.raises(UnsupportedError, match=f"at {pointer} of"):
        JSONGuide.of(document, SMALL)


def test_a_kind_of_items_that_none_can_be_of_is_not_refused() -> None:
    machine = Machine(Schema.read({"items": {"type": "integer"}, "contains": {"uniqueItems": True}, "type": "array"}))
    assert machine.accepts(b"[1]") and not machine.accepts(b"[]")


def test_strings_longer_than_any_text_are_not_begun() -> None:
    machine = Machine(Schema.read({"minLength": 10**400}))
    assert machine.advance(machine.start, ord('"')) is None and machine.accepts(b"1")
    with pytest.raises(EmptyLanguageError, match="#/minLength"):
        Machine(Schema.read({"type": "string", "minLength": 10**400}))


def test_tagged_unions_of_many_objects() -> None:
    """One branch tells that all others are false, by its tag; so their alternatives do not multiply."""
    branches = [
        {"properties": {"k": {"const": f"v{i}"}, f"x{i}": {"type": "integer"}}, "required": ["k", f"x{i}"]}
        for i in range(10)
    ]
    guide = JSONGuide.of({"type": "object", "oneOf": branches}, SMALL)
    assert guide.machine.accepts(b'{"k":"v3","x3":1}') and not guide.machine.accepts(b'{"k":"v3","x4":1}')


def test_a_guide_is_an_output_type() -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 18, "maximum": 99}},
        "required": ["age"],
    }
    generator = outlines_phi.Generator(
        MODEL, JSONGuide.of(schema | {"additionalProperties": False}, MODEL.lm.vocabulary)
    )
    for text in generator.sample("Person: Nora is a teacher. JSON: ", 4, seed=0, phi="local").texts:
        assert 18 <= json.loads(text)["age"] <= 99


def test_what_is_left_out_is_warned_of_at_the_line_of_the_call() -> None:
    with pytest.warns(SchemaWarning, match="#/properties/a/format") as caught:
        JSONGuide.of({"properties": {"a": {"format": "shoe-size"}}}, SMALL)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        JSONGuide.of({"title": "x", "description": "y", "default": 1}, SMALL)


def test_a_vocabulary_without_single_bytes_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="a token for each byte"):
        JSONGuide.of({}, Vocabulary.from_tokens(["<eos>", "true"], 0))


def test_states_are_described() -> None:
    guide = JSONGuide.of({"type": "array"}, SMALL)
    assert guide.describe(guide.advance(guide.start, SMALL.tokens.index(b"["))) == "array"
    assert guide.describe(DONE) == "done" and guide.describe(DEAD) == "dead"


ODD: list[Any] = [
    None, True, False, 0, -1, 2, 0.5, 1e308, float("nan"), float("inf"), 10**400, "", "#", "#/items", "#/$defs/a", "a", "(a)\\1",
    "^a", "\ud800", "date", "string", "object", "array", [], {}, [{}], ["a", "a"], [1, 1],
]  # fmt: skip
"""Values that somebody gave a keyword by mistake."""

LIMITS = [
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
]


def odd_document(rng: random.Random, depth: int) -> Any:
    """Return a document in which any keyword holds anything."""
    kind = rng.random()
    if not depth or kind < 0.25:
        return rng.choice(ODD)
    if kind < 0.35:
        return [odd_document(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice([*KEYWORDS, "$id", "$defs"]): odd_document(rng, depth - 1) for _ in range(rng.randrange(4))}


def odd_schema(rng: random.Random, depth: int) -> Any:
    """Return a document in which nearly every keyword holds what it may."""
    if not depth:
        return rng.choice([True, False, {"type": "string"}, {"const": 1}, {"type": "integer"}, {"uniqueItems": True}])
    found: dict[str, Any] = {}
    for keyword in rng.sample(list(KEYWORDS), rng.randrange(1, 4)):
        if keyword == "type":
            found[keyword] = rng.choice(["string", "object", "array", "integer", ["number", "null"]])
        elif keyword == "const":
            found[keyword] = rng.choice([None, 1, "a", [1], {"a": 1}])
        elif keyword == "enum":
            found[keyword] = rng.sample([None, True, 1, 2.5, "a", [1], {"a": 1}], 3)
        elif keyword == "uniqueItems":
            found[keyword] = True
        elif keyword in ("required", "dependentRequired"):
            found[keyword] = ["a", "b"] if keyword == "required" else {"a": ["b"]}
        elif keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
            found[keyword] = [odd_schema(rng, depth - 1) for _ in range(rng.randrange(1, 3))]
        elif keyword in ("properties", "patternProperties", "dependentSchemas", "dependencies"):
            found[keyword] = {name: odd_schema(rng, depth - 1) for name in ("a", "b")}
        elif keyword in LIMITS or keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            found[keyword] = rng.randrange(3)
        elif keyword in ("multipleOf", "pattern", "format"):
            found[keyword] = {"multipleOf": 0.5, "pattern": "^a|b$", "format": "date"}[keyword]
        else:
            found[keyword] = "#" if keyword.endswith(("ef", "Ref")) else odd_schema(rng, depth - 1)
    if rng.random() < 0.05:
        found[rng.choice(list(KEYWORDS))] = rng.choice(ODD)
    return found


@pytest.mark.parametrize("make", [odd_document, odd_schema])
def test_odd_documents_are_refused_or_read(make: Any) -> None:
    """Nothing else than an error of the package for any JSON document, and no way that ends dead."""
    read = 0
    for seed in range(600):
        rng = random.Random(seed)
        document = make(rng, rng.randrange(1, 4))
        try:
            machine = Machine(Schema.read(document))
        except (UnsupportedError, EmptyLanguageError):
            continue
        read += 1
        at = machine.start
        for _ in range(12):
            ways = [way for byte in range(0x20, 0x80) if (way := machine.advance(at, byte)) is not None]
            assert all(machine.size(way) < NEVER for way in ways), document
            size = machine.size(at)
            assert not size or min(map(machine.size, ways)) < size, document
            if not ways:
                break
            at = rng.choice(ways)
    assert 40 < read < 600
