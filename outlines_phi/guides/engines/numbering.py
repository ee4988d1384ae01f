"""Numbers of token prefixes."""

from __future__ import annotations

from bisect import bisect_right
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..guide import DONE


@final
class Numbering:
    """Numbers for token prefixes, given to all that go on from a prefix by one token at once.

    The children of a prefix are ``base, base + 1, ...`` in the order of their last tokens. A block of them costs a number and a
    list of tokens, which the prefixes with the same next tokens share; no child costs anything before it has children. The numbers
    have 64 bits: over 131,072 tokens, those of 32 would last for 17,000 prefixes of free text.
    """

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._parents: list[int] = []
        self._tokens: list[bytes] = []  # int32, those of each block
        self._block: dict[int, int] = {}
        self._shared: dict[bytes, bytes] = {}
        self._next = DONE + 1

    def root(self) -> int:
        """Return the number of a new empty prefix."""
        return self._add(-1, np.zeros(1, dtype=np.int32))

    def children(self, state: int, tokens: NDArray[np.integer]) -> int:
        """Return the base of the children of ``state``, whose last tokens are ``tokens``, ascending; always the same."""
        if state not in self._block:
            base = self._add(state, tokens)
            self._block[state] = len(self._bases) - 1
            return base
        return self._bases[self._block[state]]

    def tokens(self, state: int) -> NDArray[np.int32]:
        """Return the next tokens of ``state``, whose children have numbers."""
        return np.frombuffer(self._tokens[self._block[state]], dtype=np.int32)

    def go_on_alike(self, state: int, other: int) -> bool:
        """Return whether the same tokens follow two prefixes whose children have numbers."""
        return self._tokens[self._block[state]] is self._tokens[self._block[other]]

    def above(self, state: int) -> tuple[int, int] | None:
        """Return the prefix without its last token, and that token; ``None`` for an empty one."""
        block = bisect_right(self._bases, state) - 1
        parent = self._parents[block]
        if parent < 0:
            return None
        place = state - self._bases[block]
        return parent, int(np.frombuffer(self._tokens[block], dtype=np.int32, count=1, offset=4 * place)[0])

    def siblings(self, states: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the parent of each of ``states``, -1 for an empty prefix, and its place among the children."""
        first, last = states.min(initial=self._next), states.max(initial=0)
        near = slice(bisect_right(self._bases, first) - 1, bisect_right(self._bases, last))
        bases, parents = (np.array(of[near], dtype=np.int64) for of in (self._bases, self._parents))
        block = np.searchsorted(bases, states, side="right") - 1
        return parents[block], states - bases[block]

    def _add(self, parent: int, tokens: NDArray[np.integer]) -> int:
        base = self._next
        content = tokens.astype(np.int32).tobytes()
        self._bases.append(base)
        self._parents.append(parent)
        self._tokens.append(self._shared.setdefault(content, content))
        self._next += len(tokens)
        return base
