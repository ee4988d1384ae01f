"""Grammars over characters, as grammars over lexemes: pieces of the rules that longest match finds again in every text.

A rule over characters says nothing of lexemes, and every way to derive a text counts. Regular pieces of it may be terminals where
this changes nothing (grammar-theory.md, section 2.4): no terminal that is complete is continued, by itself or by another one, with
a byte with which what may follow it begins. Then the longest lexemes of a member are the pieces that it was derived from, and a
text of several terminals is any of them.

The pieces are as large as they can be at first, and taken apart until this holds. Of single characters it does, so every grammar is
read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain, combinations, count, groupby
from typing import NamedTuple, TypeAlias, final

import numpy as np

from ....automata.automaton import DEAD, ByteAutomaton, Product
from ....errors import GrammarError, OutlinesPhiError, warn_of_grammar
from ....regex.code_points import CodePoints
from ....regex.patterns import compile_regex, literal
from ....regex.syntax_tree import EMPTY, Chars, Choice, Node, Repeat, RuleName, Sequence, rules_of
from ..grammar import Grammar, Production, Terminal, followers
from ..lexing.lexeme_automaton import joint
from .gbnf import GBNFRule

_MOST_WRITTEN = 10_000
"""The most characters of the pattern of a terminal."""


class _NotRegular(Exception):
    """A rule uses itself, or its expression is too long to be that of a terminal."""


@final
class Pieces:
    """The expressions of rules: which are regular, as patterns; ``opened`` are those that are taken apart nevertheless."""

    def __init__(self, rules: Mapping[str, GBNFRule]) -> None:
        self.rules = rules
        self.opened: set[Node] = set()
        self._patterns: dict[str, str | None] = {}
        self._automata: dict[Node, ByteAutomaton | None] = {}

    def is_terminal(self, expression: Node) -> bool:
        """Return True if an expression is to be one terminal."""
        return expression not in self.opened and self.pattern(expression) is not None

    def pattern(self, expression: Node) -> str | None:
        """Return the regular expression of what an expression derives, ``None`` if it is not regular or too long."""
        try:
            return self.written(expression)
        except _NotRegular:
            return None

    def automaton(self, terminal: Node) -> ByteAutomaton | None:
        """Return the automaton of a regular expression, ``None`` where it is too large."""
        if terminal not in self._automata:
            try:
                self._automata[terminal] = compile_regex(self.written(terminal))
            except OutlinesPhiError:
                self._automata[terminal] = None
        return self._automata[terminal]

    def written(self, expression: Node) -> str:
        match expression:
            case Chars(points):
                found = class_of(points)
            case RuleName(rule):
                if rule not in self._patterns:
                    self._patterns[rule] = None  # if it uses itself
                    self._patterns[rule] = self.pattern(self.rules[rule].body)
                if (pattern := self._patterns[rule]) is None:
                    raise _NotRegular
                found = f"(?:{pattern})"
            case Choice(alternatives):
                found = f"(?:{'|'.join(map(self.written, alternatives))})"
            case Repeat(part, least, most):
                found = f"(?:{self.written(part)}){{{least},{'' if most is None else most}}}"
            case Sequence(parts):
                found = "".join(map(self.written, parts))
            case _:
                raise AssertionError(expression)
        if len(found) > _MOST_WRITTEN:
            raise _NotRegular
        return found


def concatenation(parts: Iterable[Node]) -> Node:
    """Return one part after another."""
    found = tuple(parts)
    return found[0] if len(found) == 1 else Sequence(found)


def class_of(points: CodePoints) -> str:
    """Return the pattern of one character."""
    pairs = [(literal(chr(low)), literal(chr(after - 1))) for low, after in zip(points[::2], points[1::2], strict=True)]
    if len(pairs) == 1 and len({*pairs[0]}) == 1:
        return pairs[0][0]
    return f"[{''.join(low if low == high else f'{low}-{high}' for low, high in pairs)}]"


_LARGEST = 50_000
"""The most symbols of all productions with repeats written out."""

_SHOWN = 60  # The length of a pattern in the name of a terminal

_PATIENCE = 10
"""The most times that the last part of a sequence is taken off before all of its parts are taken apart."""


def over_lexemes(rules: Mapping[str, GBNFRule], starts: tuple[str, ...]) -> Grammar:
    """Return the grammar of the texts that one of the rules ``starts`` derives.

    Raises :class:`GrammarError` where repeats make it too large.
    """
    start = " | ".join(starts)
    if len(starts) > 1:
        rules = {**rules, start: GBNFRule(Choice(tuple(map(RuleName, starts))), 0)}
    needed = _needed(rules, start)
    if unused := [name for name in rules if name not in needed]:
        warn_of_grammar(
            f"rules that the start rule {start!r} does not need are left out: {', '.join(map(repr, unused))}. Use them, or remove "
            "them"
        )
    pieces = Pieces(rules)
    for tried in count():
        cut = _Cut(pieces, start)
        apart = cut.conflicts()
        if not apart:
            return cut.grammar()
        assert not apart <= pieces.opened
        pieces.opened |= apart
        if tried >= _PATIENCE:
            pieces.opened.update(run for each in apart for run in _runs(each))
    raise AssertionError("single characters have no conflicts")


def _runs(expression: Node) -> Iterator[Node]:
    """Yield all runs of several parts of a sequence."""
    if isinstance(expression, Sequence):
        for first, last in combinations(range(len(expression.parts) + 1), 2):
            if last > first + 1:
                yield Sequence(expression.parts[first:last])


def _needed(rules: Mapping[str, GBNFRule], start: str) -> Collection[str]:
    """Return the rules that are used in what ``start`` derives, and itself."""
    found = {start: None}
    for rule in (waiting := [start]):  # it grows
        new = [used.rule for used in rules_of(rules[rule].body) if used.rule not in found]
        found.update(dict.fromkeys(new))
        waiting += dict.fromkeys(new)
    return found


Symbol: TypeAlias = int | Node  # A nonterminal by its number, or a terminal


class _Made(NamedTuple):
    """A production before all of its symbols have numbers."""

    head: int
    body: tuple[Symbol, ...]
    line: int


@final
class _Cut:
    """One way to cut the rules that ``start`` needs into terminals: the start is the nonterminal 0."""

    def __init__(self, pieces: Pieces, start: str) -> None:
        self._pieces = pieces
        self._names: list[str] = []  # of the nonterminals
        self._made: list[_Made] = []
        self._size = 0
        self._numbers: dict[Node, int] = {}
        self._waiting: list[str] = []
        self._rule, self._line = start, 0  # the rule that is cut
        self._of_rule(start)
        while self._waiting:
            self._rule = self._waiting.pop(0)
            body, self._line = self._pieces.rules[self._rule]
            self._define(self._numbers[RuleName(self._rule)], body)
        found = (symbol for made in self._made for symbol in made.body if not isinstance(symbol, int))
        self._terminals = list(dict.fromkeys(found))

    def conflicts(self) -> set[Node]:
        """Return the expressions that have to be taken apart, so that longest match cuts every member as it was derived."""
        automata = list(map(self._pieces.automaton, self._terminals))
        wrong = {i for i, automaton in enumerate(automata) if automaton is None}
        if not wrong and automata:
            wrong = self._prolonged()
        apart = {self._terminals[i] for i in wrong if not isinstance(self._terminals[i], Chars)}
        assert bool(apart) == bool(wrong), "single characters are never taken apart"
        return apart

    def grammar(self) -> Grammar:
        """Return the grammar of a cut without conflicts."""
        matched = self._joint.matched if self._terminals else np.zeros((1, 0), dtype=bool)
        # Of each terminal the first with the same lexemes.
        equal_to = [int((matched.T == row).all(axis=1).argmax()) for row in matched.T]
        kept = sorted(set(equal_to))
        terminals = [
            Terminal(self._name(self._terminals[t]), self._pieces.written(self._terminals[t]), committed=True)
            for t in kept
        ]
        symbols = {terminal: kept.index(equal_to[t]) for t, terminal in enumerate(self._terminals)}
        written = [
            Production(
                len(kept) + made.head,
                tuple(len(kept) + symbol if isinstance(symbol, int) else symbols[symbol] for symbol in made.body),
                made.line,
            )
            for made in self._made
        ]
        return Grammar(tuple(terminals), tuple(self._names), tuple(dict.fromkeys(written)), len(kept))

    def _name(self, terminal: Node) -> str:
        if isinstance(terminal, RuleName):
            return terminal.rule
        pattern = self._pieces.written(terminal)
        return pattern if len(pattern) <= _SHOWN else f"{pattern[:_SHOWN]}..."

    @cached_property
    def _joint(self) -> Product:
        return joint([automaton.without_empty() for t in self._terminals if (automaton := self._pieces.automaton(t))])

    def _prolonged(self) -> set[int]:
        """Return the terminals that go on behind a complete lexeme with a byte with which what may follow that begins."""
        number = {t: len(self._names) + place for place, t in enumerate(self._terminals)}
        bodies = [(each.head, [s if isinstance(s, int) else number[s] for s in each.body]) for each in self._made]
        joined, follow = self._joint, followers(bodies, number.values())
        begins = joined.places[joined.targets[1]] != DEAD  # [C, T]
        next_bytes = follow.astype(np.float32) @ begins.T.astype(np.float32) > 0  # [T, C]
        wrong = (joined.matched.astype(np.float32) @ next_bytes.astype(np.float32) > 0) & (joined.targets != DEAD)
        return set(np.flatnonzero((joined.places[joined.targets[wrong]] != DEAD).any(axis=0)).tolist())

    def _of_rule(self, name: str) -> int:
        if RuleName(name) not in self._numbers:
            self._numbers[RuleName(name)] = self._new(name)
            self._waiting.append(name)
        return self._numbers[RuleName(name)]

    def _new(self, name: str) -> int:
        self._names.append(name)
        return len(self._names) - 1

    def _add(self, head: int, body: Iterable[Symbol]) -> None:
        self._made.append(_Made(head, tuple(body), self._line))
        self._size += 1 + len(self._made[-1].body)
        if self._size > _LARGEST:
            raise GrammarError(
                f"the productions have more than {_LARGEST:,} symbols when repeats are written out, up to rule {self._rule!r} in "
                f"line {self._line}. Lower the numbers of repeats, or leave the upper ones out"
            )

    def _define(self, head: int, expression: Node) -> None:
        """Add the productions of a nonterminal that derives what ``expression`` does."""
        if not isinstance(expression, Choice) or self._pieces.is_terminal(expression):
            self._add(head, self._body(expression))
            return
        regular = [each for each in expression.branches if self._pieces.pattern(each) is not None]
        together = Choice(tuple(regular))
        if len(regular) > 1 and self._pieces.is_terminal(together):
            self._add(head, self._terminal(together))
        else:
            regular = []
        for each in expression.branches:
            if each not in regular:
                self._add(head, self._body(each))

    def _body(self, expression: Node) -> list[Symbol]:
        """Return the symbols that derive what ``expression`` does."""
        if self._pieces.is_terminal(expression):
            return self._terminal(expression)
        match expression:
            case RuleName(rule):
                return [self._of_rule(rule)]
            case Sequence(parts):
                found: list[Symbol] = []
                for regular, grouped in groupby(parts, lambda part: self._pieces.pattern(part) is not None):
                    run = tuple(grouped)
                    found += self._run(run) if regular else chain.from_iterable(map(self._body, run))
                return found
            case Repeat():
                return self._repeat(expression)
        if expression not in self._numbers:
            self._numbers[expression] = self._new(f"__{self._rule}_{len(self._names)}")
            self._define(self._numbers[expression], expression)
        return [self._numbers[expression]]

    def _run(self, parts: tuple[Node, ...]) -> list[Symbol]:
        """Return the symbols of regular parts that follow each other: first a terminal of as many of them as can be."""
        last = len(parts)
        if all(isinstance(part, Chars) for part in parts) and not self._pieces.is_terminal(concatenation(parts)):
            return list(parts)  # a string is one piece or none
        while last and not self._pieces.is_terminal(concatenation(parts[:last])):
            last -= 1
        if last == 0:
            return self._body(parts[0]) + (self._run(parts[1:]) if len(parts) > 1 else [])
        return self._terminal(concatenation(parts[:last])) + (self._run(parts[last:]) if last < len(parts) else [])

    def _repeat(self, expression: Repeat) -> list[Symbol]:
        part, least, most = self._body(expression.part), expression.least, expression.most
        key = Repeat(expression.part, 0, None if most is None else most - least)
        required = part * min(least, _LARGEST)  # more are refused when they are added
        if key.most == 0:
            return required
        before: list[Symbol] = []  # the derivation of one time less
        for times in (None,) if key.most is None else range(1, key.most + 1):
            key = Repeat(expression.part, 0, times)
            if key not in self._numbers:
                number = self._numbers[key] = self._new(f"__{self._rule}_{len(self._names)}")
                self._add(number, [])
                self._add(number, [number, *part] if times is None else [*part, *before])
            before = [self._numbers[key]]
        return required + before

    def _terminal(self, expression: Node) -> list[Symbol]:
        """Return the symbols of a regular expression: a terminal, that may be left out where it may be empty."""
        automaton = self._pieces.automaton(expression)
        if automaton is None or not automaton.accepting[automaton.start]:
            return [expression]
        if automaton.without_empty().is_empty:
            return []
        optional = Choice((EMPTY, expression))
        if optional not in self._numbers:
            self._numbers[optional] = self._new(f"__{self._rule}_{len(self._names)}")
            self._add(self._numbers[optional], [])
            self._add(self._numbers[optional], [expression])
        return [self._numbers[optional]]
