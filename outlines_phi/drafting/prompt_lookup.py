"""What followed the same tokens before: in the prompt, or in the text itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedError
from ..partition import EOS
from .drafter import Draft, Drafter, Drafting, DraftRun, Site

WORD = re.compile(rb"\s*[\w\x80-\xff]+")
"""A token of letters and digits, those beyond ASCII included, after blanks or none."""


@final
@dataclass(frozen=True)
class PromptLookupDrafter(Drafter):
    """Proposes what followed the last tokens where they stood before (Saxena, "Prompt Lookup Decoding", 2023).

    Of the places in prompt and text where the last ``ngram`` tokens stood before, the latest after which the guide allows the
    token that followed there; if there is none, the same for ever fewer tokens, down to one. An output that takes values out of its
    prompt is written so, several tokens in a call. Blanks that tokens begin with do not count: a word has one within a sentence,
    and none where it begins a value, after a quotation mark. Of a phrase that is found so only words are proposed.

    Attributes
    ----------
    ngram
        The most tokens that have to agree.

    Raises
    ------
    UnsupportedError
        ``ngram`` is not a positive whole number.
    """

    ngram: int = 3
    name: ClassVar[str] = "prompt_lookup"

    def __post_init__(self) -> None:
        if isinstance(self.ngram, bool) or not isinstance(self.ngram, int) or self.ngram < 1:
            raise UnsupportedError(
                f"PromptLookupDrafter(ngram={self.ngram!r}) was given; expected a whole number of at least 1."
            )

    def begin(self, run: DraftRun) -> Drafting:
        """See :meth:`Drafter.begin`."""
        return _PromptLookup(run, self.ngram)


@final
class _PromptLookup(Drafting):
    def __init__(self, run: DraftRun, ngram: int) -> None:
        self._table, self._ngram, self._tokens = run.table, ngram, run.vocabulary.tokens
        self._numbers: dict[bytes | int, int] = {}  # of the words
        self._prompts = [self._words_of(prompt) for prompt in run.prompts]

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        return [self._draft(site, length) for site, length in zip(sites, lengths, strict=True)]

    def _draft(self, site: Site, length: int) -> Draft:
        text = np.array(site.prompt + site.tokens, dtype=np.int64)
        words = np.concatenate([self._prompts[site.row], self._words_of(site.tokens)])
        place, n = self._place(words, self._live(site, text))
        tokens = tuple(text[place : place + length].tolist())
        if (text[place - n : place] == text[len(text) - n :]).all():
            return Draft(tokens)
        # A phrase that is taken out of its sentence: what stands around it there does not come with it.
        return Draft(tuple(takewhile(self._is_word, tokens)))

    def _is_word(self, token: int) -> bool:
        return WORD.fullmatch(self._tokens[token]) is not None

    def _words_of(self, tokens: Sequence[int]) -> NDArray[np.int64]:
        """Return a number per token: one for all that write the same but for blanks before it."""
        known = len(self._tokens)
        bare = (self._tokens[token].lstrip() if token < known else b"" for token in tokens)
        keys = (word or token for word, token in zip(bare, tokens, strict=True))
        return np.fromiter((self._numbers.setdefault(key, len(self._numbers)) for key in keys), np.int64, len(tokens))

    def _live(self, site: Site, text: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which tokens of ``text`` may follow the site and do not end it. A prompt may hold ids that cannot be written."""
        live, class_of = (
            self._table.live_classes(site.state, site.remaining),
            self._table.partition(site.state).class_of,
        )
        live[EOS] = False
        known = text < len(class_of)
        return known & live[class_of[np.where(known, text, 0)]]

    def _place(self, words: NDArray[np.int64], live: NDArray[np.bool_]) -> tuple[int, int]:
        """Return where the continuation begins, and after how many words that agree.

        A live token after the longest, then latest, earlier end of the text; the end of the text where there is none.
        """
        agree = live.copy()  # [i]: the words before i are those before the end, as many as were compared
        agree[0] = False
        found = len(words), 0
        for n in range(1, min(self._ngram, len(words) - 1) + 1):
            agree[n:] &= words[: len(words) - n] == words[-n]
            agree[:n] = False
            places = agree.nonzero()[0]
            if not len(places):
                break
            found = int(places[-1]), n
        return found
