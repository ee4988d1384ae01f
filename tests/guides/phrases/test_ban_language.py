"""Output types without phrases, against every token sequence and Python's own search."""

import re
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi import Vocabulary
from outlines_phi.errors import EmptyLanguageError, UnsupportedError, VocabularyError
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.guides.guide import DEAD, DONE, UNREACHABLE, Guide
from outlines_phi.guides.phrases import ban_language
from outlines_phi.guides.phrases.ban_language import ProductGuide, banned, depends_on_prompt
from outlines_phi.guides.phrases.banned import BannedPhrases, smallest_conflict
from outlines_phi.guides.phrases.phrase_guide import PhraseGuide
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.testing import assert_guide, assert_spells
from outlines_phi.testing.guide_conformance import reachable
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

fixed = settings(derandomize=True, deadline=None, max_examples=40)
PATTERNS = ("[ab]{1,4}", "(ab|bc|ca){1,2}", "a(b|c)?a?", "[a_ßé]{2,3}", r"[^a]{0,3}", "(s|ss|ab|a)b?s?", "(a|b ?){1,3}")


def fsm(pattern: str, vocabulary: Vocabulary) -> FSMGuide:
    return FSMGuide.from_automaton(compile_regex(pattern), vocabulary)


def is_member(pattern: str, phrases: BannedPhrases, text: bytes, prompt: bytes = b"") -> bool:
    try:
        matches = re.fullmatch(pattern, text.decode())
    except UnicodeDecodeError:
        return False
    return bool(matches) and not holds(phrases, text, prompt)


Ids = tuple[int, ...]


@cache
def allowed_after(
    vocabulary: Vocabulary, pattern: str, phrases: BannedPhrases, prompt: bytes, depth: int
) -> frozenset[Ids]:
    """Return the members without phrases after ``prompt``: guides of one product are asked for the same."""
    return frozenset(members(vocabulary, depth, lambda text: is_member(pattern, phrases, text, prompt)))


def assert_product(guide: Guide, pattern: str, phrases: BannedPhrases, prompt: bytes = b"", depth: int = 4) -> None:
    """Assert that the guide ends the members without phrases after ``prompt``, from every prefix in as few tokens as can be."""
    allowed = allowed_after(guide.vocabulary, pattern, phrases, prompt, depth)
    start = guide.start_after(prompt)
    assert_same(ended(guide, depth, start), allowed)
    to_go = least_tokens(allowed)
    level = [((), start)]
    advance, min_tokens = cache(guide.advance), cache(guide.min_tokens)
    for _ in range(depth):
        for ids, state in level:
            least = min_tokens(state) - 1
            if min(least, to_go.get(ids, UNREACHABLE)) + len(ids) <= depth:  # longer members are not listed
                assert least == to_go.get(ids, UNREACHABLE), ids
        below = [((*ids, v), advance(state, v)) for ids, state in level for v in range(len(guide.vocabulary))]
        level = [(ids, state) for ids, state in below if state not in (DEAD, DONE)]


CASES = (
    (MERGES, "[abc]{1,4}", BannedPhrases(["ab"])),
    (MERGES, "(ab|bc|ca){1,2}", BannedPhrases(["bb", "cab", "bca"])),
    (MERGES, "(a|b|c| ){2,3}", BannedPhrases(["a b", "c", "ba"], across_prompt=False)),
    (MERGES, "( a| b| c){1,3}", BannedPhrases(["a", "b c"], whole_word=True)),
    (BYTES, "(s|ß|_){1,3}", BannedPhrases(["ss"], ignore_case=True)),
    (BYTES, "[^s]{1,2}s?", BannedPhrases([re.compile("_[_ß]"), "S "])),
    (WORDS, "(cat|t)s?( cat|-é)*", BannedPhrases(["cat", "ts"], whole_word=True)),
)


@pytest.mark.parametrize(
    ("vocabulary", "pattern", "phrases"), CASES, ids=[f"{pattern} {ban.names}" for _, pattern, ban in CASES]
)
def test_what_the_type_allows_without_the_phrases(vocabulary: Vocabulary, pattern: str, phrases: BannedPhrases) -> None:
    left = fsm(pattern, vocabulary)
    for guide in (banned(left, phrases), ProductGuide(left, PhraseGuide(vocabulary, phrases))):
        assert_guide(guide)
        assert_rows(guide)
        for prompt in (b"", b"a", b"ca", b"x cat", b"_", b"s", b"t", b"\xc3"):
            if guide.min_tokens(guide.start_after(prompt)) < UNREACHABLE:
                assert_product(guide, pattern, phrases, prompt)
            else:
                assert not allowed_after(vocabulary, pattern, phrases, prompt, 4)


@fixed
@given(vocabularies(), st.sampled_from(PATTERNS), bans(), st.binary(max_size=2) | phrase_texts.map(str.encode))
def test_any_phrases_and_any_type(vocabulary: Vocabulary, pattern: str, phrases: BannedPhrases, prompt: bytes) -> None:
    try:
        left = fsm(pattern, vocabulary)
    except EmptyLanguageError:
        return
    try:
        guides = [banned(left, phrases)]
    except EmptyLanguageError:
        guides = []
        assert not members(vocabulary, 4, lambda text: is_member(pattern, phrases, text))
    guides.append(ProductGuide(left, PhraseGuide(vocabulary, phrases)))
    assert (guides[-1].min_tokens(guides[-1].start) < UNREACHABLE) == (len(guides) == 2)
    for guide in guides:
        start = guide.start_after(prompt)
        for before in (b"", prompt):
            assert_product(guide, pattern, phrases, before, depth=3)
        if len(guides) == 2:
            assert_guide(guide)
            assert_rows(guide, start)


@pytest.mark.parametrize(("vocabulary", "pattern", "phrases"), CASES[:3])
def test_the_product_spells_the_intersection(vocabulary: Vocabulary, pattern: str, phrases: BannedPhrases) -> None:
    both = compile_regex(pattern) & automaton_of(phrases.matcher)
    assert_spells(ProductGuide(fsm(pattern, vocabulary), PhraseGuide(vocabulary, phrases)), both)


def test_the_search_finds_a_product_that_forgets_the_phrases(monkeypatch: pytest.MonkeyPatch) -> None:
    _, pattern, phrases = CASES[0]
    guide = ProductGuide(fsm(pattern, MERGES), PhraseGuide(MERGES, BannedPhrases(["abab"])))
    with pytest.raises(AssertionError):
        assert_product(guide, pattern, phrases)


def test_a_dead_end_that_only_tokens_make() -> None:
    """After ``a``, ``b`` only ``c`` may follow, and no token is ``c``; the bytes alone have no dead end there."""
    vocabulary = Vocabulary.from_tokens(["<eos>", "a", "b", "bc", "d"], 0)
    phrases = BannedPhrases(["bd"])
    guide = ProductGuide(fsm("a(bc|bd)", vocabulary), PhraseGuide(vocabulary, phrases))
    assert (compile_regex("a(bc|bd)") & automaton_of(phrases.matcher)).accepts(b"abc")
    after_a = guide.advance(guide.start, 1)
    assert guide.advance(after_a, 2) == DEAD != guide.advance(after_a, 3)
    assert guide.row(after_a).targets[guide.row(after_a).partition.class_of].tolist()[2] == DEAD
    assert_guide(guide)


def test_the_shortest_way_leads_around_the_phrases() -> None:
    """The shortest text of the type holds a phrase; others are found best first, and the way there is known from then on."""
    letters = Vocabulary.from_tokens(["<eos>", *"abcx", "aaaa"], 0)
    guide = ProductGuide(fsm("a{4}x|[abc]{8}x", letters), PhraseGuide(letters, BannedPhrases(["aa", "ab", "cc"])))
    assert guide.min_tokens(guide.start) == 10
    assert_guide(guide)


def test_prompts_that_leave_nothing() -> None:
    guide = banned(fsm("ab|ac", Vocabulary.from_tokens(["<eos>", *"abcx"], 0)), BannedPhrases(["xab", "xac", "yac"]))
    assert guide.min_tokens(guide.start) == 3 == guide.min_tokens(guide.start_after(b"y"))
    assert guide.min_tokens(guide.start_after(b"...x")) == UNREACHABLE
    assert not guide.row(guide.start_after(b"x")).targets.any()
    with pytest.raises(EmptyLanguageError, match=r"a prompt that ends in 'acx': .* 'ab', makes 'xab'"):
        Table(guide).start_after([1, 3, 4])
    assert Table(guide).start_after([1, 4, 3]) == guide.start_after(b"axc")


def test_prompts_that_leave_nothing_of_a_product_of_a_product() -> None:
    letters = Vocabulary.from_tokens(["<eos>", *"abcx"], 0)
    twice = banned(banned(fsm("ab|ac", letters), BannedPhrases(["xab", "xac"])), BannedPhrases(["yab"]))
    starts = {prompt: twice.start_after(prompt) for prompt in (b"", b"x", b"y", b"...x")}
    least = {prompt: twice.min_tokens(state) for prompt, state in starts.items()}
    assert least == {b"": 3, b"x": UNREACHABLE, b"y": 3, b"...x": UNREACHABLE}
    assert {letters.decode(ids) for ids in ended(twice, 3, starts[b"y"])} == {b"ac"}


def test_a_word_after_a_letter_is_another_word() -> None:
    """``cat`` is banned as a word; after a prompt that ends in a letter it is the end of one."""
    guide = banned(fsm("cat|cats|s", WORDS), BannedPhrases(["cat", "xs"], whole_word=True))
    for prompt, texts in {b"": {b"s", b"cats"}, b"x": {b"cat", b"cats"}, b"x ": {b"s", b"cats"}}.items():
        assert {WORDS.decode(ids) for ids in ended(guide, 3, guide.start_after(prompt))} == texts


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
    letters = Vocabulary.from_tokens(["<eos>", *"abcx{}"], 0)
    assert isinstance(banned(fsm(pattern, letters), BannedPhrases(phrases)), ProductGuide) == depends
    assert isinstance(banned(fsm(pattern, letters), BannedPhrases(phrases, across_prompt=False)), FSMGuide)
    automaton = compile_regex(pattern)
    prompts = [text[:end].encode() for text in phrases for end in range(1, len(text) + 1)]
    texts = {text for text in members_of(automaton) if not holds(BannedPhrases(phrases), text)}
    changed = any(holds(BannedPhrases(phrases), text, prompt) for text in texts for prompt in prompts)
    assert depends_on_prompt(automaton, BannedPhrases(phrases)) == depends == changed


def members_of(automaton: object, limit: int = 50) -> list[bytes]:
    found = []
    for text in automaton.members():  # type: ignore[attr-defined]
        found.append(text)
        if len(found) == limit:
            break
    return found


def test_large_products_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ban_language, "PRODUCT_STATES", 6)
    letters = Vocabulary.from_tokens(["<eos>", *"abcx{}"], 0)
    phrases = BannedPhrases(["abcabc", "bb", "ca", "x"])
    guide = banned(fsm(r"\{[abc]{1,3}(x|a)\}", letters), phrases)
    assert isinstance(guide, ProductGuide)
    assert_product(guide, r"\{[abc]{1,3}(x|a)\}", phrases, depth=6)


def test_phrases_that_the_type_writes_by_itself_are_multiplied_in_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch that must hold a phrase is pruned before any step, so no search has to look through what comes before it."""
    monkeypatch.setattr(ban_language, "PRODUCT_STATES", 50)
    letters = Vocabulary.from_tokens(["<eos>", *"abcx01"], 0)
    phrases = BannedPhrases(["1xx1", *(f"{a}{b}{c}{d}x" for a in "abc" for b in "abc" for c in "abc" for d in "abc")])
    pattern = "0[abc]{0,9}0|[01][abc]{0,9}1xx1"
    monkeypatch.setattr(ban_language, "SEARCHED", 20)
    guide = banned(fsm(pattern, letters), phrases)
    assert isinstance(guide, FSMGuide | ProductGuide) and guide.advance(guide.start, 6) == DEAD
    for state in reachable(guide, limit=300):
        assert guide.min_tokens(state) < UNREACHABLE
    alone = ProductGuide(fsm(pattern, letters), PhraseGuide(letters, phrases))
    with pytest.raises(UnsupportedError, match="20 steps did not tell"):
        alone.advance(alone.start, 6)


def test_whole_words_that_the_type_writes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ban_language, "PRODUCT_STATES", 10)
    monkeypatch.setattr(ban_language, "SEARCHED", 50)
    phrases = BannedPhrases(["cat", "ts"], whole_word=True)
    guide = banned(fsm("[a-z]{0,9}(-cat-|-t|s)", WORDS), phrases)
    assert isinstance(guide, ProductGuide) and guide.min_tokens(guide.start) == 2
    assert_guide(guide)
    with pytest.raises(EmptyLanguageError, match="'cat' alone"):
        banned(fsm("[^ ]{0,9} cat(-|é)?-cat", WORDS), phrases)


def test_lists_that_leave_nothing_are_named() -> None:
    letters = Vocabulary.from_tokens(["<eos>", *"abcx"], 0)
    many = [f"x{a}{b}" for a in "abcx" for b in "abcx"]
    with pytest.raises(
        EmptyLanguageError, match=r"'bc' alone leaves no text of it. The shortest, 'abc', holds 'bc'. Take it"
    ):
        banned(fsm("abc|aabcc", letters), BannedPhrases([*many, "bc"]))
    with pytest.raises(EmptyLanguageError) as error:
        banned(fsm("abc|xbb", letters), BannedPhrases([*many, "bc", "ca"]))
    assert "'xbb', 'bc' alone leave no text of it" in str(error.value) and "one of them" in str(error.value)
    coarse = Vocabulary.from_tokens(["<eos>", "a", "b", "d"], 0)
    with pytest.raises(EmptyLanguageError, match="'bd' alone leaves no text"):
        banned(fsm("ab(c|d)", coarse), BannedPhrases(["zz", "bd", re.compile("xb{1,3}")]))
    with pytest.raises(EmptyLanguageError, match="The shortest, 'cat', holds 'cat'"):
        banned(fsm("cat", WORDS), BannedPhrases(["cat"], whole_word=True))


def test_few_culprits_among_many_take_few_questions() -> None:
    phrases = BannedPhrases([f"phrase {i}" for i in range(1_000)])
    guilty, asked = {"phrase 17", "phrase 512", "phrase 999"}, []

    def at_fault(some: BannedPhrases) -> bool:
        asked.append(len(some))
        return guilty <= set(some.phrases)

    assert set(smallest_conflict(phrases, at_fault).phrases) == guilty
    assert len(asked) < 80
    assert smallest_conflict(BannedPhrases(["a"], whole_word=True), lambda some: True) == BannedPhrases(
        ["a"], whole_word=True
    )


def test_pending_and_the_phrases_that_tokens_complete() -> None:
    guide = ProductGuide(fsm("[ab]{1,6}", MERGES), PhraseGuide(MERGES, BannedPhrases(["abb", "bc"])))
    state = guide.advance(guide.start, 5)
    assert guide.pending(state) == 2 and guide.pending(guide.start) == 0 == guide.pending(DONE)
    found = guide.phrases_at(state, np.arange(len(MERGES)))
    assert {MERGES.tokens[v]: int(i) for v, i in enumerate(found) if i >= 0} == {b"b": 0}, "bc is not of the type"
    assert "bytes pending" in guide.describe(state)


def test_an_open_guide_stays_open() -> None:
    left = PhraseGuide(MERGES, BannedPhrases(["ab"]))
    guide = ProductGuide(left, PhraseGuide(MERGES, BannedPhrases(["ca", "b"], whole_word=True)))
    assert guide.open and guide.min_tokens(guide.start) == 0
    assert_guide(guide)
    both = members(MERGES, 3, lambda text: not (holds(left.phrases, text) or holds(guide.phrases, text)))
    assert_same(ended(guide, 3, guide.start), both)


def test_guides_of_two_vocabularies_have_no_product() -> None:
    with pytest.raises(VocabularyError, match="two vocabularies"):
        ProductGuide(fsm("a", MERGES), PhraseGuide(BYTES, BannedPhrases(["a"])))


def test_pairs_with_the_same_left_state_share_their_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the rows inside a free string, only what is pending differs: it is refined and interned once."""
    refined: list[int] = []
    refine = ban_language.refine
    monkeypatch.setattr(ban_language, "refine", lambda a, b: refined.append(1) or refine(a, b))
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefgh"), size=rng.integers(2, 9))) for _ in range(2_000)]
    vocabulary = Vocabulary.from_tokens(["<eos>", *'abcdefgh"', *words], 0)
    phrases = BannedPhrases([word + "hh" for word in words[:300]])
    guide = ProductGuide(fsm('"[a-h]*"', vocabulary), PhraseGuide(vocabulary, phrases))
    state, seen = guide.advance(guide.start, 9), set()
    guide.row(state)
    met = len(guide._number)
    for token in rng.integers(10, len(vocabulary), 200).tolist():
        after = guide.advance(state, token)
        if after != DEAD:
            state = after
            seen.add(state)
            guide.row(state)
    assert len(refined) == 1 and len(seen) > 50
    assert len(guide._number) < 2 * met
