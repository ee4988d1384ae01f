"""The start and the end of the command line."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import get_args

import pytest

import outlines_phi.cli
from outlines_phi.cli import app
from outlines_phi.cli.app import FAILED, REFUSED
from outlines_phi.cli.command_options import NO_DRAFTS
from outlines_phi.errors import BudgetError, OutlinesPhiError, UnsupportedError
from outlines_phi.guides.phrases.banned import LEVELS
from outlines_phi.lm import bundled
from outlines_phi.plugin.call import ESTIMATORS
from outlines_phi.plugin.choices import TOKENIZATIONS
from outlines_phi.plugin.drafts import DRAFTERS
from outlines_phi.sampling.ancestral import Resample

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["outlines-phi", *arguments])
        with pytest.raises(SystemExit) as ended:
            outlines_phi.cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"outlines-phi {outlines_phi.__version__}\n", "")


COMMANDS = ("demo", "generate", "audit", "probabilities", "serve")


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_h_is_help(command: tuple[str, ...], run: Run) -> None:
    code, out, err = run(*command, "-h")
    assert code == 0 and out == run(*command, "--help")[1] and "Usage: " in out and err == ""
    assert command or all(name in out for name in COMMANDS)


CHOICES: dict[str, Sequence[str]] = {
    "--phi": list(ESTIMATORS),
    "--draft": [*DRAFTERS, NO_DRAFTS],
    "--resample": get_args(Resample),
    "--tokenization": TOKENIZATIONS,
    "--ban-level": [level for level in LEVELS if level],
}


@pytest.mark.parametrize(("option", "names"), CHOICES.items(), ids=list(CHOICES))
def test_choices_are_shown_and_checked(option: str, names: Sequence[str], run: Run) -> None:
    assert f"{option} <{'|'.join(names)}>" in " ".join(run("generate", "-h")[1].split())
    near = f"{names[0]}s"
    code, out, err = run("generate", "--regex", "a", option, near, "prompt")
    said = " ".join(err.split())
    assert (code, out) == (2, "") and said.startswith(f"Error: {option} {near} was given (did you mean '{names[0]}'?)")
    assert said.endswith(f"expected one of {', '.join(names)}.")


@pytest.mark.parametrize(("kind", "expected"), [(BudgetError, FAILED), (UnsupportedError, REFUSED)])
def test_an_error_of_the_package_is_one_line(
    kind: type[OutlinesPhiError], expected: int, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail() -> None:
        raise kind("the effort\nran out [at 5 of 9]; " + "raise it " * 30)

    monkeypatch.setattr(bundled, "load", fail)
    code, out, err = run("demo", "--out", str(tmp_path / "demo"))
    assert code == expected
    assert out == ""
    assert err.startswith("Error: the effort ran out [at 5 of 9]; raise it")
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [("verify", "json"), ("inspect", "-h")])
def test_without_the_workbench_its_commands_say_how_to_install_it(
    arguments: tuple[str, ...], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "entry_points", lambda **_: ())
    code, out, err = run(*arguments)
    assert (code, out) == (REFUSED, "")
    line = f"pip install outlines-phi-workbench=={outlines_phi.__version__}"
    assert err.startswith(f"Error: Install the workbench: {line}. outlines-phi {arguments[0]} is a command of it")


@pytest.fixture
def without_rich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "rich" else find(name))
    importlib.reload(outlines_phi.cli)
    yield
    monkeypatch.undo()
    importlib.reload(outlines_phi.cli)


@pytest.mark.usefixtures("without_rich")
def test_a_missing_extra_is_named_with_the_line_that_installs_it() -> None:
    with pytest.raises(SystemExit) as ended:
        outlines_phi.cli.main()
    assert "needs rich" in str(ended.value.code)
    assert "pip install 'outlines_phi[cli]'" in str(ended.value.code)
