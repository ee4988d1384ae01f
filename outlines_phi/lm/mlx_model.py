"""A model of mlx-lm as a language model over token trees."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, final

import mlx.core as mx
import numpy as np
import torch
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache
from numpy.typing import NDArray

from ..errors import ModelError, UnsupportedError
from ..vocabulary.vocabulary import Vocabulary
from .sequences import Entry, SequenceModel


@dataclass
class RowCall:
    """The rows that the present model call reads and writes; shared by all layers."""

    rows: mx.array  # `[b]` the rows in the call
    offset: mx.array  # `[b]` how many tokens each holds
    width: int  # Slots that the call reads
    capacity: int  # Slots of a row


@final
class RowLayer:
    """Keys and values of one attention layer, ``[rows, heads, slots, D]``; slot ``i`` holds the token at position ``i``."""

    def __init__(self, rows: int, call: RowCall) -> None:
        self._count, self._call = rows, call
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def offset(self) -> mx.array:
        """The position of the first new token of each row, as models ask for it."""
        return self._call.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write new keys and values, ``[b, heads, n, D]``; return those that the call reads."""
        self.keys, read_keys = self._written(self.keys, keys)
        self.values, read_values = self._written(self.values, values)
        return read_keys, read_values

    def make_mask(self, size: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        """Return ``bool[b, 1, size, width]``: a token sees what is not behind it in its row, within its window."""
        slots = mx.arange(self._call.width)
        position = (self._call.offset[:, None] + mx.arange(size))[:, None, :, None]
        seen = slots <= position
        return seen if window_size is None else seen & (slots > position - window_size)

    def copy(self, source: int, target: int, length: int) -> None:
        """Let the first slots of row ``target`` be those of ``source``."""
        for storage in (self.keys, self.values):
            if storage is not None:
                storage[target, :, :length] = storage[source, :, :length]

    def _written(self, storage: mx.array | None, new: mx.array) -> tuple[mx.array, mx.array]:
        call = self._call
        if storage is None or storage.shape[2] < call.capacity:
            larger = mx.zeros((self._count, new.shape[1], call.capacity, new.shape[3]), dtype=new.dtype)
            if storage is not None:
                larger[:, :, : storage.shape[2]] = storage
            storage = larger
        slots = call.offset[:, None] + mx.arange(new.shape[2])
        storage[call.rows[:, None], :, slots] = new.transpose(0, 2, 1, 3)  # [b, n, heads, D]
        return storage, storage[call.rows, :, : call.width]


@final
class RowContext:
    """The sequences of a model of mlx-lm: a row of keys and values for each."""

    remedy = "Free memory, or give shorter prompts"
    batch_size = 512

    def __init__(self, model: Any, layers: int, size: int, sequences: int) -> None:
        self._model, self.size, self.sequences = model, size, sequences
        self._call = RowCall(mx.zeros(0, mx.int32), mx.zeros(0, mx.int32), 0, 64)
        self._layers = [RowLayer(sequences, self._call) for _ in range(layers)]
        self._lengths = [0] * sequences

    def decode(self, entries: Sequence[Entry]) -> NDArray[np.float32] | None:
        """Evaluate tokens in one call; return the logits of those wanted.

        A token of several sequences is evaluated in the row of each. Raises :class:`ModelError`: the model answered NaN.
        """
        written = defaultdict[int, list[int]](list)
        wanted = list[tuple[int, int]]()
        for entry in entries:
            for sequence in entry.sequences:
                written[sequence].append(entry.token)
            if entry.wanted:
                wanted.append((entry.sequences[0], len(written[entry.sequences[0]]) - 1))
        longest, call = max(map(len, written.values())), self._call
        tokens = np.zeros((len(written), longest), dtype=np.int32)
        for row, given in enumerate(written.values()):
            tokens[row, : len(given)] = given
        lengths = [self._lengths[sequence] for sequence in written]
        call.rows, call.offset, call.width = mx.array(list(written)), mx.array(lengths), max(lengths) + longest
        while call.capacity < call.width:
            call.capacity *= 2
        logits = self._model(mx.array(tokens), cache=self._layers)
        place = {sequence: row for row, sequence in enumerate(written)}
        rows = mx.array([place[sequence] for sequence, _ in wanted], dtype=mx.int32)
        columns = mx.array([column for _, column in wanted], dtype=mx.int32)
        found = np.array(logits[rows, columns].astype(mx.float32))
        if not np.isfinite(found.max(-1)).all():
            raise ModelError("Check the weights, or load the model in float32. It answered NaN, +inf or only -inf.")
        for sequence, given in written.items():
            self._lengths[sequence] += len(given)
        return found

    def fork(self, source: int, target: int, length: int) -> None:
        """Let the sequence ``target`` be the first ``length`` tokens of ``source``."""
        for layer in self._layers:
            layer.copy(source, target, length)
        self._lengths[target] = length

    def cut(self, sequence: int, length: int) -> None:
        """Let a sequence be its first ``length`` tokens."""
        self._lengths[sequence] = min(length, self._lengths[sequence])

    def clear(self) -> None:
        """Forget all sequences."""
        self._lengths = [0] * self.sequences


SEQUENCES = 32  # Paths that are held at a time
FAR = 0.05
"""Nats between a plain call and a call with rows beyond which a model is refused; half precision stays within."""


@final
class MLXModel(SequenceModel):
    """The distribution of a model of mlx-lm.

    Parameters
    ----------
    model
        The first result of ``mlx_lm.load``.
    tokenizer
        The Hugging Face tokenizer of it.
    eos_ids
        The ids that end a text, beside the tokenizer's own.

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
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, size=model(mx.array([[0]])).shape[-1], eos_ids=eos_ids)
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
