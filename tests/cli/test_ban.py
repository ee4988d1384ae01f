"""Banned phrases on the command line: in formats and in free text, from arguments and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Cli, records

PROMPT = "Question: is the bakery open on Sunday? Answer: "
SHORT = ("--max-new-tokens", 12, "--seed", 1)


class TestGenerate:
    @pytest.mark.parametrize(
        ("level", "guarantee"),
        [
            (None, "approximate"),
            ("mask", "weighted"),
            ("lookahead", "approximate"),
            ("weighted", "weighted"),
            ("exact", "exact"),
        ],
    )
    def test_free_text(self, level: str | None, guarantee: str, cli: Cli) -> None:
        options = () if level is None else ("--ban-level", level)
        result = cli("generate", "--ban", "it is", "--ban", "now", "--n", 30, *SHORT, *options, PROMPT)
        lines = records(result.stdout)
        assert result.exit_code == 0 and len(lines) == 30
        assert {line["guarantee"] for line in lines} == {guarantee}
        assert not any("it is" in line["text"] or "now" in line["text"].split() for line in lines)
        looked = level not in ("mask", "exact")
        assert all(("rejections" in line) == looked for line in lines)
        assert ("Attempts that came upon a banned phrase: 'it is' " in result.stderr) == looked
        assert all((line["log_w"] is None) == (guarantee == "approximate") for line in lines)

    def test_without_a_ban_phrases_are_written(self, cli: Cli) -> None:
        result = cli("generate", "--ban", "no such phrase", "--n", 60, *SHORT, PROMPT)
        assert any("it is" in line["text"] for line in records(result.stdout))

    def test_a_format(self, cli: Cli, folder: Path) -> None:
        (folder / "words.txt").write_text("NOW\n\nkn\n", encoding="utf-8")
        result = cli(
            "generate", "--regex", "yes|no|not now|nobody knows", "--ban-file", "words.txt", "--ban-ignore-case",
            "--n", 50, "--seed", 1, PROMPT,
        )  # fmt: skip
        assert {line["text"] for line in records(result.stdout)} == {"yes", "no"}

    def test_whole_words(self, cli: Cli) -> None:
        result = cli(
            "generate", "--regex", "yes|no|not now|nobody", "--ban", "no", "--ban-whole-word", "--n", 50, "--seed", 1, PROMPT
        )  # fmt: skip
        texts = {line["text"] for line in records(result.stdout)}
        assert {"yes", "not now"} <= texts <= {"yes", "not now", "nobody"}

    def test_what_the_prompt_begins_counts_where_it_is_to(self, cli: Cli) -> None:
        texts = {}
        for option in ("--ban-across-prompt", "--no-ban-across-prompt"):
            arguments = ("--regex", "yes|no", "--ban", "er: no", option, "--n", 50, "--seed", 1)
            texts[option] = {line["text"] for line in records(cli("generate", *arguments, PROMPT).stdout)}
        assert texts == {"--ban-across-prompt": {"yes"}, "--no-ban-across-prompt": {"yes", "no"}}

    def test_a_file_goes_on_under_the_same_ban_only(self, cli: Cli, folder: Path) -> None:
        (folder / "p.jsonl").write_text(json.dumps({"prompt": PROMPT}) + "\n", encoding="utf-8")
        begun = ("generate", "--file", "p.jsonl", "--n", 3, *SHORT, "--output", "o.jsonl")
        assert cli(*begun, "--ban", "yes").exit_code == 0
        assert cli(*begun, "--ban", "yes").exit_code == 0
        refused = cli(*begun, "--ban", "no")
        assert refused.exit_code == 2 and "differs in the banned phrases" in refused.stderr
        assert cli(*begun, "--ban", "yes", "--ban-level", "weighted").exit_code == 2
        assert cli(*begun, "--ban", "yes", "--no-ban-across-prompt").exit_code == 2
        header = json.loads((folder / "o.jsonl").read_text(encoding="utf-8").splitlines()[0])
        assert header["banned_phrases"]["count"] == 1 and header["output_type"]["name"] == "free text"


REFUSED = [
    (["--ban-ignore-case"], "--ban-ignore-case was given without banned phrases"),
    (["--ban-level", "exact", "--regex", "a"], "--ban-level was given without banned phrases"),
    (["--no-ban-across-prompt"], "--no-ban-across-prompt was given without banned phrases"),
    (["--ban", ""], "a banned phrase is empty"),
    (["--ban-file", "nix.txt"], "--ban-file nix.txt cannot be read"),
    (["--ban", "a", "--ban-level", "best"], "--ban-level best was given; expected one of mask"),
    (["--ban", "a", "--ban-level", "exact", "--phi", "local"], "stands for ExactPhi("),
    (["--ban", "a", "--ban-level", "weighted", "--particles", "4"], "--particles"),
    (["--ban", "yes", "--ban", "no", "--regex", "yes|no"], "leave nothing of the output type"),
    (["--phi", "lookahead", "--regex", "yes|no"], "bans no phrases"),
    ([], "No output type"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[" ".join(row[0]) for row in REFUSED])
def test_what_cannot_be_banned_is_said_in_one_line(arguments: list[str], message: str, cli: Cli) -> None:
    result = cli("generate", *arguments, PROMPT)
    assert result.exit_code != 0 and message in result.stderr + result.stdout
    assert "Traceback" not in result.stderr


class TestAudit:
    def test_free_text(self, cli: Cli) -> None:
        result = cli("audit", "--ban", "it is", "--n", 40, *SHORT, PROMPT)
        assert result.exit_code in (0, 3, 4) and "total variation" in result.stdout

    def test_a_format(self, cli: Cli, folder: Path) -> None:
        (folder / "words.txt").write_text("now", encoding="utf-8")
        arguments = ("audit", "--regex", "yes|no|not now", "--n", 40, "--seed", 1, "--output", "a.json")
        phis = []
        for ban in (("--ban-file", "words.txt"), ()):
            assert cli(*arguments, *ban, PROMPT).exit_code in (0, 3, 4)
            report = json.loads((folder / "a.json").read_text(encoding="utf-8"))
            phis.append(report["pooled"]["bias"]["log_phi"]["value"])
        assert phis[0] < phis[1] - 0.1
