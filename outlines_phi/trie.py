"""The byte trie of a vocabulary, as flat arrays in level order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from .vocabulary import Vocabulary


@final
@dataclass(frozen=True, eq=False)
class Trie:
    """The byte trie of a vocabulary's spelled tokens; node 0 is the root, nodes are numbered level by level.

    Attributes
    ----------
    parent
        ``int32[N]``, ascending; ``parent[0] = 0``.
    byte
        ``uint8[N]``: the byte on the edge from the parent; ``byte[0]`` means nothing.
    levels
        ``int32[D + 2]``: nodes of depth ``d`` are ``levels[d]`` to ``levels[d + 1]``.
    node_of
        ``int32[V]``: the node where each token ends, 0 for ids that are not spelled.
    """

    parent: NDArray[np.int32]
    byte: NDArray[np.uint8]
    levels: NDArray[np.int32]
    node_of: NDArray[np.int32]

    @cached_property
    def is_end(self) -> NDArray[np.bool_]:
        """``bool[N]``: the nodes where a token ends."""
        ends = np.zeros(len(self.parent), dtype=bool)
        ends[self.node_of] = True
        ends[0] = False
        return ends

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Trie:
        """Return the trie of ``vocabulary``, from a cache where it was built before."""
        key = vocabulary.fingerprint
        if key not in _MEMORY:
            while len(_MEMORY) >= 8:
                _MEMORY.pop(next(iter(_MEMORY)))
            _MEMORY[key] = build(vocabulary.tokens)
        return _MEMORY[key]


_MEMORY: dict[str, Trie] = {}


def build(tokens: tuple[bytes, ...]) -> Trie:
    """Build the trie of ``tokens``, skipping empty ones."""
    order = sorted((v for v, token in enumerate(tokens) if token), key=tokens.__getitem__)
    ids = np.array(order, dtype=np.int64)
    lengths = np.array([len(tokens[v]) for v in order], dtype=np.int64)
    text = np.frombuffer(b"".join(tokens[v] for v in order), dtype=np.uint8)
    starts = np.cumsum(lengths) - lengths
    node_of = np.zeros(len(tokens), dtype=np.int32)
    parents, edges, levels = [np.zeros(1, np.int64)], [np.zeros(1, np.uint8)], [0, 1]
    at = np.zeros(len(order), dtype=np.int64)  # the node of each token's first `depth` bytes
    depth = 0
    while len(ids):
        byte = text[starts + depth]
        # Tokens are in lexicographic order, so those that share a prefix are neighbours and no sort is needed.
        new = np.ones(len(ids), dtype=bool)
        new[1:] = (at[1:] != at[:-1]) | (byte[1:] != byte[:-1])
        parents.append(at[new])
        edges.append(byte[new])
        at = levels[-1] + np.cumsum(new) - 1
        levels.append(levels[-1] + int(new.sum()))
        depth += 1
        ends = lengths == depth
        node_of[ids[ends]] = at[ends]
        ids, lengths, starts, at = ids[~ends], lengths[~ends], starts[~ends], at[~ends]
    return Trie(
        np.concatenate(parents).astype(np.int32), np.concatenate(edges), np.array(levels, dtype=np.int32), node_of
    )
