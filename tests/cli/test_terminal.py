"""The bar of long commands: seen on a terminal alone, and never with ``--quiet``."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from outlines_phi.cli import model_commands
from outlines_phi.cli import terminal as module
from outlines_phi.cli.terminal import bar
from outlines_phi.lm.watch import Progress

from .conftest import BAKERY, Cli

HALF = Progress(draws=5, wanted=10, attempts=12, calls=3, tokens=40, seconds=1.0, log_z_bounds=((-2.0, -1.0),))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Console", partial(Console, force_terminal=True, width=160))


def test_nobody_is_told_where_nobody_sees_it(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("draws", 10) as hidden:
        hidden.move(5)
        assert not hidden.shown and hidden.told(completed=True) is False
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("terminal")
def test_a_bar_is_moved_by_draws_or_from_outside(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("draws", 10) as shown:
        tell = shown.told(completed=True)
        assert callable(tell)
        tell(HALF)
        shown.bars.refresh()
        first = capsys.readouterr()
        beside = shown.told(completed=False)
        assert callable(beside)
        shown.move(7, description="prompts")
        beside(HALF)
        shown.bars.refresh()
        second = capsys.readouterr()
    assert "5/10" in first.err and "12 attempts, 3 calls, 40 tokens, log Phi in [-2, -1]" in first.err
    assert "7/10" in second.err and "5 of 10 draws, 12 attempts" in second.err and "prompts" in second.err
    assert first.out == second.out == ""


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("command", ["generate", "audit"])
def test_long_commands_have_one(command: str, quiet: bool, cli: Cli, folder: Path) -> None:
    asked: dict[str, list[Any]] = {
        "generate": ["--regex", "yes|no", BAKERY, BAKERY, "--phi", "exact", "--n", 5, "--output", "o.jsonl"],
        "audit": ["--regex", "yes|no", BAKERY, "--n", 20],
    }
    result = cli(command, *asked[command], "--seed", 1, *(["--quiet"] if quiet else []))
    assert result.exit_code == (3 if command == "audit" else 0), result.stderr
    assert ("━" in result.stderr) is not quiet
    if command == "generate":
        assert ("of 10 draws" in result.stderr) is not quiet
        lines = [json.loads(line) for line in (folder / "o.jsonl").read_text(encoding="utf-8").splitlines()]
        assert [line["record"] for line in lines] == ["run", *["draw"] * 10]


def test_ctrl_c_ends_a_command_with_a_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model_commands.generator, "audit", interrupted)
    result = cli("audit", "--regex", "yes|no", BAKERY)
    assert result.exit_code == 130
    assert result.stderr == "Interrupted: before there was a result.\n" and not result.stdout
