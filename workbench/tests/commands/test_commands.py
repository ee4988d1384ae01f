"""The commands: the suite's table and an application's own model; verdicts and certificates; the pages of an output type."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from outlines_phi.cli.app import command
from outlines_phi_workbench.commands import fidelity_command
from outlines_phi_workbench.suite.experiment import Suite
from outlines_phi_workbench.verification.subject import MEANINGS, Verdict
from outlines_phi_workbench.verification.verification import CHECKS
from tests.cli.conftest import Cli, refused
from tests.cli.test_main import terminal

from ..inspection.conftest import said

__all__ = ["terminal"]

QUICKLY = ("--estimators", "local,exact", "--samplers", "draw", "--n", "40")


def test_the_suite_writes_its_table_its_data_and_its_figure(cli: Cli, folder: Path) -> None:
    result = cli("fidelity", "--languages", "answer,dyck1-8-*", *QUICKLY, "--output", "results")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.index("dyck1-8-single") < result.stdout.index("answer") and "4 of 4 cells" in result.stderr
    data = json.loads((folder / "results" / "fidelity.json").read_text())
    assert data["complete"] and data["n"] == 40 and data["model"] == "bundled" and len(data["cells"]) == 4
    masked = next(cell for cell in data["cells"] if (cell["language"], cell["estimator"]) == ("answer", "local"))
    assert masked["tv"] == pytest.approx(0.319, abs=0.01) and masked["how"] == "computed"
    assert "| local | 0.319 |" in (folder / "results" / "fidelity.md").read_text()
    assert (folder / "results" / "fidelity.png").stat().st_size > 10_000


def test_an_own_model_type_and_prompt_are_measured(cli: Cli, other_model: Path) -> None:
    prompts = ("Question: is the bakery open on Sunday? Answer: ", "Question: is the library open on Monday? Answer: ")
    result = cli("fidelity", "--regex", "yes|no", *prompts, *QUICKLY, "--temperature", "0.5", "--max-new-tokens", "8")
    assert result.exit_code == 0 and "own-0: after 'Question: is the bakery" in result.stdout, result.stderr
    result = cli("fidelity", "--model", other_model, "--languages", "answer", *QUICKLY)
    phi = re.search("Phi ([^;]+); enumerated", result.stdout)
    assert result.exit_code == 0 and phi and float(phi[1]) < 0.01  # 0.416 of the bundled one


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--estimators", "locla"), "Give some of local, onestep"),
        (("--samplers", "smc"), "Give some of draw, awrs, smc-5, smc-50, smc-50-ess. There is no sampler 'smc'."),
        (("--languages", "dick*"), "Give some of dyck1-8-single"),
        (("--max-new-tokens", "9"), "each language of the suite has a budget of its own"),
        (("--regex", "yes|no"), "There are no prompts"),
        (("A prompt",), "No output type"),
        (("A prompt", "--regex", "a", "--quick"), "--languages and --quick choose from the suite's own languages"),
        (("--temperature", "-1"), "temperature=-1.0 was given"),
        (("--output", "formats.py"), "--output formats.py cannot be made a folder"),
    ],
)
def test_bad_input_is_refused_before_anything_is_loaded(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr(fidelity_command.Given, "load", lambda *_: pytest.fail("the model was loaded"))
    refused(cli("fidelity", *arguments), said)


@pytest.mark.parametrize(("error", "code", "cells"), [(KeyboardInterrupt, 130, 3), (SystemExit, 1, 2)])
def test_what_is_finished_is_kept(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], code: int, cells: int
) -> None:
    """After Ctrl-C all of it; of a run that is killed, the finished languages."""
    whole = Suite.cells

    def interrupted(self: Suite, *arguments: Any) -> Iterator[Any]:
        for i, pair in enumerate(whole(self, *arguments)):
            if i == 3:
                raise error(1)
            yield pair

    monkeypatch.setattr(Suite, "cells", interrupted)
    result = cli("fidelity", "--languages", "answer,cities", *QUICKLY, "--output", "results")
    assert result.exit_code == code and ("Interrupted" in result.stderr) == (code == 130)
    data = json.loads((folder / "results" / "fidelity.json").read_text())
    assert not data["complete"] and len(data["cells"]) == cells


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_there_is_a_bar(quiet: tuple[str, ...], cli: Cli) -> None:
    result = cli("fidelity", "--languages", "answer", *QUICKLY, *quiet)
    assert result.exit_code == 0 and ("━" in result.stderr) is not bool(quiet), result.stderr


def test_the_page_names_every_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "fidelity.md").read_text(encoding="utf-8")
    options = {option for each in command("fidelity").params for option in each.opts if option.startswith("--")}
    assert {option for option in options - {"--help"} if f"`{option}" not in page} == set()


SCHEMA = (
    '{"type": "object", "properties": {"a": {"enum": ["b", "c"]}, "n": {"type": "integer"}}, "required": ["a", "n"]}'
)
NESTED = '%llguidance {}\nstart: "(" start ")" | NUMBER\nNUMBER: /[0-9]+/'
FILES = {
    "list.lark": 'start: "[" [NUMBER ("," NUMBER)*] "]"\nNUMBER: /[0-9]+/\n%ignore /[ ]+/\n',
    "sums.gbnf": 'root ::= n ("+" root)?\nn ::= "(" root ")" | [0-9]+ | "x"',
    "wrong.lark": "start: NUMBER nothing\nNUMBER: /[0-9]+/\n",
    "schema.json": SCHEMA,
    "enum.json": '{"enum": ["ab", "cd"]}',
    "grammars.py": f"import outlines_phi\nnested = outlines_phi.from_guidance({NESTED!r})\n",
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


LIST_PAGES = ["list.lark", "--text", "[1, 2]", "--text", "[7", "--depth", 2]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (LIST_PAGES, ["S9 Lark says the same terminals EXHAUSTIVE", "Step 2 of 2"]),
        (["--schema", "enum.json", "--text", '"c', "--ban", "ab"], ["language: state"]),
        (["--type", "grammars:nested", "--text", "((1)"], ["to the end 2 tokens"]),
    ],
    ids=["grammar", "schema", "guidance"],
)
def test_pages_are_built(cli: Cli, folder: Path, arguments: list[object], told: list[str]) -> None:
    result = cli("inspect", *arguments, "--output-dir", "site")
    assert result.exit_code == 0, result.stderr
    assert "Page: site/index.html (" in result.stderr and result.stdout == ""
    pages = " ".join(page.read_text(encoding="utf-8") for page in sorted((folder / "site").glob("*.html")))
    assert [text for text in told if text not in said(pages)] == []


NO_TYPE = {
    "": "No output type was given",
    "json --regex a": "--regex and --grammar were given",
    "missing.lark": "missing.lark cannot be read",
    "json --tokenizer ./missing": "--tokenizer ./missing: there is no such folder",
    "jsn": "json",
    "wrong.lark": "nothing",
}
"""Arguments that neither of the commands reads, and the refusal of each."""
REFUSED = {
    **{f"{command} {given}": told for command in ("inspect", "verify") for given, told in NO_TYPE.items()},
    "verify list.lark --certificate nowhere/list.certificate": "cannot be written: No such file or directory",
    "verify list.lark --certificate .": "cannot be written: Is a directory",
    "verify --regex a+ --certificate a.certificate": "Certificates are of grammars",
    "inspect --regex a --output-dir formats.py": "Give a folder, by --output-dir. formats.py is a file.",
    "inspect --regex a --output-dir .": "Give an empty folder, or a new one, by --output-dir. .",
    "inspect --regex a --text \ud800": "Give characters of Unicode",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_read_or_written_is_refused(cli: Cli, folder: Path, words: str) -> None:
    refused(cli(words), REFUSED[words])
    assert not (folder / "a.certificate").exists() and not (folder / "outlines-phi-inspect").exists()
