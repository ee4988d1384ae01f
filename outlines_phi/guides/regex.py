"""Regular expressions, in the dialect of Outlines, as byte automata."""

from __future__ import annotations

import numpy as np
import outlines_core

from ..automaton import ByteAutomaton
from ..errors import EmptyLanguageError, GrammarError


def compile_regex(pattern: str) -> ByteAutomaton:
    """Return the byte automaton of exactly the language that Outlines accepts for ``pattern``."""
    single = outlines_core.Vocabulary(256, {bytes([b]): [b] for b in range(256)})
    try:
        index = outlines_core.Index(pattern, single)
    except ValueError as error:
        if "ncompatible" in str(error) or "no transitions" in str(error):
            raise EmptyLanguageError(f"the pattern {pattern!r} matches nothing") from None
        raise GrammarError(f"the pattern {pattern!r} cannot be read: {error}") from None
    edges = index.get_transitions()
    final = index.get_final_states()
    states = {index.get_initial_state()} | set(edges) | final | {t for row in edges.values() for t in row.values()}
    number = {state: i + 1 for i, state in enumerate(sorted(states))}
    targets = np.zeros((len(states) + 1, 256), dtype=np.int32)
    for state, row in edges.items():
        for byte, target in row.items():
            if byte < 256:
                targets[number[state], byte] = number[target]
    accepting = np.zeros(len(states) + 1, dtype=bool)
    accepting[[number[state] for state in final]] = True
    return ByteAutomaton.of(targets, number[index.get_initial_state()], accepting)
