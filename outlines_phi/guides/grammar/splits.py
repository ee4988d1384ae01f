"""What tokens lead to beside a stack: most of it depends on the top of the stack alone, and is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...partition import EOS
from ..guide import UNREACHABLE
from .completion import Completion
from .lexer import START, Word
from .parser import ERROR, Parser
from .spanner import Spanner

_TOP = 3
"""How many entries of a stack are looked at first. At four, 2 to 6 % of the words of SQL, C and Lean depend on what lies below, at
one 16 to 18 %; more entries make more tops."""

_SPLITS = 8192
"""Of how many tops of stacks the split is kept."""


class Words(NamedTuple):
    """The words of terminals of some vocabulary classes, each beginning of a word once.

    Attributes
    ----------
    steps
        For each beginning but the empty one, the place of the one before it, and the terminal that it adds.
    place
        ``int64[G]``: the place of the word of each class.
    """

    steps: tuple[tuple[int, int], ...]
    place: NDArray[np.int64]

    @classmethod
    def of(cls, words: Sequence[Word], number: NDArray[np.integer]) -> Words:
        """Return those of the words with these numbers."""
        used, which = np.unique(number, return_inverse=True)
        place: dict[Word, int] = {(): 0}
        steps = []
        for word in (words[each] for each in used.tolist()):
            for end in range(1, len(word) + 1):
                if word[:end] not in place:
                    place[word[:end]] = len(place)
                    steps.append((place[word[: end - 1]], word[end - 1]))
        found = np.array([place[words[each]] for each in used.tolist()], dtype=np.int64)
        return cls(tuple(steps), found[which.reshape(-1)])

    def read(self, parser: Parser, configuration: int) -> NDArray[np.int64]:
        """Return the configuration after the word of each class."""
        after = [configuration]
        for before, terminal in self.steps:
            after.append(parser.shift(after[before], terminal))
        return np.array(after, dtype=np.int64)[self.place]


class _Split(NamedTuple):
    """What is decided by the top of a stack.

    Attributes
    ----------
    distances
        ``int64[G]``: the distance after each class, beyond that of what lies below; UNREACHABLE where it is dead or not decided.
    open
        The classes that are not decided.
    words
        Their words.
    """

    distances: NDArray[np.int64]
    open: NDArray[np.int64]
    words: Words


@final
class Splits:
    """The distances to the end after each class of tokens (Alg. 5 and 6 of Park, Zhou, D'Antoni 2025; cfg.md, 2.5 and 2.6).

    Beside a state of the lexer and the top entries of a stack most words of terminals are accepted whatever lies below, or by no
    stack at all: to read them takes nothing off the entries that are known. Where they are accepted, the distances are those to the
    end of what is known and then of what lies below. They are computed once for each top and each *profile* of what lies below,
    the distances from there up to a constant. What is left, words that take off more and the end of the text, is read each time.

    A parser that follows several stacks reads all words each time.

    Parameters
    ----------
    spanner, parser, completion
        Those of a guide.
    """

    def __init__(self, spanner: Spanner, parser: Parser, completion: Completion) -> None:
        self._spanner, self._parser, self._completion = spanner, parser, completion
        self._is_lone = not parser.tables.conflicts
        self._of_lexeme: dict[int, Words] = {}
        self._known = lru_cache(_SPLITS)(self._split)

    def words(self, lexeme: int) -> Words:
        """Return the words of all classes of a state of the lexer."""
        if lexeme not in self._of_lexeme:
            self._of_lexeme[lexeme] = Words.of(self._spanner.words, self._spanner.of_state(lexeme).word)
        return self._of_lexeme[lexeme]

    def distances(self, configuration: int, lexeme: int) -> NDArray[np.int64]:
        """Return ``int64[G]``: the distance to the end after each class of tokens, UNREACHABLE where it is dead."""
        bottom = self._bottom(configuration)
        if bottom is None:
            classes = np.arange(self._spanner.of_state(lexeme).partition.size)
            return self._after(configuration, lexeme, self.words(lexeme), classes)
        profile = self._completion.below(bottom)
        split = self._known(
            lexeme, self._parser.cut(configuration, _TOP), profile.shapes, _Example(configuration, profile.base)
        )
        found = np.where(split.distances < UNREACHABLE, split.distances + profile.base, UNREACHABLE)
        found[split.open] = self._after(configuration, lexeme, split.words, split.open)
        return found

    def _bottom(self, configuration: int) -> int | None:
        """Return the last stack from the top that is looked at; ``None`` where there are several, or nothing lies below."""
        if not self._is_lone:
            return None
        (stack,) = self._parser.stacks(configuration)
        for _ in range(_TOP - 1):
            below = self._parser.below(stack)
            if not below:
                return None
            (stack,) = below
        return stack if self._parser.below(stack) else None

    def _split(self, lexeme: int, top: int, shapes: tuple[tuple[int, int], ...], example: _Example) -> _Split:
        after = self.words(lexeme).read(self._parser, top)
        decided = (after == ERROR) | np.array([self._parser.is_certain(each) for each in after.tolist()])
        decided[EOS] = False
        accepted = np.flatnonzero(decided & (after != ERROR))
        spans = self._spanner.of_state(lexeme)
        distances = np.full(len(after), UNREACHABLE, dtype=np.int64)
        words = Words.of(self._spanner.words, spans.word[accepted])
        found = self._after(example.configuration, lexeme, words, accepted)
        distances[accepted] = np.where(found < UNREACHABLE, found - example.base, UNREACHABLE)
        undecided = np.flatnonzero(~decided)
        return _Split(distances, undecided, Words.of(self._spanner.words, spans.word[undecided]))

    def _after(self, configuration: int, lexeme: int, words: Words, classes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the distance after each of some classes, whose words these are."""
        after, target = words.read(self._parser, configuration), self._spanner.of_state(lexeme).target[classes]
        after = np.where(target == 0, ERROR, after)
        found = self._completion.distances(after, target)
        for place in np.flatnonzero(classes == EOS).tolist():
            found[place] = 0 if target[place] == START and self._parser.accepts(int(after[place])) else UNREACHABLE
        return found


class _Example(NamedTuple):
    """A configuration with a certain top, and the distance below it. What is found of one holds of all: they are all equal."""

    configuration: int
    base: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Example)

    def __hash__(self) -> int:
        return 0
