"""Finite guides: what is allowed, how far the end is, products, and what cannot be written."""

from dataclasses import replace

import numpy as np
import pytest

from outlines_phi.errors import EmptyLanguageError, UnsupportedError, VocabularyError
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.guide import DEAD, DONE, UNREACHABLE
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.vocabulary.classes import EOS, NEVER
from outlines_phi.vocabulary.vocabulary import Vocabulary

VOCABULARY = Vocabulary.from_tokens(["<eos>", "a", "b", "ab", "ba", "c"], 0)


def guide_of(pattern: str, vocabulary: Vocabulary = VOCABULARY) -> FSMGuide:
    return FSMGuide.from_automaton(compile_regex(pattern), vocabulary)


def texts(guide: FSMGuide, budget: int) -> set[tuple[int, ...]]:
    """Return the token sequences of at most ``budget`` tokens that the guide ends, the end of sequence left out."""
    found, level = set(), [((), guide.start)]
    for _ in range(budget):
        level = [((*ids, v), guide.advance(state, v)) for ids, state in level for v in range(len(guide.vocabulary))]
        found |= {ids[:-1] for ids, state in level if state == DONE}
        level = [(ids, state) for ids, state in level if state not in (DEAD, DONE)]
    return found


def test_every_spelling_of_every_member_and_nothing_else() -> None:
    assert texts(guide_of("ab|c"), 4) == {(1, 2), (3,), (5,)}
    assert texts(guide_of("aba"), 4) == {(1, 2, 1), (1, 4), (3, 1)}


def test_min_tokens_counts_the_end_of_sequence() -> None:
    guide = guide_of("abab|c")
    assert guide.min_tokens(guide.start) == 2
    assert guide.min_tokens(guide.advance(guide.start, 1)) == 3  # ba, b, end of sequence
    assert guide.min_tokens(DONE) == 0
    assert guide.min_tokens(DEAD) == UNREACHABLE


def test_a_token_that_no_further_token_can_complete_is_dead() -> None:
    """Without a token `c` alone, `a` and then `c` can only be `ac`."""
    vocabulary = Vocabulary.from_tokens(["<eos>", "a", "ac", "d"], 0)
    assert texts(guide_of("ac|ad", vocabulary), 3) == {(2,), (1, 3)}
    stuck = guide_of("ac|d", vocabulary)
    assert stuck.advance(stuck.start, 1) == DEAD
    assert stuck.partition.class_of[1] == NEVER, "a token that is dead everywhere joins the class of such tokens"


def test_what_no_state_allows_leads_nowhere() -> None:
    guide = guide_of("(ab|ba|c){1,3}")
    rows = np.stack([guide.row(state).targets for state in range(len(guide))])
    assert rows.shape[1] == guide.partition.size and not rows[[DEAD, DONE]].any() and not rows[:, NEVER].any()
    assert set(np.unique(rows[:, EOS])) <= {DEAD, DONE}


def test_only_the_first_end_of_sequence_is_allowed() -> None:
    guide = guide_of("a?", Vocabulary((b"a", b"", b""), (2, 1), np.ones(3, dtype=bool)))
    assert guide.advance(guide.start, 2) == DONE
    assert guide.advance(guide.start, 1) == DEAD


def test_products_are_intersections() -> None:
    left, right = guide_of("[abc]{2,3}"), guide_of("(ab|c)*")
    assert texts(left & right, 5) == texts(left, 5) & texts(right, 5)
    assert texts((left & right) & guide_of(".*c"), 5) == {(3, 5), (1, 2, 5), (5, 5), (5, 5, 5)}


def test_products_that_cannot_be_made() -> None:
    guide = guide_of("a+")
    with pytest.raises(EmptyLanguageError, match="no text is allowed by both"):
        _ = guide & guide_of("b+")
    with pytest.raises(VocabularyError, match="two vocabularies"):
        _ = guide & guide_of("a+", Vocabulary.from_tokens(["<eos>", "a"], 0))
    with pytest.raises(UnsupportedError, match="token table"):
        _ = guide & replace(guide, automaton=None)


def test_what_the_vocabulary_cannot_write() -> None:
    with pytest.raises(EmptyLanguageError, match=r"b'xyz'.*needs bytes"):
        guide_of("xyz|xyza")


def test_an_automaton_of_nothing() -> None:
    empty = compile_regex("a") & compile_regex("b")
    with pytest.raises(EmptyLanguageError, match="no text at all"):
        FSMGuide.from_automaton(empty, VOCABULARY)


def test_describe() -> None:
    guide = guide_of("ab?")
    assert guide.describe(guide.start) == f"state {guide.start} of 5: 2 tokens to go, next b'a', b'ab'"
    assert guide.describe(guide.advance(guide.start, 1)).endswith("1 tokens to go, next <eos>, b'b'")
    assert (guide.describe(DEAD), guide.describe(DONE)) == ("dead", "done")
    many = Vocabulary.from_tokens(["<eos>", *"abcdefghij"], 0)
    assert guide_of("[a-j]", many).describe(guide_of("[a-j]", many).start).endswith("b'f' and 4 more")
