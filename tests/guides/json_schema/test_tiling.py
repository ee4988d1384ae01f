"""Fewest tokens to the end: no state without a way to it, over random schemas, and beside brute force."""

from __future__ import annotations

import json
import random
import warnings
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi.errors import EmptyLanguageError, SchemaWarning, UnsupportedError
from outlines_phi.guides.guide import DEAD, DONE
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.guides.table import Table
from outlines_phi.vocabulary.trie import fewest_tokens

from .test_unique import SETS, SMALL
from .test_walks import ONLY_ASCII, WHOLE, random_schema

NESTED: dict[str, Any] = {
    "type": "object", "properties": {"a": {"type": "array", "items": {"enum": ["b", 1]}, "minItems": 2}, "c": {"type": "null"}},
    "required": ["a", "c"], "additionalProperties": False,
}  # fmt: skip


def combined(rng: random.Random) -> Any:
    """Return a schema in which alternatives overlap."""
    parts = [random_schema(rng, depth=1) for _ in range(2)]
    return rng.choice(
        [{"oneOf": parts}, {"allOf": parts}, {"anyOf": parts}, {"if": parts[0], "then": parts[1]}, random_schema(rng)]
    )


def guide_of(seed: int, any_order: bool) -> tuple[Any, JSONGuide] | None:
    document = combined(random.Random(seed))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SchemaWarning)
            return document, JSONGuide.of(document, WHOLE if seed % 2 else ONLY_ASCII, any_order=any_order)
    except (EmptyLanguageError, UnsupportedError):
        return None


def finished(guide: JSONGuide, state: int, text: bytes, rng: random.Random) -> bytes:
    """Return ``text`` with the tokens of a random walk of ``min_tokens`` tokens at most."""
    table = Table(guide)
    remaining = guide.min_tokens(state)
    while state != DONE:
        moves = table.moves(state, remaining)
        assert len(moves.tokens), f"a dead end after {text!r}"
        assert guide.min_tokens_of(moves.targets).max() < remaining
        place = rng.randrange(len(moves.tokens))
        assert guide.advance(state, int(moves.tokens[place])) == moves.targets[place]
        text += guide.vocabulary.tokens[moves.tokens[place]]
        state, remaining = int(moves.targets[place]), remaining - 1
    return text


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.booleans(), st.integers(0, 12))
def test_a_member_is_completed_within_min_tokens_from_wherever_tokens_lead(
    seed: int, any_order: bool, steps: int
) -> None:
    found = guide_of(seed, any_order)
    if found is None:
        return
    document, guide = found
    rng, state, text = random.Random(seed), guide.start, b""
    for _ in range(steps):
        row = guide.row(state)
        live = np.flatnonzero(row.targets[row.partition.class_of] > DONE)
        if not len(live):
            break
        token = int(rng.choice(live.tolist()))
        state, text = guide.advance(state, token), text + guide.vocabulary.tokens[token]
        assert guide.min_tokens(state) <= guide.machine.size(guide.machine.read(text)) + 1  # no more tokens than bytes
    jsonschema.Draft202012Validator(document).validate(json.loads(finished(guide, state, text, rng)))


@pytest.mark.parametrize(
    "document", [NESTED, SETS["values"], SETS["prefix"], {"type": "object", "minProperties": 2}], ids=str
)
def test_no_budget_ends_dead(document: Any) -> None:
    """Also where texts are told apart, and bytes stand for tokens."""
    guide = JSONGuide.of(document, SMALL)
    validator = jsonschema.Draft202012Validator(document)
    for seed in range(20):
        validator.validate(json.loads(finished(guide, guide.start, b"", random.Random(seed))))


def test_tokens_are_counted_where_bytes_were_too_many() -> None:
    """The completion is one text, and the count is that of the fewest tokens that write it: so brute force says."""
    guide = JSONGuide.of(NESTED, SMALL)
    shortest = guide.shortest_text(guide.start)
    assert json.loads(shortest) == {"a": [1, 1], "c": None}
    least = len(fewest_tokens(SMALL, shortest)) + 1
    assert guide.min_tokens(guide.start) == least < len(shortest)
    table = Table(guide)
    assert not len(table.moves(guide.start, least - 1).tokens) and len(table.moves(guide.start, least).tokens)


def test_a_budget_allows_what_the_targets_say() -> None:
    """Rows at each budget beside ``min_tokens`` of every target."""
    guide = JSONGuide.of(NESTED, SMALL)
    rng, state = random.Random(2), guide.start
    while state != DONE:
        row = guide.row(state)
        least = np.array([guide.min_tokens(int(target)) for target in row.targets])
        for remaining in range(1, guide.slack(state) + 2):
            assert guide.live_classes(state, remaining).tolist() == (least <= remaining - 1).tolist()
        live = row.targets[row.partition.class_of]
        state = int(rng.choice(live[live != DEAD].tolist()))


def test_the_rest_of_a_completion_is_the_completion_of_the_rest() -> None:
    guide = JSONGuide.of(NESTED | {"properties": NESTED["properties"] | {"d": {"pattern": "^x+$"}}}, SMALL)
    text = guide.shortest_text(guide.start)
    for place in range(len(text)):
        state = guide.start
        for byte in text[:place]:
            state = guide.advance(state, SMALL.tokens.index(bytes([byte])))
        assert guide.shortest_text(state) == text[place:]
