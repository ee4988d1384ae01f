"""Tokens within a string, by automata that run side by side below nodes of a vocabulary's trie: compiled."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ...regex.spelling import Composed
from ...vocabulary.kernel import (
    ALONGSIDE,
    DEEPEST,
    FIELDS,
    MOST_GROUPS,
    PARTS,
    UNBOUNDED,
    Automaton,
    ForestRoom,
    Part,
    WalkTables,
)
from ...vocabulary.trie import Trie
from .string_set import BACKSLASH, free

LONG = 24
"""Characters that few tokens have more of."""

ALPHANUMERIC = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

Begun: TypeAlias = tuple[tuple[Composed, int], ...]
"""Automata of spellings that are walked side by side, and the state of each."""


class Ways(NamedTuple):
    """Nodes of the trie by what leads there: those of group ``g`` are ``nodes[first[g] : first[g + 1]]``.

    ``states``, ``[G, k]``, are those of the automata, 0 where one is dead, or has not closed; ``characters``, ``[G]``, the number
    that was completed on the way.
    """

    nodes: NDArray[np.integer]
    first: NDArray[np.integer]
    states: NDArray[np.integer]
    characters: NDArray[np.integer]

    @property
    def sizes(self) -> NDArray[np.integer]:
        """The number of nodes of each group."""
        return np.diff(self.first)

    def of(self, groups: NDArray[np.bool_]) -> NDArray[np.integer]:
        """Return the nodes of some groups."""
        return self.nodes if groups.all() else self.nodes[np.repeat(groups, self.sizes)]

    @classmethod
    def told_apart(cls, found: Sequence[Sequence[NDArray[Any]]], width: int) -> Ways:
        """Group nodes by their states and number of characters."""
        none: list[NDArray[Any]] = [np.empty(0, np.int64)] * (2 + width)
        nodes, *keys = (np.concatenate(arrays) for arrays in zip(none, *found, strict=True))
        order = np.lexsort(keys)
        keys = [key[order] for key in keys]
        begins = np.flatnonzero(np.any([np.diff(key, prepend=-1) for key in keys], axis=0))
        count, *at = (key[begins] for key in keys)
        return cls(nodes[order], np.append(begins, len(nodes)), np.stack(at, axis=1), count)


Bounded: TypeAlias = tuple[Composed, int, int, int]
"""An automaton, its state, and the fewest and the most characters to come."""


class FullError(Exception):
    """The tables of compiled walks are full."""


def check_room(needed: int, most: int) -> None:
    """Refuse more entries of a table than it has room for."""
    if needed > most:
        raise FullError


@final
class Marked(NamedTuple):
    """Tokens below a node within a string: the number of the packed mask of those that stay, and the nodes at the end.

    ``exits`` are the nodes behind the closing quote, in their order, by the first of some automata that accepts there; ``rests``
    the nodes of the forest that stand for those, without some that listed texts take.
    """

    word: int
    exits: list[tuple[int, NDArray[np.integer]]]
    rests: dict[tuple[int, ...], list[tuple[int, int]]]


@final
class TriePart:
    """The nodes of a trie at or below which a token ends that is not of some kind, level by level; and the tokens that are.

    ``characters``, ``[N]``, is the number of characters of the token that ends at each node, 0 where none of the kind does.
    """

    def __init__(self, trie: Trie, characters: NDArray[np.integer]) -> None:
        of_token, self._kept = characters[trie.node_of], list[NDArray[np.uint32]]()
        self._characters = np.full(-(-len(of_token) // 32) * 32, UNBOUNDED, np.int32)
        self._characters[: len(of_token)] = np.where(of_token > 0, of_token, UNBOUNDED)
        needed = trie.is_end & (characters == 0)
        for start, end in reversed([*pairwise(trie.levels.tolist())][1:]):
            needed[trie.parent[start:end][needed[start:end]]] = True
        needed[0] = True
        nodes = np.flatnonzero(needed)
        ids, counts = trie.ending(nodes)
        first = np.cumsum(counts) - counts
        counts[0] = 0  # what ends at the root writes nothing
        token = np.full(len(nodes), -1, np.int32)
        token[counts == 1], token[counts > 1] = ids[first[counts == 1]], -2
        children = np.bincount((np.cumsum(needed) - 1)[trie.parent[nodes[1:]]], minlength=len(nodes))
        words = np.zeros(int(characters.max(initial=0)) + 1, np.int64)
        children = np.append(1, 1 + np.cumsum(children)).astype(np.int32)
        self._tables = children, token, nodes.astype(np.int32), trie.byte[nodes], words
        self.longest = len(words) - 1

    def entry(self, kind: int) -> Part:
        """Return the addresses of the tables."""
        return Part(*(table.ctypes.data for table in self._tables), kind, self.longest)

    def add_word(self, longest: int) -> None:
        """Make the packed mask of the tokens of at most so many characters."""
        self._kept.append(np.packbits(self._characters <= longest, bitorder="little").view(np.uint32))
        self._tables[-1][longest] = self._kept[-1].ctypes.data


@final
class Spreads:
    """The spread of automata over a trie, and room for what it finds."""

    def __init__(self, trie: Trie, walk: WalkTables, compiled: Any) -> None:
        self._trie, self._walk, self._compiled, self.deepest = trie, walk, compiled, len(trie.levels) - 2
        size = len(trie)
        self._found = {name: np.empty(size, np.int32) for name in ("node", "group")}
        self._found |= {
            "groups": np.empty((MOST_GROUPS, FIELDS), np.int32),
            "lengths": np.empty(MOST_GROUPS + 1, np.int32),
        }
        self._found["level"] = np.empty(2 * (ALONGSIDE + 2) * size, np.int32)
        self._found["vector"] = np.empty(MOST_GROUPS * ALONGSIDE, np.int32)
        self._found["after"] = np.empty(MOST_GROUPS * 256, np.int32)
        self._parts, self._begun = [TriePart(trie, np.zeros(size, np.int64))], (Automaton * ALONGSIDE)()
        self.room = ForestRoom(most=size, widest=size, walk=ctypes.addressof(walk))
        self.room.part[0] = self._parts[0].entry(-1)
        for name, array in self._found.items():
            setattr(self.room, name, array.ctypes.data)
        self._addresses = ctypes.addressof(self.room), ctypes.addressof(self._begun)
        self._rows = 0

    def spread(self, begun: Begun, nodes: NDArray[np.int64], *, counted: bool) -> tuple[Ways, Ways] | None:
        """Return the tokens that stay, and the exits; ``None`` where automata, groups or nodes are too many."""
        if not self._enter([(automaton, state, 0, UNBOUNDED) for automaton, state in begun]):
            return None
        made = self._compiled.spread(*self._addresses, len(begun), nodes.ctypes.data, len(nodes), counted)
        if made < 0:
            return None
        lengths, table, ways = self._found["lengths"], self._found["groups"][:made], list[Ways]()
        sizes, count = np.diff(lengths[: made + 1]), lengths[made]
        for is_end in (False, True):
            here = table[:, 0] == is_end
            first = np.concatenate([[0], np.cumsum(sizes[here])])
            found = self._found["node"][:count][np.repeat(here, sizes)]
            ways.append(Ways(found, first, table[here, 2 : 2 + len(begun)], table[here, 1]))
        return ways[0], ways[1]

    def mark(
        self, begun: Sequence[Bounded], nodes: NDArray[np.int64], word: int, *, all_of_it: bool
    ) -> list[tuple[int, NDArray[np.integer]]] | None:
        """Write the tokens that stay into the packed mask at an address, and return the exits; ``None`` as :meth:`spread`.

        Below the root, kinds of tokens are marked at once where an automaton holds all of them.
        """
        if all_of_it:
            self._prepare(max((len(one.flat.rows) for one, *_ in begun if one.flat is not None), default=0))
        if self.deepest > DEEPEST or not self._enter(begun):
            return None
        while True:
            count = self._compiled.mark_within(
                *self._addresses, len(begun), nodes.ctypes.data, len(nodes), all_of_it, word
            )
            if count >= -1:
                break
            longest, number = divmod(-1 - count, PARTS)
            self._parts[number].add_word(longest)
        if count < 0:
            return None
        ends, lengths = self._found["node"], self._found["lengths"][: len(begun) + 1].tolist()
        return [(one, np.sort(ends[a:b])) for one, (a, b) in enumerate(pairwise(lengths)) if a < b]

    def _enter(self, begun: Sequence[Bounded]) -> bool:
        """Enter automata that are to be spread; return whether they can be."""
        if len(begun) > ALONGSIDE:
            return False
        for place, (automaton, state, least, most) in enumerate(begun):
            if automaton.entry is None:
                return False
            self._begun[place] = automaton.entry
            entered = self._begun[place]
            entered.start, entered.least, entered.most = state, least, most
        return True

    def _prepare(self, rows: int) -> None:
        """Make the parts of the trie beside common kinds of tokens, those of most tokens first, and room for rows."""
        if len(self._parts) == 1:
            for kind, characters in enumerate(self._kinds()):
                for longest in (self.deepest, LONG):
                    part = TriePart(self._trie, np.where(characters <= longest, characters, 0))
                    self.room.part[len(self._parts)] = part.entry(kind)
                    self._parts.append(part)
        if rows > self._rows:
            self._rows = 2 * rows
            self._found["waiting"], self._found["seen"] = np.empty(self._rows, np.int32), np.empty(self._rows, np.uint8)
            self.room.waiting, self.room.seen = (self._found[name].ctypes.data for name in ("waiting", "seen"))

    def _kinds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of characters at each node where a token ends, 0 of others than those of a kind."""
        trie, every = self._trie, free(ascii=False)
        found = self.spread(((every, every.start),), np.zeros(1, np.int64), counted=True)
        plain, inner = np.zeros(len(trie), np.int64), np.zeros(len(trie), np.int64)
        if found is not None:
            stays = found[0]
            begun = stays.characters + (stays.states[:, 0] != every.start)
            plain[stays.nodes] = begun.repeat(stays.sizes)
        above, lead = trie.byte[trie.parent], trie.byte[trie.parent[trie.parent]]
        # U+2028 and U+2029 end lines, where patterns often stop.
        other = (trie.byte == BACKSLASH) | ((lead == 0xE2) & (above == 0x80) & (trie.byte & 0xFE == 0xA8))
        alone = np.isin(trie.byte, list(ALPHANUMERIC))
        other[0], alone[0] = False, True
        for depth, (start, end) in enumerate(pairwise(trie.levels.tolist())):
            parent = trie.parent[start:end]
            other[start:end] |= other[parent]
            alone[start:end] &= alone[parent]
            inner[start:end] = np.where(alone[start:end], depth, 0)
        return np.where(other, 0, plain), np.where(trie.is_end, inner, 0)
