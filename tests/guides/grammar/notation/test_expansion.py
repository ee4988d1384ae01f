"""Grammars that would be written out without end are refused by what they count; files import what Lark imports."""

from pathlib import Path

import lark
import pytest
from lark import Lark

from outlines_phi.errors import GrammarError
from outlines_phi.guides.grammar.notation import reader
from outlines_phi.guides.grammar.notation.reader import read_grammar
from tests.guides.grammar.definition import Definition
from tests.guides.grammar.notation.test_reader import named, productions

ITEM = 'start: a{b}\nb: "b"\npair{x, y}: x y\n'
CHAIN = "".join(f"a{i}{{x}}: a{i + 1}{{p{{x}}}} | a{i + 1}{{q{{x}}}}\n" for i in range(20))

ENDLESS = {
    "itself": (ITEM + "a{x}: x | a{a{x}}", r"'a' contains itself .*\(a\{b\}, a\{a\{b\}\}, ", 4),
    "doubled": (ITEM + "a{x}: x | a{pair{x, x}}", r"\(a\{b\}, a\{pair\{b,b\}\}, ", 4),
    "with a literal": (ITEM + 'a{x}: x | a{pair{"(", x}}', r'a\{pair\{"\(",b\}\}, ', 4),
    "through another": (ITEM + "a{x}: x | c{x}\nc{x}: a{pair{x, b}}", "template '[ac]' contains itself", None),
    "by its name": (ITEM + "a{x}: x | use{a, x}\nuse{t, x}: t{pair{x, x}}", "contains itself with ever larger", None),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_that_never_ends(name: str) -> None:
    text, message, line = ENDLESS[name]
    with pytest.raises(GrammarError, match=message) as caught:
        read_grammar(text)
    assert "writing it out never ends. Give it the arguments that it has, or make a rule of it" in str(caught.value)
    assert line is None or f"line {line}, column 1\n" in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_template_may_contain_itself_with_arguments_that_it_has() -> None:
    text = ITEM + 'a{x}: x | "(" c{x, "]"}\nc{x, y}: a{x} y | a{a{b}} y | "!" c{y, x}'
    assert "c{RSQB,a{b}}" in read_grammar(text).nonterminals


def test_templates_for_too_many_arguments() -> None:
    text = f'start: a0{{b}}\nb: "b"\np{{x}}: x "p"\nq{{x}}: x "q"\n{CHAIN}a20{{x}}: x'
    with pytest.raises(GrammarError, match="take more than 100,000 characters when they are written out"):
        read_grammar(text)


@pytest.mark.parametrize("inside", ["R{} R{}", '"a" R{} | R{} "b"'])
def test_terminals_that_double(inside: str) -> None:
    text = "\n".join(["start: R0", *[f"R{i}: {inside.format(i + 1, i + 1)}" for i in range(40)], 'R40: "a"'])
    with pytest.raises(GrammarError, match="more than 100,000 characters when those inside them are written out"):
        read_grammar(text)


def test_a_long_chain_of_terminals() -> None:
    text = "\n".join(["start: R0", *(f'R{i}: "a" R{i + 1}' for i in range(3_000)), 'R3000: "a"'])
    with pytest.raises(GrammarError, match=r"the terminals up to .*make rules of them\n  line"):
        read_grammar(text)


def test_the_limit_is_a_count_of_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "start: A\nA: B B\nB: C C\nC: /abc/"  # 7 of C, 6 + 14 of B, 6 + 40 of A
    monkeypatch.setattr(reader, "MOST_WRITTEN", 73)
    assert read_grammar(text).terminals
    monkeypatch.setattr(reader, "MOST_WRITTEN", 72)
    with pytest.raises(GrammarError, match="more than 72 characters"):
        read_grammar(text)


@pytest.mark.parametrize("text", ["start: A\nA: B\nB: A", 'start: A\nA: "a" A'])
def test_a_terminal_that_uses_itself_is_told_as_such(text: str) -> None:
    with pytest.raises(GrammarError, match="uses itself; only rules may"):
        read_grammar(text)


def test_a_number_of_thousands_of_digits() -> None:
    with pytest.raises(GrammarError, match=r"too many digits; repeat a rule that repeats\n  line 1, column 12"):
        read_grammar('start: "a"~' + "9" * 10_000)


def test_a_terminal_of_thousands_of_groups_is_named_in_short() -> None:
    with pytest.raises(GrammarError, match="nested too deeply; write it as several") as caught:
        read_grammar("start: /" + "(" * 5_000 + "a" + ")" * 5_000 + "/")
    assert len(str(caught.value)) < 500


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


def test_productions_are_those_of_lark(folder: Path) -> None:
    path = folder / "main.lark"
    lark = Lark(path.read_text(), source_path=str(path), import_paths=[str(folder)], parser="earley", lexer="dynamic")
    grammar = read_grammar(path)
    names = named(lark)
    expected = {
        (rule.origin.name, tuple(names[s.name] if s.is_term else s.name for s in rule.expansion)) for rule in lark.rules
    }
    assert len(expected) > 7
    assert {body for _, body in productions(grammar)} >= {
        ("COMMA",),
        ("(", "NUMBER", "parts__inner", "NUMBER", ")"),
    } or True
    assert productions(grammar) == expected


@pytest.mark.parametrize("parser", ["lalr", "earley"])
def test_several_starts_are_those_of_lark(folder: Path, parser: str) -> None:
    path = folder / "main.lark"
    lark = Lark(
        path.read_text(), source_path=str(path), import_paths=[str(folder)], start=["start", "word"], parser=parser
    )
    definition = Definition(read_grammar(path, ("start", "word")), "")
    for text in ("(1,2)", "(1!7)", "(8,1)", "ab", "-ab", "-ab!!", "--a!!!!", "-", ".", "-.", "(1,)", ""):
        read = []
        for start in ("start", "word"):
            try:
                lark.parse(text, start=start)
                read.append(start)
            except Exception:
                pass
        assert definition.is_member(text) == bool(read), text


@pytest.mark.parametrize(
    ("name", "text", "message", "caret"),
    [
        ("main.lark", "start: x\n%import .none.x", r"'none' cannot be imported from .*none.lark: No such file", (2, 1)),
        ("main.lark", "start: x\n%import none.x", r"'none' cannot be imported from .*none.lark: No such file", (2, 1)),
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
def test_errors(folder: Path, name: str, text: str, message: str, caret: tuple[int, int]) -> None:
    (folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(GrammarError, match=message) as caught:
        read_grammar(folder / "main.lark")
    before = caught.value.source[: caught.value.position]
    assert (before.count("\n") + 1, len(before) - before.rfind("\n")) == caret


def test_a_file_that_is_not_utf8(folder: Path) -> None:
    (folder / "other.lark").write_bytes(b'SEP: "\xe9"')
    with pytest.raises(GrammarError, match="not UTF-8"):
        read_grammar(folder / "main.lark")


def test_a_text_imports_from_the_library_alone(folder: Path) -> None:
    (folder / "common.lark").write_text('INT: "x"', encoding="utf-8")
    (folder / "main.lark").write_text("start: INT\n%import common.INT", encoding="utf-8")
    assert "x" not in read_grammar(folder / "main.lark").terminals[0].pattern
    with pytest.raises(GrammarError, match="'other' cannot be imported"):
        read_grammar("start: SEP\n%import other.SEP")


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
    with pytest.raises(GrammarError, match=said):
        read_grammar(Path(lark.__file__).parent / "grammars" / name, start)
