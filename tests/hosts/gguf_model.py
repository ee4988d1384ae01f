"""The bundled model as a file of llama.cpp."""

import json
from pathlib import Path

import gguf
import numpy as np

from outlines_phi.lm import bundled

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
"""Parts of a layer, by their names in Transformers and in llama.cpp."""


def write(path: Path) -> None:
    """Write the bundled model, in single precision."""
    model, tokenizer = bundled.load()
    config, writer = model.config, gguf.GGUFWriter(str(path), "qwen3")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    read = json.loads(tokenizer.backend_tokenizer.to_str())
    special = {token["id"] for token in read["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    kinds = gguf.TokenType
    writer.add_token_types([kinds.CONTROL if i in special else kinds.NORMAL for i in range(len(tokenizer))])
    writer.add_token_merges([" ".join(merge) for merge in read["model"]["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(False)
    for name, weight in model.state_dict().items():
        writer.add_tensor(_renamed(name), weight.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _renamed(name: str) -> str:
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{NAMES[part.removesuffix('.weight')]}.weight"


def write_adapter(path: Path) -> None:
    """Write a low-rank adapter of the queries of the first layer."""
    size, rank = 128, 2
    writer = gguf.GGUFWriter(str(path), "qwen3")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    random = np.random.default_rng(0)
    for part, shape in (("a", (rank, size)), ("b", (size, rank))):
        writer.add_tensor(f"blk.0.attn_q.weight.lora_{part}", random.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
