"""The languages of the suite, against lists of their words."""

from __future__ import annotations

import itertools

import pytest

from outlines_phi.errors import EmptyLanguageError
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.guide_texts import list_texts
from outlines_phi.guides.table import Table
from outlines_phi.testing import assert_guide
from outlines_phi_workbench.suite.languages import dyck, of_sequences, of_single_bytes
from tests.fidelity.members import members
from tests.languages import VOCABULARY


def is_balanced(word: str) -> bool:
    while (shorter := word.replace("()", "").replace("[]", "")) != word:
        word = shorter
    return not word


@pytest.mark.parametrize(("kinds", "length", "exactly"), [(1, 6, True), (1, 8, False), (2, 4, True), (2, 6, False)])
def test_dyck_words_are_the_balanced_ones(kinds: int, length: int, exactly: bool) -> None:
    brackets = "()[]"[: 2 * kinds]
    lengths = [length] if exactly else range(1, length + 1)
    words = {"".join(word) for n in lengths for word in itertools.product(brackets, repeat=n)}
    expected = {word for word in words if is_balanced(word)}
    assert {word.decode() for word in dyck(kinds, length, exactly=exactly).members()} == expected


def test_single_bytes_spell_a_text_in_one_way() -> None:
    automaton = dyck(1, 4, exactly=True)
    every = FSMGuide.from_automaton(automaton, VOCABULARY)
    single = of_single_bytes(automaton, VOCABULARY)
    assert single.vocabulary is VOCABULARY and single.automaton is None
    assert members(single, 5) == {(9, 9, 10, 10, 0), (9, 10, 9, 10, 0)}
    assert members(every, 5) > members(single, 5)
    assert list_texts(Table(single), single.start, 5, 100) == list_texts(Table(every), every.start, 5, 100)


def test_listed_sequences_are_the_language() -> None:
    sequences = [(1, 2), (3,), (1, 4), (5, 1, 2), (5, 1)]
    guide = of_sequences(sequences, VOCABULARY)
    assert members(guide, 9) == {(*sequence, 0) for sequence in sequences}
    assert_guide(guide)


def test_prefixes_that_are_continued_alike_share_a_state() -> None:
    words = [(a, b, c) for a, b, c in itertools.product((1, 2, 3, 5), repeat=3)]
    assert len(of_sequences(words, VOCABULARY)) == 2 + 4  # dead and done, and a state per length


def test_the_empty_text_may_be_a_member() -> None:
    assert members(of_sequences([(), (1,)], VOCABULARY), 3) == {(0,), (1, 0)}


def test_no_sequences_are_refused() -> None:
    with pytest.raises(EmptyLanguageError, match="at least one"):
        of_sequences([], VOCABULARY)


def test_canonical_texts_are_spelled_by_the_tokenizer() -> None:
    spelled = {"ab": (3,), "cc": (6,), "abc": (3, 5)}
    guide = of_sequences(map(spelled.__getitem__, spelled), VOCABULARY)
    assert members(guide, 4) == {(3, 0), (6, 0), (3, 5, 0)}
