"""The product of a guide with the guide of free text without banned phrases, pair by pair."""

from __future__ import annotations

import heapq
import threading
from functools import lru_cache
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...automata.lift import FIRST
from ...errors import UnsupportedError, VocabularyError
from ...vocabulary.classes import EOS, NEVER, Partition, refine
from ..guide import DEAD, DONE, UNREACHABLE, Guide, Row
from ..guide_texts import ShortestTexts
from .phrase_guide import BanningGuide, PhraseGuide, changed_row

SEARCHED = 5_000  # How many pairs of states are looked at to find an end from one pair before that is given up

_UNKNOWN, _BLOCKED = -1, -2
"""``min_tokens`` of a pair not looked at yet, and of one for which a shortest sequence of the left guide holds a phrase."""

_SHOWN = 20  # How many bytes of a prompt a message shows
_ROWS, _BASES, _PARTITIONS = 32, 128, 16  # How many rows, transitions of left states, and refined partitions are kept
_STEPS = 2**14  # Single steps that are kept


class _Base(NamedTuple):
    """The transitions of a left state beside the start of a text on the right.

    ``partition`` has the classes of both, ``counts``, ``int64[G]``, how many tokens each has; ``left_targets`` is the next left
    state of each left class, ``targets``, ``int32[G]``, the next pair of each class, that of EOS left out.
    """

    partition: Partition
    counts: NDArray[np.int64]
    left_targets: NDArray[np.integer]
    targets: NDArray[np.int32]


@final
class ProductGuide(BanningGuide):
    """The token sequences of a guide ``left`` whose bytes hold no banned phrase, whatever the size of both.

    A state is a pair, numbered when a row first leads to it, so memory grows with the pairs that were met. Of a row, all that does
    not depend on what is pending is shared by the pairs with the same left state. A pair is live if and only if an end can be
    reached from it, so dead ends that only tokens make are found too: ``min_tokens`` is the length of a shortest sequence. It is
    looked for along a shortest one of the left guide first, which nearly always holds no phrase, and else best first with the
    left guide's ``far_from_end`` as the bound (A*; Hart, Nilsson, Raphael 1968). A pickled copy numbers its states anew.

    Raises
    ------
    VocabularyError
        The two are of different vocabularies.
    UnsupportedError
        From what needs ``min_tokens``: :data:`SEARCHED` pairs did not tell whether a text can be finished.
    """

    def __init__(self, left: Guide, right: PhraseGuide) -> None:
        if left.vocabulary.fingerprint != right.vocabulary.fingerprint:
            raise VocabularyError("guides of two vocabularies cannot be intersected; build both for the same model")
        self.left, self.right = left, right
        self.vocabulary, self.phrases, self.open = left.vocabulary, right.phrases, left.open
        self._number: dict[int, int] = {}
        self._left_number: dict[int, int] = {}
        self._lefts: list[int] = []
        # The pairs by number, and min_tokens of each as far as it is known.
        self._pairs = np.array([[DEAD, DEAD, UNREACHABLE], [DONE, DONE, 0]], dtype=np.int64)
        self._shortest = ShortestTexts(left)
        self._lock = threading.RLock()
        self._recent_row = lru_cache(_ROWS)(self._row)
        self._recent_base = lru_cache(_BASES)(self._base)
        self._recent_step = lru_cache(_STEPS)(self._step)
        self._refined = lru_cache(_PARTITIONS)(lambda partition: refine(partition, right.root))
        self.start = self._pair(left.start, right.start)

    def __reduce__(self) -> tuple[Any, ...]:
        return ProductGuide, (self.left, self.right)

    def row(self, state: int) -> Row:
        with self._lock:
            return self._recent_row(state)

    def advance(self, state: int, token: int) -> int:
        """See :meth:`Guide.advance`, without the whole row."""
        with self._lock:
            return self._recent_step(state, token)

    def _step(self, state: int, token: int) -> int:
        left, right = self._pairs[state, :2].tolist()
        target = self._pair(self.left.advance(left, token), self.right.advance(right, token))
        return target if self.min_tokens(target) < UNREACHABLE else DEAD

    def min_tokens(self, state: int) -> int:
        known = self._pairs.item(state, 2)
        return known if known >= 0 else super().min_tokens(state)

    def min_tokens_of(self, states: NDArray[np.integer]) -> NDArray[np.int64]:
        with self._lock:
            self._follow(states)
            for state in np.unique(states[self._pairs[states, 2] == _BLOCKED]).tolist():
                if self._pairs[state, 2] == _BLOCKED:  # the search from another may have met it
                    self._search(state)
            return self._pairs[states, 2].astype(np.int64)

    def start_after(self, prompt: bytes) -> int:
        with self._lock:
            return self._pair(self.left.start_after(prompt), self.right.start_after(prompt))

    def why_empty(self, prompt: bytes) -> str:
        """See :meth:`Guide.why_empty`; names a phrase."""
        left = self.left.start_after(prompt)
        if self.left.min_tokens(left) >= UNREACHABLE or self.min_tokens(self.start) >= UNREACHABLE:
            return self.left.why_empty(prompt)
        text = self._shortest.text(left)
        return (
            "the banned phrases leave nothing of the output type after a prompt that ends in "
            f"{prompt[-_SHOWN:].decode(errors='replace')!r}: with it, the shortest text, {text.decode(errors='replace')!r}, makes "
            f"{self.right.first_in(prompt, text)}, and no other one does without a phrase. Ban less, change the prompt, or give "
            "BannedPhrases(..., across_prompt=False), for which what the prompt begins does not count."
        )

    def pending(self, state: int) -> int:
        """See :meth:`BanningGuide.pending`."""
        return self.right.pending(int(self._pairs[state, 1]))

    def phrases_at(self, state: int, tokens: NDArray[np.integer]) -> NDArray[np.int64]:
        """See :meth:`BanningGuide.phrases_at`; of tokens that the left guide allows."""
        left, right = self._pairs[state, :2].tolist()
        row = self.left.row(left)
        allowed = row.targets[row.partition.class_of[tokens]] != DEAD
        return np.where(allowed, self.right.phrases_at(right, tokens), -1)

    def describe(self, state: int) -> str:
        """Return a debugging picture of ``state``: that of both."""
        left, right = self._pairs[state, :2].tolist()
        return f"{self.left.describe(left)} and {self.right.describe(right)}"

    def _row(self, state: int) -> Row:
        left, right = self._pairs[state, :2].tolist()
        if state in (DEAD, DONE):
            return Row(self.right.root, np.full(self.right.root.size, DEAD, dtype=np.int32))
        tokens, classes, partition, targets = self._moves(left, right)
        targets = np.where(self.min_tokens_of(targets) < UNREACHABLE, targets, DEAD).astype(np.int32)
        return changed_row(partition, tokens, classes, targets)

    def _moves(
        self, left: int, right: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], Partition, NDArray[np.int32]]:
        """Return a pair's transitions, those into dead ends as well, as changes to a partition that it shares with others.

        The tokens that are in another class than there, the class of each, the partition, and the target of each class.
        """
        base, changes = self._recent_base(left), self.right.changes(right)
        left_class_of = self.left.partition_of(left).class_of
        relevant = base.left_targets[left_class_of[changes.tokens]] != DEAD
        tokens, right_classes = changes.tokens[relevant], changes.classes[relevant]
        left_classes = left_class_of[tokens].astype(np.int64)
        width = len(changes.targets)
        spelled = right_classes != NEVER
        both, which = np.unique((left_classes * width + right_classes)[spelled], return_inverse=True)
        classes = np.full(len(tokens), NEVER, dtype=np.int32)
        classes[spelled] = base.partition.size + which
        on_left, on_right = np.divmod(both, width)
        added = self._intern(base.left_targets[on_left], changes.targets[on_right])
        occupied = base.counts > np.bincount(base.partition.class_of[tokens], minlength=base.partition.size)
        targets = np.concatenate([np.where(occupied, base.targets, DEAD), added]).astype(np.int32)
        ends = base.left_targets[EOS] == DONE and changes.targets[EOS] == DONE
        targets[EOS] = DONE if ends else DEAD
        return tokens, classes, base.partition, targets

    def _base(self, left: int) -> _Base:
        row = self.left.row(left)
        partition, on_left, on_right = self._refined(row.partition)
        targets = self._intern(row.targets[on_left], self.right.changes(self.right.start).targets[on_right])
        targets[:FIRST] = DEAD
        counts = np.bincount(partition.class_of, minlength=partition.size)
        return _Base(partition, counts, row.targets, targets)

    def _pair(self, left: int, right: int) -> int:
        return int(self._intern(np.array([left]), np.array([right]))[0])

    def _intern(self, left: NDArray[np.integer], right: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the numbers of pairs, DEAD where either is; new ones get the next."""
        states = np.full(len(left), DEAD, dtype=np.int32)
        states[(left == DONE) & (right == DONE)] = DONE
        texts = (left > DONE) & (right > DONE)
        # States of a guide may be any numbers; those that were met have small ones here.
        met, place = np.unique(left[texts], return_inverse=True)
        for state in met.tolist():
            if state not in self._left_number:
                self._left_number[state] = len(self._lefts)
                self._lefts.append(state)
        small = np.array([self._left_number[state] for state in met.tolist()], dtype=np.int64)[place]
        codes, which = np.unique(small << 32 | right[texts], return_inverse=True)
        before = len(self._number)
        numbers = np.array(
            [self._number.setdefault(code, len(self._number)) for code in codes.tolist()], dtype=np.int64
        )
        self._add(codes[numbers >= before], before + DONE + 1)
        states[texts] = (numbers + DONE + 1)[which]
        return states

    def _add(self, codes: NDArray[np.int64], first: int) -> None:
        """Store new pairs from number ``first`` on."""
        end = first + len(codes)
        if end > len(self._pairs):
            grown = np.full((max(end, 2 * len(self._pairs)), 3), _UNKNOWN, dtype=np.int64)
            grown[: len(self._pairs)] = self._pairs
            self._pairs = grown
        self._pairs[first:end, 0] = [self._lefts[place] for place in (codes >> 32).tolist()]
        self._pairs[first:end, 1] = codes & 0xFFFFFFFF

    def _follow(self, states: NDArray[np.integer]) -> None:
        """Set ``min_tokens`` of the pairs for which a shortest sequence of the left guide holds no phrase."""
        unknown = np.unique(states[self._pairs[states, 2] == _UNKNOWN])
        for left in np.unique(self._pairs[unknown, 0]).tolist():
            here, least = unknown[self._pairs[unknown, 0] == left], self.left.min_tokens(left)
            if (
                least >= UNREACHABLE
            ):  # no row leads there, but a prompt may leave nothing of a guide that bans phrases itself
                self._pairs[here, 2] = UNREACHABLE
                continue
            after = self.right.after_text(self._pairs[here, 1], self._shortest.text(left))
            free = self.right.min_tokens_of(after) == 0
            self._pairs[here, 2] = np.where(free, least, _BLOCKED)

    def _search(self, state: int) -> None:
        """Set ``min_tokens`` of ``state`` and of the pairs on the way to the end, or of all met if there is none."""
        steps, before = {state: 0}, {state: DEAD}
        queue, met = [(0, 0, state)], set[int]()
        while queue:
            _, _, here = heapq.heappop(queue)
            if self._pairs[here, 2] >= 0:
                bound = steps[here] + int(self._pairs[here, 2])
                while here != DEAD:
                    self._pairs[here, 2] = bound - steps[here]
                    here = before[here]
                return
            if here in met:
                continue
            met.add(here)
            if len(met) > SEARCHED:
                shortest = self._shortest.text(int(self._pairs[state, 0])).decode(errors="replace")
                raise UnsupportedError(
                    f"{SEARCHED} steps did not tell whether a text can be finished without the banned phrases: the shortest end, "
                    f"{shortest!r}, holds one, and so do all others that were tried. Ban less, or change the output type"
                )
            targets = np.unique(self._moves(*self._pairs[here, :2].tolist())[3])
            self._follow(targets)
            known = self._pairs[targets, 2]
            least = np.where(known >= 0, known, self.left.far_from_end(self._pairs[targets, 0]))
            for target, rest in zip(targets.tolist(), least.tolist(), strict=True):
                if rest < UNREACHABLE and steps[here] + 1 < steps.get(target, UNREACHABLE):
                    steps[target], before[target] = steps[here] + 1, here
                    heapq.heappush(queue, (steps[target] + rest, -steps[target], target))
        self._pairs[list(met), 2] = UNREACHABLE
