"""A transducer from UTF-8 bytes to characters: folded where case is ignored, between marks where words matter."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

CODE_POINTS = sys.maxunicode + 1
_BLOCK = 256


def is_word(character: str) -> bool:
    """Return whether ``character`` is part of a word: a letter, a number in any script, or ``_``."""
    return character.isalnum() or character == "_"


@cache
def word_characters() -> NDArray[np.bool_]:
    """``bool[CODE_POINTS]``: :func:`is_word` of every character."""
    found = np.zeros(CODE_POINTS, dtype=bool)
    for first in range(0, CODE_POINTS, _BLOCK):
        block = "".join(map(chr, range(first, first + _BLOCK)))
        # Most blocks are all letters or have none.
        found[first : first + _BLOCK] = True if block.isalnum() else [is_word(character) for character in block]
    found.flags.writeable = False
    return found


@cache
def foldings() -> dict[str, str]:
    """The full case folding of every character that has another than itself."""
    folded: dict[str, str] = {}
    for first in range(0, CODE_POINTS, _BLOCK):
        block = "".join(map(chr, range(first, first + _BLOCK)))
        if block.casefold() != block:
            folded |= {c: c.casefold() for c in block if c.casefold() != c}
    return folded


@cache
def uneven_foldings() -> frozenset[str]:
    """The characters whose folding is several, or one that is part of a word where they are not, or the other way round."""
    return frozenset(c for c, folded in foldings().items() if len(folded) > 1 or is_word(folded) != is_word(c))


FOREIGN = 256  # The symbol of a character that is in no phrase; those below are bytes
LEAD = (257, 258)  # The mark before a character that is no part of a word, and before one that is
TRAIL = (259, 260)  # The mark after one

SYMBOLS = 261

NOTHING = 0  # The reading of no character
BROKEN = 1  # The reading of a foreign character that is no part of a word, and of bytes that are no character

_CONTINUATIONS = 64
_INVALID = -1


class CharacterReading(NamedTuple):
    """The symbols of a character: the bytes of each character of its folding, :data:`FOREIGN` for one that is in no phrase, between
    marks.

    ``sizes`` has, at the last symbol that is a byte, how many bytes the character itself has, and 0 elsewhere. So the sum over the
    last symbols of a text is how many bytes these reach back, in whole characters.
    """

    symbols: tuple[int, ...]
    sizes: tuple[int, ...]


@final
@dataclass(frozen=True, eq=False)
class CharacterReader:
    """A transducer from bytes to the readings of characters.

    A state is what of a character has been held back; state 0 is between characters. A byte that cannot continue the character
    breaks it: the bytes held are then no characters, each a foreign one that is no part of a word, and the byte is read in state
    0. This is how Python decodes with ``errors="surrogateescape"``.
    """

    after: NDArray[np.int32]  # ``int32[R, C]``: the next state
    breaks: NDArray[np.bool_]  # ``bool[R, C]``: whether the bytes held are no character
    completes: NDArray[
        np.int32
    ]  # ``int32[R, C]``: the reading of the character that this byte completes, or :data:`NOTHING`
    byte_class: NDArray[np.uint8]  # ``uint8[256]``: the column of each byte
    # What characters are read as, each once; the first two are those of :data:`NOTHING` and :data:`BROKEN`.
    readings: tuple[CharacterReading, ...]
    held: NDArray[np.int32]  # ``int32[R]``: how many bytes are held back

    @classmethod
    def of(cls, alphabet: Iterable[str], *, ignore_case: bool, whole_word: bool) -> CharacterReader:
        """Return the reader for phrases with the characters of ``alphabet``, which are folded already."""
        scribe = _Scribe(frozenset(alphabet), ignore_case, whole_word)
        reading_of = scribe.read_all()
        return _States(reading_of).reader(tuple(scribe.readings))

    @cached_property
    def is_foreign(self) -> NDArray[np.bool_]:
        """``bool[N]``: the readings without a character of a phrase."""
        return np.array([all(symbol >= FOREIGN for symbol in reading.symbols) for reading in self.readings])

    @cached_property
    def completions(self) -> tuple[tuple[int, ...], ...]:
        """For each state, which readings with characters of phrases the character held may still have."""
        may = np.zeros((len(self.held), len(self.readings)), dtype=bool)
        for state in np.argsort(-self.held, kind="stable").tolist():
            goes_on = ~self.breaks[state]
            may[state, self.completes[state, goes_on]] = True
            below = self.after[state, goes_on]
            may[state] |= may[below[self.held[below] > self.held[state]]].any(axis=0)
        may[:, self.is_foreign] = False
        return tuple(tuple(np.flatnonzero(row).tolist()) for row in may)


def marked(character: str, symbols: Sequence[int]) -> tuple[int, ...]:
    """Return the ``symbols`` of a character between its marks."""
    word = is_word(character)
    return (LEAD[word], *symbols, TRAIL[word])


class _Scribe:
    """Reads characters, and keeps each reading once."""

    def __init__(self, alphabet: frozenset[str], ignore_case: bool, whole_word: bool) -> None:
        self._alphabet, self._whole_word = alphabet, whole_word
        self._foldings = foldings() if ignore_case else {}
        self.readings = {CharacterReading((), ()): NOTHING}
        assert self._index("\x00", foreign=True) == BROKEN

    def read_all(self) -> NDArray[np.int32]:
        """Return ``int32[CODE_POINTS]``: the reading of every character."""
        reading_of = np.full(CODE_POINTS, BROKEN, dtype=np.int32)
        if self._whole_word:
            reading_of[word_characters()] = self._index("_", foreign=True)
        # All other characters read as one foreign character, as they would without their folding.
        folded = {c for c, folding in self._foldings.items() if not self._alphabet.isdisjoint(folding)}
        uneven = uneven_foldings().intersection(self._foldings) if self._whole_word else ()
        for character in self._alphabet.union(folded, uneven):
            reading_of[ord(character)] = self._index(character)
        return reading_of

    def _index(self, character: str, foreign: bool = False) -> int:
        symbols = list[int]()
        for folded in self._foldings.get(character, character):
            spelled = (FOREIGN,) if foreign or folded not in self._alphabet else tuple(folded.encode())
            symbols += marked(folded, spelled) if self._whole_word else spelled
        # How long a foreign character is matters nowhere, so all of them are one.
        last = max((place for place, symbol in enumerate(symbols) if symbol < FOREIGN), default=None)
        sizes = tuple(len(character.encode()) if place == last else 0 for place in range(len(symbols)))
        return self.readings.setdefault(CharacterReading(tuple(symbols), sizes), len(self.readings))


class _States:
    """The states between the bytes of a character: one for all beginnings of equal length that go on alike."""

    def __init__(self, reading_of: NDArray[np.int32]) -> None:
        self._reading_of = reading_of
        self._number: dict[tuple[int, bool, bytes], int] = {}
        self._successors: dict[tuple[int, bytes], NDArray[np.int32]] = {}

    def reader(self, readings: tuple[CharacterReading, ...]) -> CharacterReader:
        """Return the reader of these characters (the well-formed sequences of Unicode 15.0, table 3-7)."""
        after = np.zeros((1, 256), dtype=np.int32)
        completes = np.full((1, 256), BROKEN, dtype=np.int32)
        completes[0, :0x80] = self._reading_of[:0x80]
        two = {0xC0 + lead: self._last(1, lead * _CONTINUATIONS) for lead in range(2, 32)}
        three = {0xE0 + lead: self._inner(1, self._three(lead)) for lead in range(16)}
        four = {0xF0 + lead: self._inner(1, self._four(lead)) for lead in range(5)}
        for lead, state in (two | three | four).items():
            after[0, lead], completes[0, lead] = state, NOTHING

        after, completes = (np.repeat(row, len(self._number) + 1, axis=0) for row in (after, completes))
        breaks = np.ones(after.shape, dtype=bool)
        breaks[0] = False
        held = np.zeros(len(after), dtype=np.int32)
        for (count, is_last, content), state in self._number.items():
            successors = np.frombuffer(content, dtype=np.int32)
            held[state] = count
            valid = np.flatnonzero(successors != _INVALID)
            breaks[state, 0x80 + valid] = False
            after[state, 0x80 + valid] = 0 if is_last else successors[valid]
            completes[state, 0x80 + valid] = successors[valid] if is_last else NOTHING
        number: dict[bytes, int] = {}
        columns = np.ascontiguousarray(np.concatenate([after, breaks, completes]).T)
        byte_class = [number.setdefault(column.tobytes(), len(number)) for column in columns]
        _, first = np.unique(byte_class, return_index=True)
        return CharacterReader(
            after[:, first], breaks[:, first], completes[:, first], np.array(byte_class, dtype=np.uint8), readings, held
        )

    def _three(self, lead: int) -> NDArray[np.int32]:
        """Return the states after the second byte of three."""
        successors = self._after_next(2, lead * _CONTINUATIONS**2).copy()
        first = lead * _CONTINUATIONS**2 + np.arange(_CONTINUATIONS) * _CONTINUATIONS
        successors[(first < 0x800) | (first >= 0xD800) & (first < 0xE000)] = _INVALID
        return successors

    def _four(self, lead: int) -> NDArray[np.int32]:
        """Return the states after the second byte of four."""
        states = np.full(_CONTINUATIONS, _INVALID)
        for second in range(_CONTINUATIONS):
            first = lead * _CONTINUATIONS**3 + second * _CONTINUATIONS**2
            if 0x10000 <= first < CODE_POINTS:
                states[second] = self._inner(2, self._after_next(3, first))
        return states.astype(np.int32)

    def _after_next(self, held: int, code: int) -> NDArray[np.int32]:
        """Return the states with ``held`` bytes held, from ``code`` on; most of Unicode is one stretch again and again."""
        stretch = self._reading_of[code : code + _CONTINUATIONS**2].tobytes()
        if (held, stretch) not in self._successors:
            codes = range(code, code + _CONTINUATIONS**2, _CONTINUATIONS)
            self._successors[held, stretch] = np.array([self._last(held, c) for c in codes], dtype=np.int32)
        return self._successors[held, stretch]

    def _last(self, held: int, code: int) -> int:
        content = self._reading_of[code : code + _CONTINUATIONS].tobytes()
        return self._number.setdefault((held, True, content), len(self._number) + 1)

    def _inner(self, held: int, successors: NDArray[np.int32]) -> int:
        return self._number.setdefault((held, False, successors.tobytes()), len(self._number) + 1)
