"""Context-free grammars over terminals that are regular expressions, and their LALR(1) tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain, product
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...automata.byte_machine import closure
from ...errors import EmptyLanguageError, GrammarWarning, warn_of
from ...format_limits import current_limits
from ...vocabulary.special_tokens import references

END = -1  # The end of the text, as a terminal: the last symbol of every complete parse, and of none that goes on


@dataclass(frozen=True)
class Terminal:
    """A kind of lexeme."""

    name: str  # its name in the grammar
    pattern: str  # a regular expression, in the dialect of its own; a lexeme matches it as a whole
    # Where two terminals match the same longest lexeme, the higher number wins, as in Lark; a literal wins a tie against a
    # regular expression.
    priority: int = 0
    literal: bool = False  # the lexeme was written as a string, not as a regular expression
    ignored: bool = False  # it may stand between any two lexemes, and no production uses it
    shortest: bool = False  # the lexeme ends where it first matches, as behind a lazy quantifier
    # A byte that can make a complete lexeme of it longer does, even if nothing comes of it: no other lexeme that may follow begins
    # with such a byte, so longest match never goes back behind it. Of its texts the empty one is left out, and not refused.
    committed: bool = False
    # Where not empty, the numbers of other terminals: its lexemes are those that all of these match, before each of them alone.
    of: tuple[int, ...] = ()
    dialect: str = "rust"  # that of the pattern, one of :data:`~outlines_phi.regex.syntax_tree.DIALECTS`
    special: str = ""  # in place of a pattern: the special token that it is, or any of several, as it is written


@dataclass(frozen=True)
class Production:
    """``head -> body``: symbols as :class:`Grammar` numbers them; ``line`` is that of the rule in its source, 0 if unknown."""

    head: int
    body: tuple[int, ...]
    line: int = 0


@dataclass(frozen=True)
class Grammar:
    """A context-free grammar ``G = (N, T, P, S)``.

    ``terminals``, the ignored ones too, are the symbols ``0 .. T-1``; ``nonterminals``, by name, ``T .. T+N-1``, one of them
    ``start``; ``productions`` are in the order of the source.
    """

    terminals: tuple[Terminal, ...]
    nonterminals: tuple[str, ...]
    productions: tuple[Production, ...]
    start: int

    def name(self, symbol: int) -> str:
        """Return the grammar's name of ``symbol``."""
        if symbol == END:
            return "$END"
        first = len(self.terminals)
        return self.terminals[symbol].name if symbol < first else self.nonterminals[symbol - first]

    def describe(self, production: Production, dot: int | None = None) -> str:
        """Return ``production`` as text; with a ``dot`` before the symbol there, and its line, where that is given."""
        body = list(map(self.name, production.body))
        if dot is not None:
            body.insert(dot, "•")
        line = f" (line {production.line})" if production.line and dot is not None else ""
        return f"{self.name(production.head)}: {' '.join(body)}".rstrip() + line

    @property
    def text(self) -> str:
        """The terminals and the productions, a line each: equal for equal grammars."""
        return "\n".join([*map(str, self.terminals), *map(self.describe, self.productions), self.name(self.start)])

    @property
    def special(self) -> list[str]:
        """The special tokens that texts have, each by its name or its id."""
        return [one for terminal in self.terminals if terminal.special for one in references(terminal.special)]

    @property
    def alone(self) -> Terminal | None:
        """The terminal of all texts, where the reduced grammar derives it, or nothing, and no other word."""
        if len(self.terminals) != 1 or any(len(production.body) > 1 for production in self.productions):
            return None
        (terminal,) = self.terminals
        if terminal.ignored or terminal.shortest or terminal.special:
            return None
        if self.start not in self.nullable:
            return terminal
        # Flags that hold for the whole pattern stand at its beginning.
        if terminal.dialect == "python" and terminal.pattern.startswith("(?"):
            return None
        return replace(terminal, pattern=f"(?:{terminal.pattern})?")

    @cached_property
    def nullable(self) -> frozenset[int]:
        """The nonterminals that derive the empty word."""
        return derivable(self.productions, frozenset())

    @cached_property
    def productive(self) -> frozenset[int]:
        """The nonterminals that derive a word of terminals."""
        return derivable(self.productions, range(END, len(self.terminals)))

    @cached_property
    def by_head(self) -> dict[int, list[int]]:
        """The numbers of the productions of each nonterminal that has some."""
        numbers: dict[int, list[int]] = {}
        for number, production in enumerate(self.productions):
            numbers.setdefault(production.head, []).append(number)
        return numbers

    @cached_property
    def reachable(self) -> frozenset[int]:
        """The symbols that occur in what the start symbol derives."""
        bodies = {head: [self.productions[number].body for number in numbers] for head, numbers in self.by_head.items()}
        return frozenset(closure([self.start], lambda symbol: chain.from_iterable(bodies.get(symbol, ()))))

    def reduced(self) -> Grammar:
        """Return the grammar of the same language without useless symbols, and warn of the rules that were useless.

        A nonterminal is useful if it derives a word of terminals and occurs in what the start symbol derives by rules that do.
        Terminals that are then in no production are left out, unless they are ignored. Raises :class:`EmptyLanguageError` where the
        start symbol derives no word.
        """
        if self.start not in self.productive:
            raise EmptyLanguageError(
                f"the start rule {self.name(self.start)!r} derives no text: these rules never end: "
                f"{_listed(self._unproductive())}. "
                "Each of their alternatives needs a rule of this list; give one an alternative without recursion"
            )
        if unproductive := self._unproductive():
            warn_of(
                GrammarWarning,
                f"rules that never end are left out, with the alternatives that use them: {_listed(unproductive)}. Each of their "
                "alternatives needs a rule of this list; give one an alternative without recursion, or remove them",
            )
        first = len(self.terminals)
        ends = self.productive.union(range(first))
        without = self._keep(range(first), ends, lambda production: ends.issuperset(production.body))
        if unreachable := [without.name(s) for s in without._nonterminals() if s not in without.reachable]:
            warn_of(
                GrammarWarning,
                f"rules that the start rule {self.name(self.start)!r} does not need are left out: {_listed(unreachable)}. "
                "Use them, or remove them",
            )
        kept = [s for s, terminal in enumerate(without.terminals) if terminal.ignored or s in without.reachable]
        return without._keep(kept, without.reachable, lambda production: True)

    def _nonterminals(self) -> range:
        return range(len(self.terminals), len(self.terminals) + len(self.nonterminals))

    def _unproductive(self) -> list[str]:
        return [self.name(symbol) for symbol in self._nonterminals() if symbol not in self.productive]

    def _keep(self, terminals: Iterable[int], symbols: Collection[int], use: Callable[[Production], bool]) -> Grammar:
        """Return the grammar of some terminals, of those of ``symbols`` that are nonterminals, and of their productions of use."""
        kept = list(terminals)
        nonterminals = [symbol for symbol in self._nonterminals() if symbol in symbols]
        number = {symbol: new for new, symbol in enumerate([*kept, *nonterminals])}
        return Grammar(
            tuple(replace(t, of=tuple(number[each] for each in t.of)) for t in map(self.terminals.__getitem__, kept)),
            tuple(self.name(symbol) for symbol in nonterminals),
            tuple(
                Production(number[p.head], tuple(number[symbol] for symbol in p.body), p.line)
                for p in self.productions
                if p.head in number and use(p)
            ),
            number[self.start],
        )


def derivable(productions: Sequence[Production], given: Container[int]) -> frozenset[int]:
    """Return the heads of productions whose bodies consist of such heads and of what is given: the least fixed point."""
    waiting: dict[int, list[int]] = {}
    missing, pending = [], []
    for number, production in enumerate(productions):
        needs = {symbol for symbol in production.body if symbol not in given}
        missing.append(len(needs))
        for symbol in needs:
            waiting.setdefault(symbol, []).append(number)
        if not needs:
            pending.append(production.head)
    found: set[int] = set()
    while pending:
        head = pending.pop()
        if head not in found:
            found.add(head)
            for number in waiting.get(head, ()):
                missing[number] -= 1
                if not missing[number]:
                    pending.append(productions[number].head)
    return frozenset(found)


def followers(productions: Sequence[Production], terminals: int) -> NDArray[np.bool_]:
    """Return ``bool[T, T]``: which terminals may come directly behind each (FOLLOW, by its fixed point)."""
    first = defaultdict(int, {terminal: 1 << terminal for terminal in range(terminals)})
    follow, empty, size = defaultdict[int, int](int), set[int](), -1
    while size != (size := len(empty) + sum(map(int.bit_count, [*first.values(), *follow.values()]))):
        for head, body in ((production.head, production.body) for production in productions):
            behind, is_last = 0, True
            for symbol in reversed(body):
                follow[symbol] |= behind | (follow[head] if is_last else 0)
                if symbol in empty:
                    behind |= first[symbol]
                else:
                    behind, is_last = first[symbol], False
            first[head] |= behind
            if is_last:
                empty.add(head)
    return np.array([[follow[t] >> u & 1 for u in range(terminals)] for t in range(terminals)], dtype=bool)


def _listed(names: list[str]) -> str:
    """Return names in quotes; those that the reader gave to repeats begin with two underscores and say nothing."""
    return ", ".join(map(repr, [name for name in names if not name.startswith("__")] or names))


MOST_OPTIONAL = 3
"""Symbols of one body that may be left out; a body with more of them is cut in two, so that its variants stay few."""


def augmented(grammar: Grammar) -> Grammar:
    """Return the grammar with a new start symbol ``S'`` whose only rule is ``S' -> S END``.

    Productions that need a symbol that derives no word are left out. Raises :class:`EmptyLanguageError` where the start symbol
    derives none.
    """
    if grammar.start not in grammar.productive:
        raise EmptyLanguageError(
            f"the start rule {grammar.name(grammar.start)!r} derives no text: each of its alternatives needs a rule that never "
            "ends. Give one of these rules an alternative without recursion"
        )
    names = (*grammar.nonterminals, "$start")
    start = len(grammar.terminals) + len(grammar.nonterminals)
    productions = (Production(start, (grammar.start, END)), *grammar.productions)
    return _productive(Grammar(grammar.terminals, names, productions, start))


def without_empty_bodies(grammar: Grammar) -> Grammar:
    """Return a grammar of the same words none of whose bodies is empty.

    Every production is replaced by its variants, which leave out some of the symbols that may be empty. With them go hidden
    left recursion and all other ways in which a parser could reduce without end and without reading.
    """
    rules = _cut(grammar)
    variants: dict[tuple[int, tuple[int, ...]], Production] = {}
    for production in rules.productions:
        for body in _variants(production.body, rules.nullable):
            if body and body != (production.head,):
                variants.setdefault((production.head, body), replace(production, body=body))
    return _productive(replace(rules, productions=tuple(variants.values())))


def _cut(grammar: Grammar) -> Grammar:
    """Return the same grammar with at most :data:`MOST_OPTIONAL` symbols that may be left out, and one more, in a body."""
    productions, names = list[Production](), list(grammar.nonterminals)
    for production in grammar.productions:
        head, body = production.head, production.body
        while len(optional := [at for at, symbol in enumerate(body) if symbol in grammar.nullable]) > MOST_OPTIONAL + 1:
            place = optional[MOST_OPTIONAL]
            rest = len(grammar.terminals) + len(names)
            names.append(f"{grammar.name(production.head)}…{grammar.name(body[place])}")
            productions.append(replace(production, head=head, body=(*body[:place], rest)))
            head, body = rest, body[place:]
        productions.append(replace(production, head=head, body=body))
    return replace(grammar, productions=tuple(productions), nonterminals=tuple(names))


def _productive(grammar: Grammar) -> Grammar:
    ends = grammar.productive.union(range(END, len(grammar.terminals)))
    return replace(grammar, productions=tuple(each for each in grammar.productions if ends.issuperset(each.body)))


def _variants(body: tuple[int, ...], nullable: frozenset[int]) -> Iterator[tuple[int, ...]]:
    choices = [((symbol,), ()) if symbol in nullable else ((symbol,),) for symbol in body]
    return (tuple(symbol for choice in chosen for symbol in choice) for chosen in product(*choices))


class LRItem(NamedTuple):
    """A dotted rule: ``dot`` symbols of the body of a production have been read."""

    production: int
    dot: int


def viable_prefixes(rules: Grammar) -> tuple[list[tuple[LRItem, ...]], list[dict[int, int]]]:
    """Return the LR(0) automaton of rules without empty bodies: for each state its kernel, and the next state by symbol.

    If every symbol derives a word, the words that it reads are exactly the viable prefixes: what may lie on the stack of a parser
    before text that completes it (Knuth 1965). A *kernel* is the dotted rules that a state was reached by: the rest of its rules
    begin with one of their next symbols. State 0 is the start.
    """
    first = len(rules.terminals)

    @cache
    def corner(nonterminal: int) -> frozenset[int]:
        """Return the nonterminals that a derivation from ``nonterminal`` may begin with, itself included."""

        def begins(head: int) -> Iterator[int]:
            return (s for number in rules.by_head[head] if (s := rules.productions[number].body[0]) >= first)

        return frozenset(closure([nonterminal], begins))

    @cache
    def begun(heads: frozenset[int]) -> dict[int, list[LRItem]]:
        """Return the rules of some nonterminals with their first symbol read, by that symbol."""
        items: dict[int, list[LRItem]] = {}
        for number in (number for head in sorted(heads) for number in rules.by_head[head]):
            items.setdefault(rules.productions[number].body[0], []).append(LRItem(number, 1))
        return items

    start = tuple(LRItem(number, 0) for number in rules.by_head[rules.start])
    number_of, kernels, transitions, steps = {start: 0}, [start], list[dict[int, int]](), 0
    for kernel in kernels:  # it grows
        rest = [(item, body) for item in kernel if len(body := rules.productions[item.production].body) > item.dot]
        corners = {body[item.dot] for item, body in rest if body[item.dot] >= first}
        moved = {s: list(items) for s, items in begun(frozenset[int]().union(*map(corner, corners))).items()}
        for item, body in rest:
            moved.setdefault(body[item.dot], []).append(LRItem(item.production, item.dot + 1))
        transitions.append({})
        for symbol, items in moved.items():
            key = tuple(sorted(set(items)))
            transitions[-1][symbol] = number_of.setdefault(key, len(number_of))
            if len(number_of) > len(kernels):
                kernels.append(key)
        steps += len(moved)
        current_limits().check("states", steps // 10, "The number of steps of the parser's automaton, in tens,")
    return kernels, transitions


Transition = tuple[int, int]  # (state, nonterminal)


def lookaheads(rules: Grammar, transitions: Sequence[Mapping[int, int]]) -> dict[tuple[int, int], int]:
    """Return the terminals that may follow a production that is complete in a state, as bits (DeRemer and Pennello 1982).

    A transition by a nonterminal ``A`` from state ``p`` is followed by ``Follow(p, A)``, the least sets with

    - the terminals that the next state reads;
    - ``Follow(p', B)`` wherever ``B -> beta A``, and ``beta`` leads from ``p'`` to ``p``.

    The lookaheads of ``A -> omega`` in state ``q`` are the union of ``Follow(p, A)`` over the ``p`` from which ``omega`` leads to
    ``q``: those of the canonical LR(1) parser, merged over the states with the same dotted rules.
    """
    first = len(rules.terminals)
    reads = [sum(1 << (symbol - END) for symbol in row if symbol < first) for row in transitions]
    follow: dict[Transition, int] = {}
    included: dict[Transition, list[Transition]] = {}  # by a transition, those at the end of its bodies
    ends: dict[Transition, list[tuple[int, int]]] = {}  # by a transition, where its bodies are complete
    for state, row in enumerate(transitions):
        for symbol, target in row.items():
            if symbol >= first:
                here = (state, symbol)
                follow[here], included[here], ends[here] = reads[target], [], []
                for number in rules.by_head[symbol]:
                    body, before, at = rules.productions[number].body, state, state
                    for passed in body:
                        before, at = at, transitions[at][passed]
                    included[here] += [(before, body[-1])] * (body[-1] >= first)
                    ends[here].append((at, number))
    pending = list(follow)
    while pending:
        here = pending.pop()
        for there in included[here]:
            if follow[here] & ~follow[there]:
                follow[there] |= follow[here]
                pending.append(there)
    found: dict[tuple[int, int], int] = {}
    for here, places in ends.items():
        for place in places:
            found[place] = found.get(place, 0) | follow[here]
    return found


@final
@dataclass(frozen=True, eq=False)
class LRTables:
    """The actions of a parser in each state, before each terminal. The start is state 0.

    There is no action of its own for acceptance: the end of the text is the terminal :data:`END`, which is shifted. For each
    state, ``kernels`` are the dotted rules that it was reached by, ``shifts`` and ``goto`` the next state by terminal and by
    nonterminal, ``reductions`` the productions that may be reduced by the terminal that follows.
    """

    rules: Grammar
    kernels: tuple[tuple[LRItem, ...], ...]
    shifts: tuple[dict[int, int], ...]
    goto: tuple[dict[int, int], ...]
    reductions: tuple[dict[int, tuple[int, ...]], ...]

    @classmethod
    def of(cls, rules: Grammar) -> LRTables:
        """Return the tables of rules without empty bodies."""
        kernels, transitions = viable_prefixes(rules)
        first = len(rules.terminals)
        reductions: list[dict[int, tuple[int, ...]]] = [{} for _ in kernels]
        for (state, production), bits in sorted(lookaheads(rules, transitions).items()):
            for terminal in (bit + END for bit in range(bits.bit_length()) if bits >> bit & 1):
                reductions[state][terminal] = (*reductions[state].get(terminal, ()), production)
        shifts = tuple({symbol: target for symbol, target in row.items() if symbol < first} for row in transitions)
        goto = tuple({symbol: target for symbol, target in row.items() if symbol >= first} for row in transitions)
        return cls(rules, tuple(kernels), shifts, goto, tuple(reductions))

    @property
    def states(self) -> int:
        return len(self.kernels)

    @cached_property
    def conflicts(self) -> int:
        """The number of conflicts of a parser with one stack; none where the rules are LALR(1)."""
        actions = {
            (state, productions, self.shifts[state].get(terminal))
            for state, row in enumerate(self.reductions)
            for terminal, productions in row.items()
        }
        return sum(len(productions) + (shift is not None) > 1 for _, productions, shift in actions)
