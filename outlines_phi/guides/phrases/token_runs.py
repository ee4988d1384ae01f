"""Where tokens lead a matcher of phrases: one walk of the vocabulary, and from other states only what differs from it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...vocabulary.trie import Trie
from ...vocabulary.vocabulary import Vocabulary
from .matcher import PhraseMatcher

NOWHERE = -1
"""Where a token leads that completes a phrase, or that writes nothing."""


class Difference(NamedTuple):
    """Tokens that lead elsewhere than from the start of a text, and where each leads, or :data:`NOWHERE`."""

    tokens: NDArray[np.int32]
    states: NDArray[np.int32]


@final
class TokenRuns:
    """The states of a matcher after each token of a vocabulary, as long as no phrase is completed on the way.

    The run of a matcher from one state and its run from the start of a text become one as soon as nothing depends on the bytes
    before, most often after the first byte. So the run from the start is kept for the whole vocabulary, and another state costs a
    walk down its trie that follows only the branches where the two still differ (theory.md, section 6.1).

    Parameters
    ----------
    matcher
        What is searched for.
    vocabulary
        The tokens.
    """

    def __init__(self, matcher: PhraseMatcher, vocabulary: Vocabulary) -> None:
        self.matcher, self.vocabulary = matcher, vocabulary
        self._trie = Trie.of(vocabulary)
        self._at_node = np.full(len(self._trie), NOWHERE, dtype=np.int32)
        self._at_node[0] = matcher.start
        for low, high in pairwise(self._trie.levels[1:].tolist()):
            states = self._at_node[self._trie.parent[low:high]]
            self._at_node[low:high] = self._step(states, self._trie.byte[low:high])

    @property
    def from_start(self) -> NDArray[np.int32]:
        """``int32[V]``: the state after each token at the start of a text, or :data:`NOWHERE`."""
        node_of = self._trie.node_of
        return np.where(node_of > 0, self._at_node[node_of], NOWHERE).astype(np.int32)

    def difference(self, state: int) -> Difference:
        """Return the tokens whose run from ``state`` does not end as it does from the start of a text."""
        nodes, counts = self._trie.below(np.zeros(1, dtype=np.int64))
        before = np.repeat(np.int32(state), counts)
        found_nodes, found_states = [], []
        while len(nodes):
            states = self._step(before, self._trie.byte[nodes])
            differ = states != self._at_node[nodes]
            nodes, states = nodes[differ], states[differ]
            found_nodes.append(nodes)
            found_states.append(states)
            nodes, counts = self._trie.below(nodes)
            before = np.repeat(states, counts)
        if not found_nodes:
            return Difference(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32))
        tokens, counts = self._trie.ending(np.concatenate(found_nodes))
        return Difference(tokens, np.repeat(np.concatenate(found_states), counts))

    def targets(self, state: int) -> Iterator[NDArray[np.int32]]:
        """Yield the states that tokens lead to from ``state``, those of shorter tokens first."""
        nodes, states = np.zeros(1, dtype=np.int64), np.array([state], dtype=np.int32)
        while len(nodes):
            nodes, counts = self._trie.below(nodes)
            states = self._step(np.repeat(states, counts), self._trie.byte[nodes])
            nodes, states = nodes[states != NOWHERE], states[states != NOWHERE]
            yield np.unique(states[self._trie.is_end[nodes]])

    def after(self, state: int, token: int) -> int:
        """Return the state after ``token``, or :data:`NOWHERE`."""
        states = []
        for byte in self.vocabulary.tokens[token]:
            state = self.matcher.read(state, bytes((byte,)))
            states.append(state)
        return state if states and not self.matcher.matches(np.array(states)).any() else NOWHERE

    def after_text(self, states: NDArray[np.integer], text: bytes) -> NDArray[np.int32]:
        """Return the state after ``text``, read in each of ``states``, or :data:`NOWHERE`."""
        after = np.asarray(states, dtype=np.int32)
        for byte in text:
            after = self._step(after, np.full(len(after), byte, dtype=np.uint8))
        return after

    def first_completed(self, state: int, tokens: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the phrase that each of ``tokens`` is the first to complete in ``state``, -1 for one that completes none."""
        spelled = [self.vocabulary.tokens[token] for token in tokens.tolist()]
        lengths = np.array([len(token) for token in spelled], dtype=np.int64)
        text = np.frombuffer(b"".join(spelled), dtype=np.uint8)
        begins = np.cumsum(lengths) - lengths
        found = np.full(len(spelled), -1, dtype=np.int64)
        states = np.full(len(spelled), state, dtype=np.int32)
        for place in range(int(lengths.max(initial=0))):
            reading = np.flatnonzero((lengths > place) & (found < 0))
            states[reading] = self.matcher.step(states[reading], text[begins[reading] + place])
            complete = reading[self.matcher.matches(states[reading])]
            distinct, which = np.unique(states[complete], return_inverse=True)
            found[complete] = np.array([self.matcher.completed(s)[0] for s in distinct.tolist()], dtype=np.int64)[which]
        return found

    def _step(self, states: NDArray[np.int32], read: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the states after one byte; :data:`NOWHERE` where a phrase is complete or the state is nowhere."""
        reading = states != NOWHERE
        after = np.full(len(states), NOWHERE, dtype=np.int32)
        stepped = self.matcher.step(states[reading], read[reading])
        after[reading] = np.where(self.matcher.matches(stepped), NOWHERE, stepped)
        return after
