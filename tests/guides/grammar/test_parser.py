"""The parser allows what an Earley recogniser allows, on every word, whatever the grammar is like; rules of no use are left out."""

import pickle
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from outlines_phi import EmptyLanguageError
from outlines_phi.errors import GrammarWarning
from outlines_phi.guides.grammar.grammar import END, MOST_OPTIONAL, LRTables, augmented, without_empty_bodies
from tests.guides.grammar.ansi_c import ANSI_C
from tests.guides.grammar.definition import Earley, grammar, grammars
from tests.guides.grammar.fixtures import words
from tests.inner import Grammar, Parser, Production, Terminal
from tests.refusals import refused

DYCK = "S: S E | \n E: ( S )"
AMBIGUOUS = "S: S + S | a"
CALC = "S: S + P | P \n P: P * U | U \n U: a | ( S ) | - U"
KINDS = {
    "ambiguous": AMBIGUOUS,
    "dangling else": "S: i S | i S e S | a",
    "two ways to write a list": "S: A S | B S | c \n A: a \n B: a",
    "palindromes": "S: a S a | b S b | ",
    "left recursion": "S: S a | b",
    "right recursion": "S: a S | b",
    "hidden left recursion": "S: B S a | c \n B: | b",
    "hidden left recursion of nothing": "S: B S a | c \n B: ",
    "hidden right recursion": "S: a S B | c \n B: | b",
    "a cycle": "S: A | a \n A: S | b S",
    "a cycle through nothing": "S: S B | a \n B: b | ",
    "a list of lists": "S: S L | \n L: L a | ",
    "only the empty word": "S: A A \n A: B \n B: ",
    "many optional symbols": "S: A A A A A A A x \n A: a | ",
    "optional symbols only": "S: A B C D E F G \n A: a | \n B: b | \n C: a | \n D: b | \n E: a | \n F: b | \n G: a | ",
    "LALR, not SLR": "S: L = R | R \n L: * R | i \n R: L",
    "LR(1), not LALR": "S: a A d | b B d | a B e | b A e \n A: c \n B: c",
    "LR(2)": "S: A a a | B a b \n A: c \n B: c",
    "not LR(k)": "S: A b | B d \n A: A a | a \n B: B a | a",
    "no union of deterministic ones": "S: A | B \n A: a A b | \n B: a B b b | ",
    "useless symbols": "S: a | S U | a V \n U: U a \n V: b \n W: a",
    "calculator": CALC,
    "Dyck": DYCK,
}


def compare(parser: Parser, length: int) -> int:
    """Assert that parser and recogniser agree on all words up to ``length``; return how many were viable."""
    earley = Earley(parser.grammar)
    terminals = range(len(parser.grammar.terminals))
    level, viable = [(parser.start, earley.start)], 0
    for step in range(length + 1):
        after = []
        viable += len(level)
        for configuration, sets in level:
            assert parser.accepts(configuration) == earley.accepts(sets)
            for terminal, below in zip(terminals, [earley.read(sets, terminal) for terminal in terminals], strict=True):
                target = parser.shift(configuration, terminal)
                assert (target == parser.ERROR) == (below is None)
                if below is not None:
                    after.append((target, below))
        level = after if step < length else []
    return viable


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.one_of(grammars(), grammars(terminals=3, nonterminals=4, productions=9), grammars(terminals=1)))
def test_agrees_with_earley_on_random_grammars(grammar: Grammar) -> None:
    assume(grammar.start in grammar.productive)
    compare(Parser.of(grammar), 5)


@pytest.mark.parametrize("rules", KINDS.values(), ids=KINDS)
def test_agrees_with_earley_on_each_kind(rules: str) -> None:
    assert compare(Parser.of(grammar(rules)), 7) >= 1


@pytest.mark.parametrize("kind", ["LR(1), not LALR", "LR(2)", "not LR(k)", "palindromes"])
def test_dropping_an_action_is_seen(kind: str) -> None:
    """The control: a parser that decides its conflicts is found out."""
    own = grammar(KINDS[kind])
    tables = Parser.of(own).tables
    assert tables.conflicts
    decided = replace(
        tables,
        reductions=tuple(
            {terminal: several[:1] for terminal, several in row.items() if terminal not in shifts}
            for row, shifts in zip(tables.reductions, tables.shifts, strict=True)
        ),
    )
    refused(None, compare, Parser(own, decided), 7, error=AssertionError)


def test_tables_can_be_stored() -> None:
    parser = Parser.of(grammar(CALC))
    assert compare(Parser(parser.grammar, pickle.loads(pickle.dumps(parser.tables))), 5) == compare(parser, 5) > 50
    assert pickle.loads(pickle.dumps(parser)).shift(parser.start, 0) == parser.shift(parser.start, 0)


def test_the_recogniser_itself() -> None:
    earley, members, viable = Earley(grammar("S: a S b | A \n A: ")), set(), set()
    for word in words(range(2), 4):
        sets = earley.start
        for terminal in word:
            sets = earley.read(sets, terminal) if sets else None
        viable |= {word} if sets else set()
        members |= {word} if sets and earley.accepts(sets) else set()
    assert members == {(), (0, 1), (0, 0, 1, 1)}
    assert viable == members | {(0,), (0, 0), (0, 0, 0), (0, 0, 1), (0,) * 4, (0, 0, 0, 1)}


@pytest.mark.parametrize("rules", [CALC, DYCK, KINDS["LALR, not SLR"]])
def test_one_stack_where_the_grammar_is_lalr(rules: str) -> None:
    parser = Parser.of(grammar(rules))
    assert not parser.tables.conflicts
    for configuration in walk(parser, 6):
        (stack,) = parser.stacks(configuration)
        while stack is not None:
            (stack,) = parser.below(stack) or (None,)


def walk(parser: Parser, length: int) -> Iterator[int]:
    """The configurations after all viable words up to ``length``."""
    for word in words(range(len(parser.grammar.terminals)), length):
        configuration = parser.read(parser.start, word)
        if configuration != parser.ERROR:
            yield configuration


def test_ambiguity_costs_a_polynomial_and_errors_and_the_end_are_final() -> None:
    """As many parses as Catalan numbers, or two to the power of the length, in a graph that grows by a few stacks a step."""
    for rules, word in ((AMBIGUOUS, "a+" * 30 + "a"), (KINDS["two ways to write a list"], "a" * 60 + "c")):
        parser = Parser.of(grammar(rules))
        names = [terminal.name for terminal in parser.grammar.terminals]
        assert parser.accepts(parser.read(parser.start, map(names.index, word))) and len(parser) < 20 * len(word)
    parser = Parser.of(grammar(DYCK))
    ended, error = parser.shift(parser.start, END), parser.read(parser.start, (1, 0, 0))
    assert parser.is_certain(ended) and not parser.accepts(ended) and parser.shift(ended, 0) == error == parser.ERROR
    assert not parser.accepts(error) and parser.stacks(error) == () and parser.cut(error, 3) == error
    assert parser.describe(error) == "no text goes on this way"


def test_equal_configurations_are_one_and_are_described() -> None:
    parser = Parser.of(grammar(DYCK))
    once = parser.read(parser.start, (0, 1))
    assert parser.read(once, (0, 1)) == parser.read(once, (0, 0, 1, 0, 1, 1)) == once
    before = len(parser)
    parser.read(parser.start, (0, 1) * 100)
    assert len(parser) == before
    parser = Parser.of(grammar("S: [ E ] \n E: a | E , a"))
    names = [terminal.name for terminal in parser.grammar.terminals]
    assert parser.describe(parser.read(parser.start, [names.index(name) for name in "[a,"])) == "E: E , • a"
    assert parser.describe(parser.cut(parser.start, 0)) == "…"


@pytest.mark.parametrize(
    "kind",
    ["Dyck", "calculator", "ambiguous", "palindromes", "hidden left recursion", "LR(1), not LALR", "dangling else"],
)
def test_what_is_read_from_a_cut_stack_holds_for_all(kind: str) -> None:
    """T5-T7: what passes a cut stack passes the whole one, what fails fails there too, and nothing else is said."""
    parser = Parser.of(grammar(KINDS[kind]))
    terminals = len(parser.grammar.terminals)
    suffixes = list(words(range(terminals), 3 if terminals > 3 else 4))
    suffixes += [(*word, END) for word in suffixes]
    verdicts: dict[tuple[int, tuple[int, ...]], set[bool]] = {}
    for whole in dict.fromkeys(walk(parser, 4 if terminals > 3 else 6)):
        for entries in (0, 1, 2, 3):
            cut = parser.cut(whole, entries)
            for suffix in suffixes:
                passed = parser.read(whole, suffix) != parser.ERROR
                of_cut = parser.read(cut, suffix)
                assert passed or not parser.is_certain(of_cut)
                assert not passed or of_cut != parser.ERROR
                if of_cut != parser.ERROR and not parser.is_certain(of_cut):
                    verdicts.setdefault((cut, suffix), set()).add(passed)
        assert parser.cut(whole, 100) == whole
    assert any(len(seen) == 2 for seen in verdicts.values())  # some words do depend on what lies below


def test_dyck_splits_as_the_theory_says() -> None:
    """Inside brackets, opening ones are always allowed, a closing one too, and more depend (grammar-theory.md, section 8.3)."""
    parser = Parser.of(grammar("S: ( S ) S | "))
    inside = parser.cut(parser.read(parser.start, (0, 0)), 1)
    assert all(parser.is_certain(parser.read(inside, always)) for always in ((0,), (0, 0), (0, 1), (0, 1, 0), (1,)))
    for depends in ((1, 1), (0, 1, 1, 1), (1, END)):
        assert parser.read(inside, depends) != parser.ERROR and not parser.is_certain(parser.read(inside, depends))
    assert parser.read(inside, (END,)) == parser.ERROR


def test_a_deep_stack_is_cut_without_recursion() -> None:
    parser = Parser.of(grammar("S: a S b | "))
    deep = parser.read(parser.start, (0,) * 5000)
    assert parser.cut(deep, 10**9) == deep == parser.cut(deep, 5001) != parser.cut(deep, 5000)


def test_rules_without_empty_bodies_are_few() -> None:
    optional = 40
    own = grammar("S: " + "A B " * (optional // 2) + " x \n A: a | \n B: b | ")
    rules = without_empty_bodies(augmented(own))
    assert len(rules.productions) < 2 ** (MOST_OPTIONAL + 1) * (optional // MOST_OPTIONAL + 1) + 4
    parser = Parser(own, LRTables.of(rules))
    x, a, b = map([terminal.name for terminal in own.terminals].index, "xab")
    viable = [[a, b] * 20 + [a], [a, b] * 20 + [x], [b] * 20 + [x], [b] * 21]
    assert [parser.read(parser.start, word) != parser.ERROR for word in viable] == [False, True, True, False]


def test_a_start_without_words_is_refused() -> None:
    refused("the start rule 'S' derives no text", augmented, grammar("S: U \n U: a U"), error=EmptyLanguageError)


@pytest.mark.parametrize(
    ("rules", "conflicts"),
    [
        ("S: L = R | R \n L: * R | i \n R: L", 0),  # LALR, not SLR
        ("S: a A d | b B d | a B e | b A e \n A: c \n B: c", 1),  # LR(1), not LALR
        ("S: A a a | B a b \n A: c \n B: c", 1),  # LR(2)
        ("S: S + S | a", 1),
        ("S: S S | a", 1),
        ("S: i S | i S e S | a", 1),
        ("S: a S a | b S b | ", 4),
        ("S: S L | \n L: a L | ", 1),
    ],
)
def test_conflicts_are_kept(rules: str, conflicts: int) -> None:
    assert LRTables.of(without_empty_bodies(augmented(grammar(rules)))).conflicts == conflicts


def test_ansi_c_and_its_names_and_descriptions() -> None:
    """Its published figures: 350 states and one conflict, the `else` that two `if` may have."""
    found = augmented(grammar(ANSI_C))
    tables = [LRTables.of(rules) for rules in (found, without_empty_bodies(found))]
    assert [(each.states, each.conflicts) for each in tables] == [(350, 1)] * 2
    found = of_productions((S, (0, X)), (X, ()))
    assert [found.name(symbol) for symbol in range(6)] == ["A", "B", "WS", "s", "x", "y"]
    assert [found.describe(production) for production in found.productions] == ["s: A x", "x:"]


A, B, WS = Terminal("A", "a", literal=True), Terminal("B", "b"), Terminal("WS", " ", ignored=True)
S, X, Y = 3, 4, 5


def of_productions(
    *productions: tuple[int, tuple[int, ...]], nonterminals: tuple[str, ...] = ("s", "x", "y")
) -> Grammar:
    return Grammar((A, B, WS), nonterminals, tuple(Production(head, body) for head, body in productions), S)


def words_of(grammar: Grammar, longest: int = 3) -> set[tuple[str, ...]]:
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
reducible = st.lists(productions, min_size=1, max_size=7, unique=True).map(lambda rows: of_productions(*rows))
fixed = settings(derandomize=True, deadline=None, max_examples=300)


@fixed
@given(reducible)
def test_nullable_and_productive_as_enumerated(found: Grammar) -> None:
    for symbol in range(S, Y + 1):
        of_symbol = Grammar(found.terminals, found.nonterminals, found.productions, symbol)
        assert (symbol in found.nullable) is (() in words_of(of_symbol))
        assert not words_of(of_symbol) or symbol in found.productive


@fixed
@given(reducible)
def test_a_reduced_grammar_has_the_same_words_and_nothing_else(found: Grammar) -> None:
    if S not in found.productive:
        refused("'s' derives no text", found.reduced, error=EmptyLanguageError)
        assert words_of(found) == set()
        return
    reduced = quietly_reduced(found)
    assert words_of(reduced) == words_of(found)
    everything = range(len(reduced.terminals) + len(reduced.nonterminals))
    ignored = {symbol for symbol, terminal in enumerate(reduced.terminals) if terminal.ignored}
    assert reduced.reachable | ignored == set(everything)
    assert reduced.productive == set(everything[len(reduced.terminals) :])
    assert reduced.reduced() == reduced  # without a warning, which would be an error


def test_useless_rules_are_named() -> None:
    found = of_productions((S, (0,)), (S, (X,)), (X, (1, X)), (Y, (1,)))
    with pytest.warns(GrammarWarning) as caught:
        reduced = found.reduced()
    never_ends, not_needed = (str(warning.message) for warning in caught)
    assert "never end" in never_ends and "'x'" in never_ends and "'y'" not in never_ends
    assert "does not need" in not_needed and "'y'" in not_needed
    assert reduced == Grammar((A, WS), ("s",), (Production(2, (0,)),), 2)
    assert {warning.filename for warning in caught} == {__file__}


def test_the_helpers_of_repeats_are_not_named() -> None:
    found = of_productions((S, (0,)), (X, (Y,)), (Y, (Y, 0)), nonterminals=("s", "x", "__x_plus_0"))
    with pytest.warns(GrammarWarning, match="'x'") as caught:
        found.reduced()
    assert len(caught) == 1 and "__" not in str(caught[0].message)


def test_a_long_chain_of_rules_is_no_recursion() -> None:
    length = 5_000
    names = tuple(f"r{number}" for number in range(length))
    chain = [Production(1 + number, (2 + number,)) for number in range(length - 1)]
    found = Grammar((A,), names, (*chain, Production(length, (0,))), 1)
    assert found.reduced() == found
