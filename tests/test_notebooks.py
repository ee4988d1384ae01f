"""Notebooks and examples run, and their numbers are those that they show."""

import json
import re
import runpy
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
CELLS = {
    "markdown": {"cell_type", "id", "metadata", "source"},
    "code": {"cell_type", "execution_count", "id", "metadata", "outputs", "source"},
}
"""The fields of a cell by its type, in version 4.5 of the format."""


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def name(path: Path) -> str:
    return path.stem


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty working folder, a seed, one thread, and figures that are drawn and not shown."""
    import matplotlib

    monkeypatch.chdir(tmp_path)
    threads, backend = torch.get_num_threads(), matplotlib.get_backend()
    matplotlib.use("template")
    torch.manual_seed(0)
    yield
    matplotlib.use(backend)
    torch.set_num_threads(threads)


def test_there_are_two() -> None:
    assert list(map(name, NOTEBOOKS)) == ["bias-of-masking", "probabilities-of-a-classification"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_the_structure_is_that_of_a_notebook(path: Path) -> None:
    notebook = read(path)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"[a-zA-Z0-9-_]{1,64}", each) for each in ids)
    for cell in notebook["cells"]:
        assert set(cell) == CELLS[cell["cell_type"]]
        assert all(isinstance(line, str) for line in cell["source"]) and "".join(cell["source"]).strip()
        assert cell.get("outputs", []) == [] and cell.get("execution_count") is None, "a kept output grows old"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_relative_links_lead_somewhere(path: Path) -> None:
    texts = ["".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "markdown"]
    links = [link for text in texts for link in LINK.findall(text) if "://" not in link]
    assert links and all((path.parent / link.partition("#")[0]).exists() for link in links)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_the_cells_run_in_order(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = types.ModuleType("notebook")  # pydantic looks the module of a class up
    monkeypatch.setitem(sys.modules, "notebook", module)
    for number, cell in enumerate(read(path)["cells"], 1):
        if cell["cell_type"] == "code":
            exec(
                compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec", dont_inherit=True), vars(module)
            )
    assert "total variation" in capsys.readouterr().out


EXAMPLES = Path(__file__).parent.parent / "examples"
TRAINING = EXAMPLES / "train_bundled_model.py"  # takes half an hour

EXPECTED = {
    "audit.py": "Where legal mass is lost",
    "auto.py": "Person: EXACT",
    "ban_existing_app.py": "with the phrase: 0 of 20",
    "character.py": "ranger captain",
    "choice.py": "noise floor",
    "classic_generate.py": "installed:",
    "drafting.py": "The same distribution",
    "grammar.py": "the weights undo what masking does",
    "orders_batch.py": "model calls",
    "rollouts.py": "healer after",
    "streaming.py": "cancelled: the essays took too long",
    "tactic.py": "attempts upon banned phrases",
    "probabilities.py": "the modes took none",
    "transformers_only.py": "estimate of Phi by the weights",
    "weighted.py": "captains",
}
"""A text that each example prints, among others."""
FEW = {"auto.py": 3, "drafting.py": 2}
"""Draws of what takes long."""


def test_every_example_is_tested_and_listed() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*EXPECTED, TRAINING.name}
    listed = re.findall(
        r"^- \[`(\w+\.py)`\]", (FOLDER.parent / "examples.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(listed) == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    runpy.run_path(str(EXAMPLES / name))["main"](FEW.get(name, 20))
    assert EXPECTED[name] in capsys.readouterr().out
