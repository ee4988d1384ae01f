"""A GGUF model of llama-cpp-python as a language model over token trees."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any, final

import llama_cpp
import numpy as np

from ...errors import UnsupportedError
from ...vocabulary.vocabulary import Vocabulary
from ..sequences import SequenceModel
from .sequence_context import SequenceContext

SEQUENCES = 64  # Paths that are held at a time


@final
class LlamaCppModel(SequenceModel):
    """The distribution of a ``llama_cpp.Llama``, evaluated in a context of its own over the same weights.

    What the object samples with (temperature, ``top_k`` and their kin) has no part in it; its precision of keys and values and its
    adapter have.

    Parameters
    ----------
    llama
        A ``llama_cpp.Llama``.
    cells
        Tokens whose keys and values are held at a time, shared by all paths of the trees; four times the context by default.

    Raises
    ------
    UnsupportedError
        The model keeps a state in place of keys and values, or has an encoder.
    VocabularyError
        No token ends a text.
    """

    def __init__(self, llama: Any, *, cells: int | None = None) -> None:
        super().__init__()
        self.llama = llama
        weights = llama._model.model
        for asked, kind in (
            (llama_cpp.llama_model_is_recurrent, "a recurrent state"),
            (llama_cpp.llama_model_is_hybrid, "a recurrent state beside its attention"),
            (llama_cpp.llama_model_has_encoder, "an encoder"),
        ):
            if asked(weights):
                raise UnsupportedError(
                    f"Run this model on Transformers, outlines.from_transformers. It has {kind}, so that in llama.cpp a text "
                    "cannot go on from the middle of another."
                )
        self.vocabulary = vocabulary_of(llama)
        self.max_length = int(llama.n_ctx())
        # LongRoPE chooses its factors by the size of the context, which has to be that of the object then.
        fixed = any(key.endswith("rope.scaling.original_context_length") for key in llama.metadata)
        self._cells = cells or (1 if fixed else 4) * self.max_length

    @property
    def rounding(self) -> float:
        # Half precision of keys and values, the default of llama.cpp, in calls of other shapes.
        return 0.05

    def fingerprint(self) -> str:
        size = int(llama_cpp.llama_model_size(self.llama._model.model))
        adapter = self.llama.lora_path, self.llama.lora_scale
        named = (sorted(self.llama.metadata.items()), size, adapter, self.vocabulary.fingerprint)
        return hashlib.blake2b(repr(named).encode(), digest_size=16).hexdigest()

    def _context(self) -> SequenceContext:
        return SequenceContext(self.llama, self._cells, SEQUENCES)


def vocabulary_of(llama: Any) -> Vocabulary:
    """Return what each token of a GGUF model writes, in bytes; control tokens write nothing."""
    vocab = llama_cpp.llama_model_get_vocab(llama._model.model)
    tokens, ends, real = [], [], []
    for v in range(llama.n_vocab()):
        attributes = llama_cpp.llama_vocab_get_attr(vocab, v)
        real.append(
            attributes != llama_cpp.LLAMA_TOKEN_ATTR_UNDEFINED and not attributes & llama_cpp.LLAMA_TOKEN_ATTR_UNUSED
        )
        end = bool(llama_cpp.llama_vocab_is_eog(vocab, v))
        if end:
            ends.append(v)
        silent = (
            end
            or not real[-1]
            or attributes & (llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN)
        )
        tokens.append(b"" if silent else _piece(vocab, v))
    first = int(llama.token_eos())
    ends.sort(key=lambda v: v != first)
    return Vocabulary(tuple(tokens), tuple(ends), np.array(real, dtype=bool))


def _piece(vocab: Any, token: int) -> bytes:
    size = 32
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = llama_cpp.llama_token_to_piece(vocab, token, buffer, size, 0, False)
        if length >= 0:
            return buffer.raw[:length]
        size = -length
