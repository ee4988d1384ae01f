"""``outlines-phi verify``: verdicts as a table and as JSON, and certificates."""

import json
from pathlib import Path

import jsonschema
import pytest

from outlines_phi_workbench.verification.subject import MEANINGS, Verdict
from outlines_phi_workbench.verification.verification import CHECKS
from tests.cli.conftest import Cli, refused

SCHEMA = (
    '{"type": "object", "properties": {"a": {"enum": ["b", "c"]}, "n": {"type": "integer"}}, "required": ["a", "n"]}'
)
FILES = {
    "list.lark": 'start: "[" [NUMBER ("," NUMBER)*] "]"\nNUMBER: /[0-9]+/\n%ignore /[ ]+/\n',
    "sums.gbnf": 'root ::= n ("+" root)?\nn ::= "(" root ")" | [0-9]+ | "x"',
    "wrong.lark": "start: NUMBER nothing\nNUMBER: /[0-9]+/\n",
    "schema.json": SCHEMA,
}


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["list.lark", "--depth", 3], {"S9": "EXHAUSTIVE", "T1": "EXHAUSTIVE", "T12": "BOUNDED", "T18": "BOUNDED"}),
        (["sums.gbnf", "--depth", 3], {"S9": "NOT NEEDED", "T7": "BOUNDED"}),
        (["dyck-2", "--depth", 3], {"S9": "EXHAUSTIVE", "T11": "BOUNDED"}),
        (["--schema", "schema.json", "--depth", 3], {"T16": "BOUNDED", "T1": None, "T18": None}),
        (["--regex", "[0-9]{1,3}(\\.[0-9]+)?"], {"T10": "EXHAUSTIVE", "T11": "EXHAUSTIVE", "T16": "EXHAUSTIVE", "T1": None}),
    ],
    ids=["lark", "gbnf", "shipped", "schema", "regex"],
)  # fmt: skip
def test_what_is_right_holds(cli: Cli, arguments: list[object], parts: dict[str, str | None]) -> None:
    result = cli("verify", *arguments, "--json")
    found = json.loads(result.stdout)
    verdicts = {check["id"]: check["verdict"] for check in found["checks"]}
    assert result.exit_code == 0 and found["holds"] and found["exploration"]["tokens"] == 1280
    assert {id: verdicts.get(id) for id in parts} == parts
    assert found["exploration"]["closed"] == ("--regex" in arguments)


def test_rows_and_verdicts_are_explained(cli: Cli) -> None:
    """Each row that is shown, and each verdict that occurs, once; the others not."""
    for arguments, grammars in ((["list.lark", "--depth", 2], True), (["--regex", "[0-9]", "--depth", 2], False)):
        result = cli("verify", *arguments)
        said, rows = " ".join(result.stdout.split()), result.stdout.splitlines()
        shown = [check for check in CHECKS if grammars or check.id not in ("S9", "T1", "T7")]
        assert [row.split()[0] for row in rows if row[:1] in "ST" and row[1:2].isdigit()] == [
            check.id for check in shown
        ]
        assert all(said.count(f"{check.id} {check.meaning}") == (check in shown) for check in CHECKS)
        assert f"BOUNDED {MEANINGS[Verdict.BOUNDED]}" in said and MEANINGS[Verdict.COUNTEREXAMPLE] not in said
        assert rows[-1] == "No counterexample." and "1,280 tokens; all words of" in said


def test_without_a_depth_it_is_as_deep_as_the_work_allows(cli: Cli) -> None:
    result = cli("verify", "dyck-1", "--most", 20)
    assert result.exit_code == 0 and "words of at most 1 token:" in result.stdout
    assert "Those of 2 tokens lead to more than --most 20" in result.stdout
    asked = cli("verify", "dyck-1", "--most", 20, "--depth", 2)
    assert "words of at most 2 tokens" in asked.stdout and "--most" not in asked.stdout


def test_a_counterexample_is_exit_status_1(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A validator that calls everything wrong stands for one that knows of a schema what the engine does not."""
    wrong = [jsonschema.ValidationError("no")]
    monkeypatch.setattr(jsonschema.Draft202012Validator, "iter_errors", lambda *_: iter(wrong))
    result = cli("verify", "--schema", "schema.json", "--depth", 2, "--json")
    found = {check["id"]: check for check in json.loads(result.stdout)["checks"]}
    assert result.exit_code == 1 and found["T10"]["verdict"] != "COUNTEREXAMPLE"
    assert found["T16"]["verdict"] == "COUNTEREXAMPLE" and "jsonschema" in found["T16"]["remark"]


def test_a_certificate_is_written(cli: Cli, folder: Path) -> None:
    assert cli("verify", "list.lark", "--depth", 1, "--certificate", "list.certificate").exit_code == 0
    found = json.loads((folder / "list.certificate").read_text(encoding="utf-8"))
    assert len(found["samples"]) == 12 and {len(each["mask"]) for each in found["samples"]} == {len(found["tokens"])}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "No output type was given"),
        (["json", "--regex", "a"], "--regex and --grammar were given"),
        (["jsn"], "json"),
        (["missing.lark"], "cannot be read"),
        (["wrong.lark"], "nothing"),
        (["json", "--tokenizer", "./missing"], "there is no such folder"),
        (["list.lark", "--certificate", "nowhere/list.certificate"], "cannot be written: No such file or directory"),
        (["list.lark", "--certificate", "."], "cannot be written: Is a directory"),
        (["--regex", "a+", "--certificate", "a.certificate"], "Certificates are of grammars"),
    ],
)
def test_what_cannot_be_verified(cli: Cli, folder: Path, arguments: list[str], said: str) -> None:
    refused(cli("verify", *arguments), said)
    assert not (folder / "a.certificate").exists()
