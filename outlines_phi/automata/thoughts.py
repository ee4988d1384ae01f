"""Thoughts before answers: the machine of their texts, and the reader of those that token sequences begin with."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeAlias, final

from ..vocabulary.special_tokens import MARK
from ..vocabulary.vocabulary import Vocabulary
from .byte_machine import ByteMachine

Scope: TypeAlias = Literal["answer", "joint"]

BEGIN, TEXT, LIMIT, AFTER = range(4)
"""The kinds of places of a thought: in the marker before it, in its text, at its limit, behind the marker at its end."""

ThoughtPlace: TypeAlias = tuple[Any, ...]
"""A kind and the number of bytes of the marker that the text ends in; at the limit also the bytes since, behind the marker the
bytes since.
"""


@final
class ThoughtMachine(ByteMachine[ThoughtPlace]):
    """Any bytes up to a marker ``end``, after a marker ``begin``, and any bytes behind it: the automaton of Knuth, Morris, Pratt.

    From a place at the limit, a thought is as long as it may be: the marker alone may follow, from where the text has begun it or
    from here.
    """

    def __init__(self, end: bytes, begin: bytes) -> None:
        self.end, self.begin = end, begin
        self.start = (BEGIN, 0) if begin else (TEXT, 0)
        self._special = end.startswith(MARK)  # a special token is not begun by text
        self._border = [-1] * len(end)  # the longest proper border of each beginning of the marker
        for n in range(1, 0 if self._special else len(end)):
            at = self._border[n - 1]
            while at >= 0 and end[at] != end[n - 1]:
                at = self._border[at]
            self._border[n] = at + 1

    def step(self, place: ThoughtPlace, byte: int) -> ThoughtPlace | None:
        kind, at, *since = place
        if kind == AFTER:
            return AFTER, at + bytes([byte])
        if kind == BEGIN:
            goes_on = byte == self.begin[at]
            return ((TEXT, 0) if at + 1 == len(self.begin) else (BEGIN, at + 1)) if goes_on else None
        least, read = since[0] if since else 0, at
        while read >= least and self.end[read] != byte:
            read = self._border[read]
        if read >= least:
            return (AFTER, b"") if read + 1 == len(self.end) else (kind, read + 1, *(one + 1 for one in since))
        is_text = kind == TEXT and byte != MARK[0] and not (self._special and at)
        return (TEXT, 0) if is_text else None

    def ends(self, place: ThoughtPlace) -> bool:
        return place[0] == AFTER

    def is_live(self, place: ThoughtPlace) -> bool:
        return True

    def size(self, place: ThoughtPlace) -> int:
        kind, at = place[:2]
        return 0 if kind == AFTER else len(self.end) - at + (len(self.begin) if kind == BEGIN else 0)

    def toward_end(self, place: ThoughtPlace) -> int:
        return (self.begin if place[0] == BEGIN else self.end)[place[1]]

    def shortest(self, place: ThoughtPlace | None = None) -> bytes:
        return self.completed(self.start if place is None else place)


class WrittenThought(NamedTuple):
    """The first ``tokens`` of a text write a thought, ``text``, with its markers, and then ``rest``, of the answer.

    ``forced``: True if it came to its limit, where the marker alone was allowed.
    """

    tokens: int
    text: bytes
    rest: bytes
    forced: bool


@final
@dataclass(frozen=True)
class Thoughts:
    """The thoughts of a guide: the bytes of their markers, their most tokens, and the scope of the distribution.

    ``opening``: What a thought may begin with that is not a part of it.
    """

    begin: bytes
    end: bytes
    opening: bytes
    max_tokens: int
    scope: Scope

    def read(self, vocabulary: Vocabulary, tokens: Iterable[int]) -> WrittenThought | None:
        """Return the thought that a text begins with; ``None`` where it has no end."""
        spelled = [vocabulary.tokens[token] for token in tokens]
        written = b"".join(spelled)
        begin = self.beginning(written) or 0
        end = written.find(self.end, begin)
        if end < 0:
            return None
        ends = list(accumulate(map(len, spelled)))
        behind = bisect_left(ends, end + len(self.end)) + 1
        opened = bisect_left(ends, len(self.begin)) + 1 if self.begin and written.startswith(self.begin) else 0
        return WrittenThought(
            behind, written[begin:end], written[end + len(self.end) :], behind - opened > self.max_tokens
        )

    def beginning(self, written: bytes) -> int | None:
        """Return the place behind the marker that a text begins with; ``None`` while it may become one."""
        at = 0
        for marker in (self.begin, self.opening):
            if len(written) - at < len(marker) and marker.startswith(written[at:]):
                return None
            at += len(marker) if written.startswith(marker, at) else 0
        return at

    def pending(self, written: bytes) -> int:
        """Return the number of last bytes that may begin the marker at the end."""
        most = min(len(written), len(self.end) - 1)
        return next((n for n in range(most, 0, -1) if self.end.startswith(written[-n:])), 0)
