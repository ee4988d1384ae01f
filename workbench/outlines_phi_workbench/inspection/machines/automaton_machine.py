"""The machine of a regular expression: its byte automaton, drawn in blocks of states."""

from __future__ import annotations

from typing import final

import numpy as np

from outlines_phi.automata.automaton import DEAD, ByteAutomaton

from .automaton_graph import drawn_states, expected_of, successors
from .byte_names import byte_name
from .machine_graph import GraphPart, MachineGraph, PartStates, merged, reached
from .reading_machine import Fault, ReadingMachine, Spot

BLOCK = 80  # States of a block, which is what is drawn at once


@final
class AutomatonMachine(ReadingMachine):
    """A byte automaton; a place is a state.

    Its parts are blocks of :data:`BLOCK` states, in the order of a breadth-first search from the start: those of a block are about
    as far from the start.
    """

    kind = "finite automaton"

    def __init__(self, automaton: ByteAutomaton) -> None:
        self.automaton, self.start = automaton, automaton.start
        order, _ = reached(automaton.start, lambda state: successors(automaton, state), len(automaton))
        self._blocks = [order[first : first + BLOCK] for first in range(0, len(order), BLOCK)]
        self._block_of = np.zeros(len(automaton), dtype=np.int64)
        for number, block in enumerate(self._blocks):
            self._block_of[block] = number
        self.graph = self._graph(order)

    def read(self, place: int, byte: int) -> int | Fault:
        target = int(self.automaton.targets[place, self.automaton.byte_class[byte]])
        if target != DEAD:
            return target
        expected = expected_of(self.automaton, place)
        says = f"takes {expected}" if expected else "takes no further byte"
        return Fault(
            "automaton",
            f"state {place}",
            f"State {place} of the automaton {says}, and {byte_name(byte)} came.",
            tuple(filter(None, (expected,))),
            self._node(place),
        )

    def end(self, place: int) -> Fault | None:
        if self.automaton.accepting[place]:
            return None
        expected = expected_of(self.automaton, place)
        because = f"State {place} is not accepting: the shortest text needs {int(self.automaton.distances[place])} more bytes."
        return Fault("end", f"state {place}", because, (expected,), self._node(place))

    def spot(self, place: int) -> Spot:
        return Spot(f"state {place}", (self._node(place),), ())

    def _node(self, state: int) -> tuple[str, str]:
        return f"b{self._block_of[state]}", f"s{state}"

    def _graph(self, order: list[int]) -> MachineGraph:
        automaton = self.automaton
        source, column = np.nonzero(automaton.targets)
        pairs = np.stack([self._block_of[source], self._block_of[automaton.targets[source, column]]])[:, source != DEAD]
        calls = [(f"b{a}", f"b{b}", "") for a, b in np.unique(pairs, axis=1).T.tolist() if a != b]
        parts = tuple(
            GraphPart(f"b{number}", "states", f"states {number}", self._text(block), len(block), number == 0)
            for number, block in enumerate(self._blocks)
        )
        return MachineGraph(parts, merged(calls), self._states, f"{len(order):,} states")

    def _text(self, block: list[int]) -> str:
        ends = int(self.automaton.accepting[block].sum())
        least = int(self.automaton.distances[block].min())
        return f"{len(block)} states, {ends} accepting; {least} bytes or more to the end"

    def _states(self, part: str) -> PartStates:
        return drawn_states(self.automaton, self._blocks[int(part[1:])], "s", others=self._block_of.tolist())
