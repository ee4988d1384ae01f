"""The verdicts on right guides, on guides and engines that are wrong on purpose, and on faults of the reader of grammars."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from random import Random
from typing import Any

import pytest

from outlines_phi import EmptyLanguageError, Vocabulary
from outlines_phi.guides import JSONGuide, read_grammar
from outlines_phi.guides.grammar.grammar import Terminal
from outlines_phi.guides.grammar.notation import reader
from outlines_phi.guides.grammar.notation.reader import NAMES, grammar_text
from outlines_phi_workbench.verification.lark_reading import read_again
from outlines_phi_workbench.verification.mutants import (
    AUTOMATON,
    BROKEN,
    GRAMMAR,
    GUIDES,
    HARMLESS,
    NOWHERE,
    Mutation,
    engine_mutations,
    near,
    tried,
)
from outlines_phi_workbench.verification.subject import CheckFinding, Subject, Verdict
from outlines_phi_workbench.verification.verification import CHECKS, GUIDE_CHECKS, verify
from tests.guides.grammar.fixtures import BY_ID, FIXTURES, grammar, vocabulary

pytestmark = pytest.mark.filterwarnings("ignore:rules that never end")
BYTES = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b'":', b'"a"', b"{}", b""], 259)
SCHEMAS = (
    {"enum": ["a", "bc", 12]},
    {"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": False},
)
PATTERNS = ("(ab)*a", "[ab]{2,4}", "b*(a|ba)?")
HELD = grammar(
    (Terminal("NUM", r"1+(\.1+)?"), Terminal("DOT", r"\.", literal=True)), "s: NUM DOT DOT NUM | NUM | DOT s"
)
SUBJECTS: dict[str, Callable[[], Subject]] = {
    **{
        each.id: partial(Subject.of_grammar, each.grammar, each.vocabulary, depth=8 if each.id != "DYCK" else 4)
        for each in FIXTURES
        if not each.empty
    },
    "given up": partial(Subject.of_grammar, HELD, vocabulary("1", ".", "1.", ".."), depth=5),
    **{each: partial(Subject.of_pattern, each, vocabulary("a", "b", "ab", "bb", "aba")) for each in PATTERNS},
    **{str(each): lambda each=each: Subject.of_json(JSONGuide.of(each, BYTES), depth=3) for each in SCHEMAS},
}
"""Right guides of every kind."""


@cache
def subject(name: str) -> Subject:
    return SUBJECTS[name]()


@pytest.mark.parametrize("name", SUBJECTS)
def test_right_guides_hold(name: str) -> None:
    found = verify(subject(name))
    assert found.holds, [result for result in found.results if result.finding.verdict is Verdict.COUNTEREXAMPLE]
    of = {result.check.id: result.finding.verdict for result in found.results}
    assert list(of) == [check.id for check in CHECKS if check.applies(subject(name))]
    bounded = not subject(name).exploration.closed
    assert {of[id] for id in ("T10", "T11", "T12", "T16")} == {Verdict.BOUNDED if bounded else Verdict.EXHAUSTIVE}
    if (fixture := BY_ID.get(name)) is not None:
        assert (of["S5"] is Verdict.EXHAUSTIVE) == fixture.has_single_bytes and of["T1"] is Verdict.EXHAUSTIVE
        assert bounded == (name == "DYCK")


@pytest.mark.parametrize("mutation", [*GUIDES, *GRAMMAR, *AUTOMATON], ids=lambda mutation: mutation.name)
def test_every_mistake_is_found_out_and_missed_nowhere(mutation: Mutation) -> None:
    rights = map(near, map(subject, SUBJECTS))
    apply = [right for right in rights if mutation in GUIDES or mutation in engine_mutations(right)]
    found = {tried(right, mutation, Random(seed), GUIDE_CHECKS) for right in apply for seed in range(3)}
    assert None not in found
    # Reading on before a wrong terminal fails a step later, at the same place of the text: LALR tables do so themselves.
    assert (found <= {HARMLESS, NOWHERE, BROKEN}) == (mutation.name == "has a parser with a lookahead too many")


@pytest.mark.parametrize("mutation", [*GUIDES, *GRAMMAR[:-2]], ids=lambda mutation: mutation.name)
def test_without_the_checks_mistakes_go_unnoticed(mutation: Mutation) -> None:
    rights = [near(subject(name)) for name in ("CALC", "DYCK", "REENT")]
    found = {tried(right, mutation, Random(seed), ()) for right in rights for seed in range(5)}
    assert None in found and found <= {None, HARMLESS, NOWHERE}


def test_where_bytes_are_missing_nothing_too_much_is_allowed() -> None:
    right = Subject.of_grammar(BY_ID["DYCK"].grammar, vocabulary("()", "((", "))", "_", ")("), depth=4)
    of = {check.id: check.find(right).verdict for check in CHECKS if check.id in ("S5", "T10", "T12")}
    assert of == {"S5": Verdict.NOT_NEEDED, "T10": Verdict.BOUNDED, "T12": Verdict.BOUNDED}


def test_a_vocabulary_that_completes_nothing() -> None:
    with pytest.raises(EmptyLanguageError):
        Subject.of_grammar(BY_ID["NOSING"].grammar, BY_ID["NOSING"].vocabulary)


def test_a_third_party_says_what_is_valid() -> None:
    right = replace(subject(str(SCHEMAS[0])), fault=lambda text: "is no number" if b'"' in text else None)
    (check,) = (check for check in CHECKS if check.id == "T16")
    assert check.find(right).verdict is Verdict.COUNTEREXAMPLE and check.find(right).remark == "is no number"


def test_words_grow_as_far_as_the_work_allows() -> None:
    text = grammar_text("json")
    right = Subject.of_grammar(read_grammar(text), BYTES, text, most=300)
    found = right.exploration
    assert 30 < len(found.nodes) <= 300 and found.complete and not found.closed
    assert len(found.inner) < len(found.nodes) and verify(replace(right, most=100)).holds


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
