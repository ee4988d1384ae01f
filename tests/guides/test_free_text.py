"""Free text is refused where nothing can be written but bytes that make no character."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi.errors import EmptyLanguageError
from outlines_phi.guides.phrases.ban_language import free_text
from outlines_phi.guides.phrases.banned import QUESTIONS, BannedPhrases, smallest_conflict
from outlines_phi.vocabulary.vocabulary import Vocabulary

BYTES = Vocabulary.from_tokens(["<eos>", *(bytes((byte,)) for byte in range(256)), "ab", b" \xc3", "é", "🙂"], 0)
PIECES = ["a", b"a\xc3", "é", b"\xc3", b"\xa9", b"\xa9a", b"\xff", "è", b"\xa8", "aé", "éa"]
LONGEST = 4


def written(vocabulary: Vocabulary, phrases: list[str]) -> list[str]:
    """Texts of up to so many tokens that are whole characters and hold no phrase, as Python sees them."""
    texts = []
    for size in range(1, LONGEST + 1):
        for tokens in itertools.product(vocabulary.tokens[1:], repeat=size):
            try:
                text = b"".join(tokens).decode()
            except UnicodeDecodeError:
                continue
            texts += [text] if not any(phrase in text for phrase in phrases) else []
    return texts


def test_a_list_is_refused_where_no_text_is_left() -> None:
    seen: Counter[str] = Counter()

    @settings(derandomize=True, deadline=None, max_examples=150)
    @given(
        st.lists(st.sampled_from(PIECES), min_size=1, max_size=4, unique=True),
        st.lists(st.sampled_from(["a", "é", "è", "aa", "éa"]), min_size=1, max_size=4, unique=True),
    )
    def check(pieces: list[str | bytes], phrases: list[str]) -> None:
        vocabulary = Vocabulary.from_tokens(["<eos>", *pieces], 0)
        if not written(vocabulary, []):
            return  # of lone bytes alone: nothing that is banned makes a difference
        left = written(vocabulary, phrases)
        broken = any(not any(phrase.encode() in token for phrase in phrases) for token in vocabulary.tokens[1:])
        seen["text" if left else "broken" if broken else "nothing"] += 1
        if left:
            assert free_text(vocabulary, BannedPhrases(phrases)).min_tokens(2) == 0
            return
        with pytest.raises(EmptyLanguageError) as error:
            free_text(vocabulary, BannedPhrases(phrases))
        named = [phrase for phrase in phrases if repr(phrase) in str(error.value)]
        assert named and not written(vocabulary, named)
        assert all(written(vocabulary, [other for other in named if other != phrase]) for phrase in named)

    check()
    assert all(seen[kind] > 5 for kind in ("text", "broken", "nothing")), seen


@pytest.mark.parametrize(
    ("phrases", "ignore_case", "named"),
    [
        ([re.compile("(?s:.)"), "abc"], False, "re.compile('(?s:.)')"),
        ([re.compile("[^a]"), "zz", "a"], False, "re.compile('[^a]'), 'a'"),
        ([re.compile("[^é]"), "É"], True, "re.compile('[^é]'), 'É'"),
        (
            [*map(chr, range(128)), re.compile("[^\0-\x7f]")],
            False,
            "'\\x00', '\\x01', '\\x02', '\\x03', '\\x04' and 124 more",
        ),
    ],
)
def test_lone_bytes_are_no_text(phrases: list[str | re.Pattern[str]], ignore_case: bool, named: str) -> None:
    with pytest.raises(EmptyLanguageError) as error:
        free_text(BYTES, BannedPhrases(phrases, ignore_case=ignore_case))
    assert str(error.value).endswith(f"tokens of the vocabulary write no character without {named}. Ban less of them.")


@pytest.mark.parametrize(
    "phrases", [[re.compile("[^a]")], [re.compile("[^é]")], [re.compile("(?s:.){2}")], [*map(chr, range(0x80, 0x800))]]
)
def test_one_character_is_text(phrases: list[str | re.Pattern[str]]) -> None:
    assert free_text(BYTES, BannedPhrases(phrases)).min_tokens(2) == 0


def test_a_character_that_tokens_cannot_finish_is_no_text() -> None:
    vocabulary = Vocabulary.from_tokens(["<eos>", "a", b"\xc3", b"\xff"], 0)
    with pytest.raises(EmptyLanguageError, match="no character without 'a'"):
        free_text(vocabulary, BannedPhrases(["b", "a"]))


def test_a_long_list_that_is_at_fault_as_a_whole_takes_few_questions() -> None:
    asked = []

    def at_fault(some: BannedPhrases) -> bool:
        asked.append(some)
        return len(some) == 1000

    phrases = BannedPhrases([f"{i} " for i in range(1000)])
    assert smallest_conflict(phrases, at_fault) == phrases and len(asked) == QUESTIONS
