"""Texts token by token, compared with the guide; the pages; the theorems beside the documentation, the proofs and the checks."""

import hashlib
import json
import re
from functools import reduce
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from outlines.types import Regex

from outlines_phi import UnsupportedError, Vocabulary
from outlines_phi.guides.guide import DEAD
from outlines_phi.plugin.types.tables import CompiledTypes
from outlines_phi_workbench.inspection.inspected import MOST_TOKENS, Inspected, TextPlace, byte_set, text_name
from outlines_phi_workbench.inspection.pages import FILES, Inspection, build, check_folder
from outlines_phi_workbench.inspection.theorems import THEOREMS, theorem_graph
from outlines_phi_workbench.verification.subject import Subject
from outlines_phi_workbench.verification.verification import CHECKS, verify
from tests.test_citations import PLACES, THEORIES

from .conftest import LANGUAGES, VOCABULARY, encode, inspected, said

languages = pytest.mark.parametrize("name", LANGUAGES)


def behind(of: Inspected, text: str) -> TextPlace:
    return reduce(of.after, encode(text), of.begin)


def token(text: str) -> int:
    return VOCABULARY.tokens.index(text.encode())


@languages
def test_a_token_has_a_reason_where_it_is_masked_and_its_byte_is_the_first_at_fault(name: str) -> None:
    """The guide reads the bytes as tokens of one byte each, without the machine that found the reason."""
    of, spelled = inspected(name), VOCABULARY.tokens
    single = {each[0]: number for number, each in enumerate(spelled) if len(each) == 1}
    for at in (of.begin, behind(of, LANGUAGES[name][1])):
        mask, _ = of.live(at)
        found = [of.why_masked(at, number) for number in range(len(mask))]
        assert [each is None for each in found] == mask.tolist()
        for number, refusal in enumerate(found):
            if refusal is not None and refusal.kind == "language":
                state, read = at.state, spelled[number].decode("latin1").encode("latin1")
                offset = next(end for end in range(len(read)) if text_name(read[:end]) == refusal.read)
                for byte in read[:offset]:
                    state = of.guide.advance(state, single[byte])
                    assert state != DEAD
                assert of.guide.advance(state, single[read[offset]]) == DEAD


@languages
def test_a_walk_says_what_the_guide_has(name: str) -> None:
    of, text = inspected(name, budget=30), LANGUAGES[name][1]
    ids = of.tokens_of(encode, text)
    steps = of.walk(ids)
    assert [step.token for step in steps] == [*ids, None] and not any(step.refusal for step in steps)
    state = of.guide.start
    for number, step in enumerate(steps):
        mask, moves = of.live(step.place)
        assert step.place == (state, 30 - number) and step.distance == of.guide.min_tokens(state)
        assert step.live == mask.sum() == sum(group.size for group in step.groups) or step.targets > len(step.groups)
        assert bool(step.why_no_end) != bool(mask[VOCABULARY.eos_ids[0]]) and step.targets == len(set(moves.targets))
        assert sum(group.size for group in step.masked) <= step.looked_at <= 1000
        state = of.guide.advance(state, step.token) if step.token is not None else state
    outside = of.walk([*ids, token("?")])
    assert len(outside) == len(ids) + 1 and "? came" in outside[-1].refusal.because  # type: ignore[union-attr]


def test_bans_limits_and_ends_are_named() -> None:
    of = inspected("arithmetic", "77")
    banned = of.why_masked(behind(of, "1+7"), token("7"))
    assert banned is not None and banned.kind == "language" and "7 came" in banned.because
    short = inspected("arithmetic", budget=4)
    long = short.why_masked(behind(short, "1+"), token("("))
    assert long is not None and long.kind == "budget" and "the limit leaves 1" in long.because
    of, ends = inspected("arithmetic"), VOCABULARY.eos_ids
    end = of.why_masked(behind(of, "1+"), ends[0])
    assert end is not None and end.kind == "end" and of.why_masked(behind(of, "1"), ends[0]) is None
    silent = next(v for v, text in enumerate(VOCABULARY.tokens) if not text and v not in ends)
    found = of.why_masked(of.begin, silent)
    assert found is not None and found.kind == "vocabulary" and of.why_masked(of.begin, token("(")) is None


def test_what_cannot_be_walked_or_asked_is_refused() -> None:
    of = inspected("arithmetic")
    for ask, told in [
        (lambda: of.walk([token("1")] * (MOST_TOKENS + 1)), "Give a text of at most"),
        (lambda: of.tokens_of(lambda _: [5], "1"), "the tokenizer writes as it is"),
        (lambda: of.tokens_of(encode, "1\ud800"), "Give characters of Unicode"),
    ]:
        with pytest.raises(UnsupportedError, match=told):
            ask()


@languages
def test_the_graph_has_the_steps_of_the_guide(name: str) -> None:
    of = inspected(name)
    state = behind(of, LANGUAGES[name][1]).state
    graph = of.graph([state])
    ids = [node["id"] for node in graph["nodes"]]
    assert len(set(ids)) == len(ids) and {f"s{of.guide.start}", f"s{state}"} <= set(ids)
    assert [node["id"] for node in graph["nodes"] if node["start"]] == [f"s{of.guide.start}"]
    read = {(edge["source"], edge["target"]): edge["label"] for edge in graph["edges"]}
    for byte, target in of.moves(state).items():
        assert (
            f"s{target}" not in ids
            or byte_set(b for b, t in of.moves(state).items() if t == target) == read[f"s{state}", f"s{target}"]
        ), byte
    assert graph["whole"] == all(f"s{target}" in ids for each in ids for target in of.moves(int(each[1:])).values())


def test_names_of_bytes_and_a_vocabulary_without_them() -> None:
    assert byte_set(b"0123456789abcz") == "[0-9a-cz]" and byte_set(b" ") == "␣" and byte_set(range(256)) == "any byte"
    assert byte_set(set(range(256)) - {0x22}) == 'all but "' and byte_set([0xC3, 0x0A]) == "[\\n\\xc3]"
    assert byte_set([]) == "no byte"
    assert text_name("é\n \x00".encode()) == "é\\n␣\\x00" and text_name(b"\xff") == "\\xff"
    yes_or_no = CompiledTypes(Vocabulary.from_tokens([b"yes", b"no", b""], 2)).of(Regex("yes|no")).guide
    with pytest.raises(UnsupportedError, match="Give a tokenizer with tokens of single bytes"):
        Inspected("yes or no", yes_or_no).graph()


ROOT = Path(__file__).parents[3]
CHECKED = {check.id for check in CHECKS}
VENDORED = {
    "vendor/cytoscape.min.js": "081591ab735b2b6a3b31a3c60f8f3a3e2fee8c92939e0c7820ad1208571b6cd8",
    "vendor/cytoscape-dagre.min.js": "ec671a41d2bfcac580352e2997797793949e3489cecaf347fc48670d4bd456b0",
}
"""The files of the graph library, as their packages in the npm registry have them."""


def test_a_folder_holds_all_that_its_pages_ask_for(tmp_path: Path) -> None:
    subject = Subject.of_grammar(LANGUAGES["arithmetic"][0], VOCABULARY, depth=1)
    made = Inspection(inspected("arithmetic"), encode, ["1+2", "(3"], verification=verify(subject))
    assert build(made, tmp_path / "site") == sum(path.is_file() for path in (tmp_path / "site").rglob("*"))
    check_folder(tmp_path / "site")
    for name in ("index.html", "theorems.html", "text-0.html", "text-1.html"):
        page = (tmp_path / "site" / name).read_text(encoding="utf-8")
        graph = json.loads(re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[0])
        assert graph["nodes"] and {edge["target"] for edge in graph["edges"]} <= {node["id"] for node in graph["nodes"]}
        for path in re.findall(r'(?:src|href)="([^"#:]+)"', page):
            assert (tmp_path / "site" / path).is_file(), path
        assert not re.search(r"https?://|//cdn|<form", page)
    assert "T10 what is allowed begins a member BOUNDED" in said((tmp_path / "site" / "index.html").read_text())
    assert "Step 1 of 2" in said((tmp_path / "site" / "text-1.html").read_text())
    assert "* is masked by the language" in said(made.text("1+*"))


def test_texts_are_never_read_as_markup() -> None:
    page = Inspection(inspected("schema"), encode).text('{"name": "<b')
    assert not re.search(r"<b\W", page) and "&lt;" in page
    assert not [path for path, content in FILES.items() if b"innerHTML" in content and "vendor" not in path]


def test_the_graph_library_is_what_its_packages_hold_with_licences() -> None:
    assert {path: hashlib.sha256(FILES[path]).hexdigest() for path in VENDORED} == VENDORED
    for name, version in (("cytoscape", "3.34.4"), ("cytoscape-dagre", "4.0.1"), ("@dagrejs/dagre", "3.0.0")):
        assert f"| {name} | {version} |" in FILES["vendor/VERSIONS.md"].decode()
    for licence in ("cytoscape.LICENSE", "cytoscape-dagre.LICENSE", "dagre.LICENSE"):
        assert b"Permission is hereby granted" in FILES[f"vendor/{licence}"]


def test_what_cannot_be_built_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder, match in ((tmp_path / "file", r"Give a folder, by --output-dir\."), (tmp_path, "holds other files")):
        with pytest.raises(UnsupportedError, match=match):
            check_folder(folder)
    with pytest.raises(UnsupportedError, match=r"Give another folder: --output-dir .* cannot be made a folder"):
        build(Inspection(inspected("arithmetic"), encode), tmp_path / "file" / "below")


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
    assumptions = {id for id in CHECKED if id.startswith("S")}
    assert all(below in ids | assumptions for each in THEOREMS for below in each.rests_on.split())
    assert CHECKED == {name for name in PLACES[THEORIES[1]] if name[0] in "ST"}


def test_nothing_rests_on_itself() -> None:
    assert list(TopologicalSorter({each.id: each.rests_on.split() for each in THEOREMS}).static_order())


def test_a_node_says_what_shows_it_and_the_verdict() -> None:
    graph = theorem_graph({"T12": "BOUNDED"})
    of = {node["id"]: node for node in graph["nodes"]}
    assert of["5.2"]["kind"] == "proven" and "proven in Coq: thinning.thinning" in of["5.2"]["text"]
    assert of["G5.1"]["kind"] == "checked" and of["5.1"]["kind"] == "argued" and of["S5"]["kind"] == "assumption"
    assert re.search(r"checked: T12 .*: BOUNDED$", of["G7.3"]["text"], re.M) and "BOUNDED" not in of["G7.4"]["text"]
    edges = {(edge["source"], edge["target"]) for edge in graph["edges"]}
    assert edges >= {("5.3", "5.2"), ("5.2", "5.1"), ("G7.2", "S5")}
