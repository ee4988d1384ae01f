"""The rules of a grammar as the parser reads them: closed by the end of the text, and without empty bodies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import final

from ....errors import EmptyLanguageError
from ..grammar import Grammar, Production, derivable

END = -1  # The end of the text, as a terminal: the last symbol of every complete parse, and of none that goes on

MOST_OPTIONAL = 3
"""Symbols of one body that may be left out; a body with more of them is cut in two, so that its variants stay few."""


@final
@dataclass(frozen=True, eq=False)
class Rules:
    """Productions over the symbols of a grammar, with a new start symbol ``S'`` whose only rule is ``S' -> S END``.

    Those that need a symbol that derives no word are left out. Nonterminals that the ``grammar`` lacks, from ``S'`` on, have the
    numbers after its own and the names ``added``.
    """

    grammar: Grammar
    productions: tuple[Production, ...]
    added: tuple[str, ...]

    @classmethod
    def of(cls, grammar: Grammar) -> Rules:
        """Return the rules of ``grammar``; raise :class:`EmptyLanguageError` where its start symbol derives no word."""
        if grammar.start not in grammar.productive:
            raise EmptyLanguageError(
                f"the start rule {grammar.name(grammar.start)!r} derives no text: each of its alternatives needs a rule that never "
                "ends. Give one of these rules an alternative without recursion"
            )
        start = len(grammar.terminals) + len(grammar.nonterminals)
        productions = [Production(start, (grammar.start, END)), *grammar.productions]
        return cls(grammar, _productive(productions, len(grammar.terminals)), ("$start",))

    @property
    def start(self) -> int:
        """The symbol ``S'``."""
        return len(self.grammar.terminals) + len(self.grammar.nonterminals)

    @property
    def terminals(self) -> int:
        """The number of terminals; every symbol from it on is a nonterminal."""
        return len(self.grammar.terminals)

    @cached_property
    def by_head(self) -> dict[int, list[int]]:
        """The numbers of the productions of each nonterminal."""
        numbers: dict[int, list[int]] = {}
        for number, production in enumerate(self.productions):
            numbers.setdefault(production.head, []).append(number)
        return numbers

    @cached_property
    def nullable(self) -> frozenset[int]:
        """The nonterminals that derive the empty word."""
        return derivable(self.productions, frozenset())

    def name(self, symbol: int) -> str:
        """Return what the grammar calls ``symbol``."""
        if symbol == END:
            return "$END"
        return self.added[symbol - self.start] if symbol >= self.start else self.grammar.name(symbol)

    def describe(self, number: int, dot: int | None = None) -> str:
        """Return a production as text, with a dot before the symbol at ``dot``."""
        production = self.productions[number]
        body = [self.name(symbol) for symbol in production.body]
        if dot is not None:
            body.insert(dot, "•")
        line = f" (line {production.line})" if production.line else ""
        return f"{self.name(production.head)}: {' '.join(body)}".rstrip() + line

    def without_empty_bodies(self) -> Rules:
        """Return rules of the same words none of whose bodies is empty.

        Every production is replaced by its variants, which leave out some of the symbols that may be empty. With them go hidden
        left recursion and all other ways in which a parser could reduce without end and without reading.
        """
        rules = self._cut()
        variants: dict[tuple[int, tuple[int, ...]], Production] = {}
        for production in rules.productions:
            for body in _variants(production.body, rules.nullable):
                if body and body != (production.head,):
                    variants.setdefault((production.head, body), replace(production, body=body))
        return replace(rules, productions=_productive(list(variants.values()), rules.terminals))

    def _cut(self) -> Rules:
        """Return the same rules with at most :data:`MOST_OPTIONAL` symbols that may be left out, and one more, in a body."""
        productions, added = [], list(self.added)
        for production in self.productions:
            head, body = production.head, production.body
            while (
                len(optional := [place for place, symbol in enumerate(body) if symbol in self.nullable])
                > MOST_OPTIONAL + 1
            ):
                place = optional[MOST_OPTIONAL]
                rest = self.start + len(added)
                added.append(f"{self.name(production.head)}…{self.name(body[place])}")
                productions.append(replace(production, head=head, body=(*body[:place], rest)))
                head, body = rest, body[place:]
            productions.append(replace(production, head=head, body=body))
        return replace(self, productions=tuple(productions), added=tuple(added))


def _productive(productions: Sequence[Production], terminals: int) -> tuple[Production, ...]:
    given = range(END, terminals)
    ends = derivable(productions, given).union(given)
    return tuple(production for production in productions if ends.issuperset(production.body))


def _variants(body: tuple[int, ...], nullable: frozenset[int]) -> Iterator[tuple[int, ...]]:
    choices = [((symbol,), ()) if symbol in nullable else ((symbol,),) for symbol in body]
    return (tuple(symbol for choice in chosen for symbol in choice) for chosen in product(*choices))
