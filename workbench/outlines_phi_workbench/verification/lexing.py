"""Longest match by the definition, one byte at a time, and the words of terminals still to come: a part of the oracle."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, final

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
    """The text after the last lexeme that is certain: how the lexemes that it may become read it.

    Where its beginning is a lexeme and all of it is none, ``fallback`` is what becomes of it if it never is one.
    """

    reading: Any
    fallback: Move | None = None


class LongestMatch(ABC):
    """Longest match with going back.

    The longest beginning of a text that is a lexeme is cut off; so on with the rest. A text that may still go on is cut as far as
    is certain.
    """

    def __init__(self, start: Any) -> None:
        self.residuals = [Residual(start)]
        self._number: dict[Residual, int] = {}
        self._moves: dict[tuple[int, int], Move | None] = {}

    @abstractmethod
    def longer(self, reading: Any, byte: int) -> Any:
        """Return the reading after one more byte; false where no lexeme begins so."""

    @abstractmethod
    def label(self, reading: Any) -> Word:
        """Return the terminal of the lexeme that was read, as a word; empty where it is none."""

    def is_committed(self, short: int, longer: Any, byte: int) -> bool:
        """Return True if the lexeme that goes on with ``byte`` is not given up for ``short``, which has ended before it."""
        return False

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
        """Return the word that the end of the text puts out, with ignored terminals; ``None`` where a lexeme is not finished."""
        word: Word = ()
        while (cut := self._cut(state)) is not None and cut.state != START:
            word, state = word + cut.word, cut.state
        if cut is None and state != START:
            return None
        return word + (cut.word if cut is not None else ())

    def held(self, state: int) -> int:
        """Count the lexemes of the residual text, beside what is pending behind them, if it has to be given up."""
        held = 0
        while (fallback := self.residuals[state].fallback) is not None:
            held, state = held + len(fallback.word), fallback.state
        return held

    def _cut(self, state: int) -> Move | None:
        """Return the residual, cut where it last could be."""
        label = self.label(self.residuals[state].reading) if state != START else ()
        return Move(START, label) if label else self.residuals[state].fallback

    def _move(self, state: int, byte: int) -> Move | None:
        cut, residual = self._cut(state), self.residuals[state]
        moved = self._moves[cut.state, byte] if cut is not None else None
        fallback = Move(moved.state, cut.word + moved.word) if cut is not None and moved is not None else None
        reading = self.longer(residual.reading, byte)
        if not reading:
            return fallback
        if fallback is not None and cut is not None:
            begins = cut.state == START and self.is_committed(cut.word[0], reading, byte)
            fallback = None if begins or self.label(reading) else fallback
        new = Residual(reading, fallback)
        if new not in self._number:
            self._number[new] = len(self.residuals)
            self.residuals.append(new)
        return Move(self._number[new], ())


@final
class Lexing(LongestMatch):
    """Longest match with going back, for terminals by their :class:`Lexemes`: of several the one that comes first.

    Unless ``plain``, bytes that begin a longer lexeme behind a complete one, but that would be more than :data:`MOST_HELD` lexemes
    by themselves, have to be the longer one if all terminals that it may become are ignored or of a higher priority: no text has to
    be read to its end before its first lexeme is known.
    """

    def __init__(self, terminals: Sequence[Terminal], *, plain: bool = False) -> None:
        self.terminals = tuple(terminals)
        self._lexemes = {t: Lexemes.of(each) for t, each in enumerate(terminals) if not each.of}
        super().__init__(tuple((t, each.start) for t, each in self._lexemes.items() if each.start))
        self._plain = None if plain else Lexing(terminals, plain=True)
        self._deep: dict[tuple[Readings, int], bool] = {}

    def longer(self, reading: Readings, byte: int) -> Readings:
        return tuple((t, after) for t, read in reading if (after := self._lexemes[t].step(read, byte)) is not None)

    def label(self, reading: Readings) -> Word:
        found, of = {t for t, read in reading if self._lexemes[t].ends(read)}, self.terminals
        found |= {t for t, each in enumerate(of) if each.of and found.issuperset(each.of)}
        return tuple(sorted(found, key=lambda t: (-of[t].priority, not of[t].literal, -len(of[t].of), t))[:1])

    def is_committed(self, short: int, longer: Readings, byte: int) -> bool:
        mine, plain = self.terminals[short], self._plain
        if mine.committed or plain is None:
            return mine.committed
        first = all(self.terminals[t].ignored or self.terminals[t].priority > mine.priority for t, _ in longer)
        return first and self._is_deep(plain, longer, byte)

    def lex(self, text: bytes, state: int = START) -> Move | None:
        """Return the state after ``text`` and the word that it puts out; ``None`` where it cannot be cut so."""
        word: Word = ()
        for byte in text:
            move = self.move(state, byte)
            if move is None:
                return None
            state, word = move.state, word + move.word
        return Move(state, word)

    def counted(self, word: Word) -> Word:
        """Return a word without ignored terminals."""
        return tuple(t for t in word if not self.terminals[t].ignored)

    def _is_deep(self, plain: Lexing, readings: Readings, byte: int) -> bool:
        """Return True if more than :data:`MOST_HELD` lexemes may be cut, without exception, before it is known whether they are.

        The first of them has ended before ``byte``, with which the others begin.
        """
        if (key := (readings, byte)) not in self._deep:
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
            readings, moved = self.longer(longer, byte), plain.move(state, byte)
            if readings and moved is not None and not self.label(readings):
                yield readings, moved.state, cut + len(moved.word)


Place = tuple[Word, int | None]  # A word that is to be read, and a state of the lexer; none at the end of the text
Arcs = Mapping[int, Sequence[int]]  # From a place: by terminal, the places that it leads to


class LexingTransducer(Protocol):
    """A lexer as a transducer from bytes to terminals; the words that count are those without ignored ones."""

    def lex(self, text: bytes, state: int) -> tuple[int, Word] | None: ...
    def flush(self, state: int) -> Word | None: ...
    def counted(self, word: Word) -> Word: ...


@final
class EmittedWords:
    """The words that a lexer may still emit, ignored terminals left out, as an automaton whose places are numbered as they come up.

    ``letters`` are of what texts are made; ``check`` may refuse so many arcs. ``spelling`` are bytes by which an arc, ``closing``
    those by which the end of the text from a place, comes about.
    """

    def __init__(
        self, lexer: LexingTransducer, letters: Iterable[bytes], check: Callable[[int], None] = lambda arcs: None
    ) -> None:
        self._lexer, self._letters, self._check = lexer, tuple(letters), check
        self.all: list[Place] = []
        self._number: dict[Place, int] = {}
        self._arcs: dict[int, Arcs] = {}
        self._steps: dict[int, dict[tuple[int, Word], bytes]] = {}
        self.spelling: dict[tuple[int, int, int], bytes] = {}
        self.closing: dict[int, bytes] = {}
        self._size = 0

    def number(self, word: Word, state: int | None) -> int:
        """Return the number of a place."""
        number = self._number.setdefault((word, state), len(self.all))
        if number == len(self.all):
            self.all.append((word, state))
        return number

    def steps(self, state: int) -> Mapping[tuple[int, Word], bytes]:
        """Return the targets of letters from a state of the lexer, and the words that count, each with the first such letter."""
        if state not in self._steps:
            self._steps[state] = {}
            for letter in self._letters:
                if (move := self._lexer.lex(letter, state)) is not None:
                    self._steps[state].setdefault((move[0], self._lexer.counted(move[1])), letter)
        return self._steps[state]

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
            self._size += sum(map(len, self._arcs[place].values()))
            self._check(self._size)
        return self._arcs[place]

    def each(self, place: int) -> Iterator[tuple[int, int]]:
        """Yield the arcs from a place one by one: the terminal, and the place that it leads to."""
        return ((terminal, there) for terminal, several in self.arcs(place).items() for there in several)

    def _emitted(self, place: int, start: int) -> Arcs:
        """Return the outputs that come first from a state of the lexer, after letters that emit nothing."""
        arcs, texts = dict[int, dict[int, None]](), {start: b""}

        def emits(word: Word, state: int | None, text: bytes) -> None:
            there = self.number(word[1:], state)
            arcs.setdefault(word[0], {})[there] = None
            self.spelling.setdefault((place, word[0], there), text)

        for state in (pending := [start]):  # it grows
            last = self._lexer.flush(state)
            if last is not None and self._lexer.counted(last):
                emits(self._lexer.counted(last), None, texts[state])
            elif last is not None:
                self.closing.setdefault(place, texts[state])
            for (target, word), letter in self.steps(state).items():
                if word:
                    emits(word, target, texts[state] + letter)
                elif target not in texts:
                    texts[target] = texts[state] + letter
                    pending.append(target)
        return {terminal: tuple(there) for terminal, there in arcs.items()}
