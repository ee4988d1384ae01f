"""A model of mlx-lm as a language model over token trees."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from typing import Any, final

import mlx.core as mx
import numpy as np
import torch
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from ...errors import UnsupportedError
from ...vocabulary.vocabulary import Vocabulary
from ..sequences import Entry, SequenceModel
from .row_context import RowContext

SEQUENCES = 32  # Paths that are held at a time
FAR = 0.05
"""Nats between a plain call and a call with rows beyond which a model is refused; half precision stays within."""


@final
class MLXModel(SequenceModel):
    """The distribution of a model of mlx-lm.

    Parameters
    ----------
    model
        What ``mlx_lm.load`` gives first.
    tokenizer
        The Hugging Face tokenizer of it.
    eos_ids
        What ends a text, beside the tokenizer's own.

    Raises
    ------
    UnsupportedError
        The model keeps something else than keys and values, or does not take a cache whose rows have lengths of their own.
    VocabularyError
        The tokenizer does not fit the model, or its bytes cannot be known.
    """

    def __init__(self, model: Any, tokenizer: Any, eos_ids: Sequence[int] = ()) -> None:
        super().__init__()
        self.model = model
        caches = make_prompt_cache(model)
        others = sorted({type(cache).__name__ for cache in caches if type(cache) not in (KVCache, RotatingKVCache)})
        if others:
            raise UnsupportedError(
                "Run this model on Transformers, outlines.from_transformers. It keeps a "
                f"{', '.join(others)} in mlx-lm, from whose middle a text cannot go on."
            )
        self._layers = len(caches)
        size = model(mx.array([[0]])).shape[-1]
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, size=size, eos_ids=eos_ids)
        self.max_length = getattr(getattr(model, "args", None), "max_position_embeddings", None)
        self._arrays: list[mx.array] = []
        self._version = 0
        self._try_rows()

    def version(self) -> Hashable:
        arrays = [array for _, array in tree_flatten(self.model.parameters())]
        if len(arrays) != len(self._arrays) or any(a is not b for a, b in zip(arrays, self._arrays, strict=True)):
            self._arrays, self._version = arrays, self._version + 1
        return self._version

    @property
    def rounding(self) -> float:
        return FAR

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(type(self.model).__name__.encode(), digest_size=16)
        for name, array in tree_flatten(self.model.parameters()):
            first = np.array(array.reshape(-1)[:4].astype(mx.float32))
            digest.update(f"{name}{array.shape}{array.dtype}".encode() + first.tobytes())
        return digest.hexdigest()

    def _context(self) -> RowContext:
        return RowContext(self.model, self._layers, len(self.vocabulary), SEQUENCES)

    def _try_rows(self) -> None:
        """Compare calls of rows of different lengths with plain calls; raise where a model does not take such a cache."""
        tokens = np.flatnonzero(self.vocabulary.real)[:40:5].tolist()
        context, found = self._context(), list[Any]()
        try:
            for sequences, part in (([0], tokens[:4]), ([1], tokens[:2]), ([0, 1], [])):
                entries = [Entry(token, i, sequences, True) for i, token in enumerate(part)]
                found += [] if not entries else [context.decode(entries)]
            both = [Entry(tokens[4], 4, [0], True), Entry(tokens[5], 2, [1], True), Entry(tokens[6], 5, [0], True)]
            found = list(np.concatenate([*found, context.decode(both)]))
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise self._unfit(f"raises {type(error).__name__} ({error})") from error
        first, second = [*tokens[:5], tokens[6]], [*tokens[:2], tokens[5]]
        plain = [np.array(self.model(mx.array([part]))[0].astype(mx.float32)) for part in (first, second)]
        expected = [*plain[0][:4], *plain[1][:2], plain[0][4], plain[1][2], plain[0][5]]
        log_p, other = (torch.tensor(np.stack(rows)).double().log_softmax(-1) for rows in (found, expected))
        far = float((log_p.exp() - other.exp()).abs().max())
        if not far <= FAR:
            raise self._unfit(f"gives probabilities that are off by {far:.3f}")

    def _unfit(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"Run this model on Transformers, outlines.from_transformers. {type(self.model).__name__} of mlx-lm {what} with a "
            "cache whose rows have lengths of their own."
        )
