"""The reference of all guides: a machine and a vocabulary, multiplied as the definition says. It is slow and exact."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..automata.byte_machine import ByteMachine
from ..guides.guide import DEAD, DONE, UNREACHABLE, Guide, Row
from ..vocabulary.classes import EOS, NEVER, Partition
from ..vocabulary.trie import Trie
from ..vocabulary.vocabulary import Vocabulary

MOST_STATES = 100_000
"""The most states in which an end is looked for."""


@final
class ReferenceGuide(Guide):
    """The token sequences whose bytes a machine allows, by a walk of the trie that steps each distinct place and byte once.

    ``min_tokens`` is the fewest tokens, breadth first; ``AssertionError`` where :data:`MOST_STATES` states do not tell. An end
    costs a token, but in an ``open`` guide.
    """

    def __init__(self, machine: ByteMachine[Any], vocabulary: Vocabulary, *, open: bool = False) -> None:
        self.machine, self.vocabulary, self.open = machine, vocabulary, open
        self._trie = Trie.of(vocabulary)
        self._places: list[Any] = [None, None]
        self._number: dict[Any, int] = {None: DEAD}
        self._steps: dict[int, int] = {}
        self._targets: dict[int, NDArray[np.int64]] = {}
        self._fewest: dict[int, int] = {DEAD: UNREACHABLE, DONE: 0}
        self.start = self._state(machine.start)

    def row(self, state: int) -> Row:
        states, which = np.unique(self._walk(state), return_inverse=True)
        live = [target if self.min_tokens(target) < UNREACHABLE else DEAD for target in states.tolist()]
        class_of: NDArray[np.int32] = (which.reshape(-1) + EOS + 1).astype(np.int32)
        end = live[which.reshape(-1)[self.vocabulary.eos_ids[0]]]
        class_of[[not token for token in self.vocabulary.tokens]] = NEVER
        class_of[self.vocabulary.eos_ids[0]] = EOS
        return Row(Partition(class_of, EOS + 1 + len(live)), np.array([DEAD, end, *live]))

    def min_tokens(self, state: int) -> int:
        if state not in self._fewest:
            self._fewest[state] = self._search(state)
        return self._fewest[state]

    def describe(self, state: int) -> str:
        return self.machine.describe(self._places[state]) if state > DONE else ("dead", "done")[state]

    def _state(self, place: Any) -> int:
        number = self._number.setdefault(place, len(self._places))
        self._places += [place] * (number == len(self._places))
        return number

    def _step(self, key: int) -> int:
        """Return the state after a byte; both are one number, ``256 * state + byte``."""
        if key not in self._steps:
            state, byte = divmod(key, 256)
            self._steps[key] = self._state(self.machine.step(self._places[state], byte)) if state > DONE else DEAD
        return self._steps[key]

    def _walk(self, state: int) -> NDArray[np.int64]:
        """Return the target of each token, dead ends not told."""
        if state not in self._targets:
            trie, at = self._trie, np.full(len(self._trie), state)
            for low, high in pairwise(trie.levels[1:].tolist()):
                keys = at[trie.parent[low:high]] * 256 + trie.byte[low:high]
                distinct, which = np.unique(keys, return_inverse=True)
                at[low:high] = np.array(list(map(self._step, distinct.tolist())))[which]
            at[0] = DEAD
            targets = self._targets[state] = at[trie.node_of]
            ended = state > DONE and self.machine.ends(self._places[state])
            targets[self.vocabulary.eos_ids[0]] = DONE if ended else DEAD
        return self._targets[state]

    def _search(self, state: int) -> int:
        level, seen, tokens = {state}, {state}, 0
        while level:
            found = set[int]().union(*(self._walk(one).tolist() for one in level))
            tokens += 1
            if DONE in found:
                return tokens - self.open
            level = found - seen - {DEAD}
            seen |= level
            assert len(seen) < MOST_STATES, f"no end was found from here: {self.describe(state)}"
        return UNREACHABLE
