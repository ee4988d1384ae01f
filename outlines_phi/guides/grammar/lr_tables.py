"""The rules of a grammar without empty bodies, and their LALR(1) tables; all actions are kept, for grammars that need several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from typing import NamedTuple, final

from ...automata.byte_machine import closure
from ...errors import EmptyLanguageError
from ...format_limits import current_limits
from .grammar import END as END
from .grammar import Grammar, Production

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
