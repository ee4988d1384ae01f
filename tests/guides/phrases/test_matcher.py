"""The laws of every matcher."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi.automata.automaton import ByteAutomaton
from outlines_phi.guides.phrases.machines import BoundedLanguages, FoldedLiterals
from outlines_phi.guides.phrases.matcher import ByteMachine, Literals, PhraseMatcher, SideBySide
from tests.guides.banning import automaton_of
from tests.occurrences import Occurrences

fixed = settings(derandomize=True, deadline=None, max_examples=40)

LITERALS = ["ab", "abc", "bcb", "c a"]


def read_literals(ignore_case: bool, whole_word: bool) -> PhraseMatcher:
    return PhraseMatcher(FoldedLiterals(LITERALS, LITERALS, ignore_case=ignore_case, whole_word=whole_word))


def languages(whole_word: bool) -> PhraseMatcher:
    automata = [ByteAutomaton.of_texts([b"ab", b"abc"]), ByteAutomaton.of_texts([b"bcb", b"c a"])]
    return PhraseMatcher(BoundedLanguages(automata, ["ab", "bcb"], longest=3, whole_word=whole_word))


def together() -> PhraseMatcher:
    plain = PhraseMatcher(Literals([b"abc", b"ab"], ["abc", "ab"]))
    words = PhraseMatcher(FoldedLiterals(["bcb", "c a"], ["bcb", "c a"], ignore_case=True, whole_word=True))
    return PhraseMatcher(SideBySide([plain, words], [(1, 0), (2, 3)], LITERALS))


KINDS: dict[str, Callable[[], PhraseMatcher]] = {
    "literal": lambda: PhraseMatcher(Literals([text.encode() for text in LITERALS], LITERALS)),
    "ignore case": lambda: read_literals(True, False),
    "whole word": lambda: read_literals(False, True),
    "whole word, ignore case": lambda: read_literals(True, True),
    "languages": lambda: languages(False),
    "languages, whole word": lambda: languages(True),
    "together": together,
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
    rng = np.random.default_rng(0)
    bytes_ = rng.choice(np.frombuffer(b"aabbcc   CA\xe2\x84\xaa", dtype=np.uint8), size=(5, 40, 30))
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


def test_texts_without_a_phrase_are_those_of_its_futures(matcher: PhraseMatcher) -> None:
    automaton, outcomes = automaton_of(matcher), set()

    @fixed
    @given(texts)
    def check(text: bytes) -> None:
        outcomes.add(automaton.accepts(text))
        assert automaton.accepts(text) == is_free(matcher, states_along(matcher, text))

    check()
    assert outcomes == {True, False}


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


@pytest.mark.parametrize("phrase", ["cat", "cat food", "a cat", "Kat ß"])
@pytest.mark.parametrize("text", ["", "s", " ", " food", " food x", "\u00e9", "!"])
@pytest.mark.parametrize("prompt", ["cat", "a cat", "the Kat ß", "cat ca", "cat\N{EURO SIGN}"])
def test_an_occurrence_of_the_prompt_itself_does_not_count(prompt: str, text: str, phrase: str) -> None:
    """Against Python: whole words after a prompt that may end with one, or in the middle of a character."""
    phrases = [phrase, "cat", "ß"]
    matcher = PhraseMatcher(FoldedLiterals(phrases, phrases, ignore_case=True, whole_word=True))
    oracle = Occurrences(phrases, ignore_case=True, whole_word=True)
    for cut in range(2):
        before, after = prompt.encode()[: len(prompt.encode()) - cut], prompt.encode()[len(prompt.encode()) - cut :]
        read = after + text.encode() if cut else text.encode()
        state = matcher.after_prompt(matcher.read(matcher.start, before))
        for size in range(len(read) + 1):
            if size:
                state = matcher.read(state, read[size - 1 : size])
                assert matcher.completed(state) == oracle.completed_after(before, read[:size])
            assert matcher.completed_at_end(state) == oracle.completed_after_at_end(before, read[:size])


class Counting(ByteMachine):
    """The bytes read so far, modulo four; counts what it is asked."""

    names, longest, start = ("four",), 4, 0
    byte_class = (np.arange(256) % 2).astype(np.uint8)

    def __init__(self) -> None:
        self.steps, self.asked = 0, 0

    def follow(self, keys: Sequence[int], bytes: np.ndarray) -> Sequence[int]:
        self.steps += len(keys)
        return [(key + 1 + byte % 2) % 4 for key, byte in zip(keys, bytes.tolist(), strict=True)]

    def completed(self, key: int) -> tuple[int, ...]:
        self.asked += 1
        return (0,) if key == 0 else ()

    def completed_at_end(self, key: int) -> tuple[int, ...]:
        return ()

    def pending(self, key: int) -> int:
        return key

    def future(self, key: int) -> int:
        return key

    def after_prompt(self, key: int) -> int:
        return key


def test_a_step_is_taken_once() -> None:
    machine = Counting()
    matcher = PhraseMatcher(machine)
    states, bytes_ = np.zeros(1000, dtype=int), np.arange(1000) // 7 % 256
    for _ in range(20):
        states = matcher.step(states, bytes_)
    assert machine.steps <= 4 * 2 and len(matcher) == 4
    assert matcher.matches(states).sum() == (matcher.pending(states) == 0).sum()
    assert machine.asked <= 4


def test_threads_share_a_matcher() -> None:
    matcher, alone = together(), together()
    rng = np.random.default_rng(3)
    many = [rng.choice(np.frombuffer(b"abc A\xe2\x84\xaa", dtype=np.uint8), size=400).tobytes() for _ in range(8)]
    said: list[list[object]] = [[] for _ in many]

    def read(place: int) -> None:
        said[place] += [matcher.completed(state) for state in states_along(matcher, many[place])]

    threads = [threading.Thread(target=read, args=(place,)) for place in range(len(many))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for text, found in zip(many, said, strict=True):
        assert found == [alone.completed(state) for state in states_along(alone, text)]
