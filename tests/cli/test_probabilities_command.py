"""``outlines-phi probabilities`` on the bundled model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from outlines_phi import Generator, from_transformers
from outlines_phi.lm import bundled
from tests.precision import near, near_log

from .conftest import ARIA, BAKERY, LONG, Cli, refused


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
    refused(
        cli("probabilities --top-k 1 --batch-size 8 --regex", "(yes|no) 9", BAKERY, ARIA, BAKERY), "of 3 prompts.", 1
    )


def test_texts_that_begin_with_a_value(cli: Cli, folder: Path) -> None:
    options = ("--type", "formats:Answer", "--ends", "open", "--open-at", "[^a-z]")
    result = cli("probabilities", *options, "--tolerance", 0, "--output", "p.jsonl", BAKERY)
    assert result.exit_code == 0, result.stderr
    model = from_transformers(*bundled.load())
    expected = Generator(model, Literal["yes", "no"], ends="open", open_at="[^a-z]").probabilities(BAKERY, tolerance=0)
    lines = read(folder / "p.jsonl")[:-1]
    assert {line["value"]: line["p"] for line in lines} == {entry.value: near(entry.p) for entry in expected.entries}
    assert cli("generate --n 20 --phi local --max-new-tokens 1 --output d.jsonl", *options, BAKERY).exit_code == 0
    header, *draws = read(folder / "d.jsonl")
    assert (header["ends"], header["open_at"]) == ("open", "[^a-z]")
    assert {draw["text"] for draw in draws} <= {"yes", "no"}
    refused(cli("generate --type formats:Answer --n 20 --phi local --output d.jsonl", BAKERY), "'open'")
    refused(cli("audit --from d.jsonl"), "Draw without --ends open to audit")
