"""The machine and the guide of a context-free grammar: a lexer beside a parser (grammar-theory.md, section 7)."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import NoneType
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ... import __version__
from ...automata.byte_machine import ByteMachine
from ...errors import EmptyLanguageError, GrammarError, UnsupportedError
from ...numerics.cache import kept_of_states
from ...numerics.checks import check_kind
from ...vocabulary.vocabulary import BYTES, EOS, Partition, Vocabulary, check_vocabulary
from ..guide import DEAD, DONE, FIRST, UNREACHABLE, Guide, Row
from .completion import Completion
from .grammar import END, Grammar, LRTables
from .lexer import START, Lexer, Word
from .parser import ERROR, UNKNOWN, Parser
from .shared_lexemes import impossible_neighbours, told_apart_by_rules, warn_of_priorities
from .spanner import Spanner


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


_TOP = 3
"""Entries of a stack that are looked at together. With three, a new state of C takes 2.5 look-ups, with one 38; with more, more
tops are met for a first time."""

_KEPT_TOPS = 4096  # Of how many tops of stacks it is kept what they decide

MOST_STACKS = 1 << 18  # Stacks that a guide keeps, give or take one call

_ENDED = DEAD  # In place of the lexer's state: the text has ended


class TerminalWords(NamedTuple):
    """The words of terminals of some vocabulary classes, each beginning of a word once.

    ``steps`` has, for each beginning but the empty one, the place of the one before it and the terminal that it adds; ``place``,
    ``int64[G]``, the place of the word of each class.
    """

    steps: tuple[tuple[int, int], ...]
    place: NDArray[np.int64]

    @classmethod
    def of(cls, words: Sequence[Word], number: NDArray[np.integer]) -> TerminalWords:
        """Return those of the words with these numbers."""
        used, which = np.unique(number, return_inverse=True)
        place: dict[Word, int] = {(): 0}
        steps = []
        for word in (words[each] for each in used.tolist()):
            for end in range(1, len(word) + 1):
                if word[:end] not in place:
                    place[word[:end]] = len(place)
                    steps.append((place[word[: end - 1]], word[end - 1]))
        found = np.array([place[words[each]] for each in used.tolist()], dtype=np.int64)
        return cls(tuple(steps), found[which.reshape(-1)])

    def read(self, parser: Parser, configuration: int) -> NDArray[np.int64]:
        """Return the configuration after the word of each class."""
        after = [configuration]
        for before, terminal in self.steps:
            after.append(parser.shift(after[before], terminal))
        return np.array(after, dtype=np.int64)[self.place]


@final
@dataclass(frozen=True, eq=False)
class _Suffixes:
    """Words of terminals that are left to be read from a stack, and the state of the lexer after each, ``int32[N]``.

    The last terminal of the word of the end of the text is END, its state :data:`_ENDED`.
    """

    words: TerminalWords
    targets: NDArray[np.int32]


class _Below(NamedTuple):
    """Suffixes to be read from another stack: ``head`` on what lies ``entries`` below the last entry that was looked at.

    ``places`` are those of their words among all that were to be read.
    """

    entries: int
    head: int
    places: NDArray[np.int64]
    suffixes: _Suffixes


class _Decided(NamedTuple):
    """Decision by the top of a stack: ``distances`` of the words at ``places``, less the base of what lies below it.

    ``below`` has the words that take off all entries that were looked at; all others are dead.
    """

    places: NDArray[np.int64]
    distances: NDArray[np.int64]
    below: tuple[_Below, ...]


@final
class SuffixDistances:
    """The distances to the end after each class of tokens (Alg. 5 and 6 of Park et al. 2025; grammar-theory.md, section 5.2).

    Beside a state of the lexer and the top entries of a stack, most words of terminals are accepted whatever lies below, or by no
    stack at all: reading them takes off known entries alone. Their distances are computed once for each top and each kind of what
    lies below (:class:`Completion`). The other words take off all entries that are known and put a nonterminal on what lies there:
    their suffixes are read from that stack, whose top decides most of them in turn. So a stack that was never met costs one look-up
    for each top that is taken off. A parser that follows several stacks reads all words each time.
    """

    def __init__(self, spanner: Spanner, parser: Parser, completion: Completion) -> None:
        self._spanner, self._parser, self._completion = spanner, parser, completion
        self._of_lexer_state: dict[int, tuple[NDArray[np.int64], _Suffixes]] = {}
        self._interned: dict[tuple[tuple[tuple[int, int], ...], bytes, bytes], _Suffixes] = {}
        self._decided: dict[tuple[_Suffixes, tuple[int, ...], int], _Decided] = {}

    @kept_of_states
    def distances(self, configuration: int, lexer_state: int) -> NDArray[np.int64]:
        """Return ``int64[G]``: the distance to the end after each class of tokens, UNREACHABLE where it is dead."""
        found = np.full(self._spanner.of_state(lexer_state).partition.size, UNREACHABLE, dtype=np.int64)
        lexed, suffixes = self._all_of(lexer_state)
        if self._parser.is_lone:
            # One stack: its top decides most words, and the rest is read from what lies below.
            pending = [(configuration, lexed, suffixes)]
            while pending:
                stack, places, left_over = pending.pop()
                states, bottom = self._top(stack)
                base, decided = self._of_top(stack, states, bottom, left_over)
                if len(decided.places):
                    found[places[decided.places]] = base + decided.distances
                for suffix in decided.below:
                    (left,) = self._parser.descend(bottom, suffix.entries + 1)
                    pending.append((self._parser.goto(left, suffix.head), places[suffix.places], suffix.suffixes))
        else:  # several stacks: all words are read
            found[lexed] = self._after(suffixes.words.read(self._parser, configuration), suffixes.targets)
        found.flags.writeable = False
        return found

    def _all_of(self, lexer_state: int) -> tuple[NDArray[np.int64], _Suffixes]:
        """Return the classes whose tokens a state of the lexer can read, and what is to be read of them."""
        if lexer_state not in self._of_lexer_state:
            spans = self._spanner.of_state(lexer_state)
            words = [*self._spanner.words, (*self._spanner.words[spans.word[EOS]], END)]
            number, targets = spans.word.copy(), spans.target.copy()
            number[EOS], targets[EOS] = len(words) - 1, _ENDED
            lexed = np.flatnonzero(spans.target != DEAD)
            self._of_lexer_state[lexer_state] = (
                lexed,
                self._suffixes(TerminalWords.of(words, number[lexed]), targets[lexed]),
            )
        return self._of_lexer_state[lexer_state]

    def _suffixes(self, words: TerminalWords, targets: NDArray[np.int32]) -> _Suffixes:
        """Return suffixes: equal ones are one object."""
        key = (words.steps, words.place.tobytes(), targets.tobytes())
        return self._interned.setdefault(key, _Suffixes(words, targets))

    def _top(self, stack: int) -> tuple[tuple[int, ...], int]:
        """Return the states on top of a stack that are looked at, all but the last of them, and the stack that has that on top."""
        states = []
        for _ in range(_TOP - 1):
            under = self._parser.below(stack)
            if not under:
                break
            states.append(self._parser.top(stack))
            stack = under[0]
        return tuple(states), stack

    def _of_top(self, stack: int, states: tuple[int, ...], bottom: int, suffixes: _Suffixes) -> tuple[int, _Decided]:
        """Return the base of what lies below, and what the top of a stack decides: the same for all stacks with this top."""
        base, kind = self._completion.offset(bottom)
        key = (suffixes, states, kind)
        if key not in self._decided:
            if len(self._decided) == _KEPT_TOPS:
                del self._decided[next(iter(self._decided))]
            self._decided[key] = self._decide(stack, suffixes, base)
        return base, self._decided[key]

    def _decide(self, stack: int, suffixes: _Suffixes, base: int) -> _Decided:
        # After each beginning of a word: this stack, what is known of all, and where what is known ended, with the rest since then.
        stacks, known = [stack], [self._parser.cut(stack, _TOP)]
        ended: list[tuple[int, int] | None] = [None]
        rest: list[Word] = [()]
        for before, terminal in suffixes.words.steps:
            after, end = self._parser.shift(known[before], terminal), ended[before]
            if after == UNKNOWN:
                after, end = ERROR, self._parser.beyond(known[before], terminal)
            known.append(after)
            stacks.append(ERROR if after == ERROR else self._parser.shift(stacks[before], terminal))
            ended.append(end)
            rest.append((*rest[before], terminal) if end else ())
        place = suffixes.words.place
        distances = self._after(np.array(stacks)[place], suffixes.targets)
        places = np.flatnonzero(distances < UNREACHABLE)
        below = []
        for end in dict.fromkeys(filter(None, ended)):
            left = np.flatnonzero(np.array([each == end for each in ended])[place])
            below.append(
                _Below(*end, left, self._suffixes(TerminalWords.of(rest, place[left]), suffixes.targets[left]))
            )
        return _Decided(places, distances[places] - base, tuple(below))

    def _after(self, configurations: NDArray[np.int64], targets: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the distances after words that lead to these configurations and states of the lexer."""
        found = self._completion.distances(configurations, targets)
        found[(targets == _ENDED) & (configurations != ERROR)] = 0
        return found


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
        self.machine: LexedMachine = LexedMachine(self.lexer, parser)
        self.completion = completion or Completion(spanner, parser)
        self._suffix_distances = SuffixDistances(spanner, parser, self.completion)
        self._lock = threading.RLock()
        self.start = self._number(parser.start, START)

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
        machine = LexedMachine.of(grammar)
        grammar = machine.grammar
        guide = cls(Spanner(machine.lexer, vocabulary.with_special(grammar.special)), machine.parser)
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
        with self._lock:  # other threads go on to meet states
            return _restored, (__version__, pickle.dumps((self.spanner, self.parser, self.completion)))

    @property
    def full(self) -> bool:  # type: ignore[override]
        """See :attr:`Guide.full`."""
        return len(self.parser) > MOST_STACKS

    def afresh(self) -> Guide:
        """See :meth:`Guide.afresh`; tables of the lexer and the parser are shared."""
        return CFGGuide(self.spanner, Parser(self.grammar, self.parser.tables))

    def row(self, state: int) -> Row:
        return Row(self.partition_of(state), self._targets(state))

    def partition_of(self, state: int) -> Partition:
        """See :meth:`Guide.partition_of`: that of the lexer's state."""
        with self._lock:
            return self.spanner.of_state(self._split(state)[1]).partition

    def min_tokens(self, state: int) -> int:
        """Return the distance to the end that :class:`Completion` finds; some token lowers it."""
        if state < FIRST:
            return 0 if state == DONE else UNREACHABLE
        with self._lock:
            return self.completion.distance(*self._split(state))

    def min_tokens_of(self, states: NDArray[np.integer]) -> NDArray[np.int64]:
        found = np.full(len(states), UNREACHABLE, dtype=np.int64)
        found[states == DONE] = 0
        pairs = np.flatnonzero(states >= FIRST)
        configurations, lexer_states = np.divmod(states[pairs] - FIRST, len(self.lexer))
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
            return self._step(state, token)

    def state(self, place: LexedPlace) -> int:
        """See :meth:`Guide.state`."""
        return self._number(place.configuration, place.lexer_state)

    def describe(self, state: int) -> str:
        """Return a debugging picture of ``state``: the lexeme that is pending, and the rules that the parser is in."""
        configuration, lexer_state = self._split(state)
        if configuration == ERROR:
            return "done" if state == DONE else "dead"
        return self.machine.describe(LexedPlace(configuration, lexer_state))

    def _number(self, configuration: Any, lexer_state: Any) -> Any:
        """Return the state of a pair, or the states of arrays of both."""
        return FIRST + configuration * len(self.lexer) + lexer_state

    def _split(self, state: int) -> tuple[int, int]:
        """Return the parser's configuration and the lexer's state; ``ERROR`` and the dead one for DEAD and DONE."""
        return divmod(state - FIRST, len(self.lexer)) if state >= FIRST else (ERROR, DEAD)

    @kept_of_states
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
        found = self._number(after, target)
        return found if self.min_tokens(found) < UNREACHABLE else DEAD

    @kept_of_states
    def _targets(self, state: int) -> NDArray[np.int32]:
        """Return the target of each class of tokens."""
        with self._lock:
            configuration, lexer_state = self._split(state)
            spans = self.spanner.of_state(lexer_state)
            live = np.flatnonzero(self.distances_after(state) < UNREACHABLE)
            words = TerminalWords.of(self.spanner.words, spans.word[live])
            targets = np.full(spans.partition.size, DEAD, dtype=np.int32)
            targets[live] = self._number(words.read(self.parser, configuration), spans.target[live])
            targets[EOS] = DONE if EOS in live else DEAD
            return targets


def _restored(version: str, tables: bytes) -> CFGGuide:
    """Return the guide of pickled tables, which mean nothing to another version of the package."""
    if version != __version__:
        raise UnsupportedError(
            f"a CFGGuide of outlines_phi {version} was unpickled by outlines_phi {__version__}, which may allow other tokens; make "
            "it anew: CFGGuide.of(read_grammar(text), vocabulary)"
        )
    return CFGGuide(*pickle.loads(tables))
