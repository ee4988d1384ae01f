"""Transitions of tokens from the places of a schema's machine, kept without the stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from .machine.between import Between
from .machine.containers import Key
from .machine.machine import Machine
from .machine.scalars import Text, Walked, on_path
from .machine.states import Blank, ByteEdge, Configuration, Pending, Stack, State
from .token_forest import Split, TokenForest, Tokens, groups

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
        for members in groups([at]):
            walk.ends.append(Ends(Tokens(trie.ending(nodes[members])[0]), known[at[members[0]]], ()))
        for edge, first in begun:
            self._follow(walk, edge, self._forest.joined(first))

    def _blanks(self, walk: Walk, state: Blank, node: int) -> None:
        """Read blanks at once, and behind them what comes after."""
        split = Split.of(self._forest, ((state.blanks, state.at),), node, closed=False)
        for number, at in enumerate(split.stays.states[:, 0].tolist()):
            walk.ends.append(Ends(split.tokens(number), self._machine.blank(state.core, state.blanks, at), ()))
        behind = split.rest(np.ones(len(split.exits.characters), dtype=bool))
        if behind is not None:
            below = self._walk(state.core, behind)
            walk.ends.extend(Ends(tokens, onward, ()) for tokens, onward in below.inside if onward is not None)
            walk.ends.extend(below.ends)
            walk.pops.extend(below.pops)

    def _string(self, walk: Walk, state: Text | Key, node: int) -> None:
        """Read the tokens within a string, many at once; those that spell one of some values are read byte by byte."""
        read, taken = Walk([], [], []), list[int]()
        for child, edge in along(self._forest, state, node):
            if edge is None or not isinstance(edge.target, (Text, Key)):
                taken.append(child)
                if edge is not None:
                    self._follow(read, edge, child)
            elif on_path(edge.target.spelled):
                self._arrive(read, child, edge.target)
        split = Split.within(self._forest, state.spelled, node)
        if split is not None:
            self._many(walk, state, node, split, taken)
        walk.ends.extend(read.ends)
        walk.pops.extend(read.pops)

    def _many(self, walk: Walk, state: Text | Key, node: int, split: Split, taken: Sequence[int]) -> None:
        """Read all other tokens."""
        for number in range(len(split.stays.characters)):
            walk.inside.append((split.tokens(number), state.later(split.onward(state.spelled, number))))
        for place, exits in split.closings(state.spelled).items():
            rest = split.rest(exits, taken)
            if rest is None:
                continue
            if isinstance(state, Key) and state.counts:
                for one in self._forest.nodes(rest).tolist():  # each is a name of its own
                    self._follow(walk, state.closed(place, self._forest.text(one, node)[:-1]), one)
            else:
                self._follow(walk, state.closed(place), rest)


def along(forest: TokenForest, state: Text | Key, node: int) -> Iterator[tuple[int, ByteEdge | None]]:
    """Yield the nodes below one that spell listed texts, or begin to, and each with the edge that leads there, or None."""
    path = on_path(state.spelled)
    children = forest.children(node) if path else {}
    for byte in path:
        if (child := children.get(byte)) is not None:
            edge = state.edge(byte)
            yield child, edge
            if edge is not None and isinstance(edge.target, (Text, Key)):
                yield from along(forest, edge.target, child)
