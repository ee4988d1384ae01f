"""From a byte automaton to vocabulary classes: what each token does to all states at once (theory.md, section 2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ..vocabulary.trie import Trie, spans
from ..vocabulary.vocabulary import EOS, NEVER, Partition, Vocabulary

CHUNK = 1 << 21  # The number of pairs composed at a time: it bounds the memory of a step, not its result
FIRST = EOS + 1  # The number of the first class that spells something

Move = Callable[[NDArray[np.int64], NDArray[np.int32]], NDArray[np.int32]]
"""The transition of states by bytes of the classes beside them; 0 for none."""


class Distinct(NamedTuple):
    """Distinct transformations, and which of them each of the given ones is; -1 for one that leaves every state dead."""

    transformations: Transformations
    number_of: NDArray[np.int64]


@final
@dataclass(frozen=True, eq=False)
class Transformations:
    """Partial maps from states to states, each kept as its live pairs; a state sent to 0, the dead one, has no pair.

    Few states survive a byte (10 % on JSON schemas with bounded strings, fewer after each further byte), so pairs are
    several times less work than whole columns, and the memory of a large automaton is that of its live part.
    """

    # `int64[U + 1]`: the pairs of transformation `u` are `offsets[u]` to `offsets[u + 1]` of the next two
    offsets: NDArray[np.int64]
    source: NDArray[np.int32]  # `int32[nnz]`: the pairs; sources ascend inside a transformation
    target: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def identity(cls, states: int) -> Transformations:
        """Return the one transformation that leaves every live state where it is."""
        live = np.arange(1, states, dtype=np.int32)
        return cls(np.array([0, len(live)], dtype=np.int64), live, live)

    @property
    def counts(self) -> NDArray[np.int64]:
        """``int64[U]``: how many states each leaves alive."""
        return np.diff(self.offsets)

    def plus(self, other: Transformations) -> Transformations:
        """Return these transformations and then the ``other`` ones."""
        offsets = np.concatenate([self.offsets, self.offsets[-1] + other.offsets[1:]])
        source = np.concatenate([self.source, other.source])
        return Transformations(offsets, source, np.concatenate([self.target, other.target]))

    def take(self, chosen: NDArray[np.int64]) -> Transformations:
        """Return the ``chosen`` transformations, in that order."""
        counts = self.counts[chosen]
        pairs = spans(self.offsets[chosen], counts)
        return Transformations(_offsets(counts), self.source[pairs], self.target[pairs])

    def where(self, kept: NDArray[np.bool_]) -> Transformations:
        """Return the transformations with only the ``kept`` pairs, ``bool[nnz]``."""
        before = np.concatenate([[0], np.cumsum(kept)])
        return Transformations(before[self.offsets], self.source[kept], self.target[kept])

    def then(self, chosen: NDArray[np.int64], column: NDArray[np.int64], move: Move) -> Transformations:
        """Return each ``chosen[i]`` followed by a byte of class ``column[i]``, which takes states where ``move`` says."""
        counts = self.counts[chosen]
        pairs = spans(self.offsets[chosen], counts)
        target = move(np.repeat(column, counts), self.target[pairs])
        return Transformations(_offsets(counts), self.source[pairs], target).where(target != 0)

    def distinct(self) -> Distinct:
        """Return the distinct transformations with live pairs, in order of appearance."""
        live = np.flatnonzero(self.counts)
        alive = self.take(live)
        seed = 0
        while (twin := alive.twins(alive.hashes(seed))) is None:
            seed += 1
        first = np.flatnonzero(twin == np.arange(len(alive)))
        number_of = np.full(len(self), -1, dtype=np.int64)
        number_of[live] = np.searchsorted(first, twin)
        return Distinct(alive.take(first), number_of)

    def hashes(self, seed: int) -> NDArray[np.uint64]:
        """Return ``uint64[U]``: equal for equal transformations. None of them may be without pairs.

        A transformation is a set of pairs, so the sum of a random weight of each pair is a hash of it.
        """
        if not len(self):
            return np.zeros(0, dtype=np.uint64)
        return np.add.reduceat(_weights(seed, self.source) * _weights(~seed, self.target), self.offsets[:-1])

    def twins(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64] | None:
        """Return the first equal transformation of each; ``None`` if a hash is shared by two that differ.

        Equal hashes are only a guess: the pairs are compared.
        """
        _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
        twin = first[group]
        return twin if self.take(twin).equals(self) else None

    def equals(self, other: Transformations) -> bool:
        """Return True if these are the ``other`` transformations, in order."""
        return (
            np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.source, other.source)
            and np.array_equal(self.target, other.target)
        )


@final
class Compositions:
    """The transformations that come up on a walk, each once, and what each becomes after one more byte.

    Number 0 leaves every state dead, number 1 is the identity, and number ``n`` is ``known[n - 1]``.

    ``states``: how many states the transformations are of, the dead one among them; they may lead to more.
    ``width``: ``C``, the number of byte classes.
    ``move``: what a byte does.

    ``known``: the transformations found so far.
    ``after``: ``int32[at least U + 1, C]``: the number of each transformation after a byte of each class, or ``UNKNOWN``.
    """

    UNKNOWN = -1

    def __init__(self, states: int, width: int, move: Move) -> None:
        self.known = Transformations.identity(states)
        self._move = move
        self._seed = 0
        self._hashes = self.known.hashes(self._seed)
        self.after = np.full((64, width), self.UNKNOWN, dtype=np.int32)
        self.after[0] = 0

    @classmethod
    def of(cls, targets: NDArray[np.int32]) -> Compositions:
        """Return those of an automaton, ``int32[S, C]``."""
        columns = np.ascontiguousarray(targets.T)
        states, width = targets.shape
        return cls(states, width, lambda column, state: columns[column, state])

    def walk(self, trie: Trie, byte_class: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the number of what the bytes on the way to each node of ``trie`` do, ``int64[N]``, level by level.

        Every pair (transformation of the parent, byte class) that occurs is composed once, and nothing below a node that
        leaves every state dead. The root has 0: the ids that end there write nothing.
        """
        width = self.after.shape[1]
        columns = byte_class.astype(np.int64)
        action = np.zeros(len(trie), dtype=np.int64)
        action[0] = 1
        for low, high in pairwise(trie.levels[1:].tolist()):
            keys = action[trie.parent[low:high]] * width + columns[trie.byte[low:high]]
            after = self.after.ravel()
            unknown = keys[after[keys] == self.UNKNOWN]
            if len(unknown):
                # A table over all keys instead of a sort: there are few transformations and few byte classes.
                occurs = np.zeros(after.size, dtype=bool)
                occurs[unknown] = True
                self.find(np.flatnonzero(occurs))
                after = self.after.ravel()
            action[low:high] = after[keys]
            if not action[low:high].any():
                break
        action[0] = 0
        return action

    def find(self, keys: NDArray[np.int64]) -> None:
        """Fill ``after`` at the flat positions ``keys``, ascending."""
        number, column = np.divmod(keys, self.after.shape[1])
        sizes = np.cumsum(self.known.counts[number - 1])
        cuts = np.searchsorted(sizes, np.arange(CHUNK, sizes[-1], CHUNK)) + 1
        for some, along in zip(np.split(number, cuts), np.split(column, cuts), strict=True):
            self.after[some, along] = self._numbers(self.known.then(some - 1, along, self._move))
            missing = len(self.known) + 1 - len(self.after)
            if missing > 0:
                more = np.full((max(missing, len(self.after)), self.after.shape[1]), self.UNKNOWN, dtype=np.int32)
                self.after = np.concatenate([self.after, more])

    def _numbers(self, found: Transformations) -> NDArray[np.int64]:
        """Return the number of each of ``found``, those that are new added to the known ones."""
        live = np.flatnonzero(found.counts)
        numbers = np.zeros(len(found), dtype=np.int64)
        if len(live):
            alive = found.take(live)
            while (matched := self._match(alive)) is None:
                self._seed += 1
                self._hashes = self.known.hashes(self._seed)
            numbers[live] = matched
        return numbers

    def _match(self, alive: Transformations) -> NDArray[np.int64] | None:
        """Return the numbers of ``alive``; ``None``, with nothing changed, if a hash is shared by two that differ."""
        hashes = alive.hashes(self._seed)
        twin = alive.twins(hashes)
        if twin is None:
            return None
        first = np.flatnonzero(twin == np.arange(len(alive)))
        fresh, hashes = alive.take(first), hashes[first]
        order = np.argsort(self._hashes)
        place = np.searchsorted(self._hashes, hashes, sorter=order).clip(max=len(order) - 1)
        candidate = order[place]
        same = self._hashes[candidate] == hashes
        if not self.known.take(candidate[same]).equals(fresh.take(np.flatnonzero(same))):
            return None
        number = np.where(same, candidate, len(self.known) + np.cumsum(~same) - 1) + 1
        if not same.all():
            self.known = self.known.plus(fresh.take(np.flatnonzero(~same)))
            self._hashes = np.concatenate([self._hashes, hashes[~same]])
        return number[np.searchsorted(first, twin)]


def _weights(seed: int, states: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Return a pseudo-random odd number for each state: the finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    table = np.arange(int(states.max()) + 1, dtype=np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15) % 2**64)
    table = (table ^ (table >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    table = (table ^ (table >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (table ^ (table >> np.uint64(31)))[states] | np.uint64(1)


def _offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])


class Lift(NamedTuple):
    """The action of a vocabulary's tokens on the states of a byte automaton."""

    partition: Partition  # The vocabulary classes: tokens with the same transformation share one
    # Transformation `g - FIRST` is that of class `g`. Classes NEVER and EOS have none: what the end of sequence
    # does is the guide's business.
    transformations: Transformations


def lift(targets: NDArray[np.int32], byte_class: NDArray[np.uint8], vocabulary: Vocabulary) -> Lift:
    """Return the vocabulary classes of an automaton, ``targets[S, C]`` by class of bytes, and what each does to its states.

    A token ``b_1 .. b_n`` acts on the states as ``delta(b_n) o .. o delta(b_1)``, with ``delta(b)`` the column of byte ``b``. The
    walk goes down the byte trie level by level, composes every pair (transformation of the parent, byte class) that occurs once,
    numbers equal results alike, and never goes below a node that leaves every state dead.
    """
    trie = Trie.of(vocabulary)
    compositions = Compositions.of(targets)
    action = compositions.walk(trie, byte_class)
    return classes_of(action[trie.node_of], compositions.known, vocabulary)


def classes_of(number: NDArray[np.int64], known: Transformations, vocabulary: Vocabulary) -> Lift:
    """Return the classes of ids by the number of what each does, 0 for nothing and ``n`` for the distinct ``known[n - 1]``.

    They are in the order of their first ids; those that no id has are left out.
    """
    spelled = np.flatnonzero(number)[::-1]
    first = np.full(len(known) + 1, len(number))
    first[number[spelled]] = spelled  # the last write wins, and ids descend
    order = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(number))]
    class_of_number = np.full(len(known) + 1, NEVER, dtype=np.int32)
    class_of_number[order] = np.arange(FIRST, FIRST + len(order))
    class_of = class_of_number[number]
    class_of[vocabulary.eos_ids[0]] = EOS
    return Lift(Partition(class_of, FIRST + len(order)), known.take(order - 1))
