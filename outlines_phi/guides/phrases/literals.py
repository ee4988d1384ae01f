"""The matcher of literal phrases, byte for byte: a table of Aho and Corasick and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from ...automata.aho_corasick import AhoCorasick
from ...automata.automaton import ByteAutomaton
from .matcher import PhraseMatcher


@final
class LiteralMatcher(PhraseMatcher):
    """Occurrences of byte strings, exactly as they are written; a state is a node of :class:`AhoCorasick`.

    Parameters
    ----------
    literals
        The phrases, all different and none of them empty.
    names
        How to call each in a message.
    """

    def __init__(self, literals: Sequence[bytes], names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.longest = max(map(len, literals))
        self._words = AhoCorasick.build(literals, 256)
        self.states = len(self._words)
        self._pending = self._words.depth[self._words.open]
        self.byte_class = self._words.symbol_class.astype(np.uint8)

    def step(self, states: NDArray[np.integer], bytes: NDArray[np.integer]) -> NDArray[np.int32]:
        return self._words.after[states, self.byte_class[bytes]]

    def read(self, state: int, text: bytes) -> int:
        after = self._words.after
        for column in self.byte_class[np.frombuffer(text, dtype=np.uint8)].tolist():
            state = after.item(state, column)
        return state

    def matches(self, states: NDArray[np.integer]) -> NDArray[np.bool_]:
        return self._words.match[states] > 0

    def completes_at_end(self, states: NDArray[np.integer]) -> NDArray[np.bool_]:
        return np.zeros(np.shape(states), dtype=bool)

    def pending(self, states: NDArray[np.integer]) -> NDArray[np.int32]:
        return self._pending[states]

    def completed(self, state: int) -> tuple[int, ...]:
        return tuple(sorted(self._words.words(state)))

    def completed_at_end(self, state: int) -> tuple[int, ...]:
        return ()

    def futures(self, states: NDArray[np.integer]) -> NDArray[np.int32]:
        # A phrase that begins nothing longer goes on as its longest end that does.
        return self._words.open[states]

    def automaton(self, limit: int) -> tuple[ByteAutomaton, NDArray[np.int32]] | None:
        inner = np.flatnonzero(self._words.is_inner)
        if len(inner) > limit:
            return None
        number = np.zeros(len(self._words), dtype=np.int32)
        number[inner] = np.arange(len(inner))
        after = self._words.after[inner]
        targets = np.where(self.matches(after), 0, number[self._words.open[after]] + 1)
        nowhere = np.zeros((1, targets.shape[1]), dtype=np.int32)
        accepting = np.arange(len(inner) + 1) > 0
        return (
            ByteAutomaton(
                np.concatenate([nowhere, targets]).astype(np.int32),
                self.byte_class,
                int(number[self.start]) + 1,
                accepting,
            ),
            number[self._words.open] + 1,
        )
