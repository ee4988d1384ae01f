"""Small vocabularies, banned phrases, and what they leave, by brute force and by Python's own string search."""

import re
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from hypothesis import strategies as st

from outlines_phi import BannedPhrases, Vocabulary
from outlines_phi.guides import Guide
from tests.guides.walking import assert_same, least_tokens, members
from tests.inner import DEAD, DONE, UNREACHABLE, ByteAutomaton, PhraseMatcher, WithoutPhrases
from tests.leaks import BROKEN, leaks

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
