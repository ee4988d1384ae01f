"""The words of an automaton over terminals that a grammar derives: Earley's items over its places, with derivations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, final

from outlines_phi.guides.grammar.grammar import Grammar


class ChartItem(NamedTuple):
    """A production that was begun at the place ``origin``, with as much of its body read at ``here`` as ``dot`` says."""

    production: int
    dot: int
    origin: Any
    here: Any

    def moved(self, here: Any) -> ChartItem:
        """Return the item behind one more symbol, which was read up to ``here``."""
        return self._replace(dot=self.dot + 1, here=here)


class Reason(NamedTuple):
    """The origin of an item: from ``before``, by a terminal, where ``inner`` is ``None``, or by a symbol that was completed."""

    before: ChartItem
    inner: ChartItem | None


@final
class ItemChart:
    """The least set of items that is closed under Earley's rules (1970), over an automaton in place of a word.

    ``arcs`` are those of a place, by terminal. ``root`` is a symbol behind those of the grammar, with one production: the last one,
    -1, whose body is the start symbol.
    """

    def __init__(self, grammar: Grammar, arcs: Callable[[Any], Mapping[int, Sequence[Any]]]) -> None:
        self._arcs, self._grammar = arcs, grammar
        self._body = [production.body for production in grammar.productions] + [(grammar.start,)]
        self.root = len(grammar.terminals) + len(grammar.nonterminals)
        self._head = [production.head for production in grammar.productions] + [self.root]
        self.reasons: dict[ChartItem, Reason | None] = {}
        """All items, each with how it first came up; ``None`` for those of which nothing is read."""
        self._completed: dict[tuple[int, Any], list[ChartItem]] = {}  # by head and origin
        self._waiting: dict[tuple[int, Any], list[ChartItem]] = {}  # by the symbol that is next, and where

    def begin(self, place: Any) -> list[ChartItem]:
        """Look for the start symbol from ``place``; return the items in which it is complete, by where."""
        self._closed([(ChartItem(-1, 0, place, place), None)])
        return self._completed.get((self.root, place), [])

    def read(self, items: Iterable[ChartItem], terminal: int, there: Any) -> list[ChartItem]:
        """Let a terminal lead from the place of ``items`` to ``there``; return the items that are new."""
        waiting = (item for item in items if self.needs(item)[1][:1] == (terminal,))
        return self._closed((item.moved(there), Reason(item, None)) for item in waiting)

    def needs(self, item: ChartItem) -> tuple[int, tuple[int, ...]]:
        """Return the head of an item's production, and the symbols that are still to be read."""
        return self._head[item.production], self._body[item.production][item.dot :]

    def derivation(self, item: ChartItem) -> tuple[list[int], list[tuple[Any, int, Any]]]:
        """Return the productions of a leftmost derivation of what a complete ``item`` has read, its own first, and the arcs.

        An arc is a place, a terminal and the place that it leads to.
        """
        steps, read = list[int](), list[tuple[Any, int, Any]]()
        pending: list[ChartItem | tuple[Any, int, Any]] = [item]
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

    def _closed(self, first: Iterable[tuple[ChartItem, Reason | None]]) -> list[ChartItem]:
        """Add some items and all that follows from them; return those that are new."""
        new: list[ChartItem] = []
        following = (each for item in new for each in self._following(item))  # it grows; in turn: derivations are short
        for item, reason in chain(first, following):
            if item not in self.reasons:
                self.reasons[item] = reason
                new.append(item)
        return new

    def _following(self, item: ChartItem) -> Iterator[tuple[ChartItem, Reason | None]]:
        """Yield the consequences of an item and those before it."""
        head, rest = self.needs(item)
        if not rest:
            self._completed.setdefault((head, item.origin), []).append(item)
            for waiting in self._waiting.get((head, item.origin), ()):
                yield waiting.moved(item.here), Reason(waiting, item)
        elif rest[0] < len(self._grammar.terminals):
            for there in self._arcs(item.here).get(rest[0], ()):
                yield item.moved(there), Reason(item, None)
        else:
            key = (rest[0], item.here)
            self._waiting.setdefault(key, []).append(item)
            for number in self._grammar.by_head.get(rest[0], ()):
                yield ChartItem(number, 0, item.here, item.here), None
            for complete in self._completed.get(key, ()):
                yield item.moved(complete.here), Reason(item, complete)
