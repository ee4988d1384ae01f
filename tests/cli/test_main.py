"""The start and the end of the command line, its bar, the process that ``serve`` becomes, and what commands refuse."""

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.console import Console

import outlines_phi.cli
from outlines_phi import BudgetError, OutlinesPhiError, Progress, UnsupportedError
from outlines_phi.cli import app, model_commands
from outlines_phi.cli import terminal as display
from outlines_phi.cli.app import FAILED, OPTIONS, REFUSED
from outlines_phi.cli.command_options import NO_DRAFTS
from outlines_phi.cli.terminal import bar
from tests.inner import DRAFTERS, ESTIMATORS, LEVELS, TOKENIZATIONS, Resample, bundled
from tests.refusals import refused as exits

from .conftest import BAKERY, LONG, Cli, refused

Run = Callable[..., tuple[int, str, str]]


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
    assert err.startswith("Error: the effort ran out [at 5 of 9]; raise it") and err.count("\n") == 1


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
    ended = exits(None, outlines_phi.cli.main, error=SystemExit)
    assert "needs rich" in str(ended.value.code) and "pip install 'outlines_phi[cli]'" in str(ended.value.code)


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the arguments of the process that it became; vLLM is taken to be here."""
    found: list[Any] = []

    def become(*arguments: Any) -> None:
        found.extend(arguments)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvp", become)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return found


def test_serve_prints_the_command_and_becomes_it(cli: Cli, became: list[Any]) -> None:
    result = cli(
        "serve", "some/model", "--port", "8123", "--", "--max-model-len", "512", "--chat-template", "{{ a b }}"
    )
    program, command = became
    assert result.exit_code == 0 and program == command[0] == sys.executable
    assert command[1:] == [
        *("-m", "vllm.entrypoints.openai.api_server", "--model", "some/model", "--port", "8123"),
        *OPTIONS,
        *("--max-model-len", "512", "--chat-template", "{{ a b }}"),
    ]
    said = " ".join(result.stderr.split())
    assert said.startswith(sys.executable) and said.endswith("--chat-template '{{ a b }}'")


@pytest.mark.parametrize(
    "given",
    [
        ("--enable-chunked-prefill",),
        ("--no-enable-chunked-prefill",),
        ("--logprobs-mode", "raw_logprobs"),
        ("--logprobs_mode=raw_logprobs",),
        ("--logits-processors", "a:B"),
    ],
    ids=str,
)
def test_an_option_that_would_undo_another_is_refused(given: tuple[str, ...], cli: Cli, became: list[Any]) -> None:
    result = cli("serve", "some/model", "--", *given)
    assert result.exit_code == 2 and "Leave --" in result.stderr and became == []


def test_without_vllm_serve_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = cli("serve", "some/model")
    assert result.exit_code == 2 and "Install vLLM 0.32" in " ".join(result.stderr.split())


def test_serve_needs_a_model(cli: Cli) -> None:
    assert cli("serve").exit_code == 2


HALF = Progress(draws=5, wanted=10, attempts=12, calls=3, tokens=40, seconds=1.0, log_z_bounds=((-2.0, -1.0),))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "Console", partial(Console, force_terminal=True, width=160))


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


ANSWER, DIGIT = "--type formats:Answer", "--regex [0-9]"
FILES = {
    "empty.txt": b"\n\n",
    "gap.txt": b"one\n\ntwo\n",
    "latin.txt": "café\n".encode("latin-1"),
    "broken.jsonl": b'{"prompt": "x"}\n{"prompt": \n',
    "wrong.jsonl": b'{"text": "x"}\n',
    "chat.jsonl": b'{"prompt": [{"role": "user"}]}\n',
    "broken.json": b'{"type": "object", }',
    "wrong.json": b'{"type": "nonsense"}',
    "raises.py": b"1 / 0\n",
    "leaves.py": b"import sys\n\nsys.exit(3)\n",
    "stops.py": b"raise GeneratorExit('of its own')\n",
    "digits.jsonl": f'{{"prompt": "x"}}\n{{"prompt": "y", "id": {"9" * 10_000}}}\n'.encode(),
}
REFUSALS: dict[str, list[tuple[str, str]]] = {
    f"generate {DIGIT}": [
        ("", "no prompts"),
        ("--file empty.txt", "--file empty.txt is empty"),
        ("--file gap.txt", "Line 2 of gap.txt is empty"),
        ("--file none.txt", "--file none.txt cannot be read"),
        ("--file latin.txt", "is not UTF-8"),
        ("--file broken.jsonl", "Line 2 of broken.jsonl cannot be read as JSON"),
        ("--file wrong.jsonl", "Line 1 of wrong.jsonl has no prompt"),
        ("--file chat.jsonl", "Line 1 of chat.jsonl has no prompt"),
        ("--file gap.txt more", "Give one of the two"),
        ("--file digits.jsonl", "Line 2 of digits.jsonl cannot be read as JSON, Exceeds the limit"),
        ("--type builtins:int x", "--type and --regex were given"),
        ("--grammar json x", "--regex and --grammar were given"),
        ("--phi rollout x", "give 'learned'"),
        ("--phi no x", "expected one of auto, exact"),
        ("--temperature nan x", "temperature=nan"),
        ("--temperature 0 x", "temperature=0.0"),
        ("--top-p 2 x", "top_p=2.0"),
        ("--seed -1 x", "seed=-1"),
        ("--model ./nothere x", "there is no such folder"),
        ("--model . x", "--model . cannot be loaded"),
        ("--device nothing x", "--device nothing cannot be used"),
        ("--output no/o.jsonl x", "there is no folder no"),
        ("--file formats.py --output ./formats.py", "the file of --file, which this command reads"),
        ("--n 99999999999 x", "draws of a prompt at most fit into"),
        ("--overwrite x", "--overwrite was given without --output"),
        ("--output . x", "--output . is not a file"),
        ("--output /dev/null x", "--output /dev/null is not a file"),
        ("--tokenization some x", "--tokenization some was given; expected one of any, canonical"),
        ("--tolerance 0.1 --phi local x", "given with --phi local"),
        ("--tolerance 0.1 --particles 5 x", "was given with phi='exact'"),
        ("--confidence 0.9 x", "expected no confidence of exact draws"),
        ("--tolerance 2 x", "expected a number in"),
        ("--top 3 x", "Give tokens=True beside top="),
        ("--tokens --top 0 x", "top=0 was given"),
        ("--tolerance 0.1 --confidence 95 x", "between 0 and 1"),
        ("--resample ess x", "without --particles"),
        ("--particles 1 --resample ess x", "one particle cannot be replaced by another"),
        ("--particles 5 --resample often x", "expected one of never, ess"),
        ("--particles 5 --phi exact x", "give phi='local' or another proposal for the particles"),
        ("--particles 5 --phi auto x", "draws in a way of its own"),
        ("--draft force x", "did you mean 'forced'?"),
        ("--draft-length 4 x", "--draft-length 4 was given without --draft"),
        ("--draft forced --particles 5 x", "A draft was given with sampler=SMC(...)"),
        ("--draft none --draft forced x", "Leave --draft none out"),
        ("--draft none --draft-length 4 x", "Leave draft_length out"),
        ("--ban-level exact x", "--ban-level was given without banned phrases"),
        ("--ends open --tokenization canonical x", "leave ends='open' out"),
    ],
    "generate": [
        ("x", "No output type"),
        ("--grammar jsn x", "did you mean 'json'"),
        ("--grammar none.lark x", "--grammar none.lark cannot be read"),
        ("--regex [0-9 x", "^"),
        ("--regex [0-9]{20} --max-new-tokens 2 x", "max_new_tokens=2 is too small"),
        ("--schema broken.json x", "^"),
        ("--schema none.json x", "--schema none.json cannot be read"),
        ("--schema wrong.json x", "at #/type of the JSON schema. It holds 'nonsense'"),
        ("--type formats x", "Give module:Class"),
        ("--type formats.py:Answer. x", "Give module:Class"),
        ("--type stops:X x", "--type stops:X: the module stops cannot be imported: GeneratorExit: of its own"),
        ("--type leaves:X x", "--type leaves:X: the module leaves cannot be imported: SystemExit: 3"),
        ("--type nothere:X x", "the module nothere cannot be imported: ModuleNotFoundError: No module named 'nothere'"),
        ("--type raises:Answer x", "ZeroDivisionError"),
        ("--type formats:Charcter x", "Is Character"),
        ("--type formats:pattern x", "outlines.types.regex"),
        ("--ban-ignore-case x", "--ban-ignore-case was given without banned phrases"),
        ("--no-ban-across-prompt x", "--no-ban-across-prompt was given without banned phrases"),
        ("--ban-file nix.txt x", "--ban-file nix.txt cannot be read"),
        ("--ban a --ban-level best x", "--ban-level best was given; expected one of mask"),
        ("--ban a --ban-level exact --phi local x", "stands for ExactPhi("),
        ("--ban a --ban-level weighted --particles 4 x", "--particles"),
        ("--ban yes --ban no --regex yes|no x", "leave nothing of the output type"),
    ],
    f"audit {ANSWER}": [
        ("", "no prompts"),
        ("--output a.txt x", "Give one of the suffixes"),
        ("--output no/a.md x", "there is no folder no"),
        ("--temperature nan x", "temperature=nan"),
        ("--confidence 2 x", "confidence=2.0"),
        ("--tolerance 0 x", "tolerance=0.0"),
        ("--n 1 x", "--n"),
        ("--max-new-tokens 1 x", "max_new_tokens=1 is too small"),
        ("--model ./none x", "there is no such folder"),
    ],
    "audit": [
        ("x", "No output type"),
        ("--from none.jsonl", "none.jsonl cannot be read"),
        ("--from o.jsonl x", "prompts cannot be given together with --from"),
        ("--from o.jsonl --output a.md", "--output cannot be given together with --from"),
        ("--from o.jsonl --n 200 --temperature 0.5", "--temperature, --n cannot be given together"),
        ("--from formats.py", "was not written by outlines-phi generate"),
    ],
    "probabilities": [
        ("--regex a --tolerance 2 x", "tolerance=2.0 was given"),
        ("--regex a --seconds -1 x", "seconds=-1.0"),
        ("--regex a --temperature 0 x", "temperature=0.0 was given"),
        ("--ban a x", "No output type was given"),
        ("--regex a --output no/p.jsonl x", "there is no folder no"),
        ("--regex ( x", "^"),
        ("--type formats:Character --ends open x", "Give a choice, such as Literal"),
        ("--type formats:Answer --open-at x x", "Give ends='open'"),
    ],
    "fit": [("x", "Give at least one of --type")],
    "demo": [("--n 3", "--n"), ("--seed x", "--seed"), ("--out formats.py", "--out")],
    "nothing": [("", "nothing")],
}
ROWS = [(f"{command} {more}", said) for command, rows in REFUSALS.items() for more, said in rows]


@pytest.fixture
def kept(folder: Path) -> Any:
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    names = lambda: sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")  # noqa: E731
    before = names()
    yield
    assert names() == before


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(("sent", "said"), ROWS, ids=[sent[:60] for sent, _ in ROWS])
def test_bad_input_is_one_clear_line(sent: str, said: str, cli: Cli) -> None:
    result = cli(sent)
    refused(result, said)
    assert "Traceback" not in result.stderr and result.stdout == ""
    if not result.stderr.startswith("Usage: "):
        assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == (4 if said == "^" else 1)


@pytest.mark.usefixtures("kept")
def test_arguments_with_blanks(cli: Cli) -> None:
    refused(cli("generate --ban", "", BAKERY), "a banned phrase is empty")
    refused(cli(f"audit {ANSWER}", BAKERY, LONG), "Prompt 1 (counted from 0): The prompt has", code=1)
