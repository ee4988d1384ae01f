"""The checks of a grammar on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from outlines_phi_workbench.verification.subject import MEANINGS, Verdict
from outlines_phi_workbench.verification.verification import CHECKS

from .conftest import Cli

LIST = 'start: "[" [NUMBER ("," NUMBER)*] "]"\nNUMBER: /[0-9]+/\n%ignore /[ ]+/\n'


def test_a_grammar_in_a_file(cli: Cli, folder: Path) -> None:
    (folder / "list.lark").write_text(LIST, encoding="utf-8")
    result = cli("verify", "list.lark", "--depth", 3)
    assert result.exit_code == 0, result.stderr
    rows = result.stdout.splitlines()
    assert rows[0].startswith("list.lark: 1,280 tokens, for which ")
    assert [row.split()[0] for row in rows if row[:1] in "ST" and row[1:2].isdigit()] == [check.id for check in CHECKS]
    assert "' ' separates" in result.stdout and rows[-1] == "No counterexample."


def test_a_grammar_in_gbnf(cli: Cli, folder: Path) -> None:
    """The lexemes of GBNF are checked as those of all grammars: they look one byte ahead, and no check finds them wrong."""
    (folder / "sums.gbnf").write_text('root ::= n ("+" root)?\nn ::= "(" root ")" | [0-9]+ | "x"', encoding="utf-8")
    result = cli("verify", "sums.gbnf", "--depth", 3)
    assert result.exit_code == 0, result.stderr
    rows = result.stdout.splitlines()
    assert [row.split()[0] for row in rows if row[:1] in "ST" and row[1:2].isdigit()] == [check.id for check in CHECKS]
    assert rows[-1] == "No counterexample."
    (folder / "wrong.gbnf").write_text("root ::= x", encoding="utf-8")
    result = cli("verify", "wrong.gbnf")
    assert result.exit_code == 2 and "wrong.gbnf: rule 'x' is not defined" in result.stderr


def test_json_of_a_grammar_that_is_shipped(cli: Cli) -> None:
    result = cli("verify", "dyck-2", "--depth", 3, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["holds"] and found["subject"] == "dyck-2"
    counts = found["exploration"]
    assert counts["complete_depth"] == counts["asked_depth"] == 3 and not counts["closed"]
    assert counts["texts"] == counts["pairs_tried"] * found["vocabulary"]["representatives"]
    assert counts["pairs"] > counts["pairs_tried"] > 100 and found["vocabulary"]["tokens"] == 1280
    assert all(check["cases"] for check in found["checks"])
    assert {check["verdict"] for check in found["checks"]} == {"EXHAUSTIVE", "BOUNDED", "NOT NEEDED"}


def test_a_certificate_is_written(cli: Cli, folder: Path) -> None:
    (folder / "list.lark").write_text(LIST, encoding="utf-8")
    result = cli("verify", "list.lark", "--depth", 1, "--certificate", "list.certificate")
    assert result.exit_code == 0, result.stderr
    found = json.loads((folder / "list.certificate").read_text(encoding="utf-8"))
    assert len(found["samples"]) == 12 and {len(sample["mask"]) for sample in found["samples"]} == {
        len(found["tokens"])
    }
    result = cli("verify", "list.lark", "--certificate", "nowhere/list.certificate")
    assert result.exit_code == 2 and "cannot be written: No such file or directory" in result.stderr
    result = cli("verify", "list.lark", "--certificate", ".")
    assert result.exit_code == 2 and "cannot be written: Is a directory" in result.stderr
    result = cli("verify", "--regex", "a+", "--certificate", "a.certificate")
    assert result.exit_code == 2 and "Certificates are of grammars" in result.stderr
    assert not (folder / "a.certificate").exists()


def test_rows_and_verdicts_are_explained(cli: Cli, folder: Path) -> None:
    """Each row that is shown, and each verdict that occurs, once; the others not."""
    (folder / "list.lark").write_text(LIST, encoding="utf-8")
    result = cli("verify", "list.lark", "--depth", 2)
    said = " ".join(result.stdout.split())
    assert all(said.count(f"{check.id} {check.meaning}") == 1 for check in CHECKS)
    assert all(check.meaning.endswith(".") and check.meaning != check.statement for check in CHECKS)
    assert f"BOUNDED {MEANINGS[Verdict.BOUNDED]}" in said and MEANINGS[Verdict.COUNTEREXAMPLE] not in said
    regular = cli("verify", "--regex", "[0-9]", "--depth", 2)
    said = " ".join(regular.stdout.split())
    assert [check.id for check in CHECKS if f"{check.id} {check.meaning}" in said] == [
        check.id for check in CHECKS if not check.of_grammars
    ]
    assert "for which 1 stands" in said
    found = json.loads(cli("verify", "--regex", "[0-9]", "--depth", 2, "--json").stdout)
    assert found["checks"][0]["meaning"] == next(check.meaning for check in CHECKS if not check.of_grammars)


def test_without_a_depth_it_is_as_deep_as_the_work_allows(cli: Cli) -> None:
    result = cli("verify", "dyck-1", "--most", 20)
    assert result.exit_code == 0 and "words of at most 1 token:" in result.stdout
    assert "Those of 2 tokens lead to more than --most 20" in result.stdout
    asked = cli("verify", "dyck-1", "--most", 20, "--depth", 2)
    assert "words of at most 2 tokens" in asked.stdout and "--most" not in asked.stdout


def test_a_counterexample_is_exit_status_1(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A validator that calls everything wrong stands for one that knows of a schema what the engine does not."""
    (folder / "schema.json").write_text('{"enum": [{"a": 1}]}', encoding="utf-8")
    monkeypatch.setattr(
        jsonschema.Draft202012Validator, "iter_errors", lambda *_: iter([jsonschema.ValidationError("no")])
    )
    result = cli("verify", "--schema", "schema.json", "--depth", 2, "--json")
    found = {check["id"]: check for check in json.loads(result.stdout)["checks"]}
    assert result.exit_code == 1
    assert found["T16"]["verdict"] == "COUNTEREXAMPLE" and "jsonschema" in found["T16"]["remark"]
    assert found["T14"]["verdict"] != "COUNTEREXAMPLE"


def test_a_schema_that_holds(cli: Cli, folder: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["b", "c"]}, "n": {"type": "integer"}},
        "required": ["a", "n"],
    }
    (folder / "schema.json").write_text(json.dumps(schema), encoding="utf-8")
    result = cli("verify", "--schema", "schema.json", "--depth", 3)
    assert result.exit_code == 0 and "No counterexample." in result.stdout


def test_a_regular_expression_is_proved(cli: Cli) -> None:
    result = cli("verify", "--regex", "[0-9]{1,3}(\\.[0-9]+)?", "--json")
    said = json.loads(result.stdout)
    found = {check["id"]: check["verdict"] for check in said["checks"]}
    assert result.exit_code == 0 and {found[f"T{n}"] for n in range(9, 17)} == {"EXHAUSTIVE"} and "T1" not in found
    assert said["exploration"]["closed"] and said["exploration"]["asked_depth"] is None
    assert "all words of any number of tokens" in " ".join(cli("verify", "--regex", "[0-9]{1,3}").stdout.split())


def test_what_cannot_be_verified(cli: Cli, folder: Path) -> None:
    (folder / "wrong.lark").write_text("start: NUMBER nothing\nNUMBER: /[0-9]+/\n", encoding="utf-8")
    for arguments, said in [
        ((), "There is nothing to verify"),
        (("json", "--regex", "a"), "beside"),
        (("jsn",), "json"),
        (("missing.lark",), "cannot be read"),
        (("wrong.lark",), "nothing"),
        (("json", "--tokenizer", "./missing"), "there is no such folder"),
    ]:
        result = cli("verify", *arguments)
        assert result.exit_code == 2 and said in result.stderr, arguments
