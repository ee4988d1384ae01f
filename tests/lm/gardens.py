"""Tiny random models of many architectures."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor

from outlines_phi import Vocabulary

SIZE = 64
LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": SIZE,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # logits of standard deviation about 1.7: a wrong mask is seen
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXED = {"head_dim": 8, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"] * 2}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0, 8.0, 16.0, 32.0],
    "original_max_position_embeddings": 10,
}
GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128, "bos_token_id": 1, "eos_token_id": 2}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {**GPT2, "vocab_size": SIZE, "initializer_range": 0.3}),
    "llama": ("LlamaConfig", LLAMA),
    "qwen3": ("Qwen3Config", {**LLAMA, "head_dim": 8}),
    "qwen3 mixed": ("Qwen3Config", {**LLAMA, **MIXED, "use_sliding_window": True}),
    "mistral": ("MistralConfig", {**LLAMA, "sliding_window": 6}),
    "longrope": ("Phi3Config", {**LLAMA, "rope_parameters": LONGROPE, "original_max_position_embeddings": 10}),
    "gemma2": ("Gemma2Config", {**LLAMA, **MIXED}),
    "gemma3": ("Gemma3TextConfig", {**LLAMA, **MIXED}),
    "mamba": (
        "MambaConfig",
        {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": SIZE, "state_size": 8, "initializer_range": 0.3},
    ),
}


@cache
def build(name: str, attention: str = "eager", dtype: torch.dtype = torch.float32) -> Any:
    """Return the tiny model ``name``; its float32 and bfloat16 versions have the same (bfloat16) weights."""
    config_name, options = CONFIGS[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**options)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.to(torch.bfloat16).to(dtype).eval()


def evaluate(model: Any, sequence: Sequence[int]) -> Tensor:
    """Return the ``[V]`` logits after ``sequence``, by one plain call without mask or cache."""
    with torch.inference_mode():
        return model(torch.tensor([list(sequence)])).logits[0, -1].double()


VOCABULARY = Vocabulary.from_tokens([bytes([index]) for index in range(SIZE)], 2)
