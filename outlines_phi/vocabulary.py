"""The exact bytes of every token of a tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from .errors import VocabularyError


@final
@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What each token id writes, in bytes, so that ``decode(ids) = concat(tokens[id])``.

    Attributes
    ----------
    tokens
        The bytes of each id, one entry for each row of the model's output; ``b""`` for special tokens and padded rows.
    eos_ids
        The end-of-sequence ids, at least one; ``eos_ids[0]`` stands for all of them.
    real
        ``bool[V]``: False on rows of the model's output that the tokenizer does not know.
    """

    tokens: tuple[bytes, ...]
    eos_ids: tuple[int, ...]
    real: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tokens)

    def decode(self, ids: Iterable[int]) -> bytes:
        """Return the bytes that ``ids`` write; special tokens write nothing."""
        return b"".join(self.tokens[v] for v in ids)

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        digest.update(np.array([len(t) for t in self.tokens], dtype=np.int64).tobytes())
        digest.update(b"".join(self.tokens))
        digest.update(np.array(self.eos_ids, dtype=np.int64).tobytes())
        digest.update(self.real.tobytes())
        return digest.hexdigest()

    @classmethod
    def from_tokens(cls, tokens: Sequence[bytes | str], eos: int) -> Vocabulary:
        """Return the vocabulary of ``tokens`` (``str`` is UTF-8), with ``eos`` as the end of sequence."""
        spelled = [t.encode() if isinstance(t, str) else bytes(t) for t in tokens]
        spelled[eos] = b""
        return cls(tuple(spelled), (eos,), np.ones(len(spelled), dtype=bool))

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, *, size: int | None = None, eos_ids: Sequence[int] = ()) -> Vocabulary:
        """Return the vocabulary of a Hugging Face ``tokenizer`` for a model with ``size`` output rows."""
        spec = json.loads(tokenizer.backend_tokenizer.to_str())
        raw = dict(tokenizer.get_vocab())
        n = max(len(tokenizer), size or 0)
        byte_level = "ByteLevel" in json.dumps([spec.get("pre_tokenizer"), spec.get("decoder")])
        table = {c: b for b, c in _byte_characters().items()}
        tokens, real = [b""] * n, np.zeros(n, dtype=bool)
        for text, v in raw.items():
            real[v] = True
            if byte_level and all(c in table for c in text):
                tokens[v] = bytes(table[c] for c in text)
            elif not byte_level and len(text) == 6 and text.startswith("<0x"):
                tokens[v] = bytes([int(text[3:5], 16)])
            else:
                tokens[v] = text.replace("▁", " ").encode()
        for v, added in tokenizer.added_tokens_decoder.items():
            tokens[v] = b"" if added.special else added.content.encode()
        eos = list(dict.fromkeys([*eos_ids, *([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id])]))
        if not eos:
            raise VocabularyError("no end-of-sequence id; set tokenizer.eos_token")
        for v in eos:
            tokens[v] = b""
        return cls(tuple(tokens), tuple(eos), real)


def _byte_characters() -> dict[int, str]:
    """Return the printable stand-in of each byte in byte-level BPE (GPT-2, ``bytes_to_unicode``)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    stand_in = {b: chr(b) for b in printable}
    for b in range(256):
        if b not in stand_in:
            stand_in[b] = chr(256 + len(stand_in) - len(printable))
    return stand_in
