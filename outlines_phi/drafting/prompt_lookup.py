"""Prompt lookup decoding: the tokens that followed the same n-gram before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, takewhile
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from ..numerics.checks import check_counts
from ..vocabulary.classes import EOS
from .drafter import NOTHING, Draft, Drafter, Drafting, DraftRun, Site

WORD = re.compile(rb"\s*[\w\x80-\xff]+")
"""A token of letters and digits, those beyond ASCII included, after blanks or none."""

ENOUGH = 2
"""How much has to agree: a word counts as much, a digit by itself half of it."""


@final
@dataclass(frozen=True)
class PromptLookupDrafter(Drafter):
    """Proposes what followed the last tokens where they stood before (Saxena, "Prompt Lookup Decoding", 2023).

    Of the places in prompt and text where the last ``ngram`` tokens stood before, the latest after which the guide allows the
    token that followed there; if there is none, the same for ever fewer tokens, down to one. An output that takes values out of its
    prompt is written so, several tokens in a call. What agrees has to have a word in it, or two digits: anything may follow a
    ``": "``, or the first digit of a number. Blanks that tokens begin with do not count: a word has one within a sentence, and none
    where it begins a value, after a quotation mark. Of a phrase that is found so only words are proposed.

    Attributes
    ----------
    ngram
        The most tokens that have to agree; with 1, numbers of one-digit tokens are not looked up.

    Raises
    ------
    UnsupportedError
        ``ngram`` is not a positive whole number.
    """

    ngram: int = 3
    name: ClassVar[str] = "prompt_lookup"

    def __post_init__(self) -> None:
        check_counts("PromptLookupDrafter", ngram=self.ngram)

    def begin(self, run: DraftRun) -> Drafting:
        return _PromptLookup(run, self.ngram)


@final
class _PromptLookup(Drafting):
    def __init__(self, run: DraftRun, ngram: int) -> None:
        self._table, self._ngram, self._tokens = run.table, ngram, run.vocabulary.tokens
        self._numbers: dict[bytes | int, int] = {}  # of the words
        self._number_of: dict[int, int] = {}  # of the words of tokens
        self._counts = lru_cache(maxsize=None)(self._count)
        self._prompts = [np.array(self._words_of(prompt)) for prompt in run.prompts]
        self._in_prompt = [set(words.tolist()) for words in self._prompts]

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        return [self._draft(site, length) for site, length in zip(sites, lengths, strict=True)]

    def _draft(self, site: Site, length: int) -> Draft:
        end = (site.prompt[-self._ngram :] + site.tokens[-self._ngram :])[-self._ngram :]
        counted = accumulate(map(self._counts, reversed(end)))
        least = next((n for n, so_far in enumerate(counted, 1) if so_far >= ENOUGH), 0)
        if not least:
            return NOTHING
        written = self._words_of(site.tokens)
        if written and written[-1] not in self._in_prompt[site.row] and written[-1] not in written[:-1]:
            return NOTHING  # most places, at little cost
        words = np.concatenate([self._prompts[site.row], np.array(written, dtype=np.int64)])
        places = 1 + np.flatnonzero(words[:-1] == words[-1])
        for n in range(1, least):
            places = _longer(words, places, n)
        if not len(places):
            return NOTHING
        text = np.array(site.prompt + site.tokens, dtype=np.int64)
        places = places[self._may_follow(site, text[places])]
        if not len(places):
            return NOTHING
        n = least
        while n < self._ngram and len(longer := _longer(words, places, n)):
            places, n = longer, n + 1
        place = int(places[-1])
        tokens = tuple(text[place : place + length].tolist())
        if (text[place - n : place] == text[len(text) - n :]).all():
            return Draft(tokens)
        # A phrase that is taken out of its sentence: what stands around it there does not come with it.
        return Draft(tuple(takewhile(self._counts, tokens)))

    def _count(self, token: int) -> int:
        """Return how much it counts that ``token`` agrees: a word :data:`ENOUGH`, a single digit half of it, all else nothing."""
        if token >= len(self._tokens) or WORD.fullmatch(self._tokens[token]) is None:
            return 0
        word = self._tokens[token].lstrip()
        return ENOUGH // 2 if len(word) == 1 and word.isdigit() else ENOUGH

    def _words_of(self, tokens: Sequence[int]) -> list[int]:
        """Return a number per token: one for all that write the same but for blanks before it."""
        for token in set(tokens) - self._number_of.keys():
            word = self._tokens[token].lstrip() if token < len(self._tokens) else b""
            self._number_of[token] = self._numbers.setdefault(word or token, len(self._numbers))
        return [self._number_of[token] for token in tokens]

    def _may_follow(self, site: Site, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of some tokens may follow the site and do not end it. A prompt may hold ids that cannot be written."""
        live = self._table.live_classes(site.state, site.remaining)
        live[EOS] = False
        class_of = self._table.partition(site.state).class_of
        known = tokens < len(class_of)
        return known & live[class_of[np.where(known, tokens, 0)]]


def _longer(words: NDArray[np.int64], places: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Return those of the places after the last ``n`` words that have the word before these too."""
    places = places[places > n]
    return places[words[places - n - 1] == words[-n - 1]]
