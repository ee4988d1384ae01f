"""Engines that are made wrong on purpose, and the checks that find them out (T17, T18)."""

from __future__ import annotations

import pytest

from outlines_phi.guides.grammar.notation.reader import grammar_text, read_grammar
from outlines_phi.verification.mutating import mutations
from outlines_phi.verification.subject import Check, CheckFinding, Subject, Verdict
from outlines_phi.verification.verification import CHECKS
from outlines_phi.vocabulary.vocabulary import Vocabulary
from tests.guides.grammar.fixtures import FIXTURES, Fixture

VOCABULARY = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b"((", b"))", b""], 258)
(ROWS,) = (each for each in CHECKS if each.id == "T17")
ENGINES = next(each for each in CHECKS if each.id == "T18")


def found(check: Check, subject: Subject) -> CheckFinding:
    """Return what a check finds."""
    return check.find(subject)


@pytest.mark.parametrize("fixture", FIXTURES[:6], ids=lambda fixture: fixture.id)
def test_wrong_engines_of_small_grammars_are_found_out(fixture: Fixture) -> None:
    finding = found(ENGINES, Subject.of_grammar(fixture.grammar, fixture.vocabulary, depth=3))
    assert finding.verdict is Verdict.BOUNDED, (finding.witness, finding.remark)
    assert "lexer" in finding.remark and "parser" in finding.remark and "distance" in finding.remark


@pytest.mark.parametrize("name", ["arithmetic", "dyck-2"])
def test_wrong_engines_of_shipped_grammars_are_found_out(name: str) -> None:
    finding = found(ENGINES, Subject.of_grammar(read_grammar(grammar_text(name)), VOCABULARY, depth=3))
    assert finding.verdict is Verdict.BOUNDED, (finding.witness, finding.remark)
    assert "T16: " in finding.remark and "T11: " in finding.remark


@pytest.mark.parametrize("check", [ROWS, ENGINES], ids=["masks", "engines"])
def test_wrong_automata_are_found_out(check: Check) -> None:
    finding = found(check, Subject.of_pattern("(ab|ba){0,3}c?", VOCABULARY))
    assert finding.verdict is Verdict.BOUNDED and "T12: " in finding.remark


@pytest.mark.parametrize("left_out", ["T16", "T11"])
def test_without_a_check_some_wrong_engine_goes_unnoticed(left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject.of_grammar(read_grammar(grammar_text("dyck-2")), VOCABULARY, depth=3)
    kept = tuple(check for check in mutations.BY_WORDS if check.id not in {left_out, "T14"})
    monkeypatch.setattr(mutations, "BY_WORDS", kept)
    monkeypatch.setattr(mutations, "AT_LAST", ())
    finding = found(ENGINES, subject)
    assert finding.verdict is Verdict.COUNTEREXAMPLE and "was not found out" in str(finding.witness)
