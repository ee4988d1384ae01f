"""Every feature of Lark's dialect is read as Lark reads it, and what is wrong with a grammar is said where it is."""

import re
import warnings
from typing import Any

import pytest
from lark import Lark
from outlines import grammars

from outlines_phi.errors import EmptyLanguageError, GrammarError, GrammarWarning
from outlines_phi.guides.grammar.grammar import Grammar, Terminal
from outlines_phi.guides.grammar.lexing.lexeme_automaton import automaton_of
from outlines_phi.guides.grammar.notation import reader
from outlines_phi.guides.grammar.notation.reader import read_grammar
from outlines_phi.guides.grammar.parsing.parser import ERROR, Parser

FEATURES = {
    "alternatives": 'start: "a" | "b" "c"\n     | ',
    "groups": 'start: ("a" | "b") ("c" "d"?)',
    "optional": 'start: ["a"] b?\nb: "b"',
    "star": 'start: "a"* ("b" "c")*',
    "plus": 'start: "a"+ ("b" | "c")+',
    "repeats": 'start: "a"~2 "b"~1..3',
    "long repeats": 'start: "a"~60 ("b" "c")~3..70',
    "terminals": 'start: A B\nA: "a" "b"? ("c" | /d+/)~2\nB: A "x"',
    "priorities": 'start: A | B\nA.2: /a+/\nB.-1: "b"',
    "rule priorities": 'start.2: a\na.1: "a"',
    "flags": 'start: "select"i A /b.c/is\nA: /x y # comment\n/x',
    "ranges": 'start: A "0".."9"\nA: "a".."f"',
    "aliases": 'start: "a" -> first\n     | "b" -> second',
    "inlined rules": 'start: a _b\n?a: "a" | a "," "a"\n_b: "b"',
    "templates": 'start: list{A, ","} pair{A}\nlist{item, sep}: item (sep item)*\npair{x}: x x\nA: "a"',
    "recursive templates": 'start: list{A}\nlist{item}: item | list{item} "," item\nA: "a"',
    "templates of strings": 'start: _sep{"a", ";"}\n_sep{x, y}: x (y x)*',
    "imports": "start: CNAME NUMBER\n%import common.CNAME\n%import common.SIGNED_NUMBER -> NUMBER\n"
    "%import common (WS, INT)\n%ignore WS",
    "imported rules": "start: expr\n%import python.NAME\nexpr: NAME",
    "ignored": 'start: "a"\n%ignore " "\n%ignore /#[^\\n]*/\nWS: /\\s+/\n%ignore WS',
    "override": '%import common.INT\nstart: INT\n%override INT: "1".."3"',
    "extend": 'start: "a"\n%extend start: "b"',
    "comments": '// first\nstart: "a" // second\n  # third\n  | "b"\n',
    "escapes": r'start: "\n\t\x41\u00e9\\ \"" /\/\x42\.\"/ "' + "'" + '"',
    "anonymous names": 'start: "+" "==" "if" "\\n" "é" "not in"',
    "empty rule": 'start: "a" nothing\nnothing:',
    "left and right recursion": 'start: start "a" | b\nb: "b" b |',
    "same terminal twice": 'start: "a" A\nA: "a"',
    "continued lines": 'start: "a" \\\n "b"\n',
    "unicode": 'start: "∀" NAME "→"\nNAME: /[α-ω]+/',
    "keywords and names": 'start: "if" NAME | NAME\nNAME: /[a-z]+/\n%ignore " "',
}
REAL = {
    "outlines json": grammars.json,
    "outlines arithmetic": grammars.arithmetic,
    **{name: reader.grammar_text(name) for name in (*reader.NAMES, "dyck-3")},
}


def productions(grammar: Grammar) -> set[tuple[str, tuple[str, ...]]]:
    return {(grammar.name(p.head), tuple(map(grammar.name, p.body))) for p in grammar.productions}


def by_name(grammar: Grammar) -> dict[str, Terminal]:
    return {terminal.name: terminal for terminal in grammar.terminals}


def named(lark: Lark) -> dict[str, str]:
    """Our names of Lark's terminals: what it numbers is called as it is written."""
    return {
        terminal.name: (terminal.pattern.raw or f"/{terminal.pattern.to_regexp()}/")
        if terminal.name.startswith("__")
        else terminal.name
        for terminal in lark.terminals
    }


@pytest.mark.parametrize("text", [*FEATURES.values(), *REAL.values()], ids=[*FEATURES, *REAL])
def test_terminals_and_productions_are_those_of_lark(text: str) -> None:
    lark = Lark(text, parser="earley", lexer="dynamic")
    grammar, names = read_grammar(text), named(lark)
    expected = {
        (rule.origin.name, tuple(names[symbol.name] if symbol.is_term else symbol.name for symbol in rule.expansion))
        for rule in lark.rules
    }
    assert productions(grammar) == expected
    assert len(grammar.productions) == len(expected)
    assert grammar.name(grammar.start) == "start"
    ours = by_name(grammar)
    assert set(ours) == set(names.values())
    assert {name for name, terminal in ours.items() if terminal.ignored} == {names[name] for name in lark.ignore_tokens}
    for terminal in lark.terminals:
        mine = ours[names[terminal.name]]
        assert mine.priority == terminal.priority
        assert mine.literal is (type(terminal.pattern).__name__ == "PatternStr")


SAMPLES = [
    "a",
    "b",
    "ab",
    "abcd",
    "abddd",
    "1",
    "-1.5e3",
    "+.5",
    "if",
    "IF",
    "SELECT",
    "select",
    "b\nC",
    "xy",
    "x y",
    "",
    " ",
    "\t\n",
]
SAMPLES += [
    "#x",
    "'",
    '"',
    '"a"',
    '"\\"',
    '"\\""',
    '"a\\\\"',
    '"\\\\\\"',
    "/*a*/",
    "/* * / */",
    "/**/ */",
    "//x",
    "∀",
    "αβ",
    "é",
    "0",
    "9",
]
SAMPLES += [
    "+",
    "==",
    "\n",
    "\\",
    '/B."',
    "1.",
    "01",
    "0x1F",
    "1e5",
    "true",
    "'\\n'",
    "'it''s'",
    "x'",
    "Nat.add",
    "h₁",
    "\n  \n",
    "·",
    "<;>",
]


@pytest.mark.parametrize("text", [*FEATURES.values(), *REAL.values()], ids=[*FEATURES, *REAL])
def test_a_terminal_matches_what_larks_pattern_matches(text: str) -> None:
    lark = Lark(text, parser="earley", lexer="dynamic")
    ours, names = by_name(read_grammar(text)), named(lark)
    for terminal in lark.terminals:
        oracle, mine = re.compile(terminal.pattern.to_regexp()), ours[names[terminal.name]]
        automaton = automaton_of(mine)
        for sample in [*SAMPLES, getattr(terminal.pattern, "value", "")]:
            # As a lexeme: Python's match of a lazy quantifier is the first one, so it must be asked with `match`.
            found = oracle.match(sample)
            expected = found is not None and found.end() == len(sample) and bool(sample)
            assert automaton.accepts(sample.encode()) is expected, (terminal, sample)


def test_another_start() -> None:
    with pytest.warns(GrammarWarning, match="'start'"):
        grammar = read_grammar('start: pair\npair: "a" "b"', "pair")
    assert productions(grammar) == {("pair", ("A", "B"))}


def test_lines_of_repeats_templates_and_imports() -> None:
    grammar = read_grammar('\nstart: a* t{"x"}\n\n?a.2: "a"\n!t{y}: y')
    lines = {grammar.name(production.head): production.line for production in grammar.productions}
    assert lines == {"start": 2, "__start_star_0": 2, "a": 4, "t{X}": 5}


WRONG: dict[str, tuple[str, str, int, int]] = {
    # name: (grammar, words of the message, line, column)
    "empty": ("", "has no rule", 1, 1),
    "only a terminal": ('A: "a"', "has no rule", 1, 1),
    "no start": ('a: "x"\nb: a', "no rule 'start'.*the rules are 'a', 'b'", 1, 1),
    "start with a slip": ('// ok\nstrat: "x"', "did you mean 'strat'", 2, 1),
    "start is a template": ('start{x}: x\na: "a"', "has parameters", 1, 1),
    "undefined rule": ('start: "a"\n     | foo', "rule 'foo' is not defined", 2, 8),
    "undefined terminal": ('start: "a" FOO', "terminal 'FOO' is not defined", 1, 12),
    "undefined in a terminal": ('start: A\nA: "a" B', "terminal 'B' is not defined", 2, 8),
    "name in a string": ('start: "foo" foo // foo', "rule 'foo' is not defined", 1, 14),
    "undefined template": ('start: t{"a"}', "rule 't' is not defined", 1, 8),
    "undefined and ignored": ('start: "a"\n%ignore FOO', "terminal 'FOO' is ignored, but not defined", 2, 9),
    "not in what is imported": ("start: A\n%import common.NOPE -> A", "does not define it", 2, 1),
    "no such grammar": ("start: A\n%import nope.A", "'nope' cannot be imported", 2, 1),
    "no such file": ("start: A\n%import .nope.A", "'nope' cannot be imported", 2, 1),
    "defined twice": ('start: "a"\nstart: "b"', "rule 'start' is defined twice", 2, 1),
    "terminal twice": ('start: A\nA: "a"\nA: "b"', "terminal 'A' is defined twice", 3, 1),
    "nothing to override": ('start: "a"\n%override b: "a"', "nothing to override", 2, 11),
    "nothing to extend": ('start: "a"\n%extend b: "a"', "extended before", 2, 9),
    "too many arguments": ('start: t{"a", "b"}\nt{x}: x', "number of parameters", 1, 8),
    "parameter and rule": ('start: t{"a"}\nt{x}: x\nx: "x"', "name of a rule", 2, 1),
    "declared": ("start: A\n%declare A", "only declared", 1, 8),
    "terminal from rules": ('start: A\nA: b\nb: "x"', "'b' is used in a terminal", 2, 4),
    "recursive terminal": ('start: A\nA: B\nB: A "x"', "uses itself", 2, 1),
    "alias in a terminal": ('start: A\nA: "a" -> b', "has an alias", 2, 1),
    "alias of an inlined rule": ('start: _a\n_a: "x" -> b', "has an alias", 2, 1),
    "inlined twice": ('start: _a\n?_a: "x"', "so `\\?` has nothing to do", 2, 1),
    "bad repeat": ('start: "a"\n     | "x"~3..2', "`~least..most`", 2, 11),
    "bad range": ('start: "a"\n     | "ab".."c"', "one character each", 2, 8),
    "same alternative twice": ('start: a -> b | a -> c\na: "x"', "same alternative twice", 1, 1),
    "empty string": ('start: "a" ""', "empty terminals", 1, 12),
    "empty terminal": ("start: A\nA:", "is empty", 2, 1),
    "nullable terminal": ("start: A\nA: /a*/", "terminal A .* empty text", 2, 1),
    "nullable pattern": ('start: "b" /a*/', r"terminal /a\*/ .* empty text", 1, 12),
    "nullable and ignored": ('start: "b"\n%ignore /a*/', "empty text", 2, 9),
    "look-ahead": ("start: A\nA: /a(?=b)/", "terminal A .* looks beyond", 2, 1),
    "pattern": ("start: /(/", "cannot be read", 1, 8),
    "word boundary": (r"start: /if\b/", "looks beyond", 1, 8),
    "imported look-ahead": ("start: STRING\n%import python.STRING", "STRING .* looks beyond", 1, 8),
    "ignored and used": ('start: "x" WS\n%import common.WS\n%ignore WS', "WS is ignored, so rule 'start'", 1, 12),
    "blank ignored and used": ('start: "x" " "\n%ignore " "', "is ignored, so rule 'start'", 1, 12),
    "unclosed group": ("start: (a", "not expected here", 1, 10),
    "unknown character": ('start: "a" $', "not expected here", 1, 12),
    "no colon": ('start "a"', "missing colon", 1, 7),
    "number": ("a: 1", "incorrect type of value", 1, 4),
    "two operators": ('start: "a"??', "misplaced operator", 1, 12),
    "pattern over lines": ('start: "a"\n  | /a\nb/', "flag `x`", 2, 5),
    "unfinished escape": ('start: "a\\"', "backslash before a quote", 1, 8),
    "zero": ('start: "a\0"', "zero character", 1, 10),
    "surrogate": ('start: "\ud800"', "surrogate", 1, 9),
    "too deep in a terminal": (
        "start: A\nA: " + '("a" ' * 300 + '"b"' + ")?" * 299 + ")",
        "terminal A .*The number of groups inside each other",
        2,
        1,
    ),
    "too large a number": ("start: /a{1," + "9" * 5000 + "}/", "too large, or nested", 1, 8),
    "too deep": ("start: " + "(" * 3000 + '"a"' + ")" * 3000, "nested too deeply", 1, 1),
}


@pytest.mark.parametrize(("text", "words", "line", "column"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_where_it_is(text: str, words: str, line: int, column: int) -> None:
    with pytest.raises(GrammarError, match=words) as raised:
        read_grammar(text)
    message = str(raised.value)
    assert f"line {line}, column {column}\n" in message
    assert message.endswith("^")
    assert "  * <" not in message and "Terminal(" not in message  # nothing of Lark's insides
    assert raised.value.__cause__ is None and raised.value.__suppress_context__ or raised.value.__context__ is None


@pytest.mark.parametrize("given", [3, None, b'start: "a"', ["start"], {"start": "a"}])
def test_a_grammar_of_the_wrong_type(given: Any) -> None:
    with pytest.raises(GrammarError, match=f"of type '{type(given).__name__}'"):
        read_grammar(given)
    with pytest.raises(GrammarError, match="start rule is given by its name"):
        read_grammar('start: "a"', given)


def test_a_grammar_without_texts() -> None:
    with pytest.raises(EmptyLanguageError, match="'start' derives no text.*'start', 'b'"):
        read_grammar('start: "x" b\nb: "a" start')


def test_rules_of_no_use_are_named() -> None:
    text = 'start: "a" | loop\nloop: "x" loop\nunused: "b" also_unused+\nalso_unused: "c"\nt{x}: x'
    with pytest.warns(GrammarWarning) as caught:
        grammar = read_grammar(text)
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 2
    assert "never end" in messages[0] and "'loop'" in messages[0]
    assert "does not need" in messages[1] and "'unused', 'also_unused'" in messages[1] and "__" not in messages[1]
    assert grammar == read_grammar('start: "a"')


@pytest.mark.parametrize("around", ["start: {}", "start: ({})+", 'start: "y" ({})~3'])
def test_optional_parts_do_not_multiply(around: str) -> None:
    """Lark would write 2^60 alternatives out."""
    grammar = read_grammar(around.format(" ".join(f'["{number}x"]' for number in range(60))))
    assert len(grammar.productions) < 200
    parser, number = Parser.of(grammar), {terminal.pattern: t for t, terminal in enumerate(grammar.terminals)}
    start = parser.read(parser.start, [number["y"]] if '"y"' in around else [])
    assert parser.accepts(parser.read(start, [number["3x"], number["7x"], number["59x"]]))
    assert (parser.read(start, [number["7x"], number["3x"]]) == ERROR) == (around == "start: {}")


def test_choices_in_a_template_do_not_multiply() -> None:
    optional = " ".join(f'["{number}x" p]' for number in range(60))
    assert len(read_grammar(f'start: t{{a}} | t{{b}}\na: "a"\nb: "b"\nt{{p}}: {optional}').productions) < 600


def test_a_grammar_that_is_right_gives_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_grammar("start: /[[a]/")  # Python warns of this class
        for text in (*FEATURES.values(), *REAL.values()):
            read_grammar(text)
