"""Free text and output types without phrases, against every token sequence and Python's own search."""

import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from outlines_phi import BannedPhrases, EmptyLanguageError, Vocabulary
from outlines_phi.errors import VocabularyError
from outlines_phi.guides import FSMGuide, Guide, Table
from outlines_phi.testing import assert_guide, assert_spells
from tests.guides.walking import (
    BYTES,
    MERGES,
    WORDS,
    assert_language,
    assert_row,
    automaton_of,
    bans,
    ended,
    is_free,
    phrase_texts,
    read,
    vocabularies,
)
from tests.inner import (
    DEAD,
    DONE,
    EOS,
    UNREACHABLE,
    PhraseGuide,
    PhraseMatcher,
    ProductGuide,
    ban_language,
    banned,
    compile_regex,
    depends_on_prompt,
    reachable,
    smallest_conflict,
)
from tests.refusals import refused

LETTERS = Vocabulary.from_tokens(["<eos>", *"abcx{}"], 0)


def fsm(pattern: str, vocabulary: Vocabulary = LETTERS) -> FSMGuide:
    return FSMGuide.from_automaton(compile_regex(pattern), vocabulary)


def guides(vocabulary: Vocabulary, pattern: str | None, phrases: BannedPhrases) -> list[Guide]:
    """Return the guides of a pattern, or of free text, without the phrases; none of the first kind where nothing is left."""
    alone = PhraseGuide(vocabulary, phrases)
    if pattern is None:
        return [alone]
    left = fsm(pattern, vocabulary)
    both = ProductGuide(left, alone)
    return [*([banned(left, phrases)] if both.min_tokens(both.start) < UNREACHABLE else []), both]


CASES: list[tuple[Vocabulary, str | None, BannedPhrases]] = [
    (MERGES, None, BannedPhrases(["ab"])),
    (MERGES, None, BannedPhrases(["abca", "bc", "c a"])),
    (MERGES, None, BannedPhrases(["a", " "])),
    (MERGES, None, BannedPhrases(["aba", "abac", "b"], whole_word=True)),
    (MERGES, None, BannedPhrases([re.compile("a[bc]{1,2}a"), "cc"])),
    (BYTES, None, BannedPhrases(["ss"], ignore_case=True)),
    (BYTES, None, BannedPhrases(["ß", "S S"])),
    (BYTES, None, BannedPhrases(["s_", "ß"], ignore_case=True, whole_word=True)),
    (BYTES, None, BannedPhrases([re.compile("s[_ s]")], ignore_case=True)),
    (WORDS, None, BannedPhrases(["cat"], whole_word=True)),
    (WORDS, None, BannedPhrases(["cat", "cats", "cat-cat"], whole_word=True)),
    (WORDS, None, BannedPhrases(["cat", "t-cat"], whole_word=True, across_prompt=False)),
    (WORDS, None, BannedPhrases(["cat", "cats", "ca"], whole_word=True)),
    (MERGES, "[abc]{1,4}", BannedPhrases(["ab"])),
    (MERGES, "(ab|bc|ca){1,2}", BannedPhrases(["bb", "cab", "bca"])),
    (MERGES, "(a|b|c| ){2,3}", BannedPhrases(["a b", "c", "ba"], across_prompt=False)),
    (MERGES, "( a| b| c){1,3}", BannedPhrases(["a", "b c"], whole_word=True)),
    (BYTES, "(s|ß|_){1,3}", BannedPhrases(["ss"], ignore_case=True)),
    (BYTES, "[^s]{1,2}s?", BannedPhrases([re.compile("_[_ß]"), "S "])),
    (WORDS, "(cat|t)s?( cat|-é)*", BannedPhrases(["cat", "ts"], whole_word=True)),
    (WORDS, "cat|cats|s", BannedPhrases(["cat", "xs"], whole_word=True)),
]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("vocabulary", "pattern", "phrases"), CASES, ids=lambda given: str(getattr(given, "names", given))
)
def test_everything_without_the_phrases_and_nothing_else(
    vocabulary: Vocabulary, pattern: str | None, phrases: BannedPhrases
) -> None:
    found = guides(vocabulary, pattern, phrases)
    for guide in found:
        assert_guide(guide)
        for state in reachable(guide, limit=60):
            assert_row(guide, state)
    for prompt in (b"", b"a", b"ca", b"x cat", b"_", b"s", b"t", b"t-", b"\xc3", b"s\xc3"):
        assert_language(found, is_free(phrases, pattern, prompt), prompt, 3 if prompt and pattern is None else 4)
    if vocabulary is not WORDS:
        free = automaton_of(phrases.matcher)
        assert_spells(found[-1], free if pattern is None else compile_regex(pattern) & free)


PATTERNS = (
    "[ab]{1,4}",
    "(ab|bc|ca){1,2}",
    "a(b|c)?a?",
    "[a_ßé]{2,3}",
    r"[^a]{0,3}",
    "(s|ss|ab|a)b?s?",
    "(a|b ?){1,3}",
    None,
    None,
)


@settings(derandomize=True, deadline=None, max_examples=80)
@given(vocabularies(), st.sampled_from(PATTERNS), bans(), st.binary(max_size=2) | phrase_texts.map(str.encode))
def test_any_phrases_and_any_type(
    vocabulary: Vocabulary, pattern: str | None, phrases: BannedPhrases, prompt: bytes
) -> None:
    try:
        found = guides(vocabulary, pattern, phrases)
    except EmptyLanguageError:  # of the type alone
        return
    for before in {b"", prompt}:
        assert_language(found, is_free(phrases, pattern, before), before)
    for guide in found:
        if len(found) == 2 or pattern is None:
            assert_guide(guide)
            for state in {*reachable(guide, limit=30), guide.start_after(prompt)}:
                assert_row(guide, state)


def test_the_search_finds_what_forgets_the_phrases_or_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = PhraseGuide(MERGES, BannedPhrases(["ab"]))
    for other in (PhraseGuide(MERGES, BannedPhrases(["abab"])), ProductGuide(fsm("[abc]{1,4}", MERGES), guide)):
        refused(None, assert_language, [other], is_free(guide.phrases), error=AssertionError)
    monkeypatch.setattr(PhraseGuide, "start_after", lambda guide, prompt: guide.start)
    assert_language([guide], is_free(guide.phrases, prompt=b"c"), b"c")
    refused(None, assert_language, [guide], is_free(guide.phrases, prompt=b"a"), b"a", error=AssertionError)


def test_a_dead_end_that_only_tokens_make() -> None:
    """After ``a``, ``b`` only ``c`` may follow, and no token is ``c``; the bytes alone have no dead end there."""
    vocabulary = Vocabulary.from_tokens(["<eos>", "a", "b", "bc", "d"], 0)
    guide = ProductGuide(fsm("a(bc|bd)", vocabulary), PhraseGuide(vocabulary, BannedPhrases(["bd"])))
    after_a = read(guide, "a")
    assert assert_row(guide, after_a)[2] == DEAD != guide.advance(after_a, 3)
    assert_guide(guide)


@pytest.mark.parametrize(("phrases", "least"), [(["a", "aa"], 2), ([re.compile("a{1,3}"), re.compile("a{4}")], 4)])
def test_a_word_that_can_only_wait_is_a_dead_end(phrases: list[Any], least: int) -> None:
    """The words that ``a`` begins are banned, but those that are too long to be one of them."""
    guide = PhraseGuide(Vocabulary.from_tokens(["<eos>", "a", " "], 0), BannedPhrases(phrases, whole_word=True))
    waiting = guide.advance(guide.start, 1)
    assert (
        guide.min_tokens(waiting) == least
        and guide.advance(waiting, 2) == DEAD
        and guide.min_tokens(DEAD) == UNREACHABLE
    )
    assert_guide(guide)


def test_the_shortest_way_leads_around_the_phrases() -> None:
    """The shortest text of the type holds a phrase; others are found best first, and the way there is known from then on."""
    letters = Vocabulary.from_tokens(["<eos>", *"abcx", "aaaa"], 0)
    guide = ProductGuide(fsm("a{4}x|[abc]{8}x", letters), PhraseGuide(letters, BannedPhrases(["aa", "ab", "cc"])))
    assert guide.min_tokens(guide.start) == 10
    assert_guide(guide)


def test_prompts_that_leave_nothing() -> None:
    guide = banned(fsm("ab|ac"), BannedPhrases(["xab", "xac", "yac"]))
    assert guide.min_tokens(guide.start) == 3 == guide.min_tokens(guide.start_after(b"y"))
    assert guide.min_tokens(guide.start_after(b"...x")) == UNREACHABLE
    assert not guide.row(guide.start_after(b"x")).targets.any()
    refused(
        r"a prompt that ends in 'acx': .* 'ab', makes 'xab'",
        Table(guide).start_after,
        [1, 3, 4],
        error=EmptyLanguageError,
    )
    assert Table(guide).start_after([1, 4, 3]) == guide.start_after(b"axc")
    twice = banned(banned(fsm("ab|ac"), BannedPhrases(["xab", "xac"])), BannedPhrases(["yab"]))
    texts = [
        {LETTERS.decode(ids) for ids in ended(twice, 3, twice.start_after(prompt))}
        for prompt in (b"", b"x", b"y", b"...x")
    ]
    assert texts == [{b"ab", b"ac"}, set(), {b"ac"}, set()]


@pytest.mark.parametrize(
    ("pattern", "phrases", "depends"),
    [
        (r"\{[a-c]*\}", ["ab", "ca"], False),
        (r"\{[a-c]*\}", ["ab", "x{a"], True),
        ("[a-c]{2}", ["ab"], True),
        ("[a-c]{2}", ["xab", "yab"], True),
        ("c[ab]", ["ab", "bc"], True),
        ("c[ab]", ["ab", "ba"], False),
        ("c[ab]", ["xcx"], False),
        ("c[ab]c", ["xcbc"], True),
        ("c[ab]c", ["xcbx", "ab"], False),
    ],
)
def test_one_automaton_is_all_where_no_prompt_can_begin_a_phrase(
    pattern: str, phrases: list[str], depends: bool
) -> None:
    assert isinstance(banned(fsm(pattern), BannedPhrases(phrases)), ProductGuide) == depends
    assert isinstance(banned(fsm(pattern), BannedPhrases(phrases, across_prompt=False)), FSMGuide)
    texts = map(bytes, (word for n in range(6) for word in product(b"abcx{}", repeat=n)))
    left = list(filter(is_free(BannedPhrases(phrases), pattern), texts))
    after = [
        is_free(BannedPhrases(phrases), pattern, text[:end].encode())
        for text in phrases
        for end in range(1, len(text) + 1)
    ]
    changed = any(not free(text) for text in left for free in after)
    assert depends_on_prompt(compile_regex(pattern), BannedPhrases(phrases)) == depends == changed


@pytest.mark.parametrize(
    ("states", "searched", "vocabulary", "pattern", "phrases", "least"),
    [
        (6, 10_000, LETTERS, r"\{[abc]{1,3}(x|a)\}", BannedPhrases(["abcabc", "bb", "ca", "x"]), 5),
        (10, 50, WORDS, "[a-z]{0,9}(-cat-|-t|s)", BannedPhrases(["cat", "ts"], whole_word=True), 2),
    ],
)
def test_large_products_are_not_listed(
    states: int,
    searched: int,
    vocabulary: Vocabulary,
    pattern: str,
    phrases: BannedPhrases,
    least: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ban_language, "PRODUCT_STATES", states)
    monkeypatch.setattr(ban_language, "SEARCHED", searched)
    guide = banned(fsm(pattern, vocabulary), phrases)
    assert isinstance(guide, ProductGuide) and guide.min_tokens(guide.start) == least
    assert_language([guide], is_free(phrases, pattern), depth=4)
    assert_guide(guide)


@pytest.mark.parametrize(("short", "steps"), [(1000, 20), (1, 5)])
def test_phrases_that_the_type_writes_by_itself_are_multiplied_in_first(
    short: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch that must hold a phrase is pruned before any step, so no search has to look through what comes before it."""
    for name, value in {"PRODUCT_STATES": 50, "SEARCHED": 20, "SHORT": short}.items():
        monkeypatch.setattr(ban_language, name, value)
    letters = Vocabulary.from_tokens(["<eos>", *"abcx01"], 0)
    phrases = BannedPhrases(["1xx1", *("".join((*four, "x")) for four in product("abc", repeat=4))])
    left = fsm("0[abc]{0,9}0|[01][abc]{0,9}1xx1", letters)
    guide, alone = banned(left, phrases), ProductGuide(left, PhraseGuide(letters, phrases))
    assert guide.advance(guide.start, 6) == DEAD
    assert max(map(guide.min_tokens, reachable(guide, limit=300))) < UNREACHABLE
    refused(f"^{steps} steps did not tell", alone.advance, alone.start, 6)


MANY = [f"x{a}{b}" for a in "abcx" for b in "abcx"]


@pytest.mark.parametrize(
    ("vocabulary", "pattern", "phrases", "said"),
    [
        (
            LETTERS,
            "abc|aabcc",
            BannedPhrases([*MANY, "bc"]),
            "'bc' alone leaves no text of it. The shortest, 'abc', holds 'bc'. Take it",
        ),
        (LETTERS, "abc|xbb", BannedPhrases([*MANY, "bc", "ca"]), "'xbb', 'bc' alone leave no text of it.*one of them"),
        (
            Vocabulary.from_tokens(["<eos>", "a", "b", "d"], 0),
            "ab(c|d)",
            BannedPhrases(["zz", "bd", re.compile("xb{1,3}")]),
            "'bd' alone leaves no text",
        ),
        (WORDS, "cat", BannedPhrases(["cat"], whole_word=True), "The shortest, 'cat', holds 'cat'"),
        (WORDS, "[^ ]{0,9} cat(-|é)?-cat", BannedPhrases(["cat", "ts"], whole_word=True), "'cat' alone"),
    ],
)
def test_lists_that_leave_nothing_are_named(
    vocabulary: Vocabulary, pattern: str, phrases: BannedPhrases, said: str
) -> None:
    refused(said, banned, fsm(pattern, vocabulary), phrases, error=EmptyLanguageError)


def test_few_culprits_among_many_take_few_questions() -> None:
    phrases, asked = BannedPhrases([f"phrase {i}" for i in range(1_000)]), list[int]()
    guilty = {"phrase 17", "phrase 512", "phrase 999"}
    found = smallest_conflict(phrases, lambda some: asked.append(len(some)) or guilty <= set(some.phrases))
    assert set(found.phrases) == guilty and len(asked) < 80
    one = BannedPhrases(["a"], whole_word=True)
    assert smallest_conflict(one, lambda some: True) == one


@pytest.mark.parametrize(
    ("pattern", "phrases", "prompt", "pending", "completed", "said"),
    [
        (None, ["abca", "bc", "c a"], b"c", 1, {b"bc": 1, b"abc": 1, b" a": 2, b"bca": 1}, "may end"),
        ("[ab]{1,6}", ["ca", "bb"], b"c", 1, {b"a": 0, b"ab": 0}, "bytes pending"),  # ca is not of the type
    ],
)
def test_pending_and_the_phrases_that_tokens_complete(
    pattern: str | None, phrases: list[str], prompt: bytes, pending: int, completed: dict[bytes, int], said: str
) -> None:
    guide: Any = guides(MERGES, pattern, BannedPhrases(phrases))[-1]
    state, ids = guide.start_after(prompt), np.arange(len(MERGES))
    assert (guide.pending(state), guide.pending(guide.start_after(b"x")), guide.pending(DONE)) == (pending, 0, 0)
    found = guide.phrases_at(state, ids)
    assert {MERGES.tokens[v]: int(i) for v, i in enumerate(found) if i >= 0} == completed
    assert (guide.phrases_at(DEAD, ids) == -1).all() and all(
        guide.advance(state, int(v)) == DEAD for v in np.flatnonzero(found >= 0)
    )
    assert (
        said in guide.describe(state)
        and guide.describe(DEAD).startswith("dead")
        and guide.describe(DONE).startswith("done")
    )


def test_products_run_texts_through_many_states_stay_open_and_are_of_one_vocabulary() -> None:
    guide = PhraseGuide(MERGES, BannedPhrases(["abca", "bc"]))
    states = np.array(reachable(guide))
    for text in (b"", b"c", b"ca", b"ab"):
        assert guide.after_text(states, text).tolist() == [read(guide, text, state) for state in states.tolist()]
    left, right = BannedPhrases(["ab"]), BannedPhrases(["ca", "b"], whole_word=True)
    guide = ProductGuide(PhraseGuide(MERGES, left), PhraseGuide(MERGES, right))
    assert guide.open and guide.min_tokens(guide.start) == 0
    assert_guide(guide)
    assert_language([guide], lambda text: is_free(left)(text) and is_free(right)(text))
    refused(
        "two vocabularies",
        ProductGuide,
        fsm("a", MERGES),
        PhraseGuide(BYTES, BannedPhrases(["a"])),
        error=VocabularyError,
    )


def test_equal_lists_have_equal_fingerprints_and_rows_share_partitions() -> None:
    def name(*phrases: str, vocabulary: Vocabulary = MERGES, **options: bool) -> str:
        return PhraseGuide(vocabulary, BannedPhrases(phrases, **options)).fingerprint()

    names = [name("ab", "c"), name("ab"), name("ab", vocabulary=WORDS), name("ab", across_prompt=False)]
    assert name("ab", "c") == names[0] and len(set(names)) == 4
    refused("no fingerprint", name, "ab", whole_word=True)
    guide = PhraseGuide(MERGES, BannedPhrases(["xyz"]))
    assert guide.row(guide.start_after(b"q")).partition is guide.row(guide.start).partition
    assert guide.row(guide.start).partition.members(EOS).tolist() == [0]


def test_rows_of_other_states_cost_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vocabulary is walked once; a state further on looks at the first bytes and at what goes on with a phrase.

    And of the rows of a product inside a free string, only what is pending differs: it is refined once.
    """
    steps, refined = list[int](), list[int]()
    step, refine, rng = PhraseMatcher.step, ban_language.refine, np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghij"), size=rng.integers(2, 9))) for _ in range(3_000)]
    vocabulary = Vocabulary.from_tokens(["<eos>", *'abcdefghij"', *words], 0)

    def counted(matcher: PhraseMatcher, states: NDArray[Any], bytes: NDArray[Any]) -> NDArray[Any]:
        steps.append(len(states))
        return step(matcher, states, bytes)

    monkeypatch.setattr(PhraseMatcher, "step", counted)
    monkeypatch.setattr(ban_language, "refine", lambda a, b: refined.append(1) or refine(a, b))
    guide = PhraseGuide(vocabulary, BannedPhrases([word + "jjjj" for word in words[:200]]))
    guide.row(guide.start)
    whole = sum(steps)
    states = [guide.start_after(word.encode()) for word in words[:200]]
    assert len(set(states)) > 100 and sum(steps) == whole
    for state in states:
        guide.row(state)
    assert sum(steps) - whole < len(states) * whole / 20
    known = sum(steps)
    for state in states[-20:]:
        guide.row(state)
    assert sum(steps) == known, "recent rows are kept"
    both = ProductGuide(fsm('"[a-j]*"', vocabulary), guide)
    inside = {read(both, f'"{word}') for word in words[300:400]} - {DEAD}
    for state in inside:
        both.row(state)
    assert len(refined) <= 2 and len(inside) > 50
