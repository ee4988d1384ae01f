"""Masks of a schema's machine by the compiled walk: its tables are filled as far as walks lead."""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ...vocabulary.kernel import WalkTables
from .machine.between import Between
from .machine.containers import Key
from .machine.scalars import Listed, Spelled, Text, Walked, Words, alone, on_path
from .machine.states import ByteEdge, Configuration, Pending, Stack, State
from .token_forest import ForestTables, FullError, Split
from .walks import along

MOST_STATES, MOST_EDGES, MOST_FRAMES, MOST_PARTS, MOST_MISSED = 1 << 14, 1 << 17, 1 << 16, 1 << 20, 1 << 12
"""Entries of the tables of one guide; those that are not written take no memory."""

MOST_OTHERS = 2048
"""Strings off the paths of listed texts that are kept."""

UNKNOWN, FIRST = 1, 3
_DEAD = np.zeros(256, np.int32).data


class UntoldError(Exception):
    """The walk depends on what was written, or is not one by bytes: the mask is that of the row."""


Exits: TypeAlias = list[tuple[int, int]]
"""Nodes behind the closing quotes of strings, and the place of the set of each."""


@final
class Tables:
    """The tables of a guide that a walk reads; those of guides that are gone are written over by others."""

    def __init__(self, forest: ForestTables) -> None:
        sizes = {"edges": 256 * MOST_STATES, "row": MOST_STATES, "ends": MOST_STATES, "within": MOST_STATES}
        sizes |= {"record": 6 * MOST_STATES, "part": MOST_PARTS, "follow": MOST_FRAMES, "behind": 4 * MOST_FRAMES}
        sizes |= {"frame": 2 * MOST_FRAMES, "missed": 4 * MOST_MISSED, "asked": 4 * MOST_MISSED, "mask": forest.width}
        sizes["edge"] = 3 * MOST_EDGES
        sizes["listed"] = 5 * MOST_STATES
        arrays = {name: np.empty(size, np.int32) for name, size in sizes.items()}
        arrays |= {name: np.empty(MOST_STATES, np.int64) for name in ("text", "offset")}
        self.of = {name: array.data for name, array in arrays.items()}
        self.asked, self.mask = arrays["asked"].reshape(-1, 4), arrays["mask"].view(np.uint32)
        self.walk = WalkTables(width=forest.width, most_frames=MOST_FRAMES, most_missing=MOST_MISSED)
        for name, array in arrays.items():
            setattr(self.walk, name, array.ctypes.data)
        forest.enter_into(self.walk)
        self.address = ctypes.addressof(self.walk)


@final
class Masks:
    """The masks of a machine's configurations.

    States, edges, and stacks have numbers here, in the order in which walks lead to them.
    """

    def __init__(self, forest: ForestTables) -> None:
        self.forest, self._compiled = forest, forest.compiled
        self._tables: Tables = forest.spare.pop() if forest.spare else Tables(forest)
        self._of = self._tables.of
        self._states: list[State | None] = [None]
        self._afters: list[Sequence[State]] = [()]
        self._edges: list[ByteEdge] = []  # kept, so that no other has its identity
        self._edge_numbers: dict[int, int] = {}
        self._state_numbers: dict[State, int] = {}
        self._after_numbers: dict[int, int] = {}
        self._frame_numbers: dict[Stack, int] = {None: 0}
        self._made: set[tuple[int, int]] = set()
        self._words: dict[Words, int] = {}
        self._rows, self._records, self._parts, self._behind = 0, 1, 0, 0

    def __del__(self) -> None:
        self.forest.spare.append(self._tables)

    def of(self, at: Configuration) -> NDArray[np.uint32]:
        """Return the mask of a configuration, without the end of sequence; :class:`UntoldError` where no walk tells."""
        state, frame = self._state(at.state), self._frame(at.stack)
        tables = self._tables
        tables.walk.frames = len(self._frame_numbers)
        asking = self._compiled.walk(tables.address, 0, state, frame)
        while asking > 0:
            self._fill_all(tables.asked[:asking].tolist())
            asking = self._compiled.resume(tables.address)
        if asking < 0:
            raise FullError
        return tables.mask.copy()

    def _fill_all(self, asked: Sequence[Sequence[int]]) -> None:
        """Fill in what a walk lacked; what cannot be told is asked for again by the next one."""
        of = self._of
        for _, state, frame, byte in asked:
            if state < 0:
                of["behind"][of["follow"][of["frame"][2 * frame]] + ~state] = 0
            elif byte >= 0:
                of["edges"][256 * of["row"][state] + byte] = UNKNOWN
        for item in asked:
            self._fill(*item)

    def _fill(self, node: int, state: int, frame: int, byte: int) -> None:
        if state < 0:
            after = self._of["frame"][2 * frame]
            self._of["behind"][self._of["follow"][after] + ~state] = self._state(self._afters[after][~state])
        elif byte >= 0:
            edge = self._states[state].edge(byte)  # type: ignore[union-attr]
            self._of["edges"][256 * self._of["row"][state] + byte] = 0 if edge is None else self._edge(edge)
        elif self.forest.count[node] < 0:
            self.forest.load(node)
        elif (state, node) not in self._made:
            self._record(state, node)
            self._made.add((state, node))

    def _state(self, state: State) -> int:
        number = self._state_numbers.get(state)
        if number is None:
            kind = type(state)
            if kind is Pending or (kind is Between and state.bytes is None):
                raise UntoldError
            number = len(self._states)
            if number == MOST_STATES:
                raise FullError
            self._state_numbers[state] = number
            self._states.append(state)
            row, self._of["ends"][number], self._of["within"][number] = -1, 0, 0
            if isinstance(state, (Text, Key)):
                self._list(state, number)
            else:
                row, self._rows = self._rows, self._rows + 1
                edges, first = self._of["edges"], 256 * row
                edges[first : first + 256] = _DEAD
                for byte in range(256) if state.bytes is None else state.bytes:
                    edges[first + byte] = UNKNOWN
                if (ends := state.ends) is not None:
                    self._of["ends"][number] = ends + 1
            self._of["row"][number] = row
        return number

    def _list(self, state: Text | Key, number: int) -> None:
        """Fill in the texts that a string may become, where one list has them all, and its others are in one state."""
        listed, first = self._of["listed"], 5 * number
        listed[first] = -1
        one = None if (isinstance(state, Key) and state.counts) or self.forest.spells_escapes else alone(state.spelled)
        if one is None:
            return
        words = self._words.get(one.words)
        if words is None:
            words = self._words[one.words] = len(self._words)
            self._of["text"][words], self._of["offset"][words] = one.words.addresses
        beside = state.off_paths if one.words.without else None
        fields = words, one.low, one.high, one.depth, 0 if beside is None else self._state(beside)
        for place, entry in enumerate(fields, first):
            listed[place] = entry

    def _edge(self, edge: ByteEdge) -> int:
        number = self._edge_numbers.get(id(edge))
        if number is None:
            number, own = FIRST + len(self._edges), self._of["edge"]
            if number == MOST_EDGES:
                raise FullError
            self._edges.append(edge)
            self._edge_numbers[id(edge)] = number
            own[3 * number] = 0 if edge.target is None else self._state(edge.target)
            own[3 * number + 1] = edge.outcome
            own[3 * number + 2] = 0 if edge.after is None else self._after(edge.after)
        return number

    def _after(self, after: Sequence[State]) -> int:
        number = self._after_numbers.get(id(after))
        if number is None:
            number = self._after_numbers[id(after)] = len(self._afters)
            if number == MOST_FRAMES or self._behind + len(after) > 4 * MOST_FRAMES:
                raise FullError
            self._afters.append(after)
            self._of["follow"][number] = self._behind
            for place in range(self._behind, self._behind + len(after)):
                self._of["behind"][place] = 0
            self._behind += len(after)
        return number

    def _frame(self, stack: Stack) -> int:
        number = self._frame_numbers.get(stack)
        if number is None:
            assert stack is not None
            if stack.keeps:
                raise UntoldError
            below, after = self._frame(stack.below), self._after(stack.after)
            number = self._frame_numbers[stack] = len(self._frame_numbers)
            if number == MOST_FRAMES:
                raise FullError
            self._of["frame"][2 * number], self._of["frame"][2 * number + 1] = after, below
        return number

    def _record(self, number: int, node: int) -> None:
        """Fill in the tokens within a string, below a node."""
        state, own = self._states[number], self._of
        assert isinstance(state, (Text, Key))
        if isinstance(state, Key) and state.counts:
            raise UntoldError
        word, nodes, passes = self._interior(state, node)
        first, last = self._parts, self._parts + len(nodes) + len(passes)
        if last > MOST_PARTS or self._records == MOST_STATES:
            raise FullError
        record, part = 6 * self._records, own["part"]
        for place, entry in enumerate((*nodes, *passes), first):
            part[place] = entry
        fields = node, own["within"][number], word, first, first + len(nodes), last
        for place, entry in enumerate(fields, record):
            own["record"][place] = entry
        own["within"][number], self._records, self._parts = self._records, self._records + 1, last

    def _others(self, spelled: Sequence[Spelled | None], node: int, taken: Sequence[int]) -> tuple[int, Exits]:
        """Return the word of the tokens of a string that are off the paths of listed texts, whose ends are ``taken``; and exits."""
        forest, loose = self.forest, list[Hashable]([node])
        for one in spelled:  # behind the paths, listed texts do not matter
            if type(one) is Listed:
                loose.append((one.automaton, one.state) if one.words.without else None)
            else:
                loose.append(one)
        key = tuple(loose)
        found = forest.others.get(key)
        if found is not None and not taken:
            return found[0], found[3]

        def ends(split: Split, closings: Mapping[int, NDArray[np.bool_]], taken: Sequence[int]) -> Exits:
            rests = ((place, split.rest(exits, taken)) for place, exits in closings.items())
            return [(forest.enter(rest), place) for place, rest in rests if rest is not None]

        def find() -> tuple[int, Split | None, Mapping[int, NDArray[np.bool_]], Exits]:
            split = Split.within(forest.forest, spelled, node, counted=True)
            if split is None:
                return -1, None, {}, []
            lengths = any(type(one) is Walked and one.automaton.most for one in spelled)  # what stays may be too long
            every = None if split.counted or lengths else split.marked
            word = forest.word(split, split.alive(spelled)) if every is None else every[0]
            closings = split.closings(spelled)
            return word, split, closings, ends(split, closings, ())

        if found is None:
            if len(forest.others) > MOST_OTHERS:
                forest.others.clear()
            found = forest.others[key] = find()
        word, split, closings, exits = found
        return word, ends(split, closings, taken) if taken and split is not None else exits

    def _interior(self, state: Text | Key, node: int) -> tuple[int, list[int], list[int]]:
        """Return the tokens within a string: a word, nodes of others, and nodes behind closing quotes, each with its edge."""
        nodes, passes, taken = list[int](), list[int](), list[int]()
        for child, edge in along(self.forest.forest, state, node):
            self.forest.enter(child)
            if edge is not None and isinstance(edge.target, (Text, Key)):
                nodes += [child] if on_path(edge.target.spelled) else []
                continue
            taken.append(child)
            if edge is not None:
                passes += child, self._edge(edge)
        word, exits = self._others(state.spelled, node, taken)
        for end, place in exits:
            passes += end, self._edge(state.closed(place))
        return word, nodes, passes
