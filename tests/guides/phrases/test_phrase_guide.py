"""Free text without phrases, against every token sequence and Python's own string search."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from outlines_phi import BannedPhrases, EmptyLanguageError, UnsupportedError, Vocabulary
from outlines_phi.guides.guide import DEAD, DONE, UNREACHABLE
from outlines_phi.guides.phrases.ban_language import free_text
from outlines_phi.guides.phrases.matcher import PhraseMatcher
from outlines_phi.guides.phrases.phrase_guide import PhraseGuide, TokenRuns
from outlines_phi.testing import assert_guide, assert_spells
from outlines_phi.testing.guide_conformance import reachable
from outlines_phi.vocabulary.classes import EOS
from tests.guides.banning import (
    BYTES,
    MERGES,
    WORDS,
    assert_rows,
    assert_same,
    automaton_of,
    bans,
    ended,
    holds,
    least_tokens,
    members,
    phrase_texts,
    vocabularies,
)

fixed = settings(derandomize=True, deadline=None, max_examples=60)
DEPTH = 3


def assert_language(guide: PhraseGuide, prompt: bytes = b"", depth: int = DEPTH) -> None:
    """Assert that the guide lets end what holds no phrase, and nothing else, after ``prompt``."""
    allowed = members(guide.vocabulary, depth, lambda text: not holds(guide.phrases, text, prompt))
    assert_same(ended(guide, depth, guide.start_after(prompt)), allowed)


CASES = (
    (MERGES, BannedPhrases(["ab"])),
    (MERGES, BannedPhrases(["abca", "bc", "c a"])),
    (MERGES, BannedPhrases(["a", " "])),
    (MERGES, BannedPhrases(["aba", "abac", "b"], whole_word=True)),
    (MERGES, BannedPhrases([re.compile("a[bc]{1,2}a"), "cc"])),
    (BYTES, BannedPhrases(["ss"], ignore_case=True)),
    (BYTES, BannedPhrases(["ß", "S S"])),
    (BYTES, BannedPhrases(["s_", "ß"], ignore_case=True, whole_word=True)),
    (BYTES, BannedPhrases([re.compile("s[_ s]")], ignore_case=True)),
    (WORDS, BannedPhrases(["cat"], whole_word=True)),
    (WORDS, BannedPhrases(["cat", "cats"], whole_word=True)),
    (WORDS, BannedPhrases(["cat", "t-cat"], whole_word=True, across_prompt=False)),
)


@pytest.mark.parametrize(("vocabulary", "phrases"), CASES, ids=lambda x: repr(getattr(x, "phrases", len(x))))
def test_everything_without_the_phrases_and_nothing_else(vocabulary: Vocabulary, phrases: BannedPhrases) -> None:
    guide = PhraseGuide(vocabulary, phrases)
    assert_language(guide)
    assert_rows(guide)
    assert_guide(guide)
    for prompt in (b"a", b"ab", b"x cat", b"s\xc3", b"\xc3\x9f", b"t", b"_", b"t-"):
        assert_language(guide, prompt, depth=2)


@fixed
@given(vocabularies(), bans(), st.binary(max_size=2) | phrase_texts.map(str.encode))
def test_any_phrases_over_any_vocabulary_after_any_prompt(
    vocabulary: Vocabulary, phrases: BannedPhrases, prompt: bytes
) -> None:
    guide = PhraseGuide(vocabulary, phrases)
    assert_language(guide)
    assert_language(guide, prompt, depth=2)
    assert_rows(guide, guide.start_after(prompt))


@pytest.mark.parametrize(("vocabulary", "phrases"), CASES[:9], ids=lambda x: repr(getattr(x, "phrases", len(x))))
def test_the_guide_spells_what_the_automaton_of_the_phrases_accepts(
    vocabulary: Vocabulary, phrases: BannedPhrases
) -> None:
    assert_spells(PhraseGuide(vocabulary, phrases), automaton_of(phrases.matcher))


def test_the_search_finds_tokens_that_are_each_looked_at_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = PhraseGuide(MERGES, BannedPhrases(["ab"]))
    after = TokenRuns.after
    monkeypatch.setattr(TokenRuns, "after", lambda runs, _, token: after(runs, runs.matcher.start, token))
    with pytest.raises(AssertionError):
        assert_language(guide)


def test_the_rows_are_found_wrong_where_the_walk_stops_early(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = (np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32))
    monkeypatch.setattr(TokenRuns, "difference", lambda runs, state: nothing)
    with pytest.raises(AssertionError):
        assert_rows(PhraseGuide(MERGES, BannedPhrases(["ab"])))


def test_the_search_finds_a_prompt_that_was_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = PhraseGuide(MERGES, BannedPhrases(["ab"]))
    monkeypatch.setattr(PhraseGuide, "start_after", lambda guide, prompt: guide.start)
    assert_language(guide, b"c")
    with pytest.raises(AssertionError):
        assert_language(guide, b"a")


def test_whole_words_that_end_a_prompt_are_none_of_the_texts() -> None:
    """After ``cat`` a text may say what it likes, unless it goes on to another banned word."""
    guide = PhraseGuide(WORDS, BannedPhrases(["cat", "cats", "cat-cat"], whole_word=True))
    state = guide.start_after(b"a cat")
    ids = {token: v for v, token in enumerate(WORDS.tokens)}
    assert guide.min_tokens(state) == 0 and guide.advance(state, 0) == DONE
    assert guide.advance(state, ids[b" "]) != DEAD and guide.advance(state, ids[b"-"]) != DEAD
    after_s = guide.advance(state, ids[b"s"])
    assert guide.min_tokens(after_s) == 1 and guide.advance(after_s, ids[b"-"]) == DEAD
    assert guide.advance(guide.advance(guide.advance(state, ids[b"-"]), ids[b"cat"]), 0) == DEAD


def test_min_tokens_is_the_way_to_where_the_text_may_end() -> None:
    """After a word that waits, a letter has to follow."""
    guide = PhraseGuide(WORDS, BannedPhrases(["cat", "cats", "ca"], whole_word=True))
    to_go = least_tokens(members(WORDS, 4, lambda text: not holds(guide.phrases, text)))
    level = [((), guide.start)]
    seen = set()
    for _ in range(3):
        for ids, state in level:
            seen.add(guide.min_tokens(state))
            assert guide.min_tokens(state) == to_go[ids], ids
        below = [((*ids, v), guide.advance(state, v)) for ids, state in level for v in range(1, len(WORDS))]
        level = [(ids, state) for ids, state in below if state != DEAD]
    assert seen == {0, 1}


def test_a_word_that_can_only_wait_is_a_dead_end() -> None:
    """``a`` and ``aa`` are banned words, ``aaa`` is too long to be one, and ``aa`` is not a token: two more are needed."""
    letters = Vocabulary.from_tokens(["<eos>", "a", " "], 0)
    guide = PhraseGuide(letters, BannedPhrases(["a", "aa"], whole_word=True))
    waiting = guide.advance(guide.start, 1)
    assert guide.min_tokens(waiting) == 2
    assert guide.advance(waiting, 2) == DEAD
    assert_guide(guide)
    no_way = PhraseGuide(letters, BannedPhrases([re.compile("a{1,3}"), re.compile("a{4}")], whole_word=True))
    assert no_way.min_tokens(no_way.advance(no_way.start, 1)) == 4
    stuck = PhraseGuide(Vocabulary.from_tokens(["<eos>", "é", b"\xc3", "a-"], 0), BannedPhrases(["é"], whole_word=True))
    assert stuck.min_tokens(DEAD) == UNREACHABLE
    assert_guide(stuck)


def test_pending_and_the_phrases_that_tokens_complete() -> None:
    guide = PhraseGuide(MERGES, BannedPhrases(["abca", "bc", "c a"]))
    state = guide.start_after(b"c")
    assert guide.pending(state) == 1 and guide.pending(guide.start_after(b"x")) == 0 == guide.pending(DONE)
    ids = np.arange(len(MERGES))
    found = guide.phrases_at(state, ids)
    assert {MERGES.tokens[v]: int(i) for v, i in zip(ids, found, strict=True) if i >= 0} == {
        b"bc": 1,
        b"abc": 1,
        b" a": 2,
        b"bca": 1,
    }
    assert (guide.phrases_at(DEAD, ids) == -1).all() and found[0] == -1
    for v in ids[1:]:
        assert (found[v] >= 0) == (bool(MERGES.tokens[v]) and guide.advance(state, int(v)) == DEAD)
    assert "' a' of 'c a'" in guide.describe(state).replace('b"', "b'") and "may end" in guide.describe(state)
    assert (guide.describe(DEAD), guide.describe(DONE)) == ("dead", "done")


def test_text_run_through_many_states_at_once() -> None:
    guide = PhraseGuide(MERGES, BannedPhrases(["abca", "bc"]))
    states = np.array(reachable(guide))
    for text in (b"", b"c", b"ca", b"ab"):
        expected = states.tolist()
        for byte in text:
            token = MERGES.tokens.index(bytes((byte,)))
            expected = [guide.advance(state, token) if state != DEAD else DEAD for state in expected]
        assert guide.after_text(states, text).tolist() == expected


def test_rows_of_other_states_cost_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vocabulary is walked once; a state further on looks at the first bytes and at what goes on with a phrase."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghij"), size=rng.integers(2, 9))) for _ in range(3_000)]
    vocabulary = Vocabulary.from_tokens(["<eos>", *"abcdefghij", *words], 0)
    read: list[int] = []
    step = PhraseMatcher.step

    def counted(matcher: PhraseMatcher, states: NDArray[Any], bytes: NDArray[Any]) -> NDArray[Any]:
        read.append(len(states))
        return step(matcher, states, bytes)

    monkeypatch.setattr(PhraseMatcher, "step", counted)
    guide = PhraseGuide(vocabulary, BannedPhrases([word + "jjjj" for word in words[:200]]))
    whole = sum(read)
    guide.row(guide.start)
    read.clear()
    states = [guide.start_after(word.encode()) for word in words[:200]]
    assert len(set(states)) > 100 and not read
    for state in states:
        guide.row(state)
    assert sum(read) < len(states) * whole / 20
    read.clear()
    for state in states[-20:]:
        guide.row(state)
    assert not read, "recent rows are kept"


def test_rows_share_the_partition_where_nothing_differs() -> None:
    guide = PhraseGuide(MERGES, BannedPhrases(["xyz"]))
    assert guide.row(guide.start_after(b"q")).partition is guide.base.partition
    assert guide.base.partition.members(EOS).tolist() == [0]


def test_equal_lists_have_equal_fingerprints() -> None:
    def name(*phrases: str, **options: bool) -> str:
        return PhraseGuide(MERGES, BannedPhrases(phrases, **options)).fingerprint()

    assert name("ab", "c") == name("ab", "c") != name("ab") != PhraseGuide(WORDS, BannedPhrases(["ab"])).fingerprint()
    assert name("ab") != name("ab", across_prompt=False)
    with pytest.raises(UnsupportedError, match="no fingerprint"):
        name("ab", whole_word=True)


def test_a_list_that_leaves_no_text() -> None:
    phrases = BannedPhrases(["zz", "a", re.compile("[bc]"), "ab", " ", "a b"])
    with pytest.raises(EmptyLanguageError) as error:
        free_text(MERGES, phrases)
    message = str(error.value)
    assert "'a', re.compile('[bc]'), ' '" in message and "'zz'" not in message and "'ab'" not in message
    assert free_text(MERGES, BannedPhrases(["a", "b", " "])).min_tokens(2) == 0
