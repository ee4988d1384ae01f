"""The graph of the theorems says what the documentation, the proofs and the checks have."""

import re
from pathlib import Path

from outlines_phi_workbench.inspection.theorems import THEOREMS, theorem_graph
from outlines_phi_workbench.verification.verification import CHECKS
from tests.test_citations import PLACES, THEORIES

ROOT = Path(__file__).parents[3]
CHECKED = {check.id for check in CHECKS}


def test_the_statements_are_those_of_the_documentation() -> None:
    stated = [
        prefix + number
        for prefix, page in (("", "theory"), ("G", "grammar-theory"))
        for number in re.findall(
            r"^\*\*Statement (\d+\.\d+a?)", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"), re.M
        )
    ]
    assert [each.id for each in THEOREMS] == stated


def test_every_proof_is_one_and_each_is_named() -> None:
    theories = ROOT / "proofs" / "theories"
    proven = re.findall(r"^Print Assumptions (\w+)\.", (theories / "assumptions.v").read_text(encoding="utf-8"), re.M)
    named = {proof for each in THEOREMS for proof in each.proofs.split()}
    for file, name in (proof.split(".") for proof in named):
        source = (theories / f"{file}.v").read_text(encoding="utf-8")
        assert re.search(rf"^(Theorem|Corollary|Lemma) {name}\b", source, re.M), name
        assert name in proven
    # What others build on or the documentation says in passing, and is no statement of it by itself.
    assert set(proven) - {proof.split(".")[1] for proof in named} == {
        "tv_dominated", "producible_heads", "producible_alone", "heads_alone", "singletons_forbid", "heads_allow",
        "least_solution",
    }  # fmt: skip


def test_every_check_and_every_assumption_is_one() -> None:
    used = {check for each in THEOREMS for check in each.checks.split()}
    assert used == {id for id in CHECKED if id.startswith("T")} - {"T17", "T18"}  # which check the checks
    ids = {each.id for each in THEOREMS}
    assert all(below in ids | CHECKED for each in THEOREMS for below in each.rests_on.split())
    assert CHECKED == {name for name in PLACES[THEORIES[1]] if name[0] in "ST"}


def test_nothing_rests_on_itself() -> None:
    done = {id for id in CHECKED if id.startswith("S")}
    waiting = list(THEOREMS)
    while waiting:
        ready = [each for each in waiting if set(each.rests_on.split()) <= done]
        assert ready, [each.id for each in waiting]
        done |= {each.id for each in ready}
        waiting = [each for each in waiting if each.id not in done]


def test_a_node_says_what_shows_it_and_the_verdict() -> None:
    graph = theorem_graph({"T12": "BOUNDED"})
    of = {node["id"]: node for node in graph["nodes"]}
    assert of["5.2"]["kind"] == "proven" and "proven in Coq: thinning.thinning" in of["5.2"]["text"]
    assert of["G5.1"]["kind"] == "checked" and of["5.1"]["kind"] == "argued" and of["S5"]["kind"] == "assumption"
    assert re.search(r"checked: T12 .*: BOUNDED$", of["G7.3"]["text"], re.M) and "BOUNDED" not in of["G7.4"]["text"]
    edges = {(edge["source"], edge["target"]) for edge in graph["edges"]}
    assert edges >= {("5.3", "5.2"), ("5.2", "5.1"), ("G7.2", "S5")}
