"""The command line as a test calls it: in a folder with output types."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from outlines_phi.cli.app import app
from outlines_phi.lm import bundled

TYPES = """
import datetime
import enum
from typing import Literal

from outlines.types import JsonSchema
from outlines_phi import Thinking
from pydantic import BaseModel, field_validator

Answer = Literal["yes", "no"]
Listed, Spaced = JsonSchema('{"enum": ["yes"]}'), JsonSchema('{"enum": ["yes"]}', whitespace_pattern=" ")
Thought = Thinking(Answer, end=". ", max_tokens=4)
Day = datetime.date
pattern = "[0-9]+"


class Size(enum.Enum):
    small = "small"
    large = "large"


class Order(BaseModel):
    size: Literal["small", "large"]
    cups: int

    @field_validator("cups")
    @classmethod
    def check(cls, cups: int) -> int:
        if cups % 1000:
            raise ValueError("cups come in thousands")
        return cups


class Character(BaseModel):
    race: Literal["human", "elf", "dwarf", "halfling"]
    role: Literal["wizard", "rogue", "healer", "ranger captain"]
    alive: bool


class Outer:
    Inner = Literal["a", "b"]


def book(room: Literal["sea", "garden"], nights: Literal[1, 2]): ...
"""

BAKERY = "Question: is the bakery open on Sunday? Answer: "
MUSEUM = "Question: is the museum open on Monday? Answer: "
ARIA = "New character: Aria. JSON: "
LONG = "word " * 600  # Longer than the bundled model reads

Cli = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the module ``formats``."""
    (tmp_path / "formats.py").write_text(TYPES, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in ("formats", "schemas"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


@pytest.fixture
def cli(folder: Path) -> Cli:
    """Call a command, the first words of which stand in one text; returns its exit code, standard output and messages."""

    def call(words: str, *arguments: object, stdin: str | None = None) -> Any:
        return CliRunner().invoke(app, [*words.split(), *map(str, arguments)], input=stdin, env={"COLUMNS": "100"})

    return call


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model with other weights and a chat template, in a folder of its own."""
    path = tmp_path_factory.mktemp("model")
    model, tokenizer = bundled.load()
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1.01)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def refused(result: Any, said: str, code: int = 2) -> None:
    """Fail unless a command has ended with a code and a message that holds some words."""
    assert result.exit_code == code and said in " ".join(result.stderr.split()), result.stderr


def write(path: Path, prompts: list[Any]) -> Path:
    """Write a file of prompts."""
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")
    return path


def saved(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file, the first line left out."""
    return records(path.read_text(encoding="utf-8"))


def records(text: str) -> list[dict[str, Any]]:
    """Return the records of the standard output, the first line left out."""
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines[0]["record"] == "run"
    return lines[1:]
