"""The languages of the suite, against lists of their words; and the model that they are measured with."""

import itertools
from functools import reduce

import pytest
import torch

from outlines_phi import EmptyLanguageError, PhiTransformers
from outlines_phi.automata.automaton import ByteAutomaton
from outlines_phi.guides import FSMGuide
from outlines_phi.lm import TableModel
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.testing import assert_guide, check_language_model
from outlines_phi_workbench.suite.experiment import RecordedModel
from outlines_phi_workbench.suite.languages import SUITE, dyck, of_sequences, of_single_bytes
from tests.guides.walking import ended
from tests.languages import VOCABULARY


def is_balanced(word: str) -> bool:
    while (shorter := word.replace("()", "").replace("[]", "")) != word:
        word = shorter
    return not word


@pytest.mark.parametrize(("name", "least"), [("dyck1-8", 8), ("dyck1-upto8", 2), ("dyck2-upto6", 2)])
def test_dyck_words_are_the_balanced_ones(name: str, least: int, model: PhiTransformers) -> None:
    language = next(language for language in SUITE if language.name == name)
    assert language.budget is not None
    alphabet = "()[]"[: 2 * int(name[4])]
    lengths = range(least, language.budget)
    words = {"".join(word) for n in lengths for word in itertools.product(alphabet, repeat=n)}
    automaton = language.table(model).guide.machine
    assert isinstance(automaton, ByteAutomaton)
    assert {word.decode() for word in automaton.members()} == set(filter(is_balanced, words))


def test_single_bytes_spell_a_text_in_one_way() -> None:
    automaton = compile_regex(dyck(1, 4))
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
    guide = of_sequences(words, VOCABULARY)
    assert len({reduce(guide.advance, word[:end], guide.start) for word in words for end in range(4)}) == 4  # lengths
    with pytest.raises(EmptyLanguageError, match="allows no text at all"):
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
