"""Hugging Face causal language models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from ...errors import UnsupportedError, VocabularyError
from ...vocabulary.vocabulary import Vocabulary
from ..model import LanguageModel, TokenTrees
from .forward import Forward, hooks, opaque, saved, structure, weights
from .roads import ROADS, RegionTrees, road, tolerance

SAMPLED = 256  # Numbers of each tensor, about, that stand for it in the fingerprint of a model
UNCOMPARED = ("transformers_version", "dtype", "torch_dtype")  # The fields of a configuration that describe its loading

SPREAD = 4.0  # The standard deviation of a language model's logits, in nats: about that of trained ones

CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len")


@final
class TransformersModel(LanguageModel):
    """A decoder-only model of the transformers library.

    Token trees are packed into one cache where the architecture allows it, which is tried out on a small example when the first
    trees are asked for, and again at each border (a window, say) that a sequence crosses; otherwise every node becomes a batch
    row. Logits come in the dtype in which the model gives them.

    ``hf_model``: the model, in evaluation mode.
    ``vocabulary``: its tokens: one entry for each row of the model's output.
    ``memory``: bytes that the logits and masks of one call may take beyond what is returned; larger requests are split into
        several calls.

    Raises :class:`UnsupportedError`: the model is not a causal language model over text alone, or is in training mode.
    Raises :class:`VocabularyError`: the vocabulary does not have one entry for each row of the model's output.
    """

    def __init__(self, hf_model: Any, vocabulary: Vocabulary, *, memory: int = 256 << 20) -> None:
        _check_kind(hf_model)
        config = hf_model.config
        rows = getattr(hf_model.get_output_embeddings(), "out_features", config.vocab_size)
        if rows != len(vocabulary):
            raise VocabularyError(
                f"The model's output has {rows} rows but the vocabulary has {len(vocabulary)} entries; use the "
                f"tokenizer that belongs to the model, and build its vocabulary with size={rows}."
            )
        contexts = [getattr(config, name, None) for name in CONTEXT]
        self.vocabulary, self.hf_model = vocabulary, hf_model
        self.max_length = next((length for length in contexts if length), None)
        self.device = hf_model.device
        self.forward = Forward(hf_model, len(vocabulary), max_length=self.max_length, memory=memory)
        self._fingerprint: tuple[Hashable, str] | None = None
        self._check_mode()

    @classmethod
    def with_tokenizer(cls, hf_model: Any, tokenizer: Any) -> TransformersModel:
        """Return a model whose vocabulary is read from its tokenizer; errors as the constructor's.

        The end of sequence is every id at which the model's ``generation_config`` stops.
        """
        if not callable(getattr(tokenizer, "convert_ids_to_tokens", None)):
            processor = " Multimodal models, whose tokenizer is a processor, cannot be corrected by this version."
            raise UnsupportedError(
                f"{type(tokenizer).__name__} was given as tokenizer; expected a text tokenizer "
                f"(AutoTokenizer.from_pretrained).{processor if hasattr(tokenizer, 'tokenizer') else ''}"
            )
        config = getattr(getattr(hf_model, "config", None), "get_text_config", lambda: None)()
        output = hf_model.get_output_embeddings() if hasattr(hf_model, "get_output_embeddings") else None
        size = getattr(output, "out_features", None) or getattr(config, "vocab_size", None)
        ends = getattr(getattr(hf_model, "generation_config", None), "eos_token_id", None)
        eos_ids = [ends] if isinstance(ends, int) else list(ends or ())
        # The tokenizer's own first, where the model stops at it: the one that stock Outlines allows.
        eos_ids.sort(key=lambda v: v != tokenizer.eos_token_id)
        return cls(hf_model, Vocabulary.from_tokenizer(tokenizer, size=size, eos_ids=eos_ids))

    @property
    def road(self) -> str:
        """The evaluation of short trees: ``"packed"``, ``"rows"``, ``"rows of one length"`` or ``"whole sequences"``."""
        return road(self.forward, 0)

    def version(self) -> Hashable:
        """Return a key of the distribution apart from the input: how the model computes, and its weights (by write counters).

        What hooks do cannot be seen here, nor every write through ``.data``; trees that are used again compare their roots.
        """
        return structure(self.hf_model), hooks(self.hf_model), weights(self.hf_model)

    @property
    def opaque(self) -> bool:
        return opaque(self.hf_model)

    @property
    def rounding(self) -> float:
        return SPREAD * tolerance(self.forward)

    def fingerprint(self) -> str:
        """Return a digest of the configuration and of some numbers of every tensor, as bfloat16 has them.

        The same checkpoint has the same one in any floating point dtype, on any device, from any folder; one that was trained on,
        or into which an adapter was merged, has another. An edit of a few single numbers may escape it.
        """
        version = self.version()
        if self._fingerprint is None or self._fingerprint[0] != version:
            self._fingerprint = (version, _digest(self.hf_model))
        return self._fingerprint[1]

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        self._check_mode()
        self.device = self.hf_model.device
        return (
            RegionTrees(self.forward, prompts) if self.forward.borders.all else ROADS[self.road](self.forward, prompts)
        )

    def _check_mode(self) -> None:
        if self.hf_model.training:
            raise UnsupportedError(
                "The model is in training mode, where dropout makes its answers random; call model.eval() first."
            )


def _digest(model: Any) -> str:
    config = {name: value for name, value in model.config.to_dict().items() if not name.startswith("_")}
    for name in UNCOMPARED:
        config.pop(name, None)
    described = json.dumps([type(model).__name__, config], sort_keys=True, default=str)
    digest = hashlib.blake2b(described.encode(), digest_size=16)
    samples: dict[torch.device, list[Tensor]] = {}
    for tensor in saved(model):
        digest.update(str(tuple(tensor.shape)).encode())
        if tensor.numel() and tensor.device.type != "meta":  # what is held elsewhere is not here to be read
            # An odd step does not stay in one column of a matrix whose width is a power of 2.
            some = tensor.detach().reshape(-1)[:: (tensor.numel() // SAMPLED) | 1]
            samples.setdefault(some.device, []).append(some.to(torch.bfloat16))
    for rows in samples.values():  # one transfer per device
        digest.update(torch.cat(rows).cpu().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def _check_kind(hf_model: Any) -> None:
    name = type(hf_model).__name__
    if not (hasattr(hf_model, "config") and hasattr(hf_model, "forward")):
        raise UnsupportedError(
            f"A Hugging Face model was expected, not {name}; load one with AutoModelForCausalLM.from_pretrained."
        )
    if hf_model.config.is_encoder_decoder:
        raise UnsupportedError(f"{name} is an encoder-decoder model; only decoder-only models are supported.")
    if not hf_model.can_generate():
        raise UnsupportedError(
            f"{name} does not generate text; load the model with AutoModelForCausalLM.from_pretrained."
        )
    config = hf_model.config
    parts = [name for name in ("vision_config", "audio_config") if getattr(config, name, None) is not None]
    if parts or config.get_text_config(decoder=True) is not config:
        raise UnsupportedError(
            f"{name} is more than a text model ({', '.join(parts) or type(config).__name__}); only text models are "
            "supported. Where it has a text-only version, load that with AutoModelForCausalLM.from_pretrained."
        )
