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


SPELLED = ("", '"', "green", " green", " tea", " for", ".", " caf\u00e9", "tea", "x", " ", "5", " 7", "12")
BLANKS = table_of('[a-z\u00e9 .0-9]*"', Vocabulary.from_tokens(SPELLED, 0))


@pytest.mark.parametrize(
    ("prompt", "written", "drafted"),
    [
        # A word that begins a value has no blank before it, and is another token than in the sentence that it stands in.
        (["x", " green", " tea", " for"], ["green"], [" tea", " for"]),
        (["green", " caf\u00e9", "."], [" green"], [" caf\u00e9"]),
        ([" green", " tea"], ["x"], []),
        # What stands around the phrase does not come with it.
        ([" green", " tea", ".", " for"], ["green"], [" tea"]),
        ([" green", " tea", ".", " for"], ["green", " tea"], []),
        ([" green", " tea", ".", " for"], [" green", " tea"], [".", " for"]),
        # Blanks alone and special tokens are words of their own.
        (["x", " ", " tea", "x", ""], ["x", " "], [" tea", "x"]),
        (["", " tea"], [" "], []),
        # What agrees has to have a word in it, or two digits.
        (["x", ".", " tea"], ["green", "."], []),
        (["x", ".", " tea"], ["x", "."], [" tea", "x"]),
        (["5", "."], ["5"], []),
        (["."], ["5", "5"], []),
        ([" 7", "5", "x"], [" 7", "5"], ["x", " 7"]),
        (["5", ".", "x"], ["5", "."], []),
        (["12", "."], ["12"], [".", "12"]),
    ],
)
def test_words_with_a_blank_and_without(prompt: list[str], written: list[str], drafted: list[str]) -> None:
    run = run_of(BLANKS, prompts=[tuple(map(SPELLED.index, prompt))])
    (draft,) = propose(PromptLookupDrafter(), run, [site_of(run, tuple(map(SPELLED.index, written)))], 2)
    assert [SPELLED[token] for token in draft.tokens] == drafted
