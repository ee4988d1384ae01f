"""Rows beside single steps, for every token: on random schemas, and tokens that cut strings anywhere."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest

from outlines_phi.errors import EmptyLanguageError, SchemaWarning, UnsupportedError
from outlines_phi.guides.guide import DEAD, DONE
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.guides.json_schema.shapes import equal_to
from outlines_phi.guides.json_schema.strings import string_set
from outlines_phi.guides.json_schema.token_forest import TokenForest
from outlines_phi.vocabulary.vocabulary import Vocabulary

PIECES = [
    '"',
    '":',
    '","',
    '", "',
    '"a":',
    '{"',
    '{"a',
    '"}',
    '"]',
    '",',
    "ab",
    "abc",
    "b\\",
    "\\u",
    "\\u00",
    "e9",
    "E9",
    "\\ud83d",
]
PIECES += [
    "\\ude00",
    "😀",
    "é",
    "éa",
    '\\"',
    '\\\\"',
    "aaaa",
    "a:",
    '": "',
    '":"',
    "  ",
    "\n  ",
    "\n    ",
    '\n  "',
    "12",
    "-1",
    "1.",
    "e+",
    "true",
    "]}",
]
PIECES += ['a":1,"b":', '":1,"', '","a":"', "null,", "[[", "[]", "{}", '""', '"":', "alse"]
PARTS = [bytes([byte]) for byte in range(256)] + [piece.encode() for piece in PIECES if len(piece) > 1]
PARTS += ["é".encode()[1:] + b'"', "😀".encode()[:2], "😀".encode()[1:], b'"' + "😀".encode()[:3], "€".encode()[:2]]
WHOLE = Vocabulary((b"", *dict.fromkeys(PARTS)), (0,), np.ones(1 + len(dict.fromkeys(PARTS)), dtype=bool))
ONLY_ASCII = Vocabulary.from_tokens(
    ["<eos>", *map(chr, range(0x20, 0x7F)), "\n", *(p for p in PIECES if len(p) > 1)], 0
)

NAMES = ["a", "ab", "abc", "", "é", "b\\", 'q"', "😀", "a:"]


def random_schema(rng: random.Random, depth: int = 2) -> Any:
    kind = rng.randrange(9 if depth else 5)
    if kind == 0:
        return {"type": "string", "minLength": rng.randrange(3), "maxLength": rng.randrange(2, 6)}
    if kind == 1:
        return {"enum": rng.sample([*NAMES, 1, None, "abd", "aé"], 4)}
    if kind == 2:
        return rng.choice([{"type": "string"}, {"type": "integer"}, {"not": {"enum": ["a", "ab"]}}, True])
    if kind == 3:
        counted = {"minLength": rng.randrange(4), "maxLength": rng.randrange(2, 8)} if rng.random() < 0.5 else {}
        return {"type": "string", "pattern": rng.choice(["^a+é?$", "b", "^[^a]*$", "^(ab|😀)*$"]), **counted}
    if kind == 4:
        other = rng.choice([{"type": "string", "minLength": 3}, {"pattern": "^a.*b$", "maxLength": 6}])
        return {"anyOf": [{"const": rng.choice(NAMES)}, other]}
    if kind == 5:
        return {"type": "array", "items": random_schema(rng, depth - 1), "maxItems": 3}
    names = rng.sample(NAMES, rng.randrange(1, 5))
    found: dict[str, Any] = {"type": "object", "properties": {name: random_schema(rng, depth - 1) for name in names}}
    found["required"] = rng.sample(names, rng.randrange(len(names)))
    if kind == 6:
        found["additionalProperties"] = rng.choice([False, {"type": "integer"}])
    if kind == 7:
        found["patternProperties"] = {rng.choice(["^a", "é"]): random_schema(rng, depth - 1)}
    if kind == 8:
        found |= rng.choice([{"minProperties": 2}, {"maxProperties": 2}, {"propertyNames": {"maxLength": 3}}])
    return found


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize("vocabulary", [WHOLE, ONLY_ASCII], ids=["bytes", "ASCII"])
def test_rows_are_those_of_single_steps(
    vocabulary: Vocabulary, any_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(string_set, "MULTIPLIED", 0)
    rng, rows = random.Random(3), 0
    while rows < 400:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SchemaWarning)
                guide = JSONGuide.of(random_schema(rng), vocabulary, any_order=any_order)
        except (EmptyLanguageError, UnsupportedError):
            continue
        for _ in range(2):
            state = guide.start
            for _ in range(14):
                row, rows = guide.row(state), rows + 1
                targets = row.targets[row.partition.class_of]
                assert [guide.advance(state, token) for token in range(len(vocabulary))] == targets.tolist()
                distances = guide.distances_after(state)
                for number in {*row.partition.class_of[rng.sample(range(len(vocabulary)), 20)].tolist()}:
                    assert distances[number] == guide.min_tokens(int(row.targets[number]))
                live = [token for token in np.flatnonzero(targets != DEAD).tolist() if targets[token] != DONE]
                if not live:
                    break
                least = guide.min_tokens(state)
                assert least == 1 or least > min(guide.min_tokens(int(targets[token])) for token in live[:400])
                quoting = [token for token in live if set(vocabulary.tokens[token]) & set(b'"\\\xc3\xf0')]
                state = int(targets[rng.choice(quoting if quoting and rng.random() < 0.6 else live)])


def test_names_that_are_counted_are_told_apart() -> None:
    """No two states behind one name are the same, though they are read when they are asked for."""
    guide = JSONGuide.of({"type": "object", "minProperties": 2, "maxProperties": 2}, WHOLE)
    state = guide.start
    for byte in b'{"xy":1,"x':
        state = guide.advance(state, WHOLE.tokens.index(bytes([byte])))
    y, quote = WHOLE.tokens.index(b"y"), WHOLE.tokens.index(b'"')
    again = int(guide.row(state).targets[guide.row(state).partition.class_of[y]])
    assert guide.advance(again, quote) == DEAD != guide.advance(state, quote)


def test_guides_share_what_tokens_do_in_a_string() -> None:
    first = JSONGuide.of({"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}, WHOLE)
    other = JSONGuide.of({"type": "array", "items": {"type": "string"}}, WHOLE)

    def partition(guide: JSONGuide, text: bytes) -> Any:
        state = guide.start
        for byte in text:
            state = guide.advance(state, WHOLE.tokens.index(bytes([byte])))
        return guide.row(state).partition

    forest = TokenForest.of(WHOLE)
    assert forest is TokenForest.of(Vocabulary(WHOLE.tokens, (0,), np.ones(len(WHOLE), dtype=bool)))
    assert partition(first, b'{"k":"') is partition(first, b'{"k":"abc')
    again = JSONGuide.of({"type": "array", "items": {"type": "string", "minLength": 0}}, WHOLE)
    assert partition(other, b'["') is partition(again, b'["x')


def test_nodes_are_taken_together() -> None:
    forest = TokenForest(WHOLE)
    quotes = [node for node in range(1, len(forest.trie)) if forest.trie.byte[node] == ord('"')]
    joined = forest.joined(np.array(quotes))
    assert forest.joined(np.array(quotes)) == joined and forest.joined(np.array(quotes[:1])) == quotes[0]
    for byte, child in forest.children(joined).items():
        below = sorted(forest.children(node)[byte] for node in quotes if byte in forest.children(node))
        assert forest.nodes(child).tolist() == below
    tokens, counts = forest.ending(np.array([joined, quotes[0]]))
    ends = [token for token, text in enumerate(WHOLE.tokens) if token and text[-1:] == b'"']
    assert sorted(tokens[: counts[0]].tolist()) == ends and tokens[counts[0] :].tolist() == ends[:1]


def test_formulas_that_tags_tell_apart_are_not_taken_apart() -> None:
    machine = JSONGuide.of({}, WHOLE).machine
    objects = [equal_to([{"t": number, "u": 1}]) for number in range(50)]
    scalars = [equal_to([number, str(number)]) for number in range(50)]
    for formulas in (objects, scalars):
        cells = machine.cells((place, formula, place) for place, formula in enumerate(formulas))
        assert [formula for formula, _ in cells] == formulas
        assert [held for _, held in cells] == [[(place, place)] for place in range(50)]
    overlapping = machine.cells((n, equal_to([n, n + 1]), n) for n in range(4))
    assert sorted(tuple(place for place, _ in held) for _, held in overlapping) == [(0,), (0, 1), (1, 2), (2, 3), (3,)]
