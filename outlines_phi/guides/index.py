"""outlines_core indexes over single bytes, as byte automata."""

from __future__ import annotations

import numpy as np
from outlines_core import Index

from ..automaton import ByteAutomaton


def from_index(index: Index) -> ByteAutomaton:
    """Return the byte automaton of an ``Index`` whose vocabulary is the 256 single bytes, byte ``b`` having id ``b``."""
    edges = index.get_transitions()
    final = index.get_final_states()
    states = sorted({index.get_initial_state(), *edges, *final, *(t for row in edges.values() for t in row.values())})
    number = {state: i + 1 for i, state in enumerate(states)}
    targets = np.zeros((len(states) + 1, 256), dtype=np.int32)
    for state, row in edges.items():
        for byte, target in row.items():
            if byte < 256:
                targets[number[state], byte] = number[target]
    accepting = np.zeros(len(states) + 1, dtype=bool)
    accepting[[number[state] for state in final]] = True
    return ByteAutomaton.of(targets, number[index.get_initial_state()], accepting)
