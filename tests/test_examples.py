"""Every example runs, with few draws."""

import runpy
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent.parent / "examples"
TRAINING = FOLDER / "train_bundled_model.py"  # takes half an hour

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
    "streaming.py": "cancelled: the essays took too long",
    "tactic.py": "attempts upon banned phrases",
    "probabilities.py": "the modes took none",
    "transformers_only.py": "estimate of Phi by the weights",
    "weighted.py": "captains",
}
"""A text that each example prints, among others."""
FEW = {"auto.py": 3, "drafting.py": 2}
"""Draws of what takes long."""


def test_every_example_is_tested() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == {*EXPECTED, TRAINING.name}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    runpy.run_path(str(FOLDER / name))["main"](FEW.get(name, 20))
    assert EXPECTED[name] in capsys.readouterr().out
