"""What a JSON schema allows, token by token."""

from __future__ import annotations

import threading
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
from .states import Edge, State
from .template import Template

_FIRST = DONE + 1

_ROWS = 256
"""How many rows are kept."""

MOST_SHOWN = 10
"""Keywords that a warning names."""

Afters = tuple[Sequence[State], ...]


class Ends(NamedTuple):
    """Tokens that end in one place: the nodes of the trie, the state, and what was put on the stack on the way."""

    nodes: NDArray[np.int64]
    state: State
    pushed: Afters


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
        self._configurations: list[Configuration] = []
        self._numbers: dict[Configuration, int] = {}
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
        return cls.of_template(Template.of_value(Schema.read(schema)), vocabulary, blanks=blanks, any_order=any_order)

    @classmethod
    def of_template(
        cls, template: Template, vocabulary: Vocabulary, *, blanks: str = BLANKS, any_order: bool = False
    ) -> JSONGuide:
        """Return the guide of JSON values and what they stand in; parameters and errors as :meth:`of`."""
        left_out = template.left_out
        if left_out:
            shown = "; ".join(f"{pointer} ({why})" for pointer, why in left_out[:MOST_SHOWN])
            more = f"; and {len(left_out) - MOST_SHOWN} more" if len(left_out) > MOST_SHOWN else ""
            warn_of_schema(
                f"Check the values that are drawn: {len(left_out)} keywords of the JSON schema are not asked of them. These are "
                f"{shown}{more}."
            )
        # A shortest way to the end goes by single bytes, so what has none is spelled by others.
        ascii = not BEYOND_ASCII.issubset(_single_bytes(vocabulary))
        return cls(Machine(template, blanks=blanks, any_order=any_order, ascii=ascii), vocabulary)

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
                size = self.machine.size(self._configurations[state - _FIRST])
                self._sizes[state] = UNREACHABLE if size >= ENDLESS else size + 1
            return self._sizes[state]

    def advance(self, state: int, token: int) -> int:
        """See :meth:`Guide.advance`: byte by byte."""
        if state < _FIRST:
            return DEAD
        if token in self.vocabulary.eos_ids:
            return DONE if token == self.vocabulary.eos_ids[0] and self.min_tokens(state) == 1 else DEAD
        with self._lock:
            at: Configuration | None = self._configurations[state - _FIRST] if self.vocabulary.tokens[token] else None
            for byte in self.vocabulary.tokens[token]:
                at = None if at is None else self.machine.advance(at, byte)
            return DEAD if at is None else self._number(at)

    def describe(self, state: int) -> str:
        """Return a debugging picture of ``state``: the places in the values around it, from the inside out."""
        if state < _FIRST:
            return "done" if state == DONE else "dead"
        at, stack = self._configurations[state - _FIRST]
        places = [type(at).__name__.lower()]
        while stack is not None and stack.below is not None:
            places.append(type(stack.after[0]).__name__.lower())
            stack = stack.below
        return " in ".join(places)

    def _number(self, at: Configuration) -> int:
        number = self._numbers.get(at)
        if number is None:
            number = self._numbers[at] = _FIRST + len(self._configurations)
            self._configurations.append(at)
        return number

    def _row(self, state: int) -> Row:
        class_of = np.full(len(self.vocabulary), NEVER, dtype=np.int32)
        class_of[self.vocabulary.eos_ids[0]] = EOS
        targets = [DEAD, DONE if self.min_tokens(state) == 1 else DEAD]
        if state >= _FIRST:
            at, stack = self._configurations[state - _FIRST]
            classes: dict[int, int] = {}
            for ends, below in self._reached(at, stack):
                for after in ends.pushed:
                    below = self.machine.push(after, below)
                target = self._number(Configuration(ends.state, below))
                if target not in classes:
                    classes[target] = len(targets)
                    targets.append(target)
                class_of[self._trie.ending(ends.nodes)[0]] = classes[target]
        return Row(Partition(class_of, len(targets)), np.array(targets, dtype=np.int64))

    def _reached(self, state: State, stack: Stack) -> list[tuple[Ends, Stack]]:
        """Return where tokens end, and the stack that they began on."""
        walk = self._walk(state, 0)
        found = [(ends, stack) for ends in walk.ends]
        pops = walk.pops
        while pops:
            assert stack is not None  # a value stands within what comes before it and after it
            above = stack.below
            walk = Walk([], [])
            for pop in pops:
                self._resume(walk, pop, stack.after)
            found += [(ends, above) for ends in walk.ends]
            pops, stack = walk.pops, above
        return found

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
        pushed = () if edge.after is None else (edge.after,)
        self._arrive(walk, node, edge.target, pushed)
        below = self._walk(edge.target, node)
        walk.ends.extend(ends._replace(pushed=pushed + ends.pushed) if pushed else ends for ends in below.ends)
        if edge.after is None:
            walk.pops.extend(below.pops)
        else:
            for pop in below.pops:
                self._resume(walk, pop, edge.after)

    def _resume(self, walk: Walk, pop: Pop, after: Sequence[State]) -> None:
        """Go on in the value around the one that was left."""
        state = after[pop.outcome]
        if pop.closed:
            self._arrive(walk, pop.node, state)
        below = self._walk(state, pop.node)
        walk.ends.extend(below.ends)
        walk.pops.extend(below.pops)

    def _arrive(self, walk: Walk, node: int, state: State, pushed: Afters = ()) -> None:
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
            steps = [_step(one, at[k, above], count[k, above], byte) for k, one in enumerate(parts)]
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
            first, group = _groups(np.concatenate([at, count]))
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


def _groups(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return an index of each distinct column, and the number of every column among these."""
    count = rows.shape[1]
    first, group = np.zeros(min(count, 1), dtype=np.int64), np.zeros(count, dtype=np.int64)
    for row in rows:
        if (row != row[:1]).any():  # most rows are the same throughout
            _, first, group = np.unique(group * (int(row.max()) + 1) + row, return_index=True, return_inverse=True)
    return first, group


def _single_bytes(vocabulary: Vocabulary) -> set[int]:
    return {token[0] for token in vocabulary.tokens if len(token) == 1}


def _step(
    one: Spelled, at: NDArray[Any], count: NDArray[Any], byte: NDArray[np.uint8]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Return states and counts after a byte each, and which closed the string; :meth:`Spelled.after` for many."""
    automaton = one.automaton
    at = automaton.targets[at, automaton.byte_class[byte]].astype(np.int64)
    if one.strings.lengths is None:
        return at, count, automaton.accepting[at]
    low, high = one.strings.lengths[-1]
    count = np.minimum(count + (at == automaton.start), low if high is None else high + 1)
    closed = automaton.accepting[at]
    # What is begun is one character.
    written = count + ((at != automaton.start) & ~closed)
    fits = np.zeros(len(at), dtype=bool)
    for low, high in one.strings.lengths:
        bounded = np.ones(len(at), dtype=bool) if high is None else written <= high
        fits |= bounded & (~closed | (written >= low))
    at = np.where(fits, at, 0)
    return at, count, automaton.accepting[at]
