"""Texts that are lexemes of several terminals: the rules decide which of them a text is (grammar-theory.md, section 2.1)."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import numpy as np

from ...errors import warn_of_grammar
from .grammar import Grammar, Production, Terminal
from .lexing.lexeme_automaton import LexemeAutomaton, candidates, joint_of
from .parsing.lr_tables import LRTables


def told_apart_by_rules(grammar: Grammar) -> Grammar:
    """Return a grammar of the same members, in which no text is a lexeme of several terminals of one rank.

    Each set of terminals that share lexemes becomes a terminal of its own, for the texts that just these match. Where the rules
    have one of the set, they then have the choice of that terminal and of the set.
    """
    terminals = grammar.terminals
    _, first = candidates(terminals, joint_of(terminals)[1])
    ignored = np.array([terminal.ignored for terminal in terminals])
    shared = np.unique(first[(first.sum(axis=1) > 1) & ~(first & ignored).any(axis=1)], axis=0)
    sets = [tuple(np.flatnonzero(row).tolist()) for row in shared]
    if not sets:
        return grammar
    size, more = len(terminals), len(sets)
    joint = tuple(
        replace(terminals[of[0]], name=" or ".join(terminals[t].name for t in of), pattern="", shortest=False, of=of)
        for of in sets
    )
    ways = {t: (t, *(size + place for place, of in enumerate(sets) if t in of)) for of in sets for t in of}
    heads = {t: size + more + len(grammar.nonterminals) + place for place, t in enumerate(ways)}

    def bodies(body: tuple[int, ...]) -> list[tuple[int, ...]]:
        if len(body) == 1 and body[0] in ways:  # without a nonterminal, so that the choice of two terminals is no conflict
            return [(way,) for way in ways[body[0]]]
        return [tuple(symbol + more if symbol >= size else heads.get(symbol, symbol) for symbol in body)]

    productions = [
        replace(production, head=production.head + more, body=body)
        for production in grammar.productions
        for body in bodies(production.body)
    ]
    productions += [Production(heads[t], (way,)) for t, several in ways.items() for way in several]
    names = (*grammar.nonterminals, *(f"__{terminals[t].name}" for t in ways))
    return Grammar((*terminals, *joint), names, tuple(dict.fromkeys(productions)), grammar.start + more)
