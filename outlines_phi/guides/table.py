"""A guide as samplers read it: the live tokens of a state, kept under one bound of memory."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import EmptyLanguageError
from ..numerics.cache import Cache
from ..numerics.checks import check_counts, check_kind
from ..vocabulary.classes import EOS, Partition
from .guide import DEAD, DONE, UNREACHABLE, Guide

Cached = TypeVar("Cached")

FEW = 8  # Live tokens are few where they are at most one in so many


class Moves(NamedTuple):
    """The live tokens of a state, in increasing order, and where each leads."""

    tokens: NDArray[np.int64]
    targets: NDArray[np.integer]

    def target(self, token: int) -> int:
        """Return the state that ``token`` leads to, :data:`DEAD` where it is not live."""
        index = int(self.tokens.searchsorted(token))
        live = index < self.tokens.size and self.tokens[index] == token
        return int(self.targets[index]) if live else DEAD


class Destinations(NamedTuple):
    """The distinct targets of a state's live tokens, ``states[k]``, and which of them each token has, ``places[live]``."""

    states: NDArray[np.integer]
    places: NDArray[np.int64]


class LiveSet(NamedTuple):
    """The classes of a partition that are live: a flag per class, as bytes."""

    partition: Partition
    classes: bytes


class LiveTokens(NamedTuple):
    """The live tokens of a state, ``tokens[k]``, and the class of each, ``classes[k]``, on a device."""

    tokens: Tensor
    classes: Tensor


class ClassTargets(NamedTuple):
    """Where the live classes of a state's partition lead: to ``states``, ``int[T]``, all distinct.

    ``places``, ``[G]``, is which of them each class has, ``T`` where it is dead; ``few`` are the live tokens where they are few, as
    of :meth:`Table.few_live`.
    """

    states: NDArray[np.integer]
    places: Tensor
    partition: Partition
    few: LiveTokens | None


class LiveAfter(NamedTuple):
    """The live classes of some targets of a state, those with one partition: ``[T, G']`` float32, 1 where class ``k`` is."""

    partition: Partition
    live: Tensor


class OneStep(NamedTuple):
    """What is live one step after a state, by the classes ``g`` of its partition.

    ``groups`` are the distinct targets by partition, one group where all states share theirs; ``places``, ``[G]``, is which of the
    targets ``g`` leads to, counted through the groups; ``ends`` and ``live``, ``[G]``, whether it is :data:`DONE`, and whether
    ``g`` is live.
    """

    groups: tuple[LiveAfter, ...]
    places: Tensor
    ends: Tensor
    live: Tensor


@final
class Table:
    """A guide as samplers and estimators read it, so that none of them knows which kind of guide it has.

    A token is **live** in a state with ``remaining`` tokens to write when its target can still reach the end of sequence inside the
    length limit: ``min_tokens(target) <= remaining - 1``. So no output of a closed guide is ever truncated. The last token that the
    limit leaves to an open guide leads to the end, whatever it is.

    ``max_bytes`` bounds the memory of what is kept per visited state; the least recently used is dropped.
    """

    def __init__(self, guide: Guide, *, max_bytes: int = 64 * 2**20) -> None:
        check_kind("Table", "guide", guide, Guide, "a guide, such as FSMGuide or CFGGuide")
        check_counts("Table", max_bytes=max_bytes)
        self.guide = guide
        self.vocabulary = guide.vocabulary
        self.start = guide.start
        self.max_bytes = max_bytes
        self._kept: Cache[tuple[Any, ...], Any] = Cache(max_bytes, least=2)
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Table, max_bytes=self.max_bytes), (self.guide,)  # what is kept is made again

    @property
    def bytes(self) -> int:
        """Memory held by what is kept per visited state."""
        return self._kept.size

    def start_after(self, prompt: Sequence[int]) -> int:
        """Return the state in which a text after a prompt of these ids begins; :class:`EmptyLanguageError` if there is none."""
        # A prompt may hold ids that the model reads and cannot write.
        text = self.vocabulary.decode(token for token in prompt if token < len(self.vocabulary))
        state = self.guide.start_after(text)
        if self.guide.min_tokens(state) >= UNREACHABLE:
            raise EmptyLanguageError(self.guide.why_empty(text))
        return state

    def moves(self, state: int, remaining: int) -> Moves:
        """Return the live tokens of ``state`` and their targets."""
        return self.keep_within("moves", state, remaining, self._moves, _nbytes)

    def destinations(self, state: int, remaining: int) -> Destinations:
        """Return the distinct targets of the live tokens of ``state``."""

        def build(state: int, remaining: int) -> Destinations:
            return Destinations(*np.unique(self._moves(state, remaining).targets, return_inverse=True))

        return self.keep_within("destinations", state, remaining, build, _nbytes)

    def bias(self, state: int, remaining: int, device: torch.device) -> Tensor:
        """Return ``[V]`` float32: 0 on live tokens, ``-inf`` elsewhere, ready to be added to logits in place.

        States with the same classes live share one row: those of a grammar that differ in what lies deep on the stack.
        """

        def build(state: int, remaining: int) -> LiveSet:
            live = self.live_classes(state, remaining)
            return LiveSet(self.partition(state), live.tobytes())

        def spread() -> Tensor:
            live = np.frombuffer(allowed.classes, dtype=bool)
            penalty = np.where(allowed.partition.where(live), np.float32(0.0), np.float32(-math.inf))
            return torch.from_numpy(penalty).to(device)

        allowed = self.keep_within("live", state, remaining, build, lambda found: len(found.classes))
        return self.keep((str(device), allowed), DEAD, spread, lambda row: row.nbytes)

    def targets(self, state: int, remaining: int) -> NDArray[np.integer]:
        """Return ``int[G]``: where each class of the state's partition leads when ``remaining`` tokens may be written."""
        targets = self.guide.row(state).targets
        if self.guide.open and remaining <= 1:
            return np.where(self.guide.min_tokens_of(targets) == 0, DONE, DEAD).astype(np.int32)
        return targets

    def advance(self, state: int, token: int, remaining: int) -> int:
        """Return the state after ``token``, one of the ``remaining`` tokens; :data:`DEAD` where it is not allowed."""
        target = self.guide.advance(state, token)
        if self.guide.open and remaining <= 1:
            return DONE if self.guide.min_tokens(target) == 0 else DEAD
        return target

    def partition(self, state: int) -> Partition:
        """Return the vocabulary classes of ``state``."""
        return self.guide.partition_of(state)

    def class_targets(self, state: int, remaining: int, device: torch.device) -> ClassTargets:
        """Return where the live classes of ``state`` lead."""

        def build(state: int, remaining: int) -> ClassTargets:
            live = self.live_classes(state, remaining)
            states, found = np.unique(self.targets(state, remaining)[live], return_inverse=True)
            places = np.full(len(live), len(states), dtype=np.int64)
            places[live] = found
            few = self.few_live(state, remaining, device)
            return ClassTargets(states, torch.from_numpy(places).to(device), self.partition(state), few)

        return self.keep_within(
            f"targets {device}", state, remaining, build, lambda t: t.states.nbytes + t.places.nbytes
        )

    def few_live(self, state: int, remaining: int, device: torch.device) -> LiveTokens | None:
        """Return the live tokens of ``state`` where they are few, as in the fixed parts of a format; ``None`` where they are many.

        To pick few tokens of a row takes a fraction of a pass over it.
        """

        def build(state: int, remaining: int) -> LiveTokens | None:
            tokens = self._moves(state, remaining).tokens
            if len(tokens) * FEW > len(self.vocabulary):
                return None
            classes = self.partition(state).class_of[tokens].astype(np.int64)
            return LiveTokens(*(torch.from_numpy(array).to(device) for array in (tokens, classes)))

        return self.keep_within(f"few live {device}", state, remaining, build, lambda few: _nbytes(few or ()))

    def one_step(self, state: int, remaining: int, device: torch.device) -> OneStep:
        """Return what one step of look-ahead from ``state`` needs."""

        def build(state: int, remaining: int) -> OneStep:
            targets, places = np.unique(self.targets(state, remaining), return_inverse=True)
            by_partition: dict[Partition, list[int]] = {}
            for place, target in enumerate(targets.tolist()):
                resting = target in (DEAD, DONE)  # nothing is live there, in whatever classes
                by_partition.setdefault(self.partition(state if resting else target), []).append(place)
            groups = []
            for partition, members in by_partition.items():
                live_after = np.zeros((len(members), partition.size), dtype=np.float32)
                for row, target in zip(live_after, targets[members].tolist(), strict=True):
                    if target not in (DEAD, DONE):
                        row[:] = self.live_classes(target, remaining - 1)
                groups.append(LiveAfter(partition, torch.from_numpy(live_after).to(device)))
            order = np.argsort(np.concatenate([*by_partition.values()]))
            arrays = (order[places], (targets == DONE)[places], self.live_classes(state, remaining))
            return OneStep(tuple(groups), *(torch.from_numpy(array).to(device) for array in arrays))

        def size(step: OneStep) -> int:
            return sum(x.nbytes for x in step[1:]) + sum(group.live.nbytes for group in step.groups)

        return self.keep_within(f"one step {device}", state, remaining, build, size, steps=2)

    def live_classes(self, state: int, remaining: int) -> NDArray[np.bool_]:
        """Return ``bool[G]``: which classes of the state's partition are live."""
        return self.guide.live_classes(state, remaining)

    def live_count(self, state: int, remaining: int) -> int:
        """Return how many tokens are live in ``state``."""

        def count(state: int, remaining: int) -> int:
            return int(np.count_nonzero(self.partition(state).where(self.live_classes(state, remaining))))

        return self.keep_within("live count", state, remaining, count, lambda _: 100)

    def can_end(self, state: int, remaining: int) -> bool:
        """Return whether the end of sequence is live in ``state``."""
        return bool(self.live_classes(state, remaining)[EOS])

    def only_ends(self, state: int, remaining: int) -> bool:
        """Return whether nothing but the end of sequence can follow ``state``."""
        if self.guide.min_tokens(state) > 1:  # most states, at little cost
            return False
        live = self.live_classes(state, remaining)
        return bool(live[EOS]) and np.count_nonzero(live) == 1

    def keep(self, kind: Hashable, state: int, build: Callable[[], Cached], size: Callable[[Cached], int]) -> Cached:
        """Return what an estimator needs of ``state`` whatever the length limit, built once and kept under the table's bound."""
        with self._lock:
            return self._kept.of((kind, state), build, size)

    def keep_within(
        self,
        kind: str,
        state: int,
        remaining: int,
        build: Callable[[int, int], Cached],
        size: Callable[[Cached], int],
        steps: int = 1,
    ) -> Cached:
        """As :meth:`keep`, for what depends on the limit, ``steps`` tokens deep: limits that allow the same share it."""
        # A stream of the host's loop reads tables in a thread of its own, beside other calls.
        with self._lock:
            key = (kind, state, min(remaining, self._slack(state, steps)))
            return self._kept.of(key, lambda: build(state, remaining), size)

    def _moves(self, state: int, remaining: int) -> Moves:
        partition = self.partition(state)
        tokens = np.flatnonzero(partition.where(self.live_classes(state, remaining)))
        return Moves(tokens, self.targets(state, remaining)[partition.class_of[tokens]])

    def _slack(self, state: int, steps: int) -> int:
        """Return the limit beyond which a larger one allows nothing more for ``steps`` steps: far limits share entries."""

        def find() -> int:
            slack = self.guide.slack(state)
            if steps == 1:
                return slack
            targets = set(self.guide.row(state).targets.tolist()) - {DEAD}
            return max(slack, 1 + max((self._slack(target, steps - 1) for target in targets), default=0))

        return self._kept.of(("slack", state, steps), find, lambda _: 100)


def _nbytes(arrays: Iterable[Any]) -> int:
    return sum(array.nbytes for array in arrays)
