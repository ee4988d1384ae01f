"""The compiled walk beside that from node to node, to the bit and to the state; and what there is without a compiler."""

from __future__ import annotations

import random
import shutil
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest

from outlines_phi.errors import EmptyLanguageError, SchemaWarning, UnsupportedError
from outlines_phi.guides.guide import DEAD, packed
from outlines_phi.guides.json_schema import compiled, token_forest
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.guides.json_schema.strings import string_set
from outlines_phi.guides.json_schema.strings.quoting import composed, free
from outlines_phi.guides.json_schema.strings.string_set import StringSet
from outlines_phi.guides.json_schema.token_forest import Split, TokenForest
from outlines_phi.guides.json_schema.walker import Walker
from outlines_phi.plugin.ban import BannedPhrases
from outlines_phi.vocabulary import kernel
from outlines_phi.vocabulary.vocabulary import Vocabulary
from tests.golden.masks import FORMATS, MASKS, spelled, types_of

from .test_walks import ONLY_ASCII, WHOLE, random_schema

ESCAPED = Vocabulary(
    (*WHOLE.tokens, b"\\u0061b", b'\\u0061"', b'x\\u00e9":'), (0,), np.ones(len(WHOLE) + 3, dtype=bool)
)
"""With tokens that go on behind a character spelled by its code."""


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def test_it_is_built_where_there_is_a_compiler() -> None:
    assert kernel.library() is not None or compiler() is None, "run python hatch_build.py, or install the package anew"


def same(guide: JSONGuide, state: int, seen: Counter[str]) -> bool:
    """Return whether masks, targets, and what closes the value are those of the walk from node to node, for every token."""
    walked = guide._walker.mask(guide._at(state)) is not None
    seen["walked" if walked else "rows"] += 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Walker, "_told", lambda self, ask: None)
        expected = guide._make_row(state)
    of_token, of_token_now = expected.row.partition.class_of, guide.row(state).partition.class_of
    now = guide._recent(state)
    pairs = (now.row.targets, expected.row.targets), (now.closes, expected.closes), (now.alike, expected.alike)
    return np.array_equal(guide.mask(state), packed(expected.row.targets[of_token] != DEAD)) and all(
        np.array_equal(one[of_token_now], other[of_token]) for one, other in pairs
    )


def test_golden_masks_are_the_same() -> None:
    seen = Counter[str]()
    for mask in MASKS:
        output_type, ban, _ = FORMATS[mask.format]
        output_type = masks_type(output_type)
        phrases = BannedPhrases(ban) if isinstance(ban, list) else ban
        guide = types_of(mask.vocabulary).without(output_type, phrases).guide
        state = guide.start_after(b"")
        for token in spelled(guide.vocabulary.tokens, mask.prefix):
            state = guide.advance(state, token)
        if isinstance(guide, JSONGuide) and state > 1:
            assert same(guide, state, seen), mask.name
    assert seen["walked"] > 50 or compiler() is None


def masks_type(output_type: Any) -> Any:
    from outlines.types import JsonSchema

    return JsonSchema(output_type) if isinstance(output_type, dict) else output_type


@pytest.mark.parametrize("blanks", [None, "[ \\n]*", ""])
@pytest.mark.parametrize("vocabulary", [WHOLE, ONLY_ASCII, ESCAPED], ids=["bytes", "ASCII", "escaped"])
def test_masks_are_those_of_rows(vocabulary: Vocabulary, blanks: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(string_set, "MULTIPLIED", 0)
    rng, seen = random.Random(5), Counter[str]()
    while seen.total() < 700:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SchemaWarning)
                guide = JSONGuide.of(random_schema(rng), vocabulary, blanks=blanks, any_order=rng.random() < 0.5)
        except (EmptyLanguageError, UnsupportedError):
            continue
        for _ in range(3):
            state = guide.start
            for _ in range(20):
                assert same(guide, state, seen), guide.describe(state)
                row = guide.row(state)
                live = np.flatnonzero((row.targets > 1)[row.partition.class_of]).tolist()
                if not live:
                    break
                quoting = [token for token in live if set(vocabulary.tokens[token]) & set(b'"\\\xc3\xf0')]
                token = rng.choice(quoting if quoting and rng.random() < 0.6 else live)
                state = guide.advance(state, token)
                assert state != DEAD
    assert seen["walked"] > 0.8 * seen.total() or compiler() is None


@pytest.mark.parametrize(
    ("table", "module", "size"), [("MOST_STATES", compiled, 40), ("MOST_WORDS", token_forest, 200)]
)
def test_full_tables_are_begun_anew(table: str, module: Any, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = Vocabulary((*WHOLE.tokens, table.encode()), (0,), np.ones(len(WHOLE) + 1, dtype=bool))
    monkeypatch.setattr(module, table, size)
    names = {name: {"type": "string", "maxLength": 1 + place} for place, name in enumerate("abcdefgh")}
    guide = JSONGuide.of({"type": "object", "properties": names, "required": list(names)}, vocabulary)
    state, tables = guide.start, set[int]()
    for byte in b'{"a":"","b":"x","c":"xyz","d":"xyz1","e":"12345","f":"","g":"x","h":""}':
        assert same(guide, state, Counter())
        tables.add(id(guide._walker._compiled))
        state = guide.advance(state, vocabulary.tokens.index(bytes([byte])))
    assert len(tables) > 1 or compiler() is None


def test_rows_serve_where_nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = JSONGuide.of({"type": "object", "properties": {"a": {"enum": ["x", "xy"]}}}, WHOLE)
    vocabulary = Vocabulary((*WHOLE.tokens, b"plain"), (0,), np.ones(len(WHOLE) + 1, dtype=bool))
    monkeypatch.setattr(token_forest, "library", lambda: None)
    guide = JSONGuide.of({"type": "object", "properties": {"a": {"enum": ["x", "xy"]}}}, vocabulary)
    assert TokenForest.of(vocabulary).tables is None
    state = other = guide.start
    for byte in b'{"a": "x':
        masks = (mask.view(np.uint8) for mask in (guide.mask(state), expected.mask(other)))
        assert np.array_equal(*(np.unpackbits(mask, bitorder="little")[: len(WHOLE)] for mask in masks))
        token = WHOLE.tokens.index(bytes([byte]))
        state, other = guide.advance(state, token), expected.advance(other, token)


@pytest.mark.skipif(compiler() is None, reason="there is no compiler")
@pytest.mark.parametrize("counted", [False, True])
def test_splits_are_those_of_arrays(counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled walk of automata in a string, beside that of arrays level by level."""
    vocabulary, forest = TokenForest.of(WHOLE), TokenForest.of(WHOLE).tables
    monkeypatch.setattr(string_set, "MULTIPLIED", 0)
    every, pattern = free(ascii=False), composed(StringSet.matching("^a+é?b*$"), ascii=False)
    cut = composed(StringSet.matching("a") & StringSet.of_lengths(3, 40), ascii=False)  # lengths beside the states
    assert cut.most and forest
    for begun in (
        ((every, every.start),),
        ((pattern, pattern.start),),
        ((cut, cut.start),),
        ((every, every.start), (pattern, pattern.start), (cut, cut.start)),
    ):
        for node in 0, *range(1, 200, 7):
            split = Split(vocabulary, begun, node, counted=counted)
            for walked, arrays in zip(split._ways, split._spread(vocabulary.nodes(node)), strict=True):
                assert groups(walked) == groups(arrays)
    monkeypatch.setattr(forest, "room", 3)
    assert forest.spread(begun[:1], vocabulary.nodes(0), counted=counted) is None


def groups(ways: token_forest.Ways) -> dict[tuple[int, ...], list[int]]:
    cuts = ways.first.tolist()
    return {
        (*ways.states[g].tolist(), int(ways.characters[g])): sorted(ways.nodes[cuts[g] : cuts[g + 1]].tolist())
        for g in range(len(ways.characters))
    }
