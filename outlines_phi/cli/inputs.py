"""The prompts and the output type of a command: from its arguments, files or a pipe."""

from __future__ import annotations

import difflib
import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outlines.inputs import Chat
from outlines.types import Regex

from ..errors import GrammarError, UnsupportedError
from ..guides.grammar.grammar import Grammar
from ..guides.grammar.notation.reader import NAMES, grammar_text, read_grammar
from ..plugin.types.output_types import to_json

Prompt = str | list[dict[str, Any]]  # A text, or the messages of a chat: what a line of JSON can hold
PIPE = "-"  # The argument that stands for the standard input
JSONL = (".jsonl", ".ndjson")  # Suffixes of files with one JSON object per line

EXPECTED = (
    "Give exactly one of --type module:Class, --schema FILE.json, --regex PATTERN and --grammar FILE (.lark or .gbnf)."
)

FREE = "free text"  # How a command names what has no output type


def read_prompts(arguments: Sequence[str], file: Path | None) -> list[Prompt]:
    """Return the prompts of a command, at least one: its arguments (``-`` alone is the standard input, a prompt a line), or a file.

    A file has a prompt a line; where the suffix is one of :data:`JSONL`, an object a line whose ``prompt`` is a text or a list of
    chat messages.
    """
    if arguments and file is not None:
        raise UnsupportedError(
            "Give one of the two (-- ends the options, if a prompt begins with a dash): prompts were given as arguments and by "
            f"--file {file}."
        )
    if file is None and list(arguments) != [PIPE]:
        prompts, source = list[Prompt](arguments), "none were given"
    elif file is None or str(file) == PIPE:
        source = "the standard input"
        prompts = _prompts(_decoded(sys.stdin.buffer.read(), source), source, as_json=False)
    else:
        text = read_text(file, f"--file {file}", "a file of prompts")
        prompts, source = _prompts(text, str(file), as_json=file.suffix in JSONL), f"--file {file}"
    if not prompts:
        raise UnsupportedError(
            "Give prompts as arguments, by --file FILE (one per line; .jsonl: objects with a prompt), or through a pipe with - as "
            f"the only argument. There are no prompts: {source}{' is empty' * (source != 'none were given')}."
        )
    return prompts


def model_input(prompt: Prompt) -> str | Chat:
    """Return a prompt as Outlines takes it."""
    return prompt if isinstance(prompt, str) else Chat([dict(message) for message in prompt])


def _prompts(text: str, source: str, *, as_json: bool) -> list[Prompt]:
    """Return the prompts of the lines of a text; empty ones at its end are not meant."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    read = _from_json if as_json else _from_text
    return [read(line, f"Line {number} of {source}") for number, line in enumerate(lines, 1)]


def _from_text(line: str, place: str) -> Prompt:
    if not line.strip():
        raise UnsupportedError(
            f'Remove the line, or write prompts as JSONL ({{"prompt": ""}}) where an empty one is meant: {place} is empty.'
        )
    return line


def _from_json(line: str, place: str) -> Prompt:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # Python reads no integer of thousands of digits
        raise UnsupportedError(
            f'Write an object such as {{"prompt": "..."}}: {place} cannot be read as JSON, {error}.'
        ) from error
    match record:
        case {"prompt": str(text)}:
            return text
        case {"prompt": [_, *_] as messages} if all(map(_is_message, messages)):
            return messages
    raise UnsupportedError(
        'Write {"prompt": "..."}, or a chat: {"prompt": [{"role": "user", "content": "..."}]}. '
        f"{place} has no prompt that can be read: {line!r:.80}."
    )


def _is_message(message: Any) -> bool:
    match message:
        case {"role": str(), "content": str()}:
            return True
    return False


def read_text(path: Path, given: str, expected: str) -> str:
    """Return the text of a file; ``given`` is what messages call it, and ``expected`` what was to be given."""
    try:
        return _decoded(path.read_bytes(), given)
    except OSError as error:
        raise UnsupportedError(f"Give {expected}: {given} cannot be read, {error.strerror}.") from error


def _decoded(content: bytes, given: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnsupportedError(f"Save it as UTF-8: {given} is not UTF-8, {error.reason} in line {line}.") from error


def read_output_type(
    named: str | None, schema: Path | None, regex: str | None, grammar: str | None = None, *, free: bool = False
) -> tuple[str, Any]:
    """Return how the command names its output type, and the type; ``None`` where there is none and there may be (``free``).

    The type is whatever Outlines takes as ``module:Class`` (the working folder is on the path), a file with a JSON schema, a
    regular expression, a file with a grammar, in Lark's dialect or GBNF, or the name of one that comes with the package.
    """
    given = {"--type": named, "--schema": schema, "--regex": regex, "--grammar": grammar}
    chosen = [f"{option} {value}" for option, value in given.items() if value is not None]
    if free and not chosen:
        return FREE, None
    if len(chosen) != 1:
        options = " and ".join(each.split(" ")[0] for each in chosen)
        raise UnsupportedError(
            f"{EXPECTED} {options} were given." if chosen else f"{EXPECTED} No output type was given."
        )
    (name,) = chosen
    if schema is not None:
        with _pointing(name):
            return name, to_json(read_text(schema, name, "a JSON file"), None)
    if grammar is not None:
        return name, read_grammar_of(grammar, name)
    return name, _imported(str(named)) if regex is None else Regex(regex)


@contextmanager
def _pointing(given: str) -> Iterator[None]:
    """Name the option that was given in errors that point into its file."""
    try:
        yield
    except GrammarError as error:
        said = str(error) if error.position is None else str(error).split("\n")[0]
        raise GrammarError(f"{given}: {said}", error.source, error.position) from error
    except RecursionError as error:
        raise UnsupportedError(f"Give one of fewer levels: {given} is nested too deeply to be read.") from error


def read_grammar_of(grammar: str, given: str) -> Grammar:
    """Return the grammar of a file, in GBNF if it ends so, or one that is shipped; ``given`` is what messages call it."""
    path = Path(grammar)
    if path.suffix not in (".lark", ".gbnf") and not path.exists():
        return read_grammar(grammar_text(grammar))
    read_text(path, given, f"a file in Lark's dialect, a file .gbnf, or one of {', '.join(NAMES)} and dyck-n")
    with _pointing(given):
        return read_grammar(path)


def _imported(named: str) -> Any:
    module_name, _, path = named.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise UnsupportedError(
            "Give module:Class, such as schemas:Person for the class Person of schemas.py in the working folder, builtins:int, or "
            f"outlines.types:email; --type {named} was given."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        found = importlib.import_module(module_name)
    except BaseException as error:  # a module that is imported runs, and may raise anything, SystemExit too
        if isinstance(error, KeyboardInterrupt):
            raise
        raise UnsupportedError(
            f"--type {named}: the module {module_name} cannot be imported: {type(error).__name__}: {error}. Modules are looked "
            f"for in the working folder and among the installed ones."
        ) from error
    for name in path.split("."):
        if not hasattr(found, name):
            near = difflib.get_close_matches(name, dir(found), n=3)
            hint = f" Is {' or '.join(near)} meant?" if near else ""
            raise UnsupportedError(f"--type {named}: {found!r:.80} has no {name}.{hint}")
        found = getattr(found, name)
    return found
