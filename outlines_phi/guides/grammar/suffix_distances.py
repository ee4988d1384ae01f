"""The mask of a grammar: the distance to the end after each class of tokens, most of it from the top of the stack alone.

A class is live where its distance is finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...vocabulary.classes import EOS
from ..guide import DEAD, UNREACHABLE
from .completion import Completion
from .lexing.lexer import Word
from .lexing.spanner import Spanner
from .parsing.parser import ERROR, UNKNOWN, Parser
from .parsing.rules import END

_TOP = 3
"""How many entries of a stack are looked at together. With three, a new state of C takes 2.5 look-ups, with one 38; with more, more
tops are met for a first time."""

_KEPT_TOPS = 4096  # Of how many tops of stacks it is kept what they decide

_RECENT = 8
"""How many distances are kept: a mask asks twice, for the live tokens and for the length limit that changes nothing more."""

_ENDED = DEAD  # In place of the lexer's state: the text has ended


class TerminalWords(NamedTuple):
    """The words of terminals of some vocabulary classes, each beginning of a word once.

    ``steps`` has, for each beginning but the empty one, the place of the one before it and the terminal that it adds; ``place``,
    ``int64[G]``, the place of the word of each class.
    """

    steps: tuple[tuple[int, int], ...]
    place: NDArray[np.int64]

    @classmethod
    def of(cls, words: Sequence[Word], number: NDArray[np.integer]) -> TerminalWords:
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


@final
@dataclass(frozen=True, eq=False)
class _Suffixes:
    """Words of terminals that are left to be read from a stack, and the state of the lexer after each, ``int32[N]``.

    The last terminal of the word of the end of the text is END, its state :data:`_ENDED`.
    """

    words: TerminalWords
    targets: NDArray[np.int32]


class _Below(NamedTuple):
    """Suffixes to be read from another stack: ``head`` on what lies ``entries`` below the last entry that was looked at.

    ``places`` are those of their words among all that were to be read.
    """

    entries: int
    head: int
    places: NDArray[np.int64]
    suffixes: _Suffixes


class _Decided(NamedTuple):
    """What the top of a stack decides: ``distances`` of the words at ``places``, less the base of what lies below it.

    ``below`` has the words that take off all entries that were looked at; all others are dead.
    """

    places: NDArray[np.int64]
    distances: NDArray[np.int64]
    below: tuple[_Below, ...]


@final
class SuffixDistances:
    """The distances to the end after each class of tokens (Alg. 5 and 6 of Park et al. 2025; grammar-theory.md, section 5.2).

    Beside a state of the lexer and the top entries of a stack, most words of terminals are accepted whatever lies below, or by no
    stack at all: reading them takes off known entries alone. Their distances are computed once for each top and each kind of what
    lies below (:class:`Completion`). The other words take off all entries that are known and put a nonterminal on what lies there:
    their suffixes are read from that stack, whose top decides most of them in turn. So a stack that was never met costs one look-up
    for each top that is taken off. A parser that follows several stacks reads all words each time.
    """

    def __init__(self, spanner: Spanner, parser: Parser, completion: Completion) -> None:
        self._spanner, self._parser, self._completion = spanner, parser, completion
        self._of_lexer_state: dict[int, tuple[NDArray[np.int64], _Suffixes]] = {}
        self._interned: dict[tuple[tuple[tuple[int, int], ...], bytes, bytes], _Suffixes] = {}
        self._decided: dict[tuple[_Suffixes, tuple[int, ...], int], _Decided] = {}
        self._recent = lru_cache(_RECENT)(self._distances)

    def distances(self, configuration: int, lexer_state: int) -> NDArray[np.int64]:
        """Return ``int64[G]``: the distance to the end after each class of tokens, UNREACHABLE where it is dead."""
        return self._recent(configuration, lexer_state)

    def _distances(self, configuration: int, lexer_state: int) -> NDArray[np.int64]:
        found = np.full(self._spanner.of_state(lexer_state).partition.size, UNREACHABLE, dtype=np.int64)
        lexed, suffixes = self._all_of(lexer_state)
        if self._parser.is_lone:
            # One stack: its top decides most words, and the rest is read from what lies below.
            pending = [(configuration, lexed, suffixes)]
            while pending:
                stack, places, left_over = pending.pop()
                states, bottom = self._top(stack)
                base, decided = self._of_top(stack, states, bottom, left_over)
                if len(decided.places):
                    found[places[decided.places]] = base + decided.distances
                for suffix in decided.below:
                    (left,) = self._parser.descend(bottom, suffix.entries + 1)
                    pending.append((self._parser.goto(left, suffix.head), places[suffix.places], suffix.suffixes))
        else:  # several stacks: all words are read
            found[lexed] = self._after(suffixes.words.read(self._parser, configuration), suffixes.targets)
        found.flags.writeable = False
        return found

    def _all_of(self, lexer_state: int) -> tuple[NDArray[np.int64], _Suffixes]:
        """Return the classes whose tokens a state of the lexer can read, and what is to be read of them."""
        if lexer_state not in self._of_lexer_state:
            spans = self._spanner.of_state(lexer_state)
            words = [*self._spanner.words, (*self._spanner.words[spans.word[EOS]], END)]
            number, targets = spans.word.copy(), spans.target.copy()
            number[EOS], targets[EOS] = len(words) - 1, _ENDED
            lexed = np.flatnonzero(spans.target != DEAD)
            self._of_lexer_state[lexer_state] = (
                lexed,
                self._suffixes(TerminalWords.of(words, number[lexed]), targets[lexed]),
            )
        return self._of_lexer_state[lexer_state]

    def _suffixes(self, words: TerminalWords, targets: NDArray[np.int32]) -> _Suffixes:
        """Return suffixes: equal ones are one object."""
        key = (words.steps, words.place.tobytes(), targets.tobytes())
        return self._interned.setdefault(key, _Suffixes(words, targets))

    def _top(self, stack: int) -> tuple[tuple[int, ...], int]:
        """Return the states on top of a stack that are looked at, all but the last of them, and the stack that has that on top."""
        states = []
        for _ in range(_TOP - 1):
            under = self._parser.below(stack)
            if not under:
                break
            states.append(self._parser.top(stack))
            stack = under[0]
        return tuple(states), stack

    def _of_top(self, stack: int, states: tuple[int, ...], bottom: int, suffixes: _Suffixes) -> tuple[int, _Decided]:
        """Return the base of what lies below, and what the top of a stack decides: the same for all stacks with this top."""
        base, kind = self._completion.offset(bottom)
        key = (suffixes, states, kind)
        if key not in self._decided:
            if len(self._decided) == _KEPT_TOPS:
                del self._decided[next(iter(self._decided))]
            self._decided[key] = self._decide(stack, suffixes, base)
        return base, self._decided[key]

    def _decide(self, stack: int, suffixes: _Suffixes, base: int) -> _Decided:
        # After each beginning of a word: this stack, what is known of all, and where what is known ended, with the rest since then.
        stacks, known = [stack], [self._parser.cut(stack, _TOP)]
        ended: list[tuple[int, int] | None] = [None]
        rest: list[Word] = [()]
        for before, terminal in suffixes.words.steps:
            after, end = self._parser.shift(known[before], terminal), ended[before]
            if after == UNKNOWN:
                after, end = ERROR, self._parser.beyond(known[before], terminal)
            known.append(after)
            stacks.append(ERROR if after == ERROR else self._parser.shift(stacks[before], terminal))
            ended.append(end)
            rest.append((*rest[before], terminal) if end else ())
        place = suffixes.words.place
        distances = self._after(np.array(stacks)[place], suffixes.targets)
        places = np.flatnonzero(distances < UNREACHABLE)
        below = []
        for end in dict.fromkeys(filter(None, ended)):
            left = np.flatnonzero(np.array([each == end for each in ended])[place])
            words = TerminalWords.of(rest, place[left])
            below.append(_Below(*end, left, self._suffixes(words, suffixes.targets[left])))
        return _Decided(places, distances[places] - base, tuple(below))

    def _after(self, configurations: NDArray[np.int64], targets: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the distances after words that lead to these configurations and states of the lexer."""
        found = self._completion.distances(configurations, targets)
        found[(targets == _ENDED) & (configurations != ERROR)] = 0
        return found
