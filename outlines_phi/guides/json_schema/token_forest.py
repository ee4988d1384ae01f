"""The tokens of a vocabulary below nodes of its trie, many at once; and the tables of that trie that compiled walks read."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, partial
from hashlib import blake2b
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ...automata.automaton import DEAD
from ...numerics.cache import Cache, Shared
from ...regex.composed import Composed
from ...vocabulary.classes import EOS, NEVER, Partition
from ...vocabulary.kernel import ALONGSIDE, FIELDS, MOST_GROUPS, UNBOUNDED, Automaton, WalkTables, library
from ...vocabulary.trie import Trie
from ...vocabulary.vocabulary import Vocabulary
from .machine.scalars import Listed, Spelled
from .strings.string_set import BACKSLASH, free

MORE_NODES, MORE_CHILDREN, MORE_TOKENS = 1 << 18, 1 << 20, 1 << 22
"""Sets of nodes, their children, and the tokens that end there, in the tables of compiled walks."""

MOST_WORDS = 1 << 26
"""Bytes of packed masks of tokens within strings, of one vocabulary."""

LONG = 24
"""Characters that few tokens have more of."""

MOST_FOUND = 2_048
"""Sets in a string of which it is kept what closes them."""

MOST_BYTES = 1 << 27
"""Bytes that are kept of one vocabulary: a partition of 131,072 tokens takes half a megabyte."""

ALPHANUMERIC = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

_ESCAPE = re.compile(rb"\\u[0-9a-fA-F]{4}.", re.DOTALL)

Kept = TypeVar("Kept")


@final
class TokenForest(Shared):
    """Nodes of the trie of a vocabulary, and sets of nodes below which tokens go on alike, as one node.

    A node of the trie has its own number, a set of several a number behind these. The child of a set by a byte is the set
    of the children of its nodes. So what is read behind a closing quote, wherever in tokens that stands, is read once.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary, self.trie = vocabulary, Trie.of(vocabulary)
        self.lock = threading.RLock()
        self.single_bytes = {token[0] for token in vocabulary.tokens if len(token) == 1}
        self.kept = Cache[Hashable, Any](MOST_BYTES)
        self._sets: list[NDArray[np.int64]] = []
        self._numbers: dict[bytes, int] = {}
        self._children: dict[int, dict[int, int]] = {}
        classes = np.full(len(vocabulary), NEVER, dtype=np.int32)
        classes[vocabulary.eos_ids[0]] = EOS
        self.nothing = Partition(classes, EOS + 1)
        self._tables: ForestTables | None = None

    @cached_property
    def spells_escapes(self) -> bool:
        """True if some token goes on behind a character that it spells by its code."""
        return any(_ESCAPE.search(token) for token in self.vocabulary.tokens)

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> TokenForest:
        """Return the forest of a vocabulary, one for all guides."""
        return _forests.of((vocabulary.fingerprint, vocabulary.eos_ids), lambda: cls(vocabulary))

    @property
    def tables(self) -> ForestTables | None:
        """The tables that compiled walks read; ``None`` where there are none."""
        if self._tables is None and library() is not None:
            self._tables = ForestTables(self)
        return self._tables

    def forget(self, tables: ForestTables) -> None:
        """Make tables anew, unless this was done, and what is kept with their words."""
        if self._tables is tables:
            self._tables = None
            self.kept.clear()

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

    def ending(self, nodes: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the tokens that end at some nodes, those of each together, and how many each has."""
        if not len(nodes) or nodes.max() < len(self.trie):
            return self.trie.ending(nodes)
        each = [self.nodes(node) for node in nodes.tolist()]
        ids, counts = self.trie.ending(np.concatenate(each))
        return ids, np.add.reduceat(counts, np.cumsum([0, *map(len, each[:-1])]))

    def order(self, nodes: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the order of nodes by the texts that end there; a set stands where its first node does."""
        if len(sets := np.flatnonzero(nodes >= len(self.trie))):
            nodes = nodes.copy()
            nodes[sets] = [self._sets[node - len(self.trie)][0] for node in nodes[sets].tolist()]
        return self.trie.preorder[nodes].argsort(kind="stable")

    def text(self, node: int, above: int) -> bytes:
        """Return the bytes on the way to a node of the trie from those that another stands for."""
        tops = set(self.nodes(above).tolist())
        found = bytearray()
        while node not in tops:
            found.append(int(self.trie.byte[node]))
            node = int(self.trie.parent[node])
        return bytes(reversed(found))

    def partition(
        self, base: Split | None, ids: NDArray[np.int32], classes: NDArray[np.integer], size: int
    ) -> Partition:
        """Return the partition into ``size`` classes that is that of ``base`` but for some tokens, made once."""
        if base is not None and not len(ids):
            return base.partition
        below = self.nothing if base is None else base.partition
        # Its classes are made when they are asked for, and then take as much.
        key = base, blake2b(ids.tobytes()).digest(), blake2b(classes.tobytes()).digest()
        return self.kept.of(
            key, lambda: Partition.changed(below, [(ids, classes)], size), lambda found: 4 * len(self.vocabulary)
        )


_forests = Cache[tuple[str, tuple[int, ...]], TokenForest](4)


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


@final
class Split:
    """Transitions of tokens below a node in a string, by states of automata alone: those that stay, and exits.

    Characters are told apart by their count where ``counted``. A string is closed where an automaton accepts.
    """

    def __init__(self, forest: TokenForest, begun: Begun, node: int, *, counted: bool) -> None:
        self._forest, self._begun, self.counted = forest, begun, counted
        self._nodes = forest.nodes(node)
        self._found: dict[Hashable, Any] = {}

    @classmethod
    def within(cls, forest: TokenForest, spelled: Sequence[Spelled | None], node: int) -> Split | None:
        """Return the split in a string, by the sets whose automata read on off the paths of listed texts; ``None`` for none.

        It is made once for a vocabulary.
        """
        sets = [one for one in spelled if one is not None and one.reads_on]
        begun = tuple(dict.fromkeys((one.automaton, one.state) for one in sets))
        counted = any(one.counts for one in sets)
        size = 1000 if node else 4 * len(forest.vocabulary)
        make = partial(cls, forest, begun, node, counted=counted)
        return forest.kept.of((begun, node, counted), make, lambda split: size) if begun else None

    @property
    def stays(self) -> Ways:
        """The groups of tokens that stay."""
        return self._ways[0]

    @property
    def exits(self) -> Ways:
        """The groups of nodes at the end."""
        return self._ways[1]

    @cached_property
    def _ways(self) -> tuple[Ways, Ways]:
        tables = self._forest.tables
        return (tables and tables.spread(self._begun, self._nodes, counted=self.counted)) or self._spread(self._nodes)

    @cached_property
    def partition(self) -> Partition:
        """The partition of the tokens that stay, a class for each group behind those of all partitions."""
        ids, counts = self._forest.trie.ending(self.stays.nodes)
        groups = EOS + 1 + np.repeat(np.arange(len(self.stays.sizes)), self.stays.sizes)
        return Partition.changed(
            self._forest.nothing, [(ids, np.repeat(groups, counts))], EOS + 1 + len(self.stays.sizes)
        )

    def alive(self, spelled: Sequence[Spelled | None]) -> NDArray[np.bool_]:
        """Return the mask of the groups of tokens after which a member of some of the sets may come."""
        ways = [one.alive(self._states(self.stays, one), self.stays.characters) for one in self._sets(spelled).values()]
        return np.asarray(np.logical_or.reduce(ways))

    def word(self, spelled: Sequence[Spelled | None], tables: ForestTables) -> int:
        """Return the number of the packed mask of the tokens after which a member of some of the sets may come."""
        alive = self.alive(spelled)
        return self._once(("word", alive.tobytes()), (), lambda: tables.word(self, alive))

    def onward(self, spelled: Sequence[Spelled | None], number: int) -> tuple[Spelled | None, ...]:
        """Return the spelled values after the tokens of a group; ``None`` for those that read on no more."""
        sets, characters = self._sets(spelled), int(self.stays.characters[number])
        found = list[Spelled | None]()
        for place, one in enumerate(spelled):
            state = int(self._states(self.stays, one)[number]) if one is not None and place in sets else DEAD
            found.append(one.moved(state, characters) if one is not None and state != DEAD else None)
        return tuple(found)

    def closings(self, spelled: Sequence[Spelled | None]) -> dict[int, NDArray[np.bool_]]:
        """Return the mask of the exits that close a member of each of some sets, by its place."""

        def find() -> dict[int, NDArray[np.bool_]]:
            open_, closing = np.ones(len(self.exits.characters), dtype=bool), dict[int, NDArray[np.bool_]]()
            for place, one in self._sets(spelled).items():
                here = one.closes(self._states(self.exits, one), self.exits.characters) & open_
                if here.any():
                    closing[place], open_ = here, open_ & ~here
            return closing

        return self._once("closings", spelled, find)

    def _once(self, name: Hashable, spelled: Sequence[Spelled | None], find: Callable[[], Kept]) -> Kept:
        """Find something of some sets once: behind the paths of listed texts, how far these are spelled does not matter."""
        loose = ((one.automaton, one.state, one.words.without) if type(one) is Listed else one for one in spelled)
        key = name, *loose
        if key not in self._found:
            if len(self._found) > MOST_FOUND:
                self._found.clear()
            self._found[key] = find()
        found: Kept = self._found[key]
        return found

    @staticmethod
    def _sets(spelled: Sequence[Spelled | None]) -> dict[int, Spelled]:
        return {place: one for place, one in enumerate(spelled) if one is not None and one.reads_on}

    def _states(self, ways: Ways, one: Spelled) -> NDArray[np.integer]:
        return ways.states[:, self._begun.index((one.automaton, one.state))]

    def _spread(self, nodes: NDArray[np.integer]) -> tuple[Ways, Ways]:
        """Walk the trie level by level: those that stay, and exits."""
        trie, automata = self._forest.trie, [automaton for automaton, _ in self._begun]
        at = [np.full(len(nodes), state) for _, state in self._begun]
        count = np.zeros(len(nodes), dtype=np.int64)
        stays: list[list[NDArray[Any]]] = []
        ends: list[list[NDArray[Any]]] = []
        while len(nodes):
            nodes, above = trie.children(nodes)
            byte, count = trie.byte[nodes], count[above]
            at = [one.steps(states.take(above), byte) for one, states in zip(automata, at, strict=True)]
            closes = [one.closed(states) for one, states in zip(automata, at, strict=True)]
            closing = np.logical_or.reduce(closes)
            # A state behind the quote tells what is closed; others do not matter.
            behind = [np.where(one[closing], states[closing], DEAD) for one, states in zip(closes, at, strict=True)]
            ends.append([nodes[closing], count[closing], *behind])
            inside = np.flatnonzero(np.logical_or.reduce([states != DEAD for states in at]) & ~closing)
            nodes, count, *at = (array.take(inside) for array in (nodes, count, *at))
            if self.counted:
                begins = [one.begins(states) for one, states in zip(automata, at, strict=True)]
                count = count + np.logical_or.reduce(begins)
            here = np.flatnonzero(trie.is_end[nodes])
            stays.append([array.take(here) for array in (nodes, count, *at)])
        return Ways.told_apart(stays, len(automata)), Ways.told_apart(ends, len(automata))


class FullError(Exception):
    """The tables of compiled walks are full."""


@final
class Marked(NamedTuple):
    """Tokens below a node within a string: the packed mask of those that stay, by its number, and the nodes at the end.

    ``exits`` are the nodes behind the closing quote, in their order, by which of some automata, the first that accepts, tells them.
    """

    word: int
    exits: list[tuple[int, NDArray[np.integer]]]


@final
class Part:
    """The tokens of characters of one kind, up to the ``longest``, and the trie of all others in depth-first order."""

    def __init__(self, trie: Trie, kind: int, characters: NDArray[np.integer], longest: int) -> None:
        characters = np.where(characters <= longest, characters, 0)
        self.kind, self.longest, self.entries = kind, int(characters.max(initial=0)), entries_of(trie, characters == 0)
        self._characters = characters[trie.node_of]
        self._words: dict[int, NDArray[np.uint32]] = {}

    def word(self, longest: int) -> NDArray[np.uint32]:
        """Return the packed mask of the tokens of at most so many characters."""
        if longest not in self._words:
            bits = np.zeros(-(-len(self._characters) // 32) * 32, dtype=bool)
            bits[: len(self._characters)] = (0 < self._characters) & (self._characters <= longest)
            self._words[longest] = np.packbits(bits, bitorder="little").view(np.uint32)
        return self._words[longest]


def entries_of(trie: Trie, needed: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return the entries of compiled walks in depth-first order: of nodes at or below which a token ends at a ``needed`` node.

    ``int32[E, 4]``: the number of entries at and below each, its depth and byte, the token that ends there, and the node.
    """
    order = np.empty(len(trie), dtype=np.int64)
    order[trie.preorder] = np.arange(len(trie))
    ids, counts = trie.ending(order)
    first = np.cumsum(counts) - counts
    counts[0] = 0  # what ends at the root writes nothing
    depth = np.repeat(np.arange(len(trie.levels) - 1), np.diff(trie.levels))[order]
    behind, last = np.cumsum(np.append(0, (needed & trie.is_end)[order])), np.arange(len(trie)) + trie.sizes[order]
    kept = behind[last] > behind[:-1]
    kept[0] = True
    place = np.cumsum(np.append(0, kept))
    token = np.where(counts == 1, ids[np.minimum(first, len(ids) - 1)] if len(ids) else -1, np.where(counts, -2, -1))
    entries = np.stack([place[last] - place[:-1], depth << 8 | trie.byte[order], token, order], axis=1)
    return np.ascontiguousarray(entries[kept], dtype=np.int32)


@final
class ForestTables:
    """A vocabulary's trie, and the sets of its nodes, as the walk reads them; words of tokens, shared by all guides."""

    def __init__(self, forest: TokenForest) -> None:
        self.forest, trie, size = forest, forest.trie, len(forest.trie)
        ids, counts = trie.ending(np.arange(size))
        starts = np.cumsum(counts) - counts
        counts[0] = 0  # what ends at the root writes nothing
        self.width = -(-len(forest.vocabulary) // 32)
        children = np.diff(trie.first_child)
        self.tables = {
            name: _filled(part, more)
            for name, part, more in (
                ("first", trie.first_child[:-1], MORE_NODES),
                ("count", children, MORE_NODES),
                ("byte", trie.byte, MORE_CHILDREN),
                ("child", np.arange(size), MORE_CHILDREN),
                ("token_first", starts, MORE_NODES),
                ("token_count", counts, MORE_NODES),
                ("token", ids, MORE_TOKENS),
            )
        }
        self.words = np.zeros((MOST_WORDS // (4 * self.width), self.width), np.uint32)
        self.count = self.tables["count"].data
        self.compiled: Any = library()
        self._lengths = np.empty(MOST_GROUPS + 1, np.int32)
        self.room = size  # for the nodes that a spread comes to
        self._depth = len(trie.levels) - 2
        self._entries, self._preorder = entries_of(trie, np.ones(size, dtype=bool)), trie.preorder
        self._levels = np.empty((self._depth + 2) * (ALONGSIDE + 1), np.int32)
        self._waiting, self._seen = np.empty(0, np.int32), np.empty(0, np.uint8)
        self._found = [np.empty(rows * self.room, np.int32) for rows in (1, 2)]
        self._groups = np.empty((MOST_GROUPS, FIELDS), np.int32)
        self._walk = WalkTables()
        self.enter_into(self._walk)
        self.spare: list[Any] = []  # the tables of guides that are gone
        self.spells_escapes = forest.spells_escapes
        self._words = 0
        self._children, self._tokens = size, len(ids)

    def enter_into(self, walk: WalkTables) -> None:
        """Give a walk the addresses of the tables."""
        for name, table in (*self.tables.items(), ("words", self.words)):
            setattr(walk, name, table.ctypes.data)

    def _new_word(self) -> int:
        if self._words == len(self.words):
            raise FullError
        self._words += 1
        return self._words - 1

    def marked(self, spelled: Sequence[Spelled | None], node: int) -> tuple[Marked, tuple[int, ...]] | None:
        """Return the tokens below a node, off the paths of listed texts, made once, and the place of the sets that exits are told by.

        ``None`` where there are no such sets, or as :meth:`spread`.
        """
        sets = {place: one for place, one in enumerate(spelled) if one is not None and one.reads_on}
        bounds = [self._bounds(one) for one in sets.values()]
        if None in bounds:
            return None
        begun = dict[Any, int]()
        for (place, one), lengths in zip(sets.items(), bounds, strict=True):
            begun.setdefault((one.automaton, one.state, lengths), place)
        if not begun:
            return None
        marked = self.forest.kept.of(("marked", *begun, node), lambda: self._mark(tuple(begun), node), lambda _: 1000)
        return marked and (marked, tuple(begun.values()))

    def _bounds(self, one: Spelled) -> tuple[int, int] | None:
        """Return the fewest and the most characters of the rest of a member, as far as one token tells; ``None`` if it takes more."""
        if type(one) is Listed:
            return 0, UNBOUNDED
        if one.automaton.most or len(one.lengths) > 1:
            return None
        (low, high), longest = one.lengths[0], self._depth
        most = UNBOUNDED if high is None or high - one.written > longest else high - one.written
        return min(max(low - one.written, 0), longest), most

    def _mark(self, begun: Sequence[tuple[Composed, int, tuple[int, int]]], node: int) -> Marked | None:
        automata = self._automata([(automaton, state) for automaton, state, _ in begun])
        if automata is None:
            return None
        for one, (_, _, (least, most)) in zip(automata, begun, strict=False):
            one.least, one.most = least, most
        number = self._new_word()
        word, entries = self.words[number], self._entries
        word[:] = 0
        if not node and len(begun) == 1:
            rows = len(begun[0][0].flat.rows)
            for part in self._parts:
                longest = min(part.longest, automata[0].most)
                if self.compiled.holds(ctypes.addressof(automata), part.kind, longest, *self._room_for(rows)):
                    word[:], entries = part.word(longest), part.entries
                    break
        self._walk.mask = word.ctypes.data
        found = self._spread(automata, len(begun), entries, self.forest.nodes(node), marking=True)
        if found is None:
            self._words -= 1
            return None
        exits = found[1]
        pieces = np.split(exits.nodes, exits.first[1:-1]) if len(exits.nodes) else []
        return Marked(
            number, [(one, np.sort(piece)) for one, piece in zip(exits.states[:, 0].tolist(), pieces, strict=True)]
        )

    def _room_for(self, rows: int) -> tuple[int, int, int]:
        """Return the addresses of room for that many rows, and their number."""
        if len(self._seen) < rows:
            self._waiting, self._seen = np.empty(2 * rows, np.int32), np.empty(2 * rows, np.uint8)
        return self._waiting.ctypes.data, self._seen.ctypes.data, rows

    @cached_property
    def _parts(self) -> list[Part]:
        """The kinds of tokens that automata often hold all of, those of most tokens first."""
        trie, every = self.forest.trie, free(ascii=False)
        plain, inner = np.zeros(len(trie), np.int64), np.zeros(len(trie), np.int64)
        stays = Split(self.forest, ((every, every.start),), 0, counted=True).stays
        begun = stays.characters + (stays.states[:, 0] != every.start)
        plain[stays.nodes] = begun.repeat(stays.sizes)
        alone = np.isin(trie.byte, list(ALPHANUMERIC))
        above, lead = trie.byte[trie.parent], trie.byte[trie.parent[trie.parent]]
        # U+2028 and U+2029 end lines, where patterns often stop.
        escaped = (trie.byte == BACKSLASH) | ((lead == 0xE2) & (above == 0x80) & (trie.byte & 0xFE == 0xA8))
        escaped[0], alone[0] = False, True
        for depth, (start, end) in enumerate(pairwise(trie.levels.tolist())):
            parent = trie.parent[start:end]
            escaped[start:end] |= escaped[parent]
            alone[start:end] &= alone[parent]
            inner[start:end] = np.where(alone[start:end], depth, 0)
        plain[escaped] = 0
        inner[~trie.is_end] = 0
        return [
            Part(trie, kind, characters, longest)
            for kind, characters in enumerate((plain, inner))
            for longest in (self._depth, LONG)
        ]

    def _automata(self, begun: Begun) -> Any:
        if len(begun) > ALONGSIDE:
            return None
        automata = (Automaton * ALONGSIDE)()
        for place, (automaton, state) in enumerate(begun):
            if automaton.entry is None:
                return None
            automata[place] = automaton.entry
            automata[place].start = state
        return automata

    def spread(self, begun: Begun, nodes: NDArray[np.int64], *, counted: bool) -> tuple[Ways, Ways] | None:
        """Return the tokens that stay, and the exits, of :class:`Split`; ``None`` where automata, groups or nodes are too many."""
        automata = self._automata(begun)
        return automata and self._spread(automata, len(begun), self._entries, nodes, counted=counted)

    def _spread(
        self,
        automata: Any,
        alongside: int,
        entries: NDArray[np.int32],
        nodes: NDArray[np.int64],
        *,
        counted: bool = False,
        marking: bool = False,
    ) -> tuple[Ways, Ways] | None:
        (node, group), table = self._found, self._groups
        places = self._preorder[nodes]
        made = self.compiled.spread(
            ctypes.addressof(self._walk), ctypes.addressof(automata), alongside, entries.ctypes.data, places.ctypes.data,
            len(nodes), counted, marking, self.room, node.ctypes.data, group.ctypes.data, table.ctypes.data,
            self._lengths.ctypes.data, self._levels.ctypes.data,
        )  # fmt: skip
        if made < 0:
            return None
        sizes, count, ways = np.diff(self._lengths[: made + 1]), self._lengths[made], list[Ways]()
        for is_end in (False, True):
            here = table[:made, 0] == is_end
            first = np.concatenate([[0], np.cumsum(sizes[here])])
            groups = table[:made][here]
            ways.append(Ways(node[:count][np.repeat(here, sizes)], first, groups[:, 2 : 2 + alongside], groups[:, 1]))
        return ways[0], ways[1]

    def word(self, split: Split, alive: NDArray[np.bool_]) -> int:
        """Return the number of a packed mask of some groups of tokens that stay."""
        bits = np.zeros(32 * self.width, bool)
        bits[self.forest.trie.ending(split.stays.of(alive))[0]] = True
        number = self._new_word()
        self.words[number] = np.packbits(bits, bitorder="little").view(np.uint32)
        return number

    def load(self, node: int) -> None:
        """Fill in what is below a set of nodes."""
        tables, below = self.tables, self.forest.children(node)
        last = self._children + len(below)
        if last > len(tables["child"]) or max((node, *below.values())) >= len(tables["first"]):
            raise FullError
        tables["byte"][self._children : last] = list(below)
        tables["child"][self._children : last] = list(below.values())
        tables["first"][node], tables["count"][node] = self._children, len(below)
        self._children = last
        for child in below.values():
            self.enter(child)

    def enter(self, node: int) -> None:
        """Fill in the tokens of a set of nodes; what is below it is unknown yet."""
        tables = self.tables
        if node < len(self.forest.trie) or tables["first"][node] or self.count[node]:
            return
        self.count[node] = -1
        ids, _ = self.forest.trie.ending(self.forest.nodes(node))
        last = self._tokens + len(ids)
        if last > len(tables["token"]):
            raise FullError
        tables["token"][self._tokens : last] = ids
        tables["token_first"][node], tables["token_count"][node] = self._tokens, len(ids)
        self._tokens = last


def _filled(part: NDArray[Any], more: int) -> NDArray[np.int32]:
    table = np.zeros(len(part) + more, np.int32)
    table[: len(part)] = part
    return table
