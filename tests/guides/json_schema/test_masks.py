"""Rows, masks and distances of schemas beside single steps and the validator; and what there is without a compiler."""

import json
import os
import random
import shutil
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi import BannedPhrases, EmptyLanguageError, SchemaWarning, UnsupportedError, Vocabulary
from outlines_phi.guides import Guide, JSONGuide, Table
from outlines_phi.vocabulary import kernel
from tests.guides.json_schema.schemas import (
    ESCAPED,
    LAID_OUT,
    ONLY_ASCII,
    SCHEMAS,
    SETS,
    SMALL,
    UNIQUE,
    WHOLE,
    combined,
    random_schema,
    validator,
)
from tests.guides.json_schema.test_numbers import TEMPLATES
from tests.guides.walking import assert_row, random_text, read, walk
from tests.inner import DEAD, DONE, banned, fewest_tokens, spreads, string_set, token_forest, walker

QUOTING = b'"\\\xc3\xf0'
LISTED: dict[str, Any] = {**SCHEMAS, **SETS, **LAID_OUT}
COMPILED = bool(shutil.which("cc") or shutil.which("gcc"))


def extended(vocabulary: Vocabulary, token: bytes) -> Vocabulary:
    """Return a vocabulary with one more token, of which nothing is kept yet."""
    return Vocabulary.from_tokens(["<eos>", *vocabulary.tokens[1:], token], 0)


def random_guides(
    rng: random.Random, vocabulary: Vocabulary, make: Any = random_schema, **options: Any
) -> Iterator[tuple[Any, JSONGuide]]:
    """Yield random schemas that are taken, without end."""
    while True:
        document = make(rng)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SchemaWarning)
                yield document, JSONGuide.of(document, vocabulary, **options)
        except (EmptyLanguageError, UnsupportedError):
            continue


def test_the_compiled_walk_is_built_where_there_is_a_compiler() -> None:
    assert kernel.library() is not None or not COMPILED, "run python hatch_build.py, or install the package anew"


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize(
    ("vocabulary", "blanks"), [(WHOLE, None), (ONLY_ASCII, None), (ESCAPED, ""), (WHOLE, r"[ \n]*")]
)
def test_random_schemas(
    vocabulary: Vocabulary, blanks: str | None, any_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows beside single steps, also where automata are walked side by side and not multiplied."""
    monkeypatch.setattr(string_set, "MULTIPLIED", 0)
    rng, rows = random.Random(3), 0
    for _, guide in random_guides(rng, vocabulary, blanks=blanks, any_order=any_order):
        rows += sum(1 for _ in range(2) for _ in walk(guide, rng, 14, QUOTING))
        if rows > 300:
            break


@pytest.mark.parametrize("name", LISTED)
def test_listed_schemas(name: str) -> None:
    """With each kind of blanks; also that sizes in bytes are exact where no text is kept."""
    for place, blanks in enumerate([None, "", " ", r"[ \n]*", "\n ?"]):
        vocabulary = (WHOLE, SMALL)[(place + len(name)) % 2]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SchemaWarning)
            guide = JSONGuide.of(LISTED[name], vocabulary, blanks=blanks)
        single = [token for token, text in enumerate(vocabulary.tokens) if len(text) < 2]
        for seed in range(2):
            for state, targets in walk(guide, random.Random(seed), 12, QUOTING + b" \n"):
                size, after = guide.far_from_end(np.array([state])), guide.far_from_end(targets[single])
                exact = name in LAID_OUT and vocabulary is WHOLE
                assert size == after.min() + 1 or (size > after.min() and not exact), guide.describe(state)


AB: dict[str, Any] = {"type": "object", "patternProperties": {"^[ab]$": {}}}


@pytest.mark.parametrize(
    ("schema", "written", "dead"),
    [
        (AB | {"additionalProperties": False, "minProperties": 2}, '{"a": 1, "', "a"),
        (
            {"type": "object", "patternProperties": {"^(a|ab)$": {}, "^b$": {}}, "minProperties": 4},
            '{"a": 1, "ab": 1, "',
            "",
        ),
        (
            {"patternProperties": {"^[ab]$": {"const": 1}}, "properties": {"a": {"const": 2}}, "type": "object"},
            '{"',
            "",
        ),
        (
            {"patternProperties": {"^[ab]$": {"const": 1}}, "properties": {"b": {"const": 2}}, "minProperties": 3},
            '{"',
            "",
        ),
        (AB | {"propertyNames": {"maxLength": 1}, "minProperties": 4}, '{"', ""),
        (UNIQUE | {"items": {"type": "string", "pattern": "^(ab?|b+)$"}, "minItems": 3}, '["a", "ab", "', "a"),
        (UNIQUE | {"items": {"type": "string", "maxLength": 1}, "minItems": 2}, '["a", "', "a"),
        (
            UNIQUE
            | {
                "items": UNIQUE
                | {
                    "items": {"type": "string", "maxLength": 1},
                    "minItems": 2,
                    "prefixItems": [{"type": "string", "pattern": "^(a|ab?a?|b+)$", "not": {"pattern": "^[^a]?$"}}],
                },
                "minItems": 2,
            },
            "[",
            "ab",
        ),
        (UNIQUE | {"items": {"type": "string", "maxLength": 2}, "contains": {"pattern": "^[^a]?$"}}, '["', ""),
        (UNIQUE | {"items": {"pattern": "^[ab]{2}$"}, "contains": {"pattern": "^a?b?$"}, "minItems": 2}, '["', ""),
    ],
)
def test_what_only_taken_texts_begin_with_is_dead(schema: Any, written: str, dead: str) -> None:
    """An automaton goes on there, but there is no other text; also where other sets go on beside it."""
    guide = JSONGuide.of(schema, WHOLE)
    targets = [assert_row(guide, read(guide, written[:end])) for end in range(len(written) + 1)][-1]
    assert dead in ("", "".join(text for text in "ab" if targets[1 + ord(text)] == DEAD))


TEMPLATE_TOKENS = Vocabulary.from_tokens(
    [*WHOLE.tokens[:257], "ab", "[]", '["', "][", "[1]", "1,", "][1]<", "b[", "<<", "a<", "é", "[1]["], 0
)


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates(name: str) -> None:
    guide = JSONGuide.of_template(TEMPLATES[name][0], TEMPLATE_TOKENS)
    assert sum(1 for seed in range(4) for _ in walk(guide, random.Random(seed), 10, b"[]<")) > 4


@pytest.mark.in_turn
@pytest.mark.parametrize("name", [name for name in LISTED if name != "siblings in draft 7"])
def test_texts_within_any_budget_are_valid(name: str) -> None:
    check = validator(LISTED[name]).validate
    guide = JSONGuide.of(LISTED[name], (WHOLE, SMALL)[len(name) % 2])
    for seed, slack in enumerate((0, 0, 1, 2, 3, 5, 8, 13, 30)):
        check(json.loads(random_text(guide, random.Random(seed), slack)))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.booleans(), st.integers(0, 12))
def test_a_member_is_completed_within_min_tokens_from_wherever_tokens_lead(
    seed: int, any_order: bool, steps: int
) -> None:
    rng, text = random.Random(seed), b""
    document, guide = next(random_guides(rng, WHOLE if seed % 2 else ONLY_ASCII, combined, any_order=any_order))
    state = guide.start
    for _ in range(steps):
        row = guide.row(state)
        live = np.flatnonzero(row.targets[row.partition.class_of] > DONE)
        if not len(live):
            break
        token = int(rng.choice(live.tolist()))
        state, text = guide.advance(state, token), text + guide.vocabulary.tokens[token]
        assert guide.min_tokens(state) <= guide.far_from_end(np.array([state]))  # no more tokens than bytes
    validator(document).validate(json.loads(text + random_text(guide, rng, 0, state)))


NESTED: dict[str, Any] = {
    "type": "object", "properties": {"a": {"type": "array", "items": {"enum": ["b", 1]}, "minItems": 2}, "c": {"type": "null"}},
    "required": ["a", "c"], "additionalProperties": False,
}  # fmt: skip


def test_tokens_are_counted_where_bytes_were_too_many() -> None:
    """The completion is one text, its rest that of the rest, and the count that of the fewest tokens that write it."""
    guide = JSONGuide.of(NESTED, SMALL)
    shortest = guide.shortest_text(guide.start)
    assert json.loads(shortest) == {"a": [1, 1], "c": None}
    least = len(fewest_tokens(SMALL, shortest)) + 1
    assert guide.min_tokens(guide.start) == least < len(shortest)
    table = Table(guide)
    assert not len(table.moves(guide.start, least - 1).tokens) and len(table.moves(guide.start, least).tokens)
    guide = JSONGuide.of(NESTED | {"properties": NESTED["properties"] | {"d": {"pattern": "^x+$"}}}, SMALL)
    text = guide.shortest_text(guide.start)
    assert all(guide.shortest_text(read(guide, text[:place])) == text[place:] for place in range(len(text)))


def test_names_and_items_that_are_counted_are_told_apart() -> None:
    """Each prefix of one is a state of its own, and the same one each time, though it is read when it is asked for."""
    counted = JSONGuide.of({"type": "object", "minProperties": 2, "maxProperties": 2}, WHOLE)
    state, quote = read(counted, b'{"xy":1,"x'), WHOLE.tokens.index(b'"')
    assert counted.advance(read(counted, b"y", state), quote) == DEAD != counted.advance(state, quote)
    guide = JSONGuide.of(SETS["strings"], SMALL)
    state = read(guide, b'["')
    row = guide.row(state)
    live = row.targets[row.targets > DONE]
    assert len(np.unique(live)) == len(live) > 90 and read(guide, b"a", state) == read(guide, b"a", state)


def test_items_that_must_differ_hold_no_phrase() -> None:
    """The numbers of such states are wider than 32 bits."""
    document = {"type": "array", "uniqueItems": True, "items": {"type": "string", "maxLength": 3}, "minItems": 2}
    guide = banned(JSONGuide.of(document, SMALL, blanks=""), BannedPhrases(["bb"]))
    for seed in range(3):
        text = random_text(guide, random.Random(seed), 6)
        assert validator(document).is_valid(json.loads(text)) and b"bb" not in text


def test_guides_share_what_tokens_do_in_a_string() -> None:
    first = JSONGuide.of({"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}, WHOLE)
    assert first.row(read(first, b'{"k":"')).partition is first.row(read(first, b'{"k":"abc')).partition
    other, again = (
        JSONGuide.of({"type": "array", "items": {"type": "string", **more}}, WHOLE) for more in ({}, {"minLength": 0})
    )
    assert other.row(read(other, b'["')).partition is again.row(read(again, b'["x')).partition


def test_states_are_made_as_deep_as_texts_are_and_no_deeper() -> None:
    guide = JSONGuide.of({}, SMALL)
    spaced, lines = b'{"a": {"b": [', b"".join(b"\n" + b" " * 4 * depth + b'"a": {' for depth in range(1, 80))
    assert DEAD not in (read(guide, spaced * 40), read(guide, b"{" + lines)), "there is no deepest line"
    one, two = (SMALL.tokens.index(token) for token in (b"[", b"[["))
    even, odd = guide.start, guide.advance(guide.start, one)
    for _ in range(3_000):
        even, odd = guide.advance(even, two), guide.advance(odd, two)
    assert guide.advance(even, one) == odd
    assert guide.mask(even).tolist() == Guide.mask(guide, even).tolist() != guide.mask(guide.start).tolist()


def test_a_mask_is_made_without_rows_by_the_compiled_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, rows, states, row = random.Random(5), list[int](), 0, JSONGuide.row
    monkeypatch.setattr(JSONGuide, "row", lambda guide, state: rows.append(state) or row(guide, state))
    for _, guide in random_guides(rng, WHOLE):
        state = guide.start
        for _ in range(20):
            mask, states = guide.mask(state), states + 1
            live = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[1:]) + 1
            if not len(live):
                break
            state = guide.advance(state, int(rng.choice(live.tolist())))
        if states > 200:
            break
    assert len(rows) < 0.2 * states or not COMPILED


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_fills_tables_of_its_own() -> None:
    """Else an edge that it has filled leads to a state that has its number elsewhere."""
    schema = {"type": "object", "properties": {name: {"enum": [name + "1", name + "22", [name]]} for name in "abcd"}}
    texts = [b'{"a":"a1"}', b'{"b":"b22"}', b'{"c":["c"]}', b'{"a":["a"],"c":"c1"}', b'{"d":"d1"}']
    guide, other = (JSONGuide.of(schema, WHOLE) for _ in range(2))

    def masks(guide: JSONGuide, step: int) -> list[Any]:
        return [guide.mask(read(guide, text[:end])).tolist() for text in texts[::step] for end in range(len(text))]

    guide.mask(read(guide, texts[0][:3]))
    if not (child := os.fork()):
        os._exit(not masks(guide, 1))
    assert os.waitpid(child, 0)[1] == 0
    assert masks(guide, -1) == masks(other, -1)


STRINGS: dict[str, dict[str, Any]] = {
    "free": {}, "least": {"minLength": 3}, "most": {"maxLength": 5}, "between": {"minLength": 2, "maxLength": 31},
    "far": {"maxLength": 90}, "apart": {"anyOf": [{"maxLength": 2}, {"minLength": 6}]}, "line": {"pattern": "^.*z$"},
    "few": {"pattern": "^[a-f]{2,9}(é|ab)?$"}, "words": {"pattern": "^[a-zA-Z0-9]+(-[a-z]+)*$"}, "host": {"format": "hostname"},
    "date": {"format": "date", "maxLength": 12}, "listed": {"enum": ["ab", "abc", "a\u2028", "é"]},
    "others": {"not": {"enum": ["ab", "zzz", "é"]}},
}  # fmt: skip
"""Strings that are lengths, automata, lists, and several of these."""

NAMES = {
    "type": "object", "properties": {"abc": {"type": "boolean"}}, "additionalProperties": {"type": "array"},
    "patternProperties": {"^a": {"type": "integer"}, "z$": {"type": "string"}, "^[0-9]{2,4}$": {"type": "null"}},
}  # fmt: skip
"""Names that several automata tell apart side by side."""

ITEMS = {"contains": {"minLength": 4}, "maxContains": 2}
"""Items of two lengths that are told apart side by side."""

WORDS = [
    "a" * 25,
    "z" * 40,
    "ab" * 30,
    "-a",
    "é" * 13,
    "ab ",
    "a\u2028",
    "\u2028z",
    "€z",
    '"}',
    'z": ',
    'ab"',
    '", "a',
    "12",
    "0-",
]
BROKEN = [
    b'\\"a',
    b"\\nz",
    b"\\u00e9",
    b"\\ud83d\\ude00z",
    b"\xc3",
    b"\xa9z",
    b"\xf0\x9f",
    b"\xe2\x80",
    b"\xa8a",
    b"\xff",
    b"\xc3\xa9a",
]
ODD = [*WHOLE.tokens[:257], *(word.encode() for word in WORDS), *BROKEN, b"ab ", b"-a", b""]
"""Tokens that are long, alike, half of a character, escaped, and over quotes."""


@pytest.mark.parametrize("name", [*STRINGS, "names", "names one by one", "items"])
def test_masks_in_strings_are_those_of_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks mark kinds of tokens at once, rows group them by states: beside single steps, also with too many automata for that."""
    monkeypatch.setattr(string_set, "MULTIPLIED", 0)
    monkeypatch.setattr(spreads, "ALONGSIDE", 1 if name == "names one by one" else spreads.ALONGSIDE)
    kinds, add = list[int](), spreads.TriePart.add_word
    monkeypatch.setattr(spreads.TriePart, "add_word", lambda part, longest: kinds.append(longest) or add(part, longest))
    document = (
        {"type": "array", "items": {"type": "string", **STRINGS[name]}}
        if name in STRINGS
        else ITEMS
        if name == "items"
        else NAMES
    )
    guide = JSONGuide.of(document, Vocabulary.from_tokens([*ODD, name.encode()], 0), any_order=True)
    rng = random.Random(name)
    assert sum(1 for _ in range(5) for _ in walk(guide, rng, 12, QUOTING)) > 30
    assert kinds or not COMPILED or name in ("few", "date", "listed", "apart", "names", "names one by one")


@pytest.mark.parametrize(("table", "module", "size"), [("MOST_STATES", walker, 40), ("MOST_WORDS", token_forest, 200)])
def test_full_tables_are_begun_anew(table: str, module: Any, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, table, size)
    names = {name: {"type": "string", "maxLength": 1 + place} for place, name in enumerate("abcdefgh")}
    guide = JSONGuide.of(
        {"type": "object", "properties": names, "required": list(names)}, extended(WHOLE, table.encode())
    )
    state, made = guide.start, set[int]()
    for byte in b'{"a":"","b":"x","c":"xyz","d":"xyz1","e":"12345","f":"","g":"x","h":""}':
        assert np.array_equal(guide.mask(state), Guide.mask(guide, state))
        made.add(id(guide._walker._compiled))
        state = read(guide, [byte], state)
    assert len(made) > 1 or not COMPILED


@pytest.mark.parametrize("room", [None, 3])
def test_arrays_serve_where_nothing_was_compiled_or_there_is_no_room(
    room: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tokens are allowed, and lead to states of the same distance, along the same walks."""
    monkeypatch.setattr(string_set, "MULTIPLIED", 0)
    seen, compared = random.Random(4), 0
    schemas = [document for _, (document, _) in zip(range(30), random_guides(seen, WHOLE), strict=False)]
    expected = [JSONGuide.of(document, WHOLE) for document in schemas]
    vocabulary = extended(WHOLE, b"plain" if room is None else b"small")
    if room is None:
        monkeypatch.setattr(token_forest, "library", lambda: None)
    elif (tables := token_forest.TokenForest.of(vocabulary).tables) is not None:
        monkeypatch.setattr(tables.spreads.room, "most", room)
    for document, other in zip(schemas, expected, strict=True):
        guide, rng = JSONGuide.of(document, vocabulary), random.Random(4)
        state, theirs = guide.start, other.start
        for _ in range(15):
            found, known = (
                one.distances_after(at)[one.partition_of(at).class_of[: len(WHOLE)]]
                for one, at in ((guide, state), (other, theirs))
            )
            assert found.tolist() == known.tolist(), document
            masks = (
                np.unpackbits(one.mask(at).view(np.uint8), bitorder="little")[: len(WHOLE)]
                for one, at in ((guide, state), (other, theirs))
            )
            assert np.array_equal(*masks)
            live = np.flatnonzero((known < 10**6) & (known > 0)).tolist()
            if not live:
                break
            token, compared = rng.choice(live), compared + 1
            state, theirs = guide.advance(state, token), other.advance(theirs, token)
    assert compared > 100
