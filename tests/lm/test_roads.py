"""The lengths at which a forward pass changes: which they are, when they are tried, and who may share a call."""

import copy
import logging
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from outlines_phi.errors import ModelError
from outlines_phi.lm import TransformersModel
from outlines_phi.lm.transformers import roads
from outlines_phi.lm.transformers.forward import Borders
from outlines_phi.testing import TreeGrowth
from tests.inner import RegionTrees
from tests.lm.gardens import LLAMA, SIZE, VOCABULARY, build, evaluate
from tests.precision import NATS

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
    assert borders.separate == separate
    assert borders.all == crossed
    assert borders.slots == slots


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


@pytest.mark.parametrize("lengths", [(8, 3), (9, 2), (30, 4), (10, 11)])
def test_longrope_alone_and_in_company(lengths: tuple[int, ...]) -> None:
    hf_model, given = build("longrope"), prompts(*lengths)
    trees = TransformersModel(hf_model, VOCABULARY).trees(given)
    assert isinstance(trees, RegionTrees)
    gardener = TreeGrowth(trees, given, SIZE)
    gardener.live()
    assert worst(gardener, hf_model) < NATS


def test_longrope_without_regions_is_wrong() -> None:
    """Control: what the assertion above is there for."""
    hf_model, given = build("longrope"), prompts(30, 4)
    whole = TransformersModel(hf_model, VOCABULARY)
    whole._forward.borders.all = ()
    gardener = TreeGrowth(whole.trees(given), given, SIZE)
    gardener.live()
    assert worst(gardener, hf_model) > 0.1


def test_windows_by_slot_are_found_out_by_short_prompts(caplog: pytest.LogCaptureFixture) -> None:
    """Forty texts of one prompt fill more slots than the window, though none is longer than it."""
    hf_model, given = model(transformers.GPTNeoConfig(**GPT_NEO)), prompts(6, 3)
    lm = TransformersModel(hf_model, VOCABULARY)
    with caplog.at_level(logging.WARNING, logger="outlines_phi"):
        gardener = TreeGrowth(lm.trees(given), given, SIZE)
    assert lm.road == "rows" and "off by" in caplog.text
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
    with pytest.raises(ModelError, match="Try shorter inputs.*size of tensor a") as caught:
        trees.roots()
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_trial_that_failed_is_made_again(caplog: pytest.LogCaptureFixture) -> None:
    hf_model, failed = copy.deepcopy(build("qwen3")), []

    def fail_once(module: Any, args: Any, kwargs: Any) -> None:
        if kwargs["attention_mask"].ndim == 4 and not failed:
            failed.append(True)
            raise RuntimeError("the device hiccuped")

    hf_model.register_forward_pre_hook(fail_once, with_kwargs=True)
    assert TransformersModel(hf_model, VOCABULARY).road == "packed"
    assert failed and not caplog.records
