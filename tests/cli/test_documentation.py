"""The commands of ``docs/command-line.md`` run, in order, and print what the page says, up to digits."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from outlines_phi.cli.app import OWN, command

from .conftest import Cli

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e-?\d+)?")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def normal(line: str) -> str:
    """A line without its digits and spaces, which may differ from machine to machine."""
    return "".join(NUMBER.sub("#", line).split())


def test_the_page_is_what_the_commands_print(cli: Cli, folder: Path) -> None:
    (folder / "schemas.py").write_text(blocks("python")[0], encoding="utf-8")
    (folder / "prompts.jsonl").write_text(blocks("json")[0], encoding="utf-8")
    seen = []
    for session in "".join(blocks("console")).split("$ outlines-phi ")[1:]:
        command, *said = session.splitlines()
        command, _, piped = command.partition(" | ")
        result = cli(*shlex.split(command))
        refused, biased = said[0].startswith("Error:"), "Plain masking is biased" in "".join(said)
        assert result.exit_code == (2 if refused else 3 if biased else 0), result.stderr
        printed = {normal(line) for line in (result.stdout + result.stderr).splitlines()}
        if piped:
            printed = {normal(text) for text in re.findall(r'"text": "(\w+)"', result.stdout)}
        assert {normal(line) for line in said} - {"", "..."} <= printed, command
        seen.append(command.split()[0])
    assert seen == ["generate", "generate", "generate", "audit", "generate", "audit", "probabilities", "fit"]


def test_the_page_names_every_option() -> None:
    for name in ("generate", "audit", "probabilities", "fit"):
        options = {option for parameter in command(name).params for option in parameter.opts if option.startswith("--")}
        assert {option for option in options - {"--help"} if f"`{option}" not in PAGE} == set(), name


def test_help_says_what_the_commands_say_of_themselves() -> None:
    assert {name: str(command(name).help).splitlines()[0] for name in OWN} == OWN
