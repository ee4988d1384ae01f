"""Earley's recognizer, and completion within a regular language: a part of the oracle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from outlines_phi.automata.byte_machine import closure
from outlines_phi.guides.grammar.grammar import Grammar

from .lexing import EmittedWords, Word


class EarleyItem(NamedTuple):
    """A production that was begun at ``origin``, with as much of its body behind it as ``dot`` says."""

    production: int
    dot: int
    origin: int


@final
class Earley:
    """Earley's recognizer (1970), with the correction for empty productions of Aycock and Horspool (2002).

    The sets of a word are those of its beginning and one more; they are kept by word.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.bodies = [production.body for production in grammar.productions]
        self.heads = [production.head for production in grammar.productions]
        self.empty = set[int]()
        while more := {p.head for p in grammar.productions if self.empty.issuperset(p.body)} - self.empty:
            self.empty |= more
        first = [EarleyItem(number, 0, 0) for number in self.grammar.by_head.get(grammar.start, ())]
        self._sets: dict[Word, frozenset[EarleyItem]] = {(): self._complete((), first)}
        self._same: dict[Word, Word] = {}
        self._first: dict[object, Word] = {}

    def items(self, word: Word) -> frozenset[EarleyItem]:
        """Return the last set of ``word``: empty if the items before it have no use for its last terminal."""
        if word not in self._sets:
            self._sets[word] = self._complete(word, self._over(word[-1], self.items(word[:-1])))
        return self._sets[word]

    def derives(self, word: Word) -> bool:
        """Return True if the start symbol derives ``word``."""
        return (not word and self.grammar.start in self.empty) or any(
            item.origin == 0 and self.heads[item.production] == self.grammar.start and self.next_symbol(item) is None
            for item in self.items(word)
        )

    def survives(self, word: Word) -> bool:
        """Return True if no terminal of ``word`` is out of place; in a reduced grammar, if it begins a derived word."""
        return bool(self.items(word))

    def canonical(self, word: Word) -> Word:
        """Return a word that is continued as ``word`` is: the same one for all words whose last sets differ in name only.

        What matters of a set is which items still need something, each with what matters of the set where it began.
        """
        if word not in self._same:
            waiting = (item for item in self.items(word) if item.dot and self.next_symbol(item) is not None)
            needs = frozenset((p, d, self.canonical(word[:o]) if o < len(word) else None) for p, d, o in waiting)
            self._same[word] = self._first.setdefault((self.derives(word), self.survives(word), needs, not word), word)
        return self._same[word]

    def next_symbol(self, item: EarleyItem) -> int | None:
        """Return the symbol after the dot."""
        body = self.bodies[item.production]
        return body[item.dot] if item.dot < len(body) else None

    def _over(self, symbol: int, items: Iterable[EarleyItem]) -> list[EarleyItem]:
        """Return the items that need ``symbol`` next, behind it."""
        return [EarleyItem(p, d + 1, o) for p, d, o in items if self.bodies[p][d : d + 1] == (symbol,)]

    def _complete(self, word: Word, items: Sequence[EarleyItem]) -> frozenset[EarleyItem]:
        here = len(word)

        def further(item: EarleyItem) -> list[EarleyItem]:
            if (symbol := self.next_symbol(item)) is not None:
                passed = self._over(symbol, [item]) if symbol in self.empty else []
                return [*passed, *(EarleyItem(number, 0, here) for number in self.grammar.by_head.get(symbol, ()))]
            # What was begun here is complete without a terminal: its head is empty, and was passed.
            before = self._sets[word[: item.origin]] if item.origin < here else ()
            return self._over(self.heads[item.production], before)

        return frozenset(closure(items, further))


States = frozenset[int]


@final
class RegularCompletion:
    """The intersection of a context-free with a regular language (Bar-Hillel, Perles and Shamir, 1961) as Boolean matrices.

    Entry ``(p, k)`` of a symbol's matrix: it derives a word, not the empty one, that leads from place ``p`` of the words that are
    still to come to the ``k``-th of the places that a terminal leads to.
    """

    def __init__(self, earley: Earley, words: EmittedWords) -> None:
        self._earley = earley
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
            items = [item for item in self._earley.items(word) if item.dot or item.origin == len(word) == 0]
            before = (self._before(self._earley.bodies[item.production][item.dot :], word, item) for item in items)
            self._answers[word] = frozenset().union(*before)
        return self._answers[word]

    def _after(self, word: Word) -> dict[int, States]:
        """Return, per nonterminal begun at the end of ``word``, from where the whole is completed after it."""
        if word not in self._contexts:
            # Items that were begun here are completed by what is found so far.
            found = self._contexts[word] = defaultdict(frozenset)
            if not word:
                found[self._earley.grammar.start] = self._ends
            before = None
            while before != (before := dict(found)):
                for item in self._earley.items(word):
                    if (symbol := self._earley.next_symbol(item)) is not None:
                        rest = self._earley.bodies[item.production][item.dot + 1 :]
                        found[symbol] |= self._before(rest, word, item)
        return self._contexts[word]

    def _before(self, symbols: Word, word: Word, item: EarleyItem) -> States:
        """Return the places from which ``symbols`` lead to where the whole is completed once the head of ``item`` is."""
        states = self._after(word[: item.origin])[self._earley.heads[item.production]]
        for symbol in reversed(symbols):
            if (key := (symbol, states)) not in self._steps:
                into = self._matrices[symbol][:, np.isin(self._landing, list(states))].any(axis=1)
                before = frozenset(np.flatnonzero(into).tolist())
                self._steps[key] = before | states if symbol in self._earley.empty else before
            states = self._steps[key]
        return states

    def _product(self, body: Word) -> NDArray[np.bool_]:
        product, is_empty = np.zeros_like(self._matrices[0]), True
        for symbol in body:
            matrix, may_be_empty = self._matrices[symbol], symbol in self._earley.empty
            after = (product.astype(np.float32) @ matrix[self._landing].astype(np.float32)) > 0
            after |= matrix if is_empty else False
            product = after | product if may_be_empty else after
            is_empty = is_empty and may_be_empty
        return product
