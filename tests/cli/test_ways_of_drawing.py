"""``outlines-phi generate`` with banned phrases, estimators by name, particles and drafts; ``outlines-phi fit``."""

import json
from pathlib import Path
from typing import Literal

import pytest

from outlines_phi import Generator, from_transformers
from tests.inner import ESTIMATORS, REMEDIES, bundled

from .conftest import ARIA, BAKERY, Cli, records, refused

ANSWER = "generate --type formats:Answer --n 4 --seed 3"
PERSON = ("--regex", r'\{"name": "[A-Z][a-z]{1,12}", "age": [0-9]{1,3}\}', "--", "Person: Nora is a teacher. JSON: ")
DRAFTED = "generate --seed 1 --n 4"


@pytest.mark.parametrize("phi", ["dp", "dp-bigram"])
def test_estimators_by_name(cli: Cli, phi: str) -> None:
    assert phi in ESTIMATORS
    result = cli(f"{ANSWER} --phi {phi}", BAKERY)
    assert result.exit_code == 0, result.stderr
    lines = records(result.stdout)
    assert len(lines) == 4 and {line["guarantee"] for line in lines} == {"weighted"}
    assert {line["text"] for line in lines} <= {"yes", "no"}
    assert sum(line["weight"] for line in lines) == pytest.approx(1)


def test_draws_are_picked_from_particles_that_follow_masking(cli: Cli) -> None:
    result = cli(f"{ANSWER} --particles 10 --resample ess", BAKERY)
    assert (result.exit_code, result.stderr) == (0, "")
    header, lines = json.loads(result.stdout.splitlines()[0]), records(result.stdout)
    assert (header["phi"], header["sampler"]["particles"], header["sampler"]["resample"]) == ("local", 10, "ess")
    assert len(lines) == 4 and {line["guarantee"] for line in lines} == {"weighted"}
    assert all(1 < line["ess"] <= 10 for line in lines)
    assert sum(line["weight"] for line in lines) == pytest.approx(1)
    assert cli(f"{ANSWER} --particles 10 --resample ess --phi local", BAKERY).stdout == result.stdout


def test_texts_of_a_walk_are_those_without_a_draft(cli: Cli) -> None:
    usual, drafted, none = (
        cli(f"{DRAFTED} --phi local {options}", *PERSON)
        for options in ("", "--draft forced --draft prompt_lookup --draft-length 6", "--draft none")
    )
    assert drafted.exit_code == none.exit_code == 0, drafted.stderr + none.stderr
    texts = [[line["text"] for line in records(result.stdout)] for result in (usual, drafted, none)]
    assert texts[0] == texts[1] == texts[2]
    assert all(line["tokens_per_call"] > 1.5 for line in records(drafted.stdout))
    assert not any("tokens_per_call" in line for line in records(none.stdout))
    assert "tokens kept;" in drafted.stderr and "tokens per model call." in drafted.stderr
    assert "Drafts" not in usual.stderr + none.stderr
    headers = [json.loads(result.stdout.splitlines()[0]).get("draft") for result in (usual, drafted, none)]
    assert headers[0] is None and headers[1]["length"] == 6 and headers[2]["names"] == "none"


@pytest.mark.parametrize(
    ("begun", "other", "said"),
    [
        ("--phi exact --draft forced", "--phi exact --draft tree", "draft.names (\"'forced'\" in the file"),
        ("--phi exact --draft none", "--phi exact", "draft.names ('none' in the file"),
        ("--particles 10", "--particles 20", "sampler.particles (10 in the file, 20 in this command)"),
        ("--particles 10", "--phi local", "another run"),
        ("--stop ,", "--stop ;", "stop ([','] in the file, [';'] in this command)"),
        ("--tokens", "--tokens --top 2", "top (None in the file, 2 in this command)"),
        ("--seed 1", "--seed 1 --token-ids", "token_ids (None in the file"),
        ("--type formats:Listed", "--type formats:Spaced", "differs in the output type"),
    ],
)
def test_a_file_is_gone_on_with_in_the_same_way_only(begun: str, other: str, said: str, cli: Cli) -> None:
    assert all(cli(f"{ANSWER} {begun} --output draws.jsonl", BAKERY).exit_code == 0 for _ in range(2))
    refused(cli(f"{ANSWER} {other} --output draws.jsonl", BAKERY), said)


def test_the_table_of_fit_is_that_of_the_library(cli: Cli) -> None:
    result = cli("fit --type formats:Answer --regex Yes|No --line 4", BAKERY, ARIA)
    assert result.exit_code == 0, result.stderr
    table = Generator(from_transformers(*bundled.load()), Literal["yes", "no"]).fit([BAKERY, ARIA], tokens=4)
    assert all(f"{fit.log_phi}" in result.stdout and repr(fit.line) in result.stdout for fit in table)
    assert "Regex(pattern='Yes|No')" in result.stdout and "-15.89" in result.stdout
    assert REMEDIES["ask"] in " ".join(result.stdout.split())


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
    assert result.exit_code == 0 and len(lines) == 30 and {line["guarantee"] for line in lines} == {guarantee}
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
    assert all(cli(f"{sent} --ban yes", BAKERY).exit_code == 0 for _ in range(2))
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
        phis.append(json.loads((folder / "a.json").read_text(encoding="utf-8"))["pooled"]["bias"]["log_phi"]["value"])
    assert phis[0] < phis[1] - 0.1
