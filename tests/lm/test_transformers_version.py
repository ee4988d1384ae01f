"""The version of a model changes with what its forward pass depends on, and with nothing else."""

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch

from outlines_phi.lm import TransformersModel
from tests.lm.gardens import VOCABULARY, build, evaluate

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
