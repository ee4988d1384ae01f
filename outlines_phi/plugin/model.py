"""An Outlines model that takes ``phi=``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from outlines.generator import SteerableGenerator
from outlines.models.transformers import Transformers, TransformerTokenizer
from transformers import GenerationConfig

from ..errors import OutlinesPhiError
from ..lm.transformers.model import TransformersModel
from ..phi.estimator import Phi
from ..sampling.sampler import no_tokens
from .asynchronous import Worker
from .call import Call
from .correction import Ban, Correction, level_of, resolve_ban
from .hosts.loop import Loop, refuse_options
from .hosts.processor import MaskLogitsProcessor
from .hosts.tokenizer import ByteTokenizer, as_written
from .mistakes import check_batch, check_loaded, is_stock, no_prompt, not_pickled
from .options import Unset, resolve_phi
from .session import MAX_TREE_BYTES, PhiModel
from .streaming import Pieces, check_stream, hosted, pieces, stoppable
from .types.backends import masks_only
from .types.output_types import left_to_outlines


class PhiTransformers(PhiModel, Transformers):
    """A stock Outlines ``Transformers`` model whose calls may carry ``phi=``.

    Without ``phi=`` every call goes through Hugging Face's own ``generate`` under our mask, with every keyword. With it, calls
    of the model and of its Outlines generators draw from the law that ``phi`` names; nothing of Outlines is patched.
    ``banned_phrases=[...]`` beside either keeps phrases out of every text, free text too, which is then drawn with a look-ahead
    unless ``phi`` says otherwise. ``draft=`` beside ``phi=`` writes several tokens per model call, and changes no law.

    Parameters
    ----------
    model, tokenizer
        A Hugging Face causal language model and its tokenizer.
    device_dtype
        As for Outlines.
    phi
        The default of every call; ``None`` for plain Outlines.
    banned_phrases
        What no call may write unless it says otherwise: a list of phrases, or a :class:`outlines_phi.BannedPhrases`.
    max_tree_bytes
        Bound on the memory of the token trees kept between calls.

    Raises
    ------
    UnsupportedError
        Not a causal text model. A model for which nothing is to be corrected yet raises this at the first call that asks for it.
    VocabularyError
        The tokenizer does not fit the model, or its bytes cannot be known; as above.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        device_dtype: torch.dtype | None = None,
        phi: str | Phi | None = None,
        banned_phrases: Ban | None = None,
        max_tree_bytes: int = MAX_TREE_BYTES,
    ) -> None:
        PhiModel.__init__(self, max_tree_bytes)
        self.phi = resolve_phi(phi)
        self.banned_phrases = resolve_ban(banned_phrases)
        _ = self.correction  # raises what is wrong with the two together
        check_loaded(model, tokenizer)
        self.model, self.hf_tokenizer = model, tokenizer
        try:
            shown = self.compiled and self.drafts and ByteTokenizer
        except OutlinesPhiError:
            if self.phi is not None or self.banned_phrases is not None or not is_stock(model, tokenizer):
                raise
            shown = TransformerTokenizer  # plain calls do without a correction
        Transformers.__init__(self, model, tokenizer, device_dtype=device_dtype)
        self.tokenizer = shown(tokenizer)
        self.worker = Worker()

    @cached_property
    def lm(self) -> TransformersModel:
        """The model as samplers see it; errors as the constructor's, at every access until there is none."""
        return TransformersModel.with_tokenizer(self.model, self.hf_tokenizer)

    @property
    def defaults(self) -> GenerationConfig | None:
        """The model's ``generation_config``."""
        config: GenerationConfig | None = self.model.generation_config
        return config

    def __reduce__(self) -> Any:
        raise not_pickled("A PhiTransformers")

    def __call__(self, model_input: Any, output_type: Any = None, backend: str | None = None, **keywords: Any) -> Any:
        """Generate a text, or a list where ``num_return_sequences`` is more than 1; the type is compiled when it is needed."""
        return self.written(self._typed(output_type, backend, keywords), model_input)

    def batch(
        self, model_input: list[Any], output_type: Any = None, backend: str | None = None, **keywords: Any
    ) -> list[Any]:
        """Generate for several prompts in shared model calls."""
        return self.written_batch(self._typed(output_type, backend, keywords), model_input)

    def stream(self, model_input: Any, output_type: Any = None, backend: str | None = None, **keywords: Any) -> Pieces:
        """Yield the text of a call piece by piece: only what is accepted, whole characters, never taken back."""
        return self.written_in_pieces(self._typed(output_type, backend, keywords), model_input)

    async def agenerate(self, model_input: Any, output_type: Any = None, **keywords: Any) -> Any:
        """Return what a call does, without blocking the event loop; cancelling stops it at its next model call."""
        return await self.worker.run(partial(self, model_input, output_type, **keywords))

    async def abatch(self, model_input: list[Any], output_type: Any = None, **keywords: Any) -> list[Any]:
        """Return what :meth:`batch` does; as :meth:`agenerate`."""
        return await self.worker.run(partial(self.batch, model_input, output_type, **keywords))

    def astream(self, model_input: Any, output_type: Any = None, **keywords: Any) -> AsyncGenerator[str, None]:
        """Yield what :meth:`stream` does; as :meth:`agenerate`."""
        return self.worker.stream(partial(self.stream, model_input, output_type, **keywords))

    def generate(self, model_input: Any, output_type: Any = None, **keywords: Any) -> str | list[str]:
        """Generate under a logits processor that Outlines built; see :class:`PhiTransformers`."""
        return self.written(self._under(output_type, self._correction(keywords), keywords), model_input)

    def generate_batch(self, model_input: list[Any], output_type: Any = None, **keywords: Any) -> list[Any]:
        """Generate for several prompts; as :meth:`generate`."""
        return self.written_batch(self._under(output_type, self._correction(keywords), keywords), model_input)

    def generate_stream(self, model_input: Any, output_type: Any = None, **keywords: Any) -> Pieces:
        """Generate piece by piece under a logits processor that Outlines built; checked now, begun with the first piece."""
        return self.written_in_pieces(self._under(output_type, self._correction(keywords), keywords), model_input)

    def written(self, call: Call, prompt: Any) -> Any:
        """Return the text that a call asks for, or the list of texts."""
        if call.phi is None:
            return self._hosted(super().generate, call, prompt, [prompt])
        return self.drawn(call, [prompt])[0]

    def written_batch(self, call: Call, prompts: list[Any]) -> list[Any]:
        """Return :meth:`written` of every prompt, in shared model calls."""
        check_batch(prompts)
        if not prompts:
            return []
        if call.phi is None:
            return self._hosted(super().generate_batch, call, prompts, prompts)
        return self.drawn(call, prompts)

    def written_in_pieces(self, call: Call, prompt: Any) -> Pieces:
        """Return the text that a call asks for, piece by piece."""
        check_stream(prompt, call.keywords, self.defaults, call.phi is not None)
        if call.phi is not None:
            return self.streamed(call, prompt)
        generate = partial(super().generate, prompt, self._host_processor(call, [prompt]))
        first = lambda token: self.tokenizer.decode([[token]])[0]  # noqa: E731
        return pieces(hosted(generate, stoppable(call.keywords)), self.lm.vocabulary, first)

    def _hosted(self, generate: Callable[..., Any], call: Call, given: Any, prompts: Sequence[Any]) -> Any:
        processor = self._host_processor(call, prompts)
        with as_written(self.lm.vocabulary if getattr(processor, "ban", None) else None):
            return generate(given, processor, **stoppable(call.keywords))

    def _typed(self, output_type: Any, backend: str | None, keywords: dict[str, Any]) -> Call:
        """Return a call for an output type; by the means of Outlines where nothing is corrected and it writes what we do not."""
        stock, correction = masks_only(backend), self._correction(keywords)
        if output_type is None:
            return self._under(None, correction, keywords)
        plain = correction.ban is None and correction.estimator(keywords.get("sampler"), usual=None) is None
        if plain and (stock or left_to_outlines(output_type, at_hand="lm" in vars(self))):
            return Call(None, SteerableGenerator(self, output_type, backend).logits_processor, None, keywords)
        return self._under(MaskLogitsProcessor(self.table(output_type, backend=backend)), correction, keywords)

    def _under(self, processor: Any, correction: Correction, keywords: dict[str, Any]) -> Call:
        """Return a call under a logits processor that Outlines built; ``None`` for free text."""
        if isinstance(processor, MaskLogitsProcessor) and not correction.chosen:
            correction = replace(correction, level=level_of(processor.ban))
        return Call.of(correction, processor, keywords, usual=None)

    def _correction(self, keywords: dict[str, Any]) -> Correction:
        """Take what a call says of its correction out of its keywords."""
        return self.correction.replaced_by(*(keywords.pop(name, Unset.UNSET) for name in ("phi", "banned_phrases")))

    @property
    def correction(self) -> Correction:
        """What holds of every call that does not say otherwise."""
        own = Correction().replaced_by(Unset.UNSET if self.phi is None else self.phi, self.banned_phrases)
        return replace(own, inherited=True)

    def _prompt_ids(self, model_input: Any) -> tuple[int, ...]:
        try:
            _, inputs = self._prepare_model_inputs(model_input)
        except (TypeError, ValueError) as error:
            raise no_prompt(model_input, error) from error
        return tuple(inputs["input_ids"][0][inputs["attention_mask"][0].bool()].long().tolist())

    def _host_processor(self, call: Call, inputs: Sequence[Any]) -> Any:
        """Return what runs in Hugging Face's loop. Beside others, it takes an empty prompt, as padding; not for all prompts."""
        lengths = [len(self._prompt_ids(item)) for item in inputs]
        if not any(lengths):
            raise no_tokens(0, len(lengths))
        if "lm" not in vars(self) and call.ban is None:
            refuse_options(call.keywords)
            return call.language
        loop = Loop(self.defaults, max(lengths), self.lm.max_length)
        return loop.processor(call.processor(self.compiled), self.compiled, call.keywords)
