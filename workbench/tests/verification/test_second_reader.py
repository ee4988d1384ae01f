"""The reader of the oracle: what it reads, and faults of the engine's reader that it finds out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import lark.load_grammar
import pytest
from typer.testing import CliRunner

from outlines_phi.cli.app import app
from outlines_phi.guides.grammar.grammar import Grammar
from outlines_phi.guides.grammar.notation import reader
from outlines_phi.guides.grammar.notation.reader import NAMES, grammar_text, read_grammar
from outlines_phi.vocabulary.vocabulary import Vocabulary
from outlines_phi_workbench.verification.earley import Earley
from outlines_phi_workbench.verification.second_grammar import SecondReading, read_again
from outlines_phi_workbench.verification.second_reader import SharedReading, read_definitions
from outlines_phi_workbench.verification.subject import CheckFinding, Subject, Verdict
from outlines_phi_workbench.verification.verification import CHECKS
from tests.guides.grammar.fixtures import FIXTURES, Fixture

BYTES = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b""], 256)
pytestmark = pytest.mark.filterwarnings("ignore:rules that never end")
NO_GRAMMAR = Grammar((), (), (), 0)


def words_of(reading: SecondReading, longest: int = 3) -> set[str]:
    """The words of terminals, each by the letter of its pattern."""
    grammar = reading.grammar
    earley, letters = Earley(grammar), [terminal.pattern for terminal in grammar.terminals]
    every = (word for n in range(longest + 1) for word in product(range(len(letters)), repeat=n))
    return {"".join(letters[each] for each in word) for word in every if earley.derives(word)}


def findings(text: str, *ids: str, depth: int = 3) -> dict[str, CheckFinding]:
    subject = Subject.of_grammar(read_grammar(text), BYTES, text, depth=depth)
    return {check.id: check.find(subject) for check in CHECKS if check.id in ids}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('start: "a"? "b"', "b ab"),
        ('start: "a"*', " a aa aaa"),
        ('start: "a"+ "b"', "ab aab"),
        ('start: "a"~2', "aa"),
        ('start: "a"~0..2 "b"', "b ab aab"),
        ('start: ("a" "b")~1..2', "ab"),
        ('start: ["a" ["b"]] "c"', "c ac abc"),
        ('start: ("a" | "b" "c")+', "a aa aaa bc abc bca"),
        ('start: ("a"? "b")*', " b ab bb abb bab bbb"),
        ('start: "a"? "b"? "c"? "a"? "b"?  "c"', "c ac bc cc abc acc aac bcc bac bbc cac cbc"),
        ('start: [x] -> empty\n  | "a" -> letter\n\n// a comment\n  | "b"   // another\nx: "c"', " a b c"),
        ('start: a | _b | c\n?a: "a"\n!_b: "b"\n?!c.2: "c" # that is all', "a b c"),
        ('start: "a" \\\n  "b"', "ab"),
        ('start: pair{"a", x}\npair{p, q}: p q | q p\nx: "b"', "ab ba"),
        ('start: _list{x}\n_list{e}: e | _list{e} "," e\nx: "a"', "a a,a"),
        ('start: both{once, "a"}\nboth{t, e}: t{e} t{e}\nonce{e}: e', "aa"),
        ('start: x | useless\nx: "a"\nuseless: useless "b"', "a"),
        ('start: A | b\nA: "a"\nb: "b"\nC: "c"', "a b"),
    ],
)
def test_what_rules_derive(text: str, words: str) -> None:
    assert words_of(read_again(text, NO_GRAMMAR)) == set(words.split(" "))


@pytest.mark.parametrize(
    ("definition", "pattern", "is_literal"),
    [
        ('A: "a.b"', r"a\.b", True),
        ('A: "a"i', "(?i:a)", True),
        (r'A: "\n\t\"\x41\u0042\\"', '\\\n\\\t"AB\\\\', True),
        (r"A: /\x41[\/\\d]\"/s", r'(?s:A[\/\\d]")', False),
        ('A: "0".."9"', "[0-9]", False),
        ('A: B\nB: (C)\nC: "c"', "c", True),
        ("A: B\nB: C\nC: /c/", "c", False),
        ('A: "x" /y|z/ B\nB: ("b" | C)+\nC: "c"~2..3', r"xy|z(?:(?:b|(?:c){2,3})){1,}", False),
        ('A: ["-"] /[0-9]/', r"(?:\-){0,1}[0-9]", False),
    ],
)
def test_patterns_of_terminals(definition: str, pattern: str, is_literal: bool) -> None:
    """As in Lark, the texts of regular expressions are written one after the other."""
    (terminal,) = read_again(f"start: A\n{definition}", NO_GRAMMAR).grammar.terminals
    assert (terminal.pattern, terminal.literal) == (pattern, is_literal)


def test_terminals_of_one_text_are_one() -> None:
    grammar = read_again('start: "a" A | /b+/ B | "c" "c"i\nA: "a"\nB: /b+/\n', NO_GRAMMAR).grammar
    assert [terminal.name or terminal.pattern for terminal in grammar.terminals] == ["A", "B", "c", "(?i:c)"]


def test_imports_are_those_of_lark_s_library() -> None:
    text = "start: NUMBER word C\n%import common.NUMBER\n%import common (CNAME, INT)\n%import common.WORD -> C\nword: CNAME INT"
    names = read_definitions(text).named
    # What imported terminals use has the name of their grammar before it, but for what is imported itself.
    assert {"NUMBER", "CNAME", "INT", "C", "common__FLOAT", "_common__EXP"} <= names.keys()
    assert not {"WORD", "common__INT", "common__WORD", "common__CR"} & names.keys()
    reading = read_again(text, read_grammar(text).reduced())
    assert not reading.shared and not reading.differences


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('start: "a"\n%extend start: "b"', "it has `%extend`"),
        ("%import common.INT\nstart: INT\n%override INT: /1/", "it has `%override`"),
        ("start: INT\n%import .numbers.INT", "it imports a grammar from a file beside it"),
        ("start: INT\n%import numbers.INT", "it imports 'numbers', which is not of Lark's library"),
        ("start: A\n%declare A", "terminal 'A' has no pattern"),
        ('start: "a" @', "it has '@'"),
        ('start: ("a"', "'the end' stands where ')' was expected"),
        ('start: "a"\nstart: "b"', "'start' is defined twice"),
        ("start: x", "there is no rule 'x' with 0 parameters"),
        ("start: A\nA: start", "a terminal has"),
        ("start: start", "its start rule derives no text"),
    ],
)
def test_what_is_not_read_is_said(text: str, said: str) -> None:
    reading = read_again(text, NO_GRAMMAR)
    assert reading.shared.startswith(said) and reading.grammar is NO_GRAMMAR
    with pytest.raises(SharedReading):
        read_definitions("%extend")


@pytest.mark.parametrize("name", [*NAMES, "dyck-3"])
def test_grammars_that_are_shipped(name: str) -> None:
    """Both readings have the same terminals, and their words go on alike as far as this looks."""
    text = grammar_text(name)
    first = read_grammar(text).reduced()
    reading = read_again(text, first)
    assert not reading.shared and not reading.differences
    found = [Earley(first), Earley(reading.grammar)]
    words = 0
    pending: list[tuple[int, ...]] = [()]
    for word in pending:  # it grows
        words += 1
        assert found[0].derives(word) == found[1].derives(word)
        for terminal in range(len(first.terminals)):
            longer = (*word, terminal)
            survives = found[0].survives(longer)
            assert survives == found[1].survives(longer)
            if survives and len(pending) < 60:
                pending.append(longer)
    assert words > 15


def in_lark(grammar: Grammar) -> str:
    """The text of a fixture."""
    lines = []
    for each in grammar.terminals:
        text = f'"{each.pattern.removeprefix(chr(92))}"' if each.literal else f"/{each.pattern}/"
        lines += [f"{each.name}.{each.priority}: {text}"] + [f"%ignore {each.name}"] * each.ignored
    named = {symbol: grammar.name(symbol) for symbol in range(len(grammar.terminals) + len(grammar.nonterminals))}
    named[grammar.start] = "start"
    for head in dict.fromkeys(production.head for production in grammar.productions):
        bodies = (production.body for production in grammar.productions if production.head == head)
        lines.append(f"{named[head]}: {' | '.join(' '.join(map(named.__getitem__, body)) for body in bodies)}")
    return "\n".join(lines)


@pytest.mark.parametrize("fixture", [each for each in FIXTURES if not each.empty], ids=lambda fixture: fixture.id)
def test_the_fixtures_as_texts(fixture: Fixture) -> None:
    text = in_lark(fixture.grammar)
    subject = Subject.of_grammar(read_grammar(text), fixture.vocabulary, text, depth=4)
    found = {check.id: check.find(subject) for check in CHECKS if check.id not in ("S7", "T15", "T17")}
    assert found["S9"].verdict is Verdict.EXHAUSTIVE and not found["S9"].remark
    assert Verdict.COUNTEREXAMPLE not in {each.verdict for each in found.values()}


PLAIN = 'start: KEY+ ["a"]\nKEY: /k[a-z]/\nWS: /[ ]+/\n%ignore WS'
WORDS = 'start: "if" | NAME "!"\nNAME.2: /[a-z]+/'


@pytest.fixture
def misread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a fault in what the engine's reader does."""
    terminal: Callable[..., Any] = reader._terminal
    changes: dict[str, Callable[..., Any]] = {
        "an ignored terminal counts": lambda source, definition, _: terminal(source, definition, False),
        "a priority is lost": lambda *given: replace(terminal(*given), priority=0),
        "a pattern is another one": lambda *given: replace(terminal(*given), pattern=terminal(*given).pattern + "q?"),
        "a string is no string": lambda *given: replace(terminal(*given), literal=False),
        "a terminal has another name": lambda *given: replace(terminal(*given), name="OTHER"),
    }
    if request.param in changes:
        monkeypatch.setattr(reader, "_terminal", changes[request.param])
        return
    other = {"+ is read as *": ("+", "*"), "* is read as +": ("*", "+"), "? is read as +": ("?", "+")}[request.param]
    right = vars(lark.load_grammar.EBNF_to_BNF)["expr"].base_func

    def expr(self: Any, children: list[Any]) -> Any:
        rule, op, *bounds = children
        return right(self, rule, op.update(value=other[1]) if op == other[0] else op, *bounds)

    monkeypatch.setattr(lark.load_grammar.EBNF_to_BNF, "expr", expr)


@pytest.mark.parametrize(
    ("misread", "text", "check"),
    [
        ("+ is read as *", PLAIN, "T7"),
        ("an ignored terminal counts", PLAIN, "S9"),
        ("a priority is lost", WORDS, "S9"),
        ("a priority is lost", WORDS, "T1"),
        ("a pattern is another one", PLAIN, "T1"),
        ("a string is no string", PLAIN, "S9"),
        ("a terminal has another name", "start: A\nA: /a/", "S9"),
    ],
    indirect=["misread"],
)
@pytest.mark.usefixtures("misread")
def test_faults_of_the_engine_s_reader_are_found_out(text: str, check: str) -> None:
    found = findings(text, check)[check]
    assert found.verdict is Verdict.COUNTEREXAMPLE and found.witness


@pytest.mark.parametrize("misread", ["+ is read as *"], indirect=True)
@pytest.mark.usefixtures("misread")
def test_they_are_found_in_masks_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings(PLAIN, "T12", depth=2)["T12"].verdict is Verdict.COUNTEREXAMPLE


def test_right_readings_are_not_found_out() -> None:
    for text in (PLAIN, WORDS):
        found = findings(text, "S9", "T1", "T7", "T12")
        assert {each.verdict for each in found.values()} <= {Verdict.EXHAUSTIVE, Verdict.BOUNDED}


def test_terminals_that_only_one_reading_has() -> None:
    """The checks run whatever the other reading lacks, and say so."""
    text = 'start: "a" B | C\nB: /b+/\nC: /c+/\nWS: " "\n%ignore WS'
    for engine in (
        'start: "a" B\nB: /b+/',
        text + "\n%ignore /z+/",
        'start: "a" B | C "d"\nB: /b+/\nC: /c+/\n%ignore " "',
    ):
        subject = Subject.of_grammar(read_grammar(engine), BYTES, text, depth=2)
        found = {check.id: check.find(subject) for check in CHECKS if check.id in ("S9", "T1", "T2", "T4", "T7", "T11")}
        assert found["S9"].verdict is found["T1"].verdict is Verdict.COUNTEREXAMPLE


def test_lexemes_that_end_first_are_read_by_the_oracle() -> None:
    found = findings("start: ESCAPED_STRING\n%import common.ESCAPED_STRING", "S9", "T1")
    assert {each.verdict for each in found.values()} == {Verdict.EXHAUSTIVE}
    found_ = findings('start: "x"+\n%ignore C_COMMENT\n%import common.C_COMMENT\n%ignore /\\s/', "S9", "T1")
    assert {each.verdict for each in found_.values()} == {Verdict.EXHAUSTIVE} and not found_["S9"].remark


def test_the_command_says_whose_reading_the_oracle_has(tmp_path: Path) -> None:
    (tmp_path / "one.lark").write_text('start: "a"+', encoding="utf-8")
    (tmp_path / "two.gbnf").write_text('root ::= "a"+', encoding="utf-8")
    (tmp_path / "three.lark").write_text('start: "a"+\n%extend start: "b"', encoding="utf-8")

    def of(name: str) -> dict[str, Any]:
        said = json.loads(CliRunner().invoke(app, ["verify", name, "--depth", "1", "--json"]).stdout)
        (row,) = (check for check in said["checks"] if check["id"] == "S9")
        return dict(row)

    rows: Iterator[dict[str, Any]] = (of(str(tmp_path / name)) for name in ("one.lark", "two.gbnf", "three.lark"))
    one, two, three = rows
    assert one["verdict"] == "EXHAUSTIVE"
    assert two["verdict"] == three["verdict"] == "NOT NEEDED"
    assert "shares the engine's reader" in two["remark"] and three["witness"] == "it has `%extend`"
