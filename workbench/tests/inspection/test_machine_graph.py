"""Machines as graphs."""

from __future__ import annotations

import json

import pytest

from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.grammar.notation.reader import read_grammar
from outlines_phi.regex.patterns import compile_regex
from outlines_phi_workbench.inspection.inspected import Inspected, machine_of
from outlines_phi_workbench.inspection.inspection import Inspection
from outlines_phi_workbench.inspection.machines.automaton_machine import BLOCK
from outlines_phi_workbench.inspection.machines.byte_names import byte_set, text_name
from outlines_phi_workbench.inspection.machines.machine_graph import MOST_STATES, MachineGraph

from .conftest import encode, guide, inspected, vocabulary, without


def chain(rules: int) -> str:
    """A grammar of so many rules, each of which uses two others."""
    lines = [
        f'r{i}: "a{i % 10}" r{(2 * i + 1) % rules} | "b{i % 10}" [r{(2 * i + 2) % rules}] NAME' for i in range(rules)
    ]
    return "\n".join(["start: r0", *lines, "NAME: /[a-z]+[0-9]*_/", "%ignore /[ ]+/"])


def labels(graph: MachineGraph, kind: str) -> list[str]:
    return [part.label for part in graph.parts if part.kind == kind]


def test_steps_lead_between_nodes_that_are_there(language: str) -> None:
    graph = inspected(language).machine.graph
    ids = {part.id for part in graph.parts}
    assert len(ids) == len(graph.parts) and sum(part.is_start for part in graph.parts) == 1
    assert {end for call in graph.calls for end in (call.source, call.target)} <= ids
    for part in graph.parts:
        states = graph.states_of(part.id)
        names = {node.id for node in states.nodes}
        assert len(names) == len(states.nodes) <= MOST_STATES + len(ids) + 1
        assert {end for edge in states.edges for end in (edge.source, edge.target)} <= names
        assert {node.part for node in states.nodes} - {None} <= ids


def test_the_parts_of_a_grammar() -> None:
    graph = inspected("list").machine.graph
    assert labels(graph, "rule")[:2] == ["$start", "start"] and "NUMBER" in labels(graph, "terminal")
    name_of = {part.id: part.label for part in graph.parts}
    calls = {(name_of[call.source], name_of[call.target]) for call in graph.calls}
    assert {("$start", "start"), ("start", "NUMBER"), ("NUMBER", "lexer")} <= calls
    rule = next(part for part in graph.parts if part.label == "start")
    states = graph.states_of(rule.id)
    assert any("start: LSQB • " in node.text for node in states.nodes) and any(node.is_end for node in states.nodes)
    lexer = graph.states_of("lexer")
    (number,) = [node for node in lexer.nodes if node.label == "NUMBER"]
    assert number.is_end and {edge.label for edge in lexer.edges if edge.target == number.id} == {"[0-9]"}
    assert any(edge.label == "[0-9]" for edge in lexer.edges)


def test_the_values_of_a_schema_call_each_other() -> None:
    graph = inspected("schema").machine.graph
    assert {"#", "#/name", "#/tags", "#/tags/[]"} <= set(labels(graph, "value"))
    recursive = inspected("tree").machine.graph
    (root,) = [part.id for part in recursive.parts if part.label == "#"]
    (left,) = [part.id for part in recursive.parts if part.label == "#/left"]
    assert {(root, left), (left, root)} <= {(call.source, call.target) for call in recursive.calls}


def test_an_automaton_is_drawn_in_blocks() -> None:
    automaton = compile_regex("[ab]{300}c")
    graph = machine_of(FSMGuide.from_automaton(automaton, vocabulary())).graph
    assert sum(part.size for part in graph.parts) == len(automaton) - 1 == 302
    assert len(graph.parts) == -(-302 // BLOCK) and len(graph.calls) == len(graph.parts) - 1
    first = graph.states_of(graph.parts[0].id)
    assert (
        sum(node.part is None for node in first.nodes) == BLOCK
        and sum(node.part is not None for node in first.nodes) == 1
    )


@pytest.mark.parametrize("rules", [200])
def test_a_grammar_of_many_rules_is_drawn_rule_by_rule(rules: int) -> None:
    """The overview holds rules and terminals, and no states: what a page reads at once stays small."""
    made = CFGGuide.of(read_grammar(chain(rules)), vocabulary())
    found = Inspection(Inspected.of("chain", made), encode)
    overview = found.overview([], is_served=False)
    assert sum(part["kind"] == "rule" for part in overview["parts"]) >= rules
    assert len(json.dumps(overview)) < 400_000
    sizes = [len(json.dumps(found.part(part["id"]))) for part in overview["parts"] if part["kind"] == "rule"]
    assert max(sizes) < 20_000
    lexer = found.part("lexer")
    assert sum(node["part"] is None for node in lexer["nodes"]) <= MOST_STATES
    assert len(found.names()) > rules


def test_names_of_bytes() -> None:
    assert byte_set(b"0123456789abcz") == "[0-9a-cz]" and byte_set(b" ") == "␣" and byte_set(range(256)) == "any byte"
    assert byte_set(set(range(256)) - {0x22}) == 'all but "' and byte_set([0xC3, 0x0A]) == "[\\n\\xc3]"
    assert text_name("é\n \x00".encode()) == "é\\n␣\\x00" and text_name(b"\xff") == "\\xff"


def test_a_guide_of_another_kind_is_read_by_single_bytes() -> None:
    of = without("arithmetic", "77")
    machine = machine_of(of.guide)
    assert machine.kind == "guide" and machine.graph.states_of(machine.graph.parts[0].id).edges
    assert guide("arithmetic") is of.plain
    place, length = machine.read_all(machine.start, b"1+77")
    assert length == 3 and "7 came" in place.because
