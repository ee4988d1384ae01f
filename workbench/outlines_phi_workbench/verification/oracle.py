"""Definitions of languages as machines over bytes, with which guides are compared: they share no code with the engine."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple, final

from outlines_phi.automata.byte_machine import ByteMachine
from outlines_phi.guides.grammar.grammar import Grammar

from .earley import Earley, RegularCompletion, Word
from .lexemes import Lexemes
from .lexing import START, Lexing, Unfolded

BYTES = tuple(bytes([byte]) for byte in range(256))
PAIRS = 200  # How many pairs of points are compared to tell two of them apart
FAILED = -1  # Instead of a point: the text cannot begin a member


@final
class Oracle:
    """The places of a machine that says what a language is, numbered as *points*; each step is taken once."""

    start = 0  # The point of the empty text

    def __init__(self, machine: ByteMachine[Any]) -> None:
        self.machine = machine
        self._points: list[Any] = [machine.start]
        self._number: dict[Any, int] = {machine.start: 0}
        self._steps: list[dict[int, int]] = [{}]
        self._alike: set[tuple[int, int]] = set()
        self._said: dict[tuple[bool, int], bool] = {}

    def step(self, point: int, byte: int) -> int:
        """Return the point after one more byte, or :data:`FAILED`."""
        steps = self._steps[point]
        if byte not in steps:
            after = self.machine.step(self._points[point], byte)
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
            ask = self.machine.ends if end else self.machine.is_live
            self._said[end, point] = point != FAILED and ask(self._points[point])
        return self._said[end, point]


class Cut(NamedTuple):
    """The point of a text: a word that goes on as the terminals that it was cut into, and the state of its residual."""

    word: Word
    state: int


@final
class GrammarOracle(ByteMachine[Cut]):
    """The texts that longest match cuts into a word that the grammar derives (the members of grammar-theory.md, section 1).

    Whether a text is the beginning of a member is decided exactly: the words that its residual may still become are a regular
    language, which is intersected with the grammar. ``letters`` are what texts are made of: the tokens of a vocabulary; single
    bytes if every byte is one.
    """

    def __init__(self, grammar: Grammar, letters: Iterable[bytes] = BYTES) -> None:
        self.start = Cut((), START)
        self.grammar, self._letters = grammar, tuple(letters)
        self.lexing = Lexing(grammar.terminals)
        self.earley = Earley(grammar)

    def step(self, point: Cut, byte: int) -> Cut | None:
        move = self.lexing.run(bytes([byte]), point.state)
        if move is None:
            return None
        word = point.word
        for terminal in move.word:
            word = self.earley.canonical((*word, terminal))
            if not self.earley.survives(word):
                return None
        return Cut(word, move.state)

    def ends(self, point: Cut) -> bool:
        last = self.lexing.flush(point.state)
        return last is not None and self.earley.derives(point.word + last)

    def is_live(self, point: Cut) -> bool:
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
class PatternOracle(ByteMachine[Any]):
    """The texts that a regular expression, in the syntax that Python and the crate ``regex`` share, matches as a whole."""

    def __init__(self, pattern: str, letters: Iterable[bytes] = BYTES) -> None:
        self.pattern, self._letters = pattern, tuple(letters)
        self._lexemes = Lexemes(pattern)
        self.start = self._lexemes.start

    def step(self, point: Any, byte: int) -> Any:
        return self._lexemes.step(point, byte)

    def ends(self, point: Any) -> bool:
        return self._lexemes.matches(point)

    def is_live(self, point: Any) -> bool:
        """Return True if it is completed: by bytes always, by longer letters if a search finds how."""
        if self._letters == BYTES:
            return bool(point)
        found = {point}
        pending = [point]
        while pending and not any(map(self.ends, found)):
            here = pending.pop()
            after = {self.read(letter, here) for letter in self._letters} - found - {None}
            found |= after
            pending += after
        return any(map(self.ends, found))
