"""Grammars: what derives what, and what is of no use."""

import warnings
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi import EmptyLanguageError
from outlines_phi.errors import GrammarWarning
from outlines_phi.guides.grammar.grammar import Grammar, Production, Terminal

A, B, WS = Terminal("A", "a", literal=True), Terminal("B", "b"), Terminal("WS", " ", ignored=True)
S, X, Y = 3, 4, 5


def grammar(*productions: tuple[int, tuple[int, ...]], nonterminals: tuple[str, ...] = ("s", "x", "y")) -> Grammar:
    return Grammar((A, B, WS), nonterminals, tuple(Production(head, body) for head, body in productions), S)


def words(grammar: Grammar, longest: int = 3) -> set[tuple[str, ...]]:
    """The words of at most ``longest`` terminals, by the least fixed point of the productions as equations."""
    values: dict[int, set[tuple[str, ...]]] = {}
    while True:
        before = {head: set(value) for head, value in values.items()}
        for production in grammar.productions:
            options = [
                values.get(symbol, set()) if symbol >= len(grammar.terminals) else {(grammar.name(symbol),)}
                for symbol in production.body
            ]
            made = {sum(parts, ()) for parts in product(*options)}
            values.setdefault(production.head, set()).update(word for word in made if len(word) <= longest)
        if values == before:
            return values.get(grammar.start, set())


def quietly_reduced(grammar: Grammar) -> Grammar:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GrammarWarning)
        return grammar.reduced()


symbols = st.integers(0, 5).filter(lambda symbol: symbol != 2)
productions = st.tuples(st.integers(S, Y), st.lists(symbols, max_size=3).map(tuple))
grammars = st.lists(productions, min_size=1, max_size=7, unique=True).map(lambda rows: grammar(*rows))
fixed = settings(derandomize=True, deadline=None, max_examples=300)


def test_names_and_descriptions() -> None:
    found = grammar((S, (0, X)), (X, ()))
    assert [found.name(symbol) for symbol in range(6)] == ["A", "B", "WS", "s", "x", "y"]
    assert [found.describe(production) for production in found.productions] == ["s: A x", "x:"]


@fixed
@given(grammars)
def test_nullable_and_productive_as_enumerated(found: Grammar) -> None:
    for symbol in range(S, Y + 1):
        of_symbol = Grammar(found.terminals, found.nonterminals, found.productions, symbol)
        assert (symbol in found.nullable) is (() in words(of_symbol))
        if words(of_symbol):
            assert symbol in found.productive


@fixed
@given(grammars)
def test_a_reduced_grammar_has_the_same_words_and_nothing_else(found: Grammar) -> None:
    if S not in found.productive:
        with pytest.raises(EmptyLanguageError, match="'s' derives no text"):
            found.reduced()
        assert words(found) == set()
        return
    reduced = quietly_reduced(found)
    assert words(reduced) == words(found)
    everything = range(len(reduced.terminals) + len(reduced.nonterminals))
    ignored = {symbol for symbol, terminal in enumerate(reduced.terminals) if terminal.ignored}
    assert reduced.reachable | ignored == set(everything)
    assert reduced.productive == set(everything[len(reduced.terminals) :])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reduced.reduced() == reduced


def test_useless_rules_are_named() -> None:
    found = grammar((S, (0,)), (S, (X,)), (X, (1, X)), (Y, (1,)))
    with pytest.warns(GrammarWarning) as caught:
        reduced = found.reduced()
    never_ends, not_needed = (str(warning.message) for warning in caught)
    assert "never end" in never_ends and "'x'" in never_ends and "'y'" not in never_ends
    assert "does not need" in not_needed and "'y'" in not_needed
    assert reduced == Grammar((A, WS), ("s",), (Production(2, (0,)),), 2)
    assert {warning.filename for warning in caught} == {__file__}


def test_the_helpers_of_repeats_are_not_named() -> None:
    found = grammar((S, (0,)), (X, (Y,)), (Y, (Y, 0)), nonterminals=("s", "x", "__x_plus_0"))
    with pytest.warns(GrammarWarning, match="'x'") as caught:
        found.reduced()
    assert len(caught) == 1 and "__" not in str(caught[0].message)


def test_a_long_chain_of_rules_is_no_recursion() -> None:
    length = 5_000
    names = tuple(f"r{number}" for number in range(length))
    chain = [Production(1 + number, (2 + number,)) for number in range(length - 1)]
    found = Grammar((A,), names, (*chain, Production(length, (0,))), 1)
    assert found.reduced() == found
