"""RecordedModel: the distribution of another model, each prefix of which is evaluated once."""

from __future__ import annotations

import pytest
import torch

from outlines_phi.errors import ModelError
from outlines_phi.lm.table_model import TableModel
from outlines_phi.testing import check_language_model
from outlines_phi.vocabulary.vocabulary import Vocabulary
from outlines_phi_workbench.suite.recorded_model import RecordedModel

VOCABULARY = Vocabulary.from_tokens(["<eos>", "a", "b", "c"], 0)


@pytest.fixture
def inner() -> TableModel:
    return TableModel.random(VOCABULARY, seed=3, max_length=5)


def test_logits_and_counts_are_those_of_the_model(inner: TableModel) -> None:
    assert check_language_model(RecordedModel(inner)).error == 0
    trees = [lm.trees([[1, 2], [3]]) for lm in (inner, RecordedModel(inner))]
    roots = [tree.roots([0], [1]) for tree in trees]
    grown = [tree.extend([0, 3, 2], [2, 1, 3]) for tree in trees]
    for theirs, ours in (roots, grown):
        assert ours.nodes == theirs.nodes
        assert ours.logits.dtype == torch.float64 and torch.equal(ours.logits, theirs.logits)
    assert trees[0].counts == trees[1].counts
    assert trees[0].next_node == trees[1].next_node


def test_a_prefix_is_asked_for_once(inner: TableModel) -> None:
    lm = RecordedModel(inner)
    for _ in range(3):
        trees = lm.trees([[1, 2], [1, 2]])
        trees.roots()
        trees.extend([0, 1], [1, 1])
        assert trees.counts.tokens == 2
    assert lm.evaluated == 2


def test_what_does_not_fit_is_asked_for_again(inner: TableModel) -> None:
    one = RecordedModel(inner, max_bytes=8 * len(VOCABULARY))
    for _ in range(2):
        one.logits([(1,), (2,)])
    assert one.evaluated == 3
    assert torch.equal(one.logits([(2,)])[0], torch.from_numpy(inner.logits((2,))))


def test_a_refused_node_leaves_the_tree_as_it_was(inner: TableModel) -> None:
    trees = RecordedModel(inner).trees([[1, 1, 1, 1]])
    trees.roots()
    trees.extend([0], [1])
    with pytest.raises(ModelError, match="context"):
        trees.extend([1], [1])
    assert trees.next_node == 2 and trees.counts.tokens == 1
