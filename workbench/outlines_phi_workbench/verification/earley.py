"""Earley's algorithm over an automaton, with derivations; the recognizer, and completion within a regular language."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from outlines_phi.guides.grammar.grammar import Grammar

from .lexing import EmittedWords, Word


class ChartItem(NamedTuple):
    """A production that was begun at the place ``origin``, with as much of its body read at ``here`` as ``dot`` says."""

    production: int
    dot: int
    origin: Any
    here: Any

    def moved(self, here: Any) -> ChartItem:
        """Return the item behind one more symbol, which was read up to ``here``."""
        return self._replace(dot=self.dot + 1, here=here)


Reason = tuple[ChartItem, ChartItem | None]
"""The origin of an item: the one before it, and the one that completed the symbol between; ``None`` where that is a terminal."""


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
        return self._closed((item.moved(there), (item, None)) for item in waiting)

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
                yield waiting.moved(item.here), (waiting, item)
        elif rest[0] < len(self._grammar.terminals):
            for there in self._arcs(item.here).get(rest[0], ()):
                yield item.moved(there), (item, None)
        else:
            key = (rest[0], item.here)
            self._waiting.setdefault(key, []).append(item)
            for number in self._grammar.by_head.get(rest[0], ()):
                yield ChartItem(number, 0, item.here, item.here), None
            for complete in self._completed.get(key, ()):
                yield item.moved(complete.here), (item, complete)


@final
class Earley:
    """Earley's recognizer (1970): the chart whose places are words, each of which leads to those with one more terminal."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.chart = ItemChart(grammar, lambda word: {})
        self.chart.begin(())
        self._sets: dict[Word, list[ChartItem]] = {(): list(self.chart.reasons)}
        self._same: dict[Word, Word] = {}
        self._first: dict[object, Word] = {}

    def items(self, word: Word) -> list[ChartItem]:
        """Return the last set of ``word``: empty if the items before it have no use for its last terminal."""
        if word not in self._sets:
            self._sets[word] = self.chart.read(self.items(word[:-1]), word[-1], word)
        return self._sets[word]

    def derives(self, word: Word) -> bool:
        """Return True if the start symbol derives ``word``."""
        return ChartItem(-1, 1, (), word) in self.items(word)

    def survives(self, word: Word) -> bool:
        """Return True if no terminal of ``word`` is out of place; in a reduced grammar, if it begins a derived word."""
        return bool(self.items(word))

    def canonical(self, word: Word) -> Word:
        """Return a word that is continued as ``word`` is: the same one for all words whose last sets differ in name only.

        What matters of a set is which items still need something, each with what matters of the set where it began.
        """
        if word not in self._same:
            waiting = (item for item in self.items(word) if item.dot and self.chart.needs(item)[1])
            needs = frozenset((p, d, self.canonical(o) if o != word else None) for p, d, o, _ in waiting)
            self._same[word] = self._first.setdefault((self.derives(word), self.survives(word), needs, not word), word)
        return self._same[word]


States = frozenset[int]


@final
class RegularCompletion:
    """The intersection of a context-free with a regular language (Bar-Hillel, Perles and Shamir, 1961) as Boolean matrices.

    Entry ``(p, k)`` of a symbol's matrix: it derives a word, not the empty one, that leads from place ``p`` of the words that are
    still to come to the ``k``-th of the places that a terminal leads to.
    """

    def __init__(self, earley: Earley, words: EmittedWords) -> None:
        self._earley = earley
        self._empty = set[int]()  # nonterminals that derive the empty word
        while more := {p.head for p in earley.grammar.productions if self._empty.issuperset(p.body)} - self._empty:
            self._empty |= more
        read = [(t, place, there) for place, _ in enumerate(words.all) for t, there in words.each(place)]  # it grows
        self._ends = frozenset(words.closing)
        self._landing = np.unique([there for _, _, there in read]).astype(np.int64)
        symbols = len(earley.grammar.terminals) + len(earley.grammar.nonterminals)
        self._matrices = np.zeros((symbols, len(words.all), len(self._landing)), dtype=bool)
        for terminal, place, there in read:
            self._matrices[terminal, place, np.searchsorted(self._landing, there)] = True
        size = -1
        while size != (size := int(self._matrices.sum())):
            for production in earley.grammar.productions:
                self._matrices[production.head] |= self._product(production.body)
        self._contexts: dict[Word, dict[int, States]] = {}
        self._answers: dict[Word, States] = {}
        self._steps: dict[tuple[int, States], States] = {}  # few distinct sets of places occur, again and again

    def completable(self, word: Word) -> States:
        """Return the places from which some words ``v`` lead to an end such that ``word + v`` is a derived word."""
        if word not in self._answers:
            items = [item for item in self._earley.items(word) if item.dot or item.origin == word == ()]
            self._answers[word] = frozenset().union(*map(self._before, items))
        return self._answers[word]

    def _after(self, word: Word) -> dict[int, States]:
        """Return, per nonterminal begun at the end of ``word``, from where the whole is completed after it."""
        if word not in self._contexts:
            # Items that were begun here are completed by what is found so far.
            found = self._contexts[word] = defaultdict(frozenset)
            if not word:
                found[self._earley.chart.root] = self._ends
            before = None
            while before != (before := dict(found)):
                for item in self._earley.items(word):
                    if rest := self._earley.chart.needs(item)[1]:
                        found[rest[0]] |= self._before(item, passed=1)
        return self._contexts[word]

    def _before(self, item: ChartItem, passed: int = 0) -> States:
        """Return the places from which what an item needs, some symbols ``passed``, leads to where the whole is completed."""
        head, rest = self._earley.chart.needs(item)
        states = self._after(item.origin)[head]
        for symbol in reversed(rest[passed:]):
            if (key := (symbol, states)) not in self._steps:
                into = self._matrices[symbol][:, np.isin(self._landing, list(states))].any(axis=1)
                before = frozenset(np.flatnonzero(into).tolist())
                self._steps[key] = before | states if symbol in self._empty else before
            states = self._steps[key]
        return states

    def _product(self, body: Word) -> NDArray[np.bool_]:
        product, is_empty = np.zeros_like(self._matrices[0]), True
        for symbol in body:
            matrix, may_be_empty = self._matrices[symbol], symbol in self._empty
            after = (product.astype(np.float32) @ matrix[self._landing].astype(np.float32)) > 0
            after |= matrix if is_empty else False
            product = after | product if may_be_empty else after
            is_empty = is_empty and may_be_empty
        return product
