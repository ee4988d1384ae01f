"""The reference of all guides: a machine and a vocabulary, multiplied as the definition says. It is slow and exact."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..automata.byte_machine import ByteMachine, Position, Symbol
from ..guides.guide import DEAD, DONE, UNREACHABLE, Guide, Row
from ..vocabulary.classes import EOS, NEVER, Partition
from ..vocabulary.trie import Trie
from ..vocabulary.vocabulary import Vocabulary

MOST_STATES = 100_000
"""The most states in which an end is looked for."""


@final
class ReferenceGuide(Guide):
    """The token sequences whose bytes a machine allows, by a walk of the trie that steps each distinct place and byte once.

    ``min_tokens`` is the fewest tokens, breadth first; AssertionError where :data:`MOST_STATES` states do not tell. An end costs a
    token, but in an ``open`` guide.
    """

    def __init__(self, machine: ByteMachine[Any], vocabulary: Vocabulary, *, open: bool = False) -> None:
        self.machine, self.vocabulary, self.open = machine, vocabulary, open
        self._trie = Trie.of(vocabulary)
        self._places: list[Any] = [None, machine.ended]
        self._number: dict[Any, int] = {None: DEAD, machine.ended: DONE}
        self._steps: dict[int, tuple[int, bool]] = {}
        self._walks: dict[int, tuple[NDArray[np.int64], NDArray[np.bool_]]] = {}
        self._fewest: dict[int, int] = {DEAD: UNREACHABLE, DONE: 0}
        self.start = self._state(machine.start)

    def row(self, state: int) -> Row:
        targets = self._walk(state)[0]
        states, which = np.unique(targets, return_inverse=True)
        live = [target if self.min_tokens(target) < UNREACHABLE else DEAD for target in states.tolist()]
        class_of: NDArray[np.int32] = (which.reshape(-1) + EOS + 1).astype(np.int32)
        class_of[[not token for token in self.vocabulary.tokens]] = NEVER
        class_of[self.vocabulary.eos_ids[0]] = EOS
        end = targets[self.vocabulary.eos_ids[0]]
        return Row(Partition(class_of, EOS + 1 + len(live)), np.array([DEAD, end, *live]))

    def min_tokens(self, state: int) -> int:
        if state not in self._fewest:
            self._fewest[state] = self._search(state)
        return self._fewest[state]

    def begins_block(self, state: int, tokens: NDArray[np.integer]) -> NDArray[np.bool_]:
        row = self.row(state)
        targets = row.targets[row.partition.class_of[tokens]]
        before, after = self._position(state), [self._position(target) for target in targets.tolist()]
        stays = np.array([one.inside or one.block > before.block for one in after])
        return self._walk(state)[1][tokens] & stays & (targets > DONE)

    def between_blocks(self, state: int) -> bool:
        return self._position(state).between

    def describe(self, state: int) -> str:
        return self.machine.describe(self._places[state]) if state > DONE else ("dead", "done")[state]

    def _position(self, state: int) -> Position:
        return self.machine.position(self._places[state]) if state > DONE else Position()

    def _state(self, place: Any) -> int:
        number = self._number.setdefault(place, len(self._places))
        if number == len(self._places):
            self._places.append(place)
        return number

    def _step(self, key: int) -> tuple[int, bool]:
        """Return the state after a byte, and whether that comes to the next block; both are one number, ``256 * state + byte``."""
        if key not in self._steps:
            state, byte = divmod(key, 256)
            target = self._state(self.machine.step(self._places[state], byte)) if state > DONE else DEAD
            self._steps[key] = target, self._position(target).block > self._position(state).block
        return self._steps[key]

    def _walk(self, state: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return where each token leads, dead ends not told, and which tokens come to the next block on their way."""
        if state not in self._walks:
            trie, at = self._trie, np.full(len(self._trie), state)
            begun = np.zeros(len(trie), dtype=np.bool_)
            for low, high in pairwise(trie.levels[1:].tolist()):
                parents = trie.parent[low:high]
                keys, which = np.unique(at[parents] * 256 + trie.byte[low:high], return_inverse=True)
                targets, begins = np.array(list(map(self._step, keys.tolist()))).T
                at[low:high], begun[low:high] = targets[which], begun[parents] | begins[which].astype(np.bool_)
            at[0], begun[0] = DEAD, False
            targets, eos = at[trie.node_of], self.vocabulary.eos_ids[0]
            ended = self.machine.step_symbol(self._places[state], Symbol.END) if state > DONE else None
            targets[eos] = self._number[ended]
            self._walks[state] = targets, begun[trie.node_of]
        return self._walks[state]

    def _search(self, state: int) -> int:
        level, seen, tokens = {state}, {state}, 0
        while level:
            found = set[int]().union(*(self._walk(one)[0].tolist() for one in level))
            tokens += 1
            if DONE in found:
                return tokens - self.open
            level = found - seen - {DEAD}
            seen |= level
            assert len(seen) < MOST_STATES, f"no end was found from here: {self.describe(state)}"
        return UNREACHABLE
