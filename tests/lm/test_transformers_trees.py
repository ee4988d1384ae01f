"""Token trees of Hugging Face models equal the evaluation of each path on its own; the version of a model."""

import copy
import gc
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import peft
import pytest
import torch

from outlines_phi.lm import TransformersModel
from outlines_phi.testing import TreeGrowth
from tests.inner import Forward, PackedTrees, RowTrees, TreeMask, divided, eightfold
from tests.lm.gardens import CONFIGS, SIZE, VOCABULARY, build, evaluate
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


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "attention"), CASES)
def test_packed_bfloat16_is_as_near_to_float32_as_plain_bfloat16(name: str, attention: str) -> None:
    packed, plain, reference = in_bfloat16(name, attention)
    assert total_variation(plain, reference) > 1e-3  # bfloat16 does round here
    assert total_variation(packed, reference) <= 1.5 * total_variation(plain, reference)
    assert root_mean_square(packed, reference) <= 1.5 * root_mean_square(plain, reference)


def total_variation(first, second) -> float:
    return float(0.5 * torch.sub(*(torch.stack(logits).softmax(-1) for logits in (first, second))).abs().sum(-1).mean())


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


SENTENCE = [5, 6, 7]


def attention(model: Any) -> Any:
    return model.get_decoder().layers[0].self_attn


def written(model: Any) -> None:
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1.5)


def replaced(model: Any) -> None:
    forward = model.forward
    model.forward = lambda *args, **kwargs: forward(*args, **kwargs)


def scaled(model: Any) -> None:
    attention(model).scaling *= 2


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a weight is written": written,
    "weights are written through data": lambda model: model.get_output_embeddings().weight.data.mul_(1.5),
    "a hook is registered": lambda model: attention(model).register_forward_hook(lambda *_: None),
    "a hook before": lambda model: attention(model).register_forward_pre_hook(lambda *_: None),
    "a method is replaced": replaced,
    "a setting of a module": scaled,
    "a setting of the configuration": lambda model: setattr(model.config, "rms_norm_eps", 0.1),
    "another dtype": lambda model: model.to(torch.bfloat16),
    "another implementation of attention": lambda model: model.set_attn_implementation("sdpa"),
}


@pytest.fixture
def hf_model() -> Any:
    return copy.deepcopy(build("qwen3"))


@pytest.fixture
def model(hf_model: Any) -> TransformersModel:
    return TransformersModel(hf_model, VOCABULARY)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_changes_a_forward_pass_changes_the_version(
    change: Callable[[Any], Any], hf_model: Any, model: TransformersModel
) -> None:
    before = model.version()
    change(hf_model)
    assert model.version() != before


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "mamba", "longrope"])
def test_calls_leave_the_version(name: str) -> None:
    hf_model = copy.deepcopy(build(name))
    model = TransformersModel(hf_model, VOCABULARY)
    before = model.version()
    model.trees([SENTENCE, [8] * 20]).roots([0, 1], [9, 10])
    evaluate(hf_model, SENTENCE)
    assert model.version() == before


def test_hooks_that_come_and_go(hf_model: Any, model: TransformersModel) -> None:
    versions = {model.version()}
    for _ in range(20):  # in the same place in memory
        handle = attention(hf_model).register_forward_hook(lambda *_: None)
        versions.add(model.version())
        assert model.opaque
        handle.remove()
    assert len(versions) == 21 and not model.opaque and model.version() in versions


def test_settings_that_hash_alike(hf_model: Any, model: TransformersModel) -> None:
    versions = set()
    for scaling in (-1.0, -2.0):
        attention(hf_model).scaling = scaling
        versions.add(model.version())
    assert len(versions) == 2


class Counting(torch.nn.Module):
    """A layer of the application's own: nothing tells when it changes."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer, self.calls = layer, 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.layer(*args, **kwargs)


def test_modules_of_the_application_are_opaque_and_tried_twice_at_most(hf_model: Any, model: TransformersModel) -> None:
    assert not model.opaque
    decoder = hf_model.get_decoder()
    decoder.layers[0] = counting = Counting(decoder.layers[0])
    assert model.opaque
    for _ in range(2):
        model.trees([SENTENCE])
    counting.calls = 0
    for _ in range(3):
        model.trees([SENTENCE])
    assert counting.calls == 0


def test_the_fingerprint_is_that_of_the_checkpoint(hf_model: Any, model: TransformersModel) -> None:
    """In any dtype; one tensor that is another, or a setting, shows."""
    before = model.fingerprint()
    assert TransformersModel(copy.deepcopy(hf_model).bfloat16(), VOCABULARY).fingerprint() == before
    other = copy.deepcopy(hf_model)
    other.config.rms_norm_eps *= 2
    assert TransformersModel(other, VOCABULARY).fingerprint() != before
    with torch.no_grad():
        hf_model.model.layers[0].mlp.up_proj.weight[1:].add_(1e-3)
    assert TransformersModel(hf_model, VOCABULARY).fingerprint() != before


def test_weights_that_are_held_elsewhere(hf_model: Any, model: TransformersModel) -> None:
    attention(hf_model).q_proj.to("meta")
    assert model.version() == model.version() and model.fingerprint()


def test_nothing_of_the_weights_is_kept(hf_model: Any, model: TransformersModel) -> None:
    model.version()
    old = weakref.ref(hf_model.get_output_embeddings().weight.data.untyped_storage())
    hf_model.to(torch.float64)
    gc.collect()
    assert old() is None


def rescaled(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "set_scale"):
            module.set_scale("default", 0.5)


def adapted() -> tuple[Any, TransformersModel]:
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    hf_model = peft.get_peft_model(copy.deepcopy(build("qwen3")), config).eval()
    return hf_model, TransformersModel(hf_model, VOCABULARY)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
class TestAdapters:
    def test_disabled(self) -> None:
        hf_model, model = adapted()
        before, law = model.version(), evaluate(hf_model, SENTENCE)
        with hf_model.disable_adapter():
            assert not torch.allclose(evaluate(hf_model, SENTENCE), law)
            assert model.version() != before
        assert model.version() == before

    @pytest.mark.parametrize("change", [rescaled, lambda model: model.merge_adapter()], ids=["scaled", "merged"])
    def test_changed(self, change: Callable[[Any], Any]) -> None:
        hf_model, model = adapted()
        before = model.version()
        change(hf_model)
        assert model.version() != before

    def test_added_by_transformers(self, hf_model: Any, model: TransformersModel) -> None:
        versions = {model.version()}
        hf_model.add_adapter(peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False), "one")
        versions.add(model.version())
        hf_model.disable_adapters()
        assert len({*versions, model.version()}) == 3
