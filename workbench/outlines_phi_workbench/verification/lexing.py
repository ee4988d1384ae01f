"""Longest match by the definition, one byte at a time: a part of the oracle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from outlines_phi.guides.grammar.grammar import Terminal

from .lexemes import Lexemes, PatternReading

START = 0  # The state before the first byte: no lexeme has begun. A lexeme never leads back to it

MOST_HELD = 8
"""The most lexemes cut before it is known whether they are; beyond it a lexeme that comes first is not given up."""

Word = tuple[int, ...]
Readings = tuple[tuple[int, PatternReading], ...]


class Move(NamedTuple):
    """The state behind bytes, and the terminals of the lexemes that they ended."""

    state: int
    word: Word


class Residual(NamedTuple):
    """The text after the last lexeme that is certain: how each terminal that it may become reads it.

    Where its beginning is a lexeme and all of it is none, ``fallback`` is what becomes of it if it never is one.
    """

    readings: Readings
    fallback: Move | None = None


class Unfolded(NamedTuple):
    """The words of terminals that are still to come, as a finite automaton over terminals.

    ``place[q]`` is the state that lexing state ``q`` is; ``reads[T]`` are its steps that put out ``T``, after steps without
    output; ``ends`` are the states that come to the end without output.
    """

    place: dict[int, int]
    reads: NDArray[np.bool_]
    ends: NDArray[np.bool_]


@final
class Lexing:
    """Longest match with going back, for terminals by their :class:`Lexemes`.

    The longest beginning of a text that is a lexeme is cut off, of the terminal that comes first; so on with the rest. A text
    that may still go on is cut as far as is certain. Unless ``plain``, bytes that begin a longer lexeme behind a complete one, but
    that would be more than :data:`MOST_HELD` lexemes by themselves, have to be the longer one if all terminals that it may become
    are ignored or of a higher priority: no text has to be read to its end before its first lexeme is known.
    """

    def __init__(self, terminals: Sequence[Terminal], *, plain: bool = False) -> None:
        self.terminals = tuple(terminals)
        self._lexemes = {t: Lexemes.of(each) for t, each in enumerate(terminals) if not each.of}
        self._residuals = [Residual(tuple((t, each.start) for t, each in self._lexemes.items() if each.start))]
        self._number: dict[Residual, int] = {}
        self._moves: dict[tuple[int, int], Move | None] = {}
        self._plain = None if plain else Lexing(terminals, plain=True)
        self._deep: dict[tuple[Readings, int], bool] = {}

    def move(self, state: int, byte: int) -> Move | None:
        """Return the move of ``byte`` in ``state``, ignored terminals included; ``None`` where the text cannot be cut so."""
        # What becomes of a residual that is given up is read as well, and what becomes of that: shorter texts first.
        waiting = [state]
        while (waiting[-1], byte) not in self._moves and (cut := self._cut(waiting[-1])) is not None:
            waiting.append(cut.state)
        for each in reversed(waiting):
            if (each, byte) not in self._moves:
                self._moves[each, byte] = self._move(each, byte)
        return self._moves[state, byte]

    def flush(self, state: int) -> Word | None:
        """Return the word that the end of the text puts out; ``None`` where a lexeme is not finished."""
        word = self.flush_all(state)
        return None if word is None else self._counted(word)

    def flush_all(self, state: int) -> Word | None:
        """Return the same as :meth:`flush`, ignored terminals included."""
        word: Word = ()
        while (cut := self._cut(state)) is not None and cut.state != START:
            word, state = word + cut.word, cut.state
        if cut is None and state != START:
            return None
        return word + (cut.word if cut is not None else ())

    def run(self, text: bytes, state: int = START) -> Move | None:
        """Return the state after ``text`` and the word that it puts out; ignored terminals are left out of it."""
        word: Word = ()
        for byte in text:
            move = self.move(state, byte)
            if move is None:
                return None
            state, word = move.state, word + move.word
        return Move(state, self._counted(word))

    def _cut(self, state: int) -> Move | None:
        """Return the residual, cut where it last could be."""
        label = self._matched(self._residuals[state].readings)[:1] if state != START else []
        return Move(START, tuple(label)) if label else self._residuals[state].fallback

    def _move(self, state: int, byte: int) -> Move | None:
        cut, residual = self._cut(state), self._residuals[state]
        moved = self._moves[cut.state, byte] if cut is not None else None
        fallback = Move(moved.state, cut.word + moved.word) if cut is not None and moved is not None else None
        readings = self._longer(residual.readings, byte)
        if not readings:
            return fallback
        if fallback is not None and cut is not None:
            begins = cut.state == START and self._comes_first(cut.word[0], readings, byte)
            fallback = None if begins or self._matched(readings) else fallback
        return Move(self._interned(Residual(readings, fallback)), ())

    def held(self, state: int) -> int:
        """Count the lexemes of the residual text, beside what is pending behind them, if it has to be given up."""
        held = 0
        while (fallback := self._residuals[state].fallback) is not None:
            held, state = held + len(fallback.word), fallback.state
        return held

    def _counted(self, word: Word) -> Word:
        return tuple(t for t in word if not self.terminals[t].ignored)

    def _matched(self, readings: Readings) -> list[int]:
        found = {t for t, reading in readings if self._lexemes[t].matches(reading)}
        found |= {t for t, each in enumerate(self.terminals) if each.of and found.issuperset(each.of)}
        of = self.terminals
        return sorted(found, key=lambda t: (-of[t].priority, not of[t].literal, -len(of[t].of), t))

    def _longer(self, readings: Readings, byte: int) -> Readings:
        return tuple(
            (t, after) for t, reading in readings if (after := self._lexemes[t].step(reading, byte)) is not None
        )

    def _interned(self, residual: Residual) -> int:
        if residual not in self._number:
            self._number[residual] = len(self._residuals)
            self._residuals.append(residual)
        return self._number[residual]

    def used(self, states: Iterable[int]) -> frozenset[int]:
        """Return the bytes that lead on from some of ``states``."""
        return frozenset(byte for byte in range(256) if any(self.move(state, byte) for state in states))

    def unfold(self, letters: Iterable[bytes]) -> Unfolded:
        """Return the words that texts made of ``letters`` may still put out, from each state that they reach."""
        letters, place, end = tuple(letters), {START: 0}, -1
        steps: list[tuple[int, Word, int]] = []
        pending = [START]
        for state in pending:  # it grows
            for letter in letters:
                if (move := self.run(letter, state)) is None:
                    continue
                if move.state not in place:
                    place[move.state] = len(place)
                    pending.append(move.state)
                steps.append((state, move.word, move.state))
            if (word := self.flush(state)) is not None:
                steps.append((state, word, end))
        numbers: dict[tuple[Word, int], int] = {((), state): number for state, number in place.items()}
        edges = set[tuple[int, int, Word]]()
        for source, word, target in dict.fromkeys(steps):
            here = numbers[(), source]
            for cut in range(max(len(word), 1)):
                there = numbers.setdefault((word[cut + 1 :], target), len(numbers))
                edges.add((here, there, word[cut : cut + 1]))
                here = there
        silent = np.eye(len(numbers), dtype=bool)
        emits = np.zeros((len(self.terminals), *silent.shape), dtype=bool)
        for here, there, put_out in edges:
            (emits[put_out[0]] if put_out else silent)[here, there] = True
        silent = _closure(silent)
        reads = np.array([(silent.astype(np.float32) @ matrix.astype(np.float32)) > 0 for matrix in emits], dtype=bool)
        ends = silent[:, numbers[(), end]] if ((), end) in numbers else np.zeros(len(numbers), dtype=bool)
        return Unfolded(place, reads, ends)

    def _comes_first(self, short: int, longer: Readings, byte: int) -> bool:
        """Return True if the lexeme that goes on with ``byte`` is not given up for ``short``, which has ended before it."""
        mine, plain = self.terminals[short], self._plain
        if mine.committed or plain is None:
            return mine.committed
        first = all(self.terminals[t].ignored or self.terminals[t].priority > mine.priority for t, _ in longer)
        return first and self._is_deep(plain, longer, byte)

    def _is_deep(self, plain: Lexing, readings: Readings, byte: int) -> bool:
        """Return True if more than :data:`MOST_HELD` lexemes may be cut, without exception, before it is known whether they are.

        The first of them has ended before ``byte``, with which the others begin.
        """
        key = (readings, byte)
        if key not in self._deep:
            begun = plain.move(START, byte)
            found = set() if begun is None else {(readings, begun.state, 1 + len(begun.word))}
            pending = list(found)
            self._deep[key] = False
            while pending and not self._deep[key]:
                longer, state, cut = pending.pop()
                self._deep[key] = cut + plain.held(state) > MOST_HELD
                new = set(self._both(plain, longer, state, cut)) - found
                found |= new
                pending += new
        return self._deep[key]

    def _both(self, plain: Lexing, longer: Readings, state: int, cut: int) -> Iterator[tuple[Readings, int, int]]:
        """Yield the states behind each byte that goes on with the longer lexeme, does not end it, and can be read without it."""
        for byte in range(256):
            readings, moved = self._longer(longer, byte), plain.move(state, byte)
            if readings and moved is not None and not self._matched(readings):
                yield readings, moved.state, cut + len(moved.word)


def _closure(steps: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the reflexive and transitive closure, by squaring."""
    while True:
        squared = (steps.astype(np.float32) @ steps.astype(np.float32)) > 0
        if (squared == steps).all():
            return steps
        steps = squared
