"""A guide beside an independent oracle of its language, on all words of tokens or those up to a length, and the verdicts on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from outlines_phi import Vocabulary
from outlines_phi.guides import CFGGuide, FSMGuide, Guide, JSONGuide
from outlines_phi.guides.grammar.grammar import Grammar
from outlines_phi.guides.guide import DEAD, DONE, UNREACHABLE, Row
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.vocabulary.vocabulary import EOS, NEVER, Partition

from .lark_reading import SecondReading, read_again
from .lexemes import BYTES, Lexemes
from .oracle import FAILED, GrammarOracle, Oracle

Word = tuple[int, ...]

LONGEST = 4096  # No shortest way to the end that is followed has more tokens


class Pair(NamedTuple):
    """A state of the guide beside a point of the oracle, with a word of tokens that leads both there."""

    word: Word
    state: int
    point: int


@dataclass
class LawTally:
    """The number of trials of a law, and the first word that breaks it, which is a shortest one."""

    cases: int = 0
    witness: Word | None = None
    remark: str = ""

    def count(self, holds: bool, word: Word, remark: str = "", cases: int = 1) -> None:
        """Count cases; ``remark`` says what is wrong with ``word`` if the law does not hold."""
        self.cases += cases
        if not holds and (self.witness is None or len(word) < len(self.witness)):
            self.witness, self.remark = word, remark


@final
class Exploration:
    """A guide and an oracle side by side on all words of at most ``complete`` tokens; of any number where it is ``closed``.

    Every law is tried on every *node*, and on a token of every class after the nodes of less than ``complete`` tokens, which covers
    all words of so many tokens (grammar-theory.md, section 8.2). It ends where no new node is left (``closed``), at ``depth``
    tokens, or before the level that would make more than ``most`` nodes. ``endings`` has a member for each node, a word that is
    near the end from there.
    """

    def __init__(self, guide: Guide, oracle: Oracle, *, depth: int | None = None, most: int | None = None) -> None:
        self.guide, self.oracle, self.complete = guide, oracle, 0
        self.laws: dict[str, LawTally] = {}
        self.endings: list[Word] = []
        self._most, self._lengths = most, np.array(list(map(len, guide.vocabulary.tokens)))
        self._next: dict[int, tuple[int, int]] = {}
        self._tokens: dict[int, tuple[Partition, NDArray[np.int64]]] = {}
        start = Pair((), guide.start, oracle.start)
        self.nodes = [start]
        level: list[Pair] | None = [start]
        seen = {(start.state, start.point)}
        while level and (depth is None or self.complete < depth):
            level = self._level_after(level, seen)
            if level is not None:
                self.nodes += level
                self.complete += 1
        self.closed = level == []
        for node in self.nodes:
            self._end(node)
            self._follow(node)

    @property
    def inner(self) -> list[Pair]:
        """The nodes after which every token was tried."""
        return [node for node in self.nodes if self.closed or len(node.word) < self.complete]

    def tally(self, law: str) -> LawTally:
        """Return the cases of a law."""
        return self.laws.setdefault(law, LawTally())

    def tokens(self, partition: Partition) -> NDArray[np.int64]:
        """Return ``int64[R]``: a shortest token of each class of a row, without :data:`NEVER` and the end."""
        if id(partition) not in self._tokens:
            kinds = partition.class_of
            order = np.argsort(self._lengths, kind="stable")
            order = order[(self._lengths[order] > 0) & (kinds[order] != NEVER) & (kinds[order] != EOS)]
            shortest = order[np.unique(kinds[order], return_index=True)[1]]
            self._tokens[id(partition)] = partition, np.sort(shortest)
        return self._tokens[id(partition)][1]

    def read(self, node: Pair, tokens: NDArray[np.int64]) -> list[int]:
        """Return the oracle's point after each of ``tokens``."""
        texts = self.guide.vocabulary.tokens
        return [self.oracle.advance(node.point, texts[token]) for token in tokens.tolist()]

    def _level_after(self, level: list[Pair], seen: set[tuple[int, int]]) -> list[Pair] | None:
        """Return the nodes that a token after those of ``level`` leads to and that are new; ``None`` if there would be too many."""
        following: list[Pair] = []
        for node in level:
            for child in self._visit(node):
                if (child.state, child.point) not in seen:
                    seen.add((child.state, child.point))
                    following.append(child)
            if self._most is not None and len(seen) > self._most:
                return None
        return following

    def _visit(self, node: Pair) -> list[Pair]:
        """Try the laws of the tokens after a node; return where both go by those that both allow."""
        row = self.guide.row(node.state)
        tokens = self.tokens(row.partition)
        targets = row.targets[row.partition.class_of[tokens]]
        points = self.read(node, tokens)
        expected = np.fromiter(map(self.oracle.continues, points), bool, len(points))
        allowed = targets != DEAD
        self._compare("sound", allowed & ~expected, node, tokens, "is allowed, but no member begins so")
        self._compare("complete", expected & ~allowed, node, tokens, "is forbidden, but a member begins so")
        ends = bool(row.targets[EOS] == DONE)
        self.tally("live").count(ends or bool(allowed.any()), node.word, "is allowed, but nothing is after it")
        self._rank(node, row, tokens, targets)
        found = dict[tuple[int, int], Pair]()
        for index in np.flatnonzero(allowed & expected).tolist():
            token, target, point = int(tokens[index]), int(targets[index]), points[index]
            self._step(node, token, target)
            found.setdefault((target, point), Pair((*node.word, token), target, point))
        self._step(node, self.guide.vocabulary.eos_ids[0], DONE if ends else DEAD)
        return list(found.values())

    def _rank(self, node: Pair, row: Row, tokens: NDArray[np.int64], targets: NDArray[np.integer]) -> None:
        """Compare the distances that tokens are ranked by with what is promised where they lead, and before.

        No token is nearer to the end than promised: of a finite automaton none at all, of a grammar none of one byte; a schema
        promises the tokens of one shortest text, which are not always the fewest.
        """
        distances, promised = self.guide.distances_after(node.state), self.guide.min_tokens(node.state)
        ranked, allowed, ends = distances[row.partition.class_of[tokens]], targets != DEAD, row.targets[EOS] == DONE
        wrong = (ranked != self.guide.min_tokens_of(targets)) | (allowed != (ranked < UNREACHABLE))
        self._compare("ranked", wrong, node, tokens, "is ranked by another length than is promised after it")
        right_end = distances[EOS] == (0 if ends else UNREACHABLE)
        self.tally("ranked").count(bool(right_end), node.word, "ranks the end by another length than none")
        self.tally("fewest").count(not ends or promised == 1, node.word, "may end, and promises more")
        one_byte = self._lengths[tokens] == 1
        if not isinstance(self.oracle.machine, Machine):
            nearer = allowed & (one_byte | isinstance(self.oracle.machine, Lexemes)) & (ranked + 1 < promised)
            self._compare("fewest", nearer, node, tokens, "is nearer to the end than was promised")
            lowest = ends or bool((allowed & (ranked + 1 == promised)).any())
            self.tally("fewest").count(lowest, node.word, "promises less than one more than after a token")

    def _step(self, node: Pair, token: int, target: int) -> None:
        """Compare a single step with the target of the row."""
        holds = self.guide.advance(node.state, token) == target
        self.tally("one relation").count(holds, (*node.word, token), "leads elsewhere than its row says")

    def _compare(self, law: str, wrong: NDArray[np.bool_], node: Pair, tokens: NDArray[np.int64], remark: str) -> None:
        word = (*node.word, int(tokens[wrong.argmax()])) if wrong.any() else node.word
        self.tally(law).count(not wrong.any(), word, remark, len(tokens))

    def _end(self, node: Pair) -> None:
        """Compare the end of a node's text, allowed or not, with the oracle."""
        end = self.guide.vocabulary.eos_ids[0]
        ends, may_end = self.guide.advance(node.state, end) == DONE, self.oracle.ends(node.point)
        remark = "may end, but is no member" if ends else "is a member, but may not end"
        self.tally("end").count(ends == may_end, (*node.word, end), remark)

    def _follow(self, node: Pair) -> None:
        """Write the tokens nearest to the end until it is there: the text is a member, in as many tokens as was promised."""
        guide, promised, word, state = self.guide, self.guide.min_tokens(node.state), node.word, node.state
        while state != DONE and len(word) - len(node.word) < min(promised, LONGEST):
            token, target = self._nearest(state)
            word = (*word, token)
            if state == node.state:
                lowers = target != DEAD and guide.min_tokens(target) < promised
                self.tally("lowers").count(lowers, word, "leads nearest to the end, and does not come nearer")
            if target == DEAD:
                break
            state = target
        self.tally("productive").count(
            state == DONE and promised < UNREACHABLE,
            word,
            f"does not end within the {promised} tokens that were promised",
        )
        point = self.oracle.advance(node.point, guide.vocabulary.decode(word[len(node.word) :]))
        is_member = state != DONE or (point != FAILED and self.oracle.ends(point))
        self.tally("member").count(is_member, word, "ends, but is no member")
        self.endings.append(word)

    def _nearest(self, state: int) -> tuple[int, int]:
        """Return a token that leads nearest to the end, and where; DEAD if none does."""
        if state not in self._next:
            distance = self.guide.distances_after(state)
            nearest = int(distance.argmin())
            token = int((self.guide.partition_of(state).class_of == nearest).argmax())
            self._next[state] = token, self.guide.advance(state, token) if distance[nearest] < UNREACHABLE else DEAD
        return self._next[state]


class Verdict(str, Enum):
    """The extent to which a statement was checked, and the result; :data:`MEANINGS` says what each is."""

    EXHAUSTIVE = "EXHAUSTIVE"
    BOUNDED = "BOUNDED"
    COUNTEREXAMPLE = "COUNTEREXAMPLE"
    NOT_NEEDED = "NOT NEEDED"


MEANINGS = {
    Verdict.EXHAUSTIVE: "All cases were tried, and it holds in each.",
    Verdict.BOUNDED: "It holds in every case that was tried, of at most so many tokens, bytes or terminals.",
    Verdict.COUNTEREXAMPLE: "It does not hold, as the text beside it shows.",
    Verdict.NOT_NEEDED: "An assumption that does not hold here; what it is for elsewhere is checked by itself.",
}


class CheckFinding(NamedTuple):
    """The finding of one check."""

    cases: int  # how many were tried
    bound: int | None = None  # the most tokens, bytes or terminals of a case; ``None`` where all cases were tried
    # The shortest case that breaks the statement, or that shows why the assumption does not hold.
    witness: str | None = None
    remark: str = ""  # what is worth knowing besides
    needed: bool = True  # False for an assumption that nothing else here rests on

    @property
    def verdict(self) -> Verdict:
        """The verdict: a witness is a counterexample of what is needed."""
        if self.witness is not None:
            return Verdict.COUNTEREXAMPLE if self.needed else Verdict.NOT_NEEDED
        return Verdict.EXHAUSTIVE if self.bound is None else Verdict.BOUNDED


class Check(NamedTuple):
    """A statement, how it is checked, and for which guides; ``meaning`` is a sentence that needs no notation."""

    id: str
    statement: str
    meaning: str
    find: Callable[[Subject], CheckFinding]
    applies: Callable[[Subject], bool] = lambda subject: True


def shown(text: bytes) -> str:
    """Return a text as it is printed: between quotes, what is no UTF-8 as escapes."""
    return repr(text.decode(errors="backslashreplace"))


@final
@dataclass(frozen=True, eq=False)
class Subject:
    """A guide to verify."""

    guide: Guide  # the engine
    oracle: Oracle  # says what the language is; shares no code with the engine
    used: frozenset[int]  # the bytes that some text has
    depth: int | None = None  # the most tokens of a word; ``None`` for any number
    # How many nodes are looked at most: where words lead to more, shorter ones are tried; ``None`` for any number.
    most: int | None = None
    reading: SecondReading | None = None  # of a grammar; ``None`` where the oracle has the engine's own
    # What is wrong with a member according to a third party, as a JSON schema's validator.
    fault: Callable[[bytes], str | None] | None = None

    @classmethod
    def of_grammar(cls, grammar: Grammar, vocabulary: Vocabulary, text: str | None = None, **options: Any) -> Subject:
        """Return the guide of a grammar beside Earley's algorithm on longest-match lexemes; ``options`` are other attributes.

        ``text`` is what the grammar was read from, if that is in Lark's dialect: Lark reads it for the oracle.
        """
        guide = CFGGuide.of(grammar, vocabulary)
        reading = None if text is None else read_again(text, guide.grammar)
        own = reading.grammar if reading else guide.grammar
        oracle = GrammarOracle(own)
        used, letters = oracle.used, letters_of(vocabulary, oracle.used)
        if letters != BYTES:
            oracle = GrammarOracle(own, letters)
        return cls(guide, Oracle(oracle), used, reading=reading, **options)

    @classmethod
    def of_pattern(cls, pattern: str, vocabulary: Vocabulary, **options: Any) -> Subject:
        """Return the guide of a regular expression beside Python's reading of it; see :meth:`of_grammar`."""
        automaton = compile_regex(pattern)
        guide = FSMGuide.from_automaton(automaton, vocabulary)
        oracle = Oracle(Lexemes(pattern, letters=letters_of(vocabulary, automaton.used)))
        return cls(guide, oracle, automaton.used, **options)

    @classmethod
    def of_json(cls, guide: JSONGuide, **options: Any) -> Subject:
        """Return the guide of a JSON schema beside the machine that it is made of, byte by byte; see :meth:`of_grammar`."""
        return cls(guide, Oracle(guide.machine), frozenset(guide.machine.needed), **options)

    @cached_property
    def exploration(self) -> Exploration:
        """Guide and oracle side by side."""
        return Exploration(self.guide, self.oracle, depth=self.depth, most=self.most)

    def law(self, *laws: str) -> CheckFinding:
        """Return the finding on laws of the exploration."""
        tallies = [self.exploration.tally(law) for law in laws]
        broken = [(tally.witness, tally.remark) for tally in tallies if tally.witness is not None]
        cases = sum(tally.cases for tally in tallies)
        return self.covered(cases, *min(broken, key=lambda pair: len(pair[0]), default=(None, "")))

    def covered(self, cases: int, word: Word | None = None, remark: str = "", *, all: bool = True) -> CheckFinding:
        """Return the finding of a check of ``all`` the words that are explored, or some; ``word`` is a counterexample."""
        bound = None if self.exploration.closed and all and word is None else self.exploration.complete
        return CheckFinding(cases, bound, None if word is None else self.written(word), remark)

    def written(self, word: Word) -> str:
        """Return a word of tokens as it is printed."""
        ends, tokens = self.guide.vocabulary.eos_ids, self.guide.vocabulary.tokens
        return " ".join("<eos>" if v in ends else shown(tokens[v]) for v in word) or "the empty text"


def letters_of(vocabulary: Vocabulary, used: frozenset[int]) -> tuple[bytes, ...]:
    """Return the letters of texts: bytes, where each one of those that are used is a token, else all tokens."""
    tokens = set(vocabulary.tokens) - {b""}
    if all(bytes([byte]) in tokens for byte in used):
        return BYTES
    return tuple(sorted(token for token in tokens if used.issuperset(token)))
