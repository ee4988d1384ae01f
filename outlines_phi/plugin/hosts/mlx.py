"""The host MLX: Outlines models over mlx-lm that take ``phi=``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any, ClassVar, final

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.tokenizer_utils import TokenizerWrapper
from numpy.typing import NDArray
from outlines.models.mlxlm import MLXLM

from ...lm.mlx_model import MLXModel
from ..call import Call
from ..processor import MaskLogitsProcessor
from .transformers import ByteTokenizer, MaskedLoop, Process

THEIR_SAMPLER = "sampler=make_sampler(...) of mlx-lm"
"""The keyword under which mlx-lm's own ``sampler=``, a function, waits for its loop: ours is an object such as ``SMC``."""


@final
class PhiMLXLM(MaskedLoop, MLXLM):
    """A stock Outlines ``MLXLM`` model whose calls may carry ``phi=``.

    Without ``phi=`` a call is mlx-lm's own generation under our mask, with every keyword. With it, draws follow the model's own
    distribution conditioned on the format.

    Parameters
    ----------
    model, tokenizer
        The results of ``mlx_lm.load``.
    options
        ``phi``, ``banned_phrases`` and ``max_tree_bytes``, as of :class:`outlines_phi.PhiTransformers`.

    Raises
    ------
    UnsupportedError, VocabularyError
        See :class:`outlines_phi.lm.mlx_model.MLXModel`; raised at the first call that asks for a correction.
    """

    stock, library = MLXLM, "mlx-lm"
    made_of: ClassVar = {"model": "model", "tokenizer": "mlx_tokenizer"}
    # That of the masks of Outlines: those in mlx are kernels of Metal.
    tensor_library_name = "mlx" if mx.metal.is_available() else "torch"

    def __init__(self, model: Any, tokenizer: Any, **options: Any) -> None:
        MaskedLoop.__init__(self, **options)
        MLXLM.__init__(self, model, tokenizer)
        self._wrapper = tokenizer if isinstance(tokenizer, TokenizerWrapper) else TokenizerWrapper(tokenizer)
        self.hf_tokenizer = getattr(tokenizer, "_tokenizer", tokenizer)
        self.tokenizer = ByteTokenizer(self.hf_tokenizer)

    @cached_property
    def lm(self) -> MLXModel:
        """The model as samplers see it; errors as the constructor's, at every access until there is none."""
        return MLXModel(self.model, self.hf_tokenizer, sorted(self._wrapper.eos_token_ids))

    def _typed(self, output_type: Any, backend: str | None, keywords: dict[str, Any]) -> Call:
        if callable(keywords.get("sampler")):
            keywords[THEIR_SAMPLER] = keywords.pop("sampler")
        return super()._typed(output_type, backend, keywords)

    def _in_loop(self, call: Call, prompts: Sequence[Any]) -> AbstractContextManager[Process | None]:
        lent = super()._in_loop(call, prompts)
        if THEIR_SAMPLER in call.keywords:
            call.keywords["sampler"] = call.keywords.pop(THEIR_SAMPLER)
        return lent

    def _in_arrays(self, processor: Any) -> Process:
        if isinstance(processor, MaskLogitsProcessor):
            return partial(_in_numpy, processor.of_arrays)
        in_torch = getattr(processor, "tensor_library_name", None) == "torch"
        return partial(_in_numpy, partial(_in_torch, processor)) if in_torch else super()._in_arrays(processor)

    def _ended(self, logits: mx.array) -> mx.array:
        ends = mx.arange(logits.shape[-1]) == self.hf_tokenizer.eos_token_id
        return mx.where(ends, 0.0, -mx.inf)[None].astype(logits.dtype)

    def _prompt_ids(self, model_input: Any, *, thinking: bool = False) -> tuple[int, ...]:
        prompt = self._formatted(model_input, thinking=thinking)
        # As mlx_lm.generate reads a text.
        begun = self._wrapper.bos_token is not None and prompt.startswith(self._wrapper.bos_token)
        return tuple(self._wrapper.encode(prompt, add_special_tokens=not begun))


def _in_numpy(process: Callable[..., Any], ids: mx.array, logits: mx.array) -> mx.array:
    """Return the logits, ``[1, V]``, that a processor of NumPy's arrays makes of those after ``[n]`` ids."""
    return mx.array(process(np.array(ids), np.array(logits[0].astype(mx.float32))))[None].astype(logits.dtype)


def _in_torch(processor: Any, ids: NDArray[np.integer], logits: NDArray[np.single]) -> NDArray[np.single]:
    """Return the logits that a processor of Outlines in torch makes."""
    masked: NDArray[np.single] = processor(torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(logits)).numpy()
    return masked
