"""Every feature of Lark's dialect, files included, is read as Lark reads it, and what is wrong is said where it is."""

import re
import warnings
from pathlib import Path
from typing import Any

import lark
import pytest
from lark import Lark
from outlines import grammars

from outlines_phi import EmptyLanguageError, GrammarError
from outlines_phi.errors import GrammarWarning
from outlines_phi.guides import read_grammar
from outlines_phi.guides.grammar.notation import reader
from tests.guides.grammar.definition import Definition
from tests.inner import ERROR, Grammar, Parser, Terminal, automaton_of
from tests.refusals import refused

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


SAMPLES = [
    "a", "b", "ab", "abcd", "abddd", "1", "-1.5e3", "+.5", "if", "IF", "SELECT", "select", "b\nC", "xy", "x y", "", " ", "\t\n",
    "#x", "'", '"', '"a"', '"\\"', '"\\""', '"a\\\\"', '"\\\\\\"', "/*a*/", "/* * / */", "/**/ */", "//x", "∀", "αβ", "é", "0",
    "9", "+", "==", "\n", "\\", '/B."', "1.", "01", "0x1F", "1e5", "true", "'\\n'", "'it''s'", "x'", "Nat.add", "h₁", "\n  \n",
    "·", "<;>",
]  # fmt: skip


@pytest.mark.parametrize("text", [*FEATURES.values(), *REAL.values()], ids=[*FEATURES, *REAL])
def test_terminals_and_productions_are_those_of_lark(text: str) -> None:
    lark = Lark(text, parser="earley", lexer="dynamic")
    grammar, names = read_grammar(text), named(lark)
    expected = {
        (rule.origin.name, tuple(names[symbol.name] if symbol.is_term else symbol.name for symbol in rule.expansion))
        for rule in lark.rules
    }
    as_named = {terminal.pattern.raw: terminal.name for terminal in lark.terminals}  # Lark's arguments of templates

    def renamed(symbol: str) -> str:
        return re.sub(r'"[^"]*"', lambda found: as_named[found[0]], symbol) if "{" in symbol else symbol

    assert {(renamed(head), tuple(map(renamed, body))) for head, body in productions(grammar)} == expected
    assert (len(grammar.productions), grammar.name(grammar.start)) == (len(expected), "start")
    ours = by_name(grammar)
    assert set(ours) == set(names.values())
    assert {name for name, terminal in ours.items() if terminal.ignored} == {names[name] for name in lark.ignore_tokens}
    for terminal in lark.terminals:
        mine = ours[names[terminal.name]]
        assert mine.priority == terminal.priority
        assert mine.literal is (type(terminal.pattern).__name__ == "PatternStr")
        oracle, automaton = re.compile(terminal.pattern.to_regexp()), automaton_of(mine)
        for sample in [*SAMPLES, getattr(terminal.pattern, "value", "")]:
            # As a lexeme: Python's match of a lazy quantifier is the first one, so it must be asked with `match`.
            match = oracle.match(sample)
            whole = match is not None and match.end() == len(sample) and bool(sample)
            assert automaton.accepts(sample.encode()) is whole, (terminal, sample)


def test_another_start_and_lines_of_repeats_templates_and_imports() -> None:
    with pytest.warns(GrammarWarning, match="'start'"):
        grammar = read_grammar('start: pair\npair: "a" "b"', "pair")
    assert productions(grammar) == {("pair", ("A", "B"))}
    grammar = read_grammar('\nstart: a* t{"x"}\n\n?a.2: "a"\n!t{y}: y')
    lines = {grammar.name(production.head): production.line for production in grammar.productions}
    assert lines == {"start": 2, "__start_star_0": 2, "a": 4, 't{"x"}': 5}


ITEM = 'start: a{b}\nb: "b"\npair{x, y}: x y\n'
CHAIN = "".join(f"a{i}{{x}}: a{i + 1}{{p{{x}}}} | a{i + 1}{{q{{x}}}}\n" for i in range(20))
ENDLESS = "writing it out never ends. Give it the arguments that it has, or make a rule of it"


def doubled(inside: str) -> str:
    return "\n".join(["start: R0", *[f"R{i}: {inside.format(i + 1, i + 1)}" for i in range(40)], 'R40: "a"'])


WRONG: dict[str, tuple[str, str, int | None, int | None]] = {
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
    "a terminal in itself": ('start: A\nA: "a" A', "uses itself; only rules may", 2, 1),
    "too many digits": ('start: "a"~' + "9" * 10_000, "too many digits; repeat a rule that repeats", 1, 12),
    "too many groups": ("start: /" + "(" * 5_000 + "a" + ")" * 5_000 + "/", "nested too deeply; write it as several", 1, 8),
    "endless": (ITEM + "a{x}: x | a{a{x}}", rf"'a' contains itself .*\(a\{{b\}}, a\{{a\{{b\}}\}}, .*{ENDLESS}", 4, 1),
    "endless, doubled": (ITEM + "a{x}: x | a{pair{x, x}}", rf"\(a\{{b\}}, a\{{pair\{{b,b\}}\}}, .*{ENDLESS}", 4, 1),
    "endless, with a literal": (ITEM + 'a{x}: x | a{pair{"(", x}}', rf'a\{{pair\{{"\(",b\}}\}}, .*{ENDLESS}', 4, 1),
    "endless, through another": (
        ITEM + "a{x}: x | c{x}\nc{x}: a{pair{x, b}}", f"template '[ac]' contains itself.*{ENDLESS}", None, None,
    ),
    "endless, by its name": (
        ITEM + "a{x}: x | use{a, x}\nuse{t, x}: t{pair{x, x}}", f"contains itself with ever larger.*{ENDLESS}", None, None,
    ),
    "too many arguments of templates": (
        f'start: a0{{b}}\nb: "b"\np{{x}}: x "p"\nq{{x}}: x "q"\n{CHAIN}a20{{x}}: x',
        "take more than 100,000 characters when they are written out", None, None,
    ),
    "terminals that double": (doubled("R{} R{}"), "more than 100,000 characters when those inside them are", None, None),
    "alternatives that double": (doubled('"a" R{} | R{} "b"'), "more than 100,000 characters when those inside", None, None),
    "a long chain of terminals": (
        "\n".join(["start: R0", *(f'R{i}: "a" R{i + 1}' for i in range(3_000)), 'R3000: "a"']),
        r"the terminals up to .*make rules of them\n  line", None, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words", "line", "column"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_where_it_is(text: str, words: str, line: int | None, column: int | None) -> None:
    raised = refused(words, read_grammar, text, error=GrammarError)
    message = str(raised.value)
    assert line is None or f"line {line}, column {column}\n" in message
    assert message.endswith("^") and len(message) < 700
    assert "  * <" not in message and "Terminal(" not in message  # nothing of Lark's insides
    assert raised.value.__cause__ is None and raised.value.__suppress_context__ or raised.value.__context__ is None


@pytest.mark.parametrize("given", [3, None, b'start: "a"', ["start"], {"start": "a"}])
def test_a_grammar_of_the_wrong_type(given: Any) -> None:
    refused(f"of type '{type(given).__name__}'", read_grammar, given, error=GrammarError)
    refused("start rule is given by its name", read_grammar, 'start: "a"', given, error=GrammarError)


def test_a_grammar_without_texts() -> None:
    refused(
        "'start' derives no text.*'start', 'b'", read_grammar, 'start: "x" b\nb: "a" start', error=EmptyLanguageError
    )


def test_rules_of_no_use_are_named() -> None:
    text = 'start: "a" | loop\nloop: "x" loop\nunused: "b" also_unused+\nalso_unused: "c"\nt{x}: x'
    with pytest.warns(GrammarWarning) as caught:
        grammar = read_grammar(text)
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 2 and "never end" in messages[0] and "'loop'" in messages[0]
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


def test_a_template_may_contain_itself_with_arguments_that_it_has() -> None:
    text = ITEM + 'a{x}: x | "(" c{x, "]"}\nc{x, y}: a{x} y | a{a{b}} y | "!" c{y, x}'
    assert 'c{"]",a{b}}' in read_grammar(text).nonterminals


def test_the_limit_is_a_count_of_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "start: A\nA: B B\nB: C C\nC: /abc/"  # 7 of C, 6 + 14 of B, 6 + 40 of A
    monkeypatch.setattr(reader, "MOST_WRITTEN", 73)
    assert read_grammar(text).terminals
    monkeypatch.setattr(reader, "MOST_WRITTEN", 72)
    refused("more than 72 characters", read_grammar, text, error=GrammarError)


FILES = {
    "main.lark": "start: pair{NUMBER} | word -> w\n%import .parts (pair, NUMBER)\n%import .deep.words.word\n"
    '%import other.DOT -> STOP\n%override NUMBER: "0".."7"\n%extend word: STOP\n',
    "parts.lark": 'pair{x}: "(" x inner x ")"\ninner: SEP | ignored\nignored: "!"\nNUMBER: /[0-9]/\n%import .other (SEP)\n',
    "other.lark": 'SEP: ","\nDOT: "."\n',
    "deep/words.lark": 'word: WORD | "-" word near\n%import common.WORD\n%import .near.near\n',
    "deep/near.lark": 'near: "!!"?\n',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_productions_of_files_are_those_of_lark(folder: Path) -> None:
    path = folder / "main.lark"
    reference = Lark(
        path.read_text(), source_path=str(path), import_paths=[str(folder)], parser="earley", lexer="dynamic"
    )
    names = named(reference)
    expected = {
        (rule.origin.name, tuple(names[s.name] if s.is_term else s.name for s in rule.expansion))
        for rule in reference.rules
    }
    assert len(expected) > 7 and productions(read_grammar(path)) == expected


@pytest.mark.parametrize("parser", ["lalr", "earley"])
def test_several_starts_are_those_of_lark(folder: Path, parser: str) -> None:
    path = folder / "main.lark"
    reference = Lark(
        path.read_text(), source_path=str(path), import_paths=[str(folder)], start=["start", "word"], parser=parser
    )
    definition = Definition(read_grammar(path, ("start", "word")), "")
    for text in ("(1,2)", "(1!7)", "(8,1)", "ab", "-ab", "-ab!!", "--a!!!!", "-", ".", "-.", "(1,)", ""):
        read = []
        for start in ("start", "word"):
            try:
                reference.parse(text, start=start)
                read.append(start)
            except Exception:
                pass
        assert definition.is_member(text) == bool(read), text


@pytest.mark.parametrize(
    ("name", "text", "message", "caret"),
    [
        ("main.lark", "start: x\n%import .none.x", r"'none' cannot be imported from .*none.lark: No such file", (2, 1)),
        ("main.lark", "start: x\n%import none.x", r"'none' cannot be imported from .*none.lark: No such file", (2, 1)),
        ("other.lark", b'SEP: "\xe9"', "not UTF-8", None),
        ("deep/words.lark", "word: x\n\n%import .none.x", r"imported file .*words.lark: the grammar 'none'", (3, 1)),
        ("deep/words.lark", 'word: "a"\n  x: "b" )', r"imported file .*words.lark: this is not expected here", (2, 10)),
        ("deep/words.lark", 'word: "a" "', r"imported file .*words.lark: this is not expected here", (1, 11)),
        (
            "deep/words.lark",
            'word: "a" nothing',
            "rule 'nothing' of the imported grammar 'words' is not defined",
            (3, 1),
        ),
        ("other.lark", 'DOT: "."\nSEP: /,(?!a)/', "SEP cannot be read: Leave out what looks beyond", (2, 1)),
        ("parts.lark", "x: NUMBER", "terminal 'NUMBER' is imported from a grammar that does not define it", (2, 1)),
    ],
)
def test_errors_of_files(
    folder: Path, name: str, text: str | bytes, message: str, caret: tuple[int, int] | None
) -> None:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    caught = refused(message, read_grammar, folder / "main.lark", error=GrammarError)
    before = caught.value.source[: caught.value.position]
    assert caret in (None, (before.count("\n") + 1, len(before) - before.rfind("\n")))


def test_a_text_imports_from_the_library_alone(folder: Path) -> None:
    (folder / "common.lark").write_text('INT: "x"', encoding="utf-8")
    (folder / "main.lark").write_text("start: INT\n%import common.INT", encoding="utf-8")
    assert "x" not in read_grammar(folder / "main.lark").terminals[0].pattern
    refused("'other' cannot be imported", read_grammar, "start: SEP\n%import other.SEP", error=GrammarError)


@pytest.mark.parametrize(
    ("name", "start", "said"),
    [
        ("lark.lark", "start", r"OP cannot be read: Leave out what looks beyond[^\n]*\n  line 48, column 1"),
        ("python.lark", "file_input", r"'_INDENT' is only declared[^\n]*\n  line 107, column 39"),
        ("common.lark", "NUMBER", r"'NUMBER' is a terminal[^\n]*\n  line 20, column 1"),
    ],
)
def test_a_file_of_lark_that_is_not_read_is_refused_with_the_line(name: str, start: str, said: str) -> None:
    """Its own dialect looks ahead in a terminal; Python's has tokens that only its program makes."""
    refused(said, read_grammar, Path(lark.__file__).parent / "grammars" / name, start, error=GrammarError)
