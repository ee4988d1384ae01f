"""A JSON schema's machine as a graph: the values that it reads, and the places within each."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, final

from ...guides.json_schema.machine.between import Between
from ...guides.json_schema.machine.machine import Machine
from ...guides.json_schema.machine.objects import Colon
from ...guides.json_schema.machine.states import Pending, State
from .byte_names import byte_set, text_name
from .machine_graph import MOST_STATES, GraphEdge, GraphNode, GraphPart, MachineGraph, PartStates, merged

MOST_PLACES = 3_000  # Places that are looked at for the graph; a walk of a text makes others

OTHERS = "(other names)"  # The name of members of which nothing is said by name

_MEMBER = re.compile(rb'"((?:[^"\\]|\\.)*)"[ \t\r\n]*$')
"""The name of a member, at the end of a text that leads behind it."""


class SchemaStep(NamedTuple):
    """Where some bytes lead from a place: ``target``, ``None`` out of the value; ``after`` is put on the stack, if anything."""

    target: State | None
    after: tuple[State, ...] | None
    read: tuple[int, ...]


@final
@dataclass(eq=False)
class ValuePart:
    """A value that the machine reads, with the places within it, each with a shortest text that leads there from the first.

    ``label`` is a pointer to it, by the names that lead to it first.
    """

    id: str
    label: str
    places: dict[State, bytes] = field(default_factory=dict)


@final
class SchemaGraph:
    """The values of a schema that a text may hold, explored from the first byte on.

    A value within a value is a call, as of a recursive state machine: the places of an object are those after each of its members,
    and what is between the colon and the comma is another part. Values of which the same is asked are one part, however deep. The
    first item of an array begins behind its first byte, so it may be a part beside that of the others.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.parts: list[ValuePart] = []
        self._part_of: dict[State, ValuePart] = {}
        self._number: dict[State, int] = {}
        self._steps: dict[State, list[SchemaStep]] = {}
        self._calls: list[tuple[str, str, str]] = []
        self._is_whole = True
        waiting = deque([self._add("start", machine.start.state, b"")])
        while waiting:
            waiting.extend(self._explore(waiting.popleft()))

    def graph(self) -> MachineGraph:
        """Return the graph."""
        parts = tuple(
            GraphPart(part.id, "value", part.label, self._text(part), len(part.places), number == 0)
            for number, part in enumerate(self.parts)
        )
        remark = f"{len(self._number):,} places of values"
        if not self._is_whole:
            remark += "; the machine has more, which are made as texts lead there"
        return MachineGraph(parts, merged(self._calls), self._find, remark)

    def place_of(self, state: State) -> tuple[str, str] | None:
        """Return the part and the node of a place; ``None`` where the graph does not have it."""
        part = self._part_of.get(state)
        return None if part is None else (part.id, f"j{self._number[state]}")

    def label_of(self, state: State) -> str:
        """Return what a place is called: its kind, and the value that it is in."""
        kind = type(state).__name__.lower()
        part = self._part_of.get(state)
        return f"{kind} of {part.label}" if part is not None else kind

    def _explore(self, part: ValuePart) -> Iterator[ValuePart]:
        """Find the places of a value; yield the parts that it is the first to call."""
        pending = list(part.places)
        for state in pending:  # it grows
            text = part.places[state]
            for target, after, read in self._steps_of(state):
                if after is not None and target is not None:
                    yield from self._called(part, state, target, bytes(read[:1]))
                inside = [target] if after is None and target is not None else list(after or ())
                for within in inside:
                    if isinstance(within, Pending):
                        continue
                    if self._join(part, within, text + bytes(read[:1])):
                        pending.append(within)
                    elif (other := self._part_of.get(within, part)) is not part:
                        self._calls.append((part.id, other.id, ""))

    def _called(self, caller: ValuePart, state: State, target: State, read: bytes) -> Iterator[ValuePart]:
        label = "value" if isinstance(state, Between) else "[]"
        if isinstance(state, Colon) and (named := _MEMBER.search(caller.places[state])) is not None:
            label = text_name(named[1]) or OTHERS
        callee = self._part_of.get(target)
        if callee is None:
            if len(self._number) >= MOST_PLACES:
                self._is_whole = False
                return
            pointer = "#" if isinstance(state, Between) else f"{caller.label}/{label}"
            callee = self._add(pointer, target, b"" if isinstance(state, Colon) else read)
            yield callee
        self._calls.append((caller.id, callee.id, label))

    def _add(self, label: str, entry: State, text: bytes) -> ValuePart:
        part = ValuePart(f"v{len(self.parts)}", label)
        self.parts.append(part)
        self._join(part, entry, text)
        return part

    def _join(self, part: ValuePart, state: State, text: bytes) -> bool:
        """Put a place into a part, if it is new and there is room for it; return whether it was."""
        if state in self._part_of:
            return False
        if len(self._number) >= MOST_PLACES:
            self._is_whole = False
            return False
        self._part_of[state], self._number[state] = part, len(self._number)
        part.places[state] = text
        return True

    def _steps_of(self, state: State) -> list[SchemaStep]:
        if state not in self._steps:
            found: dict[tuple[State | None, tuple[State, ...] | None], list[int]] = {}
            if state.is_possible:
                for byte in range(256) if state.bytes is None else state.bytes:
                    if (edge := state.edge(byte)) is not None:
                        after = None if edge.after is None else tuple(edge.after)
                        found.setdefault((edge.target, after), []).append(byte)
            self._steps[state] = [SchemaStep(*way, tuple(sorted(read))) for way, read in found.items()]
        return self._steps[state]

    def _text(self, part: ValuePart) -> str:
        kinds = dict.fromkeys(type(state).__name__.lower() for state in part.places)
        return f"{len(part.places)} places: {', '.join(kinds)}"

    def _find(self, id: str) -> PartStates:
        part = self.parts[int(id[1:])]
        drawn = list(part.places)[:MOST_STATES]
        here = {state: f"j{self._number[state]}" for state in drawn}
        nodes, edges, others = list[GraphNode](), list[GraphEdge](), dict[ValuePart, None]()

        def draw(source: State, target: State, label: str, kind: str) -> None:
            if target in here:
                edges.append(GraphEdge(here[source], here[target], label, kind))
            elif (other := self._part_of.get(target)) is not None and other is not part:
                others[other] = None
                edges.append(GraphEdge(here[source], f"to{other.id}", label, kind))

        for place, (state, name) in enumerate(here.items()):
            steps, label = self._steps_of(state), type(state).__name__.lower()
            ends = state.ends is not None or any(step.target is None for step in steps)
            shown = f"{self.label_of(state)}, behind {text_name(part.places[state]) or 'nothing'}"
            nodes.append(GraphNode(name, label, shown, place == 0, ends))
            for target, after, read in steps:
                if target is not None:
                    draw(state, target, byte_set(read), "step" if after is None else "call")
                for later in after or ():
                    if not isinstance(later, Pending):
                        draw(state, later, "a value", "goto")
        nodes += [GraphNode(f"to{other.id}", other.label, part=other.id) for other in others]
        return PartStates(tuple(nodes), tuple(dict.fromkeys(edges)), len(part.places) - len(drawn))
