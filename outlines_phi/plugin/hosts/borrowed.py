"""Models that belong to the application: per-model caches, released with the model."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np

from ...errors import UnsupportedError, VocabularyError
from ...lm.transformers.model import TransformersModel
from ...phi.tree.store import TreeStore
from ...vocabulary.vocabulary import Vocabulary
from ..options import CallOptions
from ..session import PhiModel
from .stand_in import Borrowed


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
        """Return the model for one call; the tokenizer, where it is given as ``vocabulary``, is not kept alive after it.

        Raises
        ------
        UnsupportedError
            The canonical tokenization was asked for without the tokenizer.
        """
        call = copy(self)
        call.hf_tokenizer = None if isinstance(vocabulary, Vocabulary) else vocabulary
        canonical = options.tokenization == "canonical"
        if canonical and call.hf_tokenizer is None:
            raise UnsupportedError(
                "tokenization='canonical' was given without the tokenizer that defines it; give vocabulary=tokenizer."
            )
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
        """Return what is kept for a model with its tokenizer, or with a :class:`Vocabulary` that is made already.

        Raises
        ------
        UnsupportedError, VocabularyError
            As :class:`outlines_phi.PhiTransformers`.
        """
        read = self._read.setdefault(model, WeakKeyDictionary())
        if tokenizer not in read:
            made = isinstance(tokenizer, Vocabulary)
            lm = (TransformersModel if made else TransformersModel.with_tokenizer)(Borrowed(model), tokenizer)
            read[tokenizer] = self._of(model, lm)
        return read[tokenizer]

    def without_tokenizer(self, model: Any, eos_ids: Sequence[int]) -> BorrowedModel:
        """Return what is kept for a model whose tokens are known by their ids alone.

        Enough for a language that is given over ids, such as an index of outlines_core.
        """
        if not eos_ids:
            raise VocabularyError(
                "no end-of-sequence id is known, so a text could never end; set model.generation_config.eos_token_id, "
                "or give the tokenizer: vocabulary=tokenizer"
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
