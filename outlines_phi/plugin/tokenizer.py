"""The vocabulary that stock Outlines sees: bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, final

from outlines.models.transformers import TransformerTokenizer

from ..guides.index import END, TOKENS

SHOWN = {token.hex(): i for i, token in enumerate(TOKENS)}
"""The names under which :data:`outlines_phi.guides.index.TOKENS` are shown."""

_AS_WRITTEN: ContextVar[bool] = ContextVar("as written", default=False)


@contextmanager
def as_written(banning: bool) -> Iterator[None]:
    """Keep tokenizers from editing what they decode, where phrases are banned.

    Some clean up spaces and make ``don't`` of ``do n't``; what tokens write is what was searched.
    """
    token = _AS_WRITTEN.set(banning)
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
        if not _AS_WRITTEN.get():
            return list(super().decode(token_ids))
        rows: Sequence[str] = self.tokenizer.batch_decode(
            token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return list(rows)

    def convert_token_to_string(self, token: str) -> bytes:
        """Return the bytes that ``token`` stands for; none for the end of sequence."""
        return b"" if token == self.eos_token else bytes.fromhex(token)
