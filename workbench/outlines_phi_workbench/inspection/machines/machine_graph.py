"""A machine as a graph in two levels: parts that call each other, and the states within each, made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar, final

MOST_STATES = 300  # States of a part that are drawn; a part with more says how many it leaves out
_KEPT = 64  # Parts whose states are kept

State = TypeVar("State", bound=Hashable)


@final
@dataclass(frozen=True)
class GraphPart:
    """A part of a machine: a rule, a terminal, the lexer, a value of a schema, a block of states."""

    id: str
    kind: str  # `rule`, `terminal`, `lexer`, `value` or `states`
    label: str
    text: str = ""  # its text in the source
    size: int = 0  # its states
    is_start: bool = False


@final
@dataclass(frozen=True)
class GraphNode:
    """A state of a part, or another part that one of its states calls (``part``)."""

    id: str
    label: str
    text: str = ""
    is_start: bool = False
    is_end: bool = False
    part: str | None = None


@final
@dataclass(frozen=True)
class GraphEdge:
    """A step between states, or a call between parts (``kind``); ``label`` is what is read."""

    source: str
    target: str
    label: str = ""
    kind: str = "step"


@final
@dataclass(frozen=True)
class PartStates:
    """The states of a part, and the steps between them; ``left_out`` are not drawn."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    left_out: int = 0


@final
@dataclass(frozen=True, eq=False)
class MachineGraph:
    """The parts of a machine, the calls between them, and the states of each part.

    ``remark`` says what the graph leaves out, ``find`` makes the states of a part.
    """

    parts: tuple[GraphPart, ...]
    calls: tuple[GraphEdge, ...]
    find: Callable[[str], PartStates]
    remark: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_states_of", lru_cache(_KEPT)(self.find))

    def states_of(self, part: str) -> PartStates:
        """Return the states of a part, by its id."""
        found: PartStates = self._states_of(part)  # type: ignore[attr-defined]
        return found


def reached(start: State, after: Callable[[State], Iterable[State]], most: int) -> tuple[list[State], bool]:
    """Return the first ``most`` states from ``start`` on in the order of a breadth-first search, and whether these are all."""
    found = dict.fromkeys([start])
    queue: list[State] = [start]
    for state in queue:  # it grows
        for target in after(state):
            if target not in found:
                if len(found) == most:
                    return queue, False
                found[target] = None
                queue.append(target)
    return queue, True


def merged(edges: Sequence[tuple[str, str, str]], kind: str = "call") -> tuple[GraphEdge, ...]:
    """Return edges, one for each pair of ends, with the distinct labels of all."""
    labels: dict[tuple[str, str], dict[str, None]] = {}
    for source, target, label in edges:
        labels.setdefault((source, target), {})[label] = None
    return tuple(GraphEdge(*pair, ", ".join(filter(None, found)), kind) for pair, found in labels.items())
