"""Matchers: the laws of every one, and phrases that occur where Python finds them."""

import codecs
import random
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi import BannedPhrases
from outlines_phi.guides.phrases.machines import foldings, word_characters
from outlines_phi.guides.phrases.matcher import PhraseMatcher
from tests.guides.walking import automaton_of
from tests.leaks import occurrences

SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")


def is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def characters(text: bytes, finished: bool) -> list[str]:
    """The characters of a text; what may still become one is left out unless the text is finished."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    own = decoder.decode(text, finished)
    held, _ = decoder.getstate()
    # Python also holds the beginning of a surrogate, which no byte can complete.
    return list(own + (decoder.decode(b"", True) if SURROGATE.match(held) else ""))


def width(character: str) -> int:
    return len(character.encode(errors="surrogateescape"))


@cache
def members_of(pattern: re.Pattern[str], alphabet: str) -> list[str]:
    """The matches of a pattern with at most five characters of the alphabet."""
    texts = ("".join(text) for length in range(1, 6) for text in product(alphabet, repeat=length))
    return [text for text in texts if pattern.fullmatch(text)]


@dataclass(frozen=True)
class Occurrences:
    """The occurrences of phrases with these options."""

    phrases: Sequence[str | re.Pattern[str]]
    ignore_case: bool = False
    whole_word: bool = False

    def of(self, text: bytes, finished: bool = False) -> set[tuple[int, int, int, int]]:
        """All occurrences that no continuation can undo: phrase, first byte, and where they begin and end in what is searched."""
        own, found = characters(text, finished), set()
        bytes_before = [sum(map(width, own[:place])) for place in range(len(own))]
        for index, phrase in enumerate(self.phrases):
            folds = self.ignore_case and isinstance(phrase, str)
            letters = [(f, place) for place, c in enumerate(own) for f in (c.casefold() if folds else c)]
            searched = "".join(f for f, _ in letters)
            found |= {
                (index, bytes_before[letters[start][1]], start, end)
                for start, end in occurrences(phrase, searched, self.ignore_case)
                if not self.whole_word or self._is_whole(searched, start, end, finished)
            }
        return found

    def completed(self, text: bytes) -> tuple[int, ...]:
        """Return the phrases that the last byte completes."""
        return tuple(sorted({index for index, *_ in self.of(text) - self.of(text[:-1])})) if text else ()

    def completed_at_end(self, text: bytes) -> tuple[int, ...]:
        """Return the phrases that the end of the text completes."""
        return tuple(sorted({index for index, *_ in self.of(text, True) - self.of(text)}))

    def pending(self, text: bytes, alphabet: Sequence[str]) -> int:
        """Return the length of the longest suffix that some continuation completes, in bytes."""
        now = self.of(text)
        completing = (self.of(text + more, True) - now for more in self._continuations(text, alphabet))
        starts = [first for found in completing for _, first, *_ in found]
        return max([len(text) - start for start in starts if start < len(text)], default=0)

    def _continuations(self, text: bytes, alphabet: Sequence[str]) -> Iterator[bytes]:
        held = text[sum(map(width, characters(text, False))) :]
        rests = [c.encode()[len(held) :] for c in alphabet if held and c.encode().startswith(held)]
        members = [member for phrase in self.phrases for member in self._members(phrase, "".join(alphabet))]
        suffixes = {member[place:].encode() for member in members for place in range(len(member) + 1)}
        return (first + suffix for first in [b"", *rests] for suffix in suffixes)

    def _members(self, phrase: str | re.Pattern[str], alphabet: str) -> list[str]:
        if isinstance(phrase, re.Pattern):
            return members_of(phrase, alphabet)
        return [phrase.casefold() if self.ignore_case else phrase]

    def _is_whole(self, searched: Sequence[str], start: int, end: int, finished: bool) -> bool:
        if start > 0 and is_word(searched[start - 1]):
            return False
        return finished if end == len(searched) else not is_word(searched[end])


fixed = settings(derandomize=True, deadline=None, max_examples=60)

LITERALS = ["ab", "abc", "bcb", "c a"]


def matcher_of(phrases: Sequence[str | re.Pattern[str]], **given: bool) -> PhraseMatcher:
    return BannedPhrases(phrases, **given).matcher


PATTERNED: list[str | re.Pattern[str]] = [re.compile("abc?"), re.compile("bcb|c a")]
TOGETHER: list[str | re.Pattern[str]] = ["abc", re.compile("bcb"), "ab", "c a"]

KINDS: dict[str, Callable[[], PhraseMatcher]] = {
    "literal": lambda: matcher_of(LITERALS),
    "ignore case": lambda: matcher_of(LITERALS, ignore_case=True),
    "whole word": lambda: matcher_of(LITERALS, whole_word=True),
    "whole word, ignore case": lambda: matcher_of(LITERALS, ignore_case=True, whole_word=True),
    "languages": lambda: matcher_of(PATTERNED),
    "languages, whole word": lambda: matcher_of(PATTERNED, whole_word=True),
    "together": lambda: matcher_of(TOGETHER, ignore_case=True, whole_word=True),
    "together, plain": lambda: matcher_of(TOGETHER),
}


@pytest.fixture(scope="module", params=KINDS)
def matcher(request: pytest.FixtureRequest) -> PhraseMatcher:
    """One that has read what the tests before have."""
    return KINDS[request.param]()


WRITTEN = [b"ab", b" bc", b"b ", b"a", b"b", b"c", b" ", b"C", "é".encode(), b"\xe2\x84", "\u212a".encode(), b"\xff"]
pieces = st.sampled_from(WRITTEN)
texts = st.lists(pieces, max_size=10).map(b"".join)


def states_along(matcher: PhraseMatcher, text: bytes, state: int = 0) -> list[int]:
    return [state] + [state := matcher.read(state, bytes([byte])) for byte in text]


def is_free(matcher: PhraseMatcher, states: Sequence[int]) -> bool:
    """Return True if no phrase is completed on the way, and none by the end of the text."""
    return not matcher.matches(np.array(states[1:], dtype=int)).any() and not matcher.completed_at_end(states[-1])


@fixed
@given(first=texts, second=texts)
def test_a_text_may_be_read_in_any_pieces(matcher: PhraseMatcher, first: bytes, second: bytes) -> None:
    state = matcher.read(matcher.read(matcher.start, first), second)
    assert state == matcher.read(matcher.start, first + second) == states_along(matcher, first + second)[-1]
    assert matcher.advance(matcher.read(matcher.start, first), second) == state
    assert matcher.read(matcher.start, (first + second)[-matcher.longest :]) == state, "the longest end decides"


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_steps_are_elementwise(make: Callable[[], PhraseMatcher]) -> None:
    one, many = make(), make()
    bytes_ = np.random.default_rng(0).choice(
        np.frombuffer(b"aabbcc   CA\xe2\x84\xaa", dtype=np.uint8), size=(5, 40, 30)
    )
    states = np.full(bytes_.shape[1:], many.start)
    for row in bytes_:
        states = many.step(states, row)
        assert states.shape == row.shape and states.dtype == np.int32
    for place in np.ndindex(states.shape):
        state, other = int(states[place]), one.read(one.start, bytes_[(slice(None), *place)].tobytes())
        assert many.completed(state) == one.completed(other)
        assert many.completed_at_end(state) == one.completed_at_end(other)
    facts: list[Callable[[Any], Any]] = [many.matches, many.completes_at_end, many.pending, many.futures]
    for fact in facts:
        assert fact(states).shape == states.shape
        assert (fact(states).ravel() == [fact(np.array(state)) for state in states.ravel()]).all()
    assert (many.matches(states).ravel() == [bool(many.completed(state)) for state in states.ravel().tolist()]).all()
    assert many.matches(states).any() and (many.pending(states) > 0).any()
    corner = many.step(states[:, :1], np.frombuffer(b"ab", dtype=np.uint8))
    assert corner.shape == (40, 2), "one state for several bytes"


def test_equal_classes_of_bytes_act_alike(matcher: PhraseMatcher) -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        text = rng.choice(np.frombuffer(b"abc A\xe2\x84", dtype=np.uint8), size=6).tobytes()
        after = matcher.step(np.array(matcher.read(matcher.start, text)), np.arange(256))
        _, first = np.unique(matcher.byte_class, return_index=True)
        assert (after == after[first][matcher.byte_class]).all()


@pytest.mark.in_turn
def test_texts_without_a_phrase_are_those_of_its_futures(matcher: PhraseMatcher) -> None:
    automaton, outcomes = automaton_of(matcher), set()

    @fixed
    @given(texts)
    def check(text: bytes) -> None:
        outcomes.add(automaton.accepts(text))
        assert automaton.accepts(text) == is_free(matcher, states_along(matcher, text))

    check()
    assert outcomes == {True, False}


@pytest.mark.in_turn
def test_states_of_one_future_complete_the_same(matcher: PhraseMatcher) -> None:
    rng = np.random.default_rng(2)
    alphabet = np.frombuffer(b"abc A\xe2\x84\xaa", dtype=np.uint8)
    reached = [matcher.read(matcher.start, rng.choice(alphabet, size=rng.integers(9)).tobytes()) for _ in range(300)]
    futures = matcher.futures(np.array(reached)).tolist()
    for _ in range(20):
        text = rng.choice(alphabet, size=6).tobytes()
        completed: dict[int, list[object]] = {}
        for state, future in zip(reached, futures, strict=True):
            along = states_along(matcher, text, state)
            said = [matcher.completed(after) for after in along[1:]] + [matcher.completed_at_end(s) for s in along]
            assert completed.setdefault(future, said) == said
        assert len(completed) > 3


@pytest.mark.parametrize("kind", ["whole word", "whole word, ignore case", "languages, whole word", "together"])
def test_what_waits_at_the_end_of_a_prompt_is_not_completed_by_the_text(kind: str) -> None:
    matcher = KINDS[kind]()
    prompts = set()

    @fixed
    @given(texts, st.sampled_from([b"", b" ab", b" abc", b" bcb\xe2", b" c a", b"-ab "]), texts)
    def check(prompt: bytes, ending: bytes, text: bytes) -> None:
        waiting = matcher.read(matcher.start, prompt + ending)
        prompts.add(bool(matcher.completed_at_end(waiting)))
        along = states_along(matcher, text, waiting)
        after = states_along(matcher, text, matcher.after_prompt(waiting))
        forgiven = set(matcher.completed_at_end(waiting))
        assert matcher.completed_at_end(after[0]) == ()
        for own, other in zip(after[1:], along[1:], strict=True):
            told = set(matcher.completed(other)) - set(matcher.completed(own))
            assert set(matcher.completed(own)) <= set(matcher.completed(other)) and told <= forgiven
            assert matcher.pending(np.array(own)) <= matcher.pending(np.array(other))

    check()
    assert prompts == {True, False}


def test_threads_share_a_matcher() -> None:
    matcher, alone, rng = KINDS["together"](), KINDS["together"](), np.random.default_rng(3)
    many = [rng.choice(np.frombuffer(b"abc A\xe2\x84\xaa", dtype=np.uint8), size=400).tobytes() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda text: list(map(matcher.completed, states_along(matcher, text))), many))
    assert said == [list(map(alone.completed, states_along(alone, text))) for text in many]


BORDERS = [0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]
"""The first and last characters of each length, and those beside the surrogates."""

ALPHABET = "abkKsifnι_- \u212aſßẞﬁﬃİΣςσéÉ🙂ŉʼΐ\u0307\u0308" + "".join(map(chr, BORDERS))
"""Letters with foldings of other lengths in bytes and in characters, with what they fold to; marks, a symbol, and no letters."""

BROKEN = [b"\xe0\x80", b"\xe2\x82", b"\xed\xa0", b"\xf0\x9f\x98", b"\xf4\x90", b"\xc0\xaf", b"\xf8", b"\xff"]
"""Bytes that begin no character, or not the one that follows."""

EVERY = [*map(chr, range(0xD800)), *map(chr, range(0xE000, 0x110000))]
FOLDED = [character for character in EVERY if character.casefold() != character]


Case = tuple[list[str | re.Pattern[str]], bytes, list[str] | None]
"""Phrases, a text, and the letters of what may complete a phrase, where that is asked for."""


@st.composite
def literal_cases(draw: st.DrawFn) -> Case:
    """Phrases of a small alphabet, nested and overlapping, and a text of it, some of whose characters are cut."""
    alphabet = draw(st.lists(st.sampled_from(ALPHABET), min_size=2, max_size=4, unique=True))
    phrase = st.lists(st.sampled_from(alphabet), min_size=1, max_size=4).map("".join)
    whole = st.sampled_from(alphabet).map(str.encode)
    cut = st.tuples(whole, st.integers(0, 3), st.integers(1, 4)).map(lambda part: part[0][part[1] :][: part[2]])
    text = draw(st.lists(st.one_of(whole, whole, whole, cut, st.sampled_from(BROKEN)), max_size=7))
    phrases = draw(st.lists(phrase, min_size=1, max_size=4, unique=True))
    return phrases, b"".join(text), [*"".join(phrases)]


PATTERNS = [
    r"(foo|ba[rz]){1,2}", r"[0-9]{1,2}-", "é[ab]", "ß{2}k?", "a{1,3}b|ba", "(a|ab)(c|bcd)?", "[aé]{2}", "_a?", "k[a ]?-", r"\w{2}",
    "(?s:a.b)",
]  # fmt: skip
patterns = st.builds(
    lambda texts, patterns, flags: [*texts, *(re.compile(pattern, flags) for pattern in patterns)],
    st.lists(st.text("abK é-", min_size=1, max_size=2), max_size=1),
    st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2, unique=True),
    st.sampled_from([0, re.IGNORECASE]),
)
CASES: dict[str, st.SearchStrategy[Case]] = {
    "literals": literal_cases(),
    "patterns": st.tuples(patterns, st.text("abckKßéÉforz07-_ \ndAB\u212a🙂", max_size=8).map(str.encode), st.none()),
    "pending patterns": st.tuples(
        st.just([re.compile("(a|ab)(c|bcd)?"), re.compile("c[ab]{1,2}")]),
        st.text("abcd é", max_size=5).map(str.encode),
        st.just([*"abcd"]),
    ),
}


def differences(matcher: PhraseMatcher, oracle: Occurrences, text: bytes, alphabet: list[str] | None) -> list[str]:
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
            "pending": (int(matcher.pending(one)[0]), oracle.pending(read, alphabet)) if alphabet else (0, 0),
        }
        wrong += [f"{name} of {read!r}: {said}" for name, said in facts.items() if said[0] != said[1]]
    return wrong


@pytest.mark.parametrize(("ignore_case", "whole_word"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("kind", CASES)
def test_phrases_occur_where_python_finds_them(kind: str, ignore_case: bool, whole_word: bool) -> None:
    completed = set()

    @fixed
    @given(CASES[kind])
    def check(case: Case) -> None:
        phrases, text, alphabet = case
        oracle = Occurrences(phrases, ignore_case, whole_word)
        matcher = BannedPhrases(phrases, ignore_case=ignore_case, whole_word=whole_word).matcher
        if kind == "literals" and alphabet and ignore_case:  # bytes that are held may become any of these
            of = set("".join(alphabet).casefold())
            alphabet = alphabet + [c for c in FOLDED if of & set(c.casefold())]
        assert differences(matcher, oracle, text, alphabet) == []
        completed.add(bool(oracle.of(text, finished=True)))

    check()
    assert completed == {True, False}


def test_a_wrong_oracle_is_found_out() -> None:
    """The control: the comparison fails for other phrases."""
    matcher, text = BannedPhrases(["aab", "ac"]).matcher, b"aabac"
    assert differences(matcher, Occurrences(["aab", "ac"]), text, list("abc")) == []
    found = " ".join(differences(matcher, Occurrences(["aba", "ac"]), text, list("abc")))
    assert "completed" in found and "pending" in found


@pytest.mark.parametrize(
    "given", [{"ignore_case": True}, {"whole_word": True}, {"ignore_case": True, "whole_word": True}, {}]
)
def test_the_states_of_thousands_of_phrases(given: dict[str, bool]) -> None:
    """One dense table of plain ones; of others those that a text leads to."""
    rng, letters = random.Random(0), [chr(code) for code in range(32, 127)]
    phrases = list({"".join(rng.choices(letters, k=rng.randint(5, 40))) for _ in range(1_000 if given else 10_000)})
    matcher = BannedPhrases(phrases, **given).matcher
    if not given:
        assert (
            len(matcher) == len({phrase[:size] for phrase in phrases for size in range(len(phrase) + 1)})
            and matcher.longest == 40
        )
        return
    text = "".join(phrases[:20])[:-1].encode()
    assert len(matcher) == 1
    matcher.read(matcher.start, text)
    assert len(matcher) <= len(text) + 1


def test_word_characters_and_foldings_are_those_of_python() -> None:
    word, folded = word_characters(), foldings()
    assert word.tolist() == [c.isalnum() or c == "_" for c in map(chr, range(0x110000))] and not word.flags.writeable
    assert folded == {c: c.casefold() for c in FOLDED}
    assert all(part.casefold() == part for parts in folded.values() for part in parts), "what is folded stays"


def test_every_character_is_read_alone() -> None:
    """All that fold to a letter of a phrase, and others of all of Unicode."""
    phrases, interesting = ["k", "日"], [c for c in EVERY if set(c.casefold()) & set("k日")] + EVERY[::1009]
    matcher = BannedPhrases(phrases, ignore_case=True, whole_word=True).matcher
    oracle = Occurrences(phrases, ignore_case=True, whole_word=True)
    assert {"k", "K", "\u212a", "日"} <= set(interesting)
    for character in interesting:
        state = matcher.read(matcher.start, character.encode())
        assert matcher.completed_at_end(state) == oracle.completed_at_end(character.encode())
        assert int(matcher.pending(np.array([state]))[0]) == (
            len(character.encode()) if matcher.completed_at_end(state) else 0
        )


def test_the_decoder_of_the_oracle_holds_back_what_may_still_be_a_character() -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    assert decoder.decode(b"a\xe2\x82") == "a" and decoder.decode(b"\xac") == "€"
