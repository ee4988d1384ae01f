"""A guidance grammar with recursion, for the engine of grammars: where both cut every text into the same lexemes.

llguidance lets a lexeme be as long as *those that the rules allow in its place* can make it; the engine of grammars lets it be as
long as any can, and falls back where a longer one fails. Both cut a text alike if none of these holds (``b`` may be the first byte
after a lexeme of ``L``):

- two kinds match one text;
- a text of ``L``, and it with ``b`` behind it, begin one of another kind;
- a text of ``L`` with ``b`` behind it begins a longer one of ``L``, and is none;
- a text of ``L`` that ends where it first matches begins one of another kind.

Grammars for which one holds are refused, with a shortest such text.
"""

from __future__ import annotations

from itertools import combinations, product

import numpy as np

from ...automata.automaton import DEAD, ByteAutomaton
from ...errors import GrammarError
from ..grammar.grammar import Grammar, Production, Terminal, followers
from ..grammar.lexing.lexeme_automaton import joint_of
from .guidance_rules import GuidanceRules
from .lexeme_kinds import Lexeme
from .productions import Productions, Symbol


def grammar_of(rules: GuidanceRules, productions: Productions) -> Grammar:
    """Return the grammar of some rules, which have recursion.

    Raises
    ------
    GrammarError
        It has JSON values, a lexeme that may be empty, or ends with what is taken away, or lexemes that the engine would tell apart
        in another way; or a rule derives itself.
    """
    for value in rules.values:
        raise rules.error("JSON values beside recursion cannot be read. Write the values out as rules", value.at)
    lexemes = rules.lexemes
    for one in lexemes:
        if one.hidden:
            raise rules.error("`stop` beside recursion cannot be read. Use suffix=, which stays in the text", one.at)
        if one.is_nullable:
            raise rules.error(
                f"{one.name} may be empty, which cannot be read beside recursion. Ask for at least one character (`+` for `*`), "
                'and make it optional, as in select([..., ""])',
                one.at,
            )
    number = {one: place for place, one in enumerate(lexemes)}
    grammar = Grammar(
        tuple(Terminal(one.name, one.pattern, shortest=one.lazy) for one in lexemes),
        tuple(productions.names),
        tuple(
            Production(len(lexemes) + head, tuple(_symbol(symbol, number, len(lexemes)) for symbol in body))
            for head, bodies in enumerate(productions.bodies)
            for body in dict.fromkeys(bodies)
        ),
        len(lexemes),
    )
    _check_apart(rules, grammar)
    grammar = grammar.reduced()
    if cycle := grammar.unit_cycle():
        names = list(dict.fromkeys(name.lstrip("_") for name in cycle))
        raise GrammarError(
            f"Rules derive themselves, {' -> '.join([*names, names[0]])}, so a text has infinitely many trees. Remove one of these "
            "alternatives, or let what is repeated have at least one lexeme."
        )
    return grammar


def _symbol(symbol: Symbol, number: dict[Lexeme, int], first: int) -> int:
    if isinstance(symbol, int):
        return first + symbol
    assert isinstance(symbol, Lexeme)
    return number[symbol]


def _check_apart(rules: GuidanceRules, grammar: Grammar) -> None:
    lexemes, (joint, matched) = rules.lexemes, joint_of(grammar.terminals)
    follow = followers([(each.head, each.body) for each in grammar.productions], range(len(lexemes)))
    alive = joint.places[joint.targets] != DEAD  # [S, C, T]
    behind = (follow.astype(np.float32) @ alive[1].T.astype(np.float32) > 0) | [[one.lazy] for one in lexemes]  # [T, C]

    for one, other in combinations(range(len(lexemes)), 2):
        both = ByteAutomaton(joint.targets, joint.byte_class, 1, matched[:, one] & matched[:, other])
        if not both.is_empty:
            raise _refused(rules, lexemes[one], lexemes[other], both.shortest(), "both match")
    for one, other in product(range(len(lexemes)), repeat=2):
        goes_on = alive[:, :, other] & matched[:, one, None] & behind[one]  # [S, C]
        if one == other:
            goes_on &= ~matched[joint.targets, one]
        complete = ByteAutomaton(joint.targets, joint.byte_class, 1, goes_on.any(axis=1))
        if not complete.is_empty:
            text = complete.shortest()
            byte = int(goes_on[complete.advance(1, text), joint.byte_class].argmax())
            raise _refused(rules, lexemes[one], lexemes[other], text + bytes([byte]), "may go on, or end within,")


def _refused(rules: GuidanceRules, one: Lexeme, other: Lexeme, text: bytes, how: str) -> GrammarError:
    names = one.name if one is other else f"{one.name} and {other.name}"
    return rules.error(
        f"{names} {how} {text.decode(errors='backslashreplace')!r}, which a grammar with recursion may read in another way than "
        "llguidance here. Let them differ in their characters, or put a text between them that is in neither; alternatives in one "
        "place may be one lexeme: a select of texts, or one regular expression",
        other.at,
    )
