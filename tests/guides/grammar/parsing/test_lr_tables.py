"""The tables are those of the canonical LR(1) parser with its states merged, and of lark where lark builds them."""

import random
from collections import defaultdict
from importlib import resources

import lark
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from outlines_phi.guides.grammar.grammar import Grammar, Production, Terminal
from outlines_phi.guides.grammar.parsing.lr_tables import END, LRTables, augmented, without_empty_bodies
from outlines_phi.guides.grammar.parsing.parser import Parser

from ..ansi_c import ANSI_C
from ..recognizer import grammar, grammars

fixed = settings(derandomize=True, deadline=None, max_examples=200)

Core = frozenset[tuple[int, tuple[int, ...], int]]  # head, body, dot


def firsts(rules: Grammar) -> dict[int, set[int]]:
    """The first terminals of each symbol; -2 stands for nothing."""
    first: dict[int, set[int]] = defaultdict(set, {t: {t} for t in range(END, len(rules.terminals))})
    size = -1
    while (now := sum(map(len, first.values()))) != size:
        size = now
        for production in rules.productions:
            first[production.head] |= first_of(first, production.body, -2)
    return first


def first_of(first: dict[int, set[int]], word: tuple[int, ...], then: int) -> set[int]:
    found: set[int] = set()
    for symbol in word:
        found |= first[symbol] - {-2}
        if -2 not in first[symbol]:
            return found
    return found | {then}


def merged_lr1(rules: Grammar) -> dict[Core, dict[tuple[int, tuple[int, ...]], set[int]]]:
    """By kernel, the lookaheads of the rules that are complete: all LR(1) item sets, built one by one, and merged at the end."""
    first = firsts(rules)

    def close(items: set[tuple[int, tuple[int, ...], int, int]]) -> frozenset[tuple[int, tuple[int, ...], int, int]]:
        found, pending = set(items), list(items)
        while pending:
            _, body, dot, ahead = pending.pop()
            if dot == len(body):
                continue
            for production in rules.productions:
                if production.head == body[dot]:
                    new = {
                        (production.head, production.body, 0, t) for t in first_of(first, body[dot + 1 :], ahead)
                    } - found
                    found |= new
                    pending += new
        return frozenset(found)

    nothing = -3  # behind the end
    start = close({(p.head, p.body, 0, nothing) for p in rules.productions if p.head == rules.start})
    seen, pending = {start}, [start]
    merged: dict[Core, dict[tuple[int, tuple[int, ...]], set[int]]] = {}
    while pending:
        state = pending.pop()
        row = merged.setdefault(frozenset((h, b, dot) for h, b, dot, _ in state if dot or h == rules.start), {})
        for head, body, dot, ahead in state:
            if dot == len(body):
                row.setdefault((head, body), set()).add(ahead)
        for symbol in {body[dot] for _, body, dot, _ in state if dot < len(body)}:
            after = close({(h, b, dot + 1, t) for h, b, dot, t in state if b[dot : dot + 1] == (symbol,)})
            if after not in seen:
                seen.add(after)
                pending.append(after)
    for row in merged.values():
        for ahead in row.values():
            ahead.discard(nothing)
    return merged


def by_kernel(tables: LRTables) -> dict[Core, dict[tuple[int, tuple[int, ...]], set[int]]]:
    """The same of the tables under test."""
    rows = {}
    for kernel, reductions in zip(tables.kernels, tables.reductions, strict=True):
        items = [(tables.rules.productions[number], dot) for number, dot in kernel]
        row: dict[tuple[int, tuple[int, ...]], set[int]] = {}
        for terminal, numbers in reductions.items():
            for number in numbers:
                production = tables.rules.productions[number]
                row.setdefault((production.head, production.body), set()).add(terminal)
        rows[frozenset((p.head, p.body, dot) for p, dot in items)] = row
    return rows


@fixed
@given(st.one_of(grammars(), grammars(terminals=3, nonterminals=4, productions=8)))
def test_lookaheads_are_those_of_merged_lr1(grammar: Grammar) -> None:
    assume(grammar.start in grammar.productive)
    for rules in (augmented(grammar), without_empty_bodies(augmented(grammar))):
        expected = merged_lr1(rules)
        # A rule that is complete only behind the end has no lookahead, and is in no row.
        expected = {core: {rule: ahead for rule, ahead in row.items() if ahead} for core, row in expected.items()}
        assert by_kernel(LRTables.of(rules)) == expected


def test_transitions_read_the_symbol_behind_the_dot() -> None:
    tables = LRTables.of(augmented(grammar(ANSI_C, "Translation_unit")))
    for kernel, *rows in zip(tables.kernels, tables.shifts, tables.goto, strict=True):
        for symbol, target in [pair for row in rows for pair in row.items()]:
            reached = tables.kernels[target]
            assert all(tables.rules.productions[number].body[dot - 1] == symbol for number, dot in reached)
            assert {(n, d + 1) for n, d in kernel if tables.rules.productions[n].body[d : d + 1] == (symbol,)} <= set(
                reached
            )


@pytest.mark.parametrize(
    ("rules", "conflicts"),
    [
        ("S: L = R | R \n L: * R | i \n R: L", 0),  # LALR, not SLR
        ("S: a A d | b B d | a B e | b A e \n A: c \n B: c", 1),  # LR(1), not LALR
        ("S: A a a | B a b \n A: c \n B: c", 1),  # LR(2)
        ("S: S + S | a", 1),
        ("S: S S | a", 1),
        ("S: i S | i S e S | a", 1),
        ("S: a S a | b S b | ", 2),
        ("S: S L | \n L: a L | ", 3),
    ],
)
def test_conflicts_are_kept(rules: str, conflicts: int) -> None:
    assert LRTables.of(augmented(grammar(rules))).conflicts == conflicts


def test_ansi_c() -> None:
    """Its published figures: 350 states and one conflict, the `else` that two `if` may have."""
    for rules in (found := augmented(grammar(ANSI_C, "Translation_unit")), without_empty_bodies(found)):
        tables = LRTables.of(rules)
        assert tables.states == 350
        assert tables.conflicts == 1


CLASSIC = {
    "json": r"""
        start: value
        ?value: object | array | STRING | NUMBER | "true" | "false" | "null"
        array: "[" [value ("," value)*] "]"
        object: "{" [pair ("," pair)*] "}"
        pair: STRING ":" value
        STRING: /"[^"]*"/
        NUMBER: /[0-9]+/
    """,
    "arithmetic": r"""
        ?start: sum | NAME "=" sum -> assign
        ?sum: product | sum "+" product | sum "-" product
        ?product: atom | product "*" atom | product "/" atom
        ?atom: NUMBER | "-" atom | NAME | "(" sum ")"
        NAME: /[a-z]+/
        NUMBER: /[0-9]+/
    """,
    "optional parts": r"""
        start: item+
        item: "a"? "b"? ["c"] ("d" | "e")~2..3 _list{"f"} ";"
        _list{x}: x ("," x)*
    """,
}


def of_lark(parser: lark.Lark) -> Grammar:
    """The rules that lark has made of a grammar, as one of ours."""
    used = {str(symbol.name) for rule in parser.rules for symbol in rule.expansion if symbol.is_term}
    heads = list(dict.fromkeys(str(rule.origin.name) for rule in parser.rules))
    number = {name: symbol for symbol, name in enumerate([*sorted(used), *heads])}
    return Grammar(
        tuple(Terminal(name, name) for name in sorted(used)),
        tuple(heads),
        tuple(
            Production(number[str(rule.origin.name)], tuple(number[str(symbol.name)] for symbol in rule.expansion))
            for rule in parser.rules
        ),
        number[parser.options.start[0]],
    )


def compare_with_lark(reference: lark.Lark, walks: int, length: int) -> int:
    """Follow random texts; return in how many places both allowed the same terminals, and the end or not.

    Where the grammar is not LALR(1), lark shifts, so it allows less there.
    """
    grammar, rng, places = of_lark(reference), random.Random(7), 0
    parser = Parser.of(grammar)
    names = [terminal.name for terminal in grammar.terminals]
    for _ in range(walks):
        theirs, ours = reference.parse_interactive(""), parser.start
        for _ in range(length):
            by_lark = theirs.accepts()
            allowed = {name for terminal, name in enumerate(names) if parser.shift(ours, terminal) != parser.ERROR}
            allowed |= {"$END"} if parser.accepts(ours) else set()
            assert by_lark == allowed or (parser.tables.conflicts and by_lark < allowed)
            places += by_lark == allowed
            if by_lark <= {"$END"}:
                break
            name = rng.choice(sorted(by_lark - {"$END"}))
            theirs.feed_token(lark.Token(name, "x"))
            ours = parser.shift(ours, names.index(name))
            assert len(parser.stacks(ours)) == 1 or parser.tables.conflicts
    return places


@pytest.mark.parametrize("text", CLASSIC.values(), ids=CLASSIC)
def test_allows_what_lark_allows(text: str) -> None:
    assert compare_with_lark(lark.Lark(text, parser="lalr"), 60, 40) > 100


@pytest.mark.parametrize(("name", "start"), [("lark.lark", "start"), ("python.lark", "file_input")])
def test_allows_what_lark_allows_in_its_own_grammars(name: str, start: str) -> None:
    text = (resources.files("lark") / "grammars" / name).read_text()
    reference = lark.Lark(text, parser="lalr", start=start, lexer="basic", maybe_placeholders=True)
    assert compare_with_lark(reference, 5, 40) > 100


@pytest.mark.parametrize("name", ["arithmetic", "c", "json", "lean", "sql"])
def test_allows_what_lark_allows_in_the_grammars_that_are_shipped(name: str) -> None:
    text = (resources.files("outlines_phi.guides.grammar") / "library" / f"{name}.lark").read_text("utf-8")
    assert compare_with_lark(lark.Lark(text, parser="lalr", lexer="basic"), 40, 30) > 100
