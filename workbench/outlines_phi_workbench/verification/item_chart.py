"""The words of a finite automaton over terminals that a grammar derives: Earley's items over its places, with derivations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, final

from outlines_phi.guides.grammar.grammar import Grammar

Arcs = Mapping[int, Sequence[int]]  # From a place: by terminal, the places that it leads to


class ChartItem(NamedTuple):
    """A production that was begun at the place ``origin``, with as much of its body read at ``here`` as ``dot`` says."""

    production: int
    dot: int
    origin: int
    here: int


class Reason(NamedTuple):
    """The origin of an item: from ``before``, by a terminal, where ``inner`` is ``None``, or by a symbol that was completed."""

    before: ChartItem
    inner: ChartItem | None


@final
class ItemChart:
    """The least set of items that is closed under Earley's rules (1970), over an automaton in place of a word.

    ``arcs`` are those of a place; the items of the start symbol have the production :data:`ROOT`, whose body it is.
    """

    ROOT = -1

    def __init__(self, grammar: Grammar, arcs: Callable[[int], Arcs]) -> None:
        self._arcs, self._terminals = arcs, len(grammar.terminals)
        self._body = [production.body for production in grammar.productions] + [(grammar.start,)]
        self._head = [production.head for production in grammar.productions] + [ItemChart.ROOT]
        self._of: dict[int, list[int]] = {}
        for number, production in enumerate(grammar.productions):
            self._of.setdefault(production.head, []).append(number)
        self.reasons: dict[ChartItem, Reason | None] = {}
        """All items, each with how it first came up; ``None`` for those of which nothing is read."""
        self._completed: dict[tuple[int, int], list[ChartItem]] = {}  # by head and origin
        self._waiting: dict[tuple[int, int], list[ChartItem]] = {}  # by the symbol that is next, and where

    def __len__(self) -> int:
        return len(self.reasons)

    def begin(self, place: int) -> list[ChartItem]:
        """Look for the start symbol from ``place``; return the items in which it is complete, by where."""
        pending = deque[ChartItem]()  # in turn, so that derivations are short
        self._add(ChartItem(ItemChart.ROOT, 0, place, place), None, pending)
        while pending:
            self._close(pending.popleft(), pending)
        return self._completed.get((ItemChart.ROOT, place), [])

    def needs(self, item: ChartItem) -> tuple[int, tuple[int, ...]]:
        """Return the head of an item's production, :data:`ROOT` for the root, and the symbols that are still to be read."""
        return self._head[item.production], self._body[item.production][item.dot :]

    def leftmost(self, item: ChartItem) -> list[int]:
        """Return the productions of a leftmost derivation of what a complete ``item`` has read, its own first."""
        steps: list[int] = []
        pending = [item]
        while pending:
            complete = pending.pop()
            steps.append(complete.production)
            inner = [reason.inner for reason in self._history(complete) if reason.inner is not None]
            pending += inner  # the last one first, as :meth:`_history` has it, so that the first is taken next
        return steps

    def arcs_of(self, item: ChartItem) -> list[tuple[int, int, int]]:
        """Return the arcs that a complete ``item`` has read: place, terminal, place."""
        read: list[tuple[int, int, int]] = []
        pending: list[ChartItem | tuple[int, int, int]] = [item]
        while pending:
            part = pending.pop()
            if not isinstance(part, ChartItem):
                read.append(part)
                continue
            places = [part.here, *(reason.before.here for reason in self._history(part))]
            for reason, there in zip(self._history(part), places, strict=False):
                terminal = self._body[part.production][reason.before.dot]
                pending.append((reason.before.here, terminal, there) if reason.inner is None else reason.inner)
        return read

    def _history(self, item: ChartItem) -> Iterator[Reason]:
        """Yield the origin of ``item``, and of the items that it came from, back to where nothing was read."""
        while (reason := self.reasons[item]) is not None:
            yield reason
            item = reason.before

    def _add(self, item: ChartItem, reason: Reason | None, pending: deque[ChartItem]) -> None:
        if item not in self.reasons:
            self.reasons[item] = reason
            pending.append(item)

    def _close(self, item: ChartItem, pending: deque[ChartItem]) -> None:
        """Add the consequences of an item and those before it."""
        body = self._body[item.production]
        if item.dot == len(body):
            key = (self._head[item.production], item.origin)
            self._completed.setdefault(key, []).append(item)
            for waiting in self._waiting.get(key, ()):
                self._add(waiting._replace(dot=waiting.dot + 1, here=item.here), Reason(waiting, item), pending)
            return
        symbol = body[item.dot]
        if symbol < self._terminals:
            for there in self._arcs(item.here).get(symbol, ()):
                self._add(item._replace(dot=item.dot + 1, here=there), Reason(item, None), pending)
            return
        key = (symbol, item.here)
        self._waiting.setdefault(key, []).append(item)
        for number in self._of.get(symbol, ()):
            self._add(ChartItem(number, 0, item.here, item.here), None, pending)
        for complete in self._completed.get(key, ()):
            self._add(item._replace(dot=item.dot + 1, here=complete.here), Reason(item, complete), pending)
