"""The words that a lexer may still emit, as an automaton over terminals."""

from __future__ import annotations

from typing import final

from outlines_phi.automata.automaton import DEAD
from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.grammar.lexing.lexer import Lexer, Word

from .item_chart import Arcs

MOST_ITEMS = 200_000  # A certificate has fewer items of Earley's algorithm, and arcs between places, than this

Place = tuple[Word, int | None]  # A word that is to be read, and a state of the lexer; none at the end of the text


@final
class EmittedWords:
    """The words that a lexer may still emit, ignored terminals left out, as an automaton whose places are numbered as they come up.

    ``spelling`` are bytes by which an arc, or the end of the text from a place, comes about.
    """

    def __init__(self, lexer: Lexer) -> None:
        self._lexer = lexer
        self.all: list[Place] = []
        self._number: dict[Place, int] = {}
        self._arcs: dict[int, Arcs] = {}
        self.spelling: dict[tuple[int, int, int], bytes] = {}
        self.closing: dict[int, bytes] = {}
        self.size = 0  # the number of arcs
        self._byte = {int(column): bytes([byte]) for byte, column in reversed(list(enumerate(lexer.byte_class)))}

    def number(self, word: Word, state: int | None) -> int:
        """Return the number of a place."""
        number = self._number.setdefault((word, state), len(self.all))
        if number == len(self.all):
            self.all.append((word, state))
        return number

    def arcs(self, place: int) -> Arcs:
        """Return the arcs from a place."""
        if place not in self._arcs:
            word, state = self.all[place]
            if word:
                self._arcs[place] = {word[0]: (self.number(word[1:], state),)}
            else:
                self._arcs[place] = {} if state is None else self._emitted(place, state)
            if not word and state is None:
                self.closing[place] = b""
            self.size += sum(map(len, self._arcs[place].values()))
            check_size(self.size)
        return self._arcs[place]

    def _emitted(self, place: int, start: int) -> Arcs:
        """Return the first emissions from a state of the lexer, after bytes that emit nothing."""
        lexer, arcs = self._lexer, dict[int, dict[int, None]]()
        texts, pending = {start: b""}, [start]

        def emits(word: Word, state: int | None, text: bytes) -> None:
            there = self.number(word[1:], state)
            arcs.setdefault(word[0], {})[there] = None
            self.spelling.setdefault((place, word[0], there), text)

        for state in pending:  # it grows
            last = lexer.flush(state)
            if last is not None and lexer.counted(last):
                emits(lexer.counted(last), None, texts[state])
            elif last is not None:
                self.closing.setdefault(place, texts[state])
            for column, byte in self._byte.items():
                target, word = int(lexer.targets[state, column]), lexer.counted(lexer.words[lexer.emits[state, column]])
                if target != DEAD and word:
                    emits(word, target, texts[state] + byte)
                elif target != DEAD and target not in texts:
                    texts[target] = texts[state] + byte
                    pending.append(target)
        return {terminal: tuple(there) for terminal, there in arcs.items()}


def check_size(size: int) -> None:
    """Refuse more items or arcs than a certificate has."""
    if size > MOST_ITEMS:
        raise UnsupportedError(
            f"Give a smaller grammar. A certificate of the masks of this one has more than {MOST_ITEMS:,} items or arcs."
        )
