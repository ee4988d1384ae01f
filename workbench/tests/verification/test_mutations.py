"""Engines that are wrong on purpose: each mistake is found out, and would not be without the check that finds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from outlines_phi.errors import OutlinesPhiError
from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.grammar.lexing.lexer import NOTHING, START, Lexer
from outlines_phi.guides.grammar.lexing.spanner import Spanner
from outlines_phi.guides.guide import UNREACHABLE, Guide, Row
from outlines_phi_workbench.verification import guide_checks
from outlines_phi_workbench.verification.mutating import mutations
from outlines_phi_workbench.verification.mutating.engine_mutants import ENGINE
from outlines_phi_workbench.verification.mutating.mutants import LIFTED, ROWS, Met, Mutation
from outlines_phi_workbench.verification.mutating.mutations import (
    BROKEN,
    HARMLESS,
    NOWHERE,
    finder_of,
    found_out,
    over_few,
)
from outlines_phi_workbench.verification.subject import Subject, Verdict
from outlines_phi_workbench.verification.verification import CHECKS
from tests.guides.grammar.fixtures import BY_ID, FIXTURES, vocabulary

WRITTEN = [fixture for fixture in FIXTURES if not fixture.empty]
PATTERNS = ("(ab)*a", "[ab]{2,4}", "b*(a|ba)?")
SEEDS = 3
pytestmark = pytest.mark.filterwarnings("ignore:rules that never end")
(T17, T18) = (next(check for check in CHECKS if check.id == id) for id in ("T17", "T18"))


def of_grammar(id: str) -> Subject:
    return Subject.of_grammar(BY_ID[id].grammar, BY_ID[id].vocabulary)


def of_pattern(pattern: str) -> Subject:
    return Subject.of_pattern(pattern, vocabulary("a", "b", "ab", "bb", "aba"))


def tried(right: Subject, mutation: Mutation, seed: int) -> str | None:
    """Return the check that finds out a mutant whose place is chosen by ``seed``."""
    try:
        mutant = mutation.make(Met(right), Random(seed))
        return NOWHERE if mutant is None else finder_of(right, mutant)
    except (OutlinesPhiError, ArithmeticError, AssertionError, LookupError, RecursionError, ValueError):
        return BROKEN


def test_every_mistake_is_found_out_in_some_fixture_and_missed_in_none() -> None:
    found: dict[str, set[str | None]] = {mutation.name: set() for mutation in ENGINE}
    for fixture in WRITTEN:
        right = over_few(of_grammar(fixture.id))
        for mutation in ENGINE:
            found[mutation.name] |= {tried(right, mutation, seed) for seed in range(SEEDS)}
    assert [name for name, finders in found.items() if None in finders] == []
    # Reading on before a wrong terminal fails a step later, at the same place of the text: LALR tables do so themselves.
    unnoticed = {name for name, finders in found.items() if finders <= {HARMLESS, NOWHERE, BROKEN}}
    assert unnoticed == {"has a parser with a lookahead too many"}


def test_every_mistake_in_an_automaton_is_found_out() -> None:
    rights = [over_few(of_pattern(pattern)) for pattern in PATTERNS]
    for mutation in LIFTED:
        finders = {tried(right, mutation, seed) for right in rights for seed in range(8)}
        assert None not in finders and not finders <= {HARMLESS, NOWHERE, BROKEN}, mutation.name


@pytest.mark.parametrize("id", ["CALC", "DYCK"])
def test_the_check_says_what_found_which(id: str) -> None:
    found = T18.find(of_grammar(id))
    assert found.verdict is Verdict.BOUNDED and found.witness is None and found == T18.find(of_grammar(id))
    parts = dict(part.split(": ", 1) for part in found.remark.split("; "))
    named = [name for names in parts.values() for name in names.split(", ")]
    assert sorted(named) == sorted(mutation.name for mutation in ENGINE)
    assert {"T11", "T16"} <= parts.keys() <= {check.id for check in CHECKS} | {BROKEN, HARMLESS, NOWHERE}
    assert found.cases == len(named) - len(parts.get(NOWHERE, "").split(", ") if NOWHERE in parts else [])


def without_boundary(lexer: Lexer) -> Lexer:
    return replace(lexer, targets=np.where(lexer.emits != 0, 0, lexer.targets), emits=np.zeros_like(lexer.emits))


def without_ends(lexer: Lexer) -> Lexer:
    ends = np.full_like(lexer.ends, NOTHING)
    ends[START] = 0
    return replace(lexer, ends=ends)


def with_ends_anywhere(lexer: Lexer) -> Lexer:
    return replace(lexer, ends=np.where(lexer.ends == NOTHING, 0, lexer.ends))


def silent(lexer: Lexer) -> Lexer:
    return replace(lexer, emits=np.zeros_like(lexer.emits))


@pytest.mark.parametrize(
    ("id", "change", "finder"),
    [
        ("CALC", without_boundary, {"T11"}),
        ("KW", without_ends, {"T10", "T11", "T12"}),
        ("REENT", with_ends_anywhere, {"T12"}),
        ("DYCK", silent, {"T9", "T10", "T11"}),
    ],
)
def test_planted_lexers(id: str, change: Callable[[Lexer], Lexer], finder: set[str]) -> None:
    right = over_few(of_grammar(id))
    guide = right.parts.guide
    assert finder_of(right, CFGGuide(Spanner(change(guide.lexer), guide.vocabulary), guide.parser)) in finder
    assert finder_of(right, CFGGuide(Spanner(guide.lexer, guide.vocabulary), guide.parser)) == HARMLESS


@pytest.mark.parametrize(
    ("name", "removed"),
    [
        ("takes a distance of the parser for too large", {"productive"}),
        ("takes a distance after a token for too small", {"productive"}),
        ("has a parser with a shift dropped", {"complete", "ends_are_exact", "prefixes_are_exact", "productive"}),
    ],
)
def test_without_its_check_a_mistake_goes_unnoticed(
    name: str, removed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (mutation,) = (each for each in ENGINE if each.name == name)
    right = over_few(of_grammar("CALC"))
    assert found_out(right, [mutation]).witness is None
    gone = {getattr(guide_checks, each).id for each in removed}
    monkeypatch.setattr(mutations, "BY_WORDS", [check for check in mutations.BY_WORDS if check.id not in gone])
    monkeypatch.setattr(mutations, "AT_LAST", [check for check in mutations.AT_LAST if not check.of_grammars])
    found = found_out(right, [mutation])
    assert found.verdict is Verdict.COUNTEREXAMPLE and found.witness == f"a guide that {name} was not found out"


def test_the_representatives_are_enough() -> None:
    """The guide over the tokens that stand for all has the masks and the distances of the whole one."""
    right = of_grammar("CALC")
    few = over_few(right)
    assert few.guide.vocabulary.tokens == (*right.collapse.texts, b"")
    for node in few.exploration.inner:
        state = right.guide.start
        for token in node.word:
            state = right.guide.advance(state, int(right.collapse.tokens[token]))
        kinds = right.guide.partition_of(state).class_of[right.collapse.tokens]
        ours = few.guide.partition_of(node.state).class_of[few.collapse.tokens]
        assert (
            right.guide.distances_after(state)[kinds].tolist() == few.guide.distances_after(node.state)[ours].tolist()
        )


def test_rows_of_any_guide() -> None:
    assert T17.find(of_pattern("(ab)*a")).witness is None
    assert T17.find(of_grammar("DYCK")).cases == len(ROWS)


class Distant(Guide):
    """A guide of which ``min_tokens`` is changed."""

    def __init__(self, guide: Guide, change: Callable[[int], int]) -> None:
        self.guide, self.change = guide, change
        self.vocabulary, self.start = guide.vocabulary, guide.start

    def row(self, state: int) -> Row:
        return self.guide.row(state)

    def describe(self, state: int) -> str:
        return self.guide.describe(state)

    def min_tokens(self, state: int) -> int:
        distance = self.guide.min_tokens(state)
        return distance if distance in (0, UNREACHABLE) else self.change(distance)


@pytest.mark.parametrize("change", [lambda d: d + 1, lambda d: 2 * d, lambda d: max(1, d - 1)], ids=["+1", "*2", "-1"])
def test_distances_that_are_wrong_everywhere(change: Callable[[int], int]) -> None:
    for right in (of_pattern("(ab)*a"), of_grammar("CALC")):
        wrong = replace(right, guide=Distant(right.guide, change), depth=3)
        assert guide_checks.productive.find(wrong).witness is not None
        assert guide_checks.productive.find(replace(right, depth=3)).witness is None
