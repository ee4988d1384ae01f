"""A lexer beside a parser as a machine over bytes (grammar-theory.md, section 7)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from ...automata.automaton import DEAD
from ...automata.byte_machine import ByteMachine
from ...errors import GrammarError
from ...vocabulary.vocabulary import BYTES
from ..guide import UNREACHABLE
from .completion import Completion
from .grammar import Grammar
from .lexing.lexer import START, Lexer, Word
from .lexing.spanner import Spanner
from .parsing.lr_tables import LRTables
from .parsing.parser import ERROR, Parser
from .shared_lexemes import told_apart_by_rules


class LexedPlace(NamedTuple):
    """The configuration of the parser, which has read all lexemes but the pending one, and the state of the lexer."""

    configuration: int
    lexer_state: int


@final
class LexedMachine(ByteMachine[LexedPlace]):
    """The texts that longest match cuts into a word of terminals that a grammar derives."""

    def __init__(self, lexer: Lexer, parser: Parser) -> None:
        self.lexer, self.parser, self.grammar = lexer, parser, parser.grammar
        self.start = LexedPlace(parser.start, START)
        self._rows: dict[int, list[tuple[int, int]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return LexedMachine._anew, (self.lexer, self.grammar, self.parser.tables)

    @classmethod
    def _anew(cls, lexer: Lexer, grammar: Grammar, tables: LRTables) -> LexedMachine:
        return cls(lexer, Parser(grammar, tables))

    @classmethod
    def of(cls, grammar: Grammar) -> LexedMachine:
        """Return the machine of a grammar; errors as of :meth:`CFGGuide.of`."""
        grammar = grammar.reduced()
        if not grammar.terminals:
            raise GrammarError(
                "the grammar derives the empty text alone: no rule that the start rule needs has a terminal"
            )
        grammar = told_apart_by_rules(grammar)
        return cls(Lexer.of(grammar.terminals), Parser.of(grammar))

    def ends(self, place: LexedPlace) -> bool:
        last = self.lexer.flush(place.lexer_state)
        return last is not None and self.parser.accepts(self._read(place.configuration, last))

    def steps(self, place: LexedPlace, bytes: Sequence[int]) -> list[LexedPlace | None]:
        row = self._row(place.lexer_state)
        steps = [row[byte] for byte in bytes]
        after = {word: self._read(place.configuration, self.lexer.words[word]) for word in {word for word, _ in steps}}
        known = {step: LexedPlace(after[step[0]], step[1]) for step in set(steps)}
        return [None if ERROR == known[step].configuration or step[1] == DEAD else known[step] for step in steps]

    def _row(self, state: int) -> list[tuple[int, int]]:
        """Return the terminals that the lexer emits at each byte, and its next state; found once for a state."""
        row = self._rows.get(state)
        if row is None:
            targets, emits = self.lexer.targets[state], self.lexer.emits[state]
            steps = list(zip(np.where(targets == DEAD, 0, emits).tolist(), targets.tolist(), strict=True))
            row = self._rows[state] = [steps[column] for column in self.lexer.byte_class.tolist()]
        return row

    def size(self, place: LexedPlace) -> int:
        """See :meth:`ByteMachine.size`: an upper bound where the lexer holds terminals back."""
        distance = self._completion.distance(*place)
        return distance if distance == UNREACHABLE else distance - 1

    def toward_end(self, place: LexedPlace) -> int:
        after = [(byte, one) for byte, one in enumerate(self.steps(place, range(256))) if one is not None]
        return after[int(self._completion.distances(*np.array([one for _, one in after]).T).argmin())][0]

    def shortest(self, place: LexedPlace | None = None) -> bytes:
        return self.completed(self.start if place is None else place)

    def _read(self, configuration: int, word: Word) -> int:
        return self.parser.read(configuration, self.lexer.counted(word))

    @cached_property
    def _completion(self) -> Completion:
        return Completion(Spanner(self.lexer, BYTES), self.parser)

    def describe(self, place: LexedPlace) -> str:
        return f"{self.lexer.describe(place.lexer_state)}; {self.parser.describe(place.configuration)}"
