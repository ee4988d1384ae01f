"""The machine of a grammar, byte by byte: a lexer's state beside a parser's configuration."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, final

import numpy as np

from outlines_phi.automata.automaton import DEAD
from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.grammar.lexing.lexer import START
from outlines_phi.guides.grammar.parsing.lr_tables import END
from outlines_phi.guides.grammar.parsing.parser import ERROR, UNKNOWN
from outlines_phi.guides.guide import UNREACHABLE

from .byte_names import byte_name, byte_set
from .grammar_graph import LEXER, GrammarGraph
from .reading_machine import Fault, ReadingMachine, Spot

MOST_STACK = 40  # Entries of a stack that are shown
MOST_EXPECTED = 40  # Terminals that are named


class GrammarPlace(NamedTuple):
    """A configuration of the parser, and a state of the lexer."""

    configuration: int
    lexer_state: int


@final
class GrammarMachine(ReadingMachine):
    """Lexer and parser of a grammar's guide, whose states are pairs of theirs (grammar-theory.md, section 7).

    A byte is refused by the lexer, where no lexeme goes on with it and none begins with it; by the parser, where it completes a
    terminal that may not stand there; or for the lexeme that it begins, where all terminals that it may become may not.
    """

    kind = "lexer and pushdown parser"

    def __init__(self, guide: CFGGuide) -> None:
        self._guide, self._lexer, self._parser = guide, guide.lexer, guide.parser
        self._drawn = GrammarGraph(guide)
        self.graph = self._drawn.graph()
        self.start = GrammarPlace(guide.parser.start, START)
        self._acceptable = lru_cache(1024)(self._find_acceptable)

    def read(self, place: GrammarPlace, byte: int) -> GrammarPlace | Fault:
        found = self._moved(place, byte)
        if isinstance(found, Fault):
            return found
        configuration, target = found
        if self._guide.completion.distance(configuration, target) < UNREACHABLE:
            return found
        lexer = self._lexer
        kinds = np.flatnonzero(lexer.reaches[target]).tolist()
        if any(lexer.terminals[t].ignored or self._parser.shift(configuration, t) != ERROR for t in kinds):
            because = f"Bytes go on behind {byte_name(byte)}, and no tokens of this vocabulary write them to the end."
            return Fault("vocabulary", "the vocabulary", because, node=(LEXER, f"l{target}"))
        names = [lexer.terminals[t].name for t in kinds]
        shown = " or ".join(names[:MOST_EXPECTED])
        which = "which may not stand here" if len(names) == 1 else "of which none may stand here"
        reason = f"with {byte_name(byte)} the pending lexeme can become {shown} alone, {which}"
        return self._parser_fault(configuration, f"terminal {shown}", reason)

    def follow(self, place: GrammarPlace, token: int, text: bytes) -> GrammarPlace:
        """See :meth:`ReadingMachine.follow`: whatever tokens could do within it."""
        for byte in text:
            found = self._moved(place, byte)
            assert not isinstance(found, Fault)  # lexer and parser can read it
            place = found
        return place

    def _moved(self, place: GrammarPlace, byte: int) -> GrammarPlace | Fault:
        """Return the successor of lexer and parser by a byte, or the fault that stops them."""
        configuration, state = place
        lexer, parser = self._lexer, self._parser
        column = lexer.byte_class[byte]
        target = int(lexer.targets[state, column])
        if target == DEAD:
            return self._lexer_fault(place, byte)
        for terminal in lexer.words[lexer.emits[state, column]]:
            if lexer.terminals[terminal].ignored:
                continue
            after = parser.shift(configuration, terminal)
            if after == ERROR:
                name = lexer.terminals[terminal].name
                reason = f"{byte_name(byte)} ends a lexeme of {name}, and {name} may not stand here"
                return self._parser_fault(configuration, f"terminal {name}", reason)
            configuration = after
        return GrammarPlace(configuration, target)

    def end(self, place: GrammarPlace) -> Fault | None:
        configuration, state = place
        word = self._lexer.flush(state)
        if word is None:
            label = self._drawn.pending(state)
            return Fault("lexer", label, f"The end would cut a lexeme short: {label}.", node=(LEXER, f"l{state}"))
        for terminal in word:
            if self._lexer.terminals[terminal].ignored:
                continue
            after = self._parser.shift(configuration, terminal)
            if after == ERROR:
                name = self._lexer.terminals[terminal].name
                return self._parser_fault(
                    configuration, f"terminal {name}", f"the end completes {name}, which may not stand here"
                )
            configuration = after
        if self._parser.accepts(configuration):
            return None
        return self._parser_fault(configuration, "end of the text", "the start rule is not complete")

    def spot(self, place: GrammarPlace) -> Spot:
        configuration, state = place
        tops = [self._parser.top(stack) for stack in self._parser.stacks(configuration)]
        nodes = [self._drawn.place_of(top) for top in tops if top >= 0]
        nodes += [(LEXER, f"l{state}")]
        pending = self._drawn.pending(state)
        return Spot(pending, tuple(nodes), tuple(self._stack(configuration)))

    def _stack(self, configuration: int) -> list[str]:
        """Return the entries of a configuration, top first: dotted rules by level; several stacks are written side by side."""
        level, shown = list(self._parser.stacks(configuration)), list[str]()
        while level and len(shown) < MOST_STACK:
            known = dict.fromkeys(stack for stack in level if stack != UNKNOWN)
            shown.append(" ∥ ".join(f"{self._parser.top(s)}: {self._first(self._parser.top(s))}" for s in known))
            level = list(dict.fromkeys(below for stack in known for below in self._parser.below(stack)))
        if level:
            shown.append("…")
        return shown

    def _first(self, state: int) -> str:
        lines = self._drawn.dotted(state).splitlines()
        return (lines[0] if lines else "") + (f" (and {len(lines) - 1} more)" if len(lines) > 1 else "")

    def _find_acceptable(self, configuration: int) -> tuple[str, ...]:
        terminals = self._lexer.terminals
        counted = [number for number, terminal in enumerate(terminals) if not terminal.ignored]
        names = [terminals[t].name for t in counted if self._parser.shift(configuration, t) != ERROR]
        if self._parser.shift(configuration, END) != ERROR:
            names.append("the end of the text")
        more = len(names) - MOST_EXPECTED
        return (*names[:MOST_EXPECTED], *([f"{more} more"] if more > 0 else []))

    def _lexer_fault(self, place: GrammarPlace, byte: int) -> Fault:
        lexer, state = self._lexer, place.lexer_state
        live = np.flatnonzero(lexer.targets[state, lexer.byte_class] != DEAD)
        pending = self._drawn.pending(state)
        begins = ", and none begins with it" if lexer.can_end[state] else ""
        because = f"No lexeme goes on with {byte_name(byte)} behind {pending}{begins}."
        return Fault("lexer", pending, because, (byte_set(live.tolist()),), (LEXER, f"l{state}"))

    def _parser_fault(self, configuration: int, what: str, reason: str) -> Fault:
        rules = dict.fromkeys(self._parser.describe(configuration).splitlines())
        within = "; ".join(list(rules)[:3]) + ("; …" if len(rules) > 3 else "")
        tops = [self._parser.top(stack) for stack in self._parser.stacks(configuration)]
        node = self._drawn.place_of(tops[0]) if tops and tops[0] >= 0 else None
        because = f"{reason[0].upper()}{reason[1:]}: the parser is in {within}."
        return Fault("parser", what, because, self._acceptable(configuration), node)
