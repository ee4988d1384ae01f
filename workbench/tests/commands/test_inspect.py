"""``outlines-phi inspect``: the pages of an output type."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from outlines_phi_workbench.inspection.loopback_server import LoopbackServer

from .conftest import Cli

LIST = 'start: "[" [NUMBER ("," NUMBER)*] "]"\nNUMBER: /[0-9]+/\n%ignore /[ ]+/\n'


CASES: dict[str, tuple[list[object], list[str]]] = {
    "grammar": (
        ["list.lark", "--text", "[1, 2]", "--text", "[7", "--depth", 2],
        ["S9 Lark says the same terminals EXHAUSTIVE", "Step 2 of 2"],
    ),
    "schema": (["--schema", "s.json", "--text", '"c', "--ban", "ab"], ["language: state"]),
    "guidance": (["--type", "grammars:nested", "--text", "((1)"], ["to the end 2 tokens"]),
    "model": (
        [
            "--regex",
            "no?",
            "--text",
            "n",
            "--prompt",
            "Open? ",
            "--effort",
            20,
            "--max-new-tokens",
            5,
            "--temperature",
            0.9,
        ],
        ['at most 5 in a text, after "Open? "', "live mass S 0."],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_pages_are_built(cli: Cli, folder: Path, name: str) -> None:
    (folder / "list.lark").write_text(LIST, encoding="utf-8")
    (folder / "s.json").write_text('{"enum": ["ab", "cd"]}', encoding="utf-8")
    nested = '%llguidance {}\nstart: "(" start ")" | NUMBER\nNUMBER: /[0-9]+/'
    (folder / "grammars.py").write_text(f"import outlines_phi\nnested = outlines_phi.from_guidance({nested!r})\n")
    arguments, told = CASES[name]
    result = cli("inspect", "build", *arguments, "--output-dir", "site")
    assert result.exit_code == 0, result.stderr
    assert "Page: site/index.html (" in result.stderr and result.stdout == ""
    pages = (page.read_text(encoding="utf-8") for page in sorted((folder / "site").glob("*.html")))
    said = " ".join(unescape(re.sub("<[^>]+>", " ", "".join(pages))).split())
    assert [text for text in told if text not in said] == []


def test_a_server_says_where_it_is_until_ctrl_c(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[LoopbackServer] = []

    def interrupted(server: LoopbackServer) -> None:
        served.append(server)
        raise KeyboardInterrupt

    monkeypatch.setattr(LoopbackServer, "serve_forever", interrupted)
    result = cli("inspect", "serve", "--type", "formats:Answer", "--text", "yes")
    assert result.exit_code == 0 and "Ctrl-C ends it." in result.stderr and "Interrupted" not in result.stderr
    assert result.stdout == f"{served[0].address}\n" and served[0].inspection.texts == ["yes"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["build", "--regex", "a"], "Give --output-dir FOLDER. build writes the page there, and none was given."),
        (["build", "--regex", "a", "--output-dir", "formats.py"], "Give a folder, by --output-dir. formats.py is a file."),
        (["build", "--regex", "a", "--output-dir", "."], "Give an empty folder, or a new one, by --output-dir. ."),
        (["build", "--regex", "a", "--output-dir", "site", "--port", "80"], "Leave --port out, or serve the page."),
        (["build", "--regex", "a", "--output-dir", "site", "--text", "ab"], "--text 'ab' leaves it in the token after"),
        (["build", "none.lark", "--output-dir", "site"], "none.lark cannot be read"),
        (["serve", "--regex", "a", "--output-dir", "site"], "Leave --output-dir out, or build the page."),
        (["serve", "json", "--regex", "a"], "Give exactly one of --type"),
        (["serve"], "No output type was given."),
        (["show", "json"], "inspect show was given"),
        (["serve", "json", "--model", "other", "--effort", "3"], "--effort, --model was given without --prompt."),
        (["serve", "json", "--prompt", "x", "--tokenizer", "bundled"], "Leave --tokenizer out."),
        (["serve", "json", "--tokenizer", "./none"], "--tokenizer ./none: there is no such folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_refused(cli: Cli, folder: Path, arguments: list[str], told: str) -> None:
    result = cli("inspect", *arguments)
    assert result.exit_code == 2 and told in " ".join(result.stderr.split()), result.output
    assert not (folder / "site").exists()
