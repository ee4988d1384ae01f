"""Prompt look-up against a naive oracle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi import UnsupportedError, Vocabulary
from outlines_phi.drafting import PromptLookupDrafter
from tests.drafting.runs import propose, run_of, site_of, table_of
from tests.inner import DEAD, DONE
from tests.languages import VOCABULARY

EOS, A, B, AB, BA, C, CC, X = range(8)
FREE = table_of("[abcx]*")
BOUND = table_of("(ab|c)*x?")
TOKENS = st.lists(st.sampled_from([A, B, C, X]), max_size=12)


def naive(text: list[int], ngram: int, allowed: set[int]) -> int | None:
    """Return the place of the continuation: longest agreement first, then the latest place."""
    for n in range(min(ngram, len(text) - 1), 0, -1):
        for place in range(len(text) - 1, n - 1, -1):
            if text[place - n : place] == text[-n:] and text[place] in allowed:
                return place
    return None


@given(TOKENS.map(lambda tokens: [A, *tokens]), TOKENS, st.integers(1, 5), st.integers(1, 6))
@settings(max_examples=400, deadline=None)
def test_free_text(prompt: list[int], written: list[int], ngram: int, length: int) -> None:
    run = run_of(FREE, prompts=[tuple(prompt)])
    (draft,) = propose(PromptLookupDrafter(ngram), run, [site_of(run, written, budget=40)], length)
    text = prompt + written
    place = naive(text, ngram, {A, B, C, X})
    assert draft.tokens == (() if place is None else tuple(text[place : place + length]))


@given(TOKENS.map(lambda tokens: [A, *tokens]), st.lists(st.sampled_from([(A, B), (AB,), (C,)]), max_size=5))
@settings(max_examples=300, deadline=None)
def test_places_that_the_guide_does_not_let_go_on_are_passed_over(
    prompt: list[int], parts: list[tuple[int, ...]]
) -> None:
    written = [token for part in parts for token in part]
    run = run_of(BOUND, prompts=[tuple(prompt)])
    site = site_of(run, written, budget=40)
    allowed = {v for v in range(1, len(VOCABULARY)) if site.after(v, run.table).state not in (DEAD, DONE)}
    text = prompt + written
    place = naive(text, 3, allowed)
    (draft,) = propose(PromptLookupDrafter(3), run, [site], 3)
    expected: list[int] = []
    for token in text[place : place + 3] if place is not None else ():
        site = site.after(token, run.table)
        if site.state in (DEAD, DONE):
            break
        expected.append(token)
    assert draft.tokens == tuple(expected)
    assert (place is None) == (not draft.tokens)


def test_the_latest_of_the_longest() -> None:
    prompt = (C, A, B, X, B, A, C, A, B)
    run = run_of(FREE, prompts=[prompt])
    drafts = {ngram: propose(PromptLookupDrafter(ngram), run, [site_of(run)], 2)[0].tokens for ngram in (1, 2, 3)}
    assert drafts == {1: (A, C), 2: (X, B), 3: (X, B)}


def test_a_prompt_may_hold_what_cannot_be_written() -> None:
    run = run_of(FREE, prompts=[(A, 99, A, EOS, A)])
    assert propose(PromptLookupDrafter(), run, [site_of(run)])[0].tokens == ()
    run = run_of(FREE, prompts=[(A, B, A, 99, A, EOS, A)])
    assert propose(PromptLookupDrafter(), run, [site_of(run)], 2)[0].tokens == (B, A)


@pytest.mark.parametrize("ngram", [0, -1, 2.0, True, "3", None])
def test_bad_options(ngram: object) -> None:
    with pytest.raises(UnsupportedError, match="whole number of at least 1"):
        PromptLookupDrafter(ngram)  # type: ignore[arg-type]


class TestBlanks:
    """A word that begins a value has no blank before it, and is another token than in the sentence that it stands in."""

    SPELLED = ("", '"', "green", " green", " tea", " for", ".", " caf\u00e9", "tea", "x", " ", "5", " 7", "12")
    END, QUOTE, GREEN, _GREEN, _TEA, _FOR, DOT, _CAFE, TEA, X, BLANK, FIVE, _SEVEN, TWELVE = range(len(SPELLED))
    TABLE = table_of('[a-z\u00e9 .0-9]*"', Vocabulary.from_tokens(SPELLED, END))

    def drafted(self, prompt: tuple[int, ...], written: tuple[int, ...], length: int = 2) -> tuple[int, ...]:
        run = run_of(self.TABLE, prompts=[prompt])
        return propose(PromptLookupDrafter(), run, [site_of(run, written)], length)[0].tokens

    def test_a_value_goes_on_as_the_prompt_does(self) -> None:
        assert self.drafted((self.X, self._GREEN, self._TEA, self._FOR), (self.GREEN,)) == (self._TEA, self._FOR)
        assert self.drafted((self.GREEN, self._CAFE, self.DOT), (self._GREEN,)) == (self._CAFE,)
        assert self.drafted((self._GREEN, self._TEA), (self.X,)) == ()

    def test_what_stands_around_the_phrase_does_not_come_with_it(self) -> None:
        prompt = (self._GREEN, self._TEA, self.DOT, self._FOR)
        assert self.drafted(prompt, (self.GREEN,)) == (self._TEA,)
        assert self.drafted(prompt, (self.GREEN, self._TEA)) == ()
        assert self.drafted(prompt, (self._GREEN, self._TEA)) == (self.DOT, self._FOR)

    def test_blanks_alone_and_special_tokens_are_words_of_their_own(self) -> None:
        prompt = (self.X, self.BLANK, self._TEA, self.X, self.END)
        assert self.drafted(prompt, (self.X, self.BLANK)) == (self._TEA, self.X)
        assert self.drafted((self.END, self._TEA), (self.BLANK,)) == ()

    def test_what_agrees_has_to_have_a_word_in_it(self) -> None:
        assert self.drafted((self.X, self.DOT, self._TEA), (self.GREEN, self.DOT)) == ()
        assert self.drafted((self.X, self.DOT, self._TEA), (self.X, self.DOT)) == (self._TEA, self.X)

    def test_or_two_digits(self) -> None:
        assert self.drafted((self.FIVE, self.DOT), (self.FIVE,)) == ()
        assert self.drafted((self.DOT,), (self.FIVE, self.FIVE)) == ()
        assert self.drafted((self._SEVEN, self.FIVE, self.X), (self._SEVEN, self.FIVE)) == (self.X, self._SEVEN)
        assert self.drafted((self.FIVE, self.DOT, self.X), (self.FIVE, self.DOT)) == ()
        assert self.drafted((self.TWELVE, self.DOT), (self.TWELVE,)) == (self.DOT, self.TWELVE)
