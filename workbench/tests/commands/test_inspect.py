"""``outlines-phi inspect``: the page of an output type."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from outlines_phi_workbench.inspection.loopback_server import LoopbackServer

from .conftest import Cli

LIST = 'start: "[" [NUMBER ("," NUMBER)*] "]"\nNUMBER: /[0-9]+/\n%ignore /[ ]+/\n'


def data(folder: Path, key: str) -> Any:
    content = (folder / "data" / f"{key}.js").read_text(encoding="utf-8")
    return json.loads(content.removeprefix(f'inspection.receive("{key}",').removesuffix(");\n"))


def test_a_grammar_is_built_with_its_texts_and_verdicts(cli: Cli, folder: Path) -> None:
    (folder / "list.lark").write_text(LIST, encoding="utf-8")
    result = cli(
        "inspect", "build", "list.lark", "--output-dir", "site", "--text", "[1, 2]", "--text", "[7", "--depth", 2
    )
    assert result.exit_code == 0, result.stderr
    assert "Page: site/index.html (" in result.stderr and result.stdout == ""
    site = data(folder / "site", "site")
    assert site["name"] == "list.lark" and site["texts"] == ["[1, 2]", "[7"] and site["prompt"] is None
    checks = {check["id"]: check["verdict"] for check in site["verdicts"]["checks"]}
    assert checks["S7"] == "EXHAUSTIVE" or checks["S7"] == "BOUNDED"
    assert site["verdicts"]["met"] and data(folder / "site", "walk-0")["steps"][-1]["may_end"]
    assert data(folder / "site", "walk-1")["masses"] is None


def test_a_model_is_asked_after_a_prompt(cli: Cli, folder: Path) -> None:
    result = cli(
        "inspect", "build", "--regex", "yes|no", "--output", "site", "--text", "no", "--prompt", "Open? ", "--effort", 20,
        "--max-new-tokens", 5, "--temperature", 0.9,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    walk, site = data(folder / "site", "walk-0"), data(folder / "site", "site")
    assert site["prompt"] == "Open? " and site["budget"] == 5 and site["kind"] == "finite automaton"
    first = walk["masses"][0]
    assert 0 < first["live"] < 1 and 0 <= first["phi"][0] <= first["phi"][1] <= first["live"] + 1e-6
    assert walk["steps"][0]["left"] == 5


def test_a_schema_and_bans(cli: Cli, folder: Path) -> None:
    (folder / "schema.json").write_text('{"enum": ["ab", "cd"]}', encoding="utf-8")
    result = cli("inspect", "build", "--schema", "schema.json", "--output-dir", "site", "--text", '"c', "--ban", "ab")
    assert result.exit_code == 0, result.stderr
    assert data(folder / "site", "site")["banned"] == 1
    first = data(folder / "site", "walk-0")["steps"][1]
    assert "ban" in {group["kind"] for group in first["masked"]}


def test_a_server_is_started_on_a_free_port(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[LoopbackServer] = []
    monkeypatch.setattr(LoopbackServer, "serve_forever", lambda self: served.append(self))
    result = cli("inspect", "serve", "--type", "formats:Answer", "--text", "yes")
    assert result.exit_code == 0, result.stderr
    (server,) = served
    assert result.stdout == f"http://127.0.0.1:{server.server_port}/?token={server.token}\n" and server.texts == ["yes"]


def test_ctrl_c_ends_a_server(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(server: LoopbackServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LoopbackServer, "serve_forever", interrupted)
    result = cli("inspect", "serve", "--regex", "a")
    assert result.exit_code == 0 and "Ctrl-C ends it." in result.stderr and "Interrupted" not in result.stderr


def test_a_grammar_of_guidance_is_read_byte_by_byte(cli: Cli, folder: Path) -> None:
    (folder / "grammars.py").write_text(
        "from outlines_phi import from_guidance\n"
        'nested = from_guidance(\'%llguidance {}\\nstart: "(" start ")" | NUMBER\\nNUMBER: /[0-9]+/\')\n',
        encoding="utf-8",
    )
    result = cli("inspect", "build", "--type", "grammars:nested", "--output-dir", "site", "--text", "((1)")
    assert result.exit_code == 0, result.stderr
    assert data(folder / "site", "walk-0")["steps"][-1]["distance"] == 2
    assert cli("inspect", "build", "--type", "grammars:nested", "--output-dir", "site", "--text", "(x").exit_code == 2


def test_a_port_that_is_taken(cli: Cli, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = cli("inspect", "serve", "--regex", "a", "--port", port)
    assert result.exit_code == 2
    assert f"Give another --port, or leave it out for a free one. Port {port} cannot be had" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["build", "--regex", "a"], "Give --output-dir FOLDER. build writes the page there, and none was given."),
        (["build", "--regex", "a", "--output-dir", "formats.py"], "Give a folder, by --output-dir. formats.py is a file."),
        (["build", "--regex", "a", "--output-dir", "."], "Give an empty folder, or a new one, by --output-dir. ."),
        (["build", "--regex", "a", "--output-dir", "site", "--port", "80"], "Leave --port out, or serve the page."),
        (["build", "--regex", "a", "--output-dir", "site", "--text", "ab"], "--text 'ab' leaves it in the token after"),
        (["build", "wrong.lark", "--output-dir", "site"], "wrong.lark"),
        (["build", "none.lark", "--output-dir", "site"], "none.lark cannot be read"),
        (["serve", "--regex", "a", "--output-dir", "site"], "Leave --output-dir out, or build the page."),
        (["serve", "json", "--regex", "a"], "Give exactly one of --type"),
        (["serve"], "No output type was given."),
        (["show", "json"], "inspect show was given"),
        (["serve", "json", "--temperature", "2"], "--temperature was given without --prompt."),
        (["serve", "json", "--model", "other", "--effort", "3"], "--effort, --model was given without --prompt."),
        (["serve", "json", "--prompt", "x", "--tokenizer", "bundled"], "Leave --tokenizer out."),
        (["serve", "json", "--tokenizer", "./none"], "--tokenizer ./none: there is no such folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_refused(cli: Cli, folder: Path, arguments: list[str], said: str) -> None:
    (folder / "wrong.lark").write_text("start: x y", encoding="utf-8")
    result = cli("inspect", *arguments)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.split())
    assert not (folder / "site").exists()


def test_the_help_names_both_ways(cli: Cli) -> None:
    shown = cli("inspect", "--help").stdout
    assert "<serve|build>" in shown and "--output-dir" in shown and "--prompt" in shown
