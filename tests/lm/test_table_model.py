"""TableModel: an explicit law, told exactly."""

import math

import numpy as np
import pytest
import torch

from outlines_phi.errors import ModelError
from outlines_phi.lm.table_model import TableModel
from outlines_phi.vocabulary.vocabulary import Vocabulary

ABC = Vocabulary.from_tokens(["a", "b", "c", ""], 3)
PINNED = [1.5331816694893723, 0.28452349307204877, -0.023495157220602202, 0.8533143573868655]


def test_logits_are_the_law_of_the_whole_sequence() -> None:
    seen = []

    def law(sequence):
        seen.append(sequence)
        return [sum(sequence), len(sequence), -math.inf, 0.5]

    trees = TableModel(ABC, law).trees([[0, 1], [2]])
    roots = trees.roots()
    grown = trees.extend([0, 2, 1], [2, 2, 0])
    assert roots.logits.dtype == grown.logits.dtype == torch.float64
    assert seen == [(0, 1), (2,), (0, 1, 2), (0, 1, 2, 2), (2, 0)]
    assert grown.logits.tolist() == [[3, 3, -math.inf, 0.5], [5, 4, -math.inf, 0.5], [2, 2, -math.inf, 0.5]]


def test_random_laws_are_named_by_their_seed() -> None:
    first, again, other = (TableModel.random(ABC, seed=seed).logits([0, 1]) for seed in (4, 4, 5))
    assert (first == again).all()
    assert (first != other).all()
    # Pinned: the same law in every process and on every machine.
    assert first == pytest.approx(PINNED, abs=1e-12)


def test_order_is_how_far_back_the_law_looks() -> None:
    long, short, flat = (TableModel.random(ABC, order=order) for order in (None, 1, 0))
    assert (long.logits([0, 1]) != long.logits([2, 1])).all()
    assert (long.logits([0]) != long.logits([0, 0])).all()
    assert (short.logits([0, 1]) == short.logits([2, 2, 1])).all()
    assert (short.logits([1]) != short.logits([2])).all()
    assert (flat.logits([1]) == flat.logits([2, 2])).all()


def test_logits_are_standard_normal_times_scale() -> None:
    model = TableModel.random(ABC, seed=1, scale=3.0)
    draws = np.stack(
        [model.logits([a, b, c, d]) for a in range(4) for b in range(4) for c in range(4) for d in range(4)]
    )
    assert draws.mean() == pytest.approx(0, abs=4 * 3 / math.sqrt(draws.size))
    assert draws.std() == pytest.approx(3, rel=4 / math.sqrt(2 * draws.size))
    assert not TableModel.random(ABC, scale=0.0).logits([1]).any()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([0.0, 0.0, 0.0], "shape"),
        ([0.0, math.nan, 0.0, 0.0], "NaN"),
        ([0.0, math.inf, 0.0, 0.0], "inf"),
        ([-math.inf] * 4, "-inf"),
    ],
)
def test_what_is_no_law_is_refused_and_the_trees_survive(answer, words: str) -> None:
    trees = TableModel(ABC, lambda sequence: answer if sequence == (0, 1) else [0.0] * 4).trees([[0]])
    trees.roots()
    with pytest.raises(ModelError, match=words):
        trees.extend([0], [1])
    assert trees.next_node == 1
    assert trees.extend([0], [2]).nodes == range(1, 2)
