"""The states of the lexing transducer before they are merged, those that hold terminals back among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ....automata.automaton import DEAD
from ....errors import GrammarError
from ..grammar import Terminal
from .lexeme_automaton import NOTHING, LexemeAutomaton
from .rollback import HELD, Rollbacks

LIMIT = 10_000
"""The most states that hold terminals back."""

START = 1
"""The state before the first byte, and after the end of a text. No byte leads to it: between lexemes, one of them is pending."""


class _Holding(NamedTuple):
    """A lexeme that may fail, with what comes then: terminals that are complete, and the state that goes on."""

    lexeme: int
    held: tuple[int, ...]
    fallback: int


@final
@dataclass(frozen=True, eq=False)
class Transducer:
    """Steps of a transducer; the attributes are those of :class:`~.lexer.Lexer`, and ``lexeme``, the state of the automaton."""

    targets: NDArray[np.int32]
    emits: NDArray[np.int32]
    words: tuple[tuple[int, ...], ...]
    ends: NDArray[np.int32]
    lexeme: NDArray[np.int32]
    held: NDArray[np.int32]
    fallback: NDArray[np.int32]

    @classmethod
    def of(cls, automaton: LexemeAutomaton, terminals: Sequence[Terminal]) -> Transducer:
        """Return the transducer of an automaton.

        Where a complete lexeme may go on to a longer one that may fail, terminals are held back. If that would have no bound, it is
        not done where the longer one is ignored, nor, if that does not help, where it has a higher priority.

        Raises
        ------
        GrammarError
            No bounded number of terminals held back would do.
        """
        rollbacks = Rollbacks.of(automaton)
        matters, deep = rollbacks.steps
        if not deep.any():
            return _Builder(automaton, rollbacks, matters).build()
        ignored = np.array([terminal.ignored for terminal in terminals])
        priority = np.array([terminal.priority for terminal in terminals])
        comments = np.repeat(ignored[:, None], len(terminals), axis=1)
        waits = matters & ~(deep & rollbacks.outranked(comments))
        prior = matters & ~(deep & rollbacks.outranked(comments | (priority[:, None] > priority)))
        try:
            return _Builder(automaton, rollbacks, waits).build()
        except _TooMany:
            pass
        try:
            return _Builder(automaton, rollbacks, prior).build()
        except _TooMany:
            if not (prior & deep).any():
                raise
        raise rollbacks.refusal(terminals, _endless(automaton, rollbacks, prior & deep))


class _TooMany(GrammarError):
    """No bounded number of terminals, or of states, would do."""


def _endless(automaton: LexemeAutomaton, rollbacks: Rollbacks, steps: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return those of ``steps`` that cannot be waited for, all if none is so by itself."""
    places = np.argwhere(steps)
    # What follows depends on where a step leads, and where its byte leads as the first one of a lexeme.
    states = np.stack([automaton.targets[steps], automaton.targets[automaton.start, places[:, 1]]])
    _, first, which = np.unique(states, axis=1, return_index=True, return_inverse=True)
    endless = np.zeros(len(first), dtype=bool)
    for kind, place in enumerate(first.tolist()):
        alone = np.zeros_like(steps)
        alone[tuple(places[place])] = True
        try:
            _Builder(automaton, rollbacks, alone).build()
        except _TooMany:
            endless[kind] = True
    found = np.zeros_like(steps)
    found[steps] = endless[which.reshape(-1)]
    return found if found.any() else steps


class _Builder:
    def __init__(self, automaton: LexemeAutomaton, rollbacks: Rollbacks, held_back: NDArray[np.bool_]) -> None:
        self._automaton, self._rollbacks = automaton, rollbacks
        self._words: dict[tuple[int, ...], int] = {(): 0}
        self._spelled: list[tuple[int, ...]] = [()]
        self._number: dict[_Holding, int] = {}
        self._holding: list[_Holding] = []
        self._sizes: list[int] = []  # how many terminals each holds back, its fallback's among them
        self._plain = len(automaton) + 1
        first = automaton.targets[automaton.start]
        # Row s + 1 is that of state s; a byte that ends a complete lexeme is read once more, as a beginning.
        targets = np.where(automaton.targets != DEAD, automaton.targets + 1, DEAD)
        emits = np.zeros_like(targets)
        ends = np.full(len(automaton), NOTHING)
        for state in np.flatnonzero(automaton.accepting).tolist():
            word = self._word((int(automaton.label[state]),))
            ends[state] = word
            boundary = (automaton.targets[state] == DEAD) & (first != DEAD)
            targets[state, boundary] = first[boundary] + 1
            emits[state, boundary] = word
        for state, column in np.argwhere(held_back).tolist():
            longer = int(automaton.targets[state, column])
            targets[state, column] = self._hold(longer, (int(automaton.label[state]),), int(first[column]) + 1)
        # Row 0 is dead; START does what the automaton's start does, but there the text may end.
        begin = targets[automaton.start : automaton.start + 1]
        self._targets = [np.zeros_like(begin), begin, targets[1:]]
        self._emits = [np.zeros_like(begin), np.zeros_like(begin), emits[1:]]
        self._ends = [NOTHING, 0, *ends[1:].tolist()]

    def build(self) -> Transducer:
        """Return the transducer with the states that hold terminals back."""
        plain = np.concatenate(self._targets), np.concatenate(self._emits)
        targets, emits = (part.tolist() for part in plain)
        for place, holding in enumerate(
            self._holding
        ):  # it grows on the way; a fallback has its row before it is needed
            assert holding.fallback < len(targets) == self._plain + place
            row, word = self._row(holding, targets[holding.fallback], emits[holding.fallback])
            targets.append(row)
            emits.append(word)
            end = self._ends[holding.fallback]
            self._ends.append(NOTHING if end == NOTHING else self._word(holding.held + self._spelled[end]))
        lexeme = [0, self._automaton.start, *range(1, self._plain - 1), *(h.lexeme for h in self._holding)]
        held = [0] * self._plain + [self._word(h.held) for h in self._holding]
        fallback = [0] * self._plain + [h.fallback for h in self._holding]
        as_array = (np.array(part, dtype=np.int32) for part in (targets, emits, self._ends, lexeme, held, fallback))
        table, emitted, ends, lexemes, words, fallbacks = as_array
        return Transducer(table, emitted, tuple(self._words), ends, lexemes, words, fallbacks)

    def _row(self, holding: _Holding, targets: list[int], emits: list[int]) -> tuple[list[int], list[int]]:
        """Return the steps of a state, given those of its fallback."""
        row, words = [], []
        for then, after, word in zip(self._automaton.targets[holding.lexeme].tolist(), targets, emits, strict=True):
            held = holding.held + self._spelled[word]
            emitted = 0
            if then == DEAD:
                target = after
                emitted = self._word(held) if after != DEAD else 0
            elif self._automaton.accepting[then] or not self._rollbacks.matter(then, self._lexemes(after)):
                target = then + 1
            else:
                target = self._hold(then, held, after)
            row.append(target)
            words.append(emitted)
        return row, words

    def _lexemes(self, number: int) -> list[int]:
        """Return the states of the automaton that a state may go on as, its fallback's among them."""
        found = []
        while number >= self._plain:
            holding = self._holding[number - self._plain]
            found.append(holding.lexeme)
            number = holding.fallback
        return [*found, number - 1] if number != DEAD else found

    def _hold(self, lexeme: int, held: tuple[int, ...], fallback: int) -> int:
        holding = _Holding(lexeme, held, fallback)
        number = self._number.setdefault(holding, self._plain + len(self._holding))
        if number == self._plain + len(self._holding):
            size = len(held) + (self._sizes[fallback - self._plain] if fallback >= self._plain else 0)
            if size > HELD or len(self._holding) == LIMIT:
                raise _TooMany(
                    f"the lexer would have to hold more than {HELD} terminals back, or in more than {LIMIT} ways, until it is "
                    "known whether longer lexemes fail. Give the terminals of the longer lexemes a higher priority than those of "
                    "their beginnings, or shorten the repeats in them"
                )
            self._holding.append(holding)
            self._sizes.append(size)
        return number

    def _word(self, word: tuple[int, ...]) -> int:
        number = self._words.setdefault(word, len(self._words))
        if number == len(self._spelled):
            self._spelled.append(word)
        return number
