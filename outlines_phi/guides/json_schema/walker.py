"""Tokens of a vocabulary from the places of a schema's machine: where they end, and which are allowed.

The walk of the vocabulary's trie is compiled: its tables are filled as far as walks lead. Tokens within a string are told many at
once: those that stay in it, and what is read behind its closing quote.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from mmap import ACCESS_COPY, mmap
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ...numerics.cache import Cache, Shared
from ...vocabulary.kernel import WalkTables
from .machine.containers import Key
from .machine.machine import Machine
from .machine.scalars import Listed, Text, Words, alone, on_path
from .machine.states import ByteEdge, Configuration, Frame, Pending, Stack, State
from .spreads import FullError, check_room
from .token_forest import ForestTables, Split, TokenForest

MOST_KEPT = 1 << 25
"""Bytes of the interiors of strings of one guide that are kept."""

Found = TypeVar("Found")

MOST_STATES, MOST_EDGES, MOST_FRAMES, MOST_PARTS, MOST_MISSED = 1 << 14, 1 << 17, 1 << 16, 1 << 20, 1 << 15
"""Entries of the tables of one guide; those that are not written take no memory."""

UNKNOWN, FIRST_EDGE = 1, 3
_DEAD, _ANY = np.zeros(256, np.int32).data, np.full(256, UNKNOWN, np.int32).data


@final
class Interior:
    """Transitions of tokens from a place in a string on, below a node of the forest.

    Attributes
    ----------
    ends
        Nodes on the paths of listed texts, each with the state there, ``None`` where ``split`` does not hold; they come before it.
    listed
        Nodes behind the closing quotes of listed texts, and those from which another split holds, each with its edge.
    """

    def __init__(self, forest: TokenForest, state: Text, node: int) -> None:
        self.state, self.node, self._forest = state, node, forest
        self.ends, self.listed, self._taken = (
            list[tuple[int, State | None]](),
            list[tuple[int, ByteEdge]](),
            list[int](),
        )
        for child, edge, after, is_inside in _along(forest, state, node):
            if is_inside:
                self.ends += [(child, after)] if after is not None and on_path(after.spelled) else []
                continue
            self.listed += [] if edge is None else [(child, edge)]
            gone = forest.nodes(child)
            if edge is None or after is not None:
                gone = forest.subtree(child)
                self.ends += ((one, None) for one in gone[forest.trie.is_end[gone]].tolist())
            self._taken.append(forest.joined(gone))

    @cached_property
    def split(self) -> Split | None:
        """The tokens off the paths of listed texts, ``None`` where all texts are listed."""
        return Split.within(self._forest, self.state.spelled, self.node)

    @cached_property
    def exits(self) -> list[tuple[int, ByteEdge]]:
        """Nodes behind closing quotes, each with the edge of the quote."""
        split, state, exits = self.split, self.state, [*self.listed]
        for place, closing in split.closings(state.spelled).items() if split is not None else ():
            assert split is not None
            if (rest := self._rest(np.sort(split.exits.of(closing)))) is None:
                continue
            if state.counts:  # each is a name of its own
                texts = ((one, self._forest.text(one, self.node)) for one in self._forest.nodes(rest).tolist())
                exits += ((one, state.closed(place, text)) for one, text in texts)
            else:
                exits.append((rest, state.closed(place)))
        return exits

    def marked(self, tables: ForestTables) -> tuple[int, list[tuple[int, ByteEdge]]]:
        """Return the number of the packed mask of tokens that stay off the paths, -1 for none, and :attr:`exits`."""
        if (found := tables.marked(self.state.spelled, self.node)) is not None:
            (word, closing, rests), places = found
            taken = tuple(self._taken)
            if taken not in rests:
                rests[taken] = [(one, node) for one, nodes in closing if (node := self._rest(nodes)) is not None]
            exits = [*self.listed, *((node, self.state.closed(places[one])) for one, node in rests[taken])]
        else:
            word, exits = -1 if self.split is None else self.split.word(self.state.spelled, tables), self.exits
        gone = [node for node, state in self.ends if state is None]
        return tables.word(np.array(gone), but=word) if gone and word >= 0 else word, exits

    def _rest(self, nodes: NDArray[np.integer]) -> int | None:
        """Return the node that stands for some of the trie, without those of listed texts; ``None`` for none."""
        if self._taken:
            taken = np.concatenate([self._forest.nodes(node) for node in self._taken])
            nodes = np.setdiff1d(nodes, taken, assume_unique=True)
        return self._forest.joined(nodes) if len(nodes) else None

    @classmethod
    def of(cls, forest: TokenForest, kept: Cache[tuple[State, int], Interior], state: Text, node: int) -> Interior:
        """Return the interior that is kept, made once."""
        size = 1000 if node else 4 * len(forest.vocabulary)
        return kept.of((state, node), lambda: cls(forest, state, node), lambda _: size)

    @cached_property
    def targets(self) -> list[State | None]:
        """The state behind the tokens of each group that stays off the paths; ``None`` where they are not allowed."""
        assert self.split is not None
        groups = range(len(self.split.stays.sizes))
        return [self.state.later(self.split.onward(self.state.spelled, group)) for group in groups]


def _along(forest: TokenForest, state: Text, node: int) -> Iterator[tuple[int, ByteEdge | None, Text | None, bool]]:
    """Yield the nodes below one that spell listed texts, or begin to, each with its edge and the state in the string, or None.

    And whether the automata tell what is below: not behind a closing quote, nor where a set has no member left but those
    that it leaves out.
    """
    path = on_path(state.spelled)
    children = forest.children(node) if path else {}
    for byte in path:
        if (child := children.get(byte)) is not None:
            edge = state.edge(byte)
            after = edge.target if edge is not None and isinstance(edge.target, Text) else None
            spelled = (None,) * len(state.spelled) if after is None else after.spelled
            is_inside = (edge is None or after is not None) and not any(
                one.automaton.step(one.state, byte)
                for one, later in zip(state.spelled, spelled, strict=True)
                if later is None and isinstance(one, Listed) and one.reads_on
            )
            yield child, edge, after, is_inside
            if is_inside and after is not None:
                yield from _along(forest, after, child)


class Ends(NamedTuple):
    """Ends of tokens: nodes of the forest, and the place of each; the next walk writes over both.

    ``places`` are states, each with the stack; ``inside`` what tokens do within strings that they end in, with the stack.
    """

    nodes: NDArray[np.integer]
    at: NDArray[np.integer]
    places: list[tuple[State | None, Stack]]
    inside: list[tuple[Interior, Stack]]


class TextNeededError(Exception):
    """The answer depends on text that was written before, which the compiled walk does not keep."""


@final
class Tables(Shared):
    """The tables of a guide that a walk reads, parts of one map of memory that goes with the guide as a whole."""

    def __init__(self, forest: ForestTables) -> None:
        sizes = {"text": 2 * MOST_STATES, "offset": 2 * MOST_STATES, "edges": 256 * MOST_STATES}
        sizes |= {"row": MOST_STATES, "ends": MOST_STATES, "within": MOST_STATES}
        sizes |= {"record": 6 * MOST_STATES, "part": MOST_PARTS, "follow": MOST_FRAMES, "behind": 4 * MOST_FRAMES}
        sizes |= {"frame": 2 * MOST_FRAMES, "missed": 4 * MOST_MISSED, "asked": 4 * MOST_MISSED, "mask": forest.width}
        sizes |= {"edge": 3 * MOST_EDGES, "listed": 6 * MOST_STATES, "closing": MOST_PARTS, "place": 3 * forest.nodes}
        # What is never written takes no memory, and what was does not stay in a heap; a forked process has a copy of its own.
        room = mmap(-1, 4 * (sum(sizes.values()) + 2 * forest.nodes), access=ACCESS_COPY)
        whole = np.frombuffer(room, np.int32)
        self.walk = WalkTables(
            width=forest.width, most_frames=MOST_FRAMES, most_missing=MOST_MISSED, most_ending=forest.nodes
        )
        self.of, parts, begin, end = dict[str, memoryview](), dict[str, NDArray[Any]](), whole.ctypes.data, 0
        for name, size in sizes.items():
            parts[name] = whole[end : end + size]
            self.of[name] = parts[name].data
            setattr(self.walk, name, begin + 4 * end)
            end += size
        self.of |= {name: parts[name].view(np.int64).data for name in ("text", "offset")}
        self.asked, self.mask = parts["asked"].reshape(-1, 4), parts["mask"].view(np.uint32)
        self.closing, self.reached = parts["closing"], whole[end:].reshape(-1, 2)
        forest.enter_into(self.walk)
        self.address, self.ends = ctypes.addressof(self.walk), self.reached.ctypes.data


@final
class Compiled:
    """The walks from a machine's configurations; :class:`TextNeededError` where these depend on what was written.

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
        self._lists: list[Words] = []
        self._rows, self._parts, self._behind, self._closing = 0, 0, 0, 0

    def __del__(self) -> None:
        if not self.forest.spare:  # memory that was written over is at hand sooner than new pages
            self.forest.spare.append(self._tables)

    def mask(self, at: Configuration) -> NDArray[np.uint32]:
        """Return the mask of a configuration, without the end of sequence."""
        self._walk(at, None)
        return self._tables.mask.copy()

    def reached(self, at: Configuration, begun: Stack) -> Ends:
        """Return the ends of tokens; ``begun`` stands for the stack of the configuration."""
        own = self._walk(at, self._tables.ends)
        stacks: dict[int, Stack] = {own: begun}
        found = self._of["place"][: 3 * self._tables.walk.placed].tolist()
        numbers = found[::3]
        ends = zip(numbers, found[1::3], strict=True)
        places = [(self._states[max(one, 0)], self._stack(frame, own, stacks)) for one, frame in ends]
        records = ((self._records[~one], here) for one, (_, here) in zip(numbers, places, strict=True) if one < 0)
        inside = [(self._interior(self._states[state], node), here) for (state, node), here in records]
        nodes, numbered = self._tables.reached[: self._tables.walk.ending].T
        return Ends(nodes, numbered, places, inside)

    def _stack(self, frame: int, own: int, stacks: dict[int, Stack]) -> Stack:
        """Return the stack of a frame, of which those from ``own`` on were made by the walk."""
        if frame not in stacks:
            after, below = self._of["frame"][2 * frame : 2 * frame + 2]
            stacks[frame] = (
                self._frames[frame] if frame < own else self._push(self._afters[after], self._stack(below, own, stacks))
            )
        return stacks[frame]

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
            elif byte >= 256:
                *_, closing = of["listed"][6 * state : 6 * state + 6]
                of["closing"][closing + byte - 256] = UNKNOWN
            elif byte >= 0:
                of["edges"][256 * of["row"][state] + byte] = UNKNOWN
        for item in asked:
            self._fill(*item)

    def _fill(self, node: int, state: int, frame: int, byte: int) -> None:
        if state < 0:
            after = self._of["frame"][2 * frame]
            self._of["behind"][self._of["follow"][after] + ~state] = self._state(self._afters[after][~state])
        elif byte >= 256:
            words, low, _, _, _, closing = self._of["listed"][6 * state : 6 * state + 6]
            edge = self._states[state].closed_at(self._lists[words].texts[low + byte - 256])
            self._of["closing"][closing + byte - 256] = 0 if edge is None else self._edge(edge)
        elif byte >= 0:
            edge = self._states[state].edge(byte)
            self._of["edges"][256 * self._of["row"][state] + byte] = 0 if edge is None else self._edge(edge)
        elif not self.forest.is_known(node):
            self.forest.load(node)
        elif (state, node) not in self._made:
            self._record(state, node)

    def _state(self, state: State) -> int:
        number = self._state_numbers.get(state)
        if number is None:
            if type(state) is Pending:
                raise TextNeededError
            number = len(self._states)
            check_room(number + 1, MOST_STATES)
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
        """Fill in the texts that a string may become, where one list has them all, and its others are in one state.

        The list, the first of its texts and the last, the bytes read of them, the state off their paths, their closing edges.
        """
        listed, first = self._of["listed"], 6 * number
        listed[first] = -1
        one = None if state.counts or self.forest.spells_escapes else alone(state.spelled)
        if one is None:
            return
        words = self._words.get(one.words)
        if words is None:
            words = self._words[one.words] = len(self._lists)
            self._lists.append(one.words)
            self._of["text"][words], self._of["offset"][words] = one.words.addresses
        beside = state.off_paths if one.words.without else None
        closing, self._closing = self._closing, self._closing + one.high - one.low
        check_room(self._closing, MOST_PARTS)
        self._tables.closing[closing : self._closing] = UNKNOWN
        fields = words, one.low, one.high, one.depth, 0 if beside is None else self._state(beside), closing
        for place, entry in enumerate(fields, first):
            listed[place] = entry

    def _edge(self, edge: ByteEdge) -> int:
        number = self._edge_numbers.get(id(edge))
        if number is None:
            number, own = FIRST_EDGE + len(self._edges), self._of["edge"]
            check_room(number + 1, MOST_EDGES)
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
            check_room(number + 1, MOST_FRAMES)
            check_room(self._behind + len(after), 4 * MOST_FRAMES)
            self._afters.append(after)
            self._of["follow"][number] = self._behind
            for place in range(self._behind, self._behind + len(after)):
                self._of["behind"][place] = 0
            self._behind += len(after)
        return number

    def _entered(self, stack: Frame) -> int:
        if stack.keeps:
            raise TextNeededError
        return self._after(stack.after)

    def _frame(self, stack: Stack) -> int:
        waiting = list[Frame]()
        while stack is not None and stack not in self._frame_numbers:
            waiting.append(stack)
            stack = stack.below
        for one in reversed(waiting):
            below, after, number = self._frame_numbers[one.below], self._entered(one), len(self._frames)
            check_room(number + 2, MOST_FRAMES)
            self._frame_numbers[one] = number
            self._frames.append(one)
            self._of["frame"][2 * number], self._of["frame"][2 * number + 1] = after, below
        return self._frame_numbers[waiting[0] if waiting else stack]

    def _record(self, number: int, node: int) -> None:
        """Fill in the tokens within a string, below a node."""
        state, own = self._states[number], self._of
        if state.counts:
            raise TextNeededError
        interior = self._interior(state, node)
        word, exits = interior.marked(self.forest)
        marks = [end for end, behind in interior.ends if behind is not None]
        parts = [*marks, *(part for end, edge in exits for part in (end, self._edge(edge)))]
        for end in (*marks, *(end for end, _ in exits)):
            self.forest.enter(end)
        first, last, made = self._parts, self._parts + len(parts), len(self._records)
        check_room(last, MOST_PARTS)
        check_room(made + 1, MOST_STATES)
        for place, entry in enumerate(parts, first):
            own["part"][place] = entry
        for place, entry in enumerate((node, own["within"][number], word, first, first + len(marks), last), 6 * made):
            own["record"][place] = entry
        own["within"][number], self._parts = made, last
        self._records.append((number, node))
        self._made.add((number, node))


class Reached(NamedTuple):
    """The ends of all tokens from a configuration on.

    Attributes
    ----------
    base
        The interior of the string that is being read, where its tokens off the paths of listed texts share classes with others.
    ids, at
        The other tokens in the order of their texts, and the place in ``places`` where each ends.
    places
        States, ``None`` where tokens are not allowed, each with the stack, and whether they are behind the innermost value: in the
        order of the first tokens that lead there, whatever the order of the walk.
    """

    base: Interior | None
    ids: NDArray[np.int32]
    at: NDArray[np.int64]
    places: list[tuple[State | None, Stack, bool]]


@final
class Walker:
    """The walk of a vocabulary's trie by a machine: compiled where that has an answer, else byte by byte from node to node."""

    def __init__(self, machine: Machine, forest: TokenForest) -> None:
        self._machine, self._forest = machine, forest
        self._compiled: Compiled | None = None
        self._forget()

    def mask(self, at: Configuration) -> NDArray[np.uint32] | None:
        """Return the mask of a configuration but for the end of sequence; ``None`` where the compiled walk has no answer."""
        return self._by_compiled(lambda compiled: compiled.mask(at))

    def reached(self, at: Configuration) -> Reached:
        """Return the ends of all tokens from a configuration on."""
        stack = at.stack
        # An own copy, so that a stack which the value was popped from, and pushed on again, is another one.
        begun = None if stack is None else Frame(stack.after, stack.below, stack.start)
        found = self._by_compiled(lambda compiled: compiled.reached(at, begun)) or self.by_steps(at, begun)
        known: dict[tuple[State | None, Stack], int] = {}

        def numbers(places: Iterable[tuple[State | None, Stack]]) -> NDArray[np.int64]:
            return np.array([known.setdefault(place, len(known)) for place in places], dtype=np.int64)

        base, parts = None, list[tuple[NDArray[np.integer] | list[int], NDArray[np.int64]]]()
        for interior, here in found.inside:
            split = interior.split
            if not interior.node and split is not None and not tells_apart(interior.state, stack, counted=True):
                base = interior
            elif split is not None:
                groups = numbers((state, here) for state in interior.targets)
                parts.append((split.stays.nodes, groups.repeat(split.stays.sizes)))
            if interior.ends:
                parts.append(
                    ([node for node, _ in interior.ends], numbers((state, here) for _, state in interior.ends))
                )
        parts.append((found.nodes, numbers(found.places)[found.at]))
        nodes, places = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        order = self._forest.order(nodes)
        ids, counts = self._forest.ending(nodes[order])
        unranked = places[order].repeat(counts)
        first, ranks, listed = list(dict.fromkeys(unranked.tolist())), np.empty(len(known), np.int64), list(known)
        ranks[first] = np.arange(len(first))
        settled = [(listed[one][0], *self._settled(listed[one][1], stack, begun)) for one in first]
        return Reached(base, ids, ranks[unranked], settled)

    def _settled(self, here: Stack, stack: Stack, begun: Stack) -> tuple[Stack, bool]:
        """Return the stack of the machine for one of a walk, and whether the innermost value was left on the way there."""
        above, below = list[Frame](), here
        while below is not begun and below is not None:
            above.append(below)
            below = below.below
        if below is not begun:
            return here, True
        found = stack
        for frame in reversed(above):
            found = self._machine.push(frame.after, found, frame.start)
        return found, False

    def by_steps(self, at: Configuration, begun: Stack) -> Ends:
        """Walk from node to node: the reference of the compiled walk."""
        inside, reached = list[tuple[Interior, Stack]](), list[tuple[int, Configuration]]()
        forest, machine = self._forest, self._machine
        waiting = [(0, Configuration(at.state, begun, at.text))]
        while waiting:
            node, here = waiting.pop()
            state, stack, _ = here
            after: list[tuple[int, Configuration | None]] = []
            if isinstance(state, Text):
                interior = self._interior(state, node)
                inside.append((interior, stack))
                for child, edge in interior.exits:
                    keeps = stack is not None and stack.keeps
                    for one in forest.nodes(child).tolist() if keeps else [child]:
                        after.append((one, machine.follow(here, edge, forest.text(one, node) if keeps else b"")))
            else:
                after += ((child, machine.step(here, byte)) for byte, child in forest.children(node).items())
            found = [(child, one) for child, one in after if one is not None]
            reached += found
            waiting += found
        nodes = np.array([node for node, _ in reached], dtype=np.int64)
        return Ends(nodes, np.arange(len(nodes)), [(one.state, one.stack) for _, one in reached], inside)

    def _forget(self) -> None:
        """Begin to keep interiors, which know words of the tables that they were made for."""
        self._interior = partial(Interior.of, self._forest, Cache[tuple[State, int], Interior](MOST_KEPT))

    def _by_compiled(self, ask: Callable[[Compiled], Found]) -> Found | None:
        """Ask the compiled walk; return ``None`` where there is none, or the answer depends on what was written."""
        for _ in range(2):  # once more where what was kept takes all the room
            tables = self._forest.tables
            if tables is None:
                return None
            try:
                if self._compiled is None or self._compiled.forest is not tables:
                    self._forget()
                    self._compiled = Compiled(tables, self._interior, self._machine.push)
                return ask(self._compiled)
            except TextNeededError:
                return None
            except FullError:
                self._compiled = None
                self._forest.forget(tables)
        return None


def tells_apart(state: State | None, stack: Stack, *, counted: bool = False) -> bool:
    """Return True if each token that leads to a state leads to a configuration of its own, since its text is kept.

    Names are ``counted`` in a state that stands for all of any text; or in that of each text, behind which they are.
    """
    keeps = stack is not None and stack.keeps
    return state is not None and (
        keeps or (isinstance(state, Key) and (state.counts if counted else state.text is None or state.is_other))
    )
