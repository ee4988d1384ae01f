"""The trie of a vocabulary, and its nodes taken together: what guides of all schemas share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ...numerics.cache import Cache
from ...vocabulary.classes import EOS, NEVER, Partition
from ...vocabulary.trie import Trie
from ...vocabulary.vocabulary import Vocabulary

MOST_BYTES = 1 << 27
"""How much is kept of one vocabulary: a partition of 131,072 tokens takes half a megabyte."""

Kept = TypeVar("Kept")


@final
class Tokens:
    """Some tokens; compared by identity."""

    __slots__ = ("ids",)

    def __init__(self, ids: NDArray[np.int32]) -> None:
        self.ids = ids


class Placed(NamedTuple):
    """Tokens, and the class of all of them; or that of the first, where each has one of its own."""

    tokens: Tokens
    number: int
    each: bool = False


@final
class TokenForest:
    """Nodes of the trie of a vocabulary, and sets of nodes below which tokens go on alike, as one node.

    A node of the trie has its own number, a set of several a number behind these. The child of a set by a byte is the set
    of the children of its nodes. So what is read behind a closing quote, wherever in tokens that stands, is read once.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary, self.trie = vocabulary, Trie.of(vocabulary)
        self.lock = threading.RLock()
        self.single_bytes = {token[0] for token in vocabulary.tokens if len(token) == 1}
        self._sets: list[NDArray[np.int64]] = []
        self._numbers: dict[bytes, int] = {}
        self._children: dict[int, dict[int, int]] = {}
        self._tokens: dict[int, Tokens | None] = {}
        self._kept = Cache[Hashable, Any](MOST_BYTES)
        classes = np.full(len(vocabulary), NEVER, dtype=np.int32)
        classes[vocabulary.eos_ids[0]] = EOS
        self._none = Partition(classes, EOS + 1)

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> TokenForest:
        """Return the forest of a vocabulary, one for all guides."""
        return _forests.of((vocabulary.fingerprint, vocabulary.eos_ids), lambda: cls(vocabulary))

    def joined(self, nodes: NDArray[np.integer]) -> int:
        """Return the node that stands for some nodes of the trie, in ascending order."""
        if len(nodes) == 1:
            return int(nodes[0])
        wide = nodes.astype(np.int64)
        key = wide.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self.trie) + len(self._sets)
            self._sets.append(wide)
        return self._numbers[key]

    def nodes(self, node: int) -> NDArray[np.int64]:
        """Return the nodes of the trie that a node stands for."""
        return np.array([node]) if node < len(self.trie) else self._sets[node - len(self.trie)]

    def children(self, node: int) -> dict[int, int]:
        """Return the child by each byte."""
        found = self._children.get(node)
        if found is None:
            found = self._children[node] = self._find_children(node)
        return found

    def _find_children(self, node: int) -> dict[int, int]:
        if node < len(self.trie):
            first, last = self.trie.first_child[node : node + 2].tolist()
            return dict(zip(self.trie.byte[first:last].tolist(), range(first, last), strict=True))
        below, _ = self.trie.below(self.nodes(node))
        byte = self.trie.byte[below]
        order = np.argsort(byte, kind="stable")
        below, byte = below[order], byte[order]
        cuts = np.flatnonzero(np.diff(byte, prepend=-1, append=256)).tolist()
        return {int(byte[a]): self.joined(np.sort(below[a:b])) for a, b in zip(cuts, cuts[1:], strict=False)}

    def tokens(self, node: int) -> Tokens | None:
        """Return the tokens that end at a node; ``None`` where none does."""
        if node not in self._tokens:
            if node < len(self.trie) and not self.trie.is_end[node]:
                self._tokens[node] = None
            else:
                ids, _ = self.trie.ending(self.nodes(node))
                self._tokens[node] = Tokens(ids) if len(ids) else None
        return self._tokens[node]

    def text(self, node: int, above: int) -> bytes:
        """Return the bytes on the way to a node of the trie from those that another stands for."""
        tops = set(self.nodes(above).tolist())
        found = bytearray()
        while node not in tops:
            found.append(int(self.trie.byte[node]))
            node = int(self.trie.parent[node])
        return bytes(reversed(found))

    def last_byte(self, node: int) -> bytes:
        """Return the byte that leads to the nodes of the trie that a node stands for, the same one to each."""
        return bytes([self.trie.byte[self.nodes(node)[0]]])

    def keep(self, key: Hashable, make: Callable[[], Kept], size: Callable[[Kept], int]) -> Kept:
        """Return what was made once under a key, for all guides, under a bound of memory."""
        found: Kept = self._kept.of(key, make, size)
        return found

    def partition(self, base: Sequence[Placed], more: Sequence[Placed], size: int) -> Partition:
        """Return the partition into ``size`` classes in which tokens have these, the later one where some are placed twice.

        That of ``base`` alone is kept as well: it is the base of many others.
        """

        def make() -> Partition:
            changes = [
                (tokens.ids, np.arange(number, number + len(tokens.ids)) if each else number)
                for tokens, number, each in more or base
            ]
            below = self._none
            if base and more:
                last = base[-1]
                below = self.partition(base, (), last.number + (len(last.tokens.ids) if last.each else 1))
            return Partition.changed(below, changes, size)

        key = tuple(base), tuple(more), size
        # Its classes are made when they are asked for, and then take as much.
        return self.keep(key, make, lambda found: 4 * len(self.vocabulary))


_forests = Cache[tuple[str, tuple[int, ...]], TokenForest](4)
