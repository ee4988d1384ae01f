"""The compiled walk of a schema's machine: its tables are filled as far as walks lead."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...vocabulary.kernel import WalkTables
from .interior import Interior
from .machine.scalars import Text, Words, alone
from .machine.states import ByteEdge, Configuration, Frame, Pending, Stack, State
from .token_forest import ForestTables, FullError

MOST_STATES, MOST_EDGES, MOST_FRAMES, MOST_PARTS, MOST_MISSED = 1 << 14, 1 << 17, 1 << 16, 1 << 20, 1 << 12
"""Entries of the tables of one guide; those that are not written take no memory."""

UNKNOWN, FIRST = 1, 3
_DEAD, _ANY = np.zeros(256, np.int32).data, np.full(256, UNKNOWN, np.int32).data


class Ends(NamedTuple):
    """Ends of tokens: nodes of the forest, and the place of each; the next walk writes over both.

    ``places`` are states, each with the stack; ``inside`` what tokens do within strings that they end in, with the stack.
    """

    nodes: NDArray[np.integer]
    at: NDArray[np.integer]
    places: list[tuple[State | None, Stack]]
    inside: list[tuple[Interior, Stack]]


class UntoldError(Exception):
    """The walk depends on what was written."""


@final
class Tables:
    """The tables of a guide that a walk reads; those of guides that are gone are written over by others."""

    def __init__(self, forest: ForestTables) -> None:
        sizes = {"edges": 256 * MOST_STATES, "row": MOST_STATES, "ends": MOST_STATES, "within": MOST_STATES}
        sizes |= {"record": 6 * MOST_STATES, "part": MOST_PARTS, "follow": MOST_FRAMES, "behind": 4 * MOST_FRAMES}
        sizes |= {"frame": 2 * MOST_FRAMES, "missed": 4 * MOST_MISSED, "asked": 4 * MOST_MISSED, "mask": forest.width}
        sizes |= {"edge": 3 * MOST_EDGES, "listed": 5 * MOST_STATES, "place": 2 * len(forest.count)}
        arrays = {name: np.empty(size, np.int32) for name, size in sizes.items()}
        arrays |= {name: np.empty(MOST_STATES, np.int64) for name in ("text", "offset")}
        self.of = {name: array.data for name, array in arrays.items()}
        self.asked, self.mask = arrays["asked"].reshape(-1, 4), arrays["mask"].view(np.uint32)
        self.reached = np.empty((len(forest.count), 2), np.int32)
        self.walk = WalkTables(
            width=forest.width, most_frames=MOST_FRAMES, most_missing=MOST_MISSED, most_ending=len(self.reached)
        )
        for name, array in arrays.items():
            setattr(self.walk, name, array.ctypes.data)
        forest.enter_into(self.walk)
        self.address, self.ends = ctypes.addressof(self.walk), self.reached.ctypes.data


@final
class Compiled:
    """The walks from a machine's configurations; :class:`UntoldError` where these depend on what was written.

    States, edges, and stacks have numbers here, in the order in which walks lead to them.
    """

    def __init__(
        self,
        forest: ForestTables,
        interior: Callable[[Text, int], Interior],
        push: Callable[[Sequence[State], Stack], Frame],
    ) -> None:
        self.forest, self._interior, self._push = forest, interior, push
        self._tables: Tables = forest.spare.pop() if forest.spare else Tables(forest)
        self._of = self._tables.of
        self._states: list[Any] = [None]
        self._afters: list[Sequence[State]] = [()]
        self._edges: list[ByteEdge] = []  # kept, so that no other has its identity
        self._frames: list[Stack] = [None]
        self._records: list[tuple[int, int]] = [(0, 0)]
        self._made: set[tuple[int, int]] = set()
        self._edge_numbers: dict[int, int] = {}
        self._state_numbers: dict[State, int] = {}
        self._after_numbers: dict[int, int] = {}
        self._frame_numbers: dict[Stack, int] = {None: 0}
        self._words: dict[Words, int] = {}
        self._rows, self._parts, self._behind = 0, 0, 0

    def __del__(self) -> None:
        self.forest.spare.append(self._tables)

    def mask(self, at: Configuration) -> NDArray[np.uint32]:
        """Return the mask of a configuration, without the end of sequence."""
        self._walk(at, None)
        return self._tables.mask.copy()

    def reached(self, at: Configuration, begun: Stack) -> Ends:
        """Return the ends of tokens; ``begun`` stands for the stack of the configuration."""
        own = self._walk(at, self._tables.ends)
        stacks: dict[int, Stack] = {own: begun}

        def stack(frame: int) -> Stack:
            if frame not in stacks:
                after, below = self._of["frame"][2 * frame : 2 * frame + 2]
                stacks[frame] = self._frames[frame] if frame < own else self._push(self._afters[after], stack(below))
            return stacks[frame]

        found = self._of["place"][: 2 * self._tables.walk.placed].tolist()
        numbers = found[::2]
        places = [(self._states[max(one, 0)], stack(frame)) for one, frame in zip(numbers, found[1::2], strict=True)]
        records = ((self._records[~one], here) for one, (_, here) in zip(numbers, places, strict=True) if one < 0)
        inside = [(self._interior(self._states[state], node), here) for (state, node), here in records]
        nodes, numbered = self._tables.reached[: self._tables.walk.ending].T
        return Ends(nodes, numbered, places, inside)

    def _walk(self, at: Configuration, reached: int | None) -> int:
        """Walk, and return the number of the frame that stands for the stack of a configuration: behind all that are kept."""
        state, stack, tables, frame = self._state(at.state), at.stack, self._tables, 0
        if stack is not None:
            below, after = self._frame(stack.below), self._entered(stack)
            frame = len(self._frames)
            self._of["frame"][2 * frame], self._of["frame"][2 * frame + 1] = after, below
        tables.walk.frames, tables.walk.reached = len(self._frames) + (frame > 0), reached
        asking = self.forest.compiled.walk(tables.address, 0, state, frame)
        while asking > 0:
            self._fill_all(tables.asked[:asking].tolist())
            asking = self.forest.compiled.resume(tables.address)
        if asking < 0:
            raise FullError
        return frame

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
            edge = self._states[state].edge(byte)
            self._of["edges"][256 * self._of["row"][state] + byte] = 0 if edge is None else self._edge(edge)
        elif self.forest.count[node] < 0:
            self.forest.load(node)
        elif (state, node) not in self._made:
            self._record(state, node)

    def _state(self, state: State) -> int:
        number = self._state_numbers.get(state)
        if number is None:
            if type(state) is Pending:
                raise UntoldError
            number = len(self._states)
            if number == MOST_STATES:
                raise FullError
            self._state_numbers[state] = number
            self._states.append(state)
            row, self._of["ends"][number], self._of["within"][number] = -1, 0, 0
            if isinstance(state, Text):
                self._list(state, number)
            else:
                row, self._rows = self._rows, self._rows + 1
                edges, first = self._of["edges"], 256 * row
                edges[first : first + 256] = _ANY if (bytes := state.bytes) is None else _DEAD
                for byte in bytes or ():
                    edges[first + byte] = UNKNOWN
                if (ends := state.ends) is not None:
                    self._of["ends"][number] = ends + 1
            self._of["row"][number] = row
        return number

    def _list(self, state: Text, number: int) -> None:
        """Fill in the texts that a string may become, where one list has them all, and its others are in one state."""
        listed, first = self._of["listed"], 5 * number
        listed[first] = -1
        one = None if state.counts or self.forest.spells_escapes else alone(state.spelled)
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

    def _entered(self, stack: Frame) -> int:
        if stack.keeps:
            raise UntoldError
        return self._after(stack.after)

    def _frame(self, stack: Stack) -> int:
        waiting = list[Frame]()
        while stack is not None and stack not in self._frame_numbers:
            waiting.append(stack)
            stack = stack.below
        for one in reversed(waiting):
            below, after, number = self._frame_numbers[one.below], self._entered(one), len(self._frames)
            if number == MOST_FRAMES - 1:
                raise FullError
            self._frame_numbers[one] = number
            self._frames.append(one)
            self._of["frame"][2 * number], self._of["frame"][2 * number + 1] = after, below
        return self._frame_numbers[waiting[0] if waiting else stack]

    def _record(self, number: int, node: int) -> None:
        """Fill in the tokens within a string, below a node."""
        state, own = self._states[number], self._of
        if state.counts:
            raise UntoldError
        interior = self._interior(state, node)
        word = -1 if interior.split is None else interior.split.word(state.spelled, self.forest)
        marks = [end for end, _ in interior.ends]
        parts = [*marks, *(part for end, edge in interior.exits for part in (end, self._edge(edge)))]
        for end, _ in (*interior.ends, *interior.exits):
            self.forest.enter(end)
        first, last, made = self._parts, self._parts + len(parts), len(self._records)
        if last > MOST_PARTS or made == MOST_STATES:
            raise FullError
        for place, entry in enumerate(parts, first):
            own["part"][place] = entry
        for place, entry in enumerate((node, own["within"][number], word, first, first + len(marks), last), 6 * made):
            own["record"][place] = entry
        own["within"][number], self._parts = made, last
        self._records.append((number, node))
        self._made.add((number, node))
