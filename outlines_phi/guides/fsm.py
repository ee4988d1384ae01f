"""Finite guides: states and vocabulary classes, with the transitions as one sorted list of edges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ..automaton import ByteAutomaton
from ..errors import EmptyLanguageError
from ..lift import FIRST, lift
from ..partition import EOS, Partition
from ..vocabulary import Vocabulary
from .guide import DEAD, DONE, UNREACHABLE, Guide, Row

class Edges(NamedTuple):
    source: NDArray[np.int32]
    label: NDArray[np.int32]
    target: NDArray[np.int32]


@final
@dataclass(frozen=True, eq=False)
class FSMGuide(Guide):
    vocabulary: Vocabulary
    partition: Partition
    edges: Edges
    start: int
    states: int

    @classmethod
    def from_automaton(cls, automaton: ByteAutomaton, vocabulary: Vocabulary) -> FSMGuide:
        """Return the guide of the token sequences whose bytes ``automaton`` accepts, end of sequence last."""
        partition, moves = lift(automaton, vocabulary)
        final = np.flatnonzero(automaton.accepting).astype(np.int32) + 1
        source = np.concatenate([moves.source + 1, final])
        label = np.concatenate([np.repeat(np.arange(FIRST, FIRST+len(moves), dtype=np.int32), np.diff(moves.offsets)), np.full(len(final), EOS, np.int32)])
        target = np.concatenate([moves.target + 1, np.full(len(final), DONE, np.int32)])
        order = np.argsort(source, kind="stable")
        return cls(vocabulary, partition, Edges(source[order], label[order], target[order]), automaton.start + 1 if automaton.start else DEAD, len(automaton)+1)

    @cached_property
    def targets(self):
        out = np.zeros((self.states, self.partition.size), np.int32)
        out[self.edges.source, self.edges.label] = self.edges.target
        return out

    @cached_property
    def distances(self) -> NDArray[np.int32]:
        distance = np.full(self.states, UNREACHABLE, dtype=np.int32)
        distance[DONE] = 0
        step = 0
        while True:
            near = np.zeros(self.states, bool)
            near[self.edges.source[distance[self.edges.target] == step]] = True
            near &= distance == UNREACHABLE
            if not near.any():
                return distance
            step += 1
            distance[near] = step

    def row(self, state: int) -> Row:
        return Row(self.partition, self.targets[state])

    def min_tokens(self, state: int) -> int:
        return int(self.distances[state])

    def describe(self, state: int) -> str:
        return {DEAD: "dead", DONE: "done"}.get(state, f"state {state}, {self.min_tokens(state)} tokens to go")
