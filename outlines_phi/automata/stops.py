"""Stop strings: the texts of a machine that the first occurrence of a string may end, in whatever tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedError
from ..vocabulary.trie import Trie
from ..vocabulary.vocabulary import Vocabulary
from .aho_corasick import AhoCorasick
from .automaton import ByteAutomaton, TooLarge, below, explored, joint_classes
from .byte_machine import UNREACHABLE, ByteMachine

ANYTHING = ByteAutomaton(
    np.array([[0], [1]], dtype=np.int32), np.zeros(256, dtype=np.uint8), 1, np.array([False, True])
)
"""The automaton of all texts."""

MOST_STATES = 5_000
"""The most states of a text that are listed: others come up on demand."""

MOST_WAYS = 1 << 16
"""Places of which the way to an end is kept."""


class StopPlace(NamedTuple):
    """The place of the members' machine, ``None`` where no member begins so; the longest end of the text that begins a stop string,
    as a node; and in bit ``k``, whether the last ``k`` bytes begin one behind a member.
    """

    member: Any
    node: int
    begun: int


STOPPED = StopPlace(None, -1, 0)
"""The place behind a stop string."""


@final
class StoppedTexts(ByteMachine[StopPlace]):
    """The texts ``L = {y in T, no stop string in y} + {y z: y ends with the first stop string s in it; y or y - s in T; any z}``.

    ``T`` are the ``members``, ``y - s`` is ``y`` without ``s`` at its end, and the first stop string is the one that is complete
    first, of several complete at once the longest. ``z`` is what the token that completes ``s`` writes behind it.
    """

    settled = STOPPED

    def __init__(self, members: ByteMachine[Any], strings: Sequence[bytes]) -> None:
        self.members, self._words = members, AhoCorasick.build(strings, 256)
        words, self.byte_class = self._words, self._words.symbol_class.astype(np.uint8)
        self._length = words.depth[words.match].tolist()  # of the longest stop string that ends here
        pending, rest = [0] * len(words), [b""] * len(words)
        for node in range(1, len(words)):
            pending[node] = pending[words.failure[node]] | int(words.is_inner[node]) << int(words.depth[node])
        for node in range(len(words) - 1, 0, -1):  # the shortest rest of a stop string from each node
            found = b"" if words.word_at[node] >= 0 else rest[node]
            above, longer = int(words.parent[node]), bytes([int(words.symbol[node])]) + found
            rest[above] = min(rest[above] or longer, longer, key=len)
        self._pending, self._rest = pending, rest
        self.start = StopPlace(members.start, 0, 0)
        self._ways: dict[StopPlace, tuple[int, int]] = {}

    def step(self, place: StopPlace, byte: int) -> StopPlace | None:
        return self.steps(place, [byte])[0]

    def steps(self, place: StopPlace, bytes: Sequence[int]) -> list[StopPlace | None]:
        if place == STOPPED:
            return [STOPPED] * len(bytes)
        member, begun = place.member, (place.begun | self._is_member(place)) << 1
        after = [None] * len(bytes) if member is None else self.members.steps(member, bytes)
        nodes = self._words.after[place.node, self._words.symbol_class[list(bytes)]].tolist()
        return [self._arrived(*both, begun) for both in zip(after, nodes, strict=True)]

    def _arrived(self, member: Any, node: int, begun: int) -> StopPlace | None:
        if length := self._length[node]:
            return STOPPED if begun >> length & 1 or (member is not None and self.members.ends(member)) else None
        begun &= self._pending[node]
        return None if member is None and not begun else StopPlace(member, node, begun)

    def _is_member(self, place: StopPlace) -> bool:
        return place.member is not None and self.members.ends(place.member)

    def ends(self, place: StopPlace) -> bool:
        return place == STOPPED or self._is_member(place)

    def size(self, place: StopPlace) -> int:
        return 0 if self.ends(place) else self._way(place)[0]

    def is_live(self, place: StopPlace) -> bool:
        return self.size(place) < UNREACHABLE

    def toward_end(self, place: StopPlace) -> int:
        return self._way(place)[1]

    def shortest(self, place: StopPlace | None = None) -> bytes:
        return self.completed(self.start if place is None else place)

    def _way(self, place: StopPlace) -> tuple[int, int]:
        """Return the bytes to an end, and the first of them: by the members' completion, by a stop string that has begun, or else,
        where neither leads to an end, by a search.

        Behind that byte it is one less at most, so the bytes lead to an end.
        """
        if len(self._ways) > MOST_WAYS:
            self._ways.clear()
        if place not in self._ways:
            along = list(self._along(place))
            if not along:
                end, texts = self._searched(place)
                dead = [(here, UNREACHABLE, 0) for here in texts]
                along = dead if end is None else [(place, len(texts[end]), texts[end][0])]
            for here, size, byte in along:
                self._ways.setdefault(here, (size, byte))
        return self._ways[place]

    def _searched(self, place: StopPlace) -> tuple[StopPlace | None, dict[StopPlace, bytes]]:
        try:
            return self.search(place)
        except UnsupportedError as error:
            raise UnsupportedError(
                "Give other stop strings, or an output type without them in the middle of its texts. Whether such a text can end "
                f"before one is not known within a large effort at {self.describe(place)}."
            ) from error

    def _along(self, place: StopPlace) -> Iterator[tuple[StopPlace, int, int]]:
        """Yield the places along the members' completion, with the way from each; ``place`` alone where a stop string is nearer,
        and nothing where neither leads to an end.
        """
        text, passed = b"", list[StopPlace]()
        if place.member is not None and self.members.is_live(place.member):
            text, here = self.members.completed(place.member), place
            for byte in text:
                passed.append(here)
                after = self.step(here, byte)
                if after is None:
                    passed = []
                    break
                if after == STOPPED:
                    break
                here = after
        for at, here in enumerate(passed or [place]):
            stop = self._stop(here)
            if stop and (not passed or len(stop) < len(passed) - at):
                yield here, len(stop), stop[0]
            elif passed:
                yield here, len(passed) - at, text[at]

    def _stop(self, place: StopPlace) -> bytes:
        """Return the shortest rest of a stop string that has begun behind a member and may end here; empty for none."""
        found, node = list[bytes](), place.node
        while node:
            rest = self._rest[node]
            if place.begun >> int(self._words.depth[node]) & 1 and rest and self.read(rest, place) == STOPPED:
                found.append(rest)
            node = int(self._words.failure[node])
        return min(found, key=len, default=b"")

    def describe(self, place: StopPlace) -> str:
        if place == STOPPED:
            return "stopped"
        member = "no member" if place.member is None else self.members.describe(place.member)
        return f"{member}, {int(self._words.depth[place.node])} bytes of a stop string"

    def first(self, text: bytes) -> tuple[int, int] | None:
        """Return the begin and the end of the first stop string in a text; ``None`` for none."""
        node = 0
        for end, byte in enumerate(text, 1):
            node = int(self._words.after[node, self._words.symbol_class[byte]])
            if length := self._length[node]:
                return end - length, end
        return None

    def state(self, text: bytes) -> int:
        """Return the node of the longest end of a text that begins a stop string."""
        node = 0
        for byte in text:
            node = int(self._words.after[node, self._words.symbol_class[byte]])
        return node

    def pending(self, text: bytes) -> int:
        """Return the length of the longest end of a text that begins a stop string."""
        return int(self._words.depth[self.state(text)])

    def occurrences(self, node: int, vocabulary: Vocabulary) -> NDArray[np.int64]:
        """Return ``int64[2, V]``: where the first stop string that each token completes begins and ends, counted from the end of
        the text before it, of :meth:`state` ``node``; 0 and 0 where it completes none.
        """
        words, trie, length = self._words, Trie.of(vocabulary), np.array(self._length)
        at, found = np.full(len(trie), node), np.zeros((2, len(trie)), dtype=np.int64)
        for depth, (low, high) in enumerate(pairwise(trie.levels[1:].tolist()), 1):
            here, parent = slice(low, high), trie.parent[low:high]
            at[here] = words.after[at[parent], words.symbol_class[trie.byte[here]]]
            new = (found[1, parent] == 0) & (length[at[here]] > 0)
            found[:, here] = np.where(new, [depth - length[at[here]], np.full(high - low, depth)], found[:, parent])
        return found[:, trie.node_of]


@final
@dataclass(frozen=True, eq=False)
class StopMatch:
    """The member in a stopped text, and what is shown of the text: all up to the end of the stop string where that is ``kept``."""

    texts: StoppedTexts
    kept: bool = False

    def text(self, written: bytes, *, ended: bool = True) -> bytes:
        """Return the text that is shown of what is written; where more may come, as much of it as is certain."""
        found = self.texts.first(written)
        if found is not None:
            return written[: found[1]] if self.kept else self.member(written)
        return written if ended or self.kept else written[: len(written) - self.texts.pending(written)]

    def member(self, written: bytes) -> bytes:
        """Return the member: what stands before the stop string, or if that is none, all up to its end."""
        begin, end = self.texts.first(written) or (len(written), len(written))
        return written[:begin] if self.texts.members.accepts(written[:begin]) else written[:end]

    @property
    def open(self) -> bool:
        """True if the members are all texts, which the length limit ends, too."""
        return self.texts.members is ANYTHING

    @cached_property
    def machine(self) -> ByteAutomaton | None:
        """The automaton of the texts, not trimmed, :data:`SETTLED` behind a stop string; ``None`` where it is not one or large."""
        texts, members = self.texts, self.texts.members
        if not isinstance(members, ByteAutomaton):
            return None
        byte_class, first = joint_classes([members.byte_class, texts.byte_class])
        step = lambda place: texts.steps(place, first.tolist())  # noqa: E731
        try:
            number, targets = explored([STOPPED, texts.start], step, below(MOST_STATES))
        except TooLarge:
            return None
        accepting = np.array([False, *map(texts.ends, number)])
        told = members.positions
        at = [0 if place.member is None or told is None else told.item(place.member) for place in number]
        positions = None if told is None else np.array([0, *at], dtype=np.int16)
        return ByteAutomaton(targets, byte_class, number[texts.start], accepting, positions)

    def state(self, written: bytes) -> int:
        """See :meth:`StoppedTexts.state`."""
        return self.texts.state(written)

    def cuts(self, state: int, vocabulary: Vocabulary) -> NDArray[np.int64]:
        """See :meth:`StoppedTexts.occurrences`."""
        return self.texts.occurrences(state, vocabulary)

    def ended(
        self, written: bytes, cuts: NDArray[np.int64], tokens: Sequence[bytes]
    ) -> Iterator[tuple[bytes, NDArray[np.int64]]]:
        """Yield the members that some tokens of these :meth:`cuts` end behind ``written``, and the places of the tokens."""
        begin, apart = cuts[0], cuts[0] > 0
        for at in np.unique(begin[~apart]).tolist():
            places, member = np.flatnonzero(begin == at), written[: len(written) + at]
            if self.texts.members.accepts(member):
                yield member, places
            else:
                apart[places] = True
        for place in np.flatnonzero(apart).tolist():
            yield self.member(written + tokens[place]), np.array([place])
