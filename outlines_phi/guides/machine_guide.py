"""The guide of any machine: its places times the tokens of a vocabulary, by walks of the trie."""

from __future__ import annotations

import ctypes
import threading
from abc import abstractmethod
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..automata.byte_machine import ByteMachine
from ..errors import EmptyLanguageError, UnsupportedError
from ..numerics.cache import kept_of_states
from ..numerics.checks import check_kind
from ..vocabulary.kernel import DEEPEST, StepTables, library
from ..vocabulary.trie import Trie
from ..vocabulary.vocabulary import EOS, NEVER, Partition, Vocabulary, check_vocabulary
from .guide import DEAD, DONE, FIRST, UNREACHABLE, Guide, Match, Row
from .guide_texts import Completions, FirstStep

MOST_STEPPED = 1 << 14
"""Places whose steps on bytes are kept: a kilobyte each."""

MOST_COMPLETED = 1 << 17
"""Places of which the completion is kept."""

MOST_PLACES = 1 << 15
"""Places that a guide numbers, give or take one call; those of texts that are kept have several kilobytes each."""

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
                self._after[place, asked] = [0 if one is None else self.number(one) for one in after]
            found = self._after[numbers, bytes]
        return found

    def reached(self, trie: Trie, place: Any) -> tuple[NDArray[np.integer], NDArray[np.int32]]:
        """Return the nodes of a trie where tokens end, and the numbers of the places there: compiled, or level by level."""
        start = self.number(place)
        if (compiled := library()) is None or len(trie.levels) > DEEPEST:  # the reference of what is compiled
            levels = trie.walk(start, self.after, lambda _, at: at > 0)
            nodes, at = (np.concatenate(parts) for parts in zip(*levels, strict=True))
            return nodes[trie.is_end[nodes]], at[trie.is_end[nodes]]
        nodes, _ = trie.children(np.zeros(1, dtype=np.int64))
        read, unread, reached = np.empty((3, len(trie), 2), dtype=np.int32)
        walk = StepTables(*(array.ctypes.data for array in (trie.first_child, trie.byte, trie.is_end)))
        walk.reached, walk.reading = reached.ctypes.data, len(nodes)
        read[: len(nodes)] = np.stack([nodes, np.full(len(nodes), start)], axis=1)
        while walk.reading:
            nodes, at = read[: walk.reading].T
            self.after(at, trie.byte[nodes])
            walk.after, walk.read, walk.unread = (table.ctypes.data for table in (self._after, read, unread))
            compiled.read_steps(ctypes.addressof(walk))
            read, unread, walk.reading = unread, read, walk.lacking
        return reached[: walk.ending, 0], reached[: walk.ending, 1]


class PlaceGuide(Guide):
    """A guide whose states are the places of a machine, numbered as they are met: a pickled one numbers them anew.

    ``min_tokens`` is the fewest tokens of one completion, always the same (:class:`Completions`), and the end of sequence: an upper
    bound that some token lowers.
    """

    machine: ByteMachine[Any]

    def __init__(self, machine: ByteMachine[Any], vocabulary: Vocabulary) -> None:
        self.machine, self.vocabulary = machine, vocabulary
        self._trie = Trie.of(vocabulary)
        self._lock = threading.RLock()
        self._places: list[Any] = [None] * FIRST
        self._numbers: dict[Any, int] = {} if machine.settled is None else {machine.settled: DONE}
        self._completions = Completions(self._trie, MOST_COMPLETED)
        self.start = self._state(machine.start)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.machine, self.vocabulary)

    @property
    def full(self) -> bool:  # type: ignore[override]
        """See :attr:`Guide.full`."""
        return len(self._places) > MOST_PLACES

    def min_tokens(self, state: int) -> int:
        """See :meth:`Guide.min_tokens`: of one completion."""
        if state < FIRST:
            return 0 if state == DONE else UNREACHABLE
        with self._lock:
            return min(self._completions.fewest(self._place(state), self._first), UNREACHABLE)

    def advance(self, state: int, token: int) -> int:
        """See :meth:`Guide.advance`: byte by byte."""
        if state < FIRST:
            return DEAD
        place, text = self._place(state), self.vocabulary.tokens[token]
        if token in self.vocabulary.eos_ids:
            return DONE if token == self.vocabulary.eos_ids[0] and self.machine.ends(place) else DEAD
        with self._lock:
            after = self.machine.read(text, place) if text else None
            return DEAD if after is None else self._after(state, token, after)

    def state(self, place: Any) -> int:
        """See :meth:`Guide.state`."""
        with self._lock:
            return self._state(place)

    def describe(self, state: int) -> str:
        """See :meth:`Guide.describe`: that of the place."""
        return self.machine.describe(self._place(state)) if state >= FIRST else ("dead", "done")[state]

    @abstractmethod
    def _after(self, state: int, token: int, place: Any) -> int:
        """Return the state of the place that a token leads to."""

    @abstractmethod
    def _first(self, place: Any) -> FirstStep:
        """Return the first step of the completion, its tokens not counted yet; at the end, the end of sequence."""

    def _place(self, state: int) -> Any:
        return self._places[state]

    def _state(self, place: Any) -> int:
        number = self._numbers.setdefault(place, len(self._places))
        if number == len(self._places):
            self._places.append(place)
        return number


@final
class MachineGuide(PlaceGuide):
    """The token sequences that write the texts of a machine: of any, such as those made of machines.

    What a token leads to is found by a walk of the vocabulary's trie, in which each distinct place and byte is stepped once; steps
    and rows are kept, both bounded. The completion behind each byte is the rest of it (:meth:`ByteMachine.toward_end`).

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
        super().__init__(machine, vocabulary)
        self.match, self._steps = match, Steps(machine)
        if not machine.is_live(machine.start):
            raise EmptyLanguageError(
                "the output type allows no text at all; see that its parts do not contradict each other"
            )
        self.min_tokens(self.start)

    def __reduce__(self) -> tuple[Any, ...]:
        return MachineGuide, (self.machine, self.vocabulary, self.match)

    @kept_of_states
    def row(self, state: int) -> Row:
        with self._lock:
            return self._row(state)

    def min_tokens(self, state: int) -> int:
        tokens = super().min_tokens(state)
        if tokens == UNREACHABLE and state >= FIRST:
            text = self.machine.completed(self._place(state))
            raise UnsupportedError(
                f"Use a vocabulary with a token for each byte. No tokens of this one write {text!r:.80}."
            )
        return tokens

    @kept_of_states
    def distances_after(self, state: int) -> NDArray[np.int64]:
        with self._lock:
            return super().distances_after(state)

    def shortest_text(self, state: int) -> bytes:
        with self._lock:
            return self.machine.completed(self._places[state])

    def place(self, state: int) -> Any:
        """Return the place of the machine that a state stands for."""
        return self._places[state]

    def _after(self, state: int, token: int, place: Any) -> int:
        return self._state(place) if self.machine.is_live(place) else DEAD

    def _row(self, state: int) -> Row:
        class_of = np.full(len(self.vocabulary), NEVER, dtype=np.int32)
        class_of[self.vocabulary.eos_ids[0]] = EOS
        if state < FIRST:
            return Row(Partition(class_of, EOS + 1), np.full(EOS + 1, DEAD))
        tokens, numbers = self._walk(self._places[state])
        ends = np.flatnonzero(np.bincount(numbers))
        targets = [self._after(state, 0, self._steps.places[end]) for end in ends.tolist()]
        class_of[tokens] = np.searchsorted(ends, numbers) + EOS + 1
        end = DONE if self.machine.ends(self._places[state]) else DEAD
        return Row(Partition(class_of, EOS + 1 + len(targets)), np.array([DEAD, end, *targets]))

    def _walk(self, place: Any) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the tokens that lead somewhere, and the numbers of the places there."""
        if len(self._steps.places) > MOST_STEPPED:
            self._steps.forget()
        nodes, numbers = self._steps.reached(self._trie, place)
        tokens, counts = self._trie.ending(nodes)
        return tokens, np.repeat(numbers, counts)

    def _first(self, place: Any) -> FirstStep:
        if self.machine.ends(place):
            return FirstStep(0 if place == self.machine.settled else 1)
        byte = self.machine.toward_end(place)
        return FirstStep(UNREACHABLE, byte, self.machine.step(place, byte))
