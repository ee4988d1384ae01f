"""The byte trie of a vocabulary, as flat arrays in level order, and tokenizations that follow from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ..numerics.cache import Cache, load_arrays, save_arrays
from .vocabulary import Vocabulary

_FORMAT = 2  # Part of the name of a kept file; raised when its content changes meaning
DENSE = 4  # Nodes are many where they are at least one in so many of those between the first and the last

KEPT = 8
kept_tries: Cache[str, Trie] = Cache(KEPT)


@final
@dataclass(frozen=True, eq=False)
class Trie:
    """The trie of a vocabulary's spelled tokens. Node 0 is the root; nodes are numbered level by level.

    The children of a node are neighbours, in the order of their bytes, so ``parent`` ascends.
    """

    parent: NDArray[np.int32]  # `int32[N]`; the root is its own parent
    byte: NDArray[np.uint8]  # `uint8[N]`: the byte on the edge from the parent; without meaning at the root
    # `int32[D + 2]`: the nodes of depth `d` are `levels[d]` to `levels[d + 1]` of the next
    levels: NDArray[np.int32]
    node_of: NDArray[np.int32]  # `int32[V]`: the node where each token ends, 0 for ids that write nothing

    def __len__(self) -> int:
        return len(self.parent)

    @cached_property
    def is_end(self) -> NDArray[np.bool_]:
        """``bool[N]``: the nodes where a token ends."""
        ends = np.zeros(len(self), dtype=bool)
        ends[self.node_of] = True
        ends[0] = False
        return ends

    @cached_property
    def first_child(self) -> NDArray[np.int32]:
        """``int32[N + 1]``: the children of node ``n`` are ``first_child[n]`` to ``first_child[n + 1]``."""
        counts = np.bincount(self.parent[1:], minlength=len(self))
        return np.concatenate([[1], 1 + np.cumsum(counts)]).astype(np.int32)

    def below(self, nodes: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the children of ``nodes``, those of each together, and how many each has."""
        first = self.first_child[nodes].astype(np.int64)
        counts = self.first_child[nodes + 1] - first
        return spans(first, counts), counts

    def children(self, nodes: NDArray[np.integer]) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
        """Return the children of ascending ``nodes``, ascending, and the place of the parent of each among these."""
        low, high = (int(nodes[0]), int(nodes[-1])) if len(nodes) else (0, -1)
        width = high - low + 1
        if width > DENSE * len(nodes):
            children, counts = self.below(nodes)
            return children, np.repeat(np.arange(len(nodes)), counts)
        # Most nodes are there, and the children of all are neighbours: to look at each takes less than to gather some.
        first, last = self.first_child[[low, high + 1]].tolist() if width else (0, 0)
        above = self.parent[first:last] - low
        children = np.arange(first, last)
        if width == len(nodes):
            return children, above
        place = np.full(width, -1)
        place[nodes - low] = np.arange(len(nodes))
        above = place[above]
        there = np.flatnonzero(above >= 0)
        return children[there], above[there]

    def walk(
        self,
        start: int,
        step: Callable[[NDArray[np.int32], NDArray[np.uint8]], NDArray[np.int32]],
        goes_on: Callable[[NDArray[np.integer], NDArray[np.int32]], NDArray[np.bool_]],
    ) -> Iterator[tuple[NDArray[np.integer], NDArray[np.int32]]]:
        """Walk down with a state for each node, level by level, and yield the nodes from where it goes on, with their states.

        ``step`` returns the state after a byte from the state beside it.
        """
        nodes: NDArray[np.integer] = np.zeros(1, dtype=np.int64)
        states = np.full(1, start, dtype=np.int32)
        while len(nodes):
            nodes, above = self.children(nodes)
            states = step(states[above], self.byte[nodes])
            kept = np.flatnonzero(goes_on(nodes, states))
            nodes, states = nodes[kept], states[kept]
            yield nodes, states

    @cached_property
    def preorder(self) -> NDArray[np.int64]:
        """``int64[N]``: the place of each node in depth-first order, which is that of the texts that end at them."""
        places, sizes = np.zeros(len(self), dtype=np.int64), self.sizes
        for start, end in list(pairwise(self.levels.tolist()))[1:]:
            before, parent = np.cumsum(sizes[start:end]) - sizes[start:end], self.parent[start:end]
            places[start:end] = places[parent] + 1 + before - before[self.first_child[parent] - start]
        return places

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """``int64[N]``: the number of nodes at and below each."""
        sizes = np.ones(len(self), dtype=np.int64)
        for start, end in reversed(list(pairwise(self.levels.tolist()))[1:]):
            np.add.at(sizes, self.parent[start:end], sizes[start:end])
        return sizes

    @cached_property
    def _edges(self) -> dict[int, dict[int, int]]:
        return {}

    def edges(self, node: int) -> dict[int, int]:
        """Return the child of a node by each byte, found once."""
        found = self._edges.get(node)
        if found is None:
            first, last = self.first_child[node : node + 2].tolist()
            found = self._edges[node] = dict(zip(self.byte[first:last].tolist(), range(first, last), strict=True))
        return found

    def meet(self, nodes: NDArray[np.integer]) -> int:
        """Return the deepest node that all of ``nodes`` lie at or below: their texts' longest common beginning."""
        places = self.preorder[nodes]
        first, last = int(nodes[places.argmin()]), int(nodes[places.argmax()])
        while first != last:
            first, last = (int(self.parent[first]), last) if first > last else (first, int(self.parent[last]))
        return first

    @cached_property
    def _ids(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids in the order of their nodes, and where those of each node begin."""
        counts = np.bincount(self.node_of, minlength=len(self))
        return np.argsort(self.node_of, kind="stable").astype(np.int32), np.concatenate([[0], np.cumsum(counts)])

    def ending(self, nodes: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the ids that end at ``nodes``, those of each together, and how many each has."""
        ids, first = self._ids
        begins = first[nodes]
        counts = first[nodes + 1] - begins
        alone = bool((counts == 1).all())  # as nearly everywhere
        return ids[begins if alone else spans(begins, counts)], counts

    @classmethod
    def build(cls, tokens: tuple[bytes, ...]) -> Trie:
        """Return the trie of ``tokens``, those that write nothing left out."""
        order = sorted((v for v, token in enumerate(tokens) if token), key=tokens.__getitem__)
        lengths = np.array([len(tokens[v]) for v in order], dtype=np.int64)
        text = np.frombuffer(b"".join(tokens[v] for v in order), dtype=np.uint8)
        parent, byte, levels, ends = trie_of_sorted(text, lengths)
        node_of = np.zeros(len(tokens), dtype=np.int32)
        node_of[order] = ends
        return cls(parent, byte, levels, node_of)

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Trie:
        """Return the trie of ``vocabulary``: from memory, else from disk, else built and kept in both."""
        name = f"trie-{_FORMAT}-{vocabulary.fingerprint}"

        def find() -> Trie:
            arrays = load_arrays(name)
            if arrays is not None:
                return cls(**arrays)
            trie = cls.build(vocabulary.tokens)
            save_arrays(name, {field.name: getattr(trie, field.name) for field in fields(cls)})
            return trie

        return kept_tries.of(vocabulary.fingerprint, find)


Symbol = TypeVar("Symbol", bound=np.integer[Any])


def trie_of_sorted(
    text: NDArray[Symbol], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[Symbol], NDArray[np.int32], NDArray[np.int32]]:
    """Return the trie of words, ``text`` of ``lengths`` one after the other, sorted: those with a common beginning are neighbours.

    Per node its parent and the symbol on the edge from there, then the levels as :class:`Trie` has them, and each word's node.
    """
    words, starts = np.arange(len(lengths)), np.cumsum(lengths) - lengths
    at = np.zeros(len(lengths), dtype=np.int64)  # the node of the first symbols of each word
    parent, symbol, levels = [np.zeros(1, dtype=np.int64)], [np.zeros(1, dtype=text.dtype)], [0, 1]
    node_of = np.zeros(len(lengths), dtype=np.int32)
    for depth in range(int(lengths.max(initial=0))):
        edge = text[starts + depth]
        new = np.ones(len(words), dtype=bool)
        new[1:] = (at[1:] != at[:-1]) | (edge[1:] != edge[:-1])
        parent.append(at[new])
        symbol.append(edge[new])
        at = levels[-1] + np.cumsum(new) - 1
        levels.append(levels[-1] + int(new.sum()))
        longer = lengths > depth + 1
        node_of[words[~longer]] = at[~longer]
        words, lengths, starts, at = words[longer], lengths[longer], starts[longer], at[longer]
    return np.concatenate(parent).astype(np.int32), np.concatenate(symbol), np.array(levels, dtype=np.int32), node_of


def spans(starts: NDArray[np.integer], counts: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return ``starts[0], starts[0] + 1, ..``, ``counts[0]`` of them, then those of the next span."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + counts, counts)


def fewest_tokens(vocabulary: Vocabulary, text: bytes) -> tuple[int, ...]:
    """Return the fewest tokens that write ``text``, as far as tokens can, the first ones as long as possible.

    That is how tokenizers mostly write it: a guess where none is at hand.
    """
    trie = Trie.of(vocabulary)
    fewest = {0: 0}  # by place: the tokens that write what stands before it
    last: dict[int, tuple[int, int]] = {}  # and the last of them, with where it begins
    for start in range(len(text)):
        for end, token in _tokens_at(trie, text, start) if start in fewest else ():
            if fewest[start] + 1 <= fewest.get(end, len(text)):
                fewest[end], last[end] = fewest[start] + 1, (start, token)
    tokens, place = list[int](), max(fewest)
    while place:
        place, token = last[place]
        tokens.append(token)
    return tuple(reversed(tokens))


def merged_tokens(vocabulary: Vocabulary, text: bytes) -> tuple[int, ...]:
    """Return the tokens of ``text`` by byte-pair merging; the fewest ones where what it ends with is no tokens.

    Of all neighbours that are one token together, those of the least id are merged first: ids mostly have the order in which a
    tokenizer's merges were learned, which is the order that it applies them in.
    """
    trie = Trie.of(vocabulary)
    known = {(start, end): token for start in range(len(text)) for end, token in _tokens_at(trie, text, start)}
    places = list(range(len(text) + 1))
    while True:
        merges = (
            (known.get(ends, math.inf), place) for place, ends in enumerate(zip(places, places[2:], strict=False), 1)
        )
        token, place = min(merges, default=(math.inf, 0))
        if token == math.inf:
            break
        del places[place]
    tokens = [known.get(ends, -1) for ends in pairwise(places)]
    return fewest_tokens(vocabulary, text) if -1 in tokens else tuple(tokens)


def _tokens_at(trie: Trie, text: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Yield the end of every token that stands in ``text`` at ``start``, and the token, the least id of those alike."""
    node = np.zeros(1, dtype=np.int64)
    for end in range(start, len(text)):
        children, _ = trie.below(node)
        node = children[trie.byte[children] == text[end]]
        if not len(node):
            return
        if trie.is_end[node[0]]:
            yield end + 1, int(trie.ending(node)[0][0])
