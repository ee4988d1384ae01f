"""TransformersModel: which road is taken, what it costs, and what it refuses."""

import copy
import logging
import math
from collections.abc import Callable
from inspect import signature
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from outlines_phi import SamplingSettings, UnsupportedError, Vocabulary
from outlines_phi.errors import ModelError, VocabularyError
from outlines_phi.lm import TransformersModel
from outlines_phi.lm.transformers import roads
from outlines_phi.testing import TreeGrowth
from tests.inner import Borders, Forward, PackedTrees, RowTrees, TreeMask
from tests.lm.gardens import LLAMA, SIZE, VOCABULARY, build, evaluate
from tests.precision import NATS
from tests.refusals import refused

PROMPTS = [[5, 6, 7, 8, 9], [10, 11], [12, 13, 14, 15, 16, 17, 18]]


def fresh(name: str, attention: str = "eager", dtype: torch.dtype = torch.float32):
    """Return a copy of a tiny model that no verdict is known of."""
    return copy.deepcopy(build(name, attention, dtype))


class Meter:
    """A count of the requests to a model, from outside."""

    def __init__(self, hf_model) -> None:
        self.calls, self.largest = 0, 0
        hf_model.register_forward_hook(self._count)

    def _count(self, module, arguments, output) -> None:
        self.calls += 1
        self.largest = max(self.largest, output.logits.numel() * output.logits.element_size())


def test_every_extend_is_one_call_and_counts_are_exact() -> None:
    hf_model = fresh("llama", "sdpa")
    trees = TransformersModel(hf_model, VOCABULARY).trees(PROMPTS)
    assert isinstance(trees, PackedTrees)
    meter = Meter(hf_model)
    gardener = TreeGrowth(trees, PROMPTS, SIZE)
    gardener.plant()
    sizes = [1, 40, 3, 17]
    for size in sizes:
        gardener.grow(size)
    gardener.prune([gardener.trees.next_node - 1])
    gardener.grow(2)
    assert meter.calls == trees.counts.calls == 1 + len(sizes) + 1
    assert (trees.counts.prompt_tokens, trees.counts.tokens) == (sum(map(len, PROMPTS)), sum(sizes) + 2)


def test_storage_is_reallocated_a_logarithmic_number_of_times() -> None:
    options = {**LLAMA, "num_hidden_layers": 1, "hidden_size": 8, "max_position_embeddings": 10_000}
    hf_model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**options)).eval()
    trees = TransformersModel(hf_model, VOCABULARY).trees(PROMPTS)
    trees.roots()
    calls, storages = 700, set()
    for _ in range(calls):
        trees.extend([trees.next_node - 1 if trees.next_node > len(PROMPTS) else 0], [3])
        storages.add(trees.cache.layers[0].keys.data_ptr())
    assert trees.cache.reallocations == math.ceil(math.log2(calls / trees.cache.NODES)) == 4
    assert len(storages) <= 1 + trees.cache.reallocations


def test_compact_gives_memory_back_and_slots_are_used_again() -> None:
    trees = TransformersModel(build("qwen3"), VOCABULARY).trees(PROMPTS)
    gardener = TreeGrowth(trees, PROMPTS, SIZE)
    gardener.plant()
    gardener.grow(500)
    held = trees.cache.layers[0].keys.shape[2]
    gardener.prune([3, 4, 5])
    assert trees.cache.layers[0].keys.shape[2] <= held / 2
    capacity = trees.cache.layers[0].keys.shape[2]
    for _ in range(20):
        gardener.prune(gardener.grow(40)[-2:])
    assert trees.cache.layers[0].keys.shape[2] == capacity
    law = {sequence: evaluate(build("qwen3"), sequence) for sequence, _ in gardener.history[-40:]}
    for sequence, logits in gardener.history[-40:]:
        assert torch.allclose(logits, law[sequence], atol=NATS)


def test_a_small_memory_splits_calls_and_changes_nothing() -> None:
    hf_model = fresh("gemma3", "sdpa")
    evaluations = []
    for memory in (256 << 20, 16 << 10):
        trees = TransformersModel(hf_model, VOCABULARY, memory=memory).trees(PROMPTS)
        meter = Meter(hf_model)
        gardener = TreeGrowth(trees, PROMPTS, SIZE, seed=3)
        gardener.plant()
        gardener.grow(150)
        gardener.grow(20)
        evaluations.append(torch.stack([logits for _, logits in gardener.history]))
        assert meter.calls == trees.counts.calls and trees.counts.tokens == 170
    assert trees.counts.calls > 6
    assert meter.largest <= 16 << 10
    torch.testing.assert_close(evaluations[0], evaluations[1], atol=NATS, rtol=0)


def test_recurrent_models_fall_back_to_rows_with_one_warning(logged) -> None:
    model = TransformersModel(fresh("mamba"), VOCABULARY)
    assert all(isinstance(model.trees(PROMPTS), RowTrees) for _ in range(2)) and model.road == "rows"
    (record,) = logged
    assert "linear_attention" in record.getMessage() and "MambaForCausalLM" in record.getMessage()


def renamed(name: str) -> Any:
    """Return a tiny model whose forward pass calls its cache ``name``, as those of other versions of transformers do."""
    model = fresh("qwen3")
    inner, known = model.forward, Forward(model, SIZE, max_length=None, memory=0).cache_name

    def named(self, input_ids=None, attention_mask=None, position_ids=None, CACHE=None, logits_to_keep=0, **kwargs):
        given = {"position_ids": position_ids, "logits_to_keep": logits_to_keep, known: CACHE, **kwargs}
        output = inner(input_ids=input_ids, attention_mask=attention_mask, **given)
        return SimpleNamespace(logits=output.logits, **{name: output[known]})

    parameters = [p.replace(name=name) if p.name == "CACHE" else p for p in signature(named).parameters.values()]

    def forward(self, *args, **kwargs):
        if name in kwargs:
            kwargs["CACHE"] = kwargs.pop(name)
        return named(self, *args, **kwargs)

    forward.__signature__ = signature(named).replace(parameters=parameters)  # type: ignore[attr-defined]
    model.__class__ = type("Renamed", (type(model),), {"forward": forward})
    return model


class Wrapped(torch.nn.Module):
    """A wrapper that names nothing of what it hands on."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.config, self.device, self.dtype = model, model.config, model.device, model.dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


MADE: dict[str, Callable[[], Any]] = {
    "cache": lambda: renamed("cache"),
    "past_key_values": lambda: renamed("past_key_values"),
    "a state": lambda: fresh("mamba"),
}


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_the_cache_is_given_by_the_name_in_the_signature(name: str, wrapped: bool) -> None:
    """Also where the model is within a wrapper; the prompt is evaluated once, so that the cache has been read."""
    model = MADE[name]()
    forward = Forward(Wrapped(model) if wrapped else model, SIZE, max_length=128, memory=1 << 28)
    assert forward.recurrent == (name == "a state") and (forward.recurrent or forward.cache_name == name)
    trees = RowTrees(forward, [PROMPTS[0]])
    trees.roots()
    logits = trees.extend([0], [9]).logits[0].double()
    torch.testing.assert_close(logits, evaluate(model, [*PROMPTS[0], 9]), atol=NATS, rtol=0)
    assert trees.counts.prompt_tokens == len(PROMPTS[0]) and trees.counts.tokens == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "mistral", "gemma2", "gemma3"])
def test_attention_models_are_packed(name: str, dtype: torch.dtype, logged) -> None:
    assert TransformersModel(fresh(name, dtype=dtype), VOCABULARY).road == "packed"
    assert not logged


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_self_check_finds_wrong_masks(monkeypatch, logged, dtype: torch.dtype) -> None:
    """Control: boolean masks are silently wrong with eager attention; the check sees it and says so."""
    right = TreeMask.build
    monkeypatch.setattr(
        TreeMask, "build", lambda *args, **kinds: {kind: seen == 0 for kind, seen in right(*args, **kinds).items()}
    )
    assert TransformersModel(fresh("qwen3", dtype=dtype), VOCABULARY).road == "rows"
    assert any("off by" in record.getMessage() for record in logged)


def test_the_self_check_is_made_once_per_dtype() -> None:
    hf_model = fresh("llama")
    meter = Meter(hf_model)
    TransformersModel(hf_model, VOCABULARY).trees(PROMPTS)
    assert 0 < meter.calls <= 16
    meter.calls = 0
    TransformersModel(hf_model, VOCABULARY).trees(PROMPTS)
    assert meter.calls == 0
    assert TransformersModel(hf_model.to(torch.bfloat16), VOCABULARY).road == "packed"
    assert meter.calls > 0


def not_causal():
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=SIZE, initializer_range=0.3
    )
    return transformers.BertLMHeadModel(config)


def encoder_decoder():
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=SIZE, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    )


def without_head():
    return transformers.LlamaModel(transformers.LlamaConfig(**LLAMA))


def with_images():
    text = transformers.Gemma3TextConfig(**{**LLAMA, "num_hidden_layers": 1, "head_dim": 8})
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(
        text_config=text.to_dict(), vision_config={**vision, "image_size": 28, "patch_size": 14}, mm_tokens_per_image=4
    )
    return transformers.Gemma3ForConditionalGeneration(config)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (not_causal, "causal"),
        (encoder_decoder, "encoder-decoder"),
        (without_head, "does not generate"),
        (with_images, "vision_config"),
        (lambda: "gpt2", "from_pretrained"),
    ],
)
def test_other_models_are_refused(make, words: str) -> None:
    model = make()
    with pytest.raises(UnsupportedError, match=words):
        TransformersModel(model.eval() if hasattr(model, "eval") else model, VOCABULARY).trees(PROMPTS)


def test_a_model_in_training_mode_is_refused_when_it_matters() -> None:
    hf_model = fresh("gpt2").train()
    refused(r"model\.eval\(\)", TransformersModel, hf_model, VOCABULARY)
    model = TransformersModel(hf_model.eval(), VOCABULARY)
    hf_model.train()
    refused(r"model\.eval\(\)", model.trees, PROMPTS)


def test_a_vocabulary_of_another_size_is_refused() -> None:
    small = Vocabulary.from_tokens([b"a", b"b", b""], 2)
    refused("64 rows .* 3 entries", TransformersModel, build("llama"), small, error=VocabularyError)


@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_nan_is_an_error_and_the_trees_survive_it(name: str) -> None:
    hf_model = fresh(name)
    gardener = TreeGrowth(TransformersModel(hf_model, VOCABULARY).trees(PROMPTS), PROMPTS, SIZE)
    gardener.plant()
    gardener.grow(5)
    head = hf_model.get_output_embeddings()
    spoil = head.register_forward_hook(lambda module, arguments, output: output.fill_(math.nan))
    refused(r"NaN.*torch\.float32.*eager", gardener.grow, 5, error=ModelError)
    spoil.remove()
    gardener.grow(5)
    assert float(gardener.errors(lambda sequence: evaluate(hf_model, sequence)).abs().max()) < NATS


def test_distributions_of_logits_are_ordinary_tensors() -> None:
    """Logits are read, not written: a copy of them would cost as much as the distribution."""
    for name in ("llama", "mamba"):
        trees = TransformersModel(build(name), VOCABULARY).trees(PROMPTS)
        for evaluation in (trees.roots(), trees.extend([0, 1, 3], [5, 6, 7])):
            log_p = SamplingSettings().log_p(evaluation.logits, VOCABULARY, ())
            log_p.masked_fill_(torch.zeros(SIZE, dtype=torch.bool), -1.0)  # refused on inference tensors
            assert not evaluation.logits.requires_grad


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gpt2", "qwen3", "mistral", "gemma3"])
def test_packed_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    model = TransformersModel(fresh(name, "sdpa", dtype).cuda(), VOCABULARY)
    assert model.road == "packed" and model.device.type == "cuda"
    gardener = TreeGrowth(model.trees(PROMPTS), PROMPTS, SIZE)
    gardener.live()
    exact = build(name, "sdpa")
    errors = [logits.cpu() - evaluate(exact, sequence) for sequence, logits in gardener.history]
    assert np.sqrt(float(torch.stack(errors).square().mean())) < (2e-3 if dtype == torch.float32 else 0.15)


GPT_NEO = {
    "vocab_size": SIZE,
    "hidden_size": 32,
    "num_layers": 4,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 2]],
    "window_size": 24,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}


def model(config: Any) -> Any:
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def windowed(window: int) -> Any:
    return model(transformers.MistralConfig(**LLAMA, sliding_window=window))


def prompts(*lengths: int) -> list[list[int]]:
    random = np.random.default_rng(7)
    return [random.integers(3, SIZE, size=length).tolist() for length in lengths]


def worst(gardener: TreeGrowth, hf_model: Any) -> float:
    return float(gardener.errors(lambda sequence: evaluate(hf_model, sequence)).abs().max())


@pytest.mark.parametrize(
    ("config", "separate", "crossed", "slots"),
    [
        (transformers.LlamaConfig(**LLAMA), set(), (), 0),
        (transformers.MistralConfig(**LLAMA, sliding_window=40), set(), (40,), 40),
        (transformers.MistralConfig(**LLAMA, sliding_window=500), set(), (), 500),  # beyond the context
        (transformers.GPTNeoConfig(**GPT_NEO), set(), (24,), 128),
        (build("longrope").config, {10}, (10,), 0),
    ],
    ids=["none", "a window", "a window beyond the context", "windows and tables by slot", "longrope"],
)
def test_what_a_configuration_names(config: Any, separate: set[int], crossed: tuple[int, ...], slots: int) -> None:
    borders = Borders(model(config), 128)
    assert (borders.separate, borders.all, borders.slots) == (separate, crossed, slots)


def test_a_border_is_tried_when_it_is_crossed() -> None:
    hf_model = windowed(40)
    calls = []
    hf_model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    trees = TransformersModel(hf_model, VOCABULARY).trees(prompts(30))
    trees.roots()
    assert max(calls) <= 30  # nothing is tried at the window
    trees.extend([0], [5])
    assert calls[-1] == 1
    node = 1
    while trees.next_node < 11:
        node = trees.extend([node], [5]).nodes[0]
    before = len(calls)
    trees.extend([node], [5])
    assert max(calls[before:]) > 40 and calls[-1] == 1  # tried, found right, and gone on in the same cache


def test_windows_by_slot_are_found_out_by_short_prompts(logged: list[logging.LogRecord]) -> None:
    """Forty texts of one prompt fill more slots than the window, though none is longer than it."""
    hf_model, given = model(transformers.GPTNeoConfig(**GPT_NEO)), prompts(6, 3)
    lm = TransformersModel(hf_model, VOCABULARY)
    gardener = TreeGrowth(lm.trees(given), given, SIZE)
    assert lm.road == "rows" and any("off by" in record.getMessage() for record in logged)
    gardener.live()
    assert worst(gardener, hf_model) < NATS


def test_a_border_whose_trial_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hf_model, (prompt,) = build("longrope"), prompts(10)
    trees = TransformersModel(hf_model, VOCABULARY).trees([prompt])
    trees.roots()
    with monkeypatch.context() as patch:
        patch.setattr(roads, "road", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError()))
        with pytest.raises(torch.OutOfMemoryError):
            trees.extend([0], [5])
    found = trees.extend([0], [5]).logits[0].double()
    torch.testing.assert_close(found, evaluate(hf_model, [*prompt, 5]), atol=NATS, rtol=0)


def test_what_a_model_raises_has_a_type() -> None:
    hf_model = copy.deepcopy(build("qwen3"))
    trees = TransformersModel(hf_model, VOCABULARY).trees(prompts(5))

    def fail(*_: Any) -> None:
        raise RuntimeError("size of tensor a must match")

    hf_model.register_forward_pre_hook(fail)
    caught = refused("Try shorter inputs.*size of tensor a", trees.roots, error=ModelError)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_trial_that_failed_is_made_again(logged: list[logging.LogRecord]) -> None:
    hf_model, failed = copy.deepcopy(build("qwen3")), []

    def fail_once(module: Any, args: Any, kwargs: Any) -> None:
        if kwargs["attention_mask"].ndim == 4 and not failed:
            failed.append(True)
            raise RuntimeError("the device hiccuped")

    hf_model.register_forward_pre_hook(fail_once, with_kwargs=True)
    assert TransformersModel(hf_model, VOCABULARY).road == "packed"
    assert failed and not logged
