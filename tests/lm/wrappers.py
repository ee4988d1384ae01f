"""The wrappers that users put around a model: adapters of every PEFT kind, other dtypes and attention, compilation."""

from collections.abc import Callable
from typing import Any

import peft
import torch
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

from .families import configuration, model_of

PROJECTIONS = {"target_modules": ["q_proj", "v_proj", "down_proj"]}
# Prompts that are learned, as tokens or as keys and values: they stand before every sequence.
PROMPT_KINDS: dict[str, dict[str, Any]] = {
    "ADAPTION_PROMPT": {"adapter_len": 3, "adapter_layers": 2},  # of the kinds of models, it knows Llama alone
    "CARTRIDGE": {"num_virtual_tokens": 3},
    "CPT": {"cpt_token_ids": [5, 6, 7], "cpt_mask": [1, 1, 1], "cpt_tokens_type_mask": [1, 2, 3]},
    "PREFIX_TUNING": {"num_virtual_tokens": 3},
    "PROMPT_TUNING": {"num_virtual_tokens": 3},
    "P_TUNING": {"num_virtual_tokens": 3, "encoder_hidden_size": 16},
}
# Adapters that add to the weights, or multiply them, or their outputs.
WEIGHT_KINDS: dict[str, dict[str, Any]] = {
    "LORA": PROJECTIONS,
    "ADALORA": {**PROJECTIONS, "total_step": 10},
    "BEFT": PROJECTIONS,
    "BOFT": {**PROJECTIONS, "boft_block_size": 4},
    "C3A": {**PROJECTIONS, "block_size": 8},
    "DEFT": PROJECTIONS,
    "DELORA": PROJECTIONS,
    "FOURIERFT": {**PROJECTIONS, "n_frequency": 10},
    "FROD": PROJECTIONS,
    "GLORA": PROJECTIONS,
    "GRALORA": PROJECTIONS,
    "HIRA": PROJECTIONS,
    "HRA": PROJECTIONS,
    "IA3": {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    "LILY": PROJECTIONS,
    "LN_TUNING": {"target_modules": ["input_layernorm"]},
    "LOHA": PROJECTIONS,
    "LOKR": PROJECTIONS,
    "MISS": {**PROJECTIONS, "r": 8},
    "OFT": {**PROJECTIONS, "oft_block_size": 8, "r": 0},
    "OSF": PROJECTIONS,
    "PEANUT": PROJECTIONS,
    "PSOFT": {**PROJECTIONS, "r": 4},
    "PVERA": PROJECTIONS,
    "RANDLORA": PROJECTIONS,
    "ROAD": {**PROJECTIONS, "group_size": 8},
    "SHIRA": {**PROJECTIONS, "r": 4},
    "SUPERTUNING": PROJECTIONS,
    "TINYLORA": PROJECTIONS,
    "TRAINABLE_TOKENS": {"target_modules": ["embed_tokens"], "token_indices": list(range(3, 60, 3))},
    "UNILORA": PROJECTIONS,
    "VBLORA": {**PROJECTIONS, "num_vectors": 10, "vector_length": 8},
    "VERA": PROJECTIONS,
    "WAVEFT": {**PROJECTIONS, "n_frequency": 10},
}
NOT_BUILT = {
    "ADAMSS": "needs scikit-learn",
    "MULTITASK_PROMPT_TUNING": "its forward pass needs the number of a task beside the tokens",
    "POLY": "its forward pass needs the number of a task beside the tokens",
    "SHADOW": "its layers cannot be called in models whose attention reshapes projections",
    "XLORA": "mixes adapters that are read from files",
}
# Forms of LoRA that are options, not kinds.
LORA_FORMS: dict[str, dict[str, Any]] = {
    "DoRA": {**PROJECTIONS, "use_dora": True},
    "rsLoRA": {**PROJECTIONS, "use_rslora": True},
    "LoRA from a token on": {**PROJECTIONS, "alora_invocation_tokens": [9]},
    "LoRA with tokens and a head": {**PROJECTIONS, "trainable_token_indices": [5, 9], "modules_to_save": ["lm_head"]},
}
ADAPTERS = {**{kind: (kind, given) for kind, given in {**WEIGHT_KINDS, **PROMPT_KINDS}.items()}}
ADAPTERS |= {form: ("LORA", given) for form, given in LORA_FORMS.items()}


def adapted(name: str, **changes: Any) -> Any:
    """Return a tiny model with the adapter ``name``, whose random weights move the logits."""
    kind, given = ADAPTERS[name]
    config = {value.value: config for value, config in PEFT_TYPE_TO_CONFIG_MAPPING.items()}[kind]
    family = "llama" if kind == "ADAPTION_PROMPT" else "qwen3"
    model = peft.get_peft_model(model_of(configuration(family, **changes)), config(task_type="CAUSAL_LM", **given))
    return randomized(model.eval())


def randomized(model: Any) -> Any:
    """Add noise to every weight of ``model`` that is open to training."""
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                parameter += 0.3 * torch.randn(parameter.shape, generator=random)
    return model


def merged() -> Any:
    """Return a model that a LoRA adapter was merged into."""
    return adapted("LORA").merge_and_unload().eval()


def native() -> Any:
    """Return a model with a LoRA adapter that transformers itself holds."""
    model = model_of(configuration("qwen3"))
    model.add_adapter(peft.LoraConfig(**PROJECTIONS))
    return randomized(model.eval())


def two_adapters() -> Any:
    """Return a model with two LoRA adapters, of which the second is in use."""
    model = adapted("LORA")
    model.add_adapter("second", peft.LoraConfig(task_type="CAUSAL_LM", **PROJECTIONS))
    model.set_adapter("second")
    return randomized(model.eval())


def compiled_module() -> Any:
    """Return a model compiled by ``torch.compile``."""
    return torch.compile(_short(), backend="eager", dynamic=True)


def compiled_forward() -> Any:
    """Return a model whose ``forward`` is compiled."""
    model = _short()
    model.forward = torch.compile(model.forward, backend="eager", dynamic=True)
    return model


def _short() -> Any:
    torch._dynamo.reset()  # else what was compiled before counts toward the limit, beyond which nothing is
    return model_of(configuration("llama", num_hidden_layers=1))


WRAPPERS: dict[str, Callable[[], Any]] = {
    "LoRA merged": merged,
    "LoRA held by transformers": native,
    "two LoRA adapters": two_adapters,
    "compiled": compiled_module,
    "forward compiled": compiled_forward,
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ATTENTION = ("eager", "sdpa")


def in_form(family: str, attention: str, dtype: str) -> Any:
    """Return a tiny model with another attention implementation and dtype; its weights are those of bfloat16."""
    # Flexible attention, which is compiled, has no kernel for heads of less than 16 numbers.
    changes = {"head_dim": 16} if attention == "flex_attention" else {}
    return model_of(configuration(family, **changes), attention, DTYPES[dtype])
