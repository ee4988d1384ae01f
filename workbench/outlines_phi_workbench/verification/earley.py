"""Earley's recognizer, and completion within a regular language: a part of the oracle."""

from __future__ import annotations

from collections import defaultdict
from typing import final

import numpy as np
from numpy.typing import NDArray

from outlines_phi.guides.grammar.grammar import Grammar

from .item_chart import ChartItem, ItemChart
from .lexing import EmittedWords, Word


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
