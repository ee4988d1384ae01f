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

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from ...automata.automaton import DEAD
from ...errors import GrammarError
from ..grammar.grammar import Grammar, Production, Terminal
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
    _check_apart(rules, _first_bytes(lexemes), _follow(productions))
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
    ).reduced()
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


def _first_bytes(lexemes: tuple[Lexeme, ...]) -> dict[Lexeme, frozenset[int]]:
    return {
        one: frozenset(np.flatnonzero(one.automaton.targets[one.automaton.start, one.automaton.byte_class]).tolist())
        for one in lexemes
    }


def _follow(productions: Productions) -> dict[Lexeme, set[Lexeme]]:
    """Return which lexemes may come after each: FOLLOW of terminals, by the usual fixed points."""
    count = len(productions.bodies)
    empty, first, last = set[int](), [set[Lexeme]() for _ in range(count)], [set[Lexeme]() for _ in range(count)]

    def of(symbol: Symbol, sets: list[set[Lexeme]]) -> set[Lexeme]:
        return sets[symbol] if isinstance(symbol, int) else {symbol} if isinstance(symbol, Lexeme) else set()

    size = -1
    while size != (size := len(empty) + sum(map(len, first)) + sum(map(len, last))):
        for head, bodies in enumerate(productions.bodies):
            for body in bodies:
                for sets, symbols in ((first, body), (last, body[::-1])):
                    for symbol in symbols:
                        sets[head] |= of(symbol, sets)
                        if symbol not in empty:
                            break
                    else:
                        empty.add(head)
    found: dict[Lexeme, set[Lexeme]] = {}
    for bodies in productions.bodies:
        for body in bodies:
            for place, symbol in enumerate(body):
                for other in body[place + 1 :]:
                    for one in of(symbol, last):
                        found.setdefault(one, set()).update(of(other, first))
                    if other not in empty:
                        break
    return found


def _check_apart(rules: GuidanceRules, first: dict[Lexeme, frozenset[int]], follow: dict[Lexeme, set[Lexeme]]) -> None:
    for one, other in combinations(rules.lexemes, 2):
        both = one.automaton & other.automaton
        if not both.is_empty:
            raise _refused(rules, one, other, both.shortest(), "both match")
    for one in rules.lexemes:
        behind = frozenset[int]().union(*(first[after] for after in follow.get(one, ())))
        for other in rules.lexemes:
            for text in _longer(one, other, behind):
                raise _refused(rules, one, other, text, "may go on, or end within,")


def _longer(one: Lexeme, other: Lexeme, behind: frozenset[int]) -> Iterator[bytes]:
    """Yield texts that ``one`` could end within and that ``other`` goes on with, in a way that the engines read differently."""
    a, b = one.automaton, other.automaton
    seen = {(a.start, b.start)}
    waiting = [(a.start, b.start, b"")]
    for at, beside, text in waiting:  # grows as it is walked
        for byte in range(256):
            onward = b.step(beside, byte)
            if onward == DEAD:
                continue
            to = a.step(at, byte)
            if a.accepting[at]:
                if one is not other and (one.lazy or byte in behind):
                    yield text + bytes([byte])
                if one is other and not one.lazy and byte in behind and not a.accepting[to]:
                    yield text + bytes([byte])
            if to != DEAD and (to, onward) not in seen and not (one.lazy and a.accepting[at]):
                seen.add((to, onward))
                waiting.append((to, onward, text + bytes([byte])))


def _refused(rules: GuidanceRules, one: Lexeme, other: Lexeme, text: bytes, how: str) -> GrammarError:
    names = one.name if one is other else f"{one.name} and {other.name}"
    return rules.error(
        f"{names} {how} {text.decode(errors='backslashreplace')!r}, which a grammar with recursion may read in another way than "
        "llguidance here. Let them differ in their characters, or put a text between them that is in neither; alternatives in one "
        "place may be one lexeme: a select of texts, or one regular expression",
        other.at,
    )
