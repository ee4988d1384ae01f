"""The steps of a lexer along a text with what they emit on the way, numbered as they come up."""

from __future__ import annotations

from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ....automata.automaton import DEAD
from .lexer import Lexer, Word

OWN = -2
"""In a word, the terminal of which the pending bytes were a lexeme before the text."""

_UNKNOWN = -1


class Emitted(NamedTuple):
    """What the numbers of :class:`Emissions` stand for, when all have come up.

    Attributes
    ----------
    source_of
        ``int32[L]``: the number of each state of the lexer before the text.
    state, word
        ``int32[N]``: what each number stands for, ``word`` an index into ``words``.
    words
        The words that came up.
    length, begins_with_own
        ``int64[W]``, ``bool[W]``: how many terminals each word has, and whether the first is that of the state before the text.
    """

    source_of: NDArray[np.int32]
    state: NDArray[np.int32]
    word: NDArray[np.int32]
    words: tuple[Word, ...]
    length: NDArray[np.int64]
    begins_with_own: NDArray[np.bool_]


@final
class Emissions:
    """Pairs (state of a lexer, word emitted since the text began), each once, and what a byte makes of them.

    Number 0 is dead; the numbers up to :attr:`sources` are the states before the text, those with equal steps as one: the terminal
    that a state itself completes is written :data:`OWN`, so that the states in which a keyword or an identifier is complete are the
    same. The others come up as the text is read. Ignored terminals are left out of words.

    Attributes
    ----------
    sources
        How many states before the text there are.
    """

    def __init__(self, lexer: Lexer) -> None:
        self._lexer = lexer
        own = np.array(
            [lexer.words.index((label,)) if (label,) in lexer.words else 0 for label in lexer.label.tolist()]
        )
        masked = np.where((lexer.emits != 0) & (lexer.emits == own[:, None]), OWN, lexer.emits)
        rows = np.column_stack([lexer.targets, masked])
        rows[DEAD] = 0
        _, first, group = np.unique(rows[1:], axis=0, return_index=True, return_inverse=True)
        self.sources = len(first)
        self._source_of = np.concatenate([[DEAD], group.reshape(-1) + 1]).astype(np.int32)
        self._words: list[Word] = [(), (OWN,)]
        self._word_number = {word: number for number, word in enumerate(self._words)}
        self._longer: dict[tuple[int, int], int] = {}
        self._pairs = np.zeros((2, self.sources + 1), dtype=np.int32)  # the state and the word of each number
        self._pairs[0, 1:] = first + 1
        self._masked = masked
        self._number: dict[tuple[int, int], int] = {}
        self._after = np.full((self.sources + 1, lexer.targets.shape[1]), _UNKNOWN, dtype=np.int32)
        self._after[DEAD] = DEAD
        self._used = self.sources + 1

    def move(self, column: NDArray[np.int64], number: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return what a byte of each class makes of the number beside it."""
        after = self._after[number, column]
        unknown = np.flatnonzero(after == _UNKNOWN)
        if len(unknown):
            occurs = np.zeros(self._after.size, dtype=bool)
            occurs[number[unknown].astype(np.int64) * self._after.shape[1] + column[unknown]] = True
            self._find(*np.divmod(np.flatnonzero(occurs), self._after.shape[1]))
            after = self._after[number, column]
        return after

    def settled(self) -> Emitted:
        """Return what the numbers stand for that have come up by now."""
        length = np.array([len(word) for word in self._words])
        own = np.array([word[:1] == (OWN,) for word in self._words])
        state, word = self._pairs[:, : self._used].copy()
        return Emitted(self._source_of, state, word, tuple(self._words), length, own)

    def _find(self, number: NDArray[np.int64], column: NDArray[np.int64]) -> None:
        """Take these steps."""
        state, word = self._pairs[:, number]
        target = self._lexer.targets[state, column]
        emitted = np.where(number <= self.sources, self._masked[state, column], self._lexer.emits[state, column])
        grown = word.copy()
        for place in np.flatnonzero((emitted != 0) & (target != DEAD)).tolist():
            grown[place] = self._append(int(word[place]), int(emitted[place]))
        found, which = np.unique(grown.astype(np.int64) * len(self._lexer) + target, return_inverse=True)
        pairs = zip(*(part.tolist() for part in np.divmod(found, len(self._lexer))), strict=True)
        numbers = [self._pair(word, state) if state != DEAD else DEAD for word, state in pairs]
        self._after[number, column] = np.array(numbers, dtype=np.int32)[which.reshape(-1)]

    def _append(self, word: int, emitted: int) -> int:
        key = (word, emitted)
        if key not in self._longer:
            more = (OWN,) if emitted == OWN else self._lexer.words[emitted]
            counted = tuple(t for t in more if t == OWN or not self._lexer.terminals[t].ignored)
            longer = self._words[word] + counted
            number = self._word_number.setdefault(longer, len(self._words))
            if number == len(self._words):
                self._words.append(longer)
            self._longer[key] = number
        return self._longer[key]

    def _pair(self, word: int, state: int) -> int:
        number = self._number.setdefault((word, state), self._used)
        if number == self._used:
            if number == len(self._after):
                more = np.full_like(self._after, _UNKNOWN)
                self._after = np.concatenate([self._after, more])
                self._pairs = np.concatenate([self._pairs, np.zeros_like(self._pairs)], axis=1)
            self._pairs[:, number] = state, word
            self._used += 1
        return number
