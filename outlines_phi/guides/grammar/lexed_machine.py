"""A lexer beside a parser as a machine over bytes (grammar-theory.md, section 7)."""

from __future__ import annotations

from typing import NamedTuple, final

from ...automata.byte_machine import ByteMachine
from .lexing.lexer import START, Lexer
from .parsing.parser import ERROR, Parser


class LexedPlace(NamedTuple):
    """The configuration of the parser, which has read all lexemes but the pending one, and the state of the lexer."""

    configuration: int
    lexer_state: int


@final
class LexedMachine(ByteMachine[LexedPlace]):
    """The texts that longest match cuts into a word of terminals that a grammar derives."""

    def __init__(self, lexer: Lexer, parser: Parser) -> None:
        self._lexer, self._parser = lexer, parser
        self.start = LexedPlace(parser.start, START)

    def step(self, place: LexedPlace, byte: int) -> LexedPlace | None:
        found = self._lexer.lex(bytes([byte]), place.lexer_state)
        if found is None:
            return None
        after = self._parser.read(place.configuration, self._lexer.counted(found[1]))
        return None if after == ERROR else LexedPlace(after, found[0])

    def ends(self, place: LexedPlace) -> bool:
        last = self._lexer.flush(place.lexer_state)
        read = self._parser.read
        return last is not None and self._parser.accepts(read(place.configuration, self._lexer.counted(last)))

    def describe(self, place: LexedPlace) -> str:
        return f"{self._lexer.describe(place.lexer_state)}; {self._parser.describe(place.configuration)}"
