"""The configuration of a vLLM engine: its vocabulary, and features that no walk could follow."""

from __future__ import annotations

from typing import Any

from vllm.tokenizers import cached_tokenizer_from_config

from ...errors import UnsupportedError
from ...vocabulary.vocabulary import Vocabulary


def vocabulary_of(model_config: Any) -> Vocabulary:
    """Return the bytes of each token of an engine's model; the end of a text is as in vLLM, its generation config included."""
    config = model_config.try_get_generation_config()
    ends = config.get("eos_token_id", model_config.hf_text_config.eos_token_id)
    tokenizer = cached_tokenizer_from_config(model_config)
    return Vocabulary.from_tokenizer(
        tokenizer,
        size=model_config.get_vocab_size(),
        eos_ids=[ends] if isinstance(ends, int) else list(ends or ()),
    )


def check_engine(config: Any) -> None:
    """Refuse an engine, given its ``VllmConfig``, in which the rows of requests cannot be told or are not those of the model.

    Raises :class:`UnsupportedError`.
    """
    if config.speculative_config is not None:
        raise UnsupportedError(
            "Start vLLM without speculative_config, and give draft= for drafts: with speculative decoding vLLM runs no logits "
            "processor."
        )
    if config.model_config.runner_type != "generate":
        raise UnsupportedError(
            f"Load a generative model: runner={config.model_config.runner_type!r} writes no next tokens."
        )
    if config.model_config.is_encoder_decoder:
        raise UnsupportedError("Load a model without an encoder. Here a text follows its prompt, token by token.")
    if config.use_v2_model_runner:
        raise UnsupportedError(
            "Set VLLM_USE_V2_MODEL_RUNNER=0 before vLLM is imported. The V2 model runner does not run logits processors of V1."
        )
