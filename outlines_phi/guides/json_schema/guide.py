"""What a JSON schema allows, token by token."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...checked import check_kind
from ...errors import UnsupportedError, warn_of_schema
from ...partition import EOS, NEVER, Partition
from ...trie import Trie
from ...vocabulary import Vocabulary, check_vocabulary
from ..guide import DEAD, DONE, UNREACHABLE, Guide, Row
from .containers import Key
from .machine import BEYOND_ASCII, BLANKS, Configuration, Machine, Stack
from .scalars import Spelled, Text
from .schema import Schema
from .sizes import NEVER as ENDLESS
from .states import Edge, Pending, State
from .string_steps import groups, step

_FIRST = DONE + 1

_ROWS = 256
"""How many rows are kept."""

MOST_SHOWN = 10
"""Keywords that a warning names."""


class Pushed(NamedTuple):
    """What was put on the stack, and how many bytes of the token come before."""

    after: Sequence[State]
    depth: int


class Ends(NamedTuple):
    """Tokens that end in one place: the nodes of the trie, the state, and what was put on the stack on the way."""

    nodes: NDArray[np.int64]
    state: State
    pushed: tuple[Pushed, ...]


class Place(NamedTuple):
    """Where tokens end: the nodes, the state and the stack; ``before`` and the token from ``depth`` on are kept of the text."""

    nodes: NDArray[np.int64]
    state: State
    stack: Stack
    before: bytes
    depth: int


class Pop(NamedTuple):
    """Where a token leaves a value: the node, the outcome, and whether the value's own last byte did."""

    node: int
    outcome: int
    closed: bool


class Walk(NamedTuple):
    """What tokens do from a state on, below a node of the trie, whatever the stack is."""

    ends: list[Ends]
    pops: list[Pop]


@final
class JSONGuide(Guide):
    """The token sequences that spell a JSON value that a schema is true of (json-schema.md, section 3).

    A state is a configuration of :class:`~outlines_phi.guides.json_schema.machine.Machine`: a place within a value, and what comes
    after the values around it. What a token does within a value depends on the place alone, and is kept without the stack.

    ``min_tokens`` is the least number of bytes to the end, and the end itself: a way to it by the tokens that are one byte.

    Parameters
    ----------
    machine
        The texts.
    vocabulary
        The tokens; each byte must have one of its own.

    Raises
    ------
    UnsupportedError
        Some bytes have no token of their own.
    """

    shortest = False

    def __init__(self, machine: Machine, vocabulary: Vocabulary) -> None:
        check_kind(
            "JSONGuide", "machine", machine, Machine, "a Machine; use JSONGuide.of(schema, vocabulary), which makes it"
        )
        self.machine, self.vocabulary = machine, vocabulary
        self._trie = Trie.of(vocabulary)
        missing = machine.needed - _single_bytes(vocabulary)
        if missing:
            raise UnsupportedError(
                f"Use a vocabulary with a token for each byte. This one has none for {bytes(sorted(missing))!r:.80}."
            )
        self._lock = threading.RLock()
        self._configurations: dict[int, Configuration] = {}
        self._numbers: dict[Configuration, int] = {}
        self._next = _FIRST
        # Where the text is kept, each token leads to a state of its own. These are numbered in a row, and made when they are met.
        self._firsts: list[int] = []
        self._places: list[Place] = []
        self._first_of: dict[tuple[int, int], int] = {}
        self._walks: dict[tuple[State, int], Walk] = {}
        self._sizes: dict[int, int] = {}
        self._recent_row = lru_cache(_ROWS)(self._row)
        self.start = self._number(machine.start)

    @classmethod
    def of(cls, schema: Any, vocabulary: Vocabulary, *, blanks: str = BLANKS, any_order: bool = False) -> JSONGuide:
        """Return the guide of a JSON schema.

        Parameters
        ----------
        schema
            The schema, as ``json.loads`` made it.
        vocabulary
            The tokens.
        blanks
            A regular expression of what may stand between the tokens of JSON: Outlines' ``whitespace_pattern``.
        any_order
            Whether members may come in any order; else in that of the schema, and others behind those that it names.

        Raises
        ------
        UnsupportedError
            A keyword that cannot be honoured, by its JSON pointer.
        EmptyLanguageError
            The schema is true of no value.
        """
        check_vocabulary("JSONGuide.of", vocabulary)
        read = Schema.read(schema)
        if read.left_out:
            shown = "; ".join(f"{pointer} ({why})" for pointer, why in read.left_out[:MOST_SHOWN])
            more = f"; and {len(read.left_out) - MOST_SHOWN} more" if len(read.left_out) > MOST_SHOWN else ""
            warn_of_schema(
                f"Check the values that are drawn: {len(read.left_out)} keywords of the JSON schema are not asked of them. These "
                f"are {shown}{more}."
            )
        # A shortest way to the end goes by single bytes, so what has none is spelled by others.
        ascii = not BEYOND_ASCII.issubset(_single_bytes(vocabulary))
        return cls(Machine(read, blanks=blanks, any_order=any_order, ascii=ascii), vocabulary)

    def __reduce__(self) -> tuple[Any, ...]:
        return JSONGuide, (self.machine, self.vocabulary)  # states are numbered as they are met

    def row(self, state: int) -> Row:
        """Return the transitions of ``state``."""
        with self._lock:
            return self._recent_row(state)

    def min_tokens(self, state: int) -> int:
        """Return the least number of bytes to the end, and the end itself."""
        if state < _FIRST:
            return 0 if state == DONE else UNREACHABLE
        with self._lock:
            if state not in self._sizes:
                size = self.machine.size(self._at(state))
                self._sizes[state] = UNREACHABLE if size >= ENDLESS else size + 1
            return self._sizes[state]

    def min_tokens_of(self, states: NDArray[np.integer]) -> NDArray[np.int64]:
        """See :meth:`Guide.min_tokens_of`."""
        with self._lock:
            # States that differ in the text that is kept are equally far from the end.
            place = np.searchsorted(self._firsts, states, side="right") - 1
            firsts = np.array([*self._firsts, 0])[place]
            counts = np.array([*(len(found.nodes) for found in self._places), 0])[place]
            return super().min_tokens_of(np.where(states < firsts + counts, firsts, states))

    def advance(self, state: int, token: int) -> int:
        """See :meth:`Guide.advance`: byte by byte."""
        if state < _FIRST:
            return DEAD
        if token in self.vocabulary.eos_ids:
            return DONE if token == self.vocabulary.eos_ids[0] and self.min_tokens(state) == 1 else DEAD
        with self._lock:
            at: Configuration | None = self._at(state) if self.vocabulary.tokens[token] else None
            for byte in self.vocabulary.tokens[token]:
                at = None if at is None else self.machine.advance(at, byte)
            if at is not None and at.text:
                return super().advance(state, token)
            return DEAD if at is None else self._number(at)

    def describe(self, state: int) -> str:
        """Return a debugging picture of ``state``: the places in the values around it, from the inside out."""
        if state < _FIRST:
            return "done" if state == DONE else "dead"
        at, stack, _ = self._at(state)
        places = [type(at).__name__.lower()]
        while stack is not None:
            places.append(type(stack.after[0]).__name__.lower())
            stack = stack.below
        return " in ".join(places)

    def _number(self, at: Configuration) -> int:
        number = self._numbers.get(at)
        if number is None:
            number = self._numbers[at] = self._next
            self._configurations[number] = at
            self._next += 1
        return number

    def _at(self, state: int) -> Configuration:
        """Return where a state is."""
        if state not in self._configurations:
            place = bisect_right(self._firsts, state) - 1
            found = self._places[place]
            text = self._trie.text(int(found.nodes[state - self._firsts[place]]))
            self._configurations[state] = Configuration(found.state, found.stack, found.before + text[found.depth :])
        return self._configurations[state]

    def _row(self, state: int) -> Row:
        class_of = np.full(len(self.vocabulary), NEVER, dtype=np.int32)
        class_of[self.vocabulary.eos_ids[0]] = EOS
        targets = [DEAD, DONE if self.min_tokens(state) == 1 else DEAD]
        if state >= _FIRST:
            classes: dict[int, int] = {}
            apart: list[Place] = []
            for place in self._reached(self._at(state)):
                if place.stack is not None and place.stack.keeps:
                    apart.append(place)
                    continue
                target = self._number(Configuration(place.state, place.stack))
                if target not in classes:
                    classes[target] = len(targets)
                    targets.append(target)
                class_of[self._trie.ending(place.nodes)[0]] = classes[target]
            for number, place in enumerate(apart):
                ids, counts = self._trie.ending(place.nodes)
                class_of[ids] = np.repeat(np.arange(len(counts)) + len(targets), counts)
                first = self._numbered(state, number, place)
                targets.extend(range(first, first + len(counts)))
        return Row(Partition(class_of, len(targets)), np.array(targets, dtype=np.int64))

    def _numbered(self, state: int, number: int, place: Place) -> int:
        """Return the first number of the states behind the tokens that end at a place, the same one each time."""
        if (state, number) not in self._first_of:
            self._first_of[state, number] = self._next
            self._firsts.append(self._next)
            self._places.append(place)
            self._next += len(place.nodes)
        return self._first_of[state, number]

    def _reached(self, at: Configuration) -> list[Place]:
        """Return where tokens end."""
        state, stack, text = at
        found: list[Place] = []
        walk = self._walk(state, 0)
        while True:
            found += [self._place(ends, stack, text) for ends in walk.ends]
            if not walk.pops:
                return found
            pops, walk = walk.pops, Walk([], [])
            for pop in pops:
                if stack is not None:
                    kept = text + self._trie.text(pop.node) if stack.keeps else b""
                    self._resume(walk, pop, stack.left(pop.outcome, kept).state)
                elif pop.closed:
                    self._arrive(walk, pop.node, self.machine.end)
            stack = stack.below if stack is not None else None

    def _place(self, ends: Ends, stack: Stack, text: bytes) -> Place:
        """Return where tokens end that left the values above a stack; ``text`` is what was kept before them."""
        keeps = stack is not None and stack.keeps
        depth = 0
        for after, start in ends.pushed:
            if stack is None or not stack.keeps:
                depth = start
            stack = self.machine.push(after, stack, (len(text) if keeps else 0) + start - depth)
        return Place(ends.nodes, ends.state, stack, text if keeps else b"", depth)

    def _walk(self, state: State, node: int) -> Walk:
        """Return what tokens do from a state on, below a node."""
        key = state, node
        if key not in self._walks:
            walk = Walk([], [])
            if not self._spread(walk, state, node):
                if state.ends is not None:
                    walk.pops.append(Pop(node, state.ends, closed=False))
                first, last = self._trie.first_child[node : node + 2].tolist()
                for child in range(first, last):
                    edge = state.edge(int(self._trie.byte[child]))
                    if edge is not None:
                        self._follow(walk, edge, child)
            self._walks[key] = walk
        return self._walks[key]

    def _follow(self, walk: Walk, edge: Edge, node: int) -> None:
        """Go on behind an edge that was read at a node."""
        if edge.target is None:
            walk.pops.append(Pop(node, edge.outcome, closed=True))
            return
        start = 0 if edge.after is None else self._trie.depth(node) - 1
        pushed = () if edge.after is None else (Pushed(edge.after, start),)
        self._arrive(walk, node, edge.target, pushed)
        below = self._walk(edge.target, node)
        walk.ends.extend(ends._replace(pushed=pushed + ends.pushed) if pushed else ends for ends in below.ends)
        if edge.after is None:
            walk.pops.extend(below.pops)
        else:
            for pop in below.pops:
                state = edge.after[pop.outcome]
                if isinstance(state, Pending):
                    state = state.then(self._trie.text(pop.node)[start:])
                self._resume(walk, pop, state)

    def _resume(self, walk: Walk, pop: Pop, state: State) -> None:
        """Go on in the value around the one that was left."""
        if pop.closed:
            self._arrive(walk, pop.node, state)
        below = self._walk(state, pop.node)
        walk.ends.extend(below.ends)
        walk.pops.extend(below.pops)

    def _arrive(self, walk: Walk, node: int, state: State, pushed: tuple[Pushed, ...] = ()) -> None:
        if self._trie.is_end[node]:
            walk.ends.append(Ends(np.array([node]), state, pushed))

    def _spread(self, walk: Walk, state: State, node: int) -> bool:
        """Read the tokens within a string, many at once; return whether the state is of this kind."""
        if isinstance(state, Text):
            parts = [one for one in state.spelled if one is not None]
        elif isinstance(state, Key) and state.uniform:
            parts = [named.spelled for named in state.names]
        else:
            return False
        nodes = np.array([node])
        at = np.array([[one.at] for one in parts])
        count = np.array([[one.written] for one in parts])
        stays: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []
        while len(nodes):
            children, per_node = self._trie.below(nodes)
            above = np.repeat(np.arange(len(nodes)), per_node)
            byte = self._trie.byte[children]
            steps = [step(one, at[k, above], count[k, above], byte) for k, one in enumerate(parts)]
            at, count, ended = (np.array(arrays) for arrays in zip(*steps, strict=True))
            if ended.any():
                for place, k in zip(*(found.tolist() for found in np.nonzero(ended.T)), strict=True):
                    self._follow(walk, self._closing(state, parts[k]), int(children[place]))
            inside = (at != 0).any(0) & ~ended.any(0)
            nodes, at, count = children[inside], at[:, inside], count[:, inside]
            here = self._trie.is_end[nodes]
            stays.append((nodes[here], at[:, here], count[:, here]))
        if stays:
            nodes, at, count = (np.concatenate(arrays, axis=-1) for arrays in zip(*stays, strict=True))
            first, group = groups(np.concatenate([at, count]))
            order = np.argsort(group, kind="stable")
            ends = np.searchsorted(group[order], np.arange(len(first) + 1))
            for i, sample in enumerate(first.tolist()):
                within = self._within(state, parts, at[:, sample].tolist(), count[:, sample].tolist())
                walk.ends.append(Ends(nodes[order[ends[i] : ends[i + 1]]], within, ()))
        return True

    def _closing(self, state: State, part: Spelled) -> Edge:
        """Return where the closing quote of one of the sets leads."""
        if isinstance(state, Text):
            return Edge(None, state.spelled.index(part))
        assert isinstance(state, Key)
        return state.ended(next(named.member for named in state.names if named.spelled == part))

    def _within(self, state: State, parts: Sequence[Spelled], at: list[int], count: list[int]) -> State:
        """Return a later state of the same string."""
        later = {
            part: part._replace(at=place, written=written) if place else None
            for part, place, written in zip(parts, at, count, strict=True)
        }
        if isinstance(state, Text):
            return self.machine.text(tuple(None if one is None else later[one] for one in state.spelled))
        assert isinstance(state, Key)
        return state.later(later)


def _single_bytes(vocabulary: Vocabulary) -> set[int]:
    return {token[0] for token in vocabulary.tokens if len(token) == 1}
