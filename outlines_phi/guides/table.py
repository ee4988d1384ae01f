"""A guide as samplers read it: the live tokens of a state, kept under one bound of memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple, TypeVar, final
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import EmptyLanguageError
from ..numerics.cache import ENTRY_BYTES, array_bytes, kept_rows
from ..numerics.checks import check_kind
from ..vocabulary.vocabulary import EOS, Partition
from .guide import DEAD, DONE, UNREACHABLE, Guide, packed

Cached = TypeVar("Cached")

FAINT = 1e-30  # The mass of a destination, to the likeliest token, from which on single precision has all its digits
FEW = 8  # Live tokens are few where they are at most one in so many

_BIASES = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0, -np.inf
).astype(np.float32)
"""The biases of eight tokens, by the byte of a mask: read a byte at a time, a row takes a tenth of the time."""


@final
@dataclass(frozen=True, eq=False)
class Moves:
    """The live tokens of a state, in increasing order, and where each leads: by classes, so that states share the tokens.

    ``tokens``, ``classes``: ``[k]``: the tokens, and the class of each.
    ``leads``: ``[G]``: where each class leads; means nothing where it has no token here.
    """

    tokens: NDArray[np.int64]
    classes: NDArray[np.integer]
    leads: NDArray[np.integer]

    @property
    def targets(self) -> NDArray[np.integer]:
        """``[k]``: where each token leads."""
        return self.leads[self.classes]

    def target(self, token: int) -> int:
        """Return the state that ``token`` leads to, :data:`DEAD` where it is not live."""
        index = int(self.tokens.searchsorted(token))
        live = index < self.tokens.size and self.tokens[index] == token
        return int(self.leads[self.classes[index]]) if live else DEAD

    @cached_property
    def ended(self) -> NDArray[np.int64]:
        """The places of the tokens that end the text."""
        done = self.leads == DONE
        return np.flatnonzero(done[self.classes]) if done.any() else np.empty(0, dtype=np.int64)

    @cached_property
    def destinations(self) -> Destinations:
        """The distinct targets."""
        here = np.zeros(len(self.leads), dtype=bool)
        here[self.classes] = True
        places = np.full(len(here), -1, dtype=np.int64)
        states, places[here] = np.unique(self.leads[here], return_inverse=True)
        return Destinations(states, places)

    def log_masses(self, log_p: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the log of the sum of ``p``, ``[k]``, over the tokens of each of :attr:`destinations`.

        Summed relative to the likeliest token of all, and again relative to its own likeliest where a destination is faint.
        """
        found, top = self.destinations, log_p.max(initial=-np.inf)
        if top == -np.inf:
            return np.full(len(found.states), -np.inf)
        by_class = np.bincount(self.classes, weights=np.exp(log_p - top), minlength=len(self.leads))
        here = found.places >= 0
        sums = np.bincount(found.places[here], weights=by_class[here], minlength=len(found.states)).astype(float)
        tops = np.full(len(sums), float(top))
        places = np.flatnonzero((sums < FAINT)[found.places][self.classes] & (log_p > -np.inf))
        if places.size:
            faint = found.places[self.classes[places]]
            tops[faint], sums[faint] = -np.inf, 0.0
            np.maximum.at(tops, faint, log_p[places])
            np.add.at(sums, faint, np.exp(log_p[places] - tops[faint]))
        with np.errstate(divide="ignore"):
            return tops + np.log(sums)

    def leading_to(self, place: int) -> NDArray[np.int64]:
        """Return the places of the tokens that lead to the ``place``-th of :attr:`destinations`."""
        return np.flatnonzero((self.destinations.places == place)[self.classes])


class Destinations(NamedTuple):
    """The distinct targets of a state's live tokens, ``states``, and which of them each class has, ``places[G]``, -1 for none."""

    states: NDArray[np.integer]
    places: NDArray[np.int64]


class LiveSet(NamedTuple):
    """The classes of a partition that are live: a flag per class, as bytes."""

    partition: Partition
    classes: bytes

    @property
    def where(self) -> NDArray[np.bool_]:
        """``bool[V]``: which tokens are live."""
        return self.partition.where(np.frombuffer(self.classes, dtype=bool))


class LiveTokens(NamedTuple):
    """The live tokens of a state, ``tokens[k]``, and the class of each, ``classes[k]``, on a device."""

    tokens: Tensor
    classes: Tensor


class ClassTargets(NamedTuple):
    """The distinct targets ``states``, ``int[T]``, of the live classes of a state's partition.

    ``places``, ``[G]``, is which of them each class has, ``T`` where it is dead; ``few`` are the live tokens where they are few, as
    of :meth:`Table.few_live`.
    """

    states: NDArray[np.integer]
    places: Tensor
    partition: Partition
    few: LiveTokens | None


class LiveAfter(NamedTuple):
    """The live classes of some targets of a state, those with one partition: ``[T, G']`` float64, 1 where class ``k`` is."""

    partition: Partition
    live: Tensor


class OneStep(NamedTuple):
    """The live tokens one step after a state, by the classes ``g`` of its partition.

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

    What is found of a state is kept in :data:`~outlines_phi.numerics.cache.kept_rows`, however many formats there are.
    """

    _lock: ClassVar = threading.RLock()

    def __init__(self, guide: Guide) -> None:
        check_kind("Table", "guide", guide, Guide, "a guide, such as FSMGuide or CFGGuide")
        self.guide = guide
        self.vocabulary = guide.vocabulary
        self.start = guide.start
        self._guide, self._thoughts_alone = ref(guide), False  # part of keys that keep no guide alive
        self._later: Table | None = None

    @property
    def current(self) -> Table:
        """The table that a call that begins now uses: this one, until its guide is full; then that of one that has met nothing."""
        with self._lock:
            current = self._later or self
            if current.guide.full:
                current = self._later = Table(current.guide.afresh())
            return current

    @cached_property
    def thoughts(self) -> Table:
        """The table of the thoughts alone, each up to the token that ends it, with the same live tokens; it shares what is kept."""
        table = copy(self)
        table._thoughts_alone = True
        return table

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, (self.guide,)

    def start_after(self, prompt: Sequence[int]) -> int:
        """Return the state in which a text after a prompt of these ids begins; :class:`EmptyLanguageError` if there is none."""
        # A prompt may hold ids that the model reads and cannot write.
        text = self.vocabulary.decode(filter(len(self.vocabulary).__gt__, prompt))
        state = self.guide.start_after(text)
        if self.guide.min_tokens(state) >= UNREACHABLE:
            raise EmptyLanguageError(self.guide.why_empty(text))
        return state

    def moves(self, state: int, remaining: int) -> Moves:
        """Return the live tokens of ``state`` and their targets."""

        def build(state: int, remaining: int) -> Moves:
            return Moves(*self._live_tokens(state, remaining), self.targets(state, remaining))

        def size(moves: Moves) -> int:  # several states share their tokens
            return 16 * moves.leads.nbytes + moves.tokens.nbytes // 4

        return self.keep_within("moves", state, remaining, build, size)

    def bias(self, state: int, remaining: int | None, device: torch.device) -> Tensor:
        """Return ``[V]`` float32: 0 on live tokens, ``-inf`` elsewhere, ready to be added to logits in place.

        Without a limit (``None``) they are those of the guide's mask, which JSON has without any lengths. States with the same live
        tokens share one row: those of a grammar that differ in what lies deep on the stack.
        """
        if remaining is None:
            mask = partial(self.guide.mask, state)
            digest = self.keep("mask", state, lambda: blake2b(mask().tobytes()).digest(), lambda _: ENTRY_BYTES)
            return self._biases(digest, mask, device)
        live = self._live(state, remaining)
        return self._biases(live, lambda: packed(live.where), device)

    def _biases(self, live: LiveSet | bytes, mask: Callable[[], NDArray[np.uint32]], device: torch.device) -> Tensor:
        def spread() -> Tensor:
            row = _BIASES.take(mask().view(np.uint8), axis=0).reshape(-1)
            return torch.from_numpy(row[: len(self.vocabulary)]).to(device)

        return self._of_live(f"{len(self.vocabulary)} {device}", live, spread, lambda row: row.nbytes)

    def targets(self, state: int, remaining: int) -> NDArray[np.integer]:
        """Return ``int[G]``: where each class of the state's partition leads when ``remaining`` tokens may be written."""
        targets = self.guide.row(state).targets
        if self.guide.open and remaining <= 1:
            return np.where(self.guide.min_tokens_of(targets) == 0, DONE, DEAD).astype(np.int32)
        return targets

    def advance(self, state: int, token: int, remaining: int) -> int:
        """Return the state after ``token``, one of the ``remaining`` tokens; :data:`DEAD` where it is not allowed."""
        target = self.guide.advance(state, token)
        if self._thoughts_alone and target != DEAD and not self.guide.in_thought(target):
            return DONE
        if self.guide.open and remaining <= 1:
            return DONE if self.guide.min_tokens(target) == 0 else DEAD
        return target

    def partition(self, state: int) -> Partition:
        """Return the vocabulary classes of ``state``."""
        return self.guide.partition_of(state)

    def class_targets(self, state: int, remaining: int, device: torch.device) -> ClassTargets:
        """Return the targets of the live classes of ``state``."""

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
            tokens, classes = self._live_tokens(state, remaining)
            if len(tokens) * FEW > len(self.vocabulary):
                return None
            return LiveTokens(*(torch.from_numpy(array.astype(np.int64)).to(device) for array in (tokens, classes)))

        return self.keep_within(f"few live {device}", state, remaining, build, array_bytes)

    def one_step(self, state: int, remaining: int, device: torch.device) -> OneStep:
        """Return the tables of one step of look-ahead from ``state``."""

        def build(state: int, remaining: int) -> OneStep:
            targets, places = np.unique(self.targets(state, remaining), return_inverse=True)
            by_partition: dict[Partition, list[int]] = {}
            for place, target in enumerate(targets.tolist()):
                resting = target in (DEAD, DONE)  # nothing is live there, in whatever classes
                by_partition.setdefault(self.partition(state if resting else target), []).append(place)
            groups = []
            for partition, members in by_partition.items():
                live_after = np.zeros((len(members), partition.size))
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
        """Return the number of live tokens of ``state``."""
        live = self._live(state, remaining)
        return self._of_live("count", live, lambda: int(np.count_nonzero(live.where)), array_bytes)

    def can_end(self, state: int, remaining: int) -> bool:
        """Return True if the end of sequence is live in ``state``."""
        return bool(self.live_classes(state, remaining)[EOS])

    def only_ends(self, state: int, remaining: int) -> bool:
        """Return True if only the end of sequence can follow ``state``."""
        if self.guide.min_tokens(state) > 1:  # most states, at little cost
            return False
        live = self.live_classes(state, remaining)
        return bool(live[EOS]) and np.count_nonzero(live) == 1

    def keep(self, kind: Hashable, state: int, build: Callable[[], Cached], size: Callable[[Cached], int]) -> Cached:
        """Build an estimator's data of ``state`` once, for every length limit, and keep it."""
        with self._lock:
            return kept_rows.of((self._guide, kind, state), build, size)

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
            key = (self._guide, kind, state, min(remaining, self._slack(state, steps)))
            return kept_rows.of(key, lambda: build(state, remaining), size)

    def _live(self, state: int, remaining: int) -> LiveSet:
        def build(state: int, remaining: int) -> LiveSet:
            return LiveSet(self.partition(state), self.live_classes(state, remaining).tobytes())

        return self.keep_within("live", state, remaining, build, lambda live: ENTRY_BYTES + len(live.classes))

    def _live_tokens(self, state: int, remaining: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the live tokens of ``state``, and the class of each; states with the same classes live share them."""

        def find() -> tuple[NDArray[np.int64], NDArray[np.int32]]:
            tokens = np.flatnonzero(live.where)
            return tokens, live.partition.class_of[tokens]

        live = self._live(state, remaining)
        return self._of_live("tokens", live, find, array_bytes)

    def _of_live(
        self, kind: str, live: LiveSet | bytes, build: Callable[[], Cached], size: Callable[[Cached], int]
    ) -> Cached:
        """Build the data of live tokens once, for every table that has the same."""
        with self._lock:
            return kept_rows.of((kind, live), build, size)

    def _slack(self, state: int, steps: int) -> int:
        """Return the limit beyond which a larger one allows nothing more for ``steps`` steps: far limits share entries."""

        def find() -> int:
            slack = self.guide.slack(state)
            if steps == 1:
                return slack
            targets = set(self.guide.row(state).targets.tolist()) - {DEAD}
            return max(slack, 1 + max((self._slack(target, steps - 1) for target in targets), default=0))

        return kept_rows.of((self._guide, "slack", state, steps), find, lambda _: ENTRY_BYTES)
