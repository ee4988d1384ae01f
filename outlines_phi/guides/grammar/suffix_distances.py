"""What tokens lead to beside a stack: most of it depends on the top of the stack alone, and is computed once."""

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

_SPLITS = 4096
"""Of how many tops of stacks the split is kept."""

_RECENT = 8
"""How many distances are kept: a mask asks twice, for what is allowed and for the budget beyond which more is not."""


class TerminalWords(NamedTuple):
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
class _Task:
    """What is to be read from a stack.

    Attributes
    ----------
    words
        TerminalWords of terminals; the last terminal of that of the end of the text is END.
    targets
        ``int32[N]``: the state of the lexer after each; DEAD behind the end of the text.
    """

    words: TerminalWords
    targets: NDArray[np.int32]


class _Later(NamedTuple):
    """What is left to read from another stack, that of ``head`` on what lies ``entries`` below the last one that was looked at.

    Attributes
    ----------
    places
        Where the words stood in what was to be read.
    task
        What is left of them.
    """

    entries: int
    head: int
    places: NDArray[np.int64]
    task: _Task


class _Split(NamedTuple):
    """What the top of a stack decides.

    Attributes
    ----------
    places
        The words that lead to the end, whatever lies below.
    distances
        ``int64[N]``: theirs, less the base of what lies below.
    later
        The words that take off all that was looked at.
    """

    places: NDArray[np.int64]
    distances: NDArray[np.int64]
    later: tuple[_Later, ...]


@final
class SuffixDistances:
    """The distances to the end after each class of tokens (Alg. 5 and 6 of Park et al. 2025; grammar-theory.md, section 5.2).

    Beside a state of the lexer and the top entries of a stack most words of terminals are accepted whatever lies below, or by no
    stack at all: to read them takes nothing off the entries that are known. Where they are accepted, the distances are those to the
    end of what is known and then of what lies below. They are computed once for each top and each kind of what lies below.

    The other words at some terminal take off all that is known, and put a nonterminal on what lies there. What is left of all that
    put the same one there is read from one stack, whose top decides most of it in its turn. So a stack that was never met costs a
    few look-ups, one for each top that is taken off.

    A parser that follows several stacks reads all words each time.

    Parameters
    ----------
    spanner, parser, completion
        Those of a guide.
    """

    def __init__(self, spanner: Spanner, parser: Parser, completion: Completion) -> None:
        self._spanner, self._parser, self._completion = spanner, parser, completion
        self._whole: dict[int, tuple[NDArray[np.int64], _Task]] = {}
        self._tasks: dict[tuple[tuple[tuple[int, int], ...], bytes, bytes], _Task] = {}
        self._splits: dict[tuple[_Task, tuple[int, ...], int], _Split] = {}
        self._recent = lru_cache(_RECENT)(self._distances)

    def distances(self, configuration: int, lexeme: int) -> NDArray[np.int64]:
        """Return ``int64[G]``: the distance to the end after each class of tokens, UNREACHABLE where it is dead."""
        return self._recent(configuration, lexeme)

    def _distances(self, configuration: int, lexeme: int) -> NDArray[np.int64]:
        found = np.full(self._spanner.of_state(lexeme).partition.size, UNREACHABLE, dtype=np.int64)
        live, whole = self._all_of(lexeme)
        if self._parser.is_lone:
            pending = [(configuration, live, whole)]
            while pending:
                stack, places, task = pending.pop()
                states, bottom = self._top(stack)
                base, split = self._split(stack, states, bottom, task)
                if len(split.places):
                    found[places[split.places]] = base + split.distances
                for later in split.later:
                    (left,) = self._parser.descend(bottom, later.entries + 1)
                    pending.append((self._parser.goto(left, later.head), places[later.places], later.task))
        else:
            found[live] = self._after(whole.words.read(self._parser, configuration), whole.targets)
        found.flags.writeable = False
        return found

    def _all_of(self, lexeme: int) -> tuple[NDArray[np.int64], _Task]:
        """Return the classes of a state of the lexer that are not dead there, and what is to be read of them."""
        if lexeme not in self._whole:
            spans = self._spanner.of_state(lexeme)
            words = [*self._spanner.words, (*self._spanner.words[spans.word[EOS]], END)]
            number, targets = spans.word.copy(), spans.target.copy()
            number[EOS], targets[EOS] = len(words) - 1, DEAD
            live = np.flatnonzero(spans.target != DEAD)
            self._whole[lexeme] = live, self._task(TerminalWords.of(words, number[live]), targets[live])
        return self._whole[lexeme]

    def _task(self, words: TerminalWords, targets: NDArray[np.int32]) -> _Task:
        """Return a task: equal ones are one."""
        key = (words.steps, words.place.tobytes(), targets.tobytes())
        return self._tasks.setdefault(key, _Task(words, targets))

    def _top(self, stack: int) -> tuple[tuple[int, ...], int]:
        """Return the states on top of a stack that are looked at, all but the last of them, and the stack that has that on top."""
        states = []
        for _ in range(_TOP - 1):
            below = self._parser.below(stack)
            if not below:
                break
            states.append(self._parser.top(stack))
            stack = below[0]
        return tuple(states), stack

    def _split(self, stack: int, states: tuple[int, ...], bottom: int, task: _Task) -> tuple[int, _Split]:
        """Return the base of what lies below, and what the top of a stack decides: the same for all stacks with this top."""
        base, kind = self._completion.footing(bottom)
        key = (task, states, kind)
        if key not in self._splits:
            if len(self._splits) == _SPLITS:
                del self._splits[next(iter(self._splits))]
            self._splits[key] = self._new_split(stack, task, base)
        return base, self._splits[key]

    def _new_split(self, stack: int, task: _Task, base: int) -> _Split:
        # After each beginning of a word: this stack, what is known of all, and where what is known ended, with the rest since then.
        whole, known = [stack], [self._parser.cut(stack, _TOP)]
        ended: list[tuple[int, int] | None] = [None]
        rest: list[Word] = [()]
        for before, terminal in task.words.steps:
            after, end = self._parser.shift(known[before], terminal), ended[before]
            if after == UNKNOWN:
                after, end = ERROR, self._parser.beyond(known[before], terminal)
            known.append(after)
            whole.append(ERROR if after == ERROR else self._parser.shift(whole[before], terminal))
            ended.append(end)
            rest.append((*rest[before], terminal) if end else ())
        place = task.words.place
        distances = self._after(np.array(whole)[place], task.targets)
        places = np.flatnonzero(distances < UNREACHABLE)
        later = []
        for end in dict.fromkeys(filter(None, ended)):
            left = np.flatnonzero(np.array([each == end for each in ended])[place])
            later.append(_Later(*end, left, self._task(TerminalWords.of(rest, place[left]), task.targets[left])))
        return _Split(places, distances[places] - base, tuple(later))

    def _after(self, configurations: NDArray[np.int64], targets: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the distances after words that lead to these configurations and states of the lexer."""
        found = self._completion.distances(configurations, targets)
        found[(targets == DEAD) & (configurations != ERROR)] = 0
        return found
