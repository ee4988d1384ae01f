"""The demo, run once with few draws."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from outlines_phi import PhiTransformers
from outlines_phi.cli.app import app
from outlines_phi.cli.demo_command import ANSWER, CHARACTER, EXACT, PLAIN, Case, run_case
from outlines_phi.fidelity.comparison import WHOLE, Report


@pytest.fixture(scope="module", params=[ANSWER, CHARACTER], ids=["choice", "pydantic"])
def report(request: pytest.FixtureRequest, model: PhiTransformers) -> Report:
    return run_case(model, request.param, 300, 0)


def test_the_bias_is_visible_and_exact_draws_have_none(report: Report) -> None:
    worst = max((view for view in report.views if view.name != WHOLE), key=lambda view: view.distances[PLAIN])
    assert worst.distances[PLAIN] > 3 * worst.limit
    assert all(view.distances[EXACT] < 1.5 * view.limit for view in report.views)


def test_the_truth_is_certified(report: Report) -> None:
    assert report.truth.tolerance <= 1e-3 and sum(report.truth.distribution.values()) == pytest.approx(1)


def test_every_draw_is_in_the_format(report: Report) -> None:
    assert all(set(view.frequencies[name]) <= set(view.truth) for view in report.views[:-1] for name in (PLAIN, EXACT))
    assert all(len(sample.texts) == 300 for sample in report.samples)


def test_costs_are_counted(report: Report) -> None:
    plain, exact = report.samples
    assert report.costs[0].tokens <= plain.tokens and 0 < exact.tokens < plain.tokens and 0 < plain.calls <= 128


@pytest.mark.parametrize("case", [ANSWER, CHARACTER], ids=["choice", "pydantic"])
def test_the_token_count_of_plain_outlines_is_that_of_its_texts(model: PhiTransformers, case: Case) -> None:
    """Each text costs at least one token a piece of its likeliest spelling, less the one that the model never reads."""
    plain = run_case(model, case, 20, 1).samples[0]
    fewest = sum(len(model.hf_tokenizer.encode(text)) for text in plain.texts)
    assert fewest * 0.9 <= plain.tokens <= sum(len(text.encode()) for text in plain.texts)


def test_the_command_writes_a_picture_and_a_page_and_fits_80_columns(tmp_path: Path) -> None:
    prompt = "Character: Bram is a proud dwarf. JSON: "
    arguments = ["demo", "--n", "20", "--output", str(tmp_path / "demo"), "--prompt", prompt]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert prompt in result.stdout
    assert (tmp_path / "demo" / "demo.png").stat().st_size > 10_000
    assert "proud dwarf" in (tmp_path / "demo" / "index.html").read_text(encoding="utf-8")
    assert max(len(line) for line in result.stdout.splitlines() if str(tmp_path) not in line) <= 80
