"""The host Hugging Face: Outlines models that take ``phi=``, and models that stay with the application."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from outlines.generator import SteerableGenerator
from outlines.models.transformers import Transformers, TransformerTokenizer
from transformers import GenerationConfig, PreTrainedTokenizerBase

from ...errors import OutlinesPhiError, UnsupportedError, VocabularyError
from ...guides.index import END, TOKENS
from ...lm.transformers.transformers_model import TransformersModel
from ...phi.estimator import Phi
from ...phi.tree.store import TreeStore
from ...sampling.sampler import no_tokens
from ...vocabulary.vocabulary import Vocabulary
from ..call import Ban, Call, Correction, level_of, resolve_ban
from ..drafts import Borrowed
from ..mistakes import check_batch, check_loaded, no_model, no_prompt, not_pickled
from ..options import CallOptions, Unset, resolve_phi
from ..session import MAX_TREE_BYTES, PhiModel
from ..streaming import Asynchronous, Pieces, Worker, check_stream, hosted, pieces, stoppable
from ..types.output_types import left_to_outlines
from ..types.tables import masks_only
from .loop import Loop, refuse_options
from .processor import MaskLogitsProcessor

SHOWN = {token.hex(): i for i, token in enumerate(TOKENS)}
"""The names under which :data:`outlines_phi.guides.index.TOKENS` are shown."""

_AS_WRITTEN: ContextVar[Vocabulary | None] = ContextVar("as written", default=None)


@contextmanager
def as_written(vocabulary: Vocabulary | None) -> Iterator[None]:
    """Keep tokenizers from editing what they decode, where phrases are banned; with ``None`` they edit.

    ``vocabulary`` says what tokens write instead, which is what was searched. Some tokenizers clean up spaces and make ``don't`` of
    ``do n't``; those with byte fallback show letters as broken that are spelled next to a broken byte, and leave a whole word alone
    beside them.
    """
    token = _AS_WRITTEN.set(vocabulary)
    try:
        yield
    finally:
        _AS_WRITTEN.reset(token)


@final
class ByteTokenizer(TransformerTokenizer):
    """A tokenizer that encodes and decodes as the model's own, and shows Outlines bytes for tokens.

    Stock ``outlines.Generator(model, T)`` then builds an index from which the *byte* automaton of its pattern can be read
    (:func:`outlines_phi.guides.index.from_index`), in milliseconds and without its losses on tokens that hold parts of a
    character; :class:`PhiTransformers` lifts it to the real vocabulary.
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
        return ["".join(pieces((int(token) for token in row), vocabulary, first)) for row in token_ids]

    def convert_token_to_string(self, token: str) -> bytes:
        """Return the bytes that ``token`` stands for; none for the end of sequence."""
        return b"" if token == self.eos_token else bytes.fromhex(token)


class PhiTransformers(Asynchronous, PhiModel, Transformers):
    """A stock Outlines ``Transformers`` model whose calls may carry ``phi=``.

    Without ``phi=`` every call goes through Hugging Face's own ``generate`` under our mask, with every keyword. With it, calls
    of the model and of its Outlines generators draw from the distribution that ``phi`` names; nothing of Outlines is patched.
    ``banned_phrases=[...]`` beside either keeps phrases out of every text, free text too, which is then drawn with a look-ahead
    unless ``phi`` says otherwise. ``draft=`` beside ``phi=`` writes several tokens per model call, in the same distribution.

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
    UnsupportedError, VocabularyError
        Not a causal text model, or a tokenizer that does not fit it or whose bytes cannot be known. A model for which nothing is to
        be corrected yet raises this at the first call that asks for it.
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
            stock = isinstance(tokenizer, PreTrainedTokenizerBase) and hasattr(model, "generate")
            if self.phi is not None or self.banned_phrases is not None or not stock:
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


def wrap(
    model: Any,
    *,
    phi: str | Phi | Unset | None = Unset.UNSET,
    banned_phrases: Ban | Unset | None = Unset.UNSET,
    max_tree_bytes: int = MAX_TREE_BYTES,
) -> PhiTransformers:
    """Return the ``phi=`` taking form of an existing Outlines model; the original is left as it is.

    The new model has the ``phi``, the ``banned_phrases`` and the memory bound given here, and trees of its own. Where one of the
    first two is left out, a model that is wrapped already keeps its own. A model that cannot be corrected (its tokens do not fit
    it, it is an encoder-decoder) is wrapped all the same where neither is given: its calls are those of plain Outlines, and the
    first one that asks for more raises why it cannot be had.

    Raises
    ------
    UnsupportedError, VocabularyError
        Not a text model made by ``outlines.from_transformers``; or, with ``phi`` or ``banned_phrases``, one that cannot be
        corrected.
    """
    if type(model) not in (Transformers, PhiTransformers):
        raise no_model(model, "wrap(model)")
    return PhiTransformers(
        model.model,
        model.hf_tokenizer,
        device_dtype=model.device_dtype,
        phi=getattr(model, "phi", None) if isinstance(phi, Unset) else phi,
        banned_phrases=getattr(model, "banned_phrases", None) if isinstance(banned_phrases, Unset) else banned_phrases,
        max_tree_bytes=max_tree_bytes,
    )


@final
class BorrowedModel(PhiModel):
    """A model that belongs to the application, with one vocabulary; its prompts are token ids."""

    def __init__(self, lm: TransformersModel) -> None:
        super().__init__()
        self._lm, self.hf_tokenizer = lm, None
        _ = self.compiled, self.drafts  # shared by every copy

    @property
    def lm(self) -> TransformersModel:
        """The model as samplers see it."""
        return self._lm

    def _prompt_ids(self, model_input: Any) -> tuple[int, ...]:
        return tuple(model_input)

    def during(self, options: CallOptions, vocabulary: Any) -> BorrowedModel:
        """Return the model for one call; the tokenizer, where it is given as ``vocabulary``, is not kept alive after it."""
        call = copy(self)
        call.hf_tokenizer = None if isinstance(vocabulary, Vocabulary) else vocabulary
        canonical = options.tokenization == "canonical"
        if canonical and call.hf_tokenizer is None:
            raise UnsupportedError("Give vocabulary=tokenizer, which defines tokenization='canonical'.")
        if canonical or options.constraint is not None:
            call._trees = TreeStore(self._trees.max_bytes)  # which would keep the constraint, and so the tokenizer
        return call


@final
class Loans:
    """Everything kept for models that belong to the application, by model and vocabulary; all of it weakly.

    A tokenizer that is loaded afresh for every call costs its reading, and nothing stays of it.
    """

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Any, dict[str, BorrowedModel]] = WeakKeyDictionary()
        self._read: WeakKeyDictionary[Any, WeakKeyDictionary[Any, BorrowedModel]] = WeakKeyDictionary()

    def of(self, model: Any, tokenizer: Any) -> BorrowedModel:
        """Return what is kept for a model with its tokenizer, or with a :class:`Vocabulary` that is made already."""
        read = self._read.setdefault(model, WeakKeyDictionary())
        if tokenizer not in read:
            made = isinstance(tokenizer, Vocabulary)
            lm = (TransformersModel if made else TransformersModel.with_tokenizer)(Borrowed(model), tokenizer)
            read[tokenizer] = self._of(model, lm)
        return read[tokenizer]

    def without_tokenizer(self, model: Any, eos_ids: Sequence[int]) -> BorrowedModel:
        """Return what is kept for a model whose tokens are known by their ids alone: enough for an index of outlines_core."""
        if not eos_ids:
            raise VocabularyError(
                "Set model.generation_config.eos_token_id, or give vocabulary=tokenizer: no end-of-sequence id is known, so a text "
                "could never end."
            )
        size = getattr(model.get_output_embeddings(), "out_features", model.config.vocab_size)
        vocabulary = Vocabulary((b"",) * size, tuple(eos_ids), np.ones(size, dtype=bool))
        return self._of(model, TransformersModel(Borrowed(model), vocabulary))

    def _of(self, model: Any, lm: TransformersModel) -> BorrowedModel:
        kept = self._kept.setdefault(model, {})
        if lm.vocabulary.fingerprint not in kept:
            kept[lm.vocabulary.fingerprint] = BorrowedModel(lm)
        return kept[lm.vocabulary.fingerprint]


LOANS = Loans()
"""Those of this process."""
