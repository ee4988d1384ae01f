"""The host Hugging Face: Outlines models that take ``phi=``, and models that stay with the application."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cached_property, partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, ClassVar, TypeAlias, final

import numpy as np
import torch
from outlines.models.transformers import Transformers, TransformerTokenizer
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.generation.stopping_criteria import StoppingCriteriaList

from ...errors import EmptyLanguageError, OutlinesPhiError, UnsupportedError, too_small
from ...guides.fsm import END, TOKENS
from ...guides.guide import UNREACHABLE
from ...guides.table import Table
from ...lm.model import INTERRUPTION, Interruption
from ...lm.transformers.transformers_model import TransformersModel
from ...phi.estimator import Phi
from ...sampling.sampler import DEFAULT_BUDGET, no_tokens
from ...settings import SamplingSettings
from ...vocabulary.vocabulary import Vocabulary
from ..call import Ban, Call
from ..choices import FIELDS, TRUNCATION, UNDRAWN, held, refuse_of_loop
from ..mistakes import check_loaded, reading
from ..processor import MaskLogitsProcessor
from ..session import MAX_TREE_BYTES, PhiModel
from ..streaming import Ids, Pieces, decoded, spelled

CUTS = ("stop_strings", "stopping_criteria", "max_time")  # Options by which the loop may end a text anywhere
HOST_TOP_K = 50  # What the loop's `top_k` is where neither the call nor the model's `generation_config` says

AFTER = [name for name in (*TRUNCATION, "watermarking_config") if name != "top_k"]
"""Steps of the loop after its processors."""


def refuse_options(keywords: dict[str, Any], door: str = "Hugging Face's own loop") -> None:
    """Refuse options of draws and what is meant for banned phrases, and take out those that say nothing."""
    refuse_of_loop(door, keywords)
    for name in UNDRAWN:
        keywords.pop(name, None)


def loop_settings(given: dict[str, Any], generation_config: Any, max_new_tokens: int) -> SamplingSettings:
    """Return the settings of the distribution that a loop samples from when a processor of ours stands before its warpers.

    The temperature is undone by the loop, so any will do. Its top-k does nothing to what has been cut to the same k before. Every
    other truncation of ``p h`` is not one of ``p``, so the loop must have none. ``given`` is what the loop is said to have,
    ``None`` for what it takes from ``generation_config``, which is ``None`` where the host is not known.
    """
    for name in AFTER:
        said = given.get(name)
        value = getattr(generation_config, name, None) if said is None else said
        if value not in FIELDS[name].neutral:
            where = "the model's generation_config" if said is None else "the call"
            neutral = f"{name}={FIELDS[name].neutral[-1]}"
            ours = f"Give {neutral} here and in the call (**processor.host_options has it)"
            remedy = ours if name in ("top_p", "min_p") else f"Set model.generation_config.{neutral}"
            raise UnsupportedError(
                f"{remedy}, or let the distribution p itself have it: custom_generate=outlines_phi.custom_generate, or "
                f"outlines_phi.Generator(model, T). {name}={value!r} in {where} would be applied by the loop after this processor, "
                "to p * h instead of p, and that is another distribution."
            )
    top_k = given.get("top_k")
    if top_k is None and generation_config is not None:
        top_k = HOST_TOP_K if generation_config.top_k is None else generation_config.top_k
        if top_k:
            raise UnsupportedError(
                "Say what top_k the loop will have: top_k=0 for none, here and in the call (**processor.host_options has it), or "
                f"top_k={top_k} to make that cut a part of the distribution. The loop keeps the top_k={top_k} likeliest tokens "
                "unless it is told otherwise, and it does so after this processor."
            )
    temperature = held("temperature", given.get("temperature"), generation_config)
    return SamplingSettings(temperature=temperature, top_k=None if top_k == 0 else top_k, max_new_tokens=max_new_tokens)


def check_budget(table: Table, budget: int) -> None:
    """Raise :class:`EmptyLanguageError` where nothing that ``table`` allows is written within ``budget`` tokens."""
    least = table.guide.min_tokens(table.start)
    if least >= UNREACHABLE:
        raise EmptyLanguageError("The language is empty: nothing of this output type can be written.")
    if budget < least:
        raise too_small(budget, least)


def hosted(generate: Callable[..., object], keywords: dict[str, Any]) -> Ids:
    """Yield the tokens of ``generate(**keywords)``, a generation by Hugging Face's own loop that runs in a thread.

    Closing the iterator ends the thread at its next step and waits for it. What the thread raises is raised here.
    """
    written: SimpleQueue[Any] = SimpleQueue()
    interruption = Interruption()
    let_stop(keywords, interruption)

    def work() -> None:
        try:
            generate(streamer=SimpleNamespace(put=written.put, end=lambda: None), **keywords)
        except BaseException as error:
            written.put(error)
        written.put(None)

    thread = threading.Thread(target=work, name="outlines_phi stream")
    thread.start()
    try:
        for step, item in enumerate(iter(written.get, None)):
            if isinstance(item, BaseException):
                raise item
            if step:  # the loop hands out the prompt first
                yield from item.reshape(-1).tolist()
    finally:
        interruption.asked = True
        # The garbage collector may close a forgotten stream in any thread, this one too.
        if thread is not threading.current_thread():
            thread.join()


def let_stop(keywords: dict[str, Any], interruption: Interruption | None) -> None:
    """Add to the keywords of a ``generate`` what stops it when it is asked to."""
    if interruption is None:
        return

    def criterion(input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """End the generation, by an exception, at the step before which it was asked to stop."""
        interruption.check()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    keywords["stopping_criteria"] = StoppingCriteriaList([*(keywords.get("stopping_criteria") or ()), criterion])


Process: TypeAlias = Callable[[Any, Any], Any]  # The logits of the next token, given the ids before it and its logits


@contextmanager
def guarded(process: Process, ended: Callable[[Any], Any]) -> Iterator[Process]:
    """Lend a logits processor to a host's loop, and raise its error behind that.

    A loop may go on without a processor that raises, and so without its mask: here the text ends, by the logits that ``ended``
    returns, given any.
    """
    errors: list[BaseException] = []

    def guarded(ids: Any, logits: Any) -> Any:
        if not errors:
            try:
                return process(ids, logits)
            except BaseException as error:
                errors.append(error)
        return ended(logits)

    yield guarded
    if errors:
        raise errors[0]


class MaskedLoop(PhiModel):
    """A host whose calls without ``phi=`` are those of Outlines under our mask; a subclass derives from Outlines' class, too."""

    library: ClassVar[str]  # As errors name it

    @abstractmethod
    def _ended(self, logits: Any) -> Any:
        """Return logits that end the text, given any."""

    def _in_arrays(self, processor: Any) -> Process:
        """Return a processor in the arrays of the loop: by default ours is in those of NumPy, that of Outlines as it is."""
        return processor.of_arrays if isinstance(processor, MaskLogitsProcessor) else processor

    def _hosted_stream(self, call: Call, prompt: Any) -> Pieces:
        with self._in_loop(call, [prompt]) as allowed:
            yield from self.stock.generate_stream(self, prompt, allowed, **call.keywords)

    def _in_loop(self, call: Call, prompts: Sequence[Any]) -> AbstractContextManager[Process | None]:
        refuse_options(call.keywords, f"{self.library}'s own loop")
        plain = call.language is None and call.ban is None  # which needs nothing of ours
        processor = None if plain else call.processor(self.compiled)
        if getattr(processor, "ban", None) is not None:
            raise UnsupportedError(
                f"Give phi='local' with banned phrases, or another estimator: {self.library}'s own loop (phi=None) ends a text "
                "where its max_tokens are written, in the middle of what is banned, too."
            )
        return nullcontext() if processor is None else guarded(self._in_arrays(processor), self._ended)


SHOWN = {token.hex(): i for i, token in enumerate(TOKENS)}
"""The names under which :data:`outlines_phi.guides.fsm.TOKENS` are shown."""

_AS_WRITTEN: ContextVar[Vocabulary | None] = ContextVar("as written", default=None)


@contextmanager
def as_written(vocabulary: Vocabulary, processor: Any) -> Iterator[Any]:
    """Lend a processor that bans phrases, and keep tokenizers from editing what they decode: ``vocabulary`` says what tokens write.

    As it was searched: some clean up spaces, those with byte fallback show letters as broken that are next to a broken byte.
    """
    token = _AS_WRITTEN.set(vocabulary)
    try:
        yield processor
    finally:
        _AS_WRITTEN.reset(token)


@final
class ByteTokenizer(TransformerTokenizer):
    """A tokenizer that encodes and decodes as the model's own, and shows Outlines bytes for tokens.

    Stock ``outlines.Generator(model, T)`` then builds an index from which the *byte* automaton of its pattern is read
    (:func:`outlines_phi.guides.fsm.from_index`), without its losses on tokens that hold parts of a character.
    """

    def __init__(self, tokenizer: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, **kwargs)
        self.eos_token_id, self.eos_token = END, "<end>"
        self.vocabulary = SHOWN
        self.get_vocab = lambda: SHOWN

    def decode(self, token_ids: Any) -> list[str]:
        """Return the texts that ``token_ids`` write; edited by the tokenizer, unless under :func:`as_written`."""
        vocabulary = _AS_WRITTEN.get()
        if vocabulary is None:
            return list(super().decode(token_ids))
        first = lambda token: str(self.tokenizer.decode([token]))  # noqa: E731
        return ["".join(decoded(spelled((int(token) for token in row), vocabulary, first))) for row in token_ids]

    def convert_token_to_string(self, token: str) -> bytes:
        """Return the bytes that ``token`` stands for; none for the end of sequence."""
        return b"" if token == self.eos_token else bytes.fromhex(token)


class PhiTransformers(PhiModel, Transformers):
    """A stock Outlines ``Transformers`` model whose calls may carry ``phi=``.

    Without ``phi=`` every call goes through Hugging Face's own ``generate`` under our mask, with every keyword. With it, calls
    of the model and of its Outlines generators draw from the distribution that ``phi`` names; nothing of Outlines is patched.
    ``banned_phrases=`` beside either keeps phrases out of every text.

    Parameters
    ----------
    model, tokenizer
        A Hugging Face causal language model and its tokenizer.
    device_dtype
        As for Outlines.
    phi
        The default of every call; ``None`` for plain Outlines.
    banned_phrases
        The phrases that no call may write unless it says otherwise: a list, or a :class:`outlines_phi.BannedPhrases`.
    max_tree_bytes
        Bound on the memory of the token trees kept between calls.

    Raises
    ------
    UnsupportedError, VocabularyError
        Not a causal text model, or a tokenizer that does not fit it or whose bytes cannot be known; raised at the first call that
        asks for a correction.
    """

    stock = Transformers
    made_of: ClassVar = {"model": "model", "tokenizer": "hf_tokenizer", "device_dtype": "device_dtype"}

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
        PhiModel.__init__(self, max_tree_bytes, phi, banned_phrases)
        check_loaded(model, tokenizer)
        self.model, self.hf_tokenizer = model, tokenizer
        try:
            shown = self.compiled and self.drafts and ByteTokenizer
        except OutlinesPhiError:
            stock = isinstance(tokenizer, PreTrainedTokenizerBase) and hasattr(model, "generate")
            if self.phi is not None or self.banned_phrases is not None or not stock:
                raise
            shown = TransformerTokenizer  # plain calls do without a correction
        Transformers.__init__(self, model, tokenizer, device_dtype=device_dtype)
        self.tokenizer = shown(tokenizer)

    @cached_property
    def lm(self) -> TransformersModel:
        """The model as samplers see it; errors as the constructor's, at every access until there is none."""
        return TransformersModel.with_tokenizer(self.model, self.hf_tokenizer)

    @property
    def defaults(self) -> GenerationConfig | None:
        """The model's ``generation_config``."""
        return self.model.generation_config

    @property
    def _at_hand(self) -> bool:
        return "lm" in vars(self)

    def _in_loop(self, call: Call, prompts: Sequence[Any]) -> AbstractContextManager[Any]:
        processor = self._host_processor(call, prompts)
        return as_written(self.lm.vocabulary, processor) if getattr(processor, "ban", None) else nullcontext(processor)

    def _hosted_stream(self, call: Call, prompt: Any) -> Pieces:
        generate = partial(Transformers.generate, self, prompt, self._host_processor(call, [prompt]))
        first = lambda token: self.tokenizer.decode([[token]])[0]  # noqa: E731
        return decoded(spelled(hosted(generate, call.keywords), self.lm.vocabulary, first))

    def _prompt_ids(self, model_input: Any, *, thinking: bool = False) -> tuple[int, ...]:
        with reading(model_input):
            ids, mask = self.tokenizer.encode(self._formatted(model_input, thinking=thinking))
        return tuple(ids[0][mask[0].bool()].long().tolist())

    def _host_processor(self, call: Call, inputs: Sequence[Any]) -> Any:
        """Return the logits processor of Hugging Face's loop: our mask where the language can be read, else the call's own.

        What is not for the loop leaves the keywords of the call. One that bans phrases in free text and does not say how long this
        may be is given the default budget of all calls. As padding the loop takes an empty prompt beside others, not alone.
        """
        longest, keywords = max(len(self._prompt_ids(item)) for item in inputs), call.keywords
        if not longest:
            raise no_tokens(0, len(inputs))
        refuse_options(keywords)
        if keywords.get("stop_strings"):
            keywords.setdefault("tokenizer", self.hf_tokenizer)  # which transformers reads them by
        processor = call.language
        if self._at_hand or call.ban is not None:
            processor = call.processor(self.compiled)
            if isinstance(processor, MaskLogitsProcessor) and processor.ban is not None:
                table, whole_word = processor.table, processor.ban.whole_word
                if whole_word:
                    self._check_uncut(table, keywords)
                if table.guide.open or whole_word:
                    processor.budget = self._budget(table, keywords, longest)
        let_stop(keywords, INTERRUPTION.get())
        return processor

    def _budget(self, table: Table, keywords: dict[str, Any], prompt_length: int) -> int:
        config = keywords.get("generation_config") or self.defaults
        budget = keywords.get("max_new_tokens", getattr(config, "max_new_tokens", None))
        if budget is None and keywords.get("max_length") is not None:
            budget = keywords["max_length"] - prompt_length
        if budget is None:
            budget, context = max(DEFAULT_BUDGET, 4 * table.guide.min_tokens(table.start)), self.lm.max_length
            # The last token is never evaluated.
            budget = budget if context is None else max(1, min(budget, context - prompt_length + 1))
            keywords["max_new_tokens"] = budget
        check_budget(table, budget)
        return int(budget)

    def _check_uncut(self, table: Table, keywords: dict[str, Any]) -> None:
        """Refuse options that would cut a text anywhere: one that is cut after a whole word that is banned ends in it."""
        configs = [vars(config) for config in (self.defaults, keywords.get("generation_config")) if config is not None]
        said = {name: value for config in configs for name, value in config.items() if value is not None} | keywords
        instead = [f"{name}=None" for name in CUTS if said.get(name) is not None]
        ends = [end for end in np.atleast_1d(said.get("eos_token_id", ())).tolist() if end is not None]
        if any(table.vocabulary.tokens[end] for end in ends):  # the vocabulary's own ends write nothing
            instead.append(f"eos_token_id={table.vocabulary.eos_ids[0]}")
        if instead:
            raise UnsupportedError(
                f"Give {', '.join(instead)} to the call, or BannedPhrases(..., whole_word=False): with whole words banned, a "
                "text that is cut after 'cat' on the way to 'catalog' ends in the word 'cat'."
            )


def from_transformers(
    model: Any,
    tokenizer: Any,
    *,
    device_dtype: torch.dtype | None = None,
    phi: str | Phi | None = None,
    banned_phrases: Ban | None = None,
    max_tree_bytes: int = MAX_TREE_BYTES,
) -> PhiTransformers:
    """Return an Outlines model that takes ``phi=``, from a Hugging Face model and tokenizer.

    The counterpart of ``outlines.from_transformers``; see :class:`PhiTransformers`. A model that cannot be corrected is refused
    now, with or without ``phi``.
    """
    options = {"phi": phi, "banned_phrases": banned_phrases, "max_tree_bytes": max_tree_bytes}
    made = PhiTransformers(model, tokenizer, device_dtype=device_dtype, **options)  # type: ignore[arg-type]
    _ = made.lm  # raises why it cannot be corrected
    return made
