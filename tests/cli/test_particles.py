"""``outlines-phi generate --particles``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Cli, records

BAKERY = "Question: is the bakery open on Sunday? Answer: "
CALL = ("generate", "--type", "formats:Answer", "--n", 4, "--seed", 3)


def test_draws_are_picked_from_particles_that_follow_masking(cli: Cli) -> None:
    result = cli(*CALL, "--particles", 10, "--resample", "ess", BAKERY)
    assert result.exit_code == 0
    assert result.stderr == ""
    header = json.loads(result.stdout.splitlines()[0])
    assert header["phi"] == "local"
    assert header["sampler"]["particles"] == 10
    assert header["sampler"]["resample"] == "ess"
    lines = records(result.stdout)
    assert len(lines) == 4
    assert {line["guarantee"] for line in lines} == {"weighted"}
    assert all(1 < line["ess"] <= 10 for line in lines)
    assert sum(line["weight"] for line in lines) == pytest.approx(1)
    assert cli(*CALL, "--particles", 10, "--resample", "ess", "--phi", "local", BAKERY).stdout == result.stdout


def test_a_file_is_gone_on_with_by_the_same_particles_only(cli: Cli, folder: Path) -> None:
    arguments = (*CALL, "--output", "draws.jsonl", BAKERY)
    assert cli(*arguments, "--particles", 10).exit_code == 0
    assert cli(*arguments, "--particles", 10).exit_code == 0
    other = cli(*arguments, "--particles", 20)
    assert other.exit_code != 0
    assert "sampler.particles (10 in the file, 20 in this command)" in " ".join(other.stderr.split())
    assert "another run" in " ".join(cli(*arguments, "--phi", "local").stderr.split())
    audit = cli("audit", "--from", "draws.jsonl")
    assert audit.exit_code != 0
    assert "holds draws of --particles" in " ".join(audit.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--resample", "ess"), "without --particles"),
        (("--particles", 1, "--resample", "ess"), "one particle cannot be replaced by another"),
        (("--particles", 5, "--resample", "often"), "expected one of never, ess"),
        (("--particles", 5, "--phi", "exact"), "give phi='local' or another proposal for the particles"),
        (("--particles", 5, "--phi", "auto"), "draws in a way of its own"),
    ],
)
def test_what_has_no_effect_is_refused(cli: Cli, arguments: tuple[object, ...], said: str) -> None:
    result = cli(*CALL, *arguments, BAKERY)
    assert result.exit_code != 0
    assert said in " ".join(result.stderr.split())
