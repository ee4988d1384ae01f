"""``outlines-phi inspect``: the pages of an output type."""

import re
from html import unescape
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, refused

LIST = 'start: "[" [NUMBER ("," NUMBER)*] "]"\nNUMBER: /[0-9]+/\n%ignore /[ ]+/\n'


CASES: dict[str, tuple[list[object], list[str]]] = {
    "grammar": (
        ["list.lark", "--text", "[1, 2]", "--text", "[7", "--depth", 2],
        ["S9 Lark says the same terminals EXHAUSTIVE", "Step 2 of 2"],
    ),
    "schema": (["--schema", "s.json", "--text", '"c', "--ban", "ab"], ["language: state"]),
    "guidance": (["--type", "grammars:nested", "--text", "((1)"], ["to the end 2 tokens"]),
}


@pytest.mark.parametrize("name", CASES)
def test_pages_are_built(cli: Cli, folder: Path, name: str) -> None:
    (folder / "list.lark").write_text(LIST, encoding="utf-8")
    (folder / "s.json").write_text('{"enum": ["ab", "cd"]}', encoding="utf-8")
    nested = '%llguidance {}\nstart: "(" start ")" | NUMBER\nNUMBER: /[0-9]+/'
    (folder / "grammars.py").write_text(f"import outlines_phi\nnested = outlines_phi.from_guidance({nested!r})\n")
    arguments, told = CASES[name]
    result = cli("inspect", *arguments, "--output-dir", "site")
    assert result.exit_code == 0, result.stderr
    assert "Page: site/index.html (" in result.stderr and result.stdout == ""
    pages = (page.read_text(encoding="utf-8") for page in sorted((folder / "site").glob("*.html")))
    said = " ".join(unescape(re.sub("<[^>]+>", " ", "".join(pages))).split())
    assert [text for text in told if text not in said] == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--regex", "a", "--output-dir", "formats.py"], "Give a folder, by --output-dir. formats.py is a file."),
        (["--regex", "a", "--output-dir", "."], "Give an empty folder, or a new one, by --output-dir. ."),
        (["--regex", "a", "--text", "\ud800"], "Give characters of Unicode"),
        (["none.lark"], "none.lark cannot be read"),
        (["json", "--regex", "a"], "Give exactly one of --type"),
        ([], "No output type was given."),
        (["json", "--tokenizer", "./none"], "--tokenizer ./none: there is no such folder"),
    ],
)
def test_what_cannot_be_shown_is_refused(cli: Cli, folder: Path, arguments: list[str], told: str) -> None:
    refused(cli("inspect", *arguments), told)
    assert not (folder / "outlines-phi-inspect").exists()
