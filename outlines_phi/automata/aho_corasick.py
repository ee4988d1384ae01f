"""The automaton of Aho and Corasick: where words of a finite alphabet occur in a text, all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..vocabulary.trie import trie_of_sorted


@final
@dataclass(frozen=True, eq=False)
class AhoCorasick:
    """The trie of some words with a transition for every symbol (Aho and Corasick 1975), as flat arrays in level order.

    Node 0 is the root. The node after a text is the longest end of the text that begins a word: ``after[n, c]`` is the
    child of ``n`` for symbols of class ``c`` if it has one, else ``after[failure[n], c]``, where ``failure[n]`` is the longest
    proper end of ``n`` that begins a word.
    """

    after: NDArray[np.int32]  # `int32[N, C]`: the next node
    symbol_class: NDArray[np.int32]  # `int32[A]`: the column of each symbol. Symbols that are in no word share one
    failure: NDArray[np.int32]  # `int32[N]`; the root is its own
    # `int32[N]`: the node before the last symbol, and that symbol; without meaning at the root
    parent: NDArray[np.int32]
    symbol: NDArray[np.int32]
    depth: NDArray[np.int32]  # `int32[N]`: how many symbols the node has
    word_at: NDArray[np.int32]  # `int32[N]`: the index of the word that the node is, or -1

    @classmethod
    def build(cls, words: Sequence[Sequence[int]], symbols: int) -> AhoCorasick:
        """Return the automaton of ``words``, all different and none of them empty, over ``symbols`` symbols.

        The table is dense, so a step is one lookup; it has as many columns as the words have symbols, one more for the others.
        """
        # Big-endian, so that the order of the bytes is the order of the symbols and common beginnings are neighbours.
        spelled = [np.array(list(word), dtype=">u2").tobytes() for word in words]
        order = sorted(range(len(words)), key=spelled.__getitem__)
        text = np.frombuffer(b"".join(spelled[w] for w in order), dtype=">u2").astype(np.int32)
        lengths = np.array([len(words[w]) for w in order], dtype=np.int64)
        assert lengths.all(), "a word without symbols is everywhere"
        used = np.unique(text)
        symbol_class = np.full(symbols, len(used), dtype=np.int32)
        symbol_class[used] = np.arange(len(used))
        parent, symbol, levels, node_of = trie_of_sorted(text, lengths)
        word_at = np.full(len(parent), -1, dtype=np.int32)
        word_at[node_of] = order

        after = np.zeros((len(parent), len(used) + int(len(used) < symbols)), dtype=np.int32)
        failure = np.zeros(len(parent), dtype=np.int32)
        column = symbol_class[symbol]
        for depth, (first, end) in enumerate(zip(levels[:-1], levels[1:], strict=True)):
            nodes = np.arange(first, end)
            if depth:
                # The failure of the parent is nearer to the root, so its row is complete.
                if depth > 1:
                    failure[nodes] = after[failure[parent[nodes]], column[nodes]]
                after[nodes] = after[failure[nodes]]
            if depth + 2 < len(levels):
                children = np.arange(end, levels[depth + 2])
                after[parent[children], column[children]] = children
        sizes = np.diff(levels)
        depths = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        return cls(after, symbol_class, failure, parent, symbol, depths, word_at)

    def __len__(self) -> int:
        return len(self.after)

    @cached_property
    def is_inner(self) -> NDArray[np.bool_]:
        """``bool[N]``: the nodes that begin a longer word."""
        inner = np.zeros(len(self), dtype=bool)
        inner[self.parent[1:]] = True
        return inner

    @cached_property
    def match(self) -> NDArray[np.int32]:
        """``int32[N]``: the longest end of each node that is a word; 0 for none."""
        return self._nearest(self.word_at >= 0)

    @cached_property
    def open(self) -> NDArray[np.int32]:
        """``int32[N]``: the longest end of each node that begins a longer word; 0 for none."""
        return self._nearest(self.is_inner)

    def words(self, node: int) -> tuple[int, ...]:
        """Return the words that end where the node does, longest first."""
        found, node = [], int(self.match[node])
        while node:
            found.append(int(self.word_at[node]))
            node = int(self.match[self.failure[node]])
        return tuple(found)

    def _nearest(self, wanted: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Return the first ``wanted`` node on the way from each node along its failures, 0 where there is none."""
        nearest = np.where(wanted, np.arange(len(self)), 0).astype(np.int32)
        ends = np.flatnonzero(np.diff(self.depth)) + 1
        for nodes in np.split(np.arange(len(self)), ends)[1:]:
            lacking = nodes[nearest[nodes] == 0]
            nearest[lacking] = nearest[self.failure[lacking]]
        return nearest
