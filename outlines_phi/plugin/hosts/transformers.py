"""The host Hugging Face: Outlines models that take ``phi=``, and models that stay with the application."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, partial
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from outlines.models.transformers import Transformers, TransformerTokenizer
from transformers import GenerationConfig, PreTrainedTokenizerBase

from ...errors import OutlinesPhiError, UnsupportedError, VocabularyError
from ...guides.index import END, TOKENS
from ...lm.transformers.transformers_model import TransformersModel
from ...phi.estimator import Phi
from ...phi.tree.store import TreeStore
from ...sampling.sampler import no_tokens
from ...vocabulary.vocabulary import Vocabulary
from ..call import Ban, Call, CallOptions
from ..drafts import Borrowed
from ..mistakes import check_loaded, no_prompt
from ..session import MAX_TREE_BYTES, PhiModel
from ..streaming import Pieces, decoded, spelled
from .loop import Loop, hosted, refuse_options, stoppable

SHOWN = {token.hex(): i for i, token in enumerate(TOKENS)}
"""The names under which :data:`outlines_phi.guides.index.TOKENS` are shown."""

_AS_WRITTEN: ContextVar[Vocabulary | None] = ContextVar("as written", default=None)


@contextmanager
def as_written(vocabulary: Vocabulary | None) -> Iterator[None]:
    """Keep tokenizers from editing what they decode, where phrases are banned: ``vocabulary`` says what tokens write, as it was
    searched. Some clean up spaces; those with byte fallback show letters as broken that are spelled next to a broken byte.
    """
    token = _AS_WRITTEN.set(vocabulary)
    try:
        yield
    finally:
        _AS_WRITTEN.reset(token)


@final
class ByteTokenizer(TransformerTokenizer):
    """A tokenizer that encodes and decodes as the model's own, and shows Outlines bytes for tokens.

    Stock ``outlines.Generator(model, T)`` then builds an index from which the *byte* automaton of its pattern is read
    (:func:`outlines_phi.guides.index.from_index`), without its losses on tokens that hold parts of a character.
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

    @classmethod
    def over(cls, model: Any, **options: Any) -> PhiTransformers:
        """Return the form that takes ``phi=`` of a model of Outlines, which stays as it is; ``options`` as in the constructor."""
        return cls(model.model, model.hf_tokenizer, device_dtype=model.device_dtype, **options)

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

    def _hosted(self, call: Call, given: Any, *, many: bool) -> Any:
        processor = self._host_processor(call, given if many else [given])
        generate = Transformers.generate_batch if many else Transformers.generate
        with as_written(self.lm.vocabulary if getattr(processor, "ban", None) else None):
            return generate(self, given, processor, **stoppable(call.keywords))

    def _hosted_stream(self, call: Call, prompt: Any) -> Pieces:
        generate = partial(Transformers.generate, self, prompt, self._host_processor(call, [prompt]))
        first = lambda token: self.tokenizer.decode([[token]])[0]  # noqa: E731
        return decoded(spelled(hosted(generate, stoppable(call.keywords)), self.lm.vocabulary, first))

    def _prompt_ids(self, model_input: Any) -> tuple[int, ...]:
        try:
            _, inputs = self._prepare_model_inputs(model_input)
        except (TypeError, ValueError) as error:
            raise no_prompt(model_input, error) from error
        return tuple(inputs["input_ids"][0][inputs["attention_mask"][0].bool()].long().tolist())

    def _host_processor(self, call: Call, inputs: Sequence[Any]) -> Any:
        """Return the processor of Hugging Face's loop. As padding it takes an empty prompt beside others; not for all prompts."""
        lengths = [len(self._prompt_ids(item)) for item in inputs]
        if not any(lengths):
            raise no_tokens(0, len(lengths))
        if not self._at_hand and call.ban is None:
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
        call = object.__new__(BorrowedModel)
        vars(call).update(vars(self))
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
        """Return the kept state of a model with its tokenizer, or with a :class:`Vocabulary` that is made already."""
        read = self._read.setdefault(model, WeakKeyDictionary())
        if tokenizer not in read:
            made = isinstance(tokenizer, Vocabulary)
            lm = (TransformersModel if made else TransformersModel.with_tokenizer)(Borrowed(model), tokenizer)
            read[tokenizer] = self._of(model, lm)
        return read[tokenizer]

    def without_tokenizer(self, model: Any, eos_ids: Sequence[int]) -> BorrowedModel:
        """Return the kept state of a model whose tokens are known by their ids alone: enough for an index of outlines_core."""
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


LOANS = Loans()  # Those of this process
