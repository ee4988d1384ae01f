"""Earley's recognizer, and completion within a regular language: a part of the oracle."""

from __future__ import annotations

from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from outlines_phi.guides.grammar.grammar import Grammar


class EarleyItem(NamedTuple):
    """A production that was begun at ``origin``, with as much of its body behind it as ``dot`` says."""

    production: int
    dot: int
    origin: int


Word = tuple[int, ...]


@final
class Earley:
    """Earley's recognizer (1970), with the correction for empty productions of Aycock and Horspool (2002).

    The sets of a word are those of its beginning and one more; they are kept by word.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._terminals = len(grammar.terminals)
        self._by_head: dict[int, list[int]] = {}
        for number, production in enumerate(grammar.productions):
            self._by_head.setdefault(production.head, []).append(number)
        self.bodies = [production.body for production in grammar.productions]
        self.heads = [production.head for production in grammar.productions]
        self.empty = self._nullable()
        first = {EarleyItem(number, 0, 0) for number in self._by_head.get(grammar.start, ())}
        self._sets: dict[Word, frozenset[EarleyItem]] = {(): self._complete((), first)}
        self._same: dict[Word, Word] = {}
        self._first: dict[object, Word] = {}

    def items(self, word: Word) -> frozenset[EarleyItem]:
        """Return the last set of ``word``: empty if the items before it have no use for its last terminal."""
        if word not in self._sets:
            before = self.items(word[:-1])
            read = {EarleyItem(p, d + 1, o) for p, d, o in before if self.bodies[p][d : d + 1] == word[-1:]}
            self._sets[word] = self._complete(word, read) if read else frozenset()
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

    def _complete(self, word: Word, items: set[EarleyItem]) -> frozenset[EarleyItem]:
        here, found, pending = len(word), set(items), list(items)
        while pending:
            item = pending.pop()
            symbol = self.next_symbol(item)
            if symbol is None:
                head = self.heads[item.production]
                waiting = found if item.origin == here else self._sets[word[: item.origin]]
                new = {EarleyItem(p, d + 1, o) for p, d, o in waiting if self.bodies[p][d : d + 1] == (head,)}
            elif symbol < self._terminals:
                continue
            else:
                new = {EarleyItem(number, 0, here) for number in self._by_head.get(symbol, ())}
                if symbol in self.empty:
                    new.add(EarleyItem(item.production, item.dot + 1, item.origin))
            new -= found
            found |= new
            pending += new
        return frozenset(found)

    def _nullable(self) -> set[int]:
        empty: set[int] = set()
        while True:
            more = {p.head for p in self.grammar.productions if empty.issuperset(p.body)} - empty
            if not more:
                return empty
            empty |= more


@final
class RegularCompletion:
    """The intersection of a context-free with a regular language (Bar-Hillel, Perles and Shamir, 1961) as Boolean matrices.

    Entry ``(p, k)`` of a symbol's matrix: it derives a word, not the empty one, that leads from ``p`` to the ``k``-th of the states
    that a terminal leads to. ``reads`` (``bool[T, S, S]``) are the steps of the automaton by terminal, after steps without output;
    ``ends`` (``bool[S]``) the states from which the word may be over.
    """

    def __init__(self, earley: Earley, reads: NDArray[np.bool_], ends: NDArray[np.bool_]) -> None:
        self._earley, self._ends = earley, ends
        self._landing = np.flatnonzero(reads.any(axis=(0, 1)))
        symbols = len(reads) + len(earley.grammar.nonterminals)
        self._matrices = np.zeros((symbols, len(ends), len(self._landing)), dtype=bool)
        self._matrices[: len(reads)] = reads[:, :, self._landing]
        # What follows the first symbol of a body begins where a terminal led, so these rows are solved by themselves first.
        for rows in (self._landing, np.arange(len(ends))):
            self._solve(rows)
        # Sets of states are numbers, a bit for each state: few distinct ones occur, again and again.
        self._contexts: dict[Word, dict[tuple[int, int], int]] = {}
        self._answers: dict[Word, NDArray[np.bool_]] = {}
        self._members: dict[int, NDArray[np.bool_]] = {}
        self._steps: dict[tuple[int, int], int] = {}

    def completable(self, word: Word) -> NDArray[np.bool_]:
        """Return ``bool[S]``: whether some words ``v`` from the state to an end makes ``word + v`` a derived word."""
        if word not in self._answers:
            contexts, answer = self._after(word), 0
            for item in self._earley.items(word):
                if item.dot or item.origin == len(word) == 0:
                    answer |= self._before(self._rest(item), self._context(contexts, word, item))
            self._answers[word] = self._unpacked(answer)
        return self._answers[word]

    def _rest(self, item: EarleyItem, skipped: int = 0) -> Word:
        """Return the symbols that an item still needs, ``skipped`` ones left out."""
        return self._earley.bodies[item.production][item.dot + skipped :]

    def _context(self, contexts: dict[tuple[int, int], int], word: Word, item: EarleyItem) -> int:
        """Return from where the whole is completed once the item's head is."""
        known = contexts if item.origin == len(word) else self._after(word[: item.origin])
        return known.get((self._earley.heads[item.production], item.origin), 0)

    def _after(self, word: Word) -> dict[tuple[int, int], int]:
        """Return, per nonterminal begun at the end of ``word``, from where the whole is completed after it."""
        if word in self._contexts:
            return self._contexts[word]
        here, items = len(word), self._earley.items(word)
        contexts = {(self._earley.grammar.start, 0): _packed(self._ends)} if not word else {}
        waiting = [(item, symbol) for item in items if (symbol := self._earley.next_symbol(item)) is not None]
        changed = True
        while changed:
            changed = False
            for item, symbol in waiting:
                known = contexts.get((symbol, here), 0)
                after = known | self._before(self._rest(item, 1), self._context(contexts, word, item))
                if after != known:
                    contexts[symbol, here] = after
                    changed = True
        self._contexts[word] = contexts
        return contexts

    def _before(self, symbols: Word, states: int) -> int:
        """Return the states from which ``symbols`` lead into ``states``."""
        for symbol in reversed(symbols):
            key = (symbol, states)
            if key not in self._steps:
                before = _packed(self._matrices[symbol] @ self._unpacked(states)[self._landing])
                self._steps[key] = before | states if symbol in self._earley.empty else before
            states = self._steps[key]
        return states

    def _unpacked(self, states: int) -> NDArray[np.bool_]:
        if states not in self._members:
            size = len(self._ends)
            packed = np.frombuffer(states.to_bytes(-(-size // 8), "little"), dtype=np.uint8)
            self._members[states] = np.unpackbits(packed, count=size, bitorder="little").astype(bool)
        return self._members[states]

    def _solve(self, rows: NDArray[np.int64]) -> None:
        """Find the least solution for these rows, in rounds over the productions whose symbols have changed."""
        productions = self._earley.grammar.productions
        changed = set(range(len(self._matrices)))
        while changed:
            before, changed = changed, set()
            for head, body in ((p.head, p.body) for p in productions if not before.isdisjoint(p.body)):
                found = self._matrices[head][rows] | self._product(body, rows)
                if (found != self._matrices[head][rows]).any():
                    self._matrices[head][rows] = found
                    changed.add(head)
                    before.add(head)

    def _product(self, body: Word, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        product, is_empty = np.zeros((len(rows), len(self._landing)), dtype=bool), True
        for symbol in body:
            matrix, may_be_empty = self._matrices[symbol], symbol in self._earley.empty
            after = (product.astype(np.float32) @ matrix[self._landing].astype(np.float32)) > 0
            after |= matrix[rows] if is_empty else False
            product = after | product if may_be_empty else after
            is_empty = is_empty and may_be_empty
        return product


def _packed(states: NDArray[np.bool_]) -> int:
    return int.from_bytes(np.packbits(states, bitorder="little").tobytes(), "little")
