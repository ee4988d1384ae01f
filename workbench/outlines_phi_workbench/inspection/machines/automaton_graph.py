"""Byte automata as graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outlines_phi.automata.automaton import DEAD, ByteAutomaton

from .byte_names import byte_set
from .machine_graph import MOST_STATES, GraphEdge, GraphNode, PartStates, reached


def steps_of(automaton: ByteAutomaton, state: int) -> dict[int, str]:
    """Return the states that bytes lead to from ``state``, each with the set of these bytes."""
    targets = automaton.targets[state, automaton.byte_class]
    live = np.unique(targets[targets != DEAD]).tolist()
    return {target: byte_set(np.flatnonzero(targets == target).tolist()) for target in live}


def successors(automaton: ByteAutomaton, state: int) -> list[int]:
    """Return the states that bytes lead to from ``state``, some of them more than once."""
    targets = automaton.targets[state]
    return list(targets[targets != DEAD].tolist())


def expected_of(automaton: ByteAutomaton, state: int) -> str:
    """Return the set of bytes that ``state`` goes on with; empty where there is none."""
    live = np.flatnonzero(automaton.targets[state, automaton.byte_class] != DEAD)
    return byte_set(live.tolist()) if len(live) else ""


def automaton_states(automaton: ByteAutomaton, prefix: str) -> PartStates:
    """Return the states of a small automaton, the first :data:`MOST_STATES` from its start on; ids begin with ``prefix``."""
    order, _ = reached(automaton.start, lambda state: successors(automaton, state), MOST_STATES)
    return drawn_states(automaton, order, prefix, len(automaton) - 1 - len(order))


def drawn_states(
    automaton: ByteAutomaton, states: Sequence[int], prefix: str, left_out: int = 0, others: Sequence[int] = ()
) -> PartStates:
    """Return some states of an automaton with the steps between them.

    ``others``, by state, are the parts that states elsewhere belong to; a step into one of these is drawn as a call.
    """
    here = set(states)
    nodes = [
        GraphNode(
            f"{prefix}{state}",
            str(state),
            f"state {state}, {int(automaton.distances[state])} bytes from the end",
            state == automaton.start,
            bool(automaton.accepting[state]),
        )
        for state in states
    ]
    edges, called = list[GraphEdge](), dict[int, None]()
    for state in states:
        for target, label in steps_of(automaton, state).items():
            if target in here:
                edges.append(GraphEdge(f"{prefix}{state}", f"{prefix}{target}", label))
            elif len(others):
                called[int(others[target])] = None
                edges.append(GraphEdge(f"{prefix}{state}", f"to{int(others[target])}", label, "call"))
    nodes += [GraphNode(f"to{part}", f"states {part}", part=f"b{part}") for part in called]
    return PartStates(tuple(nodes), tuple(edges), left_out)
