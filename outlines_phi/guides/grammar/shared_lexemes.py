"""Texts that are lexemes of several terminals: the rules decide which of them a text is (grammar-theory.md, section 2.1)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...automata.automaton import DEAD, ByteAutomaton
from ...errors import GrammarWarning, warn_of
from ...format_limits import current_limits
from .grammar import Grammar, LRTables, Production
from .lexeme_automaton import candidates, joint_of
from .lexer import START, Lexer


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
    size, more = len(terminals), len(sets)
    pairs = len(first) * more
    current_limits().check("states", pairs // 100, "The number of states times sets of terminals, in hundreds,")
    if not sets:
        return grammar
    joint = tuple(
        replace(terminals[of[0]], name=" or ".join(terminals[t].name for t in of), pattern="", shortest=False, of=of)
        for of in sets
    )
    ways = {t: (t, *(size + place for place, of in enumerate(sets) if t in of)) for of in sets for t in of}
    heads = {t: size + more + len(grammar.nonterminals) + place for place, t in enumerate(ways)}

    def bodies(body: tuple[int, ...]) -> list[tuple[int, ...]]:
        # Without a nonterminal, so that the choice of two terminals is no conflict.
        if len(body) == 1 and body[0] in ways:
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


def warn_of_priorities(grammar: Grammar, tables: LRTables) -> None:
    """Warn of priorities that take texts from a terminal where the rules can use it, and not the one that comes before it."""
    terminals = grammar.terminals
    if any(terminal.committed for terminal in terminals) or len({terminal.priority for terminal in terminals}) == 1:
        return
    joint, matched = joint_of(terminals)
    label, _ = candidates(terminals, matched)
    for loser, terminal in enumerate(terminals):
        uses = [state for state, row in enumerate(tables.shifts) if loser in row]
        for winner in np.unique(label[matched[:, loser]]).tolist():
            lost = [s for s in uses if winner not in tables.shifts[s] and winner not in tables.reductions[s]]
            if terminals[winner].priority > terminal.priority and lost and not terminal.of:
                taken = matched[:, loser] & (label == winner)
                text = ByteAutomaton(joint.targets, joint.byte_class, 1, taken).shortest()
                warn_of(
                    GrammarWarning,
                    f"Leave the priority of {terminals[winner].name} out, and the rules decide which of several terminals a text "
                    f"is. It takes texts such as {text.decode(errors='backslashreplace')!r} from {terminal.name} even where the "
                    f"rules can use {terminal.name} alone, so that they cannot stand there.",
                )


def neighbours(lexer: Lexer) -> NDArray[np.bool_]:
    """Return ``[T, T]``: whether the lexer may emit the second terminal behind the first, with nothing but ignored ones between."""
    terminals = lexer.terminals
    pairs = np.zeros((len(terminals), len(terminals)), dtype=bool)
    pairs_of = np.stack([lexer.emits, lexer.targets])[:, lexer.emits != 0]
    for word, target in np.unique(pairs_of, axis=1).T.tolist():
        for one, other in pairwise(lexer.words[word]):
            pairs[one, other] = True
        pairs[lexer.words[word][-1]] |= lexer.reaches[target]
    for t, terminal in enumerate(terminals):  # what is ignored may stand between
        if terminal.ignored:
            pairs |= pairs[:, t, None] & pairs[t]
    return pairs


def warn_of_neighbours(grammar: Grammar, lexer: Lexer) -> None:
    """Warn of alternatives that no text has, since the lexer emits two of their terminals never side by side."""
    pairs, size, productions = neighbours(lexer), len(grammar.terminals), list(grammar.productions)
    dead: list[Production] = []
    while True:
        # The terminals that each symbol begins with, and ends with.
        first = np.zeros((2, size + len(grammar.nonterminals), size), dtype=bool)
        first[:, range(size), range(size)] = True
        before = -1
        while before != (before := int(first.sum())):
            for production in productions:
                for side, symbols in zip(first, (production.body, production.body[::-1]), strict=True):
                    for symbol in symbols:
                        side[production.head] |= side[symbol]
                        if symbol not in grammar.nullable:
                            break
        behind = cache(lambda symbol, last=first[1]: pairs[last[symbol]].any(axis=0))
        apart = {
            production: None
            for production in productions
            for one, other in pairwise(production.body)
            if not {one, other} & grammar.nullable and not (behind(one) & first[0, other]).any()
        }
        if not apart:
            break
        dead += apart
        productions = [production for production in productions if production not in apart]
    if dead:
        warn_of(
            GrammarWarning,
            "Let the patterns of terminals that stand side by side exclude each other's texts, or write the rules in GBNF, which "
            f"has no lexemes. No text has these alternatives, for their terminals are read as others: "
            f"{'; '.join(map(grammar.describe, dead[:3])).replace('__', '')}.",
        )


def impossible_neighbours(lexer: Lexer, tables: LRTables) -> str:
    """Name the terminals that cannot stand where the rules have them, since other terminals take their texts; none is empty."""
    terminals, pairs = lexer.terminals, neighbours(lexer)
    _, matched = joint_of(terminals)
    label, _ = candidates(terminals, matched)
    takers = [np.unique(label[has]).tolist() for has in matched.T]
    found = [
        f"{' or '.join(terminals[w].name for w in takers[t])} has all texts of {terminal.name}, and comes first"
        for t, terminal in enumerate(terminals)
        if not (terminal.ignored or terminal.of) and all(t != w and t not in terminals[w].of for w in takers[t])
    ]
    for row in tables.shifts:
        for one, after in row.items():
            for other in sorted(tables.shifts[after].keys() | tables.reductions[after].keys()):
                if other < 0 or pairs[one, other] or not (one in takers[one] and other in takers[other]):
                    continue
                begins = (lexer.targets[START] != DEAD) & lexer.reaches[lexer.targets[START], other]
                longer = lexer.targets[np.ix_(lexer.label == one, begins)]
                taking = [terminals[t].name for t in np.flatnonzero(lexer.reaches[longer].any(axis=(0, 1)))]
                found.append(
                    f"{terminals[other].name} cannot stand behind {terminals[one].name}, for the text of both "
                    + (f"is read as {' or '.join(taking)}" if taking else "is no beginning of a lexeme")
                )
    return "; ".join(dict.fromkeys(found[:3]))
