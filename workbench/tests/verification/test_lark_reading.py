"""Lark's own reading beside the package's, and faults of the package's reader that it finds out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from outlines_phi import Vocabulary
from outlines_phi.guides import read_grammar
from outlines_phi.guides.grammar.notation import reader
from outlines_phi.guides.grammar.notation.reader import NAMES, grammar_text
from outlines_phi_workbench.verification.lark_reading import read_again
from outlines_phi_workbench.verification.subject import CheckFinding, Subject, Verdict
from outlines_phi_workbench.verification.verification import CHECKS

BYTES = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b""], 256)
PLAIN = 'start: KEY+ ["a"]\nKEY: /k[a-z]/\nWS: /[ ]+/\n%ignore WS'
WORDS = 'start: "if" | NAME "!"\nNAME.2: /[a-z]+/'
TEXTS = {
    **{name: grammar_text(name) for name in (*NAMES, "dyck-3")},
    "repeats": 'start: ("a" | "b" "c")~0..2 x*\nx: "b"+ [C]\nC: "c"',
    "templates": 'start: both{once, "a"} pair{"b", x}\nboth{t, e}: t{e} t{e}\nonce{e}: e\npair{p, q}: p q | q p\nx: "c"',
    "library": "start: ESCAPED_STRING | C_COMMENT\n%import common (ESCAPED_STRING, C_COMMENT)\n%ignore /\\s/",
    "extended": '%import common.INT\nstart: INT\n%extend start: "b"\n%override INT: /1/',
    "literals": 'start: "a" A | /b+/ B | "c" "c"i\nA: "a"\nB: /b+/',
    "plain": PLAIN,
    "words": WORDS,
}


def findings(text: str, *ids: str, engine: str | None = None) -> dict[str, CheckFinding]:
    subject = Subject.of_grammar(read_grammar(engine or text), BYTES, text, depth=2)
    return {check.id: check.find(subject) for check in CHECKS if check.id in ids}


@pytest.mark.parametrize("name", TEXTS)
def test_both_readings_say_the_same(name: str) -> None:
    found = findings(TEXTS[name], "S9", "T1", "T7")
    assert found["S9"].verdict is found["T1"].verdict is Verdict.EXHAUSTIVE or name == "c"
    assert Verdict.COUNTEREXAMPLE not in {each.verdict for each in found.values()} and not found["S9"].witness


@pytest.mark.parametrize(
    ("change", "text", "check"),
    [
        (lambda read: lambda source, definition, _: read(source, definition, False), PLAIN, "S9"),
        (lambda read: lambda *given: replace(read(*given), priority=0), WORDS, "T1"),
        (lambda read: lambda *given: replace(read(*given), priority=0), WORDS, "S9"),
        (lambda read: lambda *given: replace(read(*given), pattern=read(*given).pattern + "q?"), PLAIN, "T1"),
        (lambda read: lambda *given: replace(read(*given), literal=False), PLAIN, "S9"),
        (lambda read: lambda *given: replace(read(*given), name="OTHER"), "start: A\nA: /a/", "S9"),
    ],
    ids=["ignored counts", "priority lost", "priority said", "another pattern", "no string", "another name"],
)
def test_faults_of_the_package_s_reader_are_found_out(
    change: Callable[..., Any], text: str, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_terminal", change(reader._terminal))
    found = findings(text, check)[check]
    assert found.verdict is Verdict.COUNTEREXAMPLE and found.witness


@pytest.mark.parametrize(
    ("engine", "check"),
    [
        ('start: "a" B\nB: /b+/', "S9"),
        ('start: "a" B | C\nB: /b+/\nC: /c+/\n%ignore " "\n%ignore /z+/', "S9"),
        ('start: "a" B | C | "a"\nB: /b+/\nC: /c+/\n%ignore " "', "T12"),
        ('start: "a" B | C C\nB: /b+/\nC: /c+/\n%ignore " "', "T7"),
    ],
)
def test_another_grammar_is_found_out(engine: str, check: str) -> None:
    text = 'start: "a" B | C\nB: /b+/\nC: /c+/\n%ignore " "'
    assert findings(text, check, engine=engine)[check].verdict is Verdict.COUNTEREXAMPLE


@pytest.mark.parametrize("text", ["start: INT\n%import .numbers.INT", "start: A\nA: /a(?=b)/", "start: start"])
def test_what_lark_or_the_oracle_does_not_read_is_said(text: str) -> None:
    right = read_grammar(PLAIN)
    reading = read_again(text, right)
    assert reading.shared and reading.grammar is right
