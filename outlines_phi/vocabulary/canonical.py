"""Canonical tokenization: of all tokenizations of a text, the one that the tokenizer itself would write."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, final

from ..errors import UnsupportedError
from .vocabulary import Vocabulary

ANCHORS = ("", "\n", "a")  # Texts before another one that keep the tokenizer from adding to its beginning


TRIALS = (
    "1234567 12345 1234.5678901 x12345678901",
    '{"name": "Ada  Lovelace",\n\t"born": 18151210, "it\'s": [true, -0.5e10]}  \n\n  end',
    "naïve 東京都 12月31日  ١٢٣٤٥٦٧ 👩‍🚀👩‍🚀 isn't we'll !!!??? ...... ______ aaaaAAAAaaaa",
)
"""Texts whose every beginning must be allowed, else a tokenizer's splitting looks further ahead than is known here."""


@final
class CanonicalTokenization:
    """The token sequences ``y`` with ``y = encode(decode(y))``; a constraint for token trees.

    A finished text is compared with its own encoding, so membership is exact. An unfinished one is given up as soon as it
    differs where nothing that follows can matter any more: before the last two words of the tokenizer's own splitting. Where a
    tokenizer splits nothing, or by looking further ahead (digits grouped from the right), only finished texts are compared.

    The output is tokenized by itself, not together with the prompt. A text that holds the name of a special token
    (``<|im_end|>``) has no canonical tokenization.

    ``tokenizer``: A Hugging Face tokenizer.
    ``vocabulary``: its exact bytes.

    Raises :class:`UnsupportedError`: the tokenizer cannot encode a text without adding to its beginning.
    """

    further = 4  # Next tokens that a walk tests after the one that it draws

    bytes = 0  # Memory beside the tokenizer's

    def __init__(self, tokenizer: Any, vocabulary: Vocabulary) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._split = getattr(backend, "pre_tokenizer", None)
        self._normalize = getattr(backend, "normalizer", None)
        self._anchor = next((anchor for anchor in ANCHORS if self._fits(anchor)), None)
        if self._anchor is None:
            raise UnsupportedError(
                f"{type(tokenizer).__name__} does not give its text back byte for byte (it adds to it or changes it), so no output "
                "has a canonical tokenization; leave out tokenization='canonical'."
            )
        self._early = True
        # Some splittings look far ahead: prefixes of the canonical tokenization of a text are not allowed by them.
        trials = map(self.encode, TRIALS)
        self._early = all(self.allows(ids[:end], finished=False) for ids in trials for end in range(len(ids)))

    def allows(self, tokens: Sequence[int], *, finished: bool) -> bool:
        """Return True if ``tokens``, without the end of sequence, are canonical or, unfinished, may still become so.

        What stands between special tokens, which write nothing, is canonical by itself.
        """
        silent = [place for place, token in enumerate(tokens) if not self._vocabulary.tokens[token]]
        parts = [tokens[begin + 1 : end] for begin, end in pairwise([-1, *silent, len(tokens)])]
        return all(self._allows(part, finished=True) for part in parts[:-1]) and self._allows(
            parts[-1], finished=finished
        )

    def _allows(self, tokens: Sequence[int], *, finished: bool) -> bool:
        written = self._vocabulary.decode(tokens)
        if finished:
            return self.encode(written.decode()) == list(tokens)
        text = written.decode(errors="ignore")  # the last character may be incomplete
        settled = self._settled(text)
        if settled == 0:
            return True
        ids = self.encode(text)
        count, size = 0, 0
        while size < settled and count < len(ids):
            size += len(self._vocabulary.tokens[ids[count]])
            count += 1
        return list(tokens[:count]) == ids[:count]

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text`` as the tokenizer writes them, after other text and without anything added."""
        before = self._ids(self._anchor or "")
        ids = self._ids((self._anchor or "") + text)
        return ids[len(before) :] if ids[: len(before)] == before else []

    def __str__(self) -> str:
        return "tokenization='canonical'"

    def _settled(self, text: str) -> int:
        """Return the length in bytes of the prefix of ``text`` whose tokenization does not depend on the rest."""
        if not self._early or self._split is None or self._anchor:
            return 0
        if self._normalize and self._normalize.normalize_str(text) != text:
            return 0
        words = self._split.pre_tokenize_str(text)
        return len(text[: words[-2][1][0]].encode()) if len(words) > 2 else 0

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []

    def _fits(self, anchor: str) -> bool:
        """Return True if texts after ``anchor`` are encoded to just their own bytes."""
        before = self._ids(anchor)
        for text in ("b", "b c", '{"b": 1}'):
            ids = self._ids(anchor + text)
            if ids[: len(before)] != before or self._vocabulary.decode(ids[len(before) :]) != text.encode():
                return False
        return True
