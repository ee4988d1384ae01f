"""The guide of any machine: its places times the tokens of a vocabulary, by walks of the trie."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..automata.byte_machine import ByteMachine
from ..errors import EmptyLanguageError, UnsupportedError
from ..numerics.checks import check_kind
from ..vocabulary.classes import EOS, NEVER, Partition
from ..vocabulary.trie import Trie
from ..vocabulary.vocabulary import Vocabulary, check_vocabulary
from .guide import DEAD, DONE, UNREACHABLE, Guide, Match, Row
from .guide_texts import Completions, FirstStep

_FIRST = DONE + 1
_ROWS = 512  # The rows that are kept

MOST_STEPPED = 1 << 14
"""Places whose steps on bytes are kept: a kilobyte each."""

MOST_COMPLETED = 1 << 17
"""Places of which the completion is kept."""

_UNKNOWN = -1


@final
class Steps:
    """The steps of a machine on bytes, each asked for once: places by number, 0 for none."""

    def __init__(self, machine: ByteMachine[Any]) -> None:
        self._machine = machine
        self.forget()

    def forget(self) -> None:
        """Forget all steps."""
        self.places: list[Any] = [None]
        self._number: dict[Any, int] = {}
        self._after = np.zeros((64, 256), dtype=np.int32)

    def number(self, place: Any) -> int:
        """Return the number of a place."""
        number = self._number.setdefault(place, len(self.places))
        if number == len(self.places):
            self.places.append(place)
            if number == len(self._after):
                self._after = np.concatenate([self._after, np.zeros_like(self._after)])
            self._after[number] = _UNKNOWN
        return number

    def after(self, numbers: NDArray[np.int32], bytes: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the number of the place after each byte from the place beside it."""
        found = self._after[numbers, bytes]
        unknown = np.unique(numbers[found == _UNKNOWN].astype(np.int64) * 256 + bytes[found == _UNKNOWN])
        if len(unknown):
            places, first = np.unique(unknown // 256, return_index=True)
            for place, asked in zip(places.tolist(), np.split(unknown % 256, first[1:]), strict=True):
                after = self._machine.steps(self.places[place], asked.tolist())
                numbered = [0 if one is None else self.number(one) for one in after]
                self._after[place, asked] = numbered
            found = self._after[numbers, bytes]
        return found


@final
class MachineGuide(Guide):
    """The token sequences that write the texts of a machine: of any, such as those made of machines.

    A state is a place of the machine. What a token leads to is found by a walk of the vocabulary's trie, in which each distinct
    place and byte is stepped once; steps and rows are kept, both bounded. ``min_tokens`` is the fewest tokens of one completion, of
    which the rest is the completion behind each byte (:meth:`ByteMachine.toward_end`): an upper bound that some token lowers.

    Parameters
    ----------
    machine
        The texts.
    vocabulary
        The tokens; special tokens of the machine have their spelling there (:meth:`Vocabulary.with_special`).
    match
        As of :class:`Guide`.

    Raises
    ------
    EmptyLanguageError
        The machine allows no text.
    UnsupportedError
        Some bytes of a completion have no token.
    """

    def __init__(self, machine: ByteMachine[Any], vocabulary: Vocabulary, match: Match | None = None) -> None:
        check_kind("MachineGuide", "machine", machine, ByteMachine, "a ByteMachine")
        check_vocabulary("MachineGuide", vocabulary)
        self.machine, self.vocabulary, self.match = machine, vocabulary, match
        self._trie = Trie.of(vocabulary)
        self._lock = threading.RLock()
        self._places: list[Any] = [None] * _FIRST
        self._numbers: dict[Any, int] = {} if machine.settled is None else {machine.settled: DONE}
        self._steps = Steps(machine)
        self._completions = Completions(self._first, self._trie.child, self._trie.is_end, MOST_COMPLETED)
        self._recent_row = lru_cache(_ROWS)(self._row)
        self._recent_distances = lru_cache(_ROWS)(self._distances)
        if not machine.is_live(machine.start):
            raise EmptyLanguageError(
                "the output type allows no text at all; see that its parts do not contradict each other"
            )
        self.start = self._state(machine.start)
        self.min_tokens(self.start)

    def __reduce__(self) -> tuple[Any, ...]:
        return MachineGuide, (self.machine, self.vocabulary, self.match)  # states are numbered as they are met

    def row(self, state: int) -> Row:
        with self._lock:
            return self._recent_row(state)

    def min_tokens(self, state: int) -> int:
        """See :meth:`Guide.min_tokens`: of one completion."""
        if state < _FIRST:
            return 0 if state == DONE else UNREACHABLE
        with self._lock:
            return self._fewest(self._places[state])

    def distances_after(self, state: int) -> NDArray[np.int64]:
        with self._lock:
            return self._recent_distances(state)

    def shortest_text(self, state: int) -> bytes:
        with self._lock:
            return self.machine.completed(self._places[state])

    def advance(self, state: int, token: int) -> int:
        """See :meth:`Guide.advance`: byte by byte."""
        if state < _FIRST:
            return DEAD
        place = self._places[state]
        if token in self.vocabulary.eos_ids:
            return DONE if token == self.vocabulary.eos_ids[0] and self.machine.ends(place) else DEAD
        with self._lock:
            after = self.machine.read(self.vocabulary.tokens[token], place) if self.vocabulary.tokens[token] else None
            return DEAD if after is None or not self.machine.is_live(after) else self._state(after)

    def describe(self, state: int) -> str:
        return self.machine.describe(self._places[state]) if state >= _FIRST else ("dead", "done")[state]

    def place(self, state: int) -> Any:
        """Return the place of the machine that a state stands for."""
        return self._places[state]

    def state(self, place: Any) -> int:
        """Return the state of a place."""
        with self._lock:
            return self._state(place)

    def _state(self, place: Any) -> int:
        number = self._numbers.setdefault(place, len(self._places))
        if number == len(self._places):
            self._places.append(place)
        return number

    def _row(self, state: int) -> Row:
        class_of = np.full(len(self.vocabulary), NEVER, dtype=np.int32)
        class_of[self.vocabulary.eos_ids[0]] = EOS
        if state < _FIRST:
            return Row(Partition(class_of, EOS + 1), np.full(EOS + 1, DEAD))
        tokens, numbers = self._walk(self._places[state])
        ends, which = np.unique(numbers, return_inverse=True)
        places = [self._steps.places[end] for end in ends.tolist()]
        targets = [self._state(place) if self.machine.is_live(place) else DEAD for place in places]
        class_of[tokens] = which.reshape(-1) + EOS + 1
        end = DONE if self.machine.ends(self._places[state]) else DEAD
        return Row(Partition(class_of, EOS + 1 + len(targets)), np.array([DEAD, end, *targets]))

    def _distances(self, state: int) -> NDArray[np.int64]:
        return super().distances_after(state)

    def _walk(self, place: Any) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the tokens that lead somewhere, and the numbers of the places there."""
        if len(self._steps.places) > MOST_STEPPED:
            self._steps.forget()
        trie, found = self._trie, list[tuple[NDArray[np.integer], NDArray[np.int32]]]()
        nodes: NDArray[np.integer] = np.zeros(1, dtype=np.int64)
        at = np.array([self._steps.number(place)], dtype=np.int32)
        while len(nodes):
            nodes, above = trie.children(nodes)
            at = self._steps.after(at[above], trie.byte[nodes])
            live = np.flatnonzero(at)
            nodes, at = nodes[live], at[live]
            ended = np.flatnonzero(trie.is_end[nodes])
            found.append((nodes[ended], at[ended]))
        tokens, counts = trie.ending(np.concatenate([some for some, _ in found]))
        return tokens, np.repeat(np.concatenate([numbers for _, numbers in found]), counts)

    def _first(self, place: Any) -> FirstStep:
        """Return the first step of the completion; at the end, the end of sequence."""
        if self.machine.ends(place):
            return FirstStep(0 if place == self.machine.settled else 1)
        byte = self.machine.toward_end(place)
        return FirstStep(UNREACHABLE, byte, self.machine.step(place, byte))

    def _fewest(self, place: Any) -> int:
        """Return the fewest tokens of the completion."""
        tokens = self._completions.fewest(place)
        if tokens >= UNREACHABLE:
            text = self.machine.completed(place)
            raise UnsupportedError(
                f"Use a vocabulary with a token for each byte. No tokens of this one write {text!r:.80}."
            )
        return tokens
