"""What the tokens of a vocabulary do within a string: those that stay in it, and those that close it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...automata.automaton import DEAD, ByteAutomaton
from ...regex.composed import Composed
from .machine.scalars import Spelled, Walked
from .token_forest import TokenForest, Tokens

Begun = tuple[tuple[ByteAutomaton | Composed, int], ...]
"""Automata of spellings that are walked side by side, and the state of each. Characters are counted by the last, which accepts all
strings; a string that another accepts as well is closed by that."""


class Stay(NamedTuple):
    """Tokens that stay in the string: the states that they lead to, and how many characters they complete."""

    tokens: Tokens
    states: tuple[int, ...]
    characters: int


class Exit(NamedTuple):
    """Nodes of the trie at a closing quote: by which automaton it closes, and how many characters came before it."""

    nodes: NDArray[np.integer]
    place: int
    characters: int


@final
class Split:
    """What tokens below a node do in states of automata; the same for all strings of these automata.

    Attributes
    ----------
    stays, exits
        The tokens that stay in the string, and where others close it.
    """

    def __init__(self, forest: TokenForest, begun: Begun, node: int, *, counted: bool) -> None:
        self._forest, self._begun, self._counted = forest, begun, counted
        self.stays: list[Stay] = []
        self.exits: list[Exit] = []
        self._spread(forest.nodes(node))
        self._rests: dict[tuple[int, ...], int] = {}

    @classmethod
    def of(cls, forest: TokenForest, begun: Begun, node: int, *, counted: bool) -> Split:
        """Return the split, made once for a vocabulary; characters are told apart by their count where ``counted``."""
        return forest.keep(
            (begun, node, counted),
            lambda: cls(forest, begun, node, counted=counted),
            lambda split: 1000 + sum(stay.tokens.ids.nbytes for stay in split.stays),
        )

    def states(self, stay: Stay) -> dict[ByteAutomaton | Composed, int]:
        """Return the state of each automaton behind tokens that stay in the string."""
        return {automaton: state for (automaton, _), state in zip(self._begun, stay.states, strict=True)}

    def closes(self, way: Exit, one: Spelled) -> bool:
        """Whether what is spelled closes there."""
        if self._begun[way.place][0] is not one.automaton:
            return False
        return isinstance(one, Walked) or one.closes(way.characters)

    def rest(self, exits: Sequence[int], without: Sequence[NDArray[np.int64]]) -> int | None:
        """Return the node that stands for those of some of the exits, ``None`` for none."""
        key = tuple(exits)
        if not without and key in self._rests:
            return self._rests[key]
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
        closed: list[list[NDArray[Any]]] = []
        while len(nodes):
            nodes, above = trie.children(nodes)
            byte, count = trie.byte[nodes], count[above]
            at = [one.steps(states.take(above), byte) for one, states in zip(automata, at, strict=True)]
            ended = [one.closed(states) for one, states in zip(automata, at, strict=True)]
            closing = np.logical_or.reduce(ended)
            if closing.any():
                place = np.argmax([one[closing] for one in ended], axis=0)
                closed.append([nodes[closing], place, count[closing]])
            alive = np.logical_or.reduce([states != DEAD for states in at])
            inside = np.flatnonzero(alive & ~closing)
            nodes, count, *at = (array.take(inside) for array in (nodes, count, *at))
            if self._counted:
                count = count + (at[-1] == automata[-1].start)
            here = np.flatnonzero(trie.is_end[nodes])
            stays.append([array.take(here) for array in (nodes, count, *at)])
        if stays:
            nodes, count, *at = (np.concatenate(arrays) for arrays in zip(*stays, strict=True))
            for members in groups([*at, count]):
                ids, _ = trie.ending(nodes[members])
                states = tuple(int(one[members[0]]) for one in at)
                self.stays.append(Stay(Tokens(ids), states, int(count[members[0]])))
        if closed:
            nodes, place, count = (np.concatenate(arrays) for arrays in zip(*closed, strict=True))
            for members in groups([place, count]):
                self.exits.append(Exit(nodes[members], int(place[members[0]]), int(count[members[0]])))


class Run(NamedTuple):
    """What tokens below a node do in blanks: those that stay in them, by state, and the node behind blanks; ``None`` for none."""

    stays: list[tuple[Tokens, int]]
    behind: int | None


def run_of(forest: TokenForest, blanks: ByteAutomaton, state: int, node: int) -> Run:
    """Return what tokens do in blanks, made once for a vocabulary."""
    return forest.keep((blanks, state, node), lambda: _run(forest, blanks, state, node), lambda run: 1000)


def _run(forest: TokenForest, blanks: ByteAutomaton, state: int, node: int) -> Run:
    trie = forest.trie
    nodes = forest.nodes(node)
    at = np.full(len(nodes), state)
    stays: list[tuple[NDArray[Any], NDArray[Any]]] = []
    behind = [nodes[blanks.accepting[at]]]
    while len(nodes):
        children, per_node = trie.below(nodes)
        at = blanks.targets[np.repeat(at, per_node), blanks.byte_class[trie.byte[children]]]
        nodes, at = children[at != DEAD], at[at != DEAD]
        behind.append(nodes[blanks.accepting[at]])
        here = trie.is_end[nodes]
        stays.append((nodes[here], at[here]))
    found: list[tuple[Tokens, int]] = []
    nodes, at = (np.concatenate(arrays) for arrays in zip(*stays, strict=True))
    for members in groups([at]):
        found.append((Tokens(trie.ending(nodes[members])[0]), int(at[members[0]])))
    after = np.sort(np.concatenate(behind))
    return Run(found, forest.joined(after) if len(after) else None)


def groups(rows: Sequence[NDArray[Any]]) -> list[NDArray[np.int64]]:
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
