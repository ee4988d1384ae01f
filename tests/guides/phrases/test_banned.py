"""Banned phrases occur where Python finds them, and what cannot be banned is refused."""

import pickle
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi import BannedPhrases, OutlinesPhiError, UnsupportedError
from outlines_phi.automata.aho_corasick import AhoCorasick
from outlines_phi.automata.automaton import ByteAutomaton
from outlines_phi.guides.phrases import banned
from outlines_phi.guides.phrases.matcher import Literals, PhraseMatcher
from outlines_phi.regex.patterns import compile_regex
from tests.occurrences import Occurrences

fixed = settings(derandomize=True, deadline=None, max_examples=60)

ALPHABET = "abkKsifnι_- \u212aſßẞﬁﬃİΣςσéÉ🙂ŉʼΐ\u0307\u0308"
"""Letters with foldings of other lengths in bytes and in characters, with what they fold to; marks, a symbol, and no letters."""

FOLDED = [character for character in map(chr, range(0x110000)) if character.casefold() != character]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[str], bytes]:
    """Phrases of a small alphabet, nested and overlapping, and a text of it, some of whose characters are cut."""
    alphabet = draw(st.lists(st.sampled_from(ALPHABET), min_size=2, max_size=4, unique=True))
    phrase = st.lists(st.sampled_from(alphabet), min_size=1, max_size=4).map("".join)
    whole = st.sampled_from(alphabet).map(str.encode)
    cut = st.tuples(whole, st.integers(0, 3), st.integers(1, 4)).map(lambda part: part[0][part[1] :][: part[2]])
    text = draw(st.lists(st.one_of(whole, whole, whole, cut), max_size=7)).copy()
    return draw(st.lists(phrase, min_size=1, max_size=4, unique=True)), b"".join(text)


def differences(matcher: PhraseMatcher, oracle: Occurrences, text: bytes, alphabet: list[str]) -> list[str]:
    """Return the facts of the matcher along ``text`` that Python contradicts."""
    state, wrong = matcher.start, []
    for size in range(len(text) + 1):
        read = text[:size]
        state = matcher.read(state, read[-1:])
        one = np.array([state])
        facts = {
            "completed": (matcher.completed(state), oracle.completed(read)),
            "matches": (bool(matcher.matches(one)[0]), bool(oracle.completed(read))),
            "completed_at_end": (matcher.completed_at_end(state), oracle.completed_at_end(read)),
            "completes_at_end": (bool(matcher.completes_at_end(one)[0]), bool(oracle.completed_at_end(read))),
            "pending": (int(matcher.pending(one)[0]), oracle.pending(read, alphabet)),
        }
        wrong += [f"{name} of {read!r}: {said}" for name, said in facts.items() if said[0] != said[1]]
    return wrong


options = pytest.mark.parametrize(
    ("ignore_case", "whole_word"), [(False, False), (True, False), (False, True), (True, True)]
)


@options
def test_literals_occur_where_python_finds_them(ignore_case: bool, whole_word: bool) -> None:
    completed = set()

    @fixed
    @given(cases())
    def check(case: tuple[list[str], bytes]) -> None:
        phrases, text = case
        oracle = Occurrences(phrases, ignore_case, whole_word)
        matcher = BannedPhrases(phrases, ignore_case=ignore_case, whole_word=whole_word).matcher
        of = set("".join(phrases).casefold())
        # What bytes that are held may become.
        alphabet = [*"".join(phrases), *(c for c in FOLDED if ignore_case and of & set(c.casefold()))]
        assert differences(matcher, oracle, text, alphabet) == []
        completed.add(bool(oracle.of(text, finished=True)))

    check()
    assert completed == {True, False}


@options
def test_a_text_is_banned_as_the_words_say(ignore_case: bool, whole_word: bool) -> None:
    """Once more, with nothing of the oracle: `in`, `str.casefold` and a look at the characters beside."""

    @fixed
    @given(
        st.lists(st.text("aßsK\u212a _é", min_size=1, max_size=3), min_size=1, max_size=3),
        st.text("aßsKk\u212a _éÉ-", max_size=9),
    )
    def check(phrases: list[str], text: str) -> None:
        matcher = BannedPhrases(phrases, ignore_case=ignore_case, whole_word=whole_word).matcher
        found = False
        searched = text.casefold() if ignore_case else text
        for phrase in phrases:
            wanted = phrase.casefold() if ignore_case else phrase
            if whole_word:
                found |= re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", searched) is not None
            else:
                found |= wanted in searched
        state, banned = matcher.start, False
        for byte in text.encode():
            state = matcher.read(state, bytes([byte]))
            banned |= bool(matcher.matches(np.array(state)))
        assert (banned or bool(matcher.completed_at_end(state))) == found

    check()


def test_a_trie_without_failures_is_found_out() -> None:
    """The control: the same comparison fails for a matcher that starts again at the root."""
    matcher = BannedPhrases(["aab", "ac"]).matcher
    oracle, text = Occurrences(["aab", "ac"]), b"aaab"
    assert differences(matcher, oracle, text, list("abc")) == []
    words: AhoCorasick = matcher._machine._words  # type: ignore[attr-defined]
    forward = words.depth[words.after] > words.depth[:, None]
    words.after[~forward] = 0
    found = " ".join(differences(matcher, oracle, text, list("abc")))
    assert "completed" in found and "pending" in found


PATTERNS = (
    r"(foo|ba[rz]){1,2}",
    r"[0-9]{1,2}-",
    "é[ab]",
    "ß{2}k?",
    "a{1,3}b|ba",
    "(a|ab)(c|bcd)?",
    "[aé]{2}",
    "_a?",
    "k[a ]?-",
    r"\w{2}",
)
characters_of_patterns = "abckKßéÉforz07-_ dAB\u212a🙂"


@options
def test_regular_expressions_occur_where_python_finds_them(ignore_case: bool, whole_word: bool) -> None:
    @fixed
    @given(
        st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2, unique=True),
        st.lists(st.text("abK é-", min_size=1, max_size=2), max_size=1),
        st.sampled_from([0, re.IGNORECASE]),
        st.text(characters_of_patterns, max_size=8),
    )
    def check(patterns: list[str], literals: list[str], flags: int, text: str) -> None:
        phrases = [*literals, *(re.compile(pattern, flags) for pattern in patterns)]
        oracle = Occurrences(phrases, ignore_case, whole_word)
        matcher = BannedPhrases(phrases, ignore_case=ignore_case, whole_word=whole_word).matcher
        state = matcher.start
        for size in range(len(text.encode()) + 1):
            read = text.encode()[:size]
            state = matcher.read(state, read[-1:])
            assert matcher.completed(state) == oracle.completed(read)
            assert matcher.completed_at_end(state) == oracle.completed_at_end(read)

    check()


@options
def test_regular_expressions_are_pending_where_some_text_completes_them(ignore_case: bool, whole_word: bool) -> None:
    patterns = ["(a|ab)(c|bcd)?", "c[ab]{1,2}"]
    phrases = [re.compile(pattern, re.IGNORECASE if ignore_case else 0) for pattern in patterns]
    oracle = Occurrences(phrases, ignore_case, whole_word)
    matcher = BannedPhrases(phrases, ignore_case=ignore_case, whole_word=whole_word).matcher

    @settings(derandomize=True, deadline=None, max_examples=40)
    @given(st.text("abcdBC é" if ignore_case else "abcd é", max_size=5))
    def check(text: str) -> None:
        assert differences(matcher, oracle, text.encode(), [*"abcd"]) == []

    check()


@pytest.mark.parametrize(
    ("pattern", "text", "at"),
    [
        (r"\d{3}-\d{4}", "call 555-1234 now", 13),
        (r"(foo|ba[rz]){1,2}", "xbar", 4),
        (r"é.x", "aéßx", 6),
        ("(?s:a.b)", "a\nb", 3),
    ],
)
def test_a_match_is_completed_by_its_last_byte(pattern: str, text: str, at: int) -> None:
    matcher = BannedPhrases([re.compile(pattern)]).matcher
    states = [matcher.read(matcher.start, text.encode()[:size]) for size in range(len(text.encode()) + 1)]
    assert np.flatnonzero(matcher.matches(np.array(states)))[0] == at


def test_phrases_are_counted_once_and_named() -> None:
    phrases = BannedPhrases(
        ["a", b"a", "é", "é".encode(), re.compile("b{2}"), re.compile("b{2}"), re.compile("c", re.I), "a"]
    )
    assert phrases.phrases == ("a", "é", re.compile("b{2}"), re.compile("c", re.I)) and len(phrases) == 4
    assert (
        phrases.names == phrases.matcher.names == ("'a'", "'é'", "re.compile('b{2}')", "re.compile('c', re.IGNORECASE)")
    )
    assert phrases.matcher.completed(phrases.matcher.read(phrases.matcher.start, "Cé".encode())) == (1,)
    long = "x" * 300
    assert BannedPhrases([re.compile(long)]).names == (f"re.compile({long!r})",), "not cut short"


def test_phrases_that_fold_alike_are_both_completed() -> None:
    matcher = BannedPhrases(["Ab", "aB", "b"], ignore_case=True).matcher
    assert matcher.completed(matcher.read(matcher.start, b"AB")) == (0, 1, 2)


def test_equal_phrases_are_equal() -> None:
    one, other = (
        BannedPhrases(["a", re.compile("b")], ignore_case=True),
        BannedPhrases((b"a", re.compile("b")), ignore_case=True),
    )
    assert one == other and hash(one) == hash(other)
    assert one != BannedPhrases(["a", re.compile("b")]) and one != BannedPhrases(
        ["a", re.compile("b")], True, level="exact"
    )
    assert one.matcher is one.matcher
    again = pickle.loads(pickle.dumps(one))
    assert again == one and again.matcher.names == one.matcher.names
    with pytest.raises(AttributeError):
        one.ignore_case = False  # type: ignore[misc]


def test_phrases_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "banned.txt"
    path.write_bytes("\ufefflinarith\r\n\n  \n leading\nnaïve\u2028line\nlinarith".encode())
    found = BannedPhrases.from_file(path, whole_word=True, level="mask")
    assert found == BannedPhrases(["linarith", " leading", "naïve\u2028line"], whole_word=True, level="mask")
    path.write_bytes(b"fine\n\nnot\xffthis\n")
    with pytest.raises(UnsupportedError, match=r"banned\.txt is not UTF-8: byte 0xff on line 3"):
        BannedPhrases.from_file(str(path))
    path.write_bytes(b"\n \n")
    with pytest.raises(UnsupportedError, match="empty"):
        BannedPhrases.from_file(path)
    with pytest.raises(FileNotFoundError):
        BannedPhrases.from_file(tmp_path / "missing.txt")


@pytest.mark.parametrize(
    ("phrases", "given", "said"),
    [
        ("linarith", {}, r"is one phrase; expected a list of phrases: \['linarith'\]"),
        (b"linarith", {}, "is one phrase"),
        (re.compile("a"), {}, "is one phrase"),
        (None, {}, "expected a list of phrases"),
        (7, {}, "expected a list of phrases"),
        ([], {}, "empty; leave it out, or name a phrase"),
        (["a", ""], {}, "a banned phrase is empty"),
        ([b""], {}, "a banned phrase is empty"),
        (["a", 7], {}, "the banned phrase 7 is of type int"),
        ([["a"]], {}, "is of type list"),
        (["\ud800"], {}, "cannot be written in UTF-8"),
        ([b"\xff"], {}, "cannot be written in UTF-8"),
        (["a"], {"ignore_case": 1}, "ignore_case=1 was given; expected True or False"),
        (["a"], {"whole_word": None}, "whole_word=None"),
        (["a"], {"across_prompt": "no"}, "across_prompt='no'"),
        (["a"], {"level": "all"}, "level='all' was given for banned phrases; expected one of 'mask', 'lookahead'"),
        ([re.compile(b"a")], {}, "is one for bytes"),
        ([re.compile("a", re.DOTALL)], {}, r"has the flags re.DOTALL; .*\(\?s:\.\)"),
        ([re.compile("a.*b")], {}, "is unbounded"),
        ([re.compile("a?")], {}, "matches the empty text"),
        ([re.compile("")], {}, "matches the empty text"),
        ([re.compile("(?!a)b")], {}, "look-around"),
        ([re.compile(r"\bcat\b")], {}, "word boundary"),
        ([re.compile("[^\\s\\S]")], {}, "matches nothing at all"),
    ],
)
def test_what_cannot_be_banned_is_refused(phrases: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(OutlinesPhiError, match="(?s)" + said) as caught:
        BannedPhrases(phrases, **given)
    assert isinstance(caught.value, UnsupportedError)


def random_phrases(count: int) -> list[str]:
    rng = random.Random(0)
    letters = [chr(code) for code in range(32, 127)]
    return list({"".join(rng.choices(letters, k=rng.randint(5, 40))) for _ in range(count)})


def test_thousands_of_phrases_are_one_dense_table() -> None:
    phrases = random_phrases(10_000)
    matcher = BannedPhrases(phrases).matcher
    assert isinstance(matcher._machine, Literals)
    beginnings = {phrase[:size] for phrase in phrases for size in range(len(phrase) + 1)}
    assert matcher._machine._words.after.shape == (len(beginnings), 96) and matcher._machine._words.after.nbytes < 100e6
    assert matcher.longest == 40


@pytest.mark.parametrize(
    "given", [{"ignore_case": True}, {"whole_word": True}, {"ignore_case": True, "whole_word": True}]
)
def test_a_matcher_makes_the_states_that_a_text_leads_to(given: dict[str, bool]) -> None:
    phrases = random_phrases(1000)
    matcher = BannedPhrases(phrases, **given).matcher
    assert len(matcher) == 1
    text = "".join(phrases[:20])[:-1].encode()
    matcher.read(matcher.start, text)
    assert len(matcher) <= len(text) + 1


class TestSizes:
    def test_the_states_of_all_regular_expressions_are_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        patterns = [re.compile(f"{word}x{{1,3}}") for word in ("ab", "cde", "f")]
        states = sum(len(compile_regex(pattern.pattern)) for pattern in patterns)
        monkeypatch.setattr(banned, "MOST_STATES", states)
        assert BannedPhrases(patterns).matcher
        monkeypatch.setattr(banned, "MOST_STATES", states - 1)
        with pytest.raises(
            UnsupportedError, match=rf"of the first 3 of 3 .* have {states} states, more than {states - 1}; "
        ) as e:
            BannedPhrases([*patterns, "a text"])
        assert "the largest, re.compile('cdex{1,3}'), has" in str(e.value) and "ban texts as str" in str(e.value)

    def test_a_thousand_that_are_too_many_are_refused_before_all_are_compiled(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(banned, "MOST_STATES", 8_000)
        patterns = [re.compile(f"{'abcdefghij'[i % 10]}{i}\\w{{1,9}}") for i in range(1_000)]
        with pytest.raises(
            UnsupportedError, match=r"the first \d of 1,000 banned regular expressions have 8,\d\d\d states"
        ):
            BannedPhrases(patterns)

    def test_each_is_compiled_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """More than the cache of compiled patterns holds."""
        compiled: list[str] = []

        def compile_(pattern: str) -> ByteAutomaton:
            compiled.append(pattern)
            return compile_regex(pattern)

        monkeypatch.setattr(banned, "compile_regex", compile_)
        phrases = BannedPhrases([re.compile(f"a{i}[bc]") for i in range(300)])
        assert phrases.matcher.longest == 5
        assert len(compiled) == 300 and len(phrases.matcher.names) == 300
