"""The host MLX: Outlines models over mlx-lm that take ``phi=``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, final

import mlx.core as mx
import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper
from outlines.models.mlxlm import MLXLM

from ...errors import UnsupportedError
from ...lm.mlx.mlx_model import MLXModel
from ...phi.estimator import Phi
from ..call import Ban, Call, Correction
from ..mistakes import no_prompt
from ..processor import MaskLogitsProcessor
from ..session import MAX_TREE_BYTES, PhiModel
from ..streaming import Pieces
from .loop import refuse_options
from .transformers import ByteTokenizer

THEIR_SAMPLER = "sampler=make_sampler(...) of mlx-lm"
"""The keyword under which mlx-lm's own ``sampler=``, a function, waits for its loop: ours is an object such as ``SMC``."""


@final
class PhiMLXLM(PhiModel, MLXLM):
    """A stock Outlines ``MLXLM`` model whose calls may carry ``phi=``.

    Without ``phi=`` a call is mlx-lm's own generation under our mask, with every keyword. With it, draws follow the model's own
    distribution conditioned on the format.

    Parameters
    ----------
    model, tokenizer
        What ``mlx_lm.load`` gives.
    phi, banned_phrases, max_tree_bytes
        The defaults of every call, and the bound on kept trees, as of :class:`outlines_phi.PhiTransformers`.

    Raises
    ------
    UnsupportedError, VocabularyError
        See :class:`outlines_phi.lm.mlx.mlx_model.MLXModel`; raised at the first call that asks for a correction.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        phi: str | Phi | None = None,
        banned_phrases: Ban | None = None,
        max_tree_bytes: int = MAX_TREE_BYTES,
    ) -> None:
        PhiModel.__init__(self, max_tree_bytes, phi, banned_phrases)
        MLXLM.__init__(self, model, tokenizer)
        self._wrapper = tokenizer if isinstance(tokenizer, TokenizerWrapper) else TokenizerWrapper(tokenizer)
        self.hf_tokenizer = getattr(tokenizer, "_tokenizer", tokenizer)
        self.tokenizer = ByteTokenizer(self.hf_tokenizer)

    @classmethod
    def over(cls, model: Any, **options: Any) -> PhiMLXLM:
        """Return the form that takes ``phi=`` of a model of Outlines, which stays as it is; ``options`` as in the constructor."""
        return cls(model.model, model.mlx_tokenizer, **options)

    @cached_property
    def lm(self) -> MLXModel:
        """The model as samplers see it; errors as the constructor's, at every access until there is none."""
        return MLXModel(self.model, self.hf_tokenizer, sorted(self._wrapper.eos_token_ids))

    def _correction(self, keywords: dict[str, Any]) -> Correction:
        if callable(keywords.get("sampler")):
            keywords[THEIR_SAMPLER] = keywords.pop("sampler")
        return super()._correction(keywords)

    def _hosted(self, call: Call, given: Any, *, many: bool) -> Any:
        masking = self._masking(call)
        return (MLXLM.generate_batch if many else MLXLM.generate)(self, given, masking, **call.keywords)

    def _hosted_stream(self, call: Call, prompt: Any) -> Pieces:
        masking = self._masking(call)
        yield from MLXLM.generate_stream(self, prompt, masking, **call.keywords)

    def _masking(self, call: Call) -> Any:
        """Return what runs in mlx-lm's own loop."""
        refuse_options(call.keywords, "mlx-lm's own loop")
        if THEIR_SAMPLER in call.keywords:
            call.keywords["sampler"] = call.keywords.pop(THEIR_SAMPLER)
        processor = call.processor(self.compiled) if call.language is not None or call.ban is not None else None
        if getattr(processor, "ban", None) is not None:
            raise UnsupportedError(
                "Give phi='local' with banned phrases, or another estimator: mlx-lm's own loop (phi=None) ends a text where its "
                "max_tokens are written, in the middle of what is banned, too."
            )
        return in_loop(processor) if isinstance(processor, MaskLogitsProcessor) else processor

    def _prompt_ids(self, model_input: Any) -> tuple[int, ...]:
        try:
            prompt = self.type_adapter.format_input(model_input)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise no_prompt(model_input, error) from error
        # As mlx_lm.generate reads a text.
        begun = self._wrapper.bos_token is not None and prompt.startswith(self._wrapper.bos_token)
        return tuple(self._wrapper.encode(prompt, add_special_tokens=not begun))


def in_loop(processor: MaskLogitsProcessor) -> Callable[[mx.array, mx.array], mx.array]:
    """Return a logits processor of mlx-lm: of one sequence, ``[n]`` ids and ``[1, V]`` logits."""

    def process(ids: mx.array, logits: mx.array) -> mx.array:
        masked = processor.of_arrays(np.array(ids), np.array(logits[0].astype(mx.float32)))
        return mx.array(masked)[None].astype(logits.dtype)

    return process
