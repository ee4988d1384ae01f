"""The vocabulary that stock Outlines sees: the 256 bytes."""

from __future__ import annotations

from typing import Any, final

from outlines.models.transformers import TransformerTokenizer

END = 2**31 - 1
"""The id that stands for the end of sequence beside the 256 bytes; no real vocabulary reaches it."""


@final
class ByteTokenizer(TransformerTokenizer):
    """A tokenizer that encodes and decodes as the model's own, and shows Outlines one token per byte.

    Stock ``outlines.Generator(model, T)`` then builds the *byte* automaton of exactly its own language, in about a
    millisecond and without its losses on tokens that hold parts of a character; :class:`PhiTransformers` lifts it to
    the real vocabulary.
    """

    def __init__(self, tokenizer: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, **kwargs)
        self.eos_token_id, self.eos_token = END, "<end>"
        self.vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
        self.get_vocab = lambda: dict(self.vocabulary)

    def convert_token_to_string(self, token: str) -> bytes:  # type: ignore[override]
        """Return the byte that ``token`` stands for; no byte for the end of sequence."""
        return b"" if token == self.eos_token else bytes([self.vocabulary[token]])
