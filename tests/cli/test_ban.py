"""Banned phrases on the command line: in formats and in free text, from arguments and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import BAKERY, Cli, records, refused

SHORT = "--max-new-tokens 12 --seed 1"


@pytest.mark.parametrize(
    ("level", "guarantee"),
    [
        ("", "approximate"),
        ("--ban-level mask", "weighted"),
        ("--ban-level lookahead", "approximate"),
        ("--ban-level weighted", "weighted"),
        ("--ban-level exact", "exact"),
    ],
)
def test_free_text(level: str, guarantee: str, cli: Cli) -> None:
    result = cli(f"generate --ban now --n 30 {SHORT} {level} --ban", "it is", BAKERY)
    lines = records(result.stdout)
    assert result.exit_code == 0 and len(lines) == 30
    assert {line["guarantee"] for line in lines} == {guarantee}
    assert not any("it is" in line["text"] or "now" in line["text"].split() for line in lines)
    looked = level not in ("--ban-level mask", "--ban-level exact")
    assert all(("rejections" in line) == looked for line in lines)
    assert ("Attempts that came upon a banned phrase: 'it is' " in result.stderr) == looked
    assert all((line["log_w"] is None) == (guarantee == "approximate") for line in lines)


def test_without_a_ban_phrases_are_written(cli: Cli) -> None:
    result = cli(f"generate --n 60 {SHORT} --ban", "no such phrase", BAKERY)
    assert any("it is" in line["text"] for line in records(result.stdout))
    result = cli("generate --phi lookahead --regex yes|no", BAKERY)
    assert result.exit_code == 1 and "bans no phrases" in result.stdout


@pytest.mark.parametrize(
    ("pattern", "ban", "least", "most"),
    [
        ("yes|no|not now|nobody knows", "--ban-file words.txt --ban-ignore-case", "yes,no", "yes,no"),
        ("yes|no|not now|nobody", "--ban no --ban-whole-word", "yes,not now", "yes,not now,nobody"),
    ],
)
def test_formats(pattern: str, ban: str, least: str, most: str, cli: Cli, folder: Path) -> None:
    (folder / "words.txt").write_text("NOW\n\nkn\n", encoding="utf-8")
    lines = records(cli(f"generate {ban} --n 50 --seed 1 --regex", pattern, BAKERY).stdout)
    assert set(least.split(",")) <= {line["text"] for line in lines} <= set(most.split(","))


@pytest.mark.parametrize(("option", "texts"), [("--ban-across-prompt", "yes"), ("--no-ban-across-prompt", "yes no")])
def test_what_the_prompt_begins_counts_where_it_is_to(option: str, texts: str, cli: Cli) -> None:
    result = cli(f"generate {option} --regex yes|no --n 50 --seed 1 --ban", "er: no", BAKERY)
    assert {line["text"] for line in records(result.stdout)} == set(texts.split())


def test_a_file_goes_on_under_the_same_ban_only(cli: Cli, folder: Path) -> None:
    sent = f"generate --n 3 {SHORT} --output o.jsonl"
    for _ in range(2):
        assert cli(f"{sent} --ban yes", BAKERY).exit_code == 0
    refused(cli(f"{sent} --ban no", BAKERY), "differs in the banned phrases")
    refused(cli(f"{sent} --ban yes --ban-level weighted", BAKERY), "differs in phi")
    refused(cli(f"{sent} --ban yes --no-ban-across-prompt", BAKERY), "across_prompt")
    header = json.loads((folder / "o.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert header["banned_phrases"]["count"] == 1 and header["output_type"]["name"] == "free text"


def test_audits(cli: Cli, folder: Path) -> None:
    result = cli(f"audit --n 40 {SHORT} --ban", "it is", BAKERY)
    assert result.exit_code in (0, 3, 4) and "total variation" in result.stdout
    (folder / "words.txt").write_text("now", encoding="utf-8")
    phis = []
    for ban in ("--ban-file words.txt", ""):
        sent = f"audit {ban} --n 40 --seed 1 --output a.json --regex"
        assert cli(sent, "yes|no|not now", BAKERY).exit_code in (0, 3, 4)
        report = json.loads((folder / "a.json").read_text(encoding="utf-8"))
        phis.append(report["pooled"]["bias"]["log_phi"]["value"])
    assert phis[0] < phis[1] - 0.1
