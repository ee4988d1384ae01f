"""The laws of every set of token trees, whichever model is behind it; and the table, an explicit law."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from outlines_phi import Vocabulary
from outlines_phi.errors import ModelError
from outlines_phi.lm import TableModel, TokenTrees
from outlines_phi.testing import TreeGrowth
from tests.inner import Forward, PackedTrees, RegionTrees, RowTrees
from tests.lm.gardens import SIZE, VOCABULARY, build, evaluate
from tests.precision import NATS

PROMPTS = [[5, 6, 7, 8, 9], [10, 11], [5, 6, 7, 8, 9], [12, 13, 14, 15, 16, 17, 18]]
CONTEXT = 40


@dataclass(frozen=True)
class Road:
    """One implementation, the law it must agree with, and how nearly."""

    trees: Callable[[], TokenTrees]
    law: Callable[[tuple[int, ...]], Tensor]
    tolerance: float = NATS
    evaluates_again: bool = False


def hugging_face(name: str, trees, **options) -> Road:
    forward = Forward(build(name), SIZE, max_length=CONTEXT, memory=1 << 28)
    return Road(
        lambda: trees(forward, PROMPTS, **options),
        lambda s: evaluate(build(name), s),
        evaluates_again=trees is RowTrees,
    )


TABLE = TableModel.random(VOCABULARY, seed=2, max_length=CONTEXT)
ROADS = {
    "table": lambda: Road(lambda: TABLE.trees(PROMPTS), lambda s: torch.from_numpy(TABLE.logits(s)), tolerance=0.0),
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
def road(request) -> Road:
    return request.param()


@pytest.fixture
def gardener(road: Road) -> TreeGrowth:
    return TreeGrowth(road.trees(), PROMPTS, SIZE, seed=11)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_node_is_evaluated_as_its_own_sequence(road: Road, seed: int) -> None:
    gardener = TreeGrowth(road.trees(), PROMPTS, SIZE, seed=seed)
    gardener.live()
    assert float(gardener.errors(road.law).abs().max()) <= road.tolerance


def test_a_law_of_another_sequence_is_told_apart(road: Road, gardener: TreeGrowth) -> None:
    """Control: the assertion above fails when the last token is forgotten."""
    gardener.live()
    errors = gardener.errors(lambda sequence: road.law((sequence[0], *sequence[:-1])))
    assert float(errors.abs().max()) > 1000 * road.tolerance + 0.1


def test_chains_inside_one_call(road: Road, gardener: TreeGrowth) -> None:
    """Drafts: every node but the first follows a node of the same call, in two prompts at once."""
    gardener.plant()
    first = gardener.trees.next_node
    gardener.follow([1, first, first + 1, 3, first + 3, first + 2])
    gardener.follow([first + 5, first + 4])
    assert float(gardener.errors(road.law).abs().max()) <= road.tolerance


def test_a_walk_in_step(road: Road, gardener: TreeGrowth) -> None:
    """Ancestral sampling: all prompts advance together, some stop early, one forks."""
    gardener.plant()
    front = list(range(len(PROMPTS)))
    for _ in range(4):
        front = list(gardener.follow(front))
    front = list(gardener.follow([front[0], front[2], front[3], front[3]]))
    gardener.follow(front[1:])
    assert float(gardener.errors(road.law).abs().max()) <= road.tolerance
    assert gardener.trees.counts.prompt_tokens == sum(map(len, PROMPTS)) or gardener.trees.counts.calls > 7


def test_counts(road: Road, gardener: TreeGrowth) -> None:
    gardener.plant()
    sizes = (5, 1, 8)
    for size in sizes:
        gardener.grow(size)
    counts, prompts = gardener.trees.counts, sum(map(len, PROMPTS))
    if road.evaluates_again:
        assert counts.calls >= 1 + len(sizes)
        assert counts.prompt_tokens > prompts and counts.tokens > sum(sizes)
    else:
        assert (counts.calls, counts.prompt_tokens, counts.tokens) == (1 + len(sizes), prompts, sum(sizes))


def test_first_nodes_share_the_prompts_call(road: Road, gardener: TreeGrowth) -> None:
    gardener.plant(9)
    counts = gardener.trees.counts
    assert counts.calls == 1 or road.evaluates_again
    assert counts.tokens >= 9
    assert float(gardener.errors(road.law).abs().max()) <= road.tolerance


def test_refused_first_nodes_leave_the_prompts_to_be_evaluated(gardener: TreeGrowth) -> None:
    with pytest.raises(ModelError, match="parent 77"):
        gardener.trees.roots([77], [3])
    gardener.plant(2)


def test_old_handles_stay_valid_and_given_back_ones_do_not(gardener: TreeGrowth) -> None:
    gardener.plant()
    kept = gardener.follow([0, 1, 3])
    lost = gardener.follow([kept[0], kept[0]])
    deep = gardener.follow([kept[1]])
    gardener.prune([deep[0], kept[2]])
    first = gardener.trees.next_node
    with pytest.raises(ModelError, match=f"parent {lost[0]}"):
        gardener.trees.extend([lost[0]], [3])
    with pytest.raises(ModelError, match="compact"):
        gardener.trees.compact([lost[1]])
    assert gardener.trees.next_node == first  # handles are never used again, and errors take none
    assert gardener.follow([kept[1], deep[0], 0, kept[2]]) == range(first, first + 4)


def test_compact_to_nothing_keeps_the_roots(road: Road, gardener: TreeGrowth) -> None:
    gardener.plant()
    gardener.grow(12)
    gardener.prune([])
    gardener.prune([])
    gardener.grow(12)
    assert float(gardener.errors(road.law).abs().max()) <= road.tolerance


@pytest.mark.parametrize(
    ("parents", "tokens", "words"),
    [
        ([99], [3], "parent 99"),
        ([-1], [3], "parent -1"),
        ([5, 4], [3, 3], "parent 5"),  # a parent must stand before its child
        ([0], [SIZE], "vocabulary of 64"),
        ([0], [-1], "Token -1"),
        ([0, 1], [3], "2 parents"),
    ],
)
def test_wrong_arguments_are_refused_and_change_nothing(
    road: Road, gardener: TreeGrowth, parents, tokens, words
) -> None:
    gardener.plant()
    with pytest.raises(ModelError, match=words):
        gardener.trees.extend(parents, tokens)
    gardener.grow(6)
    assert float(gardener.errors(road.law).abs().max()) <= road.tolerance


def test_roots_come_first_and_once(gardener: TreeGrowth) -> None:
    with pytest.raises(ModelError, match="before roots"):
        gardener.trees.extend([0], [3])
    gardener.plant()
    with pytest.raises(ModelError, match="twice"):
        gardener.trees.roots()


def test_the_context_is_a_limit(gardener: TreeGrowth) -> None:
    gardener.plant()
    room = CONTEXT - len(PROMPTS[3])
    node = 3
    for _ in range(room):
        node = gardener.follow([node])[0]
    with pytest.raises(ModelError, match=f"prompt of 7 tokens, together {CONTEXT + 1}, .* context is {CONTEXT}"):
        gardener.trees.extend([node], [3])
    gardener.follow([0])


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
