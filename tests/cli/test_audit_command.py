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

from .conftest import ARIA, BAKERY, MUSEUM, Cli, refused

HUGO = "New character: Hugo. JSON: "


def test_the_report_is_that_of_the_library_and_on_the_terminal(cli: Cli, folder: Path) -> None:
    result = cli("audit --type formats:Character --n 60 --seed 1 --output a.json", ARIA)
    assert result.exit_code == 3, result.stderr
    from formats import Character  # type: ignore[import-not-found]

    model = outlines_phi.from_transformers(*bundled.load())
    expected = outlines_phi.audit((model, Character), ARIA, 60, seed=1).to_dict()
    assert json.loads((folder / "a.json").read_text(encoding="utf-8")) == json.loads(json.dumps(expected))
    text = " ".join(result.stdout.split())
    assert re.search(r"Plain masking is biased: .* is between 0\.\d+ and 0\.\d+ \(95% confidence\)", text)
    assert '"ranger captain"' in text and "Where legal mass is lost" in text and "effective sample size, of 60" in text
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_reports_are_written_in_every_format(cli: Cli, folder: Path) -> None:
    outputs = " ".join(f"--output a.{suffix}" for suffix in ("md", "html", "json", "png"))
    sent = f"audit --type formats:Answer --n 40 --seed 1 {outputs} --temperature 0.9 -"
    result = cli(sent, stdin=f"{BAKERY}\n{MUSEUM}\n")
    assert result.exit_code == 3 and "all 2 prompts" in " ".join(result.stdout.split()), result.stderr
    assert (folder / "a.md").read_text(encoding="utf-8").startswith("# Audit of plain masking")
    assert "temperature=0.9" in (folder / "a.html").read_text(encoding="utf-8")
    assert len(json.loads((folder / "a.json").read_text(encoding="utf-8"))["findings"]) == 2
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("--n 200 --tolerance 0.9", 0, "Plain masking is not biased by more than 0.9:"),
        ("--n 200", 3, "Plain masking is biased:"),
        ("--n 4", 4, "Undecided whether plain masking is biased by more than 0.05:"),
    ],
)
def test_each_verdict_has_an_exit_code(options: str, code: int, words: str, cli: Cli) -> None:
    result = cli(f"audit --type formats:Answer --seed 1 {options}", BAKERY)
    assert (result.exit_code, result.stderr) == (code, "")
    text = " ".join(result.stdout.split())
    assert text.startswith(words) and ("To decide it, take about" in text) == (code == 4)


def test_bounds_are_paid_for_in_tokens(cli: Cli, folder: Path) -> None:
    widths = []
    for tokens in (0, 2000):
        cli(f"audit --regex [a-z]{{3}} --n 20 --seed 1 --bounds-tokens {tokens} --output {tokens}.json", BAKERY)
        report = json.loads((folder / f"{tokens}.json").read_text(encoding="utf-8"))
        widths.append(report["pooled"]["bias"]["certain"]["high"] - report["pooled"]["bias"]["certain"]["low"])
    assert widths[1] < widths[0]


class TestSaved:
    """The audit of a file that ``generate --phi local`` wrote."""

    def generate(self, cli: Cli, more: str) -> None:
        sent = f"generate --type formats:Character --n 100 --seed 2 --output o.jsonl {more}"
        assert cli(sent, ARIA, HUGO).exit_code == 0

    def test_it_has_the_numbers_of_its_weights(self, cli: Cli, folder: Path) -> None:
        self.generate(cli, "--phi local")
        result = cli("audit --from o.jsonl")
        assert result.exit_code == 3, result.stderr
        assert result.stdout.splitlines()[2].startswith("Plain masking is biased: its distance")
        assert cli("audit --from o.jsonl --tolerance 0.99").exit_code == 0
        from formats import Character

        _, log_w = read_weights(folder / "o.jsonl")
        bias = measure([np.array(weights) for weights in log_w], [(0.0, 1.0)] * 2, 0.05)
        text, here = " ".join(result.stdout.split()), bias.tv.interval
        assert f"{here.low:.3f} ... {here.high:.3f}" in text
        assert f"effective sample size, of 200 draws {bias.ess:.1f}" in text
        # Other draws of the same law, with more known about it: the two intervals hold the same number.
        model = outlines_phi.from_transformers(*bundled.load())
        there = outlines_phi.audit((model, Character), [ARIA, HUGO], 200, seed=5).pooled.bias.tv.interval
        assert here.low <= there.high and there.low <= here.high and here.low > 0.05
        # A line that a kill has torn does not count.
        (folder / "o.jsonl").write_bytes((folder / "o.jsonl").read_bytes()[:-20])
        assert "after each of 1 prompt," in cli("audit --from o.jsonl").stdout

    @pytest.mark.parametrize(
        ("sent", "said"),
        [
            ("--phi exact", "holds draws of --phi exact"),
            ("--phi local --top-k 1", "None of the draws"),
            ("--particles 10", "holds draws of --particles"),
            ("--phi local --tokenization canonical", "Draw without --tokenization canonical to audit"),
        ],
    )
    def test_other_draws_are_refused(self, sent: str, said: str, cli: Cli) -> None:
        self.generate(cli, sent)
        refused(cli("audit --from o.jsonl"), said)

    @pytest.mark.parametrize(
        "content", ['{"a": 1}\n', "", "[]\n", '{"record": "run", "format": "outlines-phi draws", "version": 1}\n']
    )
    def test_another_file_is_refused(self, content: str, cli: Cli, folder: Path) -> None:
        (folder / "o.jsonl").write_text(content)
        refused(cli("audit --from o.jsonl"), "was not written by outlines-phi generate")
