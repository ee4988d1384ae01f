"""A guide and an oracle side by side, on all words of tokens up to a length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...partition import EOS
from ..guide import DEAD, DONE, UNREACHABLE, Guide
from .collapse import Collapse
from .oracle import Oracle

Word = tuple[int, ...]

LONGEST = 4096
"""No shortest way to the end that is followed has more tokens."""


class Node(NamedTuple):
    """Where a word of tokens has led the guide and the oracle; words that lead both to the same are one node."""

    word: Word
    state: int
    point: Any


@dataclass
class Tally:
    """How often a law was tried, and the first word that breaks it, which is a shortest one."""

    cases: int = 0
    witness: Word | None = None
    remark: str = ""

    def count(self, holds: bool, word: Word, remark: str = "") -> None:
        """Count one case; ``remark`` says what is wrong with ``word`` if the law does not hold."""
        self.cases += 1
        if not holds and (self.witness is None or len(word) < len(self.witness)):
            self.witness, self.remark = word, remark


@final
@dataclass
class Exploration:
    """What was found on the words of at most ``complete`` tokens, and on a sample of those of at most ``depth``.

    Words grow by tokens that both allow; each law is tried on every node, and on every token after it. Beyond ``complete`` levels
    there were more nodes than ``width``; an even sample of them was followed. Where no new node is left, ``closed`` says that all
    words of any length are covered. ``endings`` has a member for every node, a word that
    is near the end from there.
    """

    guide: Guide
    oracle: Oracle
    collapse: Collapse
    depth: int
    width: int
    complete: int = 0
    closed: bool = False
    nodes: list[Node] = field(default_factory=list)
    laws: dict[str, Tally] = field(default_factory=dict)
    endings: list[Word] = field(default_factory=list)
    _next: dict[int, tuple[int, int]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        guide: Guide,
        oracle: Oracle,
        collapse: Collapse,
        *,
        depth: int,
        width: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> Exploration:
        """Explore; ``progress`` is told the level and how many nodes it has."""
        found = cls(guide, oracle, collapse, depth, width)
        level = [Node((), guide.start, oracle.start)]
        seen = {(guide.start, oracle.start)}
        sampled = False
        for length in range(depth + 1):
            if progress is not None:
                progress(length, len(level))
            found.nodes += level
            following: list[Node] = []
            for node in level:
                for child in found._visit(node):
                    if (child.state, child.point) not in seen:
                        seen.add((child.state, child.point))
                        following.append(child)
            if not sampled:
                found.complete = length + 1
            if not following:
                found.closed = not sampled
                break
            if len(following) > width:
                sampled = True
                following = [following[i] for i in np.linspace(0, len(following) - 1, width).round().astype(int)]
            level = following
        found.complete = depth if found.closed else min(found.complete, depth)
        for node in found.nodes:
            found._follow(node)
        return found

    def tally(self, law: str) -> Tally:
        """Return the cases of a law."""
        return self.laws.setdefault(law, Tally())

    def _visit(self, node: Node) -> Iterator[Node]:
        """Try the laws of one node, and yield what both allow after it, one for each outcome."""
        guide, oracle, tokens = self.guide, self.oracle, self.collapse.tokens
        row = guide.row(node.state)
        targets = row.targets[row.partition.class_of[tokens]]
        expected, survives = np.zeros((2, len(tokens)), dtype=bool)
        points: list[Any] = [None] * len(tokens)
        for point, members in oracle.advance_all(node.point, self.collapse.texts):
            if point is not None:
                expected[members], survives[members] = oracle.continues(point), oracle.survives(point)
                for index in members:
                    points[index] = point
        allowed = targets != DEAD
        self._compare("sound", allowed & ~expected, allowed, node, "is allowed, but no member begins so")
        self._compare("complete", expected & ~allowed, expected, node, "is forbidden, but a member begins so")
        self._compare("survives", allowed & ~survives, allowed, node, "is allowed, but a terminal is out of place")
        ends, may_end = row.targets[EOS] == DONE, oracle.ends(node.point)
        eos = (guide.vocabulary.eos_ids[0],)
        self.tally("end sound").count(may_end or not ends, node.word + eos, "may end, but is no member")
        self.tally("end complete").count(bool(ends) or not may_end, node.word + eos, "is a member, but may not end")
        self.tally("live").count(bool(ends or allowed.any()), node.word, "is allowed, but nothing is after it")
        outcomes: dict[tuple[int, Any], int] = {}
        for index in np.flatnonzero(allowed & expected).tolist():
            outcomes.setdefault((int(targets[index]), points[index]), index)
        for (target, point), index in outcomes.items():
            token = int(tokens[index])
            self.tally("one relation").count(
                guide.advance(node.state, token) == target,
                (*node.word, token),
                "has another successor than its row says",
            )
            yield Node((*node.word, token), target, point)

    def _compare(self, law: str, wrong: NDArray[np.bool_], cases: NDArray[np.bool_], node: Node, remark: str) -> None:
        tally = self.tally(law)
        tally.cases += int(cases.sum())
        if wrong.any() and (tally.witness is None or len(node.word) + 1 < len(tally.witness)):
            tally.witness, tally.remark = (*node.word, int(self.collapse.tokens[wrong.argmax()])), remark

    def _follow(self, node: Node) -> None:
        """Write what is nearest to the end until it is there: it is a member, in as many tokens as was promised."""
        guide, vocabulary = self.guide, self.guide.vocabulary
        promised = guide.min_tokens(node.state)
        word, state = node.word, node.state
        while state != DONE and len(word) - len(node.word) < min(promised, LONGEST):
            token, state = self._nearest(state)
            if state == DEAD:
                break
            word = (*word, token)
        self.tally("productive").count(
            state == DONE, word, f"does not end within the {promised} tokens that were promised"
        )
        text = vocabulary.decode(word)
        self.tally("member").count(state != DONE or self.oracle.is_member(text), word, "ends, but is no member")
        self.endings.append(word)

    def _nearest(self, state: int) -> tuple[int, int]:
        """Return a token that leads nearest to the end, and where; DEAD if none does."""
        if state not in self._next:
            row = self.guide.row(state)
            distance = np.full(len(row.targets), UNREACHABLE, dtype=np.int64)
            live = row.targets != DEAD
            distance[live] = self.guide.min_tokens_of(row.targets[live])
            nearest = int(distance.argmin())
            target = int(row.targets[nearest]) if distance[nearest] < UNREACHABLE else DEAD
            self._next[state] = int((row.partition.class_of == nearest).argmax()), target
        return self._next[state]
