"""Tiny random models of every causal family that transformers can build, from its own default configuration."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import peft
import torch
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

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
# Not built: ADAMSS needs scikit-learn; the forward passes of MULTITASK_PROMPT_TUNING and POLY the number of a task beside tokens;
# layers of SHADOW cannot be called in models whose attention reshapes projections; XLORA mixes adapters that are read from files.
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


SIZE, LAYERS, CONTEXT, ORIGINAL = 64, 4, 64, 16
BORDER, WIDE = 8, 24  # the second one lies beyond what a short trial sees
LARGEST = 3_000_000  # parameters; what is larger is not worth a walk
NOT_BUILT = {
    "dots3_note": "text, vision and audio whose sizes are checked against each other; its text is dots3_note_text",
    "gemma3n": "its vision model needs timm; its text is gemma3n_text",
    "gemma4_assistant": "drafts for another model from the cache of that one; makes no keys or values of its own",
    "gemma4_unified_assistant": "drafts for another model from the cache of that one; makes no keys or values of its own",
    "musicgen": "tokens of sound; transformers cannot build it from its configuration",
    "musicgen_melody": "tokens of sound; transformers cannot build it from its configuration",
}
FAMILIES = tuple(family for family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if family not in NOT_BUILT)

BORDERS = (
    r"^(sliding_window|(attention_)?window(_size)?|(attention_|mamba_)?chunk_size|attention_window_size|index_topk"
    r"|indexer_budget|(lsh|local)_attn_chunk_length|block_size)$"
)
# The tiny value of a number of a configuration, by its name: the first pattern that matches. ``None``: windows, chunks and
# selections of the nearest or the best; they become the border that a walk crosses.
RULES: tuple[tuple[str, float | None], ...] = (
    (BORDERS, None),
    (r"vocab_size$|^(vocab_size_per_layer_input|emb_vocab)", SIZE),
    (r"^(hidden_size|d_model|n_embd|dim|emb(edding)?_(size|dim)|word_embed_proj_dim|lru_width|adapter_in_dim)$", 32),
    (r"^((num_|n_)?(hidden_|decoder_|encoder_)?layers?|num_blocks)$", LAYERS),
    (r"^(num_|n_)?(decoder_|encoder_)?(attention_)?heads?$|^lightning_nh$", 4),
    (r"^(num_key_value_heads|num_kv_heads|n_kv_heads)$", 2),
    (r"^(global_|linear_(key_|value_)?|index_)?head_dim$|^(d_head|kv_channels|attention_head_dim)$", 8),
    (r"^linear_num_(key_|value_)?heads$", 4),
    (r"^index_n_heads$", 32),  # with few, keys tie at a score of nought, and which are chosen is arbitrary
    (r"intermediate_size|ffn_dim|^n_inner|^d_ff|ffn_hidden_size|d_inner|^feed_forward_size|^dim_ff", 64),
    (r"^(max_position_embeddings|n_positions|max_seq_len|n_ctx|max_sequence_length|model_max_length)$", CONTEXT),
    (r"^(num_experts|n_routed_experts|num_local_experts|moe_num_experts|zero_expert_num)$", 4),
    (r"^(num_experts_per_tok(en)?|moe_topk|moe_top_k|moe_k|num_selected_experts|top_k_experts)$", 2),
    (r"^(n_group|topk_group|num_expert_group|n_groups|mamba_ngroups|mamba_n_groups)$", 1),
    (r"^(initializer_range|init_std|embedding_initializer_range)$", 0.3),  # logits that a wrong mask moves
    (r"^(q_lora_rank|kv_lora_rank)$", 16),
    (r"^(qk_nope_head_dim|v_head_dim)$", 8),
    (r"^qk_rope_head_dim$", 4),
    (r"^(mamba_d_state|state_size)$", 8),
    (r"^(mamba_)?dt_rank$|^time_step_rank$", 4),
    (r"^pad_token_id$", 0),
    (r"^bos_token_id$", 1),
    (r"^eos_token_id$", 2),
)
# Set even where the default is None.
WITHOUT_DEFAULT = ("pad_token_id", "bos_token_id", "eos_token_id", "head_dim", "num_key_value_heads")
LISTS = ("layer_types", "mlp_layer_types", "layers_block_type")  # one entry per layer

MULTI_HEAD_LATENT = {"head_dim": 4, "qk_head_dim": 12, "num_key_value_heads": 4}
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_expand": 2}
MIXED = {
    "use_sliding_window": True,
    "sliding_window": BORDER,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
DOTS3 = {"pad_token_id": None, "per_layer_config": {}, "head_dim": 12, "index_head_dim": 8}
QWEN4_INDEXER = {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_compress_ratio": 2}
OVERRIDES: dict[str, dict[str, Any]] = {
    # The padding token is all zeros: its keys tie, and which of them sparse attention chooses is arbitrary.
    **dict.fromkeys(("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4"), {"pad_token_id": None}),
    "bamba": {**MAMBA2, "attn_layer_indices": [1, 3]},
    "blt": {"encoder_hash_byte_group_vocab": 64, "encoder_hash_byte_group_functions": 1},
    "codegen": {"rotary_dim": 4},
    "cohere": {"logit_scale": 1.0},
    "cohere2": {"logit_scale": 1.0},
    "cohere2_moe": {"logit_scale": 1.0},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {"sliding_attention": {**ROPE, "mrope_section": [2, 1, 1]}, "full_attention": None},
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 64, "moe_top_k": 2, "hidden_size": 32},
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "dots3_note_text": DOTS3,
    "gemma3n_text": {
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
        "intermediate_size": 64,
        "activation_sparsity_pattern": [0.5, 0.0] * 2,
    },
    "gemma4_text": {"per_layer_config": {}, "hidden_size_per_layer_input": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {**MAMBA2, "layer_types": ["linear_attention", "full_attention"] * 2},
    "hrm_text": {"initializer_range": 0.1},  # at 0.3 its recurrence amplifies rounding a thousandfold
    "inkling_text": {"logits_mup_width_multiplier": 1.0},
    "inkling2_text": {"logits_mup_width_multiplier": 1.0},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 4, "head_dim": 16, "expand": 2},
    "openai-gpt": {"initializer_range": 1.0},
    "qwen4_exp": {"text_config": {**QWEN4_INDEXER, "indexer_budget": BORDER}},
    "qwen4_exp_text": {**QWEN4_INDEXER, "indexer_budget": BORDER, "ngram_vocab_size_base": SIZE},
    "reformer": {"axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 16], "attention_head_size": 8},
    "xlm": {"embed_init_std": 0.3},
    "xlstm": {"embedding_dim": 32, "num_heads": 2},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"attention_hidden_size": 64, "attention_head_dim": 16},
    "zamba2": {"attention_hidden_size": 64, "mamba_headdim": 16, "hybrid_layer_ids": [1, 3], "n_mamba_heads": 4},
    "zaya": {
        "num_experts_per_tok": 1,
        "router_hidden_size": 16,
        "layer_types": ["hybrid", "hybrid_sliding"] * 2,
        "sliding_window": BORDER,
    },
}


def options(family: str, border: int = BORDER) -> dict[str, Any]:
    """Return the arguments of a small configuration of ``family``, whose windows and chunks are ``border`` long."""
    try:
        defaults = CONFIG_MAPPING[family]().to_dict()
    except ValueError:  # whose default is none
        defaults = {}
    return _merged(_small(defaults, border), OVERRIDES.get(family, {}))


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return ``first`` changed by ``second``, in its nested configurations, too."""
    changed = {
        name: _merged(first[name], value) if name.endswith("_config") and isinstance(first.get(name), dict) else value
        for name, value in second.items()
    }
    return {**first, **changed}


def _small(defaults: dict[str, Any], border: int) -> dict[str, Any]:
    small: dict[str, Any] = {}
    for name, default in defaults.items():
        if name.endswith("_config") and isinstance(default, dict):
            kept = {"model_type": default["model_type"]} if default.get("model_type") else {}
            small[name] = {**kept, **_small(default, border)}
        elif name in LISTS and isinstance(default, list) and default:
            kinds = list(dict.fromkeys(default))
            small[name] = [kinds[layer % len(kinds)] for layer in range(LAYERS)]
        elif name == "is_decoder":
            small[name] = True
        elif name in WITHOUT_DEFAULT or (isinstance(default, (int, float)) and not isinstance(default, bool)):
            rule = next((rule for rule in RULES if re.search(rule[0], name)), None)
            if rule is not None:
                small[name] = border if rule[1] is None else rule[1]
    if "qk_rope_head_dim" in defaults:
        small |= {name: value for name, value in MULTI_HEAD_LATENT.items() if name in defaults}
    return small


def configuration(family: str, border: int = BORDER, **changes: Any) -> PreTrainedConfig:
    """Return a small configuration of ``family``."""
    return CONFIG_MAPPING[family](**{**options(family, border), **changes})


def model_of(config: PreTrainedConfig, attention: str = "eager", dtype: torch.dtype = torch.float32) -> Any:
    """Return a random model in evaluation mode, on no device (``"meta"``) when it is larger than :data:`LARGEST`."""
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    if sum(parameter.numel() for parameter in empty.parameters()) > LARGEST:
        return empty.eval()
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).to(dtype).eval()


@cache
def build(family: str, border: int = BORDER) -> Any:
    """Return the tiny model of ``family``."""
    return model_of(configuration(family, border))


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [8.0] * 4,
    "factor": CONTEXT / ORIGINAL,
    "original_max_position_embeddings": ORIGINAL,
}
# Configurations beside the defaults: the family, and what is changed.
SPECIALS: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3 long": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": ORIGINAL}),
    "phi3 long, windows": (
        "phi3",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": ORIGINAL, "sliding_window": BORDER},
    ),
    "phimoe long": (
        "phimoe",
        {
            "rope_parameters": {**LONGROPE, "short_mscale": 1.0, "long_mscale": 1.3},
            "original_max_position_embeddings": ORIGINAL,
        },
    ),
    "llama long": ("llama", {"rope_parameters": LONGROPE}),
    "qwen3 long": ("qwen3", {"rope_parameters": LONGROPE}),
    "llama dynamic": ("llama", {"rope_parameters": {**ROPE, "rope_type": "dynamic", "factor": 4.0}}),
    "llama yarn": (
        "llama",
        {
            "rope_parameters": {
                **ROPE,
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": ORIGINAL,
            }
        },
    ),
    "llama3": (
        "llama",
        {
            "rope_parameters": {
                **ROPE,
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": ORIGINAL,
            }
        },
    ),
    "llama linear": ("llama", {"rope_parameters": {**ROPE, "rope_type": "linear", "factor": 4.0}}),
    "phi3 windows": ("phi3", {"sliding_window": BORDER}),
    "qwen2 windows": ("qwen2", MIXED),
    "qwen3 windows": ("qwen3", MIXED),
    "gemma3 wide windows": ("gemma3_text", {"sliding_window": WIDE}),
    "mistral wide windows": ("mistral", {"sliding_window": WIDE}),
    "llama4 wide chunks": ("llama4_text", {"attention_chunk_size": WIDE}),
    "gpt_neo wide windows": ("gpt_neo", {"window_size": WIDE}),
    "falcon alibi": ("falcon", {"alibi": True}),
    "falcon new decoder": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "minimax wide blocks": ("minimax", {"block_size": 16}),
}
MASKED_ROWS = {"-1e4": -1e4, "lowest": torch.finfo(torch.float32).min, "-inf": float("-inf")}


def special(name: str) -> Any:
    """Return the tiny model of one of :data:`SPECIALS`."""
    family, changes = SPECIALS[name]
    return model_of(configuration(family, **changes))


def with_masked_rows(family: str, value: float) -> Any:
    """Return a tiny model whose last eight rows of the output belong to no token: they are always ``value``."""
    model = model_of(configuration(family))

    def mask(module: Any, arguments: Any, logits: torch.Tensor) -> torch.Tensor:
        return logits.index_fill(-1, torch.arange(SIZE - 8, SIZE, device=logits.device), value)

    model.get_output_embeddings().register_forward_hook(mask)
    return model


def borders(config: PreTrainedConfig) -> list[int]:
    """Return the lengths at which a model may change its ways: windows, chunks, selections, and the context before stretching."""
    found = {ORIGINAL} if "original_max_position_embeddings" in str(config.to_dict().get("rope_parameters")) else set()
    numbers = [value for name, value in config.to_dict().items() if re.search(BORDERS, name) and isinstance(value, int)]
    return sorted(found | {value for value in numbers if 2 < value < CONTEXT}) or [BORDER]
