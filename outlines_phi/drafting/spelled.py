"""Texts that a guide suggests, as the tokenizer writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import final

import numpy as np

from ..vocabulary.fewest_tokens import fewest_tokens
from .drafter import Draft, Drafting, DraftRun, Site
from .forced_texts import BLANK, ForcedTexts, forced_texts

CONTEXT = 4
"""Tokens before the forced text that are encoded together with it: what the tokenizer writes depends on them."""

CONTINUATIONS = 16
"""Texts that may follow the forced one, on which it is tried out whether the tokenizer would merge them with it."""

BYTES = 16
"""Bytes of forced text that are followed for each token that is asked for."""

SEPARATORS = b",:"
"""What a space is written after, where it may be, until a text does otherwise: the habit of ``json.dumps``, and of prose."""

KEPT = 4096
"""Drafts that are kept: the same places of a format come back in every text."""

BYTES_KEPT = 2**20
"""The memory that these take, about."""

Suggestion = Callable[[ForcedTexts, int, bytes, bytes, int], tuple[bytes, int]]
"""A text after a state, and the state after it, as :meth:`ForcedTexts.after` gives them."""


def spelled(run: DraftRun, suggestion: Suggestion) -> Drafting:
    """Return the drafting that proposes what ``suggestion`` says; it is found out, and spelled, once per table."""
    key = "spelled", suggestion, run.encode
    return run.table.keep(key, run.table.start, lambda: SpelledDrafting(run, suggestion), lambda _: BYTES_KEPT)


@final
class SpelledDrafting(Drafting):
    """Proposes texts in the tokens that the tokenizer writes them in, after the last few tokens of what stands before.

    Tokens at the end of a text that the tokenizer would merge with most of what may follow are left out.
    """

    def __init__(self, run: DraftRun, suggestion: Suggestion) -> None:
        self._vocabulary, self._encode, self._suggestion = run.vocabulary, run.encode, suggestion
        self._texts = forced_texts(run.table.guide)
        self._draft, self._unsettled = lru_cache(KEPT)(self._make), lru_cache(KEPT)(self._count_unsettled)

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        return [
            Draft(self._draft(site.state, site.tokens[-CONTEXT:], self._habit(site), length))
            for site, length in zip(sites, lengths, strict=True)
        ]

    def _habit(self, site: Site) -> bytes:
        """Return the separators that the text, where it last had one, wrote a space after."""
        written = self._vocabulary.decode(site.tokens)
        ends = ((sign, written.rfind(sign, 0, -1) + 1) for sign in SEPARATORS)
        return bytes(sign for sign, end in ends if not end or written[end] == BLANK)

    def _make(self, state: int, before: tuple[int, ...], spaced: bytes, length: int) -> tuple[int, ...]:
        """Return the tokens of the text after ``state``, where the tokens ``before`` have been written."""
        last = self._vocabulary.decode(before)[-1:]
        text, end = self._suggestion(self._texts, state, last, spaced, BYTES * (length + 1))
        if not text:
            return ()
        tokens = self._spell(before, text)
        return tokens[: len(tokens) - self._unsettled(text, end, spaced)][:length]

    def _count_unsettled(self, text: bytes, end: int, spaced: bytes) -> int:
        """Return how many tokens at the end of ``text`` become others with most of what may follow, in ``end``."""
        tokens = whole = self._spell((), text)
        longer = [self._spell((), text + more) for more in self._texts.continuations(end, spaced, CONTINUATIONS)]
        while tokens and 2 * sum(other[: len(tokens)] == tokens for other in longer) < len(longer):
            tokens = tokens[:-1]
        return len(whole) - len(tokens)

    def _spell(self, before: tuple[int, ...], text: bytes) -> tuple[int, ...]:
        """Return the tokens of ``text`` after ``before``: as both are encoded together, else as it is encoded by itself."""
        if self._encode is None or not text:
            return fewest_tokens(self._vocabulary, text)
        for context in (before, ()):
            written = _characters(self._vocabulary.decode(context) + text)
            ids = tuple(self._encode(written)) if written else ()
            if ids[: len(context)] == context:
                return ids[len(context) :]
        return ()


def _characters(text: bytes) -> str:
    """Return the characters that ``text`` begins with: none if it begins within one, all but the last if it ends within one."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        return text[: error.start].decode()
