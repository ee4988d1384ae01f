"""The machine of a JSON schema, byte by byte."""

from __future__ import annotations

from functools import lru_cache
from typing import final

from ...guides.json_schema.json_guide import JSONGuide
from ...guides.json_schema.machine.sizes import NEVER
from ...guides.json_schema.machine.stack import Configuration
from .byte_names import byte_name, byte_set
from .reading_machine import Fault, ReadingMachine, Spot
from .schema_graph import SchemaGraph

MOST_STACK = 40  # Values around a place that are shown


@final
class SchemaMachine(ReadingMachine):
    """The visibly pushdown machine of a schema's guide (grammar-theory.md, section 9.3); a place is a configuration of it."""

    kind = "visibly pushdown machine of a JSON schema"

    def __init__(self, guide: JSONGuide) -> None:
        self._machine = guide.machine
        self._drawn = SchemaGraph(guide.machine)
        self.graph, self.start = self._drawn.graph(), guide.machine.start
        self._expected = lru_cache(1024)(self._find_expected)

    def read(self, place: Configuration, byte: int) -> Configuration | Fault:
        after = self._machine.advance(place, byte)
        if after is None:
            return self._fault(place, f"takes {self._expected(place)}, and {byte_name(byte)} came")
        if self._machine.size(after) >= NEVER:
            return self._fault(place, f"is left by {byte_name(byte)} for a value that nothing can complete")
        return after

    def end(self, place: Configuration) -> Fault | None:
        if self._machine.may_end(place):
            return None
        label = self._drawn.label_of(place.state)
        because = (
            f"The value is not complete in {label}: the shortest end needs {self._machine.size(place)} more bytes."
        )
        return Fault("end", label, because, (self._expected(place),), self._drawn.place_of(place.state))

    def spot(self, place: Configuration) -> Spot:
        found = self._drawn.place_of(place.state)
        stack, frame = list[str](), place.stack
        while frame is not None and len(stack) < MOST_STACK:
            stack.append(" or ".join(dict.fromkeys(self._drawn.label_of(state) for state in frame.after)))
            frame = frame.below
        stack += ["…"] * (frame is not None)
        label = self._drawn.label_of(place.state)
        return Spot(label, () if found is None else (found,), (label, *(f"then {each}" for each in stack)))

    def _find_expected(self, place: Configuration) -> str:
        """Return the bytes that a place goes on with, those behind a value that may end there among them."""
        return byte_set(byte for byte in range(256) if self._machine.advance(place, byte) is not None)

    def _fault(self, place: Configuration, reason: str) -> Fault:
        label = self._drawn.label_of(place.state)
        return Fault(
            "schema", label, f"The place {label} {reason}.", (self._expected(place),), self._drawn.place_of(place.state)
        )
