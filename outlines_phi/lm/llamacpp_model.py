"""A GGUF model of llama-cpp-python as a language model over token trees."""

from __future__ import annotations

import ctypes
import hashlib
import weakref
from collections.abc import Sequence
from typing import Any, final

import llama_cpp
import numpy as np
from llama_cpp._utils import suppress_stdout_stderr
from numpy.typing import NDArray

from ..errors import ModelError, UnsupportedError
from ..vocabulary.vocabulary import Vocabulary
from .sequences import Entry, SequenceModel


@final
class SequenceContext:
    """Keys and values of at most ``sequences`` sequences, in ``cells`` cells that they share.

    A cell belongs to a set of sequences, and a token sees the cells of its own, up to its position.
    """

    remedy = "Give a larger n_ctx= to Llama, or shorter prompts"

    def __init__(self, llama: Any, cells: int, sequences: int) -> None:
        check_open(llama)
        parameters = type(llama.context_params).from_buffer_copy(llama.context_params)
        parameters.n_ctx, parameters.n_seq_max, parameters.kv_unified = cells, sequences, True
        # llama.cpp aborts where a batch may not have a token of each sequence.
        parameters.n_batch, parameters.n_ubatch = (max(sequences, n) for n in (parameters.n_batch, parameters.n_ubatch))
        parameters.swa_full = True  # paths fork behind windows, too
        parameters.embeddings = False
        self._llama = llama
        self.size, self.sequences, self.batch_size = llama.n_vocab(), sequences, int(parameters.n_batch)
        with suppress_stdout_stderr(disable=llama.verbose):
            self._context = llama_cpp.llama_init_from_model(llama._model.model, parameters)
        if self._context is None:
            raise ModelError(
                "Free memory, or give a smaller n_ctx= to Llama. llama.cpp could not make a context of "
                f"{cells} tokens beside the model's own."
            )
        weakref.finalize(self, llama_cpp.llama_free, self._context)
        if llama._lora_adapter is not None:
            adapters = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(llama._lora_adapter)
            if llama_cpp.llama_set_adapters_lora(self._context, adapters, 1, (ctypes.c_float * 1)(llama.lora_scale)):
                raise ModelError(
                    f"Load the model without lora_path=. The adapter {llama.lora_path} fits no second context."
                )
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(self.batch_size, 0, sequences)
        weakref.finalize(self, llama_cpp.llama_batch_free, self._batch)

    def decode(self, entries: Sequence[Entry]) -> NDArray[np.float32] | None:
        """Evaluate tokens, at most ``batch_size``, in one call; return the logits of those wanted, or ``None`` for want of cells.

        Raises :class:`ModelError`: llama.cpp failed, or answered NaN.
        """
        check_open(self._llama)
        batch = self._batch
        batch.n_tokens = len(entries)
        for i, entry in enumerate(entries):
            batch.token[i], batch.pos[i], batch.logits[i] = entry.token, entry.position, entry.wanted
            batch.n_seq_id[i] = len(entry.sequences)
            for j, sequence in enumerate(entry.sequences):
                batch.seq_id[i][j] = sequence
        code = llama_cpp.llama_decode(self._context, batch)
        if code == 1:
            return None
        if code:
            raise ModelError(
                f"Try shorter inputs, or another build of llama.cpp. llama_decode gave {code} for {len(entries)} tokens."
            )
        wanted = sum(entry.wanted for entry in entries)
        if not wanted:
            return np.empty((0, self.size), dtype=np.float32)
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._context), shape=(wanted, self.size)).copy()
        if not np.isfinite(logits.max(-1)).all():
            raise ModelError(
                "Check the weights of the GGUF file, or load it without flash_attn=. The model answered NaN or +inf."
            )
        return logits

    def fork(self, source: int, target: int, length: int) -> None:
        """Let the sequence ``target`` be the first ``length`` tokens of ``source``; no keys or values are copied."""
        self.cut(target, 0)
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, 0, length)

    def cut(self, sequence: int, length: int) -> None:
        """Let a sequence be its first ``length`` tokens."""
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, length, -1)

    def clear(self) -> None:
        """Forget all sequences."""
        llama_cpp.llama_memory_clear(self._memory, False)


def check_open(llama: Any) -> None:
    """Raise :class:`ModelError` where the weights are gone: llama.cpp would crash."""
    if llama._model.model is None:
        raise ModelError(
            "Load the model again: llama.close() has freed its weights. It was asked for logits after that."
        )


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
    """Return the bytes of each token of a GGUF model; control tokens write nothing."""
    vocab = llama_cpp.llama_model_get_vocab(llama._model.model)
    tokens, ends, real, special = [], [], [], {}
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
        if attributes & (llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED):
            special[_piece(vocab, v, special=True).decode(errors="replace")] = v
    first = int(llama.token_eos())
    ends.sort(key=lambda v: v != first)
    return Vocabulary(tuple(tokens), tuple(ends), np.array(real, dtype=bool), special)


def _piece(vocab: Any, token: int, *, special: bool = False) -> bytes:
    size = 32
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = llama_cpp.llama_token_to_piece(vocab, token, buffer, size, 0, special)
        if length >= 0:
            return buffer.raw[:length]
        size = -length
