"""Token trees of Hugging Face models equal the evaluation of each path on its own."""

from functools import cache

import numpy as np
import pytest
import torch

from outlines_phi.lm.transformers.packed import divided
from outlines_phi.lm.transformers.slots import eightfold
from outlines_phi.testing import TreeGrowth
from tests.inner import Forward, PackedTrees, RowTrees, TreeMask
from tests.lm.gardens import CONFIGS, SIZE, build, evaluate
from tests.lm.test_transformers_model import prompts as tokens
from tests.precision import NATS

ATTENTION = ["qwen3", "llama", "gpt2", "mistral", "qwen3 mixed", "gemma2", "gemma3"]
# This version of transformers refuses Gemma 2 with sdpa (soft-capped attention).
CASES = [(name, kind) for name in ATTENTION for kind in ("eager", "sdpa") if (name, kind) != ("gemma2", "sdpa")]
ONE_EACH = [
    pytest.param(*case, marks=[pytest.mark.full] if (ATTENTION.index(case[0]) + (case[1] == "sdpa")) % 2 else [])
    for case in CASES
]
"""Each architecture with one attention, which take turns; `make test-full` has the others."""
TOLERANCE = NATS  # Of the standard deviation of the logits

plainly = cache(evaluate)
"""Trees of several tests grow alike, and their nodes are the same sequences."""


PROMPTS = {
    "ragged": tokens(9, 4, 14),
    "one": tokens(5),
    "one token": tokens(1),
    "equal": [*tokens(8, 8), tokens(8)[0]],
    "far apart": tokens(33, 1),
}


def forward(model, memory: int = 256 << 20) -> Forward:
    return Forward(model, SIZE, max_length=128, memory=memory)


def grown(trees, prompts) -> TreeGrowth:
    gardener = TreeGrowth(trees, prompts, SIZE)
    gardener.live()
    return gardener


def relative_error(gardener: TreeGrowth, model) -> float:
    """Return the largest logit error over the standard deviation of the logits."""
    spread = torch.stack([logits for _, logits in gardener.history]).std()
    return float(gardener.errors(lambda sequence: plainly(model, sequence)).abs().max() / spread)


PLAIN = [(PackedTrees, name, attention, "ragged", {}) for name, attention in CASES]
PLAIN += [(PackedTrees, name, "sdpa", prompts, {}) for name in ("qwen3", "gemma3") for prompts in PROMPTS]
PLAIN += [
    (RowTrees, name, "eager", "ragged", {"padding": padding})
    for name in ("llama", "gpt2", "mistral", "gemma3", "mamba")
    for padding in (True, False)
]


@pytest.mark.parametrize(("trees", "name", "attention", "prompts", "options"), PLAIN)
def test_each_path_is_evaluated_as_on_its_own(trees, name: str, attention: str, prompts: str, options) -> None:
    model = build(name, attention)
    gardener = grown(trees(forward(model), PROMPTS[prompts], **options), PROMPTS[prompts])
    assert relative_error(gardener, model) <= TOLERANCE


@pytest.mark.parametrize(("name", "attention"), ONE_EACH)
def test_divided_rows(name: str, attention: str) -> None:
    """Trees that outgrow the rows of their prompts, once and again, are spread over others and evaluated as before."""
    model = build(name, attention)
    trees = PackedTrees(forward(model), PROMPTS["ragged"], room=0)
    gardener = TreeGrowth(trees, PROMPTS["ragged"], SIZE)
    gardener.plant(6)
    rows = set()
    for count in (90, 5, 70, 40):
        gardener.grow(count)
        rows.add(trees.cache.slots.batch)
    assert max(rows) > len(PROMPTS["ragged"]) and len(rows) > 2
    gardener.prune(list(gardener.sequences)[-20:])
    gardener.grow(20)
    assert relative_error(gardener, model) <= TOLERANCE


def test_a_part_of_a_tree_has_whole_paths() -> None:
    random = np.random.default_rng(5)
    parent = np.array([-1, -1, *(random.integers(0, node) for node in range(2, 400))])
    root = parent.copy()
    for node in range(400):
        root[node] = node if parent[node] < 0 else root[parent[node]]
    tree = np.flatnonzero(root == 1)
    parts = divided(parent, tree, 30)
    assert set(np.concatenate(parts)) == set(tree[1:]) and len(parts) > 3
    for part in parts:
        assert (np.diff(part) > 0).all() and set(parent[part]) <= {1, *part}
        leaves = set(part) - set(parent[part])
        assert len(part) <= 30 or len(leaves) == 1
    assert sum(map(len, parts)) < 2 * len(tree) and [len(part) for part in divided(parent, tree[:1], 30)] == [0]


def test_what_a_node_reads_grows_with_its_path_and_not_with_the_tree() -> None:
    prompt, widths = PROMPTS["one"], set[int]()
    trees = PackedTrees(forward(build("qwen3")), prompt)
    gardener = TreeGrowth(trees, prompt, SIZE)
    gardener.plant()
    while trees.next_node < 4000:
        gardener.grow(50)
        widths.add(trees.cache.slots.width)
    assert max(widths) <= 2 * (256 + 2 * eightfold(max(map(len, gardener.sequences.values())))) + 50


def in_bfloat16(name: str, attention: str) -> tuple[list, list, list]:
    """Return the logits of packed bfloat16, of plain bfloat16, and of float32 with the same weights."""
    rounded = build(name, attention, torch.bfloat16)
    gardener = grown(PackedTrees(forward(rounded), PROMPTS["ragged"]), PROMPTS["ragged"])
    models = (rounded, build(name, attention))
    plain, reference = ([plainly(model, sequence) for sequence, _ in gardener.history] for model in models)
    return [logits for _, logits in gardener.history], plain, reference


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_packed_bfloat16_is_as_near_to_float32_as_plain_bfloat16(name: str, attention: str) -> None:
    packed, plain, reference = in_bfloat16(name, attention)
    assert total_variation(plain, reference) > 1e-3  # bfloat16 does round here
    assert total_variation(packed, reference) <= 1.5 * total_variation(plain, reference)
    assert root_mean_square(packed, reference) <= 1.5 * root_mean_square(plain, reference)


def total_variation(first, second) -> float:
    laws = (torch.stack(logits).softmax(-1) for logits in (first, second))
    return float(0.5 * torch.sub(*laws).abs().sum(-1).mean())


def root_mean_square(first, second) -> float:
    return float((torch.stack(first) - torch.stack(second)).square().mean().sqrt())


def boolean_mask(build, mask, *lines, **kinds):
    return {kind: seen == 0 for kind, seen in build(mask, *lines, **kinds).items()}


def siblings_seen(build, mask, *lines, **kinds):
    """Let a token see every slot up to its own, as a chain would."""
    base = mask.prompt_positions.shape[1]
    masks = build(mask, *lines, **kinds)
    for seen in masks.values():
        own = (seen == 0).cumsum(-1).argmax(-1, keepdim=True)  # the last slot that it sees
        slot = torch.arange(seen.shape[-1])
        seen[(slot >= base) & (slot <= own)] = 0.0
    return masks


def no_window(build, mask, *lines, **kinds):
    mask.windows = dict.fromkeys(mask.windows)
    return build(mask, *lines, **kinds)


def padding_seen(build, mask, *lines, **kinds):
    masks = build(mask, *lines, **kinds)
    for seen in masks.values():
        seen[..., : max(map(len, PROMPTS["ragged"]))] = 0.0
    return masks


@pytest.mark.parametrize(
    ("fault", "name", "attention"),
    [
        (boolean_mask, "llama", "eager"),
        (siblings_seen, "llama", "sdpa"),
        (padding_seen, "gpt2", "sdpa"),
        (no_window, "mistral", "eager"),
        (no_window, "gemma3", "sdpa"),
    ],
)
def test_wrong_masks_are_seen(monkeypatch, fault, name: str, attention: str) -> None:
    """Control: the assertions above fail, by far, on masks that are wrong."""
    build_mask = TreeMask.build
    monkeypatch.setattr(TreeMask, "build", lambda mask, *lines, **kinds: fault(build_mask, mask, *lines, **kinds))
    model = build(name, attention)
    gardener = grown(PackedTrees(forward(model), PROMPTS["ragged"]), PROMPTS["ragged"])
    assert relative_error(gardener, model) > 1000 * TOLERANCE
    packed, plain, reference = in_bfloat16(name, attention)
    assert total_variation(packed, reference) > 3 * total_variation(plain, reference)


def test_every_table_entry_is_tried() -> None:
    assert {name for name, _ in CASES} | {"mamba", "longrope"} == set(CONFIGS)
