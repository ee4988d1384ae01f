"""The subject of a verification, a guide beside an independent oracle of its language; the checks and their findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial
from typing import Any, NamedTuple, final

import numpy as np

from outlines_phi.automata.automaton import DEAD
from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.grammar.grammar import Grammar
from outlines_phi.guides.grammar.lexing.lexer import START
from outlines_phi.guides.grammar.parsing.parser import ERROR
from outlines_phi.guides.guide import Guide
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.vocabulary.classes import Partition
from outlines_phi.vocabulary.vocabulary import Vocabulary

from .exploration import Collapse, Exploration, Progress
from .lexing import Lexing
from .oracle import BYTES, GrammarOracle, JSONOracle, Oracle, PatternOracle
from .second_grammar import SecondReading, read_again
from .stack_tops import KeptDistances, StackTops, Viable

PLACES = 60  # The most of either kind, of a configuration beside a state of the lexer


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


@final
@dataclass(frozen=True)
class CheckFinding:
    """The verdict of one check."""

    verdict: Verdict  # see :class:`Verdict`
    cases: int  # the number of trials
    bound: int | None = None  # the most tokens, bytes or terminals of a case; ``None`` where all cases were tried
    # The shortest case that breaks the statement, or that shows why the assumption does not hold.
    witness: str | None = None
    remark: str = ""  # a note worth knowing

    @classmethod
    def exhaustive(cls, cases: int, witness: str | None = None, remark: str = "") -> CheckFinding:
        """Return the finding of a check that tried all cases; a witness is a counterexample."""
        return cls(Verdict.COUNTEREXAMPLE if witness is not None else Verdict.EXHAUSTIVE, cases, None, witness, remark)

    @classmethod
    def bounded(cls, bound: int, cases: int, witness: str | None = None, remark: str = "") -> CheckFinding:
        """Return the finding of a check that tried the cases up to a bound; a witness is a counterexample."""
        return cls(Verdict.COUNTEREXAMPLE if witness is not None else Verdict.BOUNDED, cases, bound, witness, remark)

    @classmethod
    def assumption(cls, cases: int, witness: str | None = None, remark: str = "") -> CheckFinding:
        """Return the finding on an assumption that nothing else here rests on."""
        return cls(Verdict.NOT_NEEDED if witness is not None else Verdict.EXHAUSTIVE, cases, None, witness, remark)


class Check(NamedTuple):
    """A statement, and how it is checked; the docstring of ``find`` says what the statement means.

    What is ``of_grammars`` looks at the lexer or the parser, which regular languages have not; what is ``of_tables`` at the tables
    of the engine, which a JSON schema has not.
    """

    id: str
    statement: str
    find: Callable[[Any], CheckFinding]
    of_grammars: bool = False
    of_tables: bool = False

    @property
    def meaning(self) -> str:
        """The statement, in a sentence that needs no notation."""
        return " ".join((self.find.__doc__ or "").split())


def check(
    id: str, statement: str, *, of_grammars: bool = False, of_tables: bool = False
) -> Callable[[Callable[[Any], CheckFinding]], Check]:
    """Return the decorator that makes a check of the function that decides ``statement``."""
    return lambda find: Check(id, statement, find, of_grammars, of_tables)


def shown(text: bytes) -> str:
    """Return a text as it is printed: between quotes, what is no UTF-8 as escapes."""
    return repr(text.decode(errors="backslashreplace"))


@final
@dataclass(frozen=True, eq=False)
class GrammarParts:
    """The engine of a grammar, with its lexer and its parser, and the oracle with whose parts these are compared."""

    guide: CFGGuide
    oracle: GrammarOracle
    reading: SecondReading | None = None  # the one that the oracle stands on; ``None`` where that is the engine's own

    @property
    def lexing(self) -> Lexing:
        """The oracle's lexer."""
        return self.oracle.lexing

    @cached_property
    def tops(self) -> StackTops:
        """The engine's parser on cut stacks, beside itself."""
        return StackTops(self.guide.parser)

    @cached_property
    def viable(self) -> Viable:
        """Configurations of the engine's parser that words of terminals lead to."""
        return Viable.of(self.guide.parser, self.oracle.earley)

    def after(self, text: bytes, place: tuple[int, int] | None = None) -> tuple[int, int] | None:
        """Return the parser's configuration and the lexer's state after a text; ``None`` where one of them cannot read it."""
        guide = self.guide
        configuration, state = place or (guide.parser.start, START)
        read = guide.lexer.lex(text, state)
        after = ERROR if read is None else guide.parser.read(configuration, guide.lexer.counted(read[1]))
        return None if read is None or after == ERROR else (after, read[0])

    def named(self, word: Sequence[int]) -> str:
        """Return a word of terminals as it is printed."""
        return " ".join(map(self.oracle.grammar.name, word)) or "no terminal"

    @cached_property
    def states(self) -> dict[int, tuple[int, bytes]]:
        """For each state of the engine's lexer that bytes reach, a state of the oracle's and a shortest text that leads to both."""
        found = {START: (0, b"")}
        pending = [START]
        for state in pending:  # it grows
            other, text = found[state]
            for byte in range(256):
                moved, ours = self.lexing.move(other, byte), self.guide.lexer.lex(bytes([byte]), state)
                if moved is not None and ours is not None and ours[0] not in found:
                    found[ours[0]] = moved.state, text + bytes([byte])
                    pending.append(ours[0])
        return found


@final
@dataclass(frozen=True, eq=False)
class Subject:
    """A guide to verify."""

    guide: Guide  # the engine
    oracle: Oracle  # says what the language is; shares no code with the engine
    collapse: Collapse  # the tokens that stand for the vocabulary
    used: frozenset[int]  # the bytes that some text has
    depth: int | None = None  # the most tokens of a word; ``None`` for any number
    # The most pairs of states: where words of so many tokens lead to more, shorter ones are tried; ``None``
    # for any number.
    most: int | None = None
    machine: GrammarParts | None = None  # the parts of a grammar's guide; ``None`` for a regular language
    tokenizer: Any = None  # the source of the vocabulary
    # The fault of a member according to a third party, as a JSON schema's validator.
    fault: Callable[[bytes], str | None] | None = None
    progress: Progress | None = None  # is told of the words that are tried

    @classmethod
    def of_grammar(cls, grammar: Grammar, vocabulary: Vocabulary, text: str | None = None, **options: Any) -> Subject:
        """Return the guide of a grammar beside Earley's algorithm on longest-match lexemes; ``options`` are other attributes.

        ``text`` is what the grammar was read from, if that is in Lark's dialect: a second reader reads it for the oracle.
        """
        guide = CFGGuide.of(grammar, vocabulary)
        lexer = guide.lexer
        used = frozenset(np.flatnonzero((lexer.targets != DEAD).any(axis=0)[lexer.byte_class]).tolist())
        reading = None if text is None else read_again(text, guide.grammar)
        oracle = GrammarOracle(reading.grammar if reading else guide.grammar, letters_of(vocabulary, used))
        partitions = (guide.spanner.of_state(state).partition for state in range(START, len(guide.lexer)))
        collapse = Collapse.of(vocabulary, partitions)
        return cls(guide, oracle, collapse, used, machine=GrammarParts(guide, oracle, reading), **options)

    @classmethod
    def of_pattern(cls, pattern: str, vocabulary: Vocabulary, **options: Any) -> Subject:
        """Return the guide of a regular expression beside Python's reading of it; see :meth:`of_grammar`."""
        automaton = compile_regex(pattern)
        guide = FSMGuide.from_automaton(automaton, vocabulary)
        used = automaton.used
        oracle = PatternOracle(pattern, letters_of(vocabulary, used))
        collapse = Collapse.of(vocabulary, [guide.partition])
        return cls(guide, oracle, collapse, used, **options)

    @classmethod
    def of_json(cls, guide: JSONGuide, **options: Any) -> Subject:
        """Return the guide of a JSON schema beside the machine that it is made of, byte by byte; see :meth:`of_grammar`."""
        vocabulary = guide.vocabulary
        each = Partition(np.arange(len(vocabulary), dtype=np.int32), len(vocabulary))
        used = frozenset(guide.machine.needed)
        oracle = JSONOracle(guide.machine)
        return cls(guide, oracle, Collapse.of(vocabulary, [each]), used, **options)

    @cached_property
    def exploration(self) -> Exploration:
        """Guide and oracle side by side."""
        return Exploration.of(
            self.guide, self.oracle, self.collapse, depth=self.depth, most=self.most, progress=self.progress
        )

    @cached_property
    def kept(self) -> KeptDistances:
        """The distances that a grammar's engine keeps for tops of stacks, where the words that are explored lead."""
        return KeptDistances.of(self.parts.guide, self._places())

    def _places(self) -> Iterator[tuple[int, int, Callable[[], str]]]:
        """Yield configurations beside states of the lexer: where tokens lead; and where terminals do, beside one after another."""
        guide, inner = self.parts.guide, self.exploration.inner
        for node in inner[:: -(-len(inner) // PLACES) or 1]:
            place = self.parts.after(guide.vocabulary.decode(node.word))
            if place is not None:
                yield *place, partial(self.written, node.word)
        words = list(self.parts.viable.words.items())
        for number, ((configuration, _), word) in enumerate(words[:: -(-len(words) // PLACES) or 1]):
            state = START + number // 2 % (len(guide.lexer) - START)
            yield configuration, state, partial(self._beside, word, state)

    def _beside(self, word: Sequence[int], state: int) -> str:
        return f"{self.parts.named(word)}, then {self.parts.guide.lexer.describe(state)}"

    def bounded(self, cases: int, word: tuple[int, ...] | None = None, remark: str = "") -> CheckFinding:
        """Return the finding of a check of the words that are explored; ``word`` is a counterexample."""
        witness = None if word is None else self.written(word)
        return CheckFinding.bounded(self.exploration.complete, cases, witness, remark)

    def covered(self, cases: int, remark: str = "") -> CheckFinding:
        """Return the finding of a check without counterexample of all pairs of states that are explored."""
        return (
            CheckFinding.exhaustive(cases, None, remark)
            if self.exploration.closed
            else self.bounded(cases, None, remark)
        )

    @property
    def has_tables(self) -> bool:
        """True if the guide is made of tables, those of a grammar or an automaton."""
        return self.machine is not None or isinstance(self.oracle, PatternOracle)

    @property
    def parts(self) -> GrammarParts:
        """The parts of a grammar's guide."""
        if self.machine is None:
            raise UnsupportedError("a regular language has no lexer and no parser; run the checks of its guide")
        return self.machine

    def written(self, word: tuple[int, ...]) -> str:
        """Return a word of tokens as it is printed."""
        ends = self.guide.vocabulary.eos_ids
        return (
            " ".join("<eos>" if v in ends else shown(self.guide.vocabulary.tokens[v]) for v in word) or "the empty text"
        )


def letters_of(vocabulary: Vocabulary, used: frozenset[int]) -> tuple[bytes, ...]:
    """Return the letters of texts: bytes, where each one of those that are used is a token, else all tokens."""
    tokens = set(vocabulary.tokens) - {b""}
    if all(bytes([byte]) in tokens for byte in used):
        return BYTES
    return tuple(sorted(token for token in tokens if used.issuperset(token)))
