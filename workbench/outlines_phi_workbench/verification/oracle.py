"""Definitions of languages as machines over bytes, with which guides are compared: they share no code with the engine."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple, final

from outlines_phi.automata.byte_machine import ByteMachine, closure
from outlines_phi.guides.grammar.grammar import Grammar

from .earley import Earley, RegularCompletion
from .lexemes import BYTES
from .lexing import START, EmittedWords, Lexing, Move

PAIRS = 200  # How many pairs of points are compared to tell two of them apart
FAILED = -1  # Instead of a point: the text cannot begin a member


class OraclePoint(NamedTuple):
    """The place of a machine after some text: whether it is a member, whether letters complete it, and the points after bytes."""

    place: Any
    ends: bool
    is_live: bool
    steps: dict[int, int]


@final
class Oracle:
    """The places of a machine that says what a language is, numbered as *points*; each step is taken once."""

    start = 0  # The point of the empty text

    def __init__(self, machine: ByteMachine[Any]) -> None:
        self.machine = machine
        self._points: list[OraclePoint] = []
        self._number: dict[Any, int] = {}
        self._alike: set[tuple[int, int]] = set()
        self._numbered(machine.start)

    def _numbered(self, place: Any) -> int:
        if place not in self._number:
            self._number[place] = len(self._points)
            self._points.append(OraclePoint(place, self.machine.ends(place), self.machine.is_live(place), {}))
        return self._number[place]

    def step(self, point: int, byte: int) -> int:
        """Return the point after one more byte, or :data:`FAILED`."""
        here = self._points[point]
        if byte not in here.steps:
            after = self.machine.step(here.place, byte)
            here.steps[byte] = FAILED if after is None else self._numbered(after)
        return here.steps[byte]

    def advance(self, point: int, text: bytes) -> int:
        """Return the point after ``text``, or :data:`FAILED`."""
        for byte in text:
            if point == FAILED:
                break
            steps = self._points[point].steps
            point = steps[byte] if byte in steps else self.step(point, byte)
        return point

    def ends(self, point: int) -> bool:
        """Return True if the text is a member."""
        return point != FAILED and self._points[point].ends

    def continues(self, point: int) -> bool:
        """Return True if letters complete the text, which is itself made of them, to a member."""
        return point != FAILED and self._points[point].is_live

    def alike(self, point: int, other: int) -> bool:
        """Return True if two points have one future, as far as the :data:`PAIRS` nearest pairs of points tell (Moore, 1956)."""
        if point == other or (point, other) in self._alike:
            return True
        found = {(point, other)}
        for here, there in (pending := list(found)):  # it grows
            if self.ends(here) != self.ends(there) or self.continues(here) != self.continues(there):
                return False
            for pair in ((self.step(here, byte), self.step(there, byte)) for byte in range(256)):
                begun = self.continues(pair[0])
                if begun != self.continues(pair[1]):
                    return False
                known = not begun or pair[0] == pair[1] or pair in found or pair in self._alike
                if not known and len(found) < PAIRS:
                    found.add(pair)
                    pending.append(pair)
        self._alike.update(found)
        return True


@final
class GrammarOracle(ByteMachine[Move]):
    """The texts that longest match cuts into a word that the grammar derives (the members of grammar-theory.md, section 1).

    Whether a text is the beginning of a member is decided exactly: the words that its residual may still become are a regular
    language, which is intersected with the grammar. ``letters`` are what texts are made of: the tokens of a vocabulary; single
    bytes if every byte is one. The point of a text is the state of its residual, and a word that goes on as the terminals do that
    it was cut into.
    """

    def __init__(self, grammar: Grammar, letters: Iterable[bytes] = BYTES) -> None:
        self.start = Move(START, ())
        self.grammar, self.lexing, self.earley = grammar, Lexing(grammar.terminals), Earley(grammar)
        self._words = EmittedWords(self.lexing, letters)

    def step(self, point: Move, byte: int) -> Move | None:
        move = self.lexing.move(point.state, byte)
        if move is None:
            return None
        word = point.word
        for terminal in self.lexing.counted(move.word):
            word = self.earley.canonical((*word, terminal))
            if not self.earley.survives(word):
                return None
        return Move(move.state, word)

    def ends(self, point: Move) -> bool:
        last = self.lexing.flush(point.state)
        return last is not None and self.earley.derives(point.word + self.lexing.counted(last))

    def is_live(self, point: Move) -> bool:
        return self._places.get(point.state) in self._completion.completable(point.word)

    @cached_property
    def used(self) -> frozenset[int]:
        """The bytes that some text has."""
        return frozenset(byte for byte in range(256) if any(self.lexing.move(state, byte) for state in self._places))

    @cached_property
    def _places(self) -> dict[int, int]:
        """The places of the words that are still to come, by the states of residuals that letters lead to."""
        states = closure([START], lambda state: (target for target, _ in self._words.steps(state)))
        return {state: self._words.number((), state) for state in states}

    @cached_property
    def _completion(self) -> RegularCompletion:
        assert self._places  # which are the first of the words
        return RegularCompletion(self.earley, self._words)
