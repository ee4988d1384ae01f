"""Definitions of languages as machines over bytes, with which guides are compared: they share no code with the engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from functools import cached_property
from typing import Any, NamedTuple, final

from outlines_phi.guides.grammar.grammar import Grammar
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.machine.sizes import NEVER

from .earley import Earley, RegularCompletion, Word
from .lexemes import Lexemes
from .lexing import START, Lexing, Unfolded

BYTES = tuple(bytes([byte]) for byte in range(256))
PAIRS = 200  # How many pairs of points are compared to tell two of them apart
FAILED = -1  # Instead of a point: the text cannot begin a member


class Oracle(ABC):
    """A deterministic machine over bytes; equal points have the same future. Points are numbered, and each step is taken once."""

    start = 0  # The point of the empty text

    def __init__(self, start: Hashable) -> None:
        self._points: list[Any] = [start]
        self._number: dict[Any, int] = {start: 0}
        self._steps: list[dict[int, int]] = [{}]
        self._alike: set[tuple[int, int]] = set()
        self._said: dict[tuple[bool, int], bool] = {}

    @abstractmethod
    def _after(self, point: Any, byte: int) -> Hashable | None:
        """Return the point after one more byte; ``None`` where even its reading fails."""

    @abstractmethod
    def _is_end(self, point: Any) -> bool: ...

    @abstractmethod
    def _is_begun(self, point: Any) -> bool: ...

    def step(self, point: int, byte: int) -> int:
        """Return the point after one more byte, or :data:`FAILED`."""
        steps = self._steps[point]
        if byte not in steps:
            after = self._after(self._points[point], byte)
            steps[byte] = FAILED if after is None else self._number.setdefault(after, len(self._points))
            if steps[byte] == len(self._points):
                self._points.append(after)
                self._steps.append({})
        return steps[byte]

    def advance(self, point: int, text: bytes) -> int:
        """Return the point after ``text``, or :data:`FAILED`."""
        for byte in text:
            if point == FAILED:
                break
            steps = self._steps[point]
            point = steps[byte] if byte in steps else self.step(point, byte)
        return point

    def ends(self, point: int) -> bool:
        """Return True if the text is a member."""
        return self._ask(True, point)

    def continues(self, point: int) -> bool:
        """Return True if letters complete the text to a member."""
        return self._ask(False, point)

    def is_member(self, text: bytes) -> bool:
        """Return True if ``text`` is in the language."""
        return self.ends(self.advance(self.start, text))

    def is_prefix(self, text: bytes) -> bool:
        """Return True if letters complete ``text`` to a member; it is itself made of letters."""
        return self.continues(self.advance(self.start, text))

    def alike(self, point: int, other: int) -> bool:
        """Return True if two points have one future, as far as the :data:`PAIRS` nearest pairs of points tell (Moore, 1956)."""
        if point == other or (point, other) in self._alike:
            return True
        found = {(point, other): None}
        pending = list(found)
        for here, there in pending:  # it grows
            if self.ends(here) != self.ends(there) or self.continues(here) != self.continues(there):
                return False
            for pair in ((self.step(here, byte), self.step(there, byte)) for byte in range(256)):
                begun = [self.continues(each) for each in pair]
                if begun[0] != begun[1]:
                    return False
                if (
                    begun[0]
                    and pair[0] != pair[1]
                    and pair not in found
                    and pair not in self._alike
                    and len(found) < PAIRS
                ):
                    found[pair] = None
                    pending.append(pair)
        self._alike.update(found)
        return True

    def _ask(self, end: bool, point: int) -> bool:
        if (end, point) not in self._said:
            ask = self._is_end if end else self._is_begun
            self._said[end, point] = point != FAILED and ask(self._points[point])
        return self._said[end, point]


class Cut(NamedTuple):
    """The point of a text: a word that goes on as the terminals that it was cut into, and the state of its residual."""

    word: Word
    state: int


@final
class GrammarOracle(Oracle):
    """The texts that longest match cuts into a word that the grammar derives (the members of grammar-theory.md, section 1).

    Whether a text is the beginning of a member is decided exactly: the words that its residual may still become are a regular
    language, which is intersected with the grammar. ``letters`` are what texts are made of: the tokens of a vocabulary; single
    bytes if every byte is one.
    """

    def __init__(self, grammar: Grammar, letters: Iterable[bytes] = BYTES) -> None:
        super().__init__(Cut((), START))
        self.grammar, self._letters = grammar, tuple(letters)
        self.lexing = Lexing(grammar.terminals)
        self.earley = Earley(grammar)

    def _after(self, point: Cut, byte: int) -> Cut | None:
        move = self.lexing.run(bytes([byte]), point.state)
        if move is None:
            return None
        word = point.word
        for terminal in move.word:
            word = self.earley.canonical((*word, terminal))
            if not self.earley.survives(word):
                return None
        return Cut(word, move.state)

    def _is_end(self, point: Cut) -> bool:
        last = self.lexing.flush(point.state)
        return last is not None and self.earley.derives(point.word + last)

    def _is_begun(self, point: Cut) -> bool:
        place = self._unfolded.place.get(point.state)
        return place is not None and bool(self._completion.completable(point.word)[place])

    @cached_property
    def used(self) -> frozenset[int]:
        """The bytes that some text has."""
        return self.lexing.used(self._unfolded.place)

    @cached_property
    def _unfolded(self) -> Unfolded:
        return self.lexing.unfold(self._letters)

    @cached_property
    def _completion(self) -> RegularCompletion:
        return RegularCompletion(self.earley, self._unfolded.reads, self._unfolded.ends)


@final
class PatternOracle(Oracle):
    """The texts that a regular expression, in the syntax that Python and the crate ``regex`` share, matches as a whole."""

    def __init__(self, pattern: str, letters: Iterable[bytes] = BYTES) -> None:
        self.pattern, self._letters = pattern, tuple(letters)
        self._lexemes = Lexemes(pattern)
        super().__init__(self._lexemes.start)

    def _after(self, point: Any, byte: int) -> Hashable | None:
        return self._lexemes.step(point, byte)

    def _is_end(self, point: Any) -> bool:
        return self._lexemes.matches(point)

    def _is_begun(self, point: Any) -> bool:
        """Return True if it is completed: by bytes always, by longer letters if a search finds how."""
        if self._letters == BYTES:
            return bool(point)
        found = {self._number[point]}
        pending = list(found)
        while pending and not any(map(self.ends, found)):
            here = pending.pop()
            after = {self.advance(here, letter) for letter in self._letters} - found - {FAILED}
            found |= after
            pending += after
        return any(map(self.ends, found))


@final
class JSONOracle(Oracle):
    """The texts of a schema's machine, byte by byte. A third party says whether their values are those of the schema."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        super().__init__(machine.start)

    def _after(self, point: Any, byte: int) -> Hashable | None:
        return self._machine.step(point, byte)

    def _is_end(self, point: Any) -> bool:
        return self._machine.size(point) == 0

    def _is_begun(self, point: Any) -> bool:
        return self._machine.size(point) < NEVER
