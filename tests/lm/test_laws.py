"""The laws of every set of token trees, whichever model is behind it; and the table, an explicit law."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from outlines_phi import Vocabulary
from outlines_phi.errors import ModelError
from outlines_phi.lm import TableModel, TokenTrees
from outlines_phi.testing import TreeGrowth, check_language_model
from tests.inner import Forward, PackedTrees, RegionTrees, RowTrees, WrappedModel
from tests.lm.gardens import SIZE, VOCABULARY, build, evaluate
from tests.precision import NATS

PROMPTS = [[5, 6, 7, 8, 9], [10, 11], [5, 6, 7, 8, 9], [12, 13, 14, 15, 16, 17, 18]]
CONTEXT = 40


TABLE = TableModel.random(VOCABULARY, seed=2, max_length=CONTEXT)


class Road(WrappedModel):
    """One implementation of token trees, and the law it must agree with."""

    evaluates_again = False

    def __init__(self, trees: Callable[..., TokenTrees] = TABLE.trees, law: Callable[..., Any] = TABLE.logits) -> None:
        super().__init__(TABLE)
        self._trees, self.law = trees, law

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        return self._trees(prompts)


def hugging_face(name: str, trees: type, **options: Any) -> Road:
    forward = Forward(build(name), SIZE, max_length=CONTEXT, memory=1 << 28)
    road = Road(lambda prompts: trees(forward, prompts, **options), lambda sequence: evaluate(build(name), sequence))
    road.evaluates_again = trees in (RowTrees, RegionTrees)
    return road


ROADS = {
    "table": Road,
    "packed": lambda: hugging_face("qwen3", PackedTrees),
    "packed with windows": lambda: hugging_face("gemma3", PackedTrees),
    "rows": lambda: hugging_face("qwen3", RowTrees),
    "rows of one length": lambda: hugging_face("gpt2", RowTrees, padding=False),
    "packed in divided rows": lambda: hugging_face("gemma3", PackedTrees, room=0),
    "packed with a gap": lambda: hugging_face("mistral", PackedTrees, gap=100),
    "whole sequences": lambda: hugging_face("gpt2", RowTrees, padding=False, cached=False),
    "regions": lambda: hugging_face("longrope", RegionTrees),
    "recurrent rows": lambda: hugging_face("mamba", RowTrees),
}


@pytest.fixture(params=ROADS.values(), ids=ROADS.keys())
def road(request: pytest.FixtureRequest) -> Road:
    return request.param()


@pytest.fixture
def gardener(road: Road) -> TreeGrowth:
    return TreeGrowth(road.trees(PROMPTS), PROMPTS, SIZE, seed=11)


def error(gardener: TreeGrowth, road: Road, shift: int = 0) -> float:
    """Return the largest error beside plain calls about whole sequences, or about others."""
    found = gardener.errors(lambda s: torch.as_tensor(road.law((s[0], *s[: len(s) - shift]) if shift else s)))
    return float(found.abs().max())


@pytest.mark.parametrize("seed", [1, 2])
def test_every_node_is_evaluated_as_its_own_sequence_and_what_is_wrong_is_refused(road: Road, seed: int) -> None:
    assert check_language_model(road, reference=road.law, tolerance=2 * NATS, seed=seed).nodes > 100


def test_a_law_of_another_sequence_is_told_apart(road: Road, gardener: TreeGrowth) -> None:
    """Control: no answer is near that without the last token."""
    gardener.live()
    assert error(gardener, road) <= NATS and error(gardener, road, shift=1) > 1000 * NATS + 0.1


def test_chains_inside_one_call(road: Road, gardener: TreeGrowth) -> None:
    """Drafts: every node but the first follows a node of the same call, in two prompts at once."""
    gardener.plant()
    first = gardener.trees.next_node
    gardener.follow([1, first, first + 1, 3, first + 3, first + 2])
    gardener.follow([first + 5, first + 4])
    assert error(gardener, road) <= NATS


def test_a_walk_in_step(road: Road, gardener: TreeGrowth) -> None:
    """Ancestral sampling: all prompts advance together, some stop early, one forks; and what is given back grows anew."""
    gardener.plant()
    front = list(range(len(PROMPTS)))
    for _ in range(4):
        front = list(gardener.follow(front))
    front = list(gardener.follow([front[0], front[2], front[3], front[3]]))
    gardener.follow(front[1:])
    assert gardener.trees.counts.prompt_tokens == sum(map(len, PROMPTS)) or road.evaluates_again
    gardener.prune([])
    gardener.prune([])
    gardener.grow(12)
    assert error(gardener, road) <= NATS


@pytest.mark.parametrize("first", [0, 9])
def test_counts(road: Road, gardener: TreeGrowth, first: int) -> None:
    """First nodes share the call of the prompts, and nothing to extend is no call."""
    gardener.plant(first)
    sizes = (5, 1, 8)
    for size in (*sizes, 0):
        gardener.grow(size)
    counts, prompts, tokens = gardener.trees.counts, sum(map(len, PROMPTS)), first + sum(sizes)
    if road.evaluates_again:
        assert counts.calls >= 1 + len(sizes) and counts.prompt_tokens >= prompts and counts.tokens >= tokens
    else:
        assert (counts.calls, counts.prompt_tokens, counts.tokens) == (1 + len(sizes), prompts, tokens)
    assert error(gardener, road) <= NATS


@pytest.mark.parametrize(
    ("parents", "tokens", "words"),
    [
        ([99], [3], "parent 99"),
        ([5, 4], [3, 3], "parent 5"),  # a parent must stand before its child
        ([0], [SIZE], "vocabulary of 64"),
        ([0], [-1], "Token -1"),
        ([0, 1], [3], "2 parents"),
        ([3, *range(4, 37)], [3] * 34, "34 tokens after a prompt of 7 tokens, together 41, .* 40"),
    ],
)
def test_errors_name_what_is_wrong(parents: list[int], tokens: list[int], words: str) -> None:
    trees = TABLE.trees(PROMPTS)
    with pytest.raises(ModelError, match="before roots"):
        trees.extend([0], [3])
    trees.roots()
    with pytest.raises(ModelError, match=words):
        trees.extend(parents, tokens)
    assert trees.next_node == len(PROMPTS)
    with pytest.raises(ModelError, match="twice"):
        trees.roots()
    with pytest.raises(ModelError, match="compact"):
        trees.compact([77])


@pytest.mark.parametrize(
    ("prompts", "words"),
    [([], "No prompts"), ([[1], []], "Prompt 1 has no tokens"), ([[SIZE]], "prompt 0"), ([[1] * 41], "41")],
)
def test_wrong_prompts_are_refused(prompts, words: str) -> None:
    forward = Forward(build("llama"), SIZE, max_length=CONTEXT, memory=1 << 28)
    for trees in (TABLE.trees, lambda p: PackedTrees(forward, p), lambda p: RowTrees(forward, p)):
        with pytest.raises(ModelError, match=words):
            trees(prompts)


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
    assert (first == again).all() and (first != other).all()
    # Pinned: the same law in every process and on every machine.
    assert first == pytest.approx(PINNED, abs=1e-12)


def test_order_is_how_far_back_the_law_looks() -> None:
    long, short, flat = (TableModel.random(ABC, order=order) for order in (None, 1, 0))
    assert (long.logits([0, 1]) != long.logits([2, 1])).all() and (long.logits([0]) != long.logits([0, 0])).all()
    assert (short.logits([0, 1]) == short.logits([2, 2, 1])).all()
    assert (short.logits([1]) != short.logits([2])).all()
    assert (flat.logits([1]) == flat.logits([2, 2])).all()


def test_logits_are_standard_normal_times_scale() -> None:
    model = TableModel.random(ABC, seed=1, scale=3.0)
    draws = np.stack([model.logits(each) for each in itertools.product(range(4), repeat=4)])
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
    assert (trees.next_node, trees.extend([0], [2]).nodes) == (1, range(1, 2))
