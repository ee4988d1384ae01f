"""The verdicts on right guides and on guides and engines that are wrong on purpose."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from random import Random

import pytest

from outlines_phi import EmptyLanguageError, Vocabulary
from outlines_phi.guides import JSONGuide, read_grammar
from outlines_phi.guides.grammar.grammar import Terminal
from outlines_phi.guides.grammar.notation.reader import grammar_text
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
from outlines_phi_workbench.verification.subject import Subject, Verdict
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
