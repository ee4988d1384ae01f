"""A JSON schema's machine as a graph: the values that it reads, and the places within each."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, final

from outlines_phi.guides.json_schema.machine.between import Between
from outlines_phi.guides.json_schema.machine.containers import Colon
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.machine.states import Pending, State

from .byte_names import byte_set, text_name
from .machine_graph import MOST_STATES, GraphEdge, GraphNode, GraphPart, MachineGraph, PartStates, merged

MOST_PLACES = 3_000  # Places that are looked at for the graph; a walk of a text makes others

OTHERS = "(other names)"  # The name of members of which nothing is said by name

_MEMBER = re.compile(rb'"((?:[^"\\]|\\.)*)"[ \t\r\n]*$')
"""The name of a member, at the end of a text that leads behind it."""


class SchemaStep(NamedTuple):
    """The transition by some bytes from a place: ``target``, ``None`` out of the value; ``after`` is put on the stack, if any."""

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
        self._groups: dict[ValuePart, dict[State, int]] = {}
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
        return None if part is None else (part.id, f"j{self._group_of(part)[state]}")

    def label_of(self, state: State) -> str:
        """Return the label of a place: its kind, and the value that it is in."""
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
            for byte in range(256) if state.bytes is None else state.bytes:
                if (edge := state.edge(byte)) is not None:
                    after = None if edge.after is None else tuple(edge.after)
                    found.setdefault((edge.target, after), []).append(byte)
            self._steps[state] = [SchemaStep(*way, tuple(sorted(read))) for way, read in found.items()]
        return self._steps[state]

    def _text(self, part: ValuePart) -> str:
        kinds = dict.fromkeys(type(state).__name__.lower() for state in part.places)
        return f"{len(part.places)} places: {', '.join(kinds)}"

    def _group_of(self, part: ValuePart) -> dict[State, int]:
        """Return the group of each place of a part: places of one kind that steps connect are drawn as one, by its first number."""
        if part not in self._groups:
            above = {state: state for state in part.places}

            def first(state: State) -> State:
                while above[state] is not state:
                    state = above[state]
                return state

            for state in part.places:
                for target, after, _ in self._steps_of(state):
                    if after is None and type(target) is type(state) and target in above:
                        one, other = sorted((first(state), first(target)), key=self._number.__getitem__)
                        above[other] = one
            self._groups[part] = {state: self._number[first(state)] for state in part.places}
        return self._groups[part]

    def _find(self, id: str) -> PartStates:
        part = self.parts[int(id[1:])]
        groups = self._group_of(part)
        members: dict[int, list[State]] = {}
        for state, group in groups.items():
            members.setdefault(group, []).append(state)
        drawn = dict(list(members.items())[:MOST_STATES])
        others, read_by = dict[ValuePart, None](), dict[tuple[str, str, str], set[int]]()

        def draw(source: int, target: State, read: tuple[int, ...], kind: str) -> None:
            other = self._part_of.get(target)
            if other is None or (other is part and groups[target] not in drawn):
                return
            if other is not part:
                others[other] = None
            end = f"j{groups[target]}" if other is part else f"to{other.id}"
            read_by.setdefault((f"j{source}", end, kind), set()).update(read)

        nodes = list[GraphNode]()
        for group, states in drawn.items():
            kind = type(states[0]).__name__.lower()
            count = f", {len(states)} places" if len(states) > 1 else ""
            text = f"{self.label_of(states[0])}{count}, behind {text_name(part.places[states[0]]) or 'nothing'}"
            ends = any(
                state.ends is not None or None in (step.target for step in self._steps_of(state)) for state in states
            )
            nodes.append(GraphNode(f"j{group}", kind, text, not nodes, ends))
            for state in states:
                for target, after, read in self._steps_of(state):
                    if target is not None and not (after is None and groups.get(target) == group):
                        draw(group, target, read, "step" if after is None else "call")
                    for later in after or ():
                        if not isinstance(later, Pending):
                            draw(group, later, (), "goto")
        nodes += [GraphNode(f"to{other.id}", other.label, part=other.id) for other in others]
        edges = [
            GraphEdge(source, end, byte_set(read) if read else "a value", kind)
            for (source, end, kind), read in read_by.items()
        ]
        return PartStates(tuple(nodes), tuple(edges), sum(map(len, members.values())) - sum(map(len, drawn.values())))
