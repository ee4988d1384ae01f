"""The language by brute force: the definition, with which the engine is compared and shares no code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from outlines_phi.guides.grammar.grammar import Grammar
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.machine.sizes import NEVER
from outlines_phi.guides.json_schema.machine.states import Configuration

from .earley import Earley, RegularCompletion, Word
from .lexemes import Lexemes, PatternReading
from .lexing import START, Lexing, Move
from .runs import Runs

BYTES = tuple(bytes([byte]) for byte in range(256))


class Outcomes(NamedTuple):
    """The outcomes of texts from a point, each once."""

    # ``int64[N]``: the place of each text's outcome; -1 for texts that cannot be read, which are no outcome.
    of_text: NDArray[np.int64]
    # ``[K]``: the point of each outcome; it may be ``None`` where nothing completes the text to a member.
    points: Sequence[Any | None]
    # ``bool[K + 1]``: what :meth:`Oracle.continues` and :meth:`Oracle.survives` say of them; the last one is for -1.
    continues: NDArray[np.bool_]
    survives: NDArray[np.bool_]


class Oracle(ABC):
    """A language of texts, read one piece after the other.

    A *point* stands for a text so far; it is hashable, and equal points have the same future. ``None`` is no point: the text
    cannot begin a member.
    """

    start: Any  # The point of the empty text

    def __init__(self) -> None:
        self._runs: dict[int, tuple[Sequence[bytes], Runs]] = {}

    @abstractmethod
    def advance(self, point: Any, text: bytes) -> Any | None:
        """Return the point after ``text``; ``None`` where even its reading fails."""

    @abstractmethod
    def ends(self, point: Any) -> bool:
        """Return True if the text is a member."""

    @abstractmethod
    def continues(self, point: Any) -> bool:
        """Return True if letters complete the text to a member."""

    @abstractmethod
    def reading(self, point: Any) -> int:
        """Return the state of the machine that reads bytes: all of the point that the reading of a text depends on."""

    @abstractmethod
    def step(self, state: int, byte: int) -> tuple[int, Word] | None:
        """Return the state of that machine after one more byte, and its output; ``None`` where it cannot be read."""

    @abstractmethod
    def end(self, state: int) -> Hashable | None:
        """Return the output at the end of a text there; ``None`` where nothing that is begun may end."""

    def runs(self, texts: Sequence[bytes]) -> Runs:
        """Return that machine on ``texts``; its tables are kept for these very texts."""
        if id(texts) not in self._runs:
            self._runs[id(texts)] = texts, Runs(texts, self.step)
        return self._runs[id(texts)][1]

    @abstractmethod
    def outcomes(self, point: Any, texts: Sequence[bytes]) -> Outcomes:
        """Return the outcomes of ``texts``; their readings are kept for these very texts."""

    def survives(self, point: Any) -> bool:
        """Return True if nothing in the text is out of place yet."""
        return True

    def is_member(self, text: bytes) -> bool:
        """Return True if ``text`` is in the language."""
        point = self.advance(self.start, text)
        return point is not None and self.ends(point)

    def is_prefix(self, text: bytes) -> bool:
        """Return True if letters complete ``text`` to a member; it is itself made of letters."""
        point = self.advance(self.start, text)
        return point is not None and self.continues(point)


class Cut(NamedTuple):
    """The point of a text: a word that goes on as the terminals that it was cut into, and the state of its residual."""

    word: Word
    state: int


@final
class GrammarOracle(Oracle):
    """The texts that longest match cuts into a word that the grammar derives (the members of grammar-theory.md, section 1).

    Terminals are read by :class:`Lexemes`, words by :class:`Earley`. Whether a text is the beginning of a member is decided
    exactly: the words that its residual may still become are a regular language, which is intersected with the grammar. ``letters``
    are what texts are made of: the tokens of a vocabulary; single bytes if every byte is one.
    """

    def __init__(self, grammar: Grammar, letters: Iterable[bytes] = BYTES) -> None:
        super().__init__()
        self.grammar, self._letters = grammar, tuple(letters)
        self.lexing = Lexing(grammar.terminals)
        self.earley = Earley(grammar)
        self.start = Cut((), START)
        self._read: dict[tuple[Word, int], Word | None] = {}

    def advance(self, point: Cut, text: bytes) -> Cut | None:
        move = self.lexing.run(text, point.state)
        return None if move is None else self._cut(point, move)

    def reading(self, point: Cut) -> int:
        """See :meth:`Oracle.reading`: the state of the residual."""
        return point.state

    def step(self, state: int, byte: int) -> tuple[int, Word] | None:
        """See :meth:`Oracle.step`: ignored terminals are left out."""
        move = self.lexing.run(bytes([byte]), state)
        return None if move is None else (move.state, move.word)

    def end(self, state: int) -> Word | None:
        return self.lexing.flush(state)

    def outcomes(self, point: Cut, texts: Sequence[bytes]) -> Outcomes:
        """See :meth:`Oracle.outcomes`: words are read along their tree, as far as the grammar has a use for them."""
        branches = self.runs(texts).trees(point.state)
        words: list[Word | None] = [point.word if self.survives(point) else None]
        for before, terminal in branches.steps:
            word = words[before]
            words.append(None if word is None else self._after(word, terminal))
        alive = [node for node, word in enumerate(words) if word is not None]
        place = np.full(len(words), -1)
        place[alive] = np.arange(len(alive))
        completable = np.zeros((len(alive) + 1, len(self._unfolded.ends)), dtype=bool)
        for row, node in enumerate(alive):
            completable[row] = self._completion.completable(words[node] or ())
        there = np.array([self._unfolded.place.get(state, -1) for state in branches.state.tolist()], dtype=np.int64)
        continues = completable[place[branches.node], there] & (there >= 0)
        points = [
            Cut(words[node] or (), state) if goes else None
            for node, state, goes in zip(
                branches.node.tolist(), branches.state.tolist(), continues.tolist(), strict=True
            )
        ]
        survives = place[branches.node] >= 0
        return Outcomes(branches.of_text, points, np.append(continues, False), np.append(survives, False))

    def _after(self, word: Word, terminal: int) -> Word | None:
        """Return a word that goes on as ``word`` and ``terminal`` do; ``None`` where that is no beginning."""
        key = (word, terminal)
        if key not in self._read:
            after = self.earley.canonical((*word, terminal))
            self._read[key] = after if self.earley.survives(after) else None
        return self._read[key]

    def _cut(self, point: Cut, move: Move) -> Cut:
        word = point.word
        for terminal in move.word:
            word = self.earley.canonical((*word, terminal))
        return Cut(word, move.state)

    def ends(self, point: Cut) -> bool:
        last = self.lexing.flush(point.state)
        return last is not None and self.earley.derives(point.word + last)

    def continues(self, point: Cut) -> bool:
        place = self._unfolded.place.get(point.state)
        return place is not None and self.survives(point) and bool(self._completion.completable(point.word)[place])

    def survives(self, point: Cut) -> bool:
        return self.earley.survives(point.word)

    @cached_property
    def _unfolded(self) -> Any:
        return self.lexing.unfold(self._letters)

    @cached_property
    def _completion(self) -> RegularCompletion:
        return RegularCompletion(self.earley, self._unfolded.reads, self._unfolded.ends)


class ByteOracle(Oracle):
    """A language that is read byte by byte, and of which nothing is put out."""

    def __init__(self, start: Any) -> None:
        super().__init__()
        self.start = start
        self._points = [start]
        self._number = {start: 0}
        self._outcomes: dict[tuple[int, int], Outcomes] = {}

    @abstractmethod
    def after(self, point: Any, byte: int) -> Any | None:
        """Return the point after one more byte; ``None`` where even its reading fails."""

    def advance(self, point: Any, text: bytes) -> Any | None:
        for byte in text:
            point = None if point is None else self.after(point, byte)
        return point

    def reading(self, point: Any) -> int:
        """See :meth:`Oracle.reading`: a number of the point itself."""
        number = self._number.setdefault(point, len(self._points))
        if number == len(self._points):
            self._points.append(point)
        return number

    def step(self, state: int, byte: int) -> tuple[int, Word] | None:
        """See :meth:`Oracle.step`: nothing is put out."""
        after = self.after(self._points[state], byte)
        return None if after is None else (self.reading(after), ())

    def end(self, state: int) -> bool:
        return self.ends(self._points[state])

    def outcomes(self, point: Any, texts: Sequence[bytes]) -> Outcomes:
        key = (self.reading(point), id(texts))
        if key not in self._outcomes:
            branches = self.runs(texts).trees(key[0])
            points = [self._points[state] for state in branches.state.tolist()]
            continues, survives = np.zeros((2, len(points) + 1), dtype=bool)
            continues[:-1], survives[:-1] = list(map(self.continues, points)), True
            self._outcomes[key] = Outcomes(branches.of_text, points, continues, survives)
        return self._outcomes[key]


@final
class PatternOracle(ByteOracle):
    """The texts that a regular expression, in the syntax that Python and the crate ``regex`` share, matches as a whole."""

    def __init__(self, pattern: str, letters: Iterable[bytes] = BYTES) -> None:
        self.pattern = pattern
        self._letters = tuple(letters)
        self._by_bytes = set(self._letters).issuperset(BYTES)
        self._lexemes = Lexemes(pattern)
        self._continues: dict[PatternReading, bool] = {}
        super().__init__(self._lexemes.start)

    def after(self, point: PatternReading, byte: int) -> PatternReading | None:
        return self._lexemes.step(point, byte)

    def ends(self, point: PatternReading) -> bool:
        return self._lexemes.matches(point)

    def continues(self, point: PatternReading) -> bool:
        """See :meth:`Oracle.continues`: what begins a match is completed by bytes, or by letters after a search."""
        if self._by_bytes:
            return bool(point.places)
        if point not in self._continues:
            found, pending = {point}, [point]
            while pending and not any(self.ends(reading) or self._continues.get(reading) for reading in found):
                here = pending.pop()
                after = {there for letter in self._letters if (there := self.advance(here, letter)) is not None} - found
                found |= after
                pending += after
            self._continues[point] = any(self.ends(reading) or self._continues.get(reading) for reading in found)
        return self._continues[point]


@final
class JSONOracle(ByteOracle):
    """The texts of a machine. A third party says whether their values are those of the schema."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        super().__init__(machine.start)

    def after(self, point: Configuration, byte: int) -> Configuration | None:
        return self._machine.advance(point, byte)

    def ends(self, point: Configuration) -> bool:
        return self._machine.size(point) == 0

    def continues(self, point: Configuration) -> bool:
        return self._machine.size(point) < NEVER
