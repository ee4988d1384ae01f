"""Verdicts of the checks at the nodes of a graph."""

from __future__ import annotations

from dataclasses import replace

from outlines_phi.guides.grammar.notation.reader import read_grammar
from outlines_phi_workbench.inspection.machines.reading_machine import Fault
from outlines_phi_workbench.inspection.node_verdicts import KINDS, subject_of, verdicts_of
from outlines_phi_workbench.verification.oracle import GrammarOracle
from outlines_phi_workbench.verification.subject import letters_of
from outlines_phi_workbench.verification.verification import CHECKS

from .conftest import DECIMAL, LIST, guide, inspected, vocabulary


def test_a_node_is_met_as_often_as_words_lead_there() -> None:
    subject = subject_of(guide("list"), None, depth=3, most=1000)
    assert subject is not None
    machine = inspected("list").machine
    found = verdicts_of(machine, subject)
    assert [check["id"] for check in found.checks] == [check.id for check in CHECKS]
    assert {check["verdict"] for check in found.checks} <= {
        "EXHAUSTIVE",
        "BOUNDED",
        "NOT NEEDED",
    } and not found.witnesses
    words = [pair.word for pair in subject.exploration.inner]
    at = [machine.read_all(machine.start, vocabulary().decode(word))[0] for word in words]
    assert not any(isinstance(place, Fault) for place in at)
    state = machine.spot(at[-1]).nodes[0][1]
    assert found.met[state] == sum(state in dict(map(reversed, machine.spot(place).nodes)) for place in at) > 0
    nodes = {node.id for part in machine.graph.parts for node in machine.graph.states_of(part.id).nodes}
    assert found.met.keys() <= nodes and KINDS.keys() <= {check.id for check in CHECKS}
    assert {check["about"] for check in found.checks} == {"terminal", "lexer", "rule", "machine"}


def test_a_counterexample_stands_at_its_node() -> None:
    """The definition is that of another grammar, whose lists begin with a number: what the guide allows is wrong there."""
    subject = subject_of(guide("list"), None, depth=3, most=1000)
    assert subject is not None
    other = read_grammar(LIST.replace('"[" [NUMBER (', '"[" NUMBER (').replace(')*] "]"', ')* "]"')).reduced()
    wrong = replace(subject, oracle=GrammarOracle(other, letters_of(vocabulary(), subject.used)), machine=None)
    machine = inspected("list").machine
    found = verdicts_of(machine, wrong)
    sound = next(witness for witness in found.witnesses if witness.law == "sound")
    assert vocabulary().decode([*sound.before, sound.token]).replace(b" ", b"").startswith(b"[]")
    place, _ = machine.read_all(machine.start, vocabulary().decode(sound.before))
    assert sound.node == machine.spot(place).nodes[0]
    assert "COUNTEREXAMPLE" in {check["verdict"] for check in found.checks}


def test_regular_expressions_and_schemas_are_verified_too() -> None:
    for name, pattern in (("decimal", DECIMAL), ("schema", None)):
        subject = subject_of(guide(name), pattern, depth=1, most=100)
        assert subject is not None
        found = verdicts_of(inspected(name).machine, subject)
        assert found.met and {check["about"] for check in found.checks} == {"machine"}
    assert subject_of(guide("decimal"), None) is None
