"""The tokens of a vocabulary below nodes of its trie, many at once; and the tables of that trie that compiled walks read."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, TypeVar, final
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from ...automata.automaton import DEAD
from ...numerics.cache import Cache, Shared
from ...vocabulary.kernel import WalkTables, library
from ...vocabulary.special_tokens import SPELLING_BYTES
from ...vocabulary.trie import Trie
from ...vocabulary.vocabulary import EOS, NEVER, Partition, Vocabulary
from .machine.scalars import Listed, Spelled
from .spreads import Begun, Bounded, Marked, Spreads, Ways, check_room

MORE_NODES, MORE_CHILDREN, MORE_TOKENS = 1 << 18, 1 << 20, 1 << 22
"""Sets of nodes, their children, and the tokens that end there, in the tables of compiled walks."""

MOST_WORDS = 1 << 26
"""Bytes of packed masks of tokens within strings, of one vocabulary."""

MOST_FOUND = 2_048
"""Sets in a string of which it is kept what closes them."""

MOST_BYTES = 1 << 25
"""Bytes that are kept of one vocabulary: of 131,072 tokens those within a string take half a megabyte."""

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
        if vocabulary.plain is not None:  # what special tokens are spelled in has no other use there
            self.single_bytes |= SPELLING_BYTES
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

    def subtree(self, node: int) -> NDArray[np.int64]:
        """Return the nodes of the trie at and below those that a node stands for, in ascending order."""
        found = [self.nodes(node)]
        while len(found[-1]):
            found.append(self.trie.below(found[-1])[0])
        return np.sort(np.concatenate(found))

    def children(self, node: int) -> dict[int, int]:
        """Return the child by each byte."""
        if node < len(self.trie):
            return self.trie.edges(node)
        found = self._children.get(node)
        if found is None:
            found = self._children[node] = self._find_children(node)
        return found

    def _find_children(self, node: int) -> dict[int, int]:
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
        key = base, blake2b(ids.tobytes()).digest(), blake2b(classes.tobytes()).digest()
        make = lambda: Partition.changed(below, [(ids, classes)], size)  # noqa: E731
        return self.kept.of(key, make, lambda found: 1000 + ids.nbytes + classes.nbytes)


_forests = Cache[tuple[str, tuple[int, ...]], TokenForest](4)


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
        found = tables and tables.spreads.spread(self._begun, self._nodes, counted=self.counted)
        return found or self._spread(self._nodes)

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
        return self._once(("word", alive.tobytes()), (), lambda: tables.word(self.stays.of(alive)))

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


@final
class ForestTables(Shared):
    """A vocabulary's trie, and the sets of its nodes, as the walk reads them; words of tokens, shared by all guides."""

    def __init__(self, forest: TokenForest) -> None:
        self.forest, trie, size = forest, forest.trie, len(forest.trie)
        ids, counts = trie.ending(np.arange(size))
        starts = np.cumsum(counts) - counts
        counts[0] = 0  # what ends at the root writes nothing
        self.width = -(-len(forest.vocabulary) // 32)
        # A token that ends at a node alone stands there itself.
        token = np.where(counts == 1, ids[np.minimum(starts, len(ids) - 1)], starts) if len(ids) else starts
        self.tables = {
            name: _filled(part, more)
            for name, part, more in (
                (
                    "node",
                    np.stack([trie.first_child[:-1], np.diff(trie.first_child), counts, token], axis=1),
                    MORE_NODES,
                ),
                ("byte", trie.byte, MORE_CHILDREN),
                ("child", np.arange(size), MORE_CHILDREN),
                ("token", ids, MORE_TOKENS),
            )
        }
        self.words = np.empty((MOST_WORDS // (4 * self.width), self.width), np.uint32)
        self._address = self.words.ctypes.data
        self.nodes = len(self.tables["node"])
        self._node = self.tables["node"].reshape(-1).data
        self.compiled: Any = library()
        self._walk = WalkTables(width=self.width)
        self.enter_into(self._walk)
        self.spreads = Spreads(trie, self._walk, self.compiled)
        self.spare: list[Any] = []  # the tables of a guide that is gone
        self.spells_escapes = forest.spells_escapes
        self._words = 0
        self._children, self._tokens = size, len(ids)

    def enter_into(self, walk: WalkTables) -> None:
        """Give a walk the addresses of the tables."""
        for name, table in (*self.tables.items(), ("words", self.words)):
            setattr(walk, name, table.ctypes.data)

    def new_word(self) -> int:
        """Return the number of a packed mask that is to be written."""
        check_room(self._words + 1, len(self.words))
        self._words += 1
        return self._words - 1

    def marked(self, spelled: Sequence[Spelled | None], node: int) -> tuple[Marked, tuple[int, ...]] | None:
        """Return the tokens below a node, off the paths of listed texts, made once, and the places of the sets of its exits.

        ``None`` where there are no such sets, or lengths of them take more than one interval, or :meth:`Spreads.mark` says so.
        """
        places = dict[Bounded, int]()
        for place, one in enumerate(spelled):
            if one is not None and one.reads_on:
                rest = one.rest(self.spreads.deepest)
                if rest is None:
                    return None
                places.setdefault((one.automaton, one.state, *rest), place)
        begun = tuple(places)

        def make() -> Marked | None:
            nodes, number = self.forest.nodes(node), self.new_word()
            exits = self.spreads.mark(begun, nodes, self._address + 4 * self.width * number, all_of_it=not node)
            return None if exits is None else Marked(number, exits, {})

        # The formats that are kept hold the automata; words do not.
        key = "marked", tuple((ref(automaton), *rest) for automaton, *rest in begun), node
        found = self.forest.kept.of(key, make, lambda _: 1000) if begun else None
        return found and (found, tuple(places.values()))

    def word(self, nodes: NDArray[np.integer], but: int = -1) -> int:
        """Return the number of a packed mask of the tokens that end at some nodes; of those of mask ``but`` that do not."""
        bits, number = np.zeros(32 * self.width, bool), self.new_word()
        bits[self.forest.trie.ending(nodes)[0]] = True
        word = np.packbits(bits, bitorder="little").view(np.uint32)
        self.words[number] = word if but < 0 else self.words[but] & ~word
        return number

    def is_known(self, node: int) -> bool:
        """Return True if what is below a node was filled in."""
        return self._node[4 * node + 1] >= 0

    def load(self, node: int) -> None:
        """Fill in what is below a set of nodes."""
        tables, below = self.tables, self.forest.children(node)
        last = self._children + len(below)
        check_room(last, len(tables["child"]))
        for child in below.values():
            self.enter(child)
        tables["byte"][self._children : last] = list(below)
        tables["child"][self._children : last] = list(below.values())
        self._node[4 * node], self._node[4 * node + 1] = self._children, len(below)
        self._children = last

    def enter(self, node: int) -> None:
        """Fill in the tokens of a set of nodes; what is below it is unknown yet."""
        own, first = self._node, 4 * node
        check_room(node + 1, self.nodes)
        if node < len(self.forest.trie) or own[first] or own[first + 1]:
            return
        ids, _ = self.forest.trie.ending(self.forest.nodes(node))
        last = self._tokens + len(ids)
        check_room(last, len(self.tables["token"]))
        self.tables["token"][self._tokens : last] = ids
        own[first + 1], own[first + 2], own[first + 3] = -1, len(ids), int(ids[0]) if len(ids) == 1 else self._tokens
        self._tokens = last


def _filled(part: NDArray[Any], more: int) -> NDArray[np.int32]:
    table = np.zeros((len(part) + more, *part.shape[1:]), np.int32)
    table[: len(part)] = part
    return table
