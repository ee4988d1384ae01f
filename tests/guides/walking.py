"""Walks through guides: all sequences within a depth, and what holds of every state; banned phrases by brute force."""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from outlines_phi import BannedPhrases, Vocabulary
from outlines_phi.guides import Guide, Table
from tests.inner import (
    DEAD,
    DONE,
    UNREACHABLE,
    ByteAutomaton,
    ByteMachine,
    JSONText,
    PhraseMatcher,
    WithoutPhrases,
    compile_regex,
    to_language,
)
from tests.leaks import BROKEN, leaks

Ids = tuple[int, ...]


def read(guide: Guide, text: Iterable[int] | str, state: int | None = None) -> int:
    """Return the state behind a text, of which each byte, or each character of a ``str``, is a token."""
    state = guide.start if state is None else state
    for one in text:
        spelled = one.encode() if isinstance(one, str) else bytes([one])
        state = guide.advance(state, guide.vocabulary.tokens.index(spelled))
    return state


def accepts(guide: Guide, text: Iterable[int] | str) -> bool:
    """Return True if a text, written token by token as in :func:`read`, is a member."""
    return guide.advance(read(guide, text), guide.vocabulary.eos_ids[0]) == DONE


def ended(guide: Guide, depth: int, start: int | None = None, tokens: Iterable[int] | None = None) -> set[Ids]:
    """Return the sequences of at most ``depth`` of some tokens that a guide lets end, the end left out; by ``advance`` alone."""
    tokens = range(len(guide.vocabulary)) if tokens is None else tokens
    found, level = set[Ids](), [((), guide.start if start is None else start)]
    eos, advance = guide.vocabulary.eos_ids[0], cache(guide.advance)
    for _ in range(depth + 1):
        found |= {ids for ids, state in level if advance(state, eos) == DONE}
        below = [((*ids, v), advance(state, v)) for ids, state in level for v in tokens]
        level = [(ids, state) for ids, state in below if state not in (DEAD, DONE)]
    return found


def members(vocabulary: Vocabulary, depth: int, is_member: Callable[[bytes], bool]) -> set[Ids]:
    """Return the sequences of at most ``depth`` tokens whose text is a member; a text has many spellings."""
    known = cache(is_member)
    spelled = [v for v, token in enumerate(vocabulary.tokens) if token]
    everything = (ids for length in range(depth + 1) for ids in product(spelled, repeat=length))
    return {ids for ids in everything if known(vocabulary.decode(ids))}


def assert_same(found: set[Ids], expected: set[Ids]) -> None:
    """Assert that two sets of sequences are one; of all that is wrong one is shown, as pytest takes minutes to compare big sets."""
    wrong = min(found ^ expected, default=None)
    assert wrong is None, f"{wrong} is {'found, and should not be' if wrong in found else 'not found'}"


def least_tokens(everything: set[Ids]) -> dict[Ids, int]:
    """Return the distance to the end of every prefix of ``everything``, in tokens of the shortest member."""
    to_go: dict[Ids, int] = {}
    for ids in sorted(everything, key=len, reverse=True):
        to_go |= {ids[:end]: len(ids) - end for end in range(len(ids) + 1)}
    return to_go


def assert_row(guide: Guide, state: int) -> NDArray[np.int64]:
    """Assert that row, mask, distances and liveness of a state are those of its single steps; return the target of each token."""
    here, of_token = guide.describe(state), (row := guide.row(state)).partition.class_of
    targets = np.array([guide.advance(state, token) for token in range(len(guide.vocabulary))])
    assert row.targets[of_token].tolist() == targets.tolist(), here
    assert guide.partition_of(state).class_of.tolist() == of_token.tolist(), here
    distances, own = guide.distances_after(state)[of_token], guide.min_tokens(state)
    assert distances.tolist() == guide.min_tokens_of(targets).tolist(), here
    assert guide.open or own > distances.min(), here
    masks = [guide.mask(state) for _ in range(3)]  # made, kept, at hand
    assert np.array_equal(masks, [Guide.mask(guide, state)] * 3), here
    assert np.array_equal(guide.live_classes(state, UNREACHABLE - 1), row.targets != DEAD), here
    for remaining in (own, (slack := guide.slack(state)) - 1, slack):
        assert guide.live_classes(state, remaining)[of_token].tolist() == (distances <= remaining - 1).tolist(), here
    return targets


def walk(guide: Guide, rng: random.Random, steps: int, marks: bytes = b"") -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield the states of a random walk and the targets of their tokens, all rows asserted.

    Most tokens of the walk have one of the bytes ``marks``.
    """
    state = guide.start
    for _ in range(steps):
        targets = assert_row(guide, state)
        yield state, targets
        live = np.flatnonzero((targets != DEAD) & (targets != DONE)).tolist()
        marked = [token for token in live if set(guide.vocabulary.tokens[token]) & set(marks)]
        if not live:
            return
        state = int(targets[rng.choice(marked if marked and rng.random() < 0.6 else live)])


def random_text(guide: Guide, rng: random.Random, slack: int, state: int | None = None) -> bytes:
    """Return the text of a random walk that has ``slack`` tokens more than ``min_tokens``; moves are compared with single steps."""
    table, text = Table(guide), b""
    state = guide.start if state is None else state
    remaining = guide.min_tokens(state) + slack
    while state != DONE:
        moves = table.moves(state, remaining)
        assert len(moves.tokens), f"a dead end after {text!r}"
        assert guide.min_tokens_of(moves.targets).max() < remaining
        place = rng.randrange(len(moves.tokens))
        token, target = int(moves.tokens[place]), int(moves.targets[place])
        assert guide.advance(state, token) == target == moves.target(token)
        state, remaining, text = target, remaining - 1, text + guide.vocabulary.tokens[token]
    return text


def machine_of(output_type: Any) -> ByteMachine[Any]:
    """Return the machine of the texts of an output type."""
    language = to_language(output_type)
    return language.machine if isinstance(language, JSONText) else compile_regex(str(language))


def random_member(machine: ByteMachine[Any], rng: np.random.Generator, longest: int) -> str:
    """Return the text of a random walk over bytes that lead to an end, from so many on each one nearer to it."""
    at, text = machine.start, b""
    while (size := machine.size(at)) or rng.random() < 0.5:
        bound = size if len(text) > longest else UNREACHABLE
        after_each = ((byte, machine.step(at, byte)) for byte in rng.permutation(256).tolist())
        near = ((byte, after) for byte, after in after_each if after is not None and machine.size(after) < bound)
        byte, at = next(near, (-1, None))
        if at is None:
            break
        text += bytes([byte])
    return text.decode()


def states_after(guide: Guide, depth: int) -> Iterator[int]:
    """Yield the states that at most ``depth`` tokens lead to."""
    known, level = {guide.start, DEAD, DONE}, {guide.start}
    for _ in range(depth + 1):
        yield from level
        level = {guide.advance(state, v) for state in level for v in range(len(guide.vocabulary))} - known
        known |= level


MERGES = Vocabulary(
    (b"", b"a", b"b", b"c", b" ", b"ab", b"bc", b"abc", b" a", b"ca", b"ab", b"a b", b"", b"bca"),
    (0,),
    np.ones(14, dtype=bool),
)
"""Merges that straddle phrases or hold them whole, a leading space, a spelling twice, a special token."""

BYTES = Vocabulary.from_tokens(["<eos>", "s", "S", b"\xc3", b"\x9f", "ß", b"s\xc3", b"\x9fs", "_", " ", b"\xc5\xbf"], 0)
"""Pieces of characters, and characters that fold to ``s``."""

WORDS = Vocabulary.from_tokens(
    ["<eos>", "cat", "s", " cat", " ", "ca", "t", "é".encode()[:1], "é".encode()[1:], "-"], 0
)

CHARACTERS = "abs _ßSé"


def is_free(phrases: BannedPhrases, pattern: str | None = None, prompt: bytes = b"") -> Callable[[bytes], bool]:
    """Return the predicate of the texts of a pattern, or of all, that hold no phrase after ``prompt``."""

    def check(text: bytes) -> bool:
        own = text.decode(errors="surrogateescape")
        is_text = pattern is None or not BROKEN.search(own) and re.fullmatch(pattern, own)
        return bool(is_text) and not leaks(phrases, text, prompt)

    return cache(check)


def assert_language(
    guides: Sequence[Guide], is_member: Callable[[bytes], bool], prompt: bytes = b"", depth: int = 3
) -> None:
    """Assert that guides of a vocabulary end the members after ``prompt``, from every prefix in as few tokens as can be."""
    allowed = members(guides[0].vocabulary, depth, is_member)
    to_go = least_tokens(allowed)
    for guide in guides:
        seen = level = [((), guide.start_after(prompt))]
        advance, min_tokens = cache(guide.advance), cache(guide.min_tokens)
        for left in range(depth, 0, -1):
            for ids, state in level:
                least, expected = min_tokens(state) - (not guide.open), to_go.get(ids, UNREACHABLE)
                if min(least, expected) <= left:  # longer members are not listed
                    assert least == expected, ids
            below = (((*ids, v), advance(state, v)) for ids, state in level for v in range(len(guide.vocabulary)))
            level = [(ids, state) for ids, state in below if state not in (DEAD, DONE)]
            seen = seen + level
        assert_same({ids for ids, state in seen if advance(state, guide.vocabulary.eos_ids[0]) == DONE}, allowed)


phrase_texts = st.text(CHARACTERS, min_size=1, max_size=3)
patterns = st.sampled_from([r"[ab]{2}", r"s{2}", r"a(b|s)?_", r"\w ", r"(?:é|ß){1,2}", r"[^a]b"]).map(re.compile)


@st.composite
def bans(draw: st.DrawFn) -> BannedPhrases:
    """Random phrases with random options."""
    phrases = draw(st.lists(st.one_of(phrase_texts, phrase_texts, patterns), min_size=1, max_size=4))
    ignore_case, whole_word, across_prompt = (draw(st.booleans()) for _ in range(3))
    return BannedPhrases(phrases, ignore_case=ignore_case, whole_word=whole_word, across_prompt=across_prompt)


@st.composite
def vocabularies(draw: st.DrawFn) -> Vocabulary:
    """Random pieces of text cut anywhere, so parts of characters and merges that straddle phrases among them."""
    text = draw(st.text(CHARACTERS, min_size=4, max_size=12)).encode()
    cuts = draw(st.lists(st.tuples(st.integers(0, len(text) - 1), st.integers(1, 4)), min_size=3, max_size=6))
    pieces = [text[start : start + length] for start, length in cuts]
    return Vocabulary.from_tokens([*pieces, b"", b"a", b"<eos>"], len(pieces) + 2)


def automaton_of(matcher: PhraseMatcher) -> ByteAutomaton:
    """The texts without a phrase: one state for all states of the matcher that have the same future."""
    return ByteAutomaton.of_machine(WithoutPhrases(matcher, matcher.start), matcher.byte_class)
