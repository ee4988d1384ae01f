"""A guide beside an independent oracle of its language, and the verdicts on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple, final

from outlines_phi import Vocabulary
from outlines_phi.guides import CFGGuide, FSMGuide, Guide, JSONGuide
from outlines_phi.guides.grammar.grammar import Grammar
from outlines_phi.regex.patterns import compile_regex

from .exploration import Exploration, Word
from .lark_reading import SecondReading, read_again
from .lexemes import BYTES, Lexemes
from .oracle import GrammarOracle, Oracle


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
