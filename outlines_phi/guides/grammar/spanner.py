"""A lexer composed with the tokens of a vocabulary: where each token leads a state, and which terminals it completes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...automata.automaton import DEAD
from ...automata.lift import FIRST, Compositions
from ...vocabulary.trie import Trie
from ...vocabulary.vocabulary import EOS, NEVER, Partition, Vocabulary
from .lexer import NOTHING, START, Lexer, Word

OWN = -2  # In a word, the terminal of which the pending bytes were a lexeme before the text

_UNKNOWN = -1


@final
class Emissions:
    """Pairs (state of a lexer, word emitted since the text began), each once, and what a byte makes of them.

    Number 0 is dead; the numbers up to ``sources`` are the states before the text, those with equal steps as one: the terminal that
    a state itself completes is written :data:`OWN`, so that the states in which a keyword or an identifier is complete are the
    same. The others come up as the text is read. Ignored terminals are left out of words.
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
        self.source_of = np.concatenate([[DEAD], group.reshape(-1) + 1]).astype(np.int32)
        self.words: list[Word] = [(), (OWN,)]
        self._word_number = {word: number for number, word in enumerate(self.words)}
        self._longer: dict[tuple[int, int], int] = {}
        self._pairs = np.zeros((2, self.sources + 1), dtype=np.int32)  # the state and the word of each number
        self._pairs[0, 1:] = first + 1
        self._masked = masked
        self._number: dict[tuple[int, int], int] = {}
        self._after = np.full((self.sources + 1, lexer.targets.shape[1]), _UNKNOWN, dtype=np.int32)
        self._after[DEAD] = DEAD
        self._used = self.sources + 1

    def move(self, column: NDArray[np.int64], number: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the successor of each number by the byte class beside it."""
        after = self._after[number, column]
        unknown = np.flatnonzero(after == _UNKNOWN)
        if len(unknown):
            occurs = np.zeros(self._after.size, dtype=bool)
            occurs[number[unknown].astype(np.int64) * self._after.shape[1] + column[unknown]] = True
            self._find(*np.divmod(np.flatnonzero(occurs), self._after.shape[1]))
            after = self._after[number, column]
        return after

    def settle(self) -> None:
        """Forget the transitions of numbers; their meanings stay.

        ``source_of``, ``int32[L]``, is the number of each state of the lexer before the text; ``state`` and ``word``, ``int32[N]``,
        what each number stands for, ``word`` an index into ``words``; ``length``, ``int64[W]``, how many terminals each word has,
        and ``begins_with_own``, ``bool[W]``, whether the first is that of the state before the text.
        """
        self.state, self.word = self._pairs[:, : self._used].copy()
        self.length = np.array([len(word) for word in self.words])
        self.begins_with_own = np.array([word[:1] == (OWN,) for word in self.words])
        del self._lexer, self._word_number, self._longer, self._pairs, self._masked, self._number, self._after

    def _find(self, number: NDArray[np.int64], column: NDArray[np.int64]) -> None:
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
            longer = self.words[word] + counted
            number = self._word_number.setdefault(longer, len(self.words))
            if number == len(self.words):
                self.words.append(longer)
            self._longer[key] = number
        return self._longer[key]

    def _pair(self, word: int, state: int) -> int:
        number = self._number.setdefault((word, state), self._used)
        if number == self._used:
            if number == len(self._after):
                self._after = np.concatenate([self._after, np.full_like(self._after, _UNKNOWN)])
                self._pairs = np.concatenate([self._pairs, np.zeros_like(self._pairs)], axis=1)
            self._pairs[:, number] = state, word
            self._used += 1
        return number


_FORGOTTEN = ("_of_state", "_of_source", "_partitions")
"""Left out by pickling: classes of states, which are as large as the vocabulary and quickly made again."""


class Edges(NamedTuple):
    """Steps of a lexer on single tokens, each once; ``word`` is what is emitted, an index into :attr:`Spanner.words`."""

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    word: NDArray[np.int32]


@final
@dataclass(frozen=True, eq=False)
class Spans:
    """The effect of tokens on one state of a lexer.

    Tokens are in one class of ``partition`` if and only if they lead to the same state and emit the same terminals, ignored ones
    left out; NEVER are those that lead nowhere. ``target``, ``int32[G]``, is the state that each class leads to, 0 for none, that
    of EOS START where the text may end; ``word``, ``int32[G]``, the word emitted, an index into :attr:`Spanner.words`.
    """

    partition: Partition
    target: NDArray[np.int32]
    word: NDArray[np.int32]


class _Classes(NamedTuple):
    """The vocabulary classes of states that differ at most by their own terminal, which is taken for one apart.

    ``of_action``, ``int32[U + 1]``, is the class of each distinct thing that tokens do, the last for ids without bytes;
    ``extended``, ``int32[G - FIRST]``, is where classes lead and what they emit, as :class:`Emissions` numbers it.
    """

    of_action: NDArray[np.int32]
    extended: NDArray[np.int32]


@final
class Spanner:
    """A vocabulary's tokens composed with a lexer (grammar-theory.md, section 4): the realizable words of terminals, their tokens.

    One walk of the byte trie carries, for each node, what its bytes do to all states at once: the state and the word emitted, as
    one number. States that differ only by the terminal that they complete, as most keywords and operators do, are walked as one.
    What it has of states grows as they are asked for, by one thread at a time.
    """

    def __init__(self, lexer: Lexer, vocabulary: Vocabulary) -> None:
        self.lexer, self.vocabulary = lexer, vocabulary
        self.words: list[Word] = [()]
        """The words emitted, ignored terminals left out; it grows as states are asked for."""
        self._number: dict[Word, int] = {(): 0}
        emissions = Emissions(lexer)
        compositions = Compositions(emissions.sources + 1, lexer.targets.shape[1], emissions.move)
        trie = Trie.of(vocabulary)
        numbers = compositions.walk(trie, lexer.byte_class)[trie.node_of]
        # Only what whole tokens do is kept, in the order of their first ids.
        spelled = np.flatnonzero(numbers)
        used, first, action = np.unique(numbers[spelled], return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        self._action = np.full(len(vocabulary), len(used), dtype=np.int32)
        self._action[spelled] = place[action.reshape(-1)]
        known = compositions.known.take(used[order] - 1)
        by_source = np.argsort(known.source.astype(np.min_scalar_type(emissions.sources)), kind="stable")
        actions = np.repeat(np.arange(len(known), dtype=np.int32), known.counts)
        self._actions, self._extended = actions[by_source], known.target[by_source]
        counts = np.bincount(known.source, minlength=emissions.sources + 1)
        self._offsets = np.concatenate([[0], np.cumsum(counts)])
        emissions.settle()
        self._emissions = emissions
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {name: part for name, part in vars(self).items() if name not in _FORGOTTEN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def __len__(self) -> int:
        """The number of distinct things that tokens do to the states."""
        return int(self._action.max(initial=0))

    def of_state(self, state: int) -> Spans:
        """Return the spans of the tokens from ``state``."""
        if state not in self._of_state:
            self._of_state[state] = self._spans(state)
        return self._of_state[state]

    def edges(self) -> Edges:
        """Return the steps that emit at most one terminal, and one more than is held back where some are."""
        found = [self._short_edges(state) for state in range(START, len(self.lexer))]
        return Edges(*(np.concatenate(part).astype(np.int32) for part in zip(*found, strict=True)))

    def _forget(self) -> None:
        self._of_state: dict[int, Spans] = {}
        self._of_source: dict[int, _Classes] = {}
        self._partitions: dict[tuple[int, int], Partition] = {}

    def _spans(self, state: int) -> Spans:
        source, label = int(self._emissions.source_of[state]), int(self.lexer.label[state])
        classes = self._classes(source)
        target, word = self._emitted(state, classes.extended)
        # A token may complete the lexeme of the state at once, or a longer one of the same terminal.
        _, first, which = np.unique(np.stack([target, word]), axis=1, return_index=True, return_inverse=True)
        merges = len(first) < len(target)
        # States whose tokens fall into the same classes share them.
        key = (source, label if merges else NOTHING)
        if key not in self._partitions:
            class_of = _joined(first, which.reshape(-1))[classes.of_action][self._action]
            class_of[self.vocabulary.eos_ids[0]] = EOS
            self._partitions[key] = Partition(class_of, FIRST + len(first))
        first.sort()
        target, word = (np.concatenate([np.zeros(FIRST, dtype=np.int32), part[first]]) for part in (target, word))
        if self.lexer.can_end[state]:
            target[EOS] = START
            word[EOS] = self._word(self.lexer.words[self.lexer.ends[state]])
        return Spans(self._partitions[key], target, word)

    def _classes(self, source: int) -> _Classes:
        if source not in self._of_source:
            here = slice(*self._offsets[source : source + 2])
            # Actions are in the order of their first tokens, so that classes are.
            extended, first, which = np.unique(self._extended[here], return_index=True, return_inverse=True)
            order = np.argsort(first)
            place = np.empty_like(order)
            place[order] = np.arange(FIRST, FIRST + len(order))
            of_action = np.full(len(self) + 1, NEVER, dtype=np.int32)
            of_action[self._actions[here]] = place[which.reshape(-1)]
            self._of_source[source] = _Classes(of_action, extended[order])
        return self._of_source[source]

    def _emitted(self, state: int, extended: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the states and the words that ``extended`` stand for behind ``state``."""
        target, raw = self._emissions.state[extended], self._emissions.word[extended]
        used, which = np.unique(raw, return_inverse=True)
        words = []
        for word in (self._emissions.words[number] for number in used.tolist()):
            words.append(self._word((int(self.lexer.label[state]), *word[1:]) if word[:1] == (OWN,) else word))
        return target, np.array(words, dtype=np.int32)[which.reshape(-1)]

    def _short_edges(self, state: int) -> tuple[NDArray[np.integer], ...]:
        source = int(self._emissions.source_of[state])
        extended = np.unique(self._extended[slice(*self._offsets[source : source + 2])])
        raw = self._emissions.word[extended]
        most = len(self.lexer.words[self.lexer.held[state]]) + 1
        uncounted = self.lexer.label[state] != NOTHING and self.lexer.terminals[self.lexer.label[state]].ignored
        short = self._emissions.length[raw] - (self._emissions.begins_with_own[raw] & uncounted) <= most
        target, word = np.unique(np.stack(self._emitted(state, extended[short])), axis=1)
        return np.full(len(target), state), target, word

    def _word(self, word: Word) -> int:
        counted = self.lexer.counted(word)
        number = self._number.setdefault(counted, len(self.words))
        if number == len(self.words):
            self.words.append(counted)
        return number


def _joined(first: NDArray[np.int64], which: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the new number of each class: ``FIRST + i`` joins group ``which[i]``, whose first one is ``first[which[i]]``."""
    place = np.empty(len(first), dtype=np.int32)
    place[np.argsort(first)] = np.arange(FIRST, FIRST + len(first))
    return np.concatenate([np.array([NEVER, EOS], dtype=np.int32), place[which]])
