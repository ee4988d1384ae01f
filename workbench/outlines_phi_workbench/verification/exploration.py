"""A guide and an oracle side by side, on all words of tokens or those up to a length; few tokens stand for a whole vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from outlines_phi.guides.guide import DEAD, DONE, UNREACHABLE, Guide, Row
from outlines_phi.vocabulary.classes import EOS, NEVER, Partition
from outlines_phi.vocabulary.vocabulary import Vocabulary

from .oracle import GrammarOracle, JSONOracle, Oracle
from .runs import FAILED


class Collapse(NamedTuple):
    """Tokens that no state tells apart, one of each kind."""

    tokens: NDArray[np.int64]  # ``int64[R]``: the representatives, the shortest of their kinds, short ones first
    texts: tuple[bytes, ...]  # their texts
    # ``int64[V]``: the place among ``tokens`` of the one that stands for each id; -1 for ids that no state allows.
    stands_for: NDArray[np.int64]

    @classmethod
    def of(cls, vocabulary: Vocabulary, partitions: Iterable[Partition]) -> Collapse:
        """Return one token for each combination of classes; tokens that are never in a class but :data:`NEVER` have none.

        Nothing is lost where a state's classes are tokens that lead to the same from it: masks are equal on equal rows.
        """
        kind = np.zeros(len(vocabulary), dtype=np.int64)
        useful = np.zeros(len(vocabulary), dtype=bool)
        for partition in partitions:
            kind = np.unique(kind * partition.size + partition.class_of, return_inverse=True)[1].reshape(-1)
            useful |= partition.class_of != NEVER
        lengths = np.fromiter(map(len, vocabulary.tokens), np.int64)
        useful &= lengths > 0
        order = np.lexsort([np.arange(len(vocabulary)), lengths])
        order = order[useful[order]]
        first = order[np.sort(np.unique(kind[order], return_index=True)[1])]
        place = np.full(int(kind.max(initial=0)) + 1, -1)
        place[kind[first]] = np.arange(len(first))
        texts = tuple(vocabulary.tokens[token] for token in first.tolist())
        return cls(first, texts, np.where(useful, place[kind], -1))

    def betrayed(self, of_token: Partition) -> NDArray[np.int64]:
        """Return the tokens that are in another class than what stands for them, or in one although nothing does."""
        class_of, stood_for = of_token.class_of, self.stands_for >= 0
        same = class_of == class_of[self.tokens[self.stands_for]] if len(self.tokens) else ~stood_for
        return np.flatnonzero(np.where(stood_for, ~same, (class_of != NEVER) & (class_of != EOS)))


Word = tuple[int, ...]

Progress = Callable[[int, int], None]  # Is told how many tokens words have, and how many nodes were found
TELLING = 64  # After how many nodes progress is told

FOLLOWED = 300_000
"""From the nodes of how many tokens a way to the end is followed: of as many as there are not more nodes than this."""

LONGEST = 4096  # No shortest way to the end that is followed has more tokens


class Pair(NamedTuple):
    """The states of guide and oracle after a word of tokens; words that lead both to the same are one node."""

    word: Word
    state: int
    point: Any


class _Counted(NamedTuple):
    """Tokens that are counted, and those that may be, ``bool[R]`` each."""

    surely: NDArray[np.bool_]
    possibly: NDArray[np.bool_]


@dataclass
class LawTally:
    """The number of trials of a law, and the first word that breaks it, which is a shortest one."""

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
    """A guide and an oracle side by side on all words of at most ``complete`` tokens; of any number where it is ``closed``.

    Every law is tried on every *node*, a pair of states, and on every token after the nodes of less than ``complete`` tokens, which
    covers all words of so many tokens (grammar-theory.md, section 8.2). Single steps are compared with rows wherever they lead to a
    new node. It ends where no new node is left (``closed``), at ``depth`` tokens, or before the level that would make more than
    ``most`` nodes. ``endings`` has a member for each node of at most ``followed`` tokens, a word that is near the end from there.
    """

    guide: Guide
    oracle: Oracle
    collapse: Collapse
    depth: int | None = None
    most: int | None = None
    complete: int = 0
    closed: bool = False
    followed: int = 0
    nodes: list[Pair] = field(default_factory=list)
    laws: dict[str, LawTally] = field(default_factory=dict)
    endings: list[Word] = field(default_factory=list)
    _next: dict[int, tuple[int, int]] = field(default_factory=dict, repr=False)
    _stands: dict[Partition, int | None] = field(default_factory=dict, repr=False)
    _counted_after: dict[int, _Counted] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        guide: Guide,
        oracle: Oracle,
        collapse: Collapse,
        *,
        depth: int | None = None,
        most: int | None = None,
        progress: Progress | None = None,
    ) -> Exploration:
        """Explore; ``progress`` is told how long words are, and how many nodes were found."""
        found = cls(guide, oracle, collapse, depth, most)
        tell = progress or (lambda length, nodes: None)
        level: list[Pair] | None = [Pair((), guide.start, oracle.start)]
        seen = {(guide.start, oracle.start)}
        found.nodes.append(Pair((), guide.start, oracle.start))
        while level and (depth is None or found.complete < depth):
            level = found._level_after(level, seen, tell)
            if level is not None:
                found.nodes += level
                found.complete += 1
        found.closed = level == []
        for node in found.nodes:
            found._end(node)
        sizes = np.cumsum(np.bincount([len(node.word) for node in found.nodes]))
        found.followed = max(int((sizes <= FOLLOWED).sum()) - 1, 0)
        for node in found.nodes[: sizes[found.followed]]:
            found._follow(node)
        return found

    def _level_after(self, level: list[Pair], seen: set[tuple[int, Any]], tell: Progress) -> list[Pair] | None:
        """Return the nodes that a token after those of ``level`` leads to and that are new; ``None`` if there would be too many."""
        following: list[Pair] = []
        for place, node in enumerate(level):
            if place % TELLING == 0:
                tell(self.complete + 1, len(seen))
            for child in self._visit(node):
                if (child.state, child.point) not in seen:
                    seen.add((child.state, child.point))
                    following.append(child)
                    self._steps(node, child.word[-1], child.state)
            if self.most is not None and len(seen) > self.most:
                return None
        return following

    @property
    def inner(self) -> list[Pair]:
        """The nodes after which every token was tried."""
        return [node for node in self.nodes if self.closed or len(node.word) < self.complete]

    def tally(self, law: str) -> LawTally:
        """Return the cases of a law."""
        return self.laws.setdefault(law, LawTally())

    def _visit(self, node: Pair) -> Iterator[Pair]:
        """Try the laws of the tokens after a node, and yield what both allow, one node for each outcome."""
        guide, tokens = self.guide, self.collapse.tokens
        row = guide.row(node.state)
        targets = row.targets[row.partition.class_of[tokens]]
        found = self.oracle.outcomes(node.point, self.collapse.texts)
        expected, survives = found.continues[found.of_text], found.survives[found.of_text]
        allowed = targets != DEAD
        self._compare("sound", allowed & ~expected, allowed, node, "is allowed, but no member begins so")
        self._compare("complete", expected & ~allowed, expected, node, "is forbidden, but a member begins so")
        self._compare("survives", allowed & ~survives, allowed, node, "is allowed, but a terminal is out of place")
        ends = bool(row.targets[EOS] == DONE)
        self.tally("live").count(ends or bool(allowed.any()), node.word, "is allowed, but nothing is after it")
        self._rank(node, row, targets)
        self._stands_for(node, row)
        both = np.flatnonzero(allowed & expected)
        _, first = np.unique(
            targets[both].astype(np.int64) * len(found.continues) + found.of_text[both], return_index=True
        )
        for index in both[np.sort(first)].tolist():
            yield Pair((*node.word, int(tokens[index])), int(targets[index]), found.points[found.of_text[index]])
        self._steps(node, guide.vocabulary.eos_ids[0], DONE if ends else DEAD)

    def _rank(self, node: Pair, row: Row, targets: NDArray[np.integer]) -> None:
        """Compare the distances that tokens are ranked by with what is promised where they lead, and before."""
        distances, promised = self.guide.distances_after(node.state), self.guide.min_tokens(node.state)
        ends = row.targets[EOS] == DONE
        ranked, allowed = distances[row.partition.class_of[self.collapse.tokens]], targets != DEAD
        used, which = np.unique(targets, return_inverse=True)
        wrong = (ranked != self.guide.min_tokens_of(used)[which.reshape(-1)]) | (allowed != (ranked < UNREACHABLE))
        self._compare("ranked", wrong, wrong | True, node, "is ranked by another length than is promised after it")
        right_end = distances[EOS] == (0 if ends else UNREACHABLE)
        word = (*node.word, self.guide.vocabulary.eos_ids[0])
        self.tally("ranked").count(bool(right_end), word, "is ranked by another length than none")
        self.tally("fewest").count(not ends or promised == 1, node.word, "may end, and promises more")
        nearer, nearest = allowed & (ranked + 1 < promised), allowed & (ranked + 1 == promised)
        if nearer.any() or not (ends or (nearest & self._is_byte).any()):
            nearer, nearest = nearer & self._counted(node).surely, nearest & self._counted(node).possibly
        self._compare("fewest", nearer, allowed, node, "is nearer to the end than was promised")
        self.tally("fewest").count(
            ends or bool(nearest.any()), node.word, "promises less than one more than after a token"
        )

    def _steps(self, node: Pair, token: int, target: int) -> None:
        """Compare a single step with the row."""
        holds = self.guide.advance(node.state, token) == target
        self.tally("one relation").count(holds, (*node.word, token), "leads elsewhere than its row says")

    def _compare(self, law: str, wrong: NDArray[np.bool_], cases: NDArray[np.bool_], node: Pair, remark: str) -> None:
        tally = self.tally(law)
        tally.cases += int(cases.sum())
        if wrong.any() and (tally.witness is None or len(node.word) + 1 < len(tally.witness)):
            tally.witness, tally.remark = (*node.word, int(self.collapse.tokens[wrong.argmax()])), remark

    def _stands_for(self, node: Pair, row: Row) -> None:
        """Check that tokens and their representatives share a class, and that tokens without one are never allowed."""
        if row.partition not in self._stands:
            wrong = self.collapse.betrayed(row.partition)
            self._stands[row.partition] = int(wrong[0]) if len(wrong) else None
        token = self._stands[row.partition]
        self.tally("stands for").count(
            token is None and row.targets[NEVER] == DEAD, (*node.word, token or 0), "is not what stands for it"
        )

    def _end(self, node: Pair) -> None:
        """Compare the end of a node's text with the oracle."""
        end = self.guide.vocabulary.eos_ids[0]
        ends, may_end = self.guide.advance(node.state, end) == DONE, self.oracle.ends(node.point)
        self.tally("end sound").count(may_end or not ends, (*node.word, end), "may end, but is no member")
        self.tally("end complete").count(ends or not may_end, (*node.word, end), "is a member, but may not end")

    def _follow(self, node: Pair) -> None:
        """Write a shortest completion: it ends in a member, in as many tokens as was promised."""
        guide, vocabulary = self.guide, self.guide.vocabulary
        promised = guide.min_tokens(node.state)
        word, state = node.word, node.state
        token, target = self._nearest(state)
        lowers = target != DEAD and guide.min_tokens(target) < promised
        self.tally("lowers").count(lowers, (*word, token), "leads nearest to the end, and does not come nearer")
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

    @cached_property
    def _is_byte(self) -> NDArray[np.bool_]:
        """``bool[R]``: the representatives that are single bytes."""
        return np.fromiter(map(len, self.collapse.texts), np.int64, len(self.collapse.texts)) == 1

    def _counted(self, node: Pair) -> _Counted:
        """Return the tokens that are counted in the fewest to the end.

        Of a grammar, those that end no lexeme that counts, or one of a terminal of which the text before them has a complete one;
        where terminals are held back, others may be. JSON promises as many as one shortest text has, which are not the fewest.
        """
        oracle, texts, reading = self.oracle, self.collapse.texts, self.oracle.reading(node.point)
        if not isinstance(oracle, GrammarOracle):
            return _Counted(np.full(len(texts), not isinstance(oracle, JSONOracle)), np.ones(len(texts), dtype=bool))
        if reading not in self._counted_after:
            effects, words, held = oracle.runs(texts).of(reading), oracle.runs(texts).words, oracle.lexing.held
            free = np.array([state != FAILED and not held(state) for state in effects.target.tolist()], dtype=bool)
            own, complete = [words[word] for word in effects.word.tolist()], oracle.end(reading)
            short = np.array([not word or (len(word) == 1 and word == complete) for word in own], dtype=bool)
            surely = self._is_byte | (short & free & (not held(reading)))
            self._counted_after[reading] = _Counted(surely, surely | ~free | bool(held(reading)))
        return self._counted_after[reading]

    def _nearest(self, state: int) -> tuple[int, int]:
        """Return a token that leads nearest to the end, and where; DEAD if none does."""
        if state not in self._next:
            distance = self.guide.distances_after(state)
            nearest, target = int(distance.argmin()), DEAD
            token = int((self.guide.partition_of(state).class_of == nearest).argmax())
            if distance[nearest] < UNREACHABLE:
                target = self.guide.advance(state, token)
            self._next[state] = token, target
        return self._next[state]
