"""Transitions of tokens from the places of a schema's machine; within strings and blanks, many tokens at once."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ...automata.automaton import DEAD, ByteAutomaton
from ...numerics.cache import Cache
from ...regex.composed import Composed
from ...vocabulary.classes import EOS, NEVER, Partition
from ...vocabulary.trie import Trie
from ...vocabulary.vocabulary import Vocabulary
from .machine.between import Between
from .machine.containers import Key
from .machine.machine import Machine
from .machine.scalars import Listed, Spelled, Text, Walked, ended, on_path
from .machine.states import Blank, ByteEdge, Configuration, Pending, Stack, State

MOST_BYTES = 1 << 27
"""Bytes that are kept of one vocabulary: a partition of 131,072 tokens takes half a megabyte."""

_ESCAPE = re.compile(rb"\\u[0-9a-fA-F]{4}.", re.DOTALL)

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
        self.tables: Any = None  # those of the compiled walk, once it was asked for

    @cached_property
    def spells_escapes(self) -> bool:
        """True if some token goes on behind a character that it spells by its code."""
        return any(_ESCAPE.search(token) for token in self.vocabulary.tokens)

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
        """Return the object of a key, made once for all guides, under a bound of memory."""
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


Begun = tuple[tuple[ByteAutomaton | Composed, int], ...]
"""Automata of spellings that are walked side by side, and the state of each."""


class Stay(NamedTuple):
    """Tokens that stay in the string: the states that they lead to, and how many characters they complete."""

    tokens: Tokens
    states: tuple[int, ...]
    characters: int


class Exit(NamedTuple):
    """Nodes of the trie at a closing quote: the states behind it, and how many characters came before it."""

    nodes: NDArray[np.integer]
    states: tuple[int, ...]
    characters: int


@final
class Split:
    """Transitions of tokens below a node in a string, or in blanks, by states of automata alone: those that stay, and exits.

    Characters are told apart by their count where ``counted``. A string is ``closed`` where an automaton accepts, and goes on no
    more; blanks may go on where something else may follow.
    """

    def __init__(self, forest: TokenForest, begun: Begun, node: int, *, counted: bool, closed: bool) -> None:
        self._forest, self._begun, self._counted, self._closed = forest, begun, counted, closed
        self._spread(forest.nodes(node))
        self._rests: dict[tuple[int, ...], int] = {}

    @classmethod
    def of(cls, forest: TokenForest, begun: Begun, node: int, *, counted: bool = False, closed: bool = True) -> Split:
        """Return the split, made once for a vocabulary."""
        return forest.keep(
            (begun, node, counted, closed),
            lambda: cls(forest, begun, node, counted=counted, closed=closed),
            lambda split: 1000 + sum(stay.tokens.ids.nbytes for stay in split.stays),
        )

    @classmethod
    def within(cls, forest: TokenForest, spelled: Sequence[Spelled | None], node: int) -> Split | None:
        """Return the split in a string, by the sets whose automata read on off the paths of listed texts; ``None`` for none."""
        sets = [one for one in spelled if one is not None and not (isinstance(one, Listed) and not one.words.without)]
        begun = dict[tuple[ByteAutomaton | Composed, int], None](((one.automaton, one.state), None) for one in sets)
        counted = any(not isinstance(one, Listed) and one.counts for one in sets)
        return cls.of(forest, tuple(begun), node, counted=counted) if begun else None

    def closings(self, spelled: Sequence[Spelled | None]) -> dict[int, list[int]]:
        """Return the numbers of the exits that close a member of each of some sets, by its place."""
        closing: dict[int, list[int]] = {}
        for number, exit_ in enumerate(self.exits):
            states = self.states(exit_)
            for place, one in enumerate(spelled):
                if (after := later(one, states, exit_.characters)) is not None and ended(after):
                    closing.setdefault(place, []).append(number)
                    break
        return closing

    def states(self, way: Stay | Exit) -> dict[ByteAutomaton | Composed, int]:
        """Return the state of each automaton behind tokens that stay in the string, or behind its closing quote."""
        return {automaton: state for (automaton, _), state in zip(self._begun, way.states, strict=True)}

    def rest(self, exits: Sequence[int], without: Sequence[NDArray[np.int64]]) -> int | None:
        """Return the node that stands for those of some of the exits, ``None`` for none."""
        key = tuple(exits)
        if not key or (not without and key in self._rests):
            return self._rests.get(key)
        nodes = np.sort(np.concatenate([self.exits[place].nodes for place in exits]))
        if without:
            nodes = np.setdiff1d(nodes, np.concatenate(without), assume_unique=True)
            return self._forest.joined(nodes) if len(nodes) else None
        self._rests[key] = self._forest.joined(nodes)
        return self._rests[key]

    def _spread(self, nodes: NDArray[np.integer]) -> None:
        """Walk the trie level by level."""
        trie, automata = self._forest.trie, [automaton for automaton, _ in self._begun]
        at = [np.full(len(nodes), state) for _, state in self._begun]
        count = np.zeros(len(nodes), dtype=np.int64)
        stays: list[list[NDArray[Any]]] = []
        ends: list[list[NDArray[Any]]] = []
        if not self._closed:
            open_ = automata[0].closed(at[0])
            ends.append([nodes[open_], count[open_], at[0][open_]])
        while len(nodes):
            nodes, above = trie.children(nodes)
            byte, count = trie.byte[nodes], count[above]
            at = [one.steps(states.take(above), byte) for one, states in zip(automata, at, strict=True)]
            closes = [one.closed(states) for one, states in zip(automata, at, strict=True)]
            closing = np.logical_or.reduce(closes)
            if closing.any():
                # A state behind the quote tells what is closed; others do not matter.
                behind = [np.where(one[closing], states[closing], DEAD) for one, states in zip(closes, at, strict=True)]
                ends.append([nodes[closing], count[closing], *behind])
            alive = np.logical_or.reduce([states != DEAD for states in at])
            inside = np.flatnonzero(alive & ~closing if self._closed else alive)
            nodes, count, *at = (array.take(inside) for array in (nodes, count, *at))
            if self._counted:
                begins = [one.begins(states) for one, states in zip(automata, at, strict=True)]
                count = count + np.logical_or.reduce(begins)
            here = np.flatnonzero(trie.is_end[nodes])
            stays.append([array.take(here) for array in (nodes, count, *at)])
        self.stays = [Stay(Tokens(trie.ending(nodes)[0]), states, count) for nodes, states, count in _told_apart(stays)]
        self.exits = [Exit(*way) for way in _told_apart(ends)]


def _told_apart(found: Sequence[Sequence[NDArray[Any]]]) -> Iterator[tuple[NDArray[Any], tuple[int, ...], int]]:
    """Group nodes by their states and number of characters."""
    if found:
        nodes, count, *at = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        for members in _groups([*at, count]):
            yield nodes[members], tuple(int(one[members[0]]) for one in at), int(count[members[0]])


def _groups(rows: Sequence[NDArray[Any]]) -> list[NDArray[np.int64]]:
    """Return the places of each distinct column."""
    if not len(rows[0]):
        return []
    code = np.zeros(len(rows[0]), dtype=np.int64)
    for row in filter(np.any, rows):
        code = _ranks(code * (int(row.max()) + 1) + row)
    # Numbers of sixteen bits are sorted in a fraction of the time.
    order = np.argsort(code.astype(np.uint16) if code.max() < 1 << 16 else code, kind="stable")
    cuts = np.flatnonzero(np.diff(code[order], prepend=-1)).tolist()
    return [order[a:b] for a, b in zip(cuts, [*cuts[1:], len(order)], strict=True)]


def _ranks(code: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each number among the distinct ones."""
    most = int(code.max())
    if most > 16 * len(code):
        return np.unique(code, return_inverse=True)[1]
    there = np.zeros(most + 1, dtype=bool)
    there[code] = True
    return (np.cumsum(there) - 1)[code]


MOST_WALKS = 50_000
"""Walks of one guide that are kept."""

Afters = tuple[Sequence[State], ...]


class Ends(NamedTuple):
    """Tokens that end in one place: the state, and what was put on the stack on the way."""

    tokens: Tokens
    state: State
    pushed: Afters


class Pop(NamedTuple):
    """The exit of a token from a value: the node, the outcome, and whether the value's own last byte did."""

    node: int
    outcome: int
    closed: bool


class Walk(NamedTuple):
    """The transitions of tokens from a state on, below a node of the forest, whatever the stack is.

    Attributes
    ----------
    inside
        Disjoint tokens that stay in a string, and the states that they lead to, ``None`` where they are not allowed. A name
        without its text stands for one state of each token.
    ends, pops
        The ends of other tokens, and their exits from the value. The last end of a token is the one that holds.
    """

    inside: list[tuple[Tokens, State | None]]
    ends: list[Ends]
    pops: list[Pop]


@final
class Walks:
    """Transitions of tokens by the place within a value alone; kept without the stack."""

    def __init__(self, machine: Machine, forest: TokenForest) -> None:
        self._machine, self._forest = machine, forest
        self._walks: dict[tuple[State, int], Walk] = {}

    def reached(self, at: Configuration) -> tuple[list[tuple[Tokens, State | None]], list[tuple[Ends, Stack]]]:
        """Return the tokens that stay in a string, and where others end, with the stack that they began on."""
        state, stack, text = at
        walk = self._walk(state, 0)
        inside = walk.inside
        found = [(ends, stack) for ends in walk.ends]
        pops = walk.pops
        while pops:
            assert stack is not None  # a value stands within what comes before it and after it
            above = stack.below
            walk = Walk([], [], [])
            for pop in pops:
                self._resume(walk, pop, stack.after, 0, text[stack.start :])
            found += [(ends, above) for ends in walk.ends]
            pops, stack = walk.pops, above
        return inside, found

    def _walk(self, state: State, node: int) -> Walk:
        """Return the transitions of tokens from a state on, below a node."""
        key = state, node
        walk = self._walks.get(key)
        if walk is None:
            walk = Walk([], [], [])
            if isinstance(state, Blank):
                self._blanks(walk, state, node)
            elif isinstance(state, (Text, Key)):
                self._string(walk, state, node)
            elif isinstance(state, Between) and state.bytes is None:
                self._between(walk, state, node)
            else:
                if state.ends is not None:
                    walk.pops.append(Pop(node, state.ends, closed=False))
                self._bytes(walk, state, node)
            if len(self._walks) >= MOST_WALKS:
                self._walks.clear()
            # What patterns keep in a string takes room, and is asked for once, for a row that is kept.
            if node or not isinstance(state, (Text, Key)) or not any(isinstance(one, Walked) for one in state.spelled):
                self._walks[key] = walk
        return walk

    def _bytes(self, walk: Walk, state: State, node: int) -> None:
        """Read byte by byte."""
        children = self._forest.children(node)
        for byte in children if state.bytes is None else state.bytes:
            child = children.get(byte)
            if child is not None and (edge := state.edge(byte)) is not None:
                self._follow(walk, edge, child)

    def _follow(self, walk: Walk, edge: ByteEdge, node: int) -> None:
        """Go on behind an edge that was read at a node."""
        if edge.target is None:
            walk.pops.append(Pop(node, edge.outcome, closed=True))
            return
        pushed = () if edge.after is None else (edge.after,)
        self._arrive(walk, node, edge.target, pushed)
        below = self._walk(edge.target, node)
        walk.ends.extend(Ends(tokens, state, pushed) for tokens, state in below.inside if state is not None)
        if edge.after is None:
            walk.ends.extend(below.ends)
            walk.pops.extend(below.pops)
        else:
            walk.ends.extend(Ends(tokens, state, pushed + more) for tokens, state, more in below.ends)
            first = self._forest.last_byte(node)
            for pop in below.pops:
                self._resume(walk, pop, edge.after, node, first)

    def _resume(self, walk: Walk, pop: Pop, after: Sequence[State], above: int, text: bytes) -> None:
        """Go on in the value around the one that was left, which is ``text`` up to a node ``above``."""
        state, forest = after[pop.outcome], self._forest
        if isinstance(state, Pending):  # each text is a value of its own
            ways = [(state.then(text + forest.text(one, above)), one) for one in forest.nodes(pop.node).tolist()]
        else:
            ways = [(state, pop.node)]
        for state, node in ways:
            if pop.closed:
                self._arrive(walk, node, state)
            below = self._walk(state, node)
            walk.ends.extend(below.ends)
            walk.pops.extend(below.pops)

    def _arrive(self, walk: Walk, node: int, state: State, pushed: Afters = ()) -> None:
        tokens = self._forest.tokens(node)
        if tokens is not None:
            walk.ends.append(Ends(tokens, state, pushed))

    def _between(self, walk: Walk, state: Between, node: int) -> None:
        """Read all tokens between values at once, and those that begin a value from there on."""
        trie, states = self._forest.trie, {state: 0}
        nodes = self._forest.nodes(node)
        at = np.zeros(len(nodes), dtype=np.int64)
        stays: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        begun: list[tuple[ByteEdge, NDArray[np.int64]]] = []
        while len(nodes):
            children, per_node = trie.below(nodes)
            ways, place = np.unique(np.repeat(at, per_node) * 256 + trie.byte[children], return_inverse=True)
            targets, known = np.full(len(ways), -1), list(states)
            for way, (number, byte) in enumerate(divmod(way, 256) for way in ways.tolist()):
                edge = known[number].edge(byte)
                if edge is not None and isinstance(edge.target, Between):
                    targets[way] = states.setdefault(edge.target, len(states))
                elif edge is not None:
                    begun.append((edge, np.sort(children[place == way])))
            at = targets[place]
            nodes, at = children[at >= 0], at[at >= 0]
            stays.append((nodes[trie.is_end[nodes]], at[trie.is_end[nodes]]))
        nodes, at = (np.concatenate(arrays) for arrays in zip(*stays, strict=True)) if stays else (nodes, at)
        known = list(states)
        for members in _groups([at]):
            walk.ends.append(Ends(Tokens(trie.ending(nodes[members])[0]), known[at[members[0]]], ()))
        for edge, first in begun:
            self._follow(walk, edge, self._forest.joined(first))

    def _blanks(self, walk: Walk, state: Blank, node: int) -> None:
        """Read blanks at once, and behind them what comes after."""
        split = Split.of(self._forest, ((state.blanks, state.at),), node, closed=False)
        for tokens, (at,), _ in split.stays:
            walk.ends.append(Ends(tokens, self._machine.blank(state.core, state.blanks, at), ()))
        behind = split.rest(range(len(split.exits)), ())
        if behind is not None:
            below = self._walk(state.core, behind)
            walk.ends.extend(Ends(tokens, onward, ()) for tokens, onward in below.inside if onward is not None)
            walk.ends.extend(below.ends)
            walk.pops.extend(below.pops)

    def _string(self, walk: Walk, state: Text | Key, node: int) -> None:
        """Read the tokens within a string, many at once; those that spell one of some values are read byte by byte."""
        along, taken = Walk([], [], []), list[int]()
        self._along(along, state, node, taken)
        split = Split.within(self._forest, state.spelled, node)
        if split is not None:
            self._many(walk, state, node, split, taken)
        walk.ends.extend(along.ends)
        walk.pops.extend(along.pops)

    def _along(self, walk: Walk, state: Text | Key, node: int, taken: list[int]) -> bool:
        """Read the tokens that spell one of some values, or begin to; return whether any may. Where it is closed is ``taken``."""
        path = on_path(state.spelled)
        children = self._forest.children(node) if path else {}
        for byte in path:
            child = children.get(byte)
            if child is None:
                continue
            edge = state.edge(byte)
            if edge is None or not isinstance(edge.target, (Text, Key)):
                taken.append(child)
                if edge is not None:
                    self._follow(walk, edge, child)
            else:
                place = len(walk.ends)
                if self._along(walk, edge.target, child, taken) and (tokens := self._forest.tokens(child)) is not None:
                    walk.ends.insert(place, Ends(tokens, edge.target, ()))
        return bool(path)

    def _many(self, walk: Walk, state: Text | Key, node: int, split: Split, taken: Sequence[int]) -> None:
        """Read all other tokens."""
        for stay in split.stays:
            states = split.states(stay)
            onward = tuple(later(one, states, stay.characters) for one in state.spelled)
            walk.inside.append((stay.tokens, state.later(onward)))
        without = [self._forest.nodes(node) for node in taken]
        for place, exits in split.closings(state.spelled).items():
            rest = split.rest(exits, without)
            if rest is None:
                continue
            if isinstance(state, Key) and state.counts:
                for one in self._forest.nodes(rest).tolist():  # each is a name of its own
                    self._follow(walk, state.closed(place, self._forest.text(one, node)[:-1]), one)
            else:
                self._follow(walk, state.closed(place), rest)


def later(one: Spelled | None, states: Mapping[ByteAutomaton | Composed, int], characters: int) -> Spelled | None:
    """Return the spelled value after bytes that leave its listed prefixes: in states of automata, or ``None``."""
    if one is None or (isinstance(one, Listed) and not one.words.without):
        return None
    state = states[one.automaton]
    return one.moved(state, characters) if state != DEAD else None
