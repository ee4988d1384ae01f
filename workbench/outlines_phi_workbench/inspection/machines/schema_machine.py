"""The machine of a JSON schema, byte by byte."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias, final

from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.machine.sizes import NEVER
from outlines_phi.guides.json_schema.machine.states import Configuration

from .byte_names import byte_name, byte_set
from .reading_machine import Fault, ReadingMachine, Spot
from .schema_graph import SchemaGraph

MOST_STACK = 40  # Values around a place that are shown


Place: TypeAlias = tuple[Configuration, Configuration]
"""The configuration of a text, and the one that is drawn, of the text without the blanks between its tokens."""


@final
class SchemaMachine(ReadingMachine):
    """The visibly pushdown machine of a schema's guide (grammar-theory.md, section 9.3).

    It is drawn without blanks: how deep lines are indented is a part of a state, so with them there are states without end.
    """

    kind = "visibly pushdown machine of a JSON schema"

    def __init__(self, guide: JSONGuide) -> None:
        own = self._machine = guide.machine
        self._compact = Machine(own.template, blanks="", any_order=own.any_order, ascii=own.ascii)
        self._drawn = SchemaGraph(self._compact)
        self.graph, self.start = self._drawn.graph(), (own.start, self._compact.start)
        self._expected = lru_cache(1024)(self._find_expected)

    def read(self, place: Place, byte: int) -> Place | Fault:
        after = self._machine.advance(place[0], byte)
        if after is None:
            return self._fault(place, f"takes {self._expected(place)}, and {byte_name(byte)} came")
        if self._machine.size(after) >= NEVER:
            return self._fault(place, f"is left by {byte_name(byte)} for a value that nothing can complete")
        drawn = self._compact.advance(place[1], byte)
        return after, drawn or place[1]

    def end(self, place: Place) -> Fault | None:
        if self._machine.may_end(place[0]):
            return None
        label = self._drawn.label_of(place[1].state)
        because = (
            f"The value is not complete in {label}: the shortest end needs {self._machine.size(place[0])} more bytes."
        )
        return Fault("end", label, because, (self._expected(place),), self._drawn.place_of(place[1].state))

    def spot(self, place: Place) -> Spot:
        found = self._drawn.place_of(place[1].state)
        stack, frame = list[str](), place[1].stack
        while frame is not None and len(stack) < MOST_STACK:
            stack.append(" or ".join(dict.fromkeys(self._drawn.label_of(state) for state in frame.after)))
            frame = frame.below
        stack += ["…"] * (frame is not None)
        label = self._drawn.label_of(place[1].state)
        return Spot(label, () if found is None else (found,), (label, *(f"then {each}" for each in stack)))

    def _find_expected(self, place: Place) -> str:
        """Return the bytes that a place goes on with, those behind a value that may end there among them."""
        return byte_set(byte for byte in range(256) if self._machine.advance(place[0], byte) is not None)

    def _fault(self, place: Place, reason: str) -> Fault:
        label = self._drawn.label_of(place[1].state)
        return Fault(
            "schema",
            label,
            f"The place {label} {reason}.",
            (self._expected(place),),
            self._drawn.place_of(place[1].state),
        )
