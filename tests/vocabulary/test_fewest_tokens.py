"""The fewest tokens that write a text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outlines_phi.vocabulary.fewest_tokens import fewest_tokens
from outlines_phi.vocabulary.vocabulary import Vocabulary
from tests.languages import VOCABULARY

TOKENS = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=8, unique=True)


def spellings(vocabulary: Vocabulary, text: bytes) -> list[tuple[int, ...]]:
    """Return all ways to write ``text`` or, where there is none, the longest beginning of it that can be written."""
    ways: dict[bytes, list[tuple[int, ...]]] = {b"": [()]}
    for end in range(1, len(text) + 1):
        ways[text[:end]] = [
            (*before, token)
            for token, written in enumerate(vocabulary.tokens)
            if written and text[:end].endswith(written)
            for before in ways.get(text[: end - len(written)], [])
        ]
    return ways[max((written for written, found in ways.items() if found), key=len)]


@given(TOKENS, st.text("abc", max_size=10))
def test_no_spelling_is_shorter(tokens: list[str], text: str) -> None:
    vocabulary = Vocabulary.from_tokens(["<eos>", *tokens], 0)
    found, all_of_them = fewest_tokens(vocabulary, text.encode()), spellings(vocabulary, text.encode())
    assert found in all_of_them and len(found) == min(map(len, all_of_them))


def test_the_first_tokens_are_long() -> None:
    tokens = [VOCABULARY.tokens.index(text) for text in (b"aa", b"ba", b"b")]
    assert fewest_tokens(VOCABULARY, b"aabab?") == tuple(tokens)
    assert fewest_tokens(VOCABULARY, b"") == fewest_tokens(VOCABULARY, b"?") == ()


def test_long_texts_take_no_more_than_their_length() -> None:
    assert (
        fewest_tokens(VOCABULARY, b"cca" * 2000)
        == (VOCABULARY.tokens.index(b"cc"), VOCABULARY.tokens.index(b"a")) * 2000
    )
