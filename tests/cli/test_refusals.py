"""Refusals of the commands: one clear line before any work, with a code and nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import BAKERY, LONG, Cli, refused

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
REFUSED: dict[str, list[tuple[str, str]]] = {
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
ROWS = [(f"{command} {more}", said) for command, rows in REFUSED.items() for more, said in rows]


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
