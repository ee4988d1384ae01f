"""The benchmarks that use the suite run, with tiny counts and into a folder of the test's own."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from benchmarks import auto_calls, bottleneck, control, real_model
from outlines_phi_workbench.suite.languages import SUITE
from tests.test_benchmarks import check_results, marked, results, rewritten

__all__ = ["results"]


@pytest.mark.filterwarnings("ignore")  # of the hosts that are measured beside this package
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bottleneck", {"n": 1, "seeds": 1, "names": 1, "ages": 3, "languages": "small"}),
        ("real_model", {"languages": "dyck1-8-single", "n": 4, "repeats": 1}),
    ],
)
def test_every_benchmark_runs(
    name: str, options: dict[str, Any], results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bottleneck, "CANDIDATES", 4)
    with torch._dynamo.config.patch(disable=True):  # stock Outlines' kernels would be compiled for minutes
        importlib.import_module(f"benchmarks.{name}").main(**options)
    check_results(results, [name])


def test_the_page_of_auto_shows_what_was_kept(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_calls, "PAGE", marked(results, "auto_calls"))
    auto_calls.main(seeds=1, only="answer,int")
    check_results(results, ["auto_calls"])
    text = rewritten(auto_calls.PAGE)
    assert "| asks for the format | as dear, or dearer | 1 of 2 | 1 | 1 | 1 to 1 of 1 |" in text


def test_one_true_step_is_exact_where_it_decides() -> None:
    answer = next(language for language in SUITE if language.name == "answer")
    found = {row[3]: row[4] for row in real_model.rows(control.Ours().model, answer, n=4, repeats=1)}
    assert found["true one-step"] < 0.01 < 0.3 < found["local"] and found["exact-0.01"] < 0.01


def test_a_checkpoint_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        real_model.main(model="./nowhere", languages="dyck1-8-single")
    assert "Give a folder that save_pretrained wrote" in capsys.readouterr().err
    with pytest.raises(typer.BadParameter, match="Give some of dyck1-8-single"):
        real_model.main(languages="dyck9")
