"""Stop strings: the texts of a machine that the first occurrence of a string may end, in whatever tokens; and thoughts, the texts
that a marker ends before an answer.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..vocabulary.special_tokens import MARK
from ..vocabulary.trie import Trie
from ..vocabulary.vocabulary import Vocabulary
from .aho_corasick import AhoCorasick
from .automaton import DEAD, ByteAutomaton, TooLarge, below, joint_classes
from .byte_machine import UNREACHABLE, ByteMachine, Position

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


class StoppedTexts(ByteMachine[StopPlace]):
    """The texts ``L = {y in T, no stop string in y} + {y z: y ends with the first stop string s in it; y or y - s in T; any z}``.

    ``T`` are the ``members``, ``y - s`` is ``y`` without ``s`` at its end, and the first stop string is the one that is complete
    first, of several complete at once the longest. ``z`` is what the token that completes ``s`` writes behind it. It is the match
    of its texts, too: the members in them, and what is shown of them, all up to the end of ``s`` where that is ``kept``.

    ``before`` is a text in front of ``y`` in which ``s`` may begin.
    """

    settled: StopPlace | None = STOPPED

    def __init__(
        self, members: ByteMachine[Any], strings: Sequence[bytes], *, kept: bool = False, before: bytes = b""
    ) -> None:
        self.members, self.strings, self.kept, self.before = members, tuple(strings), kept, before
        self._words = words = AhoCorasick.build(strings, 256)
        self.byte_class = words.symbol_class.astype(np.uint8)
        self._length = words.depth[words.match].tolist()  # of the longest stop string that ends here
        pending = [0] * len(words)
        for node in range(1, len(words)):
            pending[node] = pending[words.failure[node]] | int(words.is_inner[node]) << int(words.depth[node])
        self._pending = pending
        self.start = StopPlace(members.start, self.state(b""), 0)
        self._ways: dict[StopPlace, tuple[int, int]] = {}

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

    def toward_end(self, place: StopPlace) -> int:
        return self._way(place)[1]

    def shortest(self, place: StopPlace | None = None) -> bytes:
        return self.completed(self.start if place is None else place)

    def _way(self, place: StopPlace) -> tuple[int, int]:
        """Return the bytes to an end, and the first of them: along the members' completion, where no stop string is in its way, or
        else by a search. The way of each place along it is the rest of it.
        """
        if len(self._ways) > MOST_WAYS:
            self._ways.clear()
        if place not in self._ways:
            live = place.member is not None and self.members.is_live(place.member)
            text = self.members.completed(place.member) if live else b""
            after = self.read(text, place)
            if after is None or not self.ends(after):
                end, texts = self.search(place)
                text = b"" if end is None else texts[end]
                self._ways |= dict.fromkeys(() if text else texts, (UNREACHABLE, 0))
            path, here = list[tuple[StopPlace, int]](), place
            for byte in text:
                if here in self._ways or self.ends(here):
                    break
                path.append((here, byte))
                (here,) = self.steps(here, [byte])  # type: ignore[assignment]
            left = 0 if self.ends(here) else self._ways[here][0]
            for size, (here, byte) in enumerate(reversed(path), left + 1):
                self._ways[here] = size, byte
        return self._ways[place]

    def position(self, place: StopPlace) -> Position:
        return Position() if place.member is None else self.members.position(place.member)

    def describe(self, place: StopPlace) -> str:
        if place.node < 0:
            return "stopped"
        member = "no member" if place.member is None else self.members.describe(place.member)
        return f"{member}, {int(self._words.depth[place.node])} bytes of a stop string"

    def text(self, written: bytes, *, ended: bool = True) -> bytes:
        """Return the text that is shown of what is written; where more may come, as much of it as is certain."""
        found = self.first(written)
        if found is not None:
            return written[: found[1]] if self.kept else self.member(written)
        return written if ended or self.kept else written[: max(0, len(written) - self.pending(written))]

    def member(self, written: bytes) -> bytes:
        """Return the member: what stands before the stop string, or if that is none, all up to its end."""
        begin, end = self.first(written) or (len(written), len(written))
        return written[:begin] if begin >= 0 and self.members.accepts(written[:begin]) else written[:end]

    @property
    def open(self) -> bool:
        """True if the members are all texts, which the length limit ends, too."""
        return self.members is ANYTHING

    @cached_property
    def machine(self) -> ByteAutomaton | None:
        """The automaton of the texts, not trimmed, :data:`SETTLED` behind a stop string; ``None`` where it is not one or large."""
        if not isinstance(self.members, ByteAutomaton):
            return None
        byte_class, _ = joint_classes([self.members.byte_class, self.byte_class])
        try:
            return ByteAutomaton.of_machine(self, byte_class, below(MOST_STATES))
        except TooLarge:
            return None

    def first(self, text: bytes) -> tuple[int, int] | None:
        """Return the begin and the end of the first stop string in a text; ``None`` for none."""
        whole, least = self.before + text, len(self.before)
        found = [(at + len(one) - least, at - least) for one in self.strings if (at := whole.find(one)) >= 0]
        return min(found)[::-1] if found else None

    def state(self, text: bytes) -> int:
        """Return the node of the longest end of a text that begins a stop string."""
        node = 0
        for byte in (self.before + text)[-int(self._words.depth[-1]) :]:
            node = int(self._words.after[node, self._words.symbol_class[byte]])
        return node

    def pending(self, text: bytes) -> int:
        """Return the length of the longest end of a text that begins a stop string."""
        return int(self._words.depth[self.state(text)])

    def cuts(self, node: int, vocabulary: Vocabulary) -> NDArray[np.int64]:
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

    def ended(
        self, written: bytes, tokens: Sequence[bytes], cuts: Callable[..., NDArray[np.int64]]
    ) -> Iterator[tuple[bytes, NDArray[np.int64]]]:
        """Yield the members that some tokens end behind ``written``, and the places of the tokens; ``cuts`` keeps their
        :meth:`cuts`.
        """
        begin = cuts(self.state(written), self.cuts)[0]
        apart = begin > 0
        for at in np.unique(begin[~apart]).tolist():
            places, member = np.flatnonzero(begin == at), written[: len(written) + at]
            if len(written) + at >= 0 and self.members.accepts(member):
                yield member, places
            else:
                apart[places] = True
        for place in np.flatnonzero(apart).tolist():
            yield self.member(written + tokens[place]), np.array([place])


Scope: TypeAlias = Literal["answer", "joint"]


@final
class ThoughtTexts(StoppedTexts):
    """Free text that a marker ``end`` stops, and any bytes behind it, which a place tells. No special token stands in it, and none
    of some strings, nor in it and a marker ``begin`` in front of it. None of them may reach into ``end``.
    """

    settled = None

    def __init__(self, begin: bytes, end: bytes, strings: Sequence[bytes] = ()) -> None:
        words = AhoCorasick.build([*strings, MARK], 256)
        after = np.where(words.match[words.after] > 0, DEAD, words.after + 1)
        targets = np.concatenate([np.zeros_like(after[:1]), after])
        text = ByteAutomaton(targets, words.symbol_class.astype(np.uint8), 1, np.arange(len(targets)) > DEAD)
        super().__init__(text, [end])
        self.opened = self.start
        if not begin.startswith(MARK):
            self.start = self.opened._replace(member=text.read(begin) or DEAD)

    def steps(self, place: StopPlace, bytes: Sequence[int]) -> list[StopPlace | None]:
        if not self.ends(place):
            return super().steps(place, bytes)
        return [place._replace(member=(place.member or b"") + byte.to_bytes()) for byte in bytes]

    def ends(self, place: StopPlace) -> bool:
        return place.node == STOPPED.node

    def closed(self, place: StopPlace) -> StopPlace:
        """Return the place where the text goes on with the marker alone: one that has begun, or that begins here."""
        return StopPlace(None, place.node, place.begun | self._is_member(place))


@final
@dataclass(frozen=True, eq=False)
class Thoughts:
    """The thoughts of a guide, as the match of its texts, of which the members are those of the answers behind them.

    ``texts``: The texts of thoughts.
    ``begin``, ``opening``: The marker in front of a thought, and what a thought may begin with that is not a part of it.
    ``max_tokens``, ``scope``: The most tokens of one, and what the distribution is of.
    ``stops``: The match of the answers, where strings stop them.
    """

    texts: ThoughtTexts
    begin: bytes
    opening: bytes
    max_tokens: int
    scope: Scope
    stops: StoppedTexts | None = None

    def split(self, written: bytes) -> tuple[int, int, int]:
        """Return the begin and the end of the thought in a text, as far as it is certain, and the begin of its answer: -1 for not
        yet.
        """
        begin = 0
        for marker in (self.begin, self.opening):
            if len(written) - begin < len(marker) and marker.startswith(written[begin:]):
                return len(written), len(written), -1
            begin += len(marker) if written.startswith(marker, begin) else 0
        if (found := self.texts.first(written[begin:])) is not None:
            return begin, begin + found[0], begin + found[1]
        return begin, len(written) - self.texts.pending(written[begin:]), -1

    def read(self, spelled: Sequence[bytes]) -> tuple[int, bytes, bool] | None:
        """Return the number of the first tokens, as they are spelled, that write a thought, its text without markers, and True if
        it came to its limit, where the marker alone was allowed; ``None`` where it has no end.
        """
        written, ends = b"".join(spelled), list(accumulate(map(len, spelled)))
        begin, end, behind = self.split(written)
        tokens = bisect_left(ends, behind) + 1
        opened = bisect_left(ends, len(self.begin)) + 1 if self.begin and written.startswith(self.begin) else 0
        return None if behind < 0 else (tokens, written[begin:end], tokens - opened > self.max_tokens)

    def _answer(self, written: bytes) -> bytes | None:
        behind = self.split(written)[2]
        return None if behind < 0 else written[behind:]

    def text(self, written: bytes, *, ended: bool = True) -> bytes:
        """Return the text that is shown of the answer, as :meth:`StoppedTexts.text`."""
        answer = self._answer(written) or b""
        return answer if self.stops is None else self.stops.text(answer, ended=ended)

    def member(self, written: bytes) -> bytes:
        """Return the answer, or the member in it."""
        answer = self._answer(written) or b""
        return answer if self.stops is None else self.stops.member(answer)

    def ended(
        self, written: bytes, tokens: Sequence[bytes], cuts: Callable[..., NDArray[np.int64]]
    ) -> Iterator[tuple[bytes, NDArray[np.int64]]]:
        """See :meth:`StoppedTexts.ended`; a thought and its answer are ended by few tokens."""
        if (answer := self._answer(written)) is not None and self.stops is not None:
            return self.stops.ended(answer, tokens, cuts)
        return ((self.member(written + token), np.array([place])) for place, token in enumerate(tokens))
