"""The words of a finite automaton over terminals that a grammar derives: Earley's items over its places, with derivations."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, final

from outlines_phi.guides.grammar.grammar import Grammar

from .lexing import Arcs


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

    ``arcs`` are those of a place. ``root`` is a symbol behind those of the grammar, with one production: the last one, -1, whose
    body is the start symbol.
    """

    def __init__(self, grammar: Grammar, arcs: Callable[[int], Arcs]) -> None:
        self._arcs, self._grammar = arcs, grammar
        self._body = [production.body for production in grammar.productions] + [(grammar.start,)]
        self.root = len(grammar.terminals) + len(grammar.nonterminals)
        self._head = [production.head for production in grammar.productions] + [self.root]
        self.reasons: dict[ChartItem, Reason | None] = {}
        """All items, each with how it first came up; ``None`` for those of which nothing is read."""
        self._completed: dict[tuple[int, int], list[ChartItem]] = {}  # by head and origin
        self._waiting: dict[tuple[int, int], list[ChartItem]] = {}  # by the symbol that is next, and where

    def begin(self, place: int) -> list[ChartItem]:
        """Look for the start symbol from ``place``; return the items in which it is complete, by where."""
        pending: list[ChartItem] = []
        self._add(ChartItem(-1, 0, place, place), None, pending)
        for item in pending:  # it grows; in turn, so that derivations are short
            self._close(item, pending)
        return self._completed.get((self.root, place), [])

    def needs(self, item: ChartItem) -> tuple[int, tuple[int, ...]]:
        """Return the head of an item's production, and the symbols that are still to be read."""
        return self._head[item.production], self._body[item.production][item.dot :]

    def derivation(self, item: ChartItem) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Return the productions of a leftmost derivation of what a complete ``item`` has read, its own first, and the arcs.

        An arc is a place, a terminal and the place that it leads to.
        """
        steps, read = list[int](), list[tuple[int, int, int]]()
        pending: list[ChartItem | tuple[int, int, int]] = [item]
        while pending:
            part = pending.pop()
            if not isinstance(part, ChartItem):
                read.append(part)
                continue
            steps.append(part.production)
            after = part
            while (reason := self.reasons[after]) is not None:  # the last one first, so that the first is taken next
                before, inner = reason
                arc = before.here, self._body[part.production][before.dot], after.here
                pending.append(arc if inner is None else inner)
                after = before
        return steps, read

    def _add(self, item: ChartItem, reason: Reason | None, pending: list[ChartItem]) -> None:
        if item not in self.reasons:
            self.reasons[item] = reason
            pending.append(item)

    def _close(self, item: ChartItem, pending: list[ChartItem]) -> None:
        """Add the consequences of an item and those before it."""
        body = self._body[item.production]
        if item.dot == len(body):
            key = (self._head[item.production], item.origin)
            self._completed.setdefault(key, []).append(item)
            for waiting in self._waiting.get(key, ()):
                self._add(waiting._replace(dot=waiting.dot + 1, here=item.here), Reason(waiting, item), pending)
            return
        symbol = body[item.dot]
        if symbol < len(self._grammar.terminals):
            for there in self._arcs(item.here).get(symbol, ()):
                self._add(item._replace(dot=item.dot + 1, here=there), Reason(item, None), pending)
            return
        key = (symbol, item.here)
        self._waiting.setdefault(key, []).append(item)
        for number in self._grammar.by_head.get(symbol, ()):
            self._add(ChartItem(number, 0, item.here, item.here), None, pending)
        for complete in self._completed.get(key, ()):
            self._add(item._replace(dot=item.dot + 1, here=complete.here), Reason(item, complete), pending)
