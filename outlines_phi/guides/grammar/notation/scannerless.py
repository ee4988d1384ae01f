"""Grammars over characters, as grammars over lexemes: pieces of the rules that longest match finds again in every text.

A rule over characters says nothing of lexemes, and every way to derive a text counts. Regular pieces of it may be terminals where
this changes nothing (grammar-theory.md, section 2.4): no terminal that is complete is continued, by itself or by another one, with
a byte with which what may follow it begins. Then the longest lexemes of a member are the pieces that it was derived from, and a
text of several terminals is any of them.

The pieces are as large as they can be at first, and taken apart until this holds. Of single characters it does, so every grammar is
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations, count, groupby
from typing import final

import numpy as np

from ....automata.automaton import DEAD, ByteAutomaton, Product
from ....automata.byte_machine import closure
from ....errors import GrammarWarning, OutlinesPhiError, warn_of
from ....regex.patterns import compile_regex
from ....regex.syntax_tree import EMPTY, Chars, Choice, Leaf, Node, Repeat, RuleName, Sequence, parts_of, rules_of
from ..grammar import Grammar, Production, Terminal
from ..lexeme_automaton import bytes_behind, joint
from .lowering import GrammarRule, Lowering, SpecialToken, written

_MOST_WRITTEN = 10_000
"""The most characters of the pattern of a terminal."""


class _NotRegular(Exception):
    """A rule uses itself or has a special token, or its expression is too long to be that of a terminal."""


@final
@dataclass(frozen=True)
class TerminalLeaf(Leaf):
    """A part of a rule that is one terminal."""

    expression: Node


@final
class Pieces:
    """The expressions of rules: which are regular, as patterns; ``opened`` are those that are taken apart nevertheless."""

    def __init__(self, rules: Mapping[str, GrammarRule]) -> None:
        self.rules = rules
        self.opened: set[Node] = set()
        self._patterns: dict[Node, str | None] = {}
        self._automata: dict[Node, ByteAutomaton | None] = {}

    def pattern(self, expression: Node) -> str | None:
        """Return the regular expression of what an expression derives, ``None`` if it is not regular or too long."""
        if expression not in self._patterns:
            self._patterns[expression] = None  # if it uses itself
            try:
                pattern = written(expression, self._of_rule)
                self._patterns[expression] = pattern if len(pattern) <= _MOST_WRITTEN else None
            except _NotRegular:
                pass
        return self._patterns[expression]

    def _of_rule(self, rule: Node) -> str:
        if isinstance(rule, SpecialToken):
            raise _NotRegular
        assert isinstance(rule, RuleName)
        if (pattern := self.pattern(self.rules[rule.rule].body)) is None:
            raise _NotRegular
        return f"(?:{pattern})"

    def is_terminal(self, expression: Node) -> bool:
        """Return True if an expression is to be one terminal."""
        return expression not in self.opened and self.pattern(expression) is not None

    def automaton(self, expression: Node) -> ByteAutomaton | None:
        """Return the automaton of a regular expression, ``None`` where it is too large."""
        if expression not in self._automata:
            try:
                special = expression.written if isinstance(expression, SpecialToken) else None
                made = (
                    compile_regex(self.pattern(expression) or "")
                    if special is None
                    else ByteAutomaton.of_special(special)
                )
                self._automata[expression] = made
            except OutlinesPhiError:
                self._automata[expression] = None
        return self._automata[expression]

    def cut(self, tree: Node) -> Node:
        """Return a tree with its largest regular pieces as leaves."""
        if self.is_terminal(tree):
            return self._terminal(tree)
        match tree:
            case Choice(branches):
                regular = tuple(branch for branch in branches if self.pattern(branch) is not None)
                if len(regular) < 2 or not self.is_terminal(Choice(regular)):
                    return Choice(tuple(map(self.cut, branches)))
                others = (self.cut(branch) for branch in branches if branch not in regular)
                return Choice((self._terminal(Choice(regular)), *others))
            case Sequence(parts):
                runs = groupby(parts, lambda part: self.pattern(part) is not None)
                cut = ((self._run(tuple(run)) if regular else map(self.cut, run)) for regular, run in runs)
                return Sequence(tuple(chain.from_iterable(cut)))
            case Repeat(part, least, most):
                return Repeat(self.cut(part), least, most)
            case SpecialToken():
                return TerminalLeaf(tree)
        return tree

    def _run(self, parts: tuple[Node, ...]) -> Iterator[Node]:
        """Yield regular parts that follow each other: first a piece of as many of them as can be."""
        while parts:
            last = next((end for end in range(len(parts), 0, -1) if self.is_terminal(_joined(parts[:end]))), 0)
            if all(isinstance(part, Chars) for part in parts) and last < len(parts):
                last = 1  # a string is one piece or none
            yield self.cut(_joined(parts[: max(last, 1)]))
            parts = parts[max(last, 1) :]

    def _terminal(self, expression: Node) -> Node:
        """Return the leaf of a regular expression, which may be left out where it may be empty."""
        automaton, leaf = self.automaton(expression), TerminalLeaf(expression)
        if automaton is None or not automaton.accepting[automaton.start]:
            return leaf
        return EMPTY if automaton.without_empty().is_empty else Choice((EMPTY, leaf))


def _joined(parts: tuple[Node, ...]) -> Node:
    """Return one part after another."""
    return parts[0] if len(parts) == 1 else Sequence(parts)


_SHOWN = 60  # The length of a pattern in the name of a terminal

_PATIENCE = 10
"""The most times that the last part of a sequence is taken off before all of its parts are taken apart."""


def over_lexemes(rules: Mapping[str, GrammarRule], starts: tuple[str, ...]) -> Grammar:
    """Return the grammar of the texts that one of the rules ``starts`` derives.

    Raises :class:`GrammarError` where repeats make it too large.
    """
    start = " | ".join(starts)
    if len(starts) > 1:
        rules = {**rules, start: GrammarRule(Choice(tuple(map(RuleName, starts))))}
    needed = set(closure([start], lambda rule: (used.rule for used in rules_of(rules[rule].body))))
    if unused := [name for name in rules if name not in needed]:
        warn_of(
            GrammarWarning,
            f"rules that the start rule {start!r} does not need are left out: {', '.join(map(repr, unused))}. Use them, or remove "
            "them",
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


@final
class _Cut:
    """One way to cut rules into terminals."""

    def __init__(self, pieces: Pieces, start: str) -> None:
        self._pieces = pieces
        rules: dict[str, GrammarRule] = {}
        found: dict[Node, None] = {}
        for name in (waiting := [start]):  # it grows
            if name not in rules:
                body, line = pieces.rules[name]
                rules[name] = GrammarRule(pieces.cut(body), line)
                leaves = [part for part in parts_of(rules[name].body) if isinstance(part, Leaf)]
                waiting += [leaf.rule for leaf in leaves if isinstance(leaf, RuleName)]
                found |= dict.fromkeys(leaf.expression for leaf in leaves if isinstance(leaf, TerminalLeaf))
        self._terminals = list(found)
        self._lowered = Lowering(rules, map(TerminalLeaf, found))

    def conflicts(self) -> set[Node]:
        """Return the expressions that have to be taken apart, so that longest match cuts every member as it was derived."""
        wrong = {i for i, terminal in enumerate(self._terminals) if self._pieces.automaton(terminal) is None}
        if not wrong and self._terminals:
            wrong = self._prolonged()
        apart = {self._terminals[i] for i in wrong if not isinstance(self._terminals[i], Chars)}
        assert bool(apart) == bool(wrong), "single characters are never taken apart"
        return apart

    def grammar(self) -> Grammar:
        """Return the grammar of a cut without conflicts."""
        terminals = [
            Terminal(t.written, "", special=t.written)
            if isinstance(t, SpecialToken)
            else Terminal(self._name(t), self._pieces.pattern(t) or "", committed=True)
            for t in self._terminals
        ]
        matched = self._joint.matched if terminals else np.zeros((1, 0), dtype=bool)
        # For each terminal the first with the same lexemes.
        first = [int((matched.T == row).all(axis=1).argmax()) for row in matched.T]
        productions = (
            Production(p.head, tuple(first[s] if s < len(first) else s for s in p.body), p.line)
            for p in self._lowered.productions
        )
        return Grammar(tuple(terminals), tuple(self._lowered.names), tuple(dict.fromkeys(productions)), len(first))

    def _name(self, terminal: Node) -> str:
        if isinstance(terminal, RuleName):
            return terminal.rule
        pattern = self._pieces.pattern(terminal) or ""
        return pattern if len(pattern) <= _SHOWN else f"{pattern[:_SHOWN]}..."

    @cached_property
    def _joint(self) -> Product:
        return joint([automaton.without_empty() for t in self._terminals if (automaton := self._pieces.automaton(t))])

    def _prolonged(self) -> set[int]:
        """Return the terminals that go on behind a complete lexeme with a byte with which what may follow that begins."""
        joined, next_bytes = self._joint, bytes_behind(self._joint, self._lowered.productions)
        wrong = (joined.matched.astype(np.float32) @ next_bytes.astype(np.float32) > 0) & (joined.targets != DEAD)
        return set(np.flatnonzero((joined.places[joined.targets[wrong]] != DEAD).any(axis=0)).tolist())
