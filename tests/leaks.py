"""Models that want to write what is banned, and a search for it in what was written: Python's own, on the final bytes."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from outlines_phi.guides.banned import BannedPhrases
from outlines_phi.lm.table_model import TableModel
from outlines_phi.vocabulary import Vocabulary

BROKEN = re.compile("[\udc80-\udcff]")


def is_word(character: str) -> bool:
    return re.fullmatch(r"\w", character) is not None


def leaks(ban: BannedPhrases, text: bytes, prompt: bytes = b"") -> list[str]:
    """The banned things in ``text``, which was written after ``prompt``."""
    before = prompt if ban.across_prompt else b""
    searched = (before + text).decode(errors="surrogateescape")
    # A character that the prompt leaves unfinished ends in the text.
    own = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(before)
    found = []
    for phrase in ban.phrases:
        folds = ban.ignore_case and isinstance(phrase, str)
        letters, first = (searched.casefold(), len(own.casefold())) if folds else (searched, len(own))
        for start, stop in occurrences(phrase, letters, ban.ignore_case):
            alone = not any(is_word(c) for c in letters[max(0, start - 1) : start] + letters[stop : stop + 1])
            if stop > first and (alone or not ban.whole_word):
                found.append(f"{phrase!r} in {letters!r}, written from {first} on")
    return found


def occurrences(phrase: str | re.Pattern[str], letters: str, ignore_case: bool) -> Iterator[tuple[int, int]]:
    """Where ``phrase`` stands in ``letters``, which are folded where case is ignored; bytes that are no UTF-8 match no pattern."""
    if isinstance(phrase, str):
        wanted = phrase.casefold() if ignore_case else phrase
        start = letters.find(wanted)
        while start >= 0:
            yield start, start + len(wanted)
            start = letters.find(wanted, start + 1)
        return
    pattern = re.compile(phrase.pattern, phrase.flags | (re.IGNORECASE if ignore_case else 0))
    for start in range(len(letters)):
        if pattern.match(letters, start):
            stops = (stop for stop in range(start + 1, len(letters) + 1) if pattern.fullmatch(letters, start, stop))
            yield from ((start, stop) for stop in stops if not BROKEN.search(letters, start, stop))


def begun(text: bytes, phrases: Sequence[bytes]) -> int:
    """How many bytes at the end of ``text`` begin one of ``phrases``; all of it counts if that is complete."""
    return max((k for phrase in phrases for k in range(1, len(phrase) + 1) if text.endswith(phrase[:k])), default=0)


def wanting(
    vocabulary: Vocabulary, phrases: Sequence[bytes], *, strength: float = 3.0, ending: float = 1.0, seed: int = 0
) -> TableModel:
    """A model that goes on with what begins a phrase, whatever tokens spell it, ``exp(strength)`` times rather for each byte."""
    longest = max(map(len, phrases))
    noise = np.random.default_rng(seed).standard_normal((7, len(vocabulary)))

    @cache
    def logits(end: bytes, length: int) -> NDArray[np.float64]:
        scores = noise[length % 7].copy()
        for token, spelled in enumerate(vocabulary.tokens):
            if spelled:
                scores[token] += strength * begun(end + spelled, phrases)
        scores[vocabulary.eos_ids[0]] += ending
        return scores

    def law(sequence: tuple[int, ...]) -> NDArray[np.float64]:
        return logits(vocabulary.decode(sequence)[-longest:], len(sequence))

    return TableModel(vocabulary, law)
