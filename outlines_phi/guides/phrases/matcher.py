"""Phrase matchers, deterministic machines over bytes: of literal phrases (Aho and Corasick 1975), with states on demand."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...automata.aho_corasick import AhoCorasick
from ...automata.automaton import joint_classes
from ...automata.byte_machine import ByteMachine

UNKNOWN = -1  # In a table: not asked for yet


class Facts(NamedTuple):
    """The facts of a key of a :class:`PhraseMachine`; phrases are ascending indices into its names."""

    completed: tuple[int, ...]
    """The phrases that the last byte completed."""
    at_end: tuple[int, ...]
    """The phrases that the end of the text would complete."""
    pending: int
    """The length of the longest end of the text that may begin an occurrence, in bytes; 0 for none.

    An occurrence that waits for the next character or for the end of the text is pending, one that is complete is not.
    """
    future: Hashable
    """The part of the key that decides the phrases that are completed from now on."""


class PhraseMachine(ABC):
    """A deterministic machine that reads a text byte by byte and never stops, not at a match either; a *key* tells all of a state.

    Phrases have ``names`` for messages; at most ``longest`` bytes at the end of a text decide its key, so no more can be pending;
    bytes of one ``byte_class``, ``uint8[256]``, act alike.
    """

    names: tuple[str, ...]
    longest: int
    byte_class: NDArray[np.uint8]
    start: Hashable
    table: NDArray[np.int32] | None = None
    """The key after a byte of each class, where keys are the first whole numbers; ``None`` where they come up one by one."""
    known: NDArray[np.int32]
    """The facts of the keys of a table, in the columns of a :class:`PhraseMatcher`."""

    @abstractmethod
    def follow(self, keys: Sequence[Any], bytes: NDArray[np.uint8]) -> Sequence[Hashable]:
        """Return the key after each of ``bytes``, read at the key beside it."""

    @abstractmethod
    def facts(self, key: Any) -> Facts:
        """Return the facts of a key."""

    def after_prompt(self, key: Any) -> Hashable:
        """Return ``key`` as the beginning of a text: the text does not complete a word that waits at the end of the prompt.

        With whole words, ``cat`` at the end of a prompt is an occurrence of the prompt's own; what may still become a longer phrase
        goes on.
        """
        return key


@final
class Literals(PhraseMachine):
    """Occurrences of byte strings, all different and none empty, as they are written; a key is a node of :class:`AhoCorasick`."""

    start = 0

    def __init__(self, phrases: Mapping[bytes, int], names: Sequence[str]) -> None:
        literals, self._phrases = list(phrases), list(phrases.values())
        self.names, self.longest = tuple(names), max(map(len, literals))
        self._words = words = AhoCorasick.build(literals, 256)
        self.byte_class, self.table = words.symbol_class.astype(np.uint8), words.after
        # A phrase that begins nothing longer goes on as its longest end that does.
        never = np.zeros_like(words.open)
        self.known = np.stack([words.match > 0, never, words.depth[words.open], words.open], axis=1).astype(np.int32)

    def follow(self, keys: Sequence[int], bytes: NDArray[np.uint8]) -> Sequence[Hashable]:
        return list(self._words.after[list(keys), self.byte_class[bytes]].tolist())

    def facts(self, key: int) -> Facts:
        completed = tuple(sorted(self._phrases[word] for word in self._words.words(key)))
        return Facts(completed, (), *self.known[key, 2:].tolist())


@final
class PhraseMatcher:
    """The states of a machine, numbered as they come up; every step is taken once and remembered. Threads may share it.

    A state is an ``int`` and stands for all texts that lead to it; see :class:`PhraseMachine`. Methods that take ``states`` take an
    array of any shape and return one of the same shape.
    """

    start = 0

    def __init__(self, machine: PhraseMachine) -> None:
        self._machine = machine
        self.names, self.longest, self.byte_class = machine.names, machine.longest, machine.byte_class
        _, self._bytes = np.unique(self.byte_class, return_index=True)  # one of each class
        self._growing = threading.RLock()
        self._keys: list[Any] = []
        self._number: dict[Hashable, int] = {}
        self._futures: dict[Hashable, int] = {}
        self._known = np.full((64, 4), UNKNOWN, dtype=np.int32)
        self._after = np.full((64, len(self._bytes)), UNKNOWN, dtype=np.int32)
        self.states = None if machine.table is None else len(machine.table)
        if machine.table is None:
            self._numbers([machine.start])
        else:
            self._after, self._known, self._keys = machine.table, machine.known, list(range(len(machine.table)))

    def __len__(self) -> int:
        return len(self._keys)

    def step(self, states: NDArray[np.integer], bytes: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the state after each of ``bytes``, read in the state beside it."""
        columns = self.byte_class[bytes]
        after = self._after[states, columns]
        if self.states is None and (after == UNKNOWN).any():
            states, columns, lacking = np.broadcast_arrays(states, columns, after == UNKNOWN)
            pairs = np.unique(states[lacking].astype(np.int64) * len(self._bytes) + columns[lacking])
            with self._growing:
                self._find(*np.divmod(pairs, len(self._bytes)))
                after = self._after[states, columns]
        return after

    def read(self, state: int, text: bytes) -> int:
        """Return the state after all of ``text``, read in ``state``."""
        for byte in text:
            after = self._after.item(state, self.byte_class.item(byte))
            state = after if after != UNKNOWN else int(self.step(np.array(state), np.array(byte)))
        return state

    def matches(self, states: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return a mask of the states whose last byte completed a phrase."""
        return self._look_up(states, 0) > 0

    def completes_at_end(self, states: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return a mask of the states in which a phrase only waits for the end of the text, or a character that lets it count."""
        return self._look_up(states, 1) > 0

    def pending(self, states: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the bytes that may begin an occurrence, per state."""
        return self._look_up(states, 2)

    def futures(self, states: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return a number for each state, equal only for states after which the same texts complete the same phrases."""
        return self._look_up(states, 3)

    def completed(self, state: int) -> tuple[int, ...]:
        """Return the phrases that the last byte completed."""
        return self._machine.facts(self._keys[state]).completed

    def completed_at_end(self, state: int) -> tuple[int, ...]:
        """Return the phrases that the end of the text would complete."""
        return self._machine.facts(self._keys[state]).at_end

    def after_prompt(self, state: int) -> int:
        """Return ``state`` as the beginning of a text."""
        if self.states is not None:
            return state
        with self._growing:
            return self._numbers([self._machine.after_prompt(self._keys[state])])[0]

    def advance(self, state: int, text: bytes) -> int:
        """Return the state after ``text``; only as much of it is read as matters."""
        if len(text) > self.longest:
            return self.read(self.start, text[-self.longest :])
        return self.read(state, text)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.names)} phrases)"

    def _find(self, source: NDArray[np.int64], column: NDArray[np.int64]) -> None:
        keys = [self._keys[state] for state in source.tolist()]
        self._after[source, column] = self._numbers(self._machine.follow(keys, self._bytes[column].astype(np.uint8)))

    def _numbers(self, keys: Sequence[Hashable]) -> list[int]:
        """Return the number of each key; a new one gets the next."""
        numbers = []
        for key in keys:
            number = self._number.setdefault(key, len(self._keys))
            if number == len(self._keys):
                self._keys.append(key)
            numbers.append(number)
        if len(self._keys) > len(self._after):
            self._after, self._known = (_with_room(table, len(self._keys)) for table in (self._after, self._known))
        return numbers

    def _look_up(self, states: NDArray[np.integer], fact: int) -> NDArray[np.int32]:
        """Return a fact about each state, found out once."""
        values = self._known[states, fact]
        if self.states is None and (values == UNKNOWN).any():
            with self._growing:
                for state in np.unique(np.asarray(states)[values == UNKNOWN]).tolist():
                    completed, at_end, pending, future = self._machine.facts(self._keys[state])
                    number = self._futures.setdefault(future, len(self._futures))
                    self._known[state] = bool(completed), bool(at_end), pending, number
                values = self._known[states, fact]
        return values


@final
class WithoutPhrases(ByteMachine[int]):
    """The texts in which a matcher completes no phrase, read in its state ``origin``; a place stands for all states of one future.

    Where ``beyond_ascii`` is given it is the state after every byte beyond ASCII. Inside of a word, this finds the whole words
    between ASCII characters, in far fewer states: which of all characters end a word takes hundreds.
    """

    def __init__(self, matcher: PhraseMatcher, origin: int, beyond_ascii: int | None = None) -> None:
        self._matcher, self._beyond_ascii = matcher, beyond_ascii
        self._place: dict[int, int] = {}
        (self.start,) = self._places(np.array([origin]))

    def steps(self, place: int, bytes: Sequence[int]) -> list[int | None]:
        read = np.asarray(bytes)
        told = read < (256 if self._beyond_ascii is None else 0x80)
        after = np.full(len(read), self._beyond_ascii or 0)
        after[told] = self._matcher.step(np.full(np.count_nonzero(told), place), read[told])
        pairs = zip(self._places(after), self._matcher.matches(after).tolist(), strict=True)
        return [None if completes else state for state, completes in pairs]

    def ends(self, place: int) -> bool:
        return not self._matcher.completes_at_end(np.array(place))

    def _places(self, states: NDArray[np.integer]) -> list[int]:
        futures = self._matcher.futures(states).tolist()
        return [self._place.setdefault(one, state) for one, state in zip(futures, states.tolist(), strict=True)]


def _with_room(table: NDArray[np.int32], rows: int) -> NDArray[np.int32]:
    grown = np.full((max(rows, 2 * len(table)), table.shape[1]), UNKNOWN, dtype=np.int32)
    grown[: len(table)] = table
    return grown


@final
class SideBySide(PhraseMachine):
    """Matchers that read the same text, each with phrases of its own; a key has a state of each."""

    def __init__(self, matchers: Sequence[PhraseMatcher]) -> None:
        self._matchers, self.names = tuple(matchers), matchers[0].names
        self.longest = max(matcher.longest for matcher in matchers)
        self.byte_class, _ = joint_classes([matcher.byte_class for matcher in matchers])
        self.start = tuple(matcher.start for matcher in matchers)

    def follow(self, keys: Sequence[tuple[int, ...]], bytes: NDArray[np.uint8]) -> Sequence[Hashable]:
        states = np.array(keys).T
        after = [matcher.step(own, bytes).tolist() for matcher, own in zip(self._matchers, states, strict=True)]
        return list(zip(*after, strict=True))

    def facts(self, key: tuple[int, ...]) -> Facts:
        states = [(matcher, np.array(state)) for matcher, state in zip(self._matchers, key, strict=True)]
        return Facts(
            tuple(sorted(chain.from_iterable(map(PhraseMatcher.completed, self._matchers, key)))),
            tuple(sorted(chain.from_iterable(map(PhraseMatcher.completed_at_end, self._matchers, key)))),
            max(int(matcher.pending(state)) for matcher, state in states),
            tuple(int(matcher.futures(state)) for matcher, state in states),
        )

    def after_prompt(self, key: tuple[int, ...]) -> Hashable:
        return tuple(map(PhraseMatcher.after_prompt, self._matchers, key))
