"""Readers of UTF-8 against Python's own decoder, and patterns without a meaning in a ban."""

import codecs
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi import BannedPhrases, GrammarError, OutlinesPhiError, UnsupportedError
from outlines_phi.guides.phrases.machines import (
    BROKEN,
    CODE_POINTS,
    FOREIGN,
    LEAD,
    NOTHING,
    TRAIL,
    CharacterReader,
    CharacterReading,
    foldings,
    is_word,
    uneven_foldings,
    word_characters,
)
from tests.occurrences import characters, width

fixed = settings(derandomize=True, deadline=None, max_examples=200)

BORDERS = [0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]
"""The first and last characters of each length, and those beside the surrogates."""

ALPHABET = "ksβ日😀_\u0307" + "".join(map(chr, BORDERS))
pieces = st.one_of(
    st.sampled_from(ALPHABET + "KſΒẞ é٣").map(str.encode),
    st.binary(min_size=1, max_size=2),
    st.sampled_from(
        [b"\xe0\x80", b"\xe2\x82", b"\xed\xa0", b"\xf0\x9f\x98", b"\xf4\x90", b"\xc0\xaf", b"\xf8", b"\xff"]
    ),
)
texts = st.lists(pieces, max_size=6).map(b"".join)


def read(reader: CharacterReader, text: bytes) -> tuple[list[CharacterReading], int]:
    """Return the readings of a text, and the number of bytes that are held back."""
    state, found = 0, []
    for byte in text:
        column = reader.byte_class[byte]
        found += [BROKEN] * int(reader.breaks[state, column]) + [int(reader.completes[state, column])]
        state = int(reader.after[state, column])
    return [reader.readings[number] for number in found if number != NOTHING], int(reader.held[state])


def expected(text: bytes, alphabet: str, ignore_case: bool, whole_word: bool) -> list[tuple[int, ...]]:
    """The same from the characters of the text, those in a row that are no characters as one."""
    readings: list[tuple[int, ...]] = []
    for character in characters(text, False):
        symbols: list[int] = []
        for folded in character.casefold() if ignore_case else character:
            spelled = list(folded.encode()) if folded in alphabet else [FOREIGN]
            word = is_word(folded)
            symbols += [LEAD[word], *spelled, TRAIL[word]] if whole_word else spelled
        readings.append(tuple(symbols))
    return readings


def merged(readings: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Readings with foreign ones in a row that are no part of a word as one: how many bytes were broken is not told."""
    return [r for place, r in enumerate(readings) if not (place and r == readings[place - 1] and FOREIGN in r)]


options = pytest.mark.parametrize(
    ("ignore_case", "whole_word"), [(False, False), (True, False), (False, True), (True, True)]
)


@options
def test_texts_read_as_their_characters(ignore_case: bool, whole_word: bool) -> None:
    reader = CharacterReader.of(
        ALPHABET.casefold() if ignore_case else ALPHABET, ignore_case=ignore_case, whole_word=whole_word
    )

    @fixed
    @given(texts)
    def check(text: bytes) -> None:
        found, held = read(reader, text)
        own = expected(text, (ALPHABET.casefold() if ignore_case else ALPHABET), ignore_case, whole_word)
        assert merged([reading.symbols for reading in found]) == merged(own)
        assert held == len(text) - sum(map(width, characters(text, False)))

    check()


def test_every_character_is_read_alone() -> None:
    """All of Unicode, each as its own reading or as a foreign character; no byte of it is left over."""
    reader = CharacterReader.of("k日", ignore_case=True, whole_word=True)
    every = [chr(c) for c in [*range(0xD800), *range(0xE000, CODE_POINTS)]]
    interesting = [c for c in every if set(c.casefold()) & set("k日")] + every[::1009]
    assert {"k", "K", "\u212a", "日"} <= set(interesting)
    for character in interesting:
        found, held = read(reader, character.encode())
        (own,) = expected(character.encode(), "k日", True, True)
        assert held == 0
        assert merged([reading.symbols for reading in found]) == merged([own])
        if set(own) & set(range(256)):
            assert sum(found[0].sizes) == len(character.encode())


def test_what_is_held_may_complete_to_characters_of_phrases() -> None:
    reader = CharacterReader.of("k", ignore_case=True, whole_word=False)

    def choices(text: bytes) -> set[tuple[int, ...]]:
        state = 0
        for byte in text:
            state = int(reader.after[state, reader.byte_class[byte]])
        return {reader.readings[number].symbols for number in reader.completions[state]}

    assert choices(b"\xe2\x84") == choices(b"\xe2") == {(ord("k"),)}, "the sign of kelvins, U+212A"
    assert choices(b"\xe2\x82") == choices(b"\xe3") == choices(b"\xf0") == set()


def test_word_characters_and_foldings_are_those_of_python() -> None:
    word, folded = word_characters(), foldings()
    every = [chr(code) for code in range(CODE_POINTS)]
    assert word.tolist() == [c.isalnum() or c == "_" for c in every]
    assert folded == {c: c.casefold() for c in every if c.casefold() != c}
    assert not word.flags.writeable
    assert uneven_foldings() == {c for c, f in folded.items() if len(f) > 1 or is_word(f) != is_word(c)}
    assert {"ß", "\u0345"} <= uneven_foldings() and "A" not in uneven_foldings()
    assert all(part.casefold() == part for parts in folded.values() for part in parts), "what is folded stays"


def test_the_decoder_of_the_oracle_holds_back_what_may_still_be_a_character() -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    assert decoder.decode(b"a\xe2\x82") == "a" and decoder.decode(b"\xac") == "€"


ANCHOR = "has an anchor, and a phrase is banned wherever in a text it occurs; leave the anchor out"
LOOK = "has look-around, which is not offered; make what it looks for part of the phrase: 'cats' for 'cat(?=s)'"


@pytest.mark.parametrize("flags", [0, re.IGNORECASE])
@pytest.mark.parametrize(
    ("pattern", "said", "column"),
    [
        ("^cat$", ANCHOR, 0),
        ("cat$", ANCHOR, 3),
        ("a{1,3}$|b", ANCHOR, 6),
        (r"(\Acat)", ANCHOR, 1),
        (r"cat\Z", ANCHOR, 3),
        (r"\bcat\b", "has a word boundary; give BannedPhrases(['cat'], whole_word=True), for which", 0),
        (r"\b(?:cat|dog)\b", "give BannedPhrases([re.compile('(?:cat|dog)')], whole_word=True)", 0),
        (r"\bcats?\b", "give BannedPhrases([re.compile('cats?')], whole_word=True)", 0),
        (r"cat\b", "give BannedPhrases(['cat'], whole_word=True), for which the characters on both sides", 3),
        (r"\bcat$", "has a word boundary; give BannedPhrases([...], whole_word=True)", 0),
        (r"\Bcat", "write those out, as part of the phrase", 0),
        (r"(?<!a)cat", LOOK, 0),
        (r"cat(?=s)", LOOK, 3),
        (r"(a)\1", "has a back-reference, which is not offered; write out what the group matches", 3),
        ("a+", "bound, as in {1,20} for +\n", 1),
        ("(a|b)*c", "bound, as in {0,20} for *\n", 5),
        ("a{1,3}bc{2,}", "bound, as in {2,20} for {2,}\n", 8),
        ("xa{30,}", "bound, as in {30,60} for {30,}\n", 2),
        ("a+?b", "bound, as in {1,20} for +\n", 1),
    ],
)
def test_what_a_ban_cannot_mean(pattern: str, said: str, column: int, flags: int) -> None:
    with pytest.raises(UnsupportedError) as caught:
        BannedPhrases([re.compile(pattern, flags)])
    message = str(caught.value)
    assert message.startswith(f"the banned regular expression {pattern!r} ") and said in message
    assert "generation" not in message and "output" not in message
    place, line, caret = message.splitlines()[-3:]
    assert line == f"  {pattern}" and caret.index("^") == column + 2 and f"column {column + 1}" in place


def test_what_is_advised_is_accepted() -> None:
    for pattern in ("a{1,20}", "(a|b){0,20}c", "a{30,60}", "cats", "cat[^s]"):
        assert len(BannedPhrases([re.compile(pattern)])) == 1
    assert len(BannedPhrases([re.compile("(?:cat|dog)")], whole_word=True)) == 1


@pytest.mark.parametrize("pattern", [r"a\^\$", r"[$^]a", r"\\b", "a[\\b]"])
def test_what_only_looks_like_an_assertion_is_left_alone(pattern: str) -> None:
    try:
        BannedPhrases([re.compile(pattern)])
    except OutlinesPhiError as error:
        assert "anchor" not in str(error) and "boundary" not in str(error)


def test_an_error_points_into_the_expression_that_was_given() -> None:
    with pytest.raises(GrammarError, match="a repeat is written") as caught:
        BannedPhrases([re.compile("a{,3}b")], ignore_case=True)
    line, caret = str(caught.value).splitlines()[-2:]
    assert line == "  a{,3}b" and line[caret.index("^")] == "{"
