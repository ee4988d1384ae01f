"""The transitions of a machine that reads bytes, by many texts at once: a part of the oracle."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

Word = tuple[int, ...]

FAILED = -1  # Instead of a state: the text cannot be read

_UNKNOWN = -2


class Effects(NamedTuple):
    """The transitions of texts from one state."""

    target: NDArray[np.int64]  # ``int64[N]``: the state after each text, :data:`FAILED` where it cannot be read
    # ``int64[N]``: what is put out on the way, an index into :attr:`Runs.words`; 0 where it cannot be read.
    word: NDArray[np.int64]


class WordTrees(NamedTuple):
    """The readings of texts from one state, whatever was before: the words that they put out as a tree, each prefix once."""

    # ``int64[N]``: the place of the outcome of each text; -1 for texts that cannot be read, which have none.
    of_text: NDArray[np.int64]
    # The node before each node but the first, and the terminal between them; a node comes after the one before it.
    steps: tuple[tuple[int, int], ...]
    # ``int64[K]``: the node of each outcome's word, and the state after it.
    node: NDArray[np.int64]
    state: NDArray[np.int64]

    @classmethod
    def of(cls, effects: Effects, words: Sequence[Word]) -> WordTrees:
        """Return those of the effects of texts on a state."""
        pairs, which = np.unique(np.stack([effects.target, effects.word]), axis=1, return_inverse=True)
        fails = int((pairs[0] == FAILED).sum())  # one or none, and it is the first
        nodes: dict[Word, int] = {(): 0}
        for word in (words[number] for number in pairs[1, fails:].tolist()):
            for end in range(1, len(word) + 1):
                nodes.setdefault(word[:end], len(nodes))
        steps = tuple((nodes[word[:-1]], word[-1]) for word in nodes if word)
        node = np.array([nodes[words[number]] for number in pairs[1, fails:].tolist()], dtype=np.int64)
        return cls(which.reshape(-1) - fails, steps, node, pairs[0, fails:])


@final
class Runs:
    """A deterministic machine over bytes, run on all of some texts side by side, one byte after the other.

    ``step(state, byte)`` gives the state after one more byte and the word that is put out, or ``None``; it is asked once each and
    kept in a table. States are small numbers.
    """

    def __init__(self, texts: Sequence[bytes], step: Callable[[int, int], tuple[int, Word] | None]) -> None:
        self._step = step
        self._bytes = np.frombuffer(b"".join(texts), dtype=np.uint8)
        self._ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        self._starts = np.concatenate([[0], self._ends[:-1]]).astype(np.int64)
        self.words: list[Word] = [()]
        self._trees: dict[int, WordTrees] = {}
        self._number: dict[Word, int] = {(): 0}
        self._joined: dict[tuple[int, int], int] = {}
        self._target = np.full((0, 256), _UNKNOWN, dtype=np.int64)
        self._word = np.zeros((0, 256), dtype=np.int64)

    def of(self, state: int) -> Effects:
        """Return the transitions of the texts from ``state``."""
        targets = np.full(len(self._ends), state, dtype=np.int64)
        words = np.zeros(len(self._ends), dtype=np.int64)
        places = self._starts.copy()
        reading = np.flatnonzero(places < self._ends)
        while len(reading):
            target, word = self._after(targets[reading], self._bytes[places[reading]])
            targets[reading] = target
            puts_out = np.flatnonzero(word)
            if len(puts_out):
                who = reading[puts_out]
                words[who] = self._join(words[who], word[puts_out])
            words[reading[target == FAILED]] = 0
            places[reading] += 1
            reading = reading[(target != FAILED) & (places[reading] < self._ends[reading])]
        return Effects(targets, words)

    def trees(self, state: int) -> WordTrees:
        """Return the readings of the texts from ``state``; kept."""
        if state not in self._trees:
            self._trees[state] = WordTrees.of(self.of(state), self.words)
        return self._trees[state]

    def _after(self, states: NDArray[np.int64], read: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        self._grow(int(states.max()) + 1)
        target = self._target[states, read]
        unknown = target == _UNKNOWN
        if unknown.any():
            for key in np.unique(states[unknown] * 256 + read[unknown]).tolist():
                state, byte = divmod(key, 256)
                after, word = self._step(state, byte) or (FAILED, ())
                self._target[state, byte], self._word[state, byte] = after, self._numbered(word)
            target = self._target[states, read]
        return target, self._word[states, read]

    def _grow(self, size: int) -> None:
        missing = size - len(self._target)
        if missing > 0:
            missing = max(missing, len(self._target))
            self._target = np.concatenate([self._target, np.full((missing, 256), _UNKNOWN, dtype=np.int64)])
            self._word = np.concatenate([self._word, np.zeros((missing, 256), dtype=np.int64)])

    def _join(self, before: NDArray[np.int64], word: NDArray[np.int64]) -> NDArray[np.int64]:
        pairs, which = np.unique(np.stack([before, word]), axis=1, return_inverse=True)
        joined = [self._joining(first, second) for first, second in pairs.T.tolist()]
        return np.array(joined, dtype=np.int64)[which.reshape(-1)]

    def _joining(self, first: int, second: int) -> int:
        if (first, second) not in self._joined:
            self._joined[first, second] = self._numbered(self.words[first] + self.words[second])
        return self._joined[first, second]

    def _numbered(self, word: Word) -> int:
        number = self._number.setdefault(word, len(self.words))
        if number == len(self.words):
            self.words.append(word)
        return number


@final
class Alike:
    """The equivalence of states of a machine under every text (Hopcroft and Karp, 1971).

    ``step`` is as for :class:`Runs`; ``end`` is what the end of a text puts out in a state.
    """

    def __init__(
        self, step: Callable[[int, int], tuple[int, Word] | None], end: Callable[[int], Hashable | None]
    ) -> None:
        self._step, self._end = step, end
        self._first: dict[int, int] = {}

    def are(self, state: int, other: int) -> bool:
        """Return True if two states are equivalent. Once that was found not to be so, no answer counts any more."""
        pending = [(state, other)]
        while pending:
            left, right = map(self._found, pending.pop())
            if left == right:
                continue
            if self._end(left) != self._end(right):
                return False
            self._first[right] = left
            for byte in range(256):
                here, there = self._step(left, byte), self._step(right, byte)
                if here is None or there is None:
                    if here is not there:
                        return False
                    continue
                if here[1] != there[1]:
                    return False
                pending.append((here[0], there[0]))
        return True

    def _found(self, state: int) -> int:
        while state in self._first:
            state = self._first[state]
        return state
