"""The guide of a context-free grammar: a lexer's state beside a parser's, over vocabulary classes."""

from __future__ import annotations

import pickle
import threading
from functools import lru_cache
from types import NoneType
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ... import __version__
from ...errors import EmptyLanguageError, GrammarError, UnsupportedError
from ...numerics.checks import check_kind
from ...vocabulary.classes import EOS, Partition
from ...vocabulary.vocabulary import Vocabulary, check_vocabulary
from ..guide import DEAD, DONE, UNREACHABLE, Guide, Row
from .completion import Completion
from .grammar import Grammar
from .lexing.lexer import START, Lexer
from .lexing.spanner import Spanner
from .parsing.parser import ERROR, Parser
from .shared_lexemes import impossible_neighbours, told_apart_by_rules, warn_of_priorities
from .suffix_distances import SuffixDistances, TerminalWords

_FIRST = DONE + 1  # The number of the first state that is a pair
_ROWS, _STEPS = 4096, 65536  # How many rows are kept, a target for each class, and how many steps on single tokens


@final
class CFGGuide(Guide):
    """The token sequences whose text a context-free grammar derives (grammar-theory.md, section 7; Park, Zhou, D'Antoni 2025).

    A state is a pair: a state of the lexer, in which the last lexeme is pending, and a configuration of the parser, which has read
    all lexemes before it. Which terminals a token completes, and where it leads the lexer, depends on the lexer's state alone: all
    states with one share their vocabulary classes, and a row parses each distinct word of terminals once.

    A token is allowed if and only if the text after it can be completed: its distance to the end is finite (:class:`Completion`).
    Rows are made when they are asked for, and masks need no rows; memory grows with the configurations that were met. A guide can
    be pickled, with its tables and the numbers of its states; from then on each copy numbers new states by itself.

    ``spanner`` is what the tokens of a vocabulary do to the states of the lexer, ``parser`` that of the same grammar;
    ``completion`` has the distances to the end, ``None`` to compute them.
    """

    def __init__(self, spanner: Spanner, parser: Parser, completion: Completion | None = None) -> None:
        instead = "use CFGGuide.of(read_grammar(text), vocabulary), which makes it"
        check_kind("CFGGuide", "spanner", spanner, Spanner, f"a Spanner; {instead}")
        check_kind("CFGGuide", "parser", parser, Parser, f"a Parser; {instead}")
        check_kind("CFGGuide", "completion", completion, (Completion, NoneType), f"a Completion or None; {instead}")
        self.spanner, self.parser = spanner, parser
        self.lexer, self.grammar, self.vocabulary = spanner.lexer, parser.grammar, spanner.vocabulary
        self.completion = completion or Completion(spanner, parser)
        self._suffix_distances = SuffixDistances(spanner, parser, self.completion)
        self._lock = threading.RLock()
        self._recent_row = lru_cache(_ROWS)(self._row)
        self._recent_step = lru_cache(_STEPS)(self._step)
        self.start = _FIRST + parser.start * len(self.lexer) + START

    @classmethod
    def of(cls, grammar: Grammar, vocabulary: Vocabulary) -> CFGGuide:
        """Return the guide of a grammar.

        Raises
        ------
        GrammarError
            No terminals, one that may be empty, an ignored one of the priority of another that match the same text, or a lexeme
            whose end no bounded look ahead tells.
        EmptyLanguageError
            The grammar derives no text, or none that longest match cuts so, or that the vocabulary can write.
        UnsupportedError
            Its tables would exceed a limit of :func:`~outlines_phi.format_limits.limits`.
        """
        check_kind("CFGGuide.of", "grammar", grammar, Grammar, "a grammar, as read_grammar(text) returns")
        check_vocabulary("CFGGuide.of", vocabulary)
        grammar = grammar.reduced()
        if not grammar.terminals:
            raise GrammarError(
                "the grammar derives the empty text alone: no rule that the start rule needs has a terminal"
            )
        grammar = told_apart_by_rules(grammar)
        guide = cls(Spanner(Lexer.of(grammar.terminals), vocabulary), Parser.of(grammar))
        if guide.min_tokens(guide.start) < UNREACHABLE:
            warn_of_priorities(grammar, guide.parser.tables)
            return guide
        if why := impossible_neighbours(guide.lexer, guide.parser.tables):
            raise EmptyLanguageError(
                "Let the patterns of terminals that stand side by side exclude each other's texts, make one terminal of two that "
                f"do, or write the same rules in GBNF, which has no lexemes. No text can be written: {why}."
            )
        raise EmptyLanguageError(guide.why_empty(b""))

    def __reduce__(self) -> tuple[Any, ...]:
        with self._lock, self.spanner.growing:  # other threads go on to meet states
            return _restored, (__version__, pickle.dumps((self.spanner, self.parser, self.completion)))

    def row(self, state: int) -> Row:
        with self._lock:
            return self._recent_row(state)

    def partition_of(self, state: int) -> Partition:
        """See :meth:`Guide.partition_of`: that of the lexer's state."""
        return self.spanner.of_state(self._split(state)[1]).partition

    def min_tokens(self, state: int) -> int:
        """Return the distance to the end that :class:`Completion` finds; some token lowers it."""
        if state < _FIRST:
            return 0 if state == DONE else UNREACHABLE
        with self._lock:
            return self.completion.distance(*self._split(state))

    def min_tokens_of(self, states: NDArray[np.integer]) -> NDArray[np.int64]:
        found = np.full(len(states), UNREACHABLE, dtype=np.int64)
        found[states == DONE] = 0
        pairs = np.flatnonzero(states >= _FIRST)
        configurations, lexer_states = np.divmod(states[pairs] - _FIRST, len(self.lexer))
        with self._lock:
            found[pairs] = self.completion.distances(configurations, lexer_states)
        return found

    def distances_after(self, state: int) -> NDArray[np.int64]:
        """See :meth:`Guide.distances_after`: without the row, most of it from what is known of the top of the stack."""
        configuration, lexer_state = self._split(state)
        if configuration == ERROR:
            return np.full(self.partition_of(state).size, UNREACHABLE, dtype=np.int64)
        with self._lock:
            return self._suffix_distances.distances(configuration, lexer_state)

    def advance(self, state: int, token: int) -> int:
        """See :meth:`Guide.advance`: without the row."""
        with self._lock:
            return self._recent_step(state, token)

    def describe(self, state: int) -> str:
        """Return a debugging picture of ``state``: the lexeme that is pending, and the rules that the parser is in."""
        configuration, lexer_state = self._split(state)
        if configuration == ERROR:
            return "done" if state == DONE else "dead"
        return f"{self.lexer.describe(lexer_state)}; {self.parser.describe(configuration)}"

    def _split(self, state: int) -> tuple[int, int]:
        """Return the parser's configuration and the lexer's state; ``ERROR`` and the dead one for DEAD and DONE."""
        return divmod(state - _FIRST, len(self.lexer)) if state >= _FIRST else (ERROR, DEAD)

    def _step(self, state: int, token: int) -> int:
        configuration, lexer_state = self._split(state)
        spans = self.spanner.of_state(lexer_state)
        place = spans.partition.class_of[token]
        target = int(spans.target[place])
        if configuration == ERROR or target == DEAD:
            return DEAD
        after = self.parser.read(configuration, self.spanner.words[spans.word[place]])
        if after == ERROR:
            return DEAD
        if place == EOS:
            return DONE if self.parser.accepts(after) else DEAD
        found = _FIRST + after * len(self.lexer) + target
        return found if self.min_tokens(found) < UNREACHABLE else DEAD

    def _row(self, state: int) -> Row:
        configuration, lexer_state = self._split(state)
        spans = self.spanner.of_state(lexer_state)
        live = np.flatnonzero(self.distances_after(state) < UNREACHABLE)
        words = TerminalWords.of(self.spanner.words, spans.word[live])
        targets = np.full(spans.partition.size, DEAD, dtype=np.int32)
        targets[live] = _FIRST + words.read(self.parser, configuration) * len(self.lexer) + spans.target[live]
        targets[EOS] = DONE if EOS in live else DEAD
        return Row(spans.partition, targets)


def _restored(version: str, tables: bytes) -> CFGGuide:
    """Return the guide of pickled tables, which mean nothing to another version of the package."""
    if version != __version__:
        raise UnsupportedError(
            f"a CFGGuide of outlines_phi {version} was unpickled by outlines_phi {__version__}, which may allow other tokens; make "
            "it anew: CFGGuide.of(read_grammar(text), vocabulary)"
        )
    return CFGGuide(*pickle.loads(tables))
