"""Byte automata: deterministic finite automata over bytes, as integer tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray


@final
@dataclass(frozen=True, eq=False)
class ByteAutomaton:
    """A complete deterministic automaton over bytes; state 0 is dead and every state is one row.

    Attributes
    ----------
    targets
        ``int32[S, C]``: the next state of each byte class.
    byte_class
        ``uint8[256]``: the column of each byte.
    start
        The initial state.
    accepting
        ``bool[S]``; ``accepting[0]`` is False.
    """

    targets: NDArray[np.int32]
    byte_class: NDArray[np.uint8]
    start: int
    accepting: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.targets)

    @classmethod
    def of(cls, targets: NDArray[np.integer], start: int, accepting: NDArray[np.bool_]) -> ByteAutomaton:
        """Return the automaton of a table ``int[S, 256]``, equal columns merged into byte classes."""
        columns, byte_class = np.unique(targets.astype(np.int32), axis=1, return_inverse=True)
        return cls(np.ascontiguousarray(columns), byte_class.reshape(-1).astype(np.uint8), start, accepting)

    def accepts(self, text: bytes) -> bool:
        """Return whether ``text`` is in the language."""
        state = self.start
        for byte in text:
            state = self.targets[state, self.byte_class[byte]]
        return bool(self.accepting[state])
