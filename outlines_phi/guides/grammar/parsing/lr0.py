"""The LR(0) automaton of a grammar: the viable prefixes of its rightmost derivations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

from .rules import Rules


class Item(NamedTuple):
    """A dotted rule: ``dot`` symbols of the body of a production have been read."""

    production: int
    dot: int


@final
@dataclass(frozen=True, eq=False)
class LR0Automaton:
    """Deterministic, over terminals and nonterminals; state 0 is the start.

    If every symbol derives a word, the words that it reads are exactly the viable prefixes: what may lie on the stack of a
    parser before text that completes it (Knuth, "On the translation of languages from left to right", 1965).

    Attributes
    ----------
    rules
        Whose automaton it is.
    kernels
        For each state the dotted rules that it was reached by; the rest of its rules begin with one of their next symbols.
    transitions
        For each state the next state by symbol.
    complete
        For each state the productions whose whole body has just been read.
    """

    rules: Rules
    kernels: tuple[tuple[Item, ...], ...]
    transitions: tuple[dict[int, int], ...]
    complete: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, rules: Rules) -> LR0Automaton:
        """Build it from the start, state by state."""
        beginnings = _Beginnings(rules)
        start = tuple(Item(number, 0) for number in rules.by_head[rules.start])
        number_of = {start: 0}
        kernels, transitions, complete = [start], [], []
        for kernel in kernels:  # it grows
            begun, empty = beginnings.of_nonterminals(frozenset(_next_symbols(rules, kernel)))
            moved = {symbol: list(items) for symbol, items in begun.items()}
            done = list(empty)
            for item in kernel:
                body = rules.productions[item.production].body
                if item.dot == len(body):
                    done.append(item.production)
                else:
                    moved.setdefault(body[item.dot], []).append(Item(item.production, item.dot + 1))
            row = {}
            for symbol, items in moved.items():
                key = tuple(sorted(set(items)))
                row[symbol] = number_of.setdefault(key, len(number_of))
                if row[symbol] == len(kernels):
                    kernels.append(key)
            transitions.append(row)
            complete.append(tuple(done))
        return cls(rules, tuple(kernels), tuple(transitions), tuple(complete))

    @cached_property
    def shortest(self) -> tuple[tuple[int, int], ...]:
        """For each state but the start ``(previous state, symbol)`` on a shortest way to it; ``(0, 0)`` for the start."""
        ways = {0: (0, 0)}
        for state in (order := [0]):
            for symbol, target in self.transitions[state].items():
                if target not in ways:
                    ways[target] = (state, symbol)
                    order.append(target)
        return tuple(ways[state] for state in range(len(self.kernels)))

    def example(self, state: int) -> tuple[int, ...]:
        """Return a shortest word of symbols that leads to ``state``."""
        word = []
        while state:
            state, symbol = self.shortest[state]
            word.append(symbol)
        return tuple(reversed(word))


def _next_symbols(rules: Rules, kernel: Iterable[Item]) -> Iterable[int]:
    bodies = ((rules.productions[item.production].body, item.dot) for item in kernel)
    return (body[dot] for body, dot in bodies if dot < len(body) and body[dot] >= rules.terminals)


class _Beginnings:
    """What the rules of nonterminals, and of those that they begin with, begin with; sets that recur are computed once."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._corners: dict[int, frozenset[int]] = {}
        self._found: dict[frozenset[int], tuple[dict[int, list[Item]], list[int]]] = {}

    def of_nonterminals(self, nonterminals: frozenset[int]) -> tuple[dict[int, list[Item]], list[int]]:
        """Return, by first symbol, the items behind it, and the productions with an empty body."""
        begun = frozenset[int]().union(*map(self._corner, nonterminals))
        if begun not in self._found:
            items: dict[int, list[Item]] = {}
            empty = []
            for head in sorted(begun):
                for number in self._rules.by_head[head]:
                    if body := self._rules.productions[number].body:
                        items.setdefault(body[0], []).append(Item(number, 1))
                    else:
                        empty.append(number)
            self._found[begun] = (items, empty)
        return self._found[begun]

    def _corner(self, nonterminal: int) -> frozenset[int]:
        """Return the nonterminals that a derivation from ``nonterminal`` may begin with, itself included."""
        if nonterminal not in self._corners:
            found, pending = {nonterminal}, [nonterminal]
            while pending:
                bodies = (self._rules.productions[number].body for number in self._rules.by_head[pending.pop()])
                new = {body[0] for body in bodies if body and body[0] >= self._rules.terminals} - found
                found |= new
                pending += new
            self._corners[nonterminal] = frozenset(found)
        return self._corners[nonterminal]
