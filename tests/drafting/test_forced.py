"""Forced text is forced, and written as the tokenizer writes it."""

from __future__ import annotations

import itertools
import os
import re
from typing import Literal

import pytest
from outlines.types.dsl import JsonSchema, to_regex
from pydantic import BaseModel, Field

from outlines_phi import Vocabulary
from outlines_phi.drafting import Drafter, EndingDrafter, FirstOf, ForcedDrafter
from outlines_phi.guides import FSMGuide, Guide, Table
from outlines_phi.vocabulary.canonical import CanonicalTokenization
from tests.drafting.runs import propose, run_of, site_of, table_of
from tests.inner import DONE, ForcedTexts, Row, bundled
from tests.languages import VOCABULARY

_, TOKENIZER = bundled.load()
REAL = Vocabulary.from_tokenizer(TOKENIZER)
CANONICAL = CanonicalTokenization(TOKENIZER, REAL)


class Unfolded(Guide):
    """A guide whose byte automaton nobody knows."""

    def __init__(self, guide: FSMGuide) -> None:
        self._guide, self.vocabulary, self.start = guide, guide.vocabulary, guide.start

    def row(self, state: int) -> Row:
        return self._guide.row(state)

    def min_tokens(self, state: int) -> int:
        return self._guide.min_tokens(state)

    def describe(self, state: int) -> str:
        return self._guide.describe(state)


def guides(pattern: str, vocabulary: Vocabulary = REAL) -> dict[str, Guide]:
    guide = table_of(pattern, vocabulary).guide
    assert isinstance(guide, FSMGuide)
    return {"bytes": guide, "tokens": Unfolded(guide)}


PATTERNS = (
    "abcx",
    "(ab|ac)c{2}x",
    "(ab|b)?cx",
    "[ab]{2}(cx|c)",
    "x(ab){0,2}c",
    "(aab|aac|aabx)",
    "[abc]{3}",
    "((aa)?b|aac)x",
)


def members(pattern: str, alphabet: str) -> list[str]:
    """Return all members of at most six letters, by brute force."""
    texts = ("".join(letters) for n in range(7) for letters in itertools.product(alphabet, repeat=n))
    return [text for text in texts if re.fullmatch(pattern, text)]


def written(guide: Guide, text: str) -> int:
    """Return the state after ``text``, byte by byte."""
    state = guide.start
    for byte in text.encode():
        state = guide.advance(state, guide.vocabulary.tokens.index(bytes([byte])))
    return state


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind", ["bytes", "tokens"])
def test_the_forced_text_is_what_all_members_share(pattern: str, kind: str) -> None:
    guide, texts = guides(pattern, VOCABULARY)[kind], members(pattern, "abcx")
    beginnings = {text[:end] for text in texts for end in range(len(text) + 1)}
    forced = 0
    for beginning in beginnings:
        rests = [text[len(beginning) :] for text in texts if text.startswith(beginning)]
        text, end = ForcedTexts(guide).after(written(guide, beginning), b"", b"", 100)
        assert text.decode() == os.path.commonprefix(rests), beginning
        assert end == written(guide, beginning + text.decode())
        forced += len(text)
    assert forced or pattern == "[abc]{3}"


def test_a_long_text_is_followed_as_far_as_is_asked() -> None:
    guide = guides("a{500}", VOCABULARY)["bytes"]
    text, end = ForcedTexts(guide).after(guide.start, b"", b"", 30)
    assert text == b"a" * 30
    assert ForcedTexts(guide).after(end, b"", b"", 1000)[0] == b"a" * 470


@pytest.mark.parametrize("kind", ["bytes", "tokens"])
@pytest.mark.parametrize(
    ("pattern", "spaced", "text"),
    [
        ("a[ ]?:[ ]?b[ ]?,[ ]?c[ab]", b":,", b"a: b, c"),
        ("a[ ]?:[ ]?b[ ]?,[ ]?c[ab]", b"", b"a:b,c"),
        ("a[ ]?:[ ]?b[ ]?,[ ]?c[ab]", b",", b"a:b, c"),
        (r"a:[ \n]*b,[ \n]{2}c", b":", b"a: b,"),
        (r"a,[\n]{2}b", b",", b"a,\n\nb"),
        (r"a, b", b"", b"a, b"),
        (r"a,[ ]?bb?", b",", b"a, b"),
        ("a:[ ]?[0-9]", b":", b"a: "),  # a blank that changes nothing else is written before a choice
        ("a:[ ]?[0-9]", b"", b"a:"),
        ("a:[ 0-9]{2}", b":", b"a:"),  # here it would be a character of the value
        ("a:[ 0-9]*x", b":", b"a:"),
    ],
)
def test_optional_blanks_are_written_by_habit(kind: str, pattern: str, spaced: bytes, text: bytes) -> None:
    guide = guides(pattern, REAL)[kind]
    assert ForcedTexts(guide).after(guide.start, b"", spaced, 100)[0] == text


class Address(BaseModel):
    street: str = Field(max_length=20)
    city: str = Field(max_length=20)


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int
    job: Literal["baker", "teacher"]
    address: Address


NESTED = table_of(to_regex(JsonSchema(Person)), REAL)
TEXT = '{"name": "Ada", "age": 36, "job": "baker", "address": {"street": "Long Lane", "city": "Oslo"}}'


def replayed(tokens: list[int], table: Table = NESTED, drafter: Drafter | None = None) -> list[tuple[str, str]]:
    """Return, call for call, the draft and what a walk that writes ``tokens`` goes on with."""
    run, at, calls = run_of(table, encode=CANONICAL.encode), 0, []
    while at < len(tokens):
        (draft,) = propose(drafter or ForcedDrafter(), run, [site_of(run, tokens[:at], budget=200)], length=8)
        kept = len(os.path.commonprefix([draft.tokens, tuple(tokens[at:])]))
        calls.append((REAL.decode(draft.tokens).decode(), REAL.decode(tokens[at : at + kept + 1]).decode()))
        at += kept + 1
    return calls


def test_a_nested_record_is_drafted_as_the_tokenizer_writes_it() -> None:
    """Nothing of it is thrown away: on a canonical text forced text is always right."""
    tokens = CANONICAL.encode(TEXT)
    calls = replayed(tokens)
    assert all(taken.startswith(draft) for draft, taken in calls) and len(tokens) / len(calls) > 2.5


def test_other_spacing_is_taken_up() -> None:
    calls = replayed(CANONICAL.encode(TEXT.replace(", ", ",").replace(": ", ":")))
    drafts = [draft for draft, _ in calls]
    assert drafts[0] == '{"name": "'  # nothing is known yet
    assert any('"age":' in draft and ": " not in draft for draft in drafts)
    assert sum(taken.startswith(draft) for draft, taken in calls) >= len(calls) - 2


def test_what_the_tokenizer_would_merge_with_what_comes_is_left_out() -> None:
    tokens = {written: token for token, written in enumerate(REAL.tokens)}
    alone = [
        text
        for text in tokens
        if text.isalpha() and text.isascii() and CANONICAL.encode(text.decode()) == [tokens[text]]
    ]
    longer = {text: [other for other in alone if other[:-1] == text] for text in alone}
    merged = next((text, *others[:2]) for text, others in longer.items() if len(text) > 1 and len(others) > 1)
    beginning, *words = (text.decode() for text in merged)
    run = run_of(table_of("|".join(words), REAL), encode=CANONICAL.encode)
    assert ForcedTexts(run.table.guide).after(run.table.start, b"", b"", 100)[0] == beginning.encode()
    assert propose(ForcedDrafter(), run, [site_of(run)])[0].tokens == ()
    # Where both words go on otherwise than by one of its tokens, the beginning stays.
    run = run_of(table_of(f"{beginning}(!|\\?)", REAL), encode=CANONICAL.encode)
    assert propose(ForcedDrafter(), run, [site_of(run)])[0].tokens == (tokens[beginning.encode()],)


def test_a_draft_depends_on_how_the_text_before_is_spelled() -> None:
    run = run_of(table_of("abcab", VOCABULARY))
    a, b, ab, c = (VOCABULARY.tokens.index(text) for text in (b"a", b"b", b"ab", b"c"))
    assert propose(ForcedDrafter(), run, [site_of(run)], length=9)[0].tokens == (ab, c, ab)
    assert propose(ForcedDrafter(), run, [site_of(run, [a])], length=9)[0].tokens == (b, c, ab)


def test_characters_of_several_bytes() -> None:
    run = run_of(table_of("é東(京|都)x", REAL), encode=CANONICAL.encode)
    (draft,) = propose(ForcedDrafter(), run, [site_of(run)], length=20)
    assert "é東".encode().startswith(REAL.decode(draft.tokens)) and draft.tokens
    half = [REAL.tokens.index("é".encode()[:1])]
    (draft,) = propose(
        ForcedDrafter(), run, [site_of(run, half)], length=20
    )  # within a character: by itself nothing is text
    assert "é東".encode()[1:].startswith(REAL.decode(draft.tokens))


def test_nothing_is_forced_where_the_text_may_end() -> None:
    run = run_of(table_of("ab(c)?"))
    assert propose(ForcedDrafter(), run, [site_of(run)])[0].tokens == (VOCABULARY.tokens.index(b"ab"),)
    end = site_of(run, [VOCABULARY.tokens.index(b"ab")])
    assert run.table.advance(end.state, 0, end.remaining) == DONE
    assert propose(ForcedDrafter(), run, [end])[0].tokens == ()


def test_the_work_is_kept_with_the_table() -> None:
    asked: list[str] = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return CANONICAL.encode(text)

    run = run_of(Table(NESTED.guide), encode=encode)
    for _ in range(3):
        propose(ForcedDrafter(), run, [site_of(run, budget=200)])
        assert 0 < len(asked) < 20


class Short(BaseModel):
    name: str = Field(max_length=20)
    age: int
    city: str


PATTERN = to_regex(JsonSchema(Short))


@pytest.mark.parametrize("kind", ["bytes", "tokens"])
@pytest.mark.parametrize(
    ("pattern", "beginning", "ending"),
    [
        (PATTERN, '{"name": "Ada', '", "age": '),
        (PATTERN, '{"name": "Ada", "age": 3', ', "city": "'),
        (PATTERN, '{"name": "Ada", "age": 36, "city": "Oslo', '"}'),
        (PATTERN, '{"name": "', ""),  # no value has begun
        (PATTERN, '{"name": "Ada", "age": ', ""),
        (PATTERN, '{"name": "Ada", "age": 0', ""),  # forced: nothing to guess
        (PATTERN, "", ""),
        ("[ab]+(c|d)", "ab", ""),  # two ways out
        ("[ab]+cab", "ab", "cab"),
        ("[ab]{3,5}cab", "ab", ""),  # too short to end
        ("[ab]{3,5}cab", "aba", "cab"),
    ],
)
def test_the_way_out_of_a_value(kind: str, pattern: str, beginning: str, ending: str) -> None:
    guide = guides(pattern, REAL)[kind]
    text, end = ForcedTexts(guide).ending(written(guide, beginning), beginning[-1:].encode(), b",:", 100)
    assert text.decode() == ending
    assert end == written(guide, beginning + ending)


def test_short_values_cost_no_calls_of_their_own() -> None:
    tokens, table = CANONICAL.encode('{"name": "Ada", "age": 36, "city": "Oslo"}'), table_of(PATTERN, REAL)
    forced, both = (
        len(replayed(tokens, table, FirstOf(parts)))
        for parts in ((ForcedDrafter(),), (ForcedDrafter(), EndingDrafter()))
    )
    assert both < forced and len(tokens) / both > 2.5
