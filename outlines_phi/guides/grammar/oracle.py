"""What a language holds, by brute force: the definition, with which the engine is compared and shares no code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, final

from .earley import Completion, Earley, Word
from .grammar import Grammar
from .lexemes import Lexemes, Reading
from .lexing import START, Lexing, Move

BYTES = tuple(bytes([byte]) for byte in range(256))


class Oracle(ABC):
    """A language of texts, read one piece after the other.

    A *point* stands for a text so far; it is hashable, and equal points have the same future. ``None`` is no point: the text
    cannot begin a member.
    """

    start: Any
    """The point of the empty text."""

    @abstractmethod
    def advance(self, point: Any, text: bytes) -> Any | None:
        """Return the point after ``text``; ``None`` where even its reading fails."""

    @abstractmethod
    def ends(self, point: Any) -> bool:
        """Return whether the text is a member."""

    @abstractmethod
    def continues(self, point: Any) -> bool:
        """Return whether letters complete the text to a member."""

    def advance_all(self, point: Any, texts: Sequence[bytes]) -> list[tuple[Any | None, list[int]]]:
        """Return the points after each of ``texts``, each with the numbers of the texts that lead there."""
        groups: dict[Any | None, list[int]] = {}
        for index, text in enumerate(texts):
            groups.setdefault(self.advance(point, text), []).append(index)
        return list(groups.items())

    def survives(self, point: Any) -> bool:
        """Return whether nothing in the text is out of place yet."""
        return True

    def is_member(self, text: bytes) -> bool:
        """Return whether ``text`` is in the language."""
        point = self.advance(self.start, text)
        return point is not None and self.ends(point)

    def is_prefix(self, text: bytes) -> bool:
        """Return whether letters complete ``text`` to a member; it is itself made of letters."""
        point = self.advance(self.start, text)
        return point is not None and self.continues(point)

    def begins(self, text: bytes) -> bool:
        """Return whether nothing in ``text`` is out of place: the terminals that it has begin a word of the grammar."""
        point = self.advance(self.start, text)
        return point is not None and self.survives(point)

    def prefixes(self, texts: Iterable[bytes]) -> set[bytes]:
        """Return the beginnings of the members among ``texts``."""
        return {text[:end] for text in texts if self.is_member(text) for end in range(len(text) + 1)}


class Cut(NamedTuple):
    """The point of a text: a word that goes on as the terminals that it was cut into, and the state of its residual."""

    word: Word
    state: int


@final
class GrammarOracle(Oracle):
    """The texts that longest match cuts into a word that the grammar derives (``L^Lex(G)`` of cfg.md).

    Terminals are read by :class:`Lexemes`, words by :class:`Earley`. Whether a text is the beginning of a member is decided
    exactly: the words that its residual may still become are a regular language, which is intersected with the grammar.

    Parameters
    ----------
    grammar
        Not necessarily reduced.
    letters
        What texts are made of: the tokens of a vocabulary; single bytes if every byte is one.
    """

    def __init__(self, grammar: Grammar, letters: Iterable[bytes] = BYTES) -> None:
        self.grammar, self._letters = grammar, tuple(letters)
        self.lexing = Lexing(grammar.terminals)
        self.earley = Earley(grammar)
        self.start = Cut((), START)
        self._grouped: dict[tuple[int, int], tuple[Sequence[bytes], list[tuple[Move | None, list[int]]]]] = {}

    def advance(self, point: Cut, text: bytes) -> Cut | None:
        """See :meth:`Oracle.advance`."""
        move = self.lexing.run(text, point.state)
        return None if move is None else self._cut(point, move)

    def advance_all(self, point: Cut, texts: Sequence[bytes]) -> list[tuple[Cut | None, list[int]]]:
        """See :meth:`Oracle.advance_all`; what the texts are cut into is kept by state."""
        key = (point.state, id(texts))
        if key not in self._grouped:
            groups: dict[Move | None, list[int]] = {}
            for index, text in enumerate(texts):
                groups.setdefault(self.lexing.run(text, point.state), []).append(index)
            self._grouped[key] = texts, list(groups.items())
        found = self._grouped[key][1]
        return [(None if move is None else self._cut(point, move), members) for move, members in found]

    def _cut(self, point: Cut, move: Move) -> Cut:
        word = point.word
        for terminal in move.word:
            word = self.earley.canonical((*word, terminal))
        return Cut(word, move.state)

    def ends(self, point: Cut) -> bool:
        """See :meth:`Oracle.ends`."""
        last = self.lexing.flush(point.state)
        return last is not None and self.earley.derives(point.word + last)

    def continues(self, point: Cut) -> bool:
        """See :meth:`Oracle.continues`."""
        place = self._unfolded.place.get(point.state)
        return place is not None and self.survives(point) and bool(self._completion.completable(point.word)[place])

    def survives(self, point: Cut) -> bool:
        """See :meth:`Oracle.survives`."""
        return self.earley.survives(point.word)

    @cached_property
    def _unfolded(self) -> Any:
        return self.lexing.unfold(self._letters)

    @cached_property
    def _completion(self) -> Completion:
        return Completion(self.earley, self._unfolded.reads, self._unfolded.ends)


@final
class PatternOracle(Oracle):
    """The texts that a regular expression matches as a whole.

    Parameters
    ----------
    pattern
        In the syntax that Python and the crate ``regex`` share.
    letters
        As for :class:`GrammarOracle`.
    """

    def __init__(self, pattern: str, letters: Iterable[bytes] = BYTES) -> None:
        self.pattern = pattern
        self._letters = tuple(letters)
        self._by_bytes = set(self._letters).issuperset(BYTES)
        self._lexemes = Lexemes(pattern)
        self._continues: dict[Reading, bool] = {}
        self.start = self._lexemes.start

    def advance(self, point: Reading, text: bytes) -> Reading | None:
        """See :meth:`Oracle.advance`."""
        reading: Reading | None = point
        for byte in text:
            reading = None if reading is None else self._lexemes.step(reading, byte)
        return reading

    def ends(self, point: Reading) -> bool:
        """See :meth:`Oracle.ends`."""
        return self._lexemes.matches(point)

    def continues(self, point: Reading) -> bool:
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
