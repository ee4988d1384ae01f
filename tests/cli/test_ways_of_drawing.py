"""``outlines-phi generate`` with estimators by name, particles and drafts; ``outlines-phi fit``."""

from __future__ import annotations

import json
from typing import Literal

import pytest

from outlines_phi import Generator, from_transformers
from outlines_phi.fidelity.format_fit import REMEDIES
from outlines_phi.lm import bundled
from outlines_phi.plugin.call import ESTIMATORS

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
    ],
)
def test_a_file_is_gone_on_with_in_the_same_way_only(begun: str, other: str, said: str, cli: Cli) -> None:
    for _ in range(2):
        assert cli(f"{ANSWER} {begun} --output draws.jsonl", BAKERY).exit_code == 0
    refused(cli(f"{ANSWER} {other} --output draws.jsonl", BAKERY), said)


def test_the_table_of_fit_is_that_of_the_library(cli: Cli) -> None:
    result = cli("fit --type formats:Answer --regex Yes|No --line 4", BAKERY, ARIA)
    assert result.exit_code == 0, result.stderr
    table = Generator(from_transformers(*bundled.load()), Literal["yes", "no"]).fit([BAKERY, ARIA], tokens=4)
    for fit in table:
        assert f"{fit.log_phi}" in result.stdout and repr(fit.line) in result.stdout
    assert "Regex(pattern='Yes|No')" in result.stdout and "-15.89" in result.stdout
    assert REMEDIES["ask"] in " ".join(result.stdout.split())
