"""The machine of any guide, byte by byte, by tokens of one byte: for guides that show no parts."""

from __future__ import annotations

from typing import final

from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.guide import DEAD, DONE, Guide

from .byte_names import byte_name, byte_set
from .machine_graph import GraphEdge, GraphNode, GraphPart, MachineGraph, PartStates, reached
from .reading_machine import Fault, ReadingMachine, Spot

MOST_LOOKED_AT = 30  # States that are drawn, from the start on

_PART = "g0"


@final
class GuideMachine(ReadingMachine):
    """A guide over the tokens of single bytes; a place is a state of it. Its graph is the states that few bytes lead to.

    Raises :class:`UnsupportedError` where the vocabulary has no tokens of single bytes.
    """

    kind = "guide"

    def __init__(self, guide: Guide) -> None:
        self._guide, self.start = guide, guide.start
        self._token = {token[0]: number for number, token in enumerate(guide.vocabulary.tokens) if len(token) == 1}
        if not self._token:
            raise UnsupportedError(
                "Give a tokenizer with tokens of single bytes, as all of byte-level BPE have. This vocabulary has none, and what "
                f"a {type(guide).__name__} refuses is found byte by byte."
            )
        order, is_whole = reached(guide.start, lambda state: list(self._steps(state)), MOST_LOOKED_AT)
        remark = f"the first {len(order)} states" + "; there are more" * (not is_whole)
        part = GraphPart(_PART, "states", type(guide).__name__, remark, len(order), True)
        self._drawn = dict.fromkeys(order)
        self.graph = MachineGraph((part,), (), self._states, remark)

    def read(self, place: int, byte: int) -> int | Fault:
        token = self._token.get(byte)
        if token is None:
            return Fault(
                "vocabulary",
                byte_name(byte),
                f"No token writes {byte_name(byte)} alone, so it is not told what refuses.",
            )
        target = self._guide.advance(place, token)
        if target != DEAD:
            return target
        expected = byte_set(sum(self._steps(place).values(), []))
        because = f"{self._guide.describe(place)[:200]}: {expected} may follow, and {byte_name(byte)} came."
        return Fault("automaton", f"state {place}", because, (expected,), (_PART, f"g{place}"))

    def follow(self, place: int, token: int, text: bytes) -> int:
        """See :meth:`ReadingMachine.follow`: the token at once."""
        return self._guide.advance(place, token)

    def end(self, place: int) -> Fault | None:
        if self._guide.advance(place, self._guide.vocabulary.eos_ids[0]) == DONE:
            return None
        expected = byte_set(sum(self._steps(place).values(), []))
        return Fault("end", f"state {place}", "The text may not end here.", (expected,), (_PART, f"g{place}"))

    def spot(self, place: int) -> Spot:
        nodes = ((_PART, f"g{place}"),) if place in self._drawn else ()
        return Spot(f"state {place}", nodes, (self._guide.describe(place)[:200],))

    def _steps(self, state: int) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for byte, token in self._token.items():
            if (target := self._guide.advance(state, token)) not in (DEAD, DONE):
                found.setdefault(target, []).append(byte)
        return found

    def _states(self, part: str) -> PartStates:
        nodes = tuple(
            GraphNode(
                f"g{state}", str(state), self._guide.describe(state)[:300], state == self.start, self.end(state) is None
            )
            for state in self._drawn
        )
        edges = tuple(
            GraphEdge(f"g{state}", f"g{target}", byte_set(read))
            for state in self._drawn
            for target, read in self._steps(state).items()
            if target in self._drawn
        )
        return PartStates(nodes, edges)
