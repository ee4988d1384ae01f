"""Drafts on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Cli, records

PROMPT = "Person: Nora is a teacher. JSON: "
PERSON = ("--regex", r'\{"name": "[A-Z][a-z]{1,12}", "age": [0-9]{1,3}\}', "--seed", 1, "--n", 4)


class TestGenerate:
    def test_texts_of_a_walk_are_those_without_a_draft(self, cli: Cli) -> None:
        plain, drafted = (
            cli("generate", *PERSON, "--phi", "local", *options, PROMPT)
            for options in ((), ("--draft", "forced", "--draft", "prompt_lookup", "--draft-length", 6))
        )
        lines = records(drafted.stdout)
        assert drafted.exit_code == 0, drafted.stderr
        assert [line["text"] for line in lines] == [line["text"] for line in records(plain.stdout)]
        assert all(line["tokens_per_call"] > 1.5 for line in lines)
        assert "tokens kept;" in drafted.stderr and "tokens per model call." in drafted.stderr
        assert "Drafts" not in plain.stderr and not records(plain.stdout)[0].get("draft")

    def test_a_file_of_other_drafts_is_refused(self, cli: Cli, folder: Path) -> None:
        options = ("--phi", "exact", "--output", "draws.jsonl", PROMPT)
        assert cli("generate", *PERSON, "--draft", "forced", *options).exit_code == 0
        assert cli("generate", *PERSON, "--draft", "forced", *options).exit_code == 0
        refused = cli("generate", *PERSON, "--draft", "tree", *options)
        assert refused.exit_code == 2 and "\"'forced'\" in the file" in refused.stderr

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--draft", "force"), "did you mean 'forced'?"),
            (("--draft-length", 4), "--draft-length 4 was given without --draft"),
            (("--draft", "forced", "--particles", 5), "A draft was given with sampler=SMC(...)"),
        ],
    )
    def test_what_cannot_be_used(self, options: tuple[object, ...], message: str, cli: Cli) -> None:
        result = cli("generate", *PERSON, *options, PROMPT)
        assert result.exit_code == 2 and message in result.stderr
