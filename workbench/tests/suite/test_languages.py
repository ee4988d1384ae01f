"""The languages of the suite, against lists of their words; and the model that they are measured with."""

import itertools

import pytest
import torch

from outlines_phi import EmptyLanguageError
from outlines_phi.guides import FSMGuide
from outlines_phi.lm import TableModel
from outlines_phi.testing import assert_guide, check_language_model
from outlines_phi_workbench.suite.experiment import RecordedModel
from outlines_phi_workbench.suite.languages import dyck, of_sequences, of_single_bytes
from tests.guides.walking import ended
from tests.languages import VOCABULARY


def is_balanced(word: str) -> bool:
    while (shorter := word.replace("()", "").replace("[]", "")) != word:
        word = shorter
    return not word


@pytest.mark.parametrize(("kinds", "length", "exactly"), [(1, 6, True), (1, 8, False), (2, 4, True), (2, 6, False)])
def test_dyck_words_are_the_balanced_ones(kinds: int, length: int, exactly: bool) -> None:
    lengths = [length] if exactly else range(1, length + 1)
    words = {"".join(word) for n in lengths for word in itertools.product("()[]"[: 2 * kinds], repeat=n)}
    assert {word.decode() for word in dyck(kinds, length, exactly=exactly).members()} == set(filter(is_balanced, words))


def test_single_bytes_spell_a_text_in_one_way() -> None:
    automaton = dyck(1, 4, exactly=True)
    single = of_single_bytes(automaton, VOCABULARY)
    assert single.vocabulary is VOCABULARY and single.automaton is None
    assert ended(single, 4) == {(9, 9, 10, 10), (9, 10, 9, 10)}
    assert ended(FSMGuide.from_automaton(automaton, VOCABULARY), 4) > ended(single, 4)


@pytest.mark.parametrize("sequences", [[(1, 2), (3,), (1, 4), (5, 1, 2), (5, 1)], [(), (1,)]])
def test_listed_sequences_are_the_language(sequences: list[tuple[int, ...]]) -> None:
    guide = of_sequences(sequences, VOCABULARY)
    assert ended(guide, 8) == set(sequences)
    assert_guide(guide)


def test_prefixes_that_are_continued_alike_share_a_state() -> None:
    words = list(itertools.product((1, 2, 3, 5), repeat=3))
    assert len(of_sequences(words, VOCABULARY)) == 2 + 4  # dead and done, and a state per length
    with pytest.raises(EmptyLanguageError, match="at least one"):
        of_sequences([], VOCABULARY)

    inner = TableModel.random(VOCABULARY, seed=3, max_length=5)
    assert check_language_model(RecordedModel(inner)).error == 0
    lm, one = RecordedModel(inner), RecordedModel(inner, max_bytes=8 * len(VOCABULARY))
    for _ in range(3):
        trees, theirs = lm.trees([[1, 2], [1, 2]]), inner.trees([[1, 2], [1, 2]])
        assert torch.equal(trees.roots().logits, theirs.roots().logits)
        assert torch.equal(trees.extend([0, 1], [1, 1]).logits, theirs.extend([0, 1], [1, 1]).logits)
        assert trees.counts == theirs.counts and trees.next_node == theirs.next_node
        one.logits([(1,), (2,)])
    assert lm.evaluated == 2 and one.evaluated == 4  # what does not fit is asked for again
