"""T5 and T6: tops of stacks that speak for whole stacks, in right parsers and in wrong ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import product

import pytest

from outlines_phi.guides.grammar.cfg_guide import CFGGuide, SuffixDistances
from outlines_phi.guides.grammar.notation.reader import grammar_text, read_grammar
from outlines_phi.guides.grammar.parsing.parser import ERROR, UNKNOWN, Parser
from outlines_phi.vocabulary.vocabulary import Vocabulary
from outlines_phi_workbench.verification.stack_tops import StackTops
from outlines_phi_workbench.verification.subject import CheckFinding, Subject, Verdict
from outlines_phi_workbench.verification.verification import CHECKS

BYTES = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b""], 256)
LISTS = 'start: value\nvalue: "[" _list{value} "]" | "(" value ")" | "x"\n_list{item}: item | _list{item} "," item'
SUMS = 'start: sum\nsum: sum "+" sum | sum "*" sum | "(" sum ")" | "x"'
RIGHT = 'start: "a" start | "a" "b" "c" | "a" "b" tail\ntail: "d" tail | "d"'


def subject_of(text: str, depth: int = 3) -> Subject:
    return Subject.of_grammar(read_grammar(text), BYTES, text, depth=depth)


def findings(subject: Subject, *ids: str) -> dict[str, CheckFinding]:
    return {check.id: check.find(subject) for check in CHECKS if check.id in ids}


@pytest.mark.parametrize("text", [LISTS, SUMS, RIGHT], ids=["lists", "sums", "right"])
def test_small_grammars_are_visited_as_a_whole(text: str) -> None:
    subject = subject_of(text)
    found = findings(subject, "T5", "T6")
    assert {each.verdict for each in found.values()} == {Verdict.EXHAUSTIVE}
    assert "accepted by" in found["T5"].remark and "refused by" in found["T6"].remark
    # A parser that follows several stacks keeps no distances for tops.
    assert subject.parts.guide.parser.is_lone == (text != SUMS) == (subject.kept.pairs > 0)


@pytest.mark.parametrize(("name", "tops"), [("json", 54), ("arithmetic", 37), ("dyck-2", 24), ("c", 535)])
def test_grammars_that_are_shipped_are_visited_as_a_whole(name: str, tops: int) -> None:
    found = StackTops(Parser.of(read_grammar(grammar_text(name)).reduced()))
    assert found.closed and not found.wrongly_accepted and not found.wrongly_refused
    assert found.tops == tops and found.accepted > 0 and found.refused > 0


@pytest.mark.parametrize("text", [LISTS, SUMS, RIGHT], ids=["lists", "sums", "right"])
def test_what_tops_say_of_whole_stacks(text: str) -> None:
    """An inference from one more entry is right: on whole stacks, of all words of five terminals, tops of any length are right."""
    parser = Parser.of(read_grammar(text).reduced())
    terminals, decided = range(len(parser.grammar.terminals)), 0
    stacks = {parser.read(parser.start, word) for length in range(6) for word in product(terminals, repeat=length)}
    for stack, entries, word in product(stacks - {ERROR}, (1, 2, 3), product(terminals, repeat=2)):
        top, whole = parser.read(parser.cut(stack, entries), word), parser.read(stack, word)
        decided += top == ERROR or parser.is_certain(top)
        assert whole == ERROR if top == ERROR else whole != ERROR or not parser.is_certain(top)
    assert decided > 100


def test_a_budget_that_does_not_do() -> None:
    found = StackTops(Parser.of(read_grammar(LISTS).reduced()), 50)
    assert not found.closed and 50 < found.cases < 100
    subject = subject_of(LISTS)
    object.__setattr__(subject.parts, "tops", found)
    assert findings(subject, "T5")["T5"].verdict is Verdict.BOUNDED


Shift = Callable[[Parser, int, int], int]


def unknown_is_refused(shift: Shift) -> Shift:
    return lambda parser, stack, terminal: ERROR if (after := shift(parser, stack, terminal)) == UNKNOWN else after


def unknown_is_accepted(shift: Shift) -> Shift:
    return lambda parser, stack, terminal: stack if (after := shift(parser, stack, terminal)) == UNKNOWN else after


@pytest.mark.parametrize(
    ("wrong", "check"), [(unknown_is_refused, "T6"), (unknown_is_accepted, "T5")], ids=["refused", "accepted"]
)
@pytest.mark.parametrize("text", [LISTS, SUMS, RIGHT], ids=["lists", "sums", "right"])
def test_the_unknown_taken_for_something(
    text: str, wrong: Callable[[Shift], Shift], check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = subject_of(text)
    monkeypatch.setattr(Parser, "shift", wrong(Parser.shift))
    monkeypatch.setattr(Parser, "beyond", lambda *_: (1, 0))  # is not asked about the rest by a right parser
    found = findings(subject, check)[check]
    assert found.verdict is Verdict.COUNTEREXAMPLE and found.remark == "by the top of the stack"
    assert found.witness is not None and " after " in found.witness


def test_an_open_stack_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser of several stacks that drops what takes off more than is known."""
    subject, reduce = subject_of(SUMS), Parser._reduce
    monkeypatch.setattr(Parser, "_reduce", lambda *given: (reduce(*given)[0], False))
    assert findings(subject, "T6")["T6"].verdict is Verdict.COUNTEREXAMPLE


def test_gotos_that_lead_elsewhere() -> None:
    """Each entry of the parser in turn is another one than the grammar's: the parser fails over it, or a check finds it."""
    subject = subject_of(RIGHT)
    parser, found = subject.parts.guide.parser, Counter[str]()
    targets = {target for row in parser.tables.goto for target in row.values()}
    for state, row in enumerate(parser.tables.goto):
        for head, other in product(row, targets):
            goto = list(parser.tables.goto)
            goto[state] = {**row, head: other}
            guide = CFGGuide(subject.parts.guide.spanner, parser)
            guide.parser = Parser(parser.grammar, parser.tables)
            guide.parser._goto = tuple(goto)
            parts = replace(subject.parts, guide=guide)
            try:
                tops = StackTops(guide.parser)
                read = findings(replace(subject, machine=parts), "T7")["T7"]
                wrong = bool(tops.wrongly_accepted) or read.verdict is Verdict.COUNTEREXAMPLE
                found["right" if other == row[head] else "harmless"] += not wrong
                found["wrong"] += wrong
            except (KeyError, IndexError):
                found["fails"] += 1
    # The harmless one ends a text within an outer rule, of which nothing but its end is left.
    assert found == {"right": 4, "wrong": 3, "fails": 8, "harmless": 1}


def test_moves_that_depend_on_the_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole stacks that accept less than their tops, and ones that accept more."""
    subject, shift = subject_of(LISTS), Parser.shift
    parser = subject.parts.guide.parser

    def depth(stack: int) -> int:
        below: Collection[int] = () if stack in (ERROR, UNKNOWN) else parser.below(stack)
        return 1 + max(map(depth, below)) if below else 0

    monkeypatch.setattr(Parser, "shift", lambda self, stack, t: ERROR if depth(stack) == 3 else shift(self, stack, t))
    assert findings(subject, "T5")["T5"].verdict is Verdict.COUNTEREXAMPLE


class TestKeptDistances:
    def test_they_are_those_of_whole_stacks(self) -> None:
        subject = subject_of(LISTS, depth=5)
        assert subject.kept.tops > 50 and subject.kept.pairs > subject.kept.tops
        assert subject.kept.wrongly_allowed is None and subject.kept.wrongly_dead is None

    def test_tops_that_are_told_apart_by_too_few_entries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The top of one stack is taken for that of another one, whose second entry differs."""
        right = SuffixDistances._top

        def first_alone(self: SuffixDistances, stack: int) -> tuple[tuple[int, ...], int]:
            states, bottom = right(self, stack)
            return states[:1], bottom

        subject = subject_of(LISTS, depth=5)
        monkeypatch.setattr(SuffixDistances, "_top", first_alone)
        found = findings(subject, "T5", "T6")
        wrong = [each for each in found.values() if each.verdict is Verdict.COUNTEREXAMPLE]
        assert wrong and all("kept" in each.remark for each in wrong)
