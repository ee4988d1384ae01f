"""``outlines-phi audit`` on the bundled model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import outlines_phi
from outlines_phi.cli.model_commands import read_weights
from outlines_phi.fidelity.bias import measure
from outlines_phi.lm import bundled

from .conftest import Cli

BAKERY = "Question: is the bakery open on Sunday? Answer: "
MUSEUM = "Question: is the museum open on Monday? Answer: "
ARIA = "New character: Aria. JSON: "
ANSWER = ("--type", "formats:Answer")


def test_the_report_is_that_of_the_library(cli: Cli, folder: Path) -> None:
    result = cli("audit", "--type", "formats:Character", "--n", 60, "--seed", 1, "--output", "a.json", ARIA)
    assert result.exit_code == 3, result.stderr
    from formats import Character  # type: ignore[import-not-found]

    model = outlines_phi.from_transformers(*bundled.load())
    expected = outlines_phi.audit((model, Character), ARIA, 60, seed=1).to_dict()
    assert json.loads((folder / "a.json").read_text(encoding="utf-8")) == json.loads(json.dumps(expected))


def test_the_terminal_has_the_verdict_the_places_and_the_values(cli: Cli) -> None:
    result = cli("audit", "--type", "formats:Character", "--n", 200, "--seed", 1, ARIA)
    text = " ".join(result.stdout.split())
    assert re.search(r"Plain masking is biased: .* is between 0\.\d+ and 0\.\d+ \(95% confidence\)", text)
    assert '"ranger captain"' in text and "Where legal mass is lost" in text and "effective sample size, of 200" in text
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_reports_are_written_in_every_format(cli: Cli, folder: Path) -> None:
    outputs = [part for suffix in ("md", "html", "json", "png") for part in ("--output", f"a.{suffix}")]
    result = cli("audit", *ANSWER, "--n", 40, "--seed", 1, *outputs, "--temperature", 0.9, "--", BAKERY, MUSEUM)
    assert result.exit_code == 3, result.stderr
    assert (folder / "a.md").read_text(encoding="utf-8").startswith("# Audit of plain masking")
    assert "temperature=0.9" in (folder / "a.html").read_text(encoding="utf-8")
    assert len(json.loads((folder / "a.json").read_text(encoding="utf-8"))["findings"]) == 2
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--n", 200, "--tolerance", 0.9), 0, "Plain masking is not biased by more than 0.9:"),
        (("--n", 200), 3, "Plain masking is biased:"),
        (("--n", 4), 4, "Undecided whether plain masking is biased by more than 0.05:"),
    ],
)
def test_each_verdict_has_an_exit_code(options: tuple[object, ...], code: int, words: str, cli: Cli) -> None:
    result = cli("audit", *ANSWER, "--seed", 1, *options, BAKERY)
    assert (result.exit_code, result.stderr) == (code, "")
    text = " ".join(result.stdout.split())
    assert text.startswith(words) and ("To decide it, take about" in text) == (code == 4)


def test_prompts_may_come_through_a_pipe(cli: Cli) -> None:
    result = cli("audit", *ANSWER, "--n", 20, "-", stdin=f"{BAKERY}\n{MUSEUM}\n")
    assert result.exit_code in (3, 4) and "all 2 prompts" in " ".join(result.stdout.split())


def test_bounds_are_paid_for_in_tokens(cli: Cli, folder: Path) -> None:
    for tokens in (0, 2000):
        cli(
            "audit",
            "--regex",
            "[a-z]{3}",
            "--n",
            20,
            "--seed",
            1,
            "--bounds-tokens",
            tokens,
            "--output",
            f"{tokens}.json",
            BAKERY,
        )
    widths = [_width(folder / f"{tokens}.json") for tokens in (0, 2000)]
    assert widths[1] < widths[0]


def _width(path: Path) -> float:
    certain = json.loads(path.read_text(encoding="utf-8"))["pooled"]["bias"]["certain"]
    return float(certain["high"] - certain["low"])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([*ANSWER], 2, "no prompts"),
        ([BAKERY], 2, "No output type"),
        ([*ANSWER, "--output", "a.txt", BAKERY], 2, "Give one of the suffixes"),
        ([*ANSWER, "--output", "no/a.md", BAKERY], 2, "there is no folder no"),
        ([*ANSWER, "--temperature", "nan", BAKERY], 2, "temperature=nan"),
        ([*ANSWER, "--confidence", "2", BAKERY], 2, "confidence=2.0"),
        ([*ANSWER, "--tolerance", "0", BAKERY], 2, "tolerance=0.0"),
        ([*ANSWER, "--n", "1", BAKERY], 2, "--n"),
        ([*ANSWER, BAKERY, "word " * 600], 1, "Prompt 1 (counted from 0): The prompt has"),
        ([*ANSWER, "--max-new-tokens", "1", BAKERY], 2, "max_new_tokens=1 is too small"),
        ([*ANSWER, "--model", "./none", BAKERY], 2, "there is no such folder"),
        (["--from", "none.jsonl"], 2, "none.jsonl cannot be read"),
        (["--from", "o.jsonl", BAKERY], 2, "prompts cannot be given together with --from"),
        (["--from", "o.jsonl", "--output", "a.md"], 2, "--output cannot be given together with --from"),
        (["--from", "o.jsonl", "--n", "200", "--temperature", "0.5"], 2, "--temperature, --n cannot be given together"),
        (["--from", "formats.py"], 2, "was not written by outlines-phi generate"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: list[str], code: int, words: str, cli: Cli, folder: Path) -> None:
    result = cli("audit", *arguments)
    assert result.exit_code == code, result.stderr
    assert words in result.stderr and "Traceback" not in result.stderr and result.stdout == ""
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["formats.py"]


class TestSaved:
    """The audit of a file that ``generate --phi local`` wrote."""

    def generate(self, cli: Cli, phi: str, *more: object) -> None:
        arguments = ("--type", "formats:Character", "--n", 100, "--seed", 2, "--phi", phi, "--output", "o.jsonl")
        assert cli("generate", *arguments, *more, ARIA, "New character: Hugo. JSON: ").exit_code == 0

    def test_it_has_the_numbers_of_its_weights(self, cli: Cli, folder: Path) -> None:
        self.generate(cli, "local")
        result = cli("audit", "--from", "o.jsonl")
        assert result.exit_code == 3, result.stderr
        assert result.stdout.splitlines()[2].startswith("Plain masking is biased: its distance")
        assert cli("audit", "--from", "o.jsonl", "--tolerance", 0.99).exit_code == 0
        model = outlines_phi.from_transformers(*bundled.load())
        from formats import Character

        _, log_w = read_weights(folder / "o.jsonl")
        bias = measure([np.array(weights) for weights in log_w], [(0.0, 1.0)] * 2, 0.05)
        text = " ".join(result.stdout.split())
        assert f"{bias.tv.interval.low:.3f} ... {bias.tv.interval.high:.3f}" in text
        assert f"effective sample size, of 200 draws {bias.ess:.1f}" in text
        # Other draws of the same law, with more known about it: the two intervals hold the same number.
        report = outlines_phi.audit((model, Character), [ARIA, "New character: Hugo. JSON: "], 200, seed=5)
        there = report.pooled.bias.tv.interval
        assert bias.tv.interval.low <= there.high and there.low <= bias.tv.interval.high
        assert bias.tv.interval.low > 0.05

    def test_a_line_that_a_kill_has_torn_does_not_count(self, cli: Cli, folder: Path) -> None:
        self.generate(cli, "local")
        whole = (folder / "o.jsonl").read_bytes()
        (folder / "o.jsonl").write_bytes(whole[:-20])
        assert "after each of 1 prompt," in cli("audit", "--from", "o.jsonl").stdout

    def test_exact_draws_are_refused(self, cli: Cli) -> None:
        self.generate(cli, "exact")
        result = cli("audit", "--from", "o.jsonl")
        assert result.exit_code == 2 and "holds draws of --phi exact" in result.stderr

    @pytest.mark.parametrize(
        "content", ['{"a": 1}\n', "", "[]\n", '{"record": "run", "format": "outlines-phi draws", "version": 1}\n']
    )
    def test_another_file_is_refused(self, content: str, cli: Cli, folder: Path) -> None:
        (folder / "o.jsonl").write_text(content)
        result = cli("audit", "--from", "o.jsonl")
        assert result.exit_code == 2 and "was not written by outlines-phi generate" in result.stderr

    def test_draws_that_all_failed_are_refused(self, cli: Cli) -> None:
        self.generate(cli, "local", "--top-k", 1)
        result = cli("audit", "--from", "o.jsonl")
        assert result.exit_code == 2 and "None of the draws" in result.stderr
