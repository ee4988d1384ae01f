"""A phrase matcher whose states are made when a text first leads to them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from .matcher import PhraseMatcher

UNKNOWN = -1  # In a table: not asked for yet


class ByteMachine(ABC):
    """A machine over bytes with too many states to list, for a :class:`LazyMatcher`; a *key* tells all of a state.

    The attributes and the meaning of the methods are those of :class:`PhraseMatcher`.
    """

    names: tuple[str, ...]
    longest: int
    byte_class: NDArray[np.uint8]
    start: Hashable

    @abstractmethod
    def follow(self, keys: Sequence[Any], bytes: NDArray[np.uint8]) -> Sequence[Hashable]:
        """Return the key after each of ``bytes``, read at the key beside it."""

    @abstractmethod
    def completed(self, key: Any) -> tuple[int, ...]:
        """Return which phrases the last byte completed."""

    @abstractmethod
    def completed_at_end(self, key: Any) -> tuple[int, ...]:
        """Return which phrases the end of the text would complete."""

    @abstractmethod
    def pending(self, key: Any) -> int:
        """Return how many bytes may be the beginning of an occurrence."""

    @abstractmethod
    def future(self, key: Any) -> Hashable:
        """Return what of ``key`` decides the phrases that are completed from now on."""

    @abstractmethod
    def after_prompt(self, key: Any) -> Hashable:
        """Return ``key`` as the beginning of a text: what waits there is completed no more."""


@final
class LazyMatcher(PhraseMatcher):
    """The states of a machine, numbered as they come up; every step is taken once and remembered. Threads may share it."""

    def __init__(self, machine: ByteMachine) -> None:
        self._machine = machine
        self.names, self.longest, self.byte_class = machine.names, machine.longest, machine.byte_class
        _, self._bytes = np.unique(self.byte_class, return_index=True)  # one of each class
        self._growing = threading.RLock()
        self._keys: list[Any] = []
        self._number: dict[Hashable, int] = {}
        self._futures: dict[Hashable, int] = {}
        self._facts: tuple[Callable[[Any], int], ...] = (
            lambda key: bool(machine.completed(key)),
            lambda key: bool(machine.completed_at_end(key)),
            machine.pending,
            lambda key: self._futures.setdefault(machine.future(key), len(self._futures)),
        )
        self._known = np.full((64, len(self._facts)), UNKNOWN, dtype=np.int32)
        self._after = np.full((64, len(self._bytes)), UNKNOWN, dtype=np.int32)
        self._numbers([machine.start])

    def __len__(self) -> int:
        return len(self._keys)

    def step(self, states: NDArray[np.integer], bytes: NDArray[np.integer]) -> NDArray[np.int32]:
        columns = self.byte_class[bytes]
        after = self._after[states, columns]
        if (after == UNKNOWN).any():
            states, columns, lacking = np.broadcast_arrays(states, columns, after == UNKNOWN)
            pairs = np.unique(states[lacking].astype(np.int64) * len(self._bytes) + columns[lacking])
            with self._growing:
                self._find(*np.divmod(pairs, len(self._bytes)))
                after = self._after[states, columns]
        return after

    def read(self, state: int, text: bytes) -> int:
        for byte in text:
            after = self._after.item(state, self.byte_class.item(byte))
            state = after if after != UNKNOWN else int(self.step(np.array(state), np.array(byte)))
        return state

    def matches(self, states: NDArray[np.integer]) -> NDArray[np.bool_]:
        return self._look_up(states, 0) > 0

    def completes_at_end(self, states: NDArray[np.integer]) -> NDArray[np.bool_]:
        return self._look_up(states, 1) > 0

    def pending(self, states: NDArray[np.integer]) -> NDArray[np.int32]:
        return self._look_up(states, 2)

    def futures(self, states: NDArray[np.integer]) -> NDArray[np.int32]:
        return self._look_up(states, 3)

    def completed(self, state: int) -> tuple[int, ...]:
        return self._machine.completed(self._keys[state])

    def completed_at_end(self, state: int) -> tuple[int, ...]:
        return self._machine.completed_at_end(self._keys[state])

    def after_prompt(self, state: int) -> int:
        with self._growing:
            return self._numbers([self._machine.after_prompt(self._keys[state])])[0]

    def _find(self, source: NDArray[np.int64], column: NDArray[np.int64]) -> None:
        keys = [self._keys[state] for state in source.tolist()]
        numbers = self._numbers(self._machine.follow(keys, self._bytes[column].astype(np.uint8)))
        self._after[source, column] = numbers

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
        if (values == UNKNOWN).any():
            with self._growing:
                for state in np.unique(np.asarray(states)[values == UNKNOWN]).tolist():
                    self._known[state, fact] = self._facts[fact](self._keys[state])
                values = self._known[states, fact]
        return values


def _with_room(table: NDArray[np.int32], rows: int) -> NDArray[np.int32]:
    grown = np.full((max(rows, 2 * len(table)), table.shape[1]), UNKNOWN, dtype=np.int32)
    grown[: len(table)] = table
    return grown


JointKey: TypeAlias = tuple[int, ...]  # a state of each matcher


@final
class SideBySide(ByteMachine):
    """Matchers that read the same text; each finds its own phrases.

    ``phrases`` says for each matcher which of ``names`` its own phrases are.
    """

    def __init__(
        self, matchers: Sequence[PhraseMatcher], phrases: Sequence[Sequence[int]], names: Sequence[str]
    ) -> None:
        self._matchers, self._phrases = tuple(matchers), tuple(phrases)
        self.names = tuple(names)
        self.longest = max(matcher.longest for matcher in matchers)
        classes = np.stack([matcher.byte_class for matcher in matchers])
        _, byte_class = np.unique(classes, axis=1, return_inverse=True)
        self.byte_class = byte_class.reshape(-1).astype(np.uint8)
        self.start = tuple(matcher.start for matcher in matchers)

    def follow(self, keys: Sequence[JointKey], bytes: NDArray[np.uint8]) -> Sequence[Hashable]:
        states = np.array(keys).T
        after = [matcher.step(own, bytes).tolist() for matcher, own in zip(self._matchers, states, strict=True)]
        return list(zip(*after, strict=True))

    def completed(self, key: JointKey) -> tuple[int, ...]:
        return self._of_all(key, lambda matcher, state: matcher.completed(state))

    def completed_at_end(self, key: JointKey) -> tuple[int, ...]:
        return self._of_all(key, lambda matcher, state: matcher.completed_at_end(state))

    def pending(self, key: JointKey) -> int:
        return max(int(matcher.pending(np.array(state))) for matcher, state in zip(self._matchers, key, strict=True))

    def future(self, key: JointKey) -> Hashable:
        return tuple(int(matcher.futures(np.array(state))) for matcher, state in zip(self._matchers, key, strict=True))

    def after_prompt(self, key: JointKey) -> Hashable:
        return tuple(matcher.after_prompt(state) for matcher, state in zip(self._matchers, key, strict=True))

    def _of_all(self, key: JointKey, completed: Callable[[PhraseMatcher, int], tuple[int, ...]]) -> tuple[int, ...]:
        found = zip(self._matchers, key, self._phrases, strict=True)
        return tuple(sorted(names[i] for matcher, state, names in found for i in completed(matcher, state)))
