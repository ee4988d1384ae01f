"""A guidance grammar: its text, what guides it, and what its texts capture."""

from __future__ import annotations

from functools import cached_property
from typing import final

from ...automata.automaton import ByteAutomaton
from ...errors import EmptyLanguageError
from ...numerics.cache import kept
from ...vocabulary.vocabulary import Vocabulary
from ..fsm import FSMGuide
from ..grammar.cfg_guide import CFGGuide
from ..grammar.grammar import Grammar
from ..guide import Guide
from ..json_schema.json_guide import JSONGuide
from ..json_schema.machine.machine import Machine
from ..json_schema.reading.template import Template
from .captures import TextReading
from .guidance_rules import GuidanceRules
from .lexeme_kinds import JSONValue
from .longest_match import LexemeMatch, between_values, of_bytes
from .productions import Productions
from .recursion import grammar_of
from .regular import template_of


@final
class GuidanceGrammar:
    """What a text in llguidance's dialect of Lark derives, as llguidance reads it.

    Without recursion it is a regular language, or one over JSON values; with recursion it goes to the engine of grammars, where
    that cuts every text into the same lexemes.

    Raises
    ------
    GrammarError, UnsupportedError
        The text cannot be read, or has what cannot be honoured.
    EmptyLanguageError
        It derives no text.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._rules = GuidanceRules(text)
        self._productions = Productions.of(self._rules)
        self._machines: dict[JSONValue, Machine] = {}
        if self._rules.cycle:
            _ = self._grammar
        elif self._rules.values:
            # Which bytes are of a value and which are not must be told from one another.
            _ = Machine(self._template, blanks=self._rules.values[0].blanks)
        elif self._automaton.is_empty:
            raise EmptyLanguageError(
                "Let the parts of the grammar differ in their characters. It derives no text: a lexeme is as long as it can be, so "
                'what comes after it has to begin with what it cannot go on with, as in gen(regex="[a-z]+") + "." and not + "s".'
            )

    @property
    def has_captures(self) -> bool:
        """Whether a rule captures its text."""
        return any(rule.capture or rule.ending for rule in self._rules.rules.values())

    @property
    def automaton_alone(self) -> ByteAutomaton | None:
        """The automaton, if the grammar is regular."""
        return None if self._rules.cycle or self._rules.values else self._automaton

    @cached_property
    def _automaton(self) -> ByteAutomaton:
        """The texts of a grammar without recursion and values."""
        return of_bytes(self._match)

    @cached_property
    def _grammar(self) -> Grammar:
        return grammar_of(self._rules, self._productions)

    @cached_property
    def _match(self) -> LexemeMatch:
        return LexemeMatch(template_of(self._rules), self._rules.lexemes, self.text)

    @cached_property
    def _template(self) -> Template:
        return between_values(self._match)

    def guide(self, vocabulary: Vocabulary) -> Guide:
        """Return the guide over the tokens of a vocabulary."""
        if self._rules.cycle:
            return CFGGuide.of(self._grammar, vocabulary)
        if self._rules.values:
            return JSONGuide.of_template(self._template, vocabulary, blanks=self._rules.values[0].blanks)
        return FSMGuide.from_automaton(self._automaton, vocabulary)

    def holds(self, text: str) -> bool:
        """Return whether a text is one of the grammar."""
        return TextReading(self._productions, text.encode(), self._machines).holds

    def captures(self, text: str) -> dict[str, str | list[str]]:
        """Return what a text of the grammar captures, by name."""
        reading = TextReading(self._productions, text.encode(), self._machines)
        if not reading.holds:
            raise ValueError(f"{text!r:.80} is not in the format.")
        return reading.captures


@kept
def read(text: str) -> GuidanceGrammar:
    """Return the grammar that a text is; errors as of :class:`GuidanceGrammar`."""
    return GuidanceGrammar(text)
