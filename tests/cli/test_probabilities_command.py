"""``outlines-phi probabilities`` on the bundled model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from outlines_phi import Generator, from_transformers
from outlines_phi.lm import bundled
from tests.precision import near, near_log

from .conftest import Cli

BAKERY = "Question: is the bakery open on Sunday? Answer: "
ARIA = "New character: Aria. JSON: "
LONG = "word " * 600


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_numbers_are_those_of_the_library(cli: Cli, folder: Path) -> None:
    result = cli("probabilities", "--type", "formats:Answer", "--tolerance", 0, "--output", "p.jsonl", BAKERY, ARIA)
    assert result.exit_code == 0, result.stderr
    generator = Generator(from_transformers(*bundled.load()), Literal["yes", "no"])
    lines = read(folder / "p.jsonl")
    for index, prompt in enumerate((BAKERY, ARIA)):
        expected = generator.probabilities(prompt, tolerance=0)
        here = [line for line in lines if line["prompt_index"] == index]
        assert [line["record"] for line in here] == ["value", "value", "others"]
        for rank, (line, entry) in enumerate(zip(here, expected.entries, strict=False)):
            assert (line["rank"], line["value"], line["prompt"]) == (rank, entry.value, prompt)
            assert [line["p"], *line["p_bounds"]] == near([entry.p, entry.lo, entry.hi])
            assert f"{entry.value}" in result.stdout and f"{line['p']:.4f}" in result.stdout
        assert here[-1]["p_bounds"] == [0, 0] and here[-1]["log_z_bounds"] == near_log(expected.log_z_bounds)
    # The settings are part of the distribution.
    hot = cli("probabilities", "--type", "formats:Answer", "--temperature", 3, "--output", "q.jsonl", BAKERY)
    assert hot.exit_code == 0 and abs(read(folder / "q.jsonl")[0]["p"] - lines[0]["p"]) > 0.05


def test_a_table_has_the_top_and_the_rest(cli: Cli, folder: Path) -> None:
    result = cli("probabilities", "--type", "formats:Character", "--top", 3, "--output", "p.jsonl", ARIA)
    assert result.exit_code == 0 and f"After '{ARIA}'" in result.stdout
    assert (
        "... 29 more" in result.stdout and "all others" not in result.stdout
    )  # 32 records in a few layouts are all listed
    lines = read(folder / "p.jsonl")
    low, high = lines[-1]["log_z_bounds"]
    assert f"log Phi in [{low:.4g}, {high:.4g}]" in result.stdout
    assert len(lines) == 33 and [line["p"] for line in lines[:-1]] == sorted(
        (line["p"] for line in lines[:-1]), reverse=True
    )
    assert lines[0]["value"] == json.loads(lines[0]["text"]) and lines[0]["text"] in lines[0]["texts"]
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_banned_phrases_have_no_probability(cli: Cli, folder: Path) -> None:
    result = cli("probabilities", "--regex", "yes|no|not now", "--ban", "no", "--output", "p.jsonl", BAKERY)
    assert result.exit_code == 0, result.stderr
    assert {line["value"]: line["p"] for line in read(folder / "p.jsonl") if line.get("p")} == {"yes": 1.0}


def test_what_a_type_refuses_is_listed_with_the_reason(cli: Cli, folder: Path) -> None:
    result = cli("probabilities", "--type", "formats:Day", "--effort", 400, "--output", "p.jsonl", "Date: ")
    refused = [line for line in read(folder / "p.jsonl") if "value_error" in line]
    assert all(line["value"] is None and "refuses" in line["value_error"] for line in refused)
    assert result.exit_code == 1 and ("(refused)" in result.stdout) == any(line["rank"] < 20 for line in refused)


def test_a_prompt_fails_alone(cli: Cli, folder: Path) -> None:
    """One that is too long, and one that is short of the tolerance, of which what holds is listed."""
    result = cli("probabilities", "--regex", "[a-z]{1,9}", "--effort", 60, "--output", "p.jsonl", BAKERY, LONG, ARIA)
    assert result.exit_code == 1 and "Failed: 2 of 3 prompts." in result.stderr
    assert "short of --tolerance 0.001" in " ".join(result.stderr.split())
    lines = read(folder / "p.jsonl")
    errors = {line["prompt_index"]: line["error"] for line in lines if line["record"] == "error"}
    assert errors == {1: "ModelError", 2: "BudgetError"}
    listed = {line["prompt_index"] for line in lines if line["record"] == "value"}
    others = {line["prompt_index"]: line["p_bounds"] for line in lines if line["record"] == "others"}
    assert listed == {0, 2} == set(others) and all(low == 0 < high < 1 for low, high in others.values())
    wide = cli("probabilities", "--regex", "[a-z]{1,9}", "--effort", 60, "--tolerance", 0.99, BAKERY, LONG)
    assert wide.exit_code == 1 and "Failed: 1 of 2 prompts." in wide.stderr


def test_prompts_that_leave_no_member_fail_alone(cli: Cli) -> None:
    result = cli("probabilities", "--regex", "(yes|no) 9", "--top-k", 1, "--batch-size", 8, BAKERY, ARIA, BAKERY)
    assert result.exit_code == 1 and "of 3 prompts." in result.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--regex", "a", "--tolerance", 2), "tolerance=2.0 was given"),
        (("--regex", "a", "--seconds", -1), "seconds=-1.0"),
        (("--regex", "a", "--temperature", 0), "temperature=0.0 was given"),
        (("--ban", "a"), "No output type was given"),
        (("--regex", "a", "--output", "no/p.jsonl"), "there is no folder no"),
        (("--regex", "("), "never closed"),
    ],
)
def test_what_cannot_be_used_is_said(given: tuple[Any, ...], said: str, cli: Cli) -> None:
    result = cli("probabilities", *given, BAKERY)
    assert result.exit_code == 2 and said.lower() in " ".join(result.stderr.split()).lower(), result.stderr


def test_texts_that_begin_with_a_value(cli: Cli, folder: Path) -> None:
    options = ("--type", "formats:Answer", "--ends", "open", "--open-at", "[^a-z]")
    result = cli("probabilities", *options, "--tolerance", 0, "--output", "p.jsonl", BAKERY)
    assert result.exit_code == 0, result.stderr
    model = from_transformers(*bundled.load())
    expected = Generator(model, Literal["yes", "no"], ends="open", open_at="[^a-z]").probabilities(BAKERY, tolerance=0)
    lines = read(folder / "p.jsonl")[:-1]
    assert {line["value"]: line["p"] for line in lines} == {entry.value: near(entry.p) for entry in expected.entries}
    result = cli(
        "generate", *options, "--n", 20, "--phi", "local", "--max-new-tokens", 1, "--output", "d.jsonl", BAKERY
    )
    assert result.exit_code == 0, result.stderr
    header, *draws = read(folder / "d.jsonl")
    assert (header["ends"], header["open_at"]) == ("open", "[^a-z]") and {draw["text"] for draw in draws} <= {
        "yes",
        "no",
    }
    for command, said in (
        (
            ("generate", "--type", "formats:Answer", "--n", 20, "--phi", "local", "--output", "d.jsonl", BAKERY),
            "'open'",
        ),
        (("audit", "--from", "d.jsonl"), "Draw without --ends open to audit"),
        (("probabilities", "--type", "formats:Character", "--ends", "open", ARIA), "Give a choice, such as Literal"),
        (("probabilities", "--type", "formats:Answer", "--open-at", "x", ARIA), "Give ends='open'"),
    ):
        refused = cli(*command)
        assert refused.exit_code == 2 and said in " ".join(refused.stderr.split()), refused.stderr
