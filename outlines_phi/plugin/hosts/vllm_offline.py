"""The host vLLM, its engine in this application: Outlines models over ``vllm.LLM`` that take ``phi=``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, final

from outlines.models.vllm_offline import VLLMOffline
from outlines.processors import OutlinesLogitsProcessor
from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.lora.request import LoRARequest

from ...errors import ModelError, UnsupportedError
from ...guides.table import Table
from ...lm.vllm.vllm_model import VLLMModel
from ...phi.estimator import Phi
from ...sampling.sampler import Request
from ..call import Call, CallOptions
from ..choices import OF_ADAPTER, refuse_of_loop
from ..mistakes import reading
from ..session import PhiModel
from ..streaming import Pieces

LOOP = "vLLM's own loop"

READ = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")},
    "max_tokens": "max_new_tokens",
    "n": "num_return_sequences",
    "stop": "stop",
}
"""By the field of ``SamplingParams``: the keyword that means the same under a correction."""

OFF: dict[str, tuple[Any, ...]] = {
    "top_k": (0, -1),
    "min_p": (0.0,),
    "top_p": (1.0,),
    "seed": (None,),
    "n": (1,),
    "stop": (None, []),
}
"""Values of fields that ask for nothing."""

FOLLOWING = (
    "include_stop_str_in_output",
    "output_text_buffer_length",
)  # Fields that others set, or that belong to another


@final
class PhiVLLMOffline(PhiModel, VLLMOffline):
    """A stock Outlines ``VLLMOffline`` model whose calls may carry ``phi=``.

    Without ``phi=`` a call is vLLM's own generation, with every keyword and its structured outputs. With it, draws follow the
    model's own distribution conditioned on the format; ``sampling_params=`` may say its temperature, truncation, penalty, length,
    seed and number of draws.

    Parameters
    ----------
    model
        ``vllm.LLM(model, **outlines_phi.vllm.ENGINE)``.
    lora_request
        An adapter, for all calls of this model, with or without ``phi=``; models of several adapters share an engine.
    options
        ``phi``, ``banned_phrases`` and ``max_tree_bytes``, as of :class:`outlines_phi.PhiTransformers`.

    Raises
    ------
    UnsupportedError, VocabularyError
        See :class:`outlines_phi.lm.vllm.vllm_model.VLLMModel`; raised at the first call that asks for a correction.
    """

    stock = VLLMOffline
    takes_types = True
    made_of: ClassVar = {"model": "model", "lora_request": "lora_request"}

    def __init__(self, model: LLM, lora_request: LoRARequest | None = None, **options: Any) -> None:
        if not isinstance(model, LLM):
            raise UnsupportedError(
                f"Give vllm.LLM(model, **outlines_phi.vllm.ENGINE). A {type(model).__name__} was given."
            )
        PhiModel.__init__(self, **options)
        VLLMOffline.__init__(self, model)
        self.lora_request = lora_request
        self.hf_tokenizer = self.tokenizer

    @cached_property
    def lm(self) -> VLLMModel:
        """The model as samplers see it; errors as the constructor's, at every access until there is none."""
        return VLLMModel(self.model, self.lora_request)

    @property
    def _at_hand(self) -> bool:
        return "lm" in vars(self)

    def drawn(self, call: Call, prompts: Sequence[Any]) -> list[Any]:
        return super().drawn(with_params_read(call), prompts)

    def streamed(self, call: Call, prompt: Any) -> Pieces:
        return super().streamed(with_params_read(call), prompt)

    @contextmanager
    def asking(
        self, inputs: Sequence[Any], table: Table, options: CallOptions, phi: Phi | None = None
    ) -> Iterator[Request]:
        with super().asking(inputs, table, options, phi) as request:
            try:
                yield request
            finally:
                self.lm.release()  # the application may use the engine next

    def _outlines_form(self, output_type: Any, backend: str | None) -> Any:
        form = super()._outlines_form(output_type, backend)
        self.type_adapter.format_output_type(form)  # raises what Outlines refuses
        return form

    def _in_loop(self, call: Call, prompts: Sequence[Any]) -> AbstractContextManager[Any]:
        refuse_of_loop(LOOP, call.keywords)
        if call.ban is not None or isinstance(call.language, (Table, OutlinesLogitsProcessor)):
            raise UnsupportedError(
                f"Give phi='local' for masking by this package, with banned phrases and with a generator of it. {LOOP} (phi=None) "
                "takes output types alone."
            )
        if (
            self.lora_request is not None
            and call.keywords.setdefault("lora_request", self.lora_request) != self.lora_request
        ):
            raise UnsupportedError(f"Make a model of it: {OF_ADAPTER}. This one has {self.lora_request.lora_name}.")
        if self._at_hand:
            self.lm.release()
        return nullcontext(call.language)

    def _hosted_stream(self, call: Call, prompt: Any) -> Pieces:
        raise UnsupportedError("Give phi='local' to stream a masked text. vLLM does not stream in an application.")

    def _prompt_ids(self, model_input: Any, *, thinking: bool = False) -> tuple[int, ...]:
        with reading(model_input):
            try:
                prompt = self.type_adapter.format_input(model_input)
                if isinstance(prompt, str):
                    return tuple(self.model._preprocess_cmpl_one(prompt)["prompt_token_ids"])
                said = {"enable_thinking": True} if thinking else None
                return tuple(self.model._preprocess_chat_one(prompt, chat_template_kwargs=said)["prompt_token_ids"])
            except VLLMValidationError as error:
                raise ModelError(
                    f"Shorten the prompt, or give a larger max_model_len= to LLM. vLLM does not take it: {error}"
                ) from error


def with_params_read(call: Call) -> Call:
    """Return a call under a correction with what ``sampling_params=`` says among its keywords.

    Raises :class:`UnsupportedError`: they ask for what has no place in the distribution, or say what a keyword says otherwise.
    """
    keywords = dict(call.keywords)
    given, bar = keywords.pop("sampling_params", None), keywords.pop("use_tqdm", None)
    if bar is not None:
        keywords.setdefault("progress", bar)
    if given is None:
        return replace(call, keywords=keywords)
    if not isinstance(given, SamplingParams):
        raise UnsupportedError(
            f"Give one SamplingParams of vLLM. sampling_params= of type {type(given).__name__} was given."
        )
    usual, kept = SamplingParams(), given.include_stop_str_in_output
    for name in given.__struct_fields__:
        value = getattr(given, name)
        if name in READ:
            meant = "stop_strings" if name == "stop" and kept else READ[name]
            if value in OFF.get(name, ()):
                continue
            if keywords.setdefault(meant, value) != value:
                raise UnsupportedError(
                    f"Leave one of the two out: {meant}={keywords[meant]!r} and SamplingParams({name}={value!r}) were given."
                )
        elif not name.startswith("_") and name not in FOLLOWING and value != getattr(usual, name):
            raise UnsupportedError(
                f"Leave {name} out of SamplingParams, or give phi=None. {name}={value!r} was given, and a draw under phi= knows "
                f"{', '.join(READ)} alone."
            )
    return replace(call, keywords=keywords)
