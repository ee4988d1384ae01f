"""One call of a Hugging Face causal model, whatever its signature."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from ...errors import ModelError, VocabularyError


@final
class Forward:
    """A Hugging Face model as a function from token ids to logits.

    Parameters
    ----------
    hf_model
        A causal model of transformers.
    size
        The vocabulary size ``V`` that its logits must have.
    max_length
        The model's context, or ``None``.
    memory
        Bytes that the logits and the mask of one call may take together, beyond what is returned.
    """

    def __init__(self, hf_model: Any, size: int, *, max_length: int | None, memory: int) -> None:
        self.hf_model, self.size, self.max_length, self.memory = hf_model, size, max_length, memory
        parameters = inspect.signature(hf_model.forward).parameters
        anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        self.recurrent = "cache_params" in parameters  # Mamba and its kin: a state instead of keys and values
        self._takes_positions = anything or "position_ids" in parameters
        self._takes_logits_to_keep = anything or "logits_to_keep" in parameters

    @property
    def device(self) -> torch.device:
        """Where the model is now."""
        return self.hf_model.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its weights."""
        return self.hf_model.dtype

    @property
    def config(self) -> Any:
        """Its configuration."""
        return self.hf_model.config

    @property
    def attention(self) -> str:
        """Name of the attention implementation, ``"eager"`` or ``"sdpa"`` for example."""
        return str(self.config._attn_implementation)

    @property
    def heads_in_memory(self) -> int:
        """How many copies of a mask's worth of scores one layer holds at a time."""
        return getattr(self.config, "num_attention_heads", 1) if self.attention == "eager" else 1

    @torch.inference_mode()
    def __call__(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | Mapping[str, Tensor] | None,
        positions: Tensor | None,
        cache: Any = None,
        last: int = 0,
    ) -> tuple[Tensor, Any]:
        """Return the logits ``[b, n, V]`` after ``tokens`` ``[b, n]`` and the cache.

        Only the last columns are computed, ``[b, last, V]``, when ``last`` is given. The tensors are inference tensors;
        :meth:`checked` makes ordinary ones of what is handed out.
        """
        memory = "cache_params" if self.recurrent else "past_key_values"
        arguments: dict[str, Any] = {"input_ids": tokens, "attention_mask": mask, memory: cache}
        arguments |= {"use_cache": True, "return_dict": True}
        if self._takes_positions and not self.recurrent:
            arguments["position_ids"] = positions
        if self._takes_logits_to_keep and last:
            arguments["logits_to_keep"] = last
        output = self.hf_model(**arguments)
        logits = output.logits
        if logits.shape[-1] != self.size:
            raise VocabularyError(
                f"The model gave {logits.shape[-1]} logits but the vocabulary has {self.size} entries; build the "
                "vocabulary with size= the rows of the model's output."
            )
        return logits[:, -last:] if last else logits, getattr(output, memory, None)

    def checked(self, logits: Tensor) -> Tensor:
        """Return ``logits`` ``[n, V]`` as an ordinary tensor, copied if they are none; NaN is a :class:`ModelError`."""
        logits = logits.clone() if logits.is_inference() else logits
        if logits.numel() and not torch.isfinite(logits.amax(-1)).all():
            raise ModelError(
                f"The model answered NaN, +inf or only -inf in {self.dtype}; load it in torch.float32 or "
                "torch.bfloat16, or with attn_implementation='eager', and check its weights."
            )
        return logits
