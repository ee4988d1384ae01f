"""``outlines-phi fidelity``: the suite, and an application's own model, prompts and output type."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlines_phi.cli.app import command
from outlines_phi_workbench.commands import fidelity_command
from outlines_phi_workbench.suite.experiment import Suite
from tests.cli.conftest import Cli, refused
from tests.cli.test_main import terminal

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
