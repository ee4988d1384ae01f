"""The interface of phrase matchers, deterministic machines over bytes, and the one of literal phrases (Aho and Corasick 1975)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from ...automata.aho_corasick import AhoCorasick


class PhraseMatcher(ABC):
    """A deterministic machine that reads a text byte by byte and never stops, not at a match either.

    A state is an ``int`` and stands for all texts that lead to it. Methods that take ``states`` take an array of any shape and
    return one of the same shape. Phrases have ``names`` for messages; at most ``longest`` bytes at the end of a text decide its
    state, so no more can be pending; bytes of one ``byte_class``, ``uint8[256]``, act alike in every state.
    """

    names: tuple[str, ...]
    longest: int
    byte_class: NDArray[np.uint8]
    start: int = 0  # The state at the beginning of a text

    states: int | None = None
    """How many states there are, where they have the same numbers for the same phrases; ``None`` where they come up one by one."""

    @abstractmethod
    def step(self, states: NDArray[np.integer], bytes: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the state after each of ``bytes``, read in the state beside it."""

    @abstractmethod
    def read(self, state: int, text: bytes) -> int:
        """Return the state after all of ``text``, read in ``state``."""

    @abstractmethod
    def matches(self, states: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return where the last byte completed a phrase."""

    @abstractmethod
    def completes_at_end(self, states: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return where a phrase only waits for the end of the text, or for a character that lets it count."""

    @abstractmethod
    def pending(self, states: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return how many bytes the longest end of the text has that may be the beginning of an occurrence; 0 for none.

        An occurrence that waits for the next character or for the end of the text is pending, one that is complete is not.
        """

    @abstractmethod
    def completed(self, state: int) -> tuple[int, ...]:
        """Return which phrases the last byte completed, as ascending indices into ``names``."""

    @abstractmethod
    def completed_at_end(self, state: int) -> tuple[int, ...]:
        """Return which phrases the end of the text would complete, as ascending indices into ``names``."""

    @abstractmethod
    def futures(self, states: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return a number for each state, equal only for states after which the same texts complete the same phrases."""

    def after_prompt(self, state: int) -> int:
        """Return ``state`` as the beginning of a text: the text does not complete a word that waits at the end of the prompt.

        With whole words, ``cat`` at the end of a prompt is an occurrence of the prompt's own; what may still become a longer phrase
        goes on.
        """
        return state

    def advance(self, state: int, text: bytes) -> int:
        """Return the state after ``text``; only as much of it is read as matters."""
        if len(text) > self.longest:
            return self.read(self.start, text[-self.longest :])
        return self.read(state, text)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.names)} phrases)"


@final
class LiteralMatcher(PhraseMatcher):
    """Occurrences of byte strings, all different and none empty, as they are written; a state is a node of :class:`AhoCorasick`."""

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
