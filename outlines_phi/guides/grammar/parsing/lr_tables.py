"""The rules of a grammar without empty bodies, and their LALR(1) tables; all actions are kept, for grammars that need several."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from typing import NamedTuple, TypeVar, final

from ....errors import EmptyLanguageError
from ....format_limits import current_limits
from ..grammar import END as END
from ..grammar import Grammar, Production

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


@final
@dataclass(frozen=True, eq=False)
class LR0Automaton:
    """The LR(0) automaton of a grammar, over terminals and nonterminals; state 0 is the start.

    If every symbol derives a word, the words that it reads are exactly the viable prefixes: what may lie on the stack of a parser
    before text that completes it (Knuth 1965). For each state, ``kernels`` are the dotted rules that it was reached by (the rest of
    its rules begin with one of their next symbols), ``transitions`` the next state by symbol, ``complete`` the productions whose
    whole body has just been read.
    """

    rules: Grammar
    kernels: tuple[tuple[LRItem, ...], ...]
    transitions: tuple[dict[int, int], ...]
    complete: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, rules: Grammar) -> LR0Automaton:
        beginnings = _beginnings(rules)
        start = tuple(LRItem(number, 0) for number in rules.by_head[rules.start])
        number_of, first = {start: 0}, len(rules.terminals)
        kernels, transitions, complete, steps = [start], [], [], 0
        for kernel in kernels:  # it grows
            rest = [rules.productions[item.production].body[item.dot :] for item in kernel]
            begun, empty = beginnings(frozenset(body[0] for body in rest if body and body[0] >= first))
            moved = {symbol: list(items) for symbol, items in begun.items()}
            done = list(empty)
            for item in kernel:
                body = rules.productions[item.production].body
                if item.dot == len(body):
                    done.append(item.production)
                else:
                    moved.setdefault(body[item.dot], []).append(LRItem(item.production, item.dot + 1))
            row = {}
            for symbol, items in moved.items():
                key = tuple(sorted(set(items)))
                row[symbol] = number_of.setdefault(key, len(number_of))
                if row[symbol] == len(kernels):
                    kernels.append(key)
            transitions.append(row)
            steps += len(row)
            current_limits().check("states", steps // 10, "The number of steps of the parser's automaton, in tens,")
            complete.append(tuple(done))
        return cls(rules, tuple(kernels), tuple(transitions), tuple(complete))


def _beginnings(rules: Grammar) -> Callable[[frozenset[int]], tuple[dict[int, list[LRItem]], list[int]]]:
    """Return a function of nonterminals: by first symbol of their rules, the items behind it; and the productions without a body.

    The rules of nonterminals at the beginning of a body count too. Sets that recur are computed once.
    """

    @cache
    def corner(nonterminal: int) -> frozenset[int]:
        """Return the nonterminals that a derivation from ``nonterminal`` may begin with, itself included."""
        found, pending = {nonterminal}, [nonterminal]
        while pending:
            bodies = (rules.productions[number].body for number in rules.by_head[pending.pop()])
            new = {body[0] for body in bodies if body and body[0] >= len(rules.terminals)} - found
            found |= new
            pending += new
        return frozenset(found)

    @cache
    def of_corner(heads: frozenset[int]) -> tuple[dict[int, list[LRItem]], list[int]]:
        items: dict[int, list[LRItem]] = {}
        empty = []
        for head in sorted(heads):
            for number in rules.by_head[head]:
                if body := rules.productions[number].body:
                    items.setdefault(body[0], []).append(LRItem(number, 1))
                else:
                    empty.append(number)
        return items, empty

    return lambda nonterminals: of_corner(frozenset[int]().union(*map(corner, nonterminals)))


Key = TypeVar("Key", bound=Hashable)
Transition = tuple[int, int]  # (state, nonterminal)


def lookaheads(automaton: LR0Automaton) -> list[dict[int, frozenset[int]]]:
    """Return, for each state, by production that is complete in it, the terminals that may follow (DeRemer and Pennello 1982).

    A transition by a nonterminal ``A`` from state ``p`` is followed by ``Follow(p, A)``, the least sets with

    - ``Read(p, A)``: the terminals that the next state reads, and ``Read(r, C)`` for its transitions by a ``C`` that may be
      empty;
    - ``Follow(p, A) = Read(p, A)`` and ``Follow(p', B)`` wherever ``B -> beta A gamma``, ``gamma`` may be empty, and ``beta``
      leads from ``p'`` to ``p``.

    The lookaheads of ``A -> omega`` in state ``q`` are the union of ``Follow(p, A)`` over the ``p`` from which ``omega`` leads to
    ``q``: those of the canonical LR(1) parser, merged over the states with the same dotted rules.
    """
    rules, transitions = automaton.rules, automaton.transitions
    nullable, first = rules.nullable, len(rules.terminals)
    next_terminals = [sum(1 << (symbol - END) for symbol in row if symbol < first) for row in transitions]
    bits: dict[Transition, int] = {}
    reads: dict[Transition, list[Transition]] = {}
    includes: dict[Transition, list[Transition]] = {}
    lookback: dict[Transition, list[Transition]] = {}  # (state, production) -> transitions by its head
    for state, row in enumerate(transitions):
        for symbol, target in row.items():
            if symbol < first:
                continue
            here = (state, symbol)
            bits[here] = next_terminals[target]
            reads[here] = [(target, empty) for empty in nullable if empty in transitions[target]]
            for number in rules.by_head[symbol]:
                body = rules.productions[number].body
                # Only the last symbols, behind which all may be empty, include what follows the head.
                tail = len(body)
                while tail and body[tail - 1] in nullable:
                    tail -= 1
                at = state
                for place, passed in enumerate(body):
                    if place >= tail - 1 and passed >= first:
                        includes.setdefault((at, passed), []).append(here)
                    at = transitions[at][passed]
                lookback.setdefault((at, number), []).append(here)
    _close(bits, reads)
    _close(bits, includes)
    sets: dict[int, frozenset[int]] = {}
    found: list[dict[int, frozenset[int]]] = []
    for state, complete in enumerate(automaton.complete):
        found.append({})
        for number in complete:
            union = 0
            for transition in lookback.get((state, number), ()):
                union |= bits[transition]
            if union not in sets:
                sets[union] = frozenset(bit + END for bit in range(union.bit_length()) if union >> bit & 1)
            found[state][number] = sets[union]
    return found


def _close(bits: dict[Key, int], needs: Mapping[Key, Iterable[Key]]) -> None:
    """Add to each set of bits those of the sets that it needs, until nothing changes."""
    needed_by: dict[Key, list[Key]] = {}
    for key, others in needs.items():
        for other in others:
            needed_by.setdefault(other, []).append(key)
    pending = list(needed_by)
    while pending:
        other = pending.pop()
        for key in needed_by.get(other, ()):
            union = bits[key] | bits[other]
            if union != bits[key]:
                bits[key] = union
                pending.append(key)


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
        automaton = LR0Automaton.of(rules)
        reductions = []
        for found in lookaheads(automaton):
            row: dict[int, tuple[int, ...]] = {}
            for production, terminals in found.items():
                for terminal in terminals:
                    row[terminal] = (*row.get(terminal, ()), production)
            reductions.append(row)
        return cls(
            rules,
            automaton.kernels,
            tuple(
                {s: target for s, target in row.items() if s < len(rules.terminals)} for row in automaton.transitions
            ),
            tuple(
                {s: target for s, target in row.items() if s >= len(rules.terminals)} for row in automaton.transitions
            ),
            tuple(reductions),
        )

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
