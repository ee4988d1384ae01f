"""The vocabulary that stock Outlines sees: bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, final

from outlines.models.transformers import TransformerTokenizer

from ...guides.index import END, TOKENS
from ...vocabulary.vocabulary import Vocabulary
from ..streaming import pieces

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
