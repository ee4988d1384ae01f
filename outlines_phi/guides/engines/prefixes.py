"""Guides that know of a text which tokens may follow it, and no more."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from ...automata.lift import FIRST
from ...errors import UnsupportedError
from ...vocabulary.classes import EOS, NEVER, Partition
from ...vocabulary.vocabulary import Vocabulary
from ..guide import DEAD, DONE, UNREACHABLE, Guide, Row
from .endings import Endings
from .numbering import Numbering

_ROWS, _PARTITIONS, _DISTANCES, _PATHS = 128, 32, 64, 4096
"""How many rows are kept (a target per next token), partitions of the vocabulary, distances of a state's children, and paths."""

MANY = 2_048
"""Next tokens are many where looking at each of them by itself would take longer than a step of a model."""

RESERVE = 32
"""Tokens that one token may add to the shortest way to the end, and those of the shortest text, where next tokens are many."""

MARGIN = 4
"""Tokens that a token may add to the way to the end beyond what it adds to that of a prefix alike, where next tokens are many."""

_BACK = 4
"""Tokens that may lead back to free text: a character has three bytes after the first, an escape four digits."""


class PrefixGuide(Guide):
    """A guide with a state for each token prefix: which tokens may follow is known of each, and nothing of two being alike.

    So states share no rows, trees over them share nothing between prefixes, and memory grows with the prefixes that were met: a
    number and a list of next tokens each, which those with the same next tokens share. A row has a class for each live token.

    ``min_tokens`` is the length of a known way to the end. That of the empty text is searched for (:class:`Endings`). A text with a
    last token ``v`` has, of the way ``w`` of the text without it, the rest if ``v`` begins it; else the shortest end of ``w`` that
    completes it (where next tokens are many: ``w`` itself first; then an end of the way after some other token than ``v``, or ``w``
    after up to :data:`_BACK` tokens); else one that is searched for. So some token always lowers it, and no text within a budget is
    ever truncated.

    Where more than :data:`MANY` tokens may follow, in free text inside a format, each of them is looked at only where the budget is
    near: where the way to the end leaves less than :data:`RESERVE` tokens and the length of the way of the empty text. Before that
    all are live. From there on, what was found for the first beginning of the text with the same next tokens and the same way
    will do for each token that fits even with :data:`MARGIN` tokens more; the others are looked at again. So the last tokens of a
    budget are exact. Should a token lead to a text whose way does not fit, the budget is refused at that text, with an
    :class:`UnsupportedError`.
    """

    shortest = merging = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._numbering = Numbering()
        self.start = self._numbering.root()
        self._endings = Endings(vocabulary)
        self._ways: dict[int, tuple[int, ...] | None] = {}
        self._lock = threading.RLock()
        self._recent_path = lru_cache(_PATHS)(self._path)
        self._recent_row = lru_cache(_ROWS)(self._row)
        self._recent_partition = lru_cache(_PARTITIONS)(self._partition)
        self._recent_distances = lru_cache(_DISTANCES)(self._distances)
        self._recent_examples = lru_cache(_DISTANCES)(self._examples)
        self._recent_fitting = lru_cache(_DISTANCES)(self._fitting)

    @abstractmethod
    def allowed(self, state: int, more: tuple[int, ...] = ()) -> NDArray[np.bool_]:
        """Return ``bool[V]``: what may follow a prefix and ``more`` tokens, each of which may follow; also into dead ends."""

    @abstractmethod
    def ends_after(
        self, state: int, more: tuple[int, ...], nexts: NDArray[np.integer], way: tuple[int, ...]
    ) -> NDArray[np.bool_]:
        """Return whether a text may end after a prefix, ``more`` tokens, each of ``nexts``, which may follow, and ``way``."""

    def row(self, state: int) -> Row:
        """Return the transitions of ``state``."""
        with self._lock:
            return self._recent_row(state)

    def min_tokens(self, state: int) -> int:
        """Return the length of a way to the end, end of sequence included; some token lowers it."""
        if state <= DONE:
            return 0 if state == DONE else UNREACHABLE
        with self._lock:
            way = self._way(state)
        return UNREACHABLE if way is None else len(way) + 1

    def min_tokens_of(self, states: NDArray[np.integer]) -> NDArray[np.int64]:
        """See :meth:`Guide.min_tokens_of`."""
        states = np.asarray(states, dtype=np.int64)
        found = np.where(states == DONE, 0, UNREACHABLE).astype(np.int64)
        texts = np.flatnonzero(states > DONE)
        with self._lock:
            parents, places = self._numbering.siblings(states[texts])
            for parent in np.unique(parents).tolist():
                here = parents == parent
                if parent < 0 or here.sum() == 1:
                    found[texts[here]] = [self.min_tokens(state) for state in states[texts[here]].tolist()]
                else:
                    found[texts[here]] = self._recent_distances(parent)[places[here]]
        return found

    def live_classes(self, state: int, remaining: int) -> NDArray[np.bool_]:
        """See :meth:`Guide.live_classes`.

        Raises
        ------
        UnsupportedError
            A text that was begun among many does not fit the budget.
        """
        self._check_fits(state, remaining)
        row = self.row(state)
        if len(row.targets) <= MANY:
            return super().live_classes(state, remaining)
        live = row.targets != DEAD
        if remaining <= self.slack(state):
            with self._lock:
                live[FIRST:] = self._recent_fitting(state, remaining)
        return live

    def slack(self, state: int) -> int:
        """See :meth:`Guide.slack`."""
        if len(self.row(state).targets) <= MANY:
            return super().slack(state)
        return self.min_tokens(state) + self._reserve

    def describe(self, state: int) -> str:
        """Return a debugging picture of ``state``: the text so far."""
        if state <= DONE:
            return "done" if state == DONE else "dead"
        return repr(self.vocabulary.decode(self.path(state)[1]).decode(errors="replace"))

    def path(self, state: int) -> tuple[int, tuple[int, ...]]:
        """Return the empty prefix that ``state`` goes on from, and its tokens."""
        return self._recent_path(state)

    @cached_property
    def _reserve(self) -> int:
        return RESERVE + self.min_tokens(self.start)

    @cached_property
    def _silence(self) -> Row:
        """The row of a state that leads nowhere."""
        partition = self._recent_partition(np.packbits(np.zeros(len(self.vocabulary), dtype=bool)).tobytes())
        return Row(partition, np.zeros(partition.size, dtype=np.int64))

    def _row(self, state: int) -> Row:
        if state <= DONE:
            return self._silence
        allowed = self.allowed(state)
        end = DONE if allowed[self.vocabulary.eos_ids[0]] else DEAD
        allowed[self.vocabulary.eos_ids[0]] = False
        tokens = np.flatnonzero(allowed)
        base = self._numbering.children(state, tokens)
        children = base + np.arange(len(tokens))
        if not self._has_many(state):
            children[self._recent_distances(state) >= UNREACHABLE] = DEAD
        targets = np.concatenate([[DEAD, end], children])
        return Row(self._recent_partition(np.packbits(allowed).tobytes()), targets)

    def _partition(self, allowed: bytes) -> Partition:
        """Return the partition with a class for each allowed token."""
        bits = np.frombuffer(allowed, dtype=np.uint8)
        tokens = np.flatnonzero(np.unpackbits(bits, count=len(self.vocabulary)))
        class_of = np.full(len(self.vocabulary), NEVER, dtype=np.int32)
        class_of[tokens] = np.arange(FIRST, FIRST + len(tokens))
        class_of[self.vocabulary.eos_ids[0]] = EOS
        return Partition(class_of, FIRST + len(tokens))

    def _distances(self, state: int) -> NDArray[np.int64]:
        """Return ``min_tokens`` of the children of ``state``."""
        ways = self._ways_after(state, self._way(state), self._numbering.tokens(state))
        return np.array([UNREACHABLE if way is None else len(way) + 1 for way in ways], dtype=np.int64)

    def _fitting(self, state: int, remaining: int) -> NDArray[np.bool_]:
        """Return which children of ``state`` fit a budget; for most, what is known of those of a prefix alike will do."""
        alike = self._alike(state)
        least = self._recent_distances(alike)
        fits = least < remaining
        if alike != state:
            tight = np.flatnonzero(least + MARGIN >= remaining)
            ways = self._ways_after(state, self._way(state), self._numbering.tokens(state)[tight])
            fits[tight] = [way is not None and len(way) + 1 < remaining for way in ways]
        return fits

    def _alike(self, state: int) -> int:
        """Return the shortest beginning of ``state`` with the same next tokens and way to the end."""
        alike = here = state
        while (above := self._numbering.above(here)) is not None:
            here = above[0]
            if self._numbering.go_on_alike(here, state) and self._way(here) == self._way(state):
                alike = here
        return alike

    def _path(self, state: int) -> tuple[int, tuple[int, ...]]:
        tokens = []
        while (above := self._numbering.above(state)) is not None:
            state, token = above
            tokens.append(token)
        return state, tuple(reversed(tokens))

    def _way(self, state: int) -> tuple[int, ...] | None:
        """Return tokens after which the text may end; ``None`` where it never can."""
        unknown, here = list[tuple[int, int, int]](), state
        while here not in self._ways:
            above = self._numbering.above(here)
            if above is None:
                self._ways[here] = self._searched(here, ())
                break
            unknown.append((here, *above))
            here = above[0]
        for child, parent, token in reversed(unknown):
            (self._ways[child],) = self._ways_after(parent, self._ways[parent], np.array([token]))
        return self._ways[state]

    def _ways_after(
        self, state: int, way: tuple[int, ...] | None, tokens: NDArray[np.integer]
    ) -> list[tuple[int, ...] | None]:
        """Return a way to the end after each of ``tokens``, which may follow ``state``; of each by itself, so always the same."""
        found: list[tuple[int, ...] | None] = [None] * len(tokens)
        if way is None:  # a dead end
            return found
        goes_on = tokens == (way[0] if way else -1)
        for place in np.flatnonzero(goes_on).tolist():
            found[place] = way[1:]
        left = np.flatnonzero(~goes_on)
        for rest in self._probable(state, way):
            if not len(left):
                break
            ends = self.ends_after(state, (), tokens[left], rest)
            for place in left[ends].tolist():
                found[place] = rest
            left = left[~ends]
        for place in left.tolist():
            found[place] = self._way_after(state, way, int(tokens[place]))
        return found

    def _probable(self, state: int, way: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yield what probably ends the text after most next tokens."""
        rests = [way[kept:] for kept in range(len(way), -1, -1)]
        if not self._has_many(state):
            yield from rests
            return
        # What many tokens lead to is free text as a rule, which the way ends as it did before.
        yield way
        yield from rests[:-1]
        yield from self._recent_examples(state)

    def _examples(self, state: int) -> tuple[tuple[int, ...], ...]:
        """Return ways to the end after a next token of each kind that no end of the way of ``state`` completes, and their ends."""
        way = self._way(state) or ()
        rests, ways = [way[kept:] for kept in range(len(way) + 1)], list[tuple[int, ...]]()
        for token in self._endings.one_of_each_kind(self.allowed(state)).tolist():
            if not any(self.ends_after(state, (), np.array([token]), rest)[0] for rest in rests):
                ways.append(self._way_after(state, way, token) or ())
        found = dict.fromkeys(way[kept:] for way in ways for kept in range(len(way)))
        return tuple(way for way in found if way not in rests)

    def _way_after(self, state: int, way: tuple[int, ...], token: int) -> tuple[int, ...] | None:
        """Return a way to the end after a next token that no end of ``way``, that of ``state``, completes."""
        return (self._led_back(state, token, way) if self._has_many(state) else None) or self._searched(state, (token,))

    def _has_many(self, state: int) -> bool:
        return len(self._numbering.tokens(state)) + FIRST > MANY

    def _led_back(self, state: int, token: int, way: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return ``way`` after what brings back the text that it ends: the rest of a character, or of an escape."""
        more: tuple[int, ...] = (token,)
        for _ in range(_BACK):
            nexts = self._endings.first(self.allowed(state, more))
            ends = self.ends_after(state, more, nexts, way)
            if ends.any():
                return (*more[1:], int(nexts[ends.argmax()]), *way)
            if not len(nexts):
                return None
            more = (*more, int(nexts[0]))
        return None

    def _searched(self, state: int, more: tuple[int, ...]) -> tuple[int, ...] | None:
        text = self.vocabulary.decode((*self.path(state)[1], *more)).decode(errors="replace")
        return self._endings.find(lambda further: self.allowed(state, (*more, *further)), text)

    def _check_fits(self, state: int, remaining: int) -> None:
        least = self.min_tokens(state)
        if state > DONE and least > remaining:
            raise UnsupportedError(
                f"the text {self.describe(state)} needs {least} tokens more at least as far as is known, and max_new_tokens leaves "
                f"{remaining}: its last token has added more to the way to the end than was foreseen. Give a larger "
                "max_new_tokens, or use backend=None."
            )
