"""The commands of the workbench are those that the runtime names, and pages use them as they are."""

import re
from pathlib import Path

import outlines_phi
from outlines_phi.cli.app import WORKBENCH, command
from tests.cli.conftest import Cli
from tests.test_citations import LINKED, wrong_uses

ROOT = Path(__file__).parents[3]


def test_help_says_what_the_commands_say_of_themselves(cli: Cli) -> None:
    assert {name: str(command(name).help).splitlines()[0] for name in WORKBENCH} == WORKBENCH
    for name in WORKBENCH:
        asked = cli(name, "-h")
        assert asked.exit_code == 0 and asked.stdout == cli(name, "--help").stdout and "Usage: " in asked.stdout


def test_pages_use_the_options_that_are_there() -> None:
    pages = [*LINKED, ROOT / "proofs" / "README.md", ROOT / "workbench" / "README.md"]
    assert [wrong for page in pages for wrong in wrong_uses(page, WORKBENCH)] == []


def test_the_runtime_is_pinned_to_its_own_version() -> None:
    text = (ROOT / "workbench" / "pyproject.toml").read_text(encoding="utf-8")
    pins = re.findall(r'^version = "(.*)"$|"outlines_phi\[cli\]==(.*)"', text, re.MULTILINE)
    assert ["".join(pin) for pin in pins] == [outlines_phi.__version__] * 2
