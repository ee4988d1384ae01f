"""The automaton that Outlines' own engine builds of a regular expression."""

from dataclasses import replace

import numpy as np
import outlines_core

from outlines_phi.automata.automaton import ByteAutomaton

END = 256
BYTES = outlines_core.Vocabulary(END, {bytes([byte]): [byte] for byte in range(256)})


def direct(pattern: str) -> ByteAutomaton:
    """Return the engine's own automaton of ``pattern``, over tokens of a byte; ``ValueError`` is its refusal.

    It leaves out what a match of higher priority ends, and a step from a member to a text that is none.
    """
    index = outlines_core.Index(pattern, BYTES)
    edges = [
        (source, byte, target)
        for source, row in index.get_transitions().items()
        for byte, target in row.items()
        if byte != END
    ]
    start, final = index.get_initial_state(), index.get_final_states()
    number = {state: place for place, state in enumerate({start, *final, *(s for s, _, t in edges for s in (s, t))}, 1)}
    source, byte, target = np.array([(number[s], b, number[t]) for s, b, t in edges], dtype=np.int64).reshape(-1, 3).T
    accepting = np.array([False, *(state in final for state in number)])
    return ByteAutomaton.from_edges(source, byte, target, start=number[start], accepting=accepting).trim()


def whole(pattern: str) -> ByteAutomaton:
    """Return the texts that ``pattern`` matches as a whole: at their end the engine leaves nothing out.

    (It refuses ``\\z`` at the very beginning, so a ``#`` comes before it, and is read.)
    """
    theirs = direct(f"\\x23(?:{pattern})\\z")
    return replace(theirs, start=theirs.advance(theirs.start, b"#")).trim()


ASSIGNED = whole(r"[\P{Cn}--[ßẞƛɤɷɼꟓꟕꭋꭌ]]*")
"""The texts of the characters that the engine's version of Unicode has, but for those that got another case later."""


def difference(ours: ByteAutomaton, theirs: ByteAutomaton) -> bytes | None:
    """Return a text that tells the two apart, of characters that both versions of Unicode have."""
    return None if ours.witness(theirs) is None else (ours & ASSIGNED).witness(theirs & ASSIGNED)
