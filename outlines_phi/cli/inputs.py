"""The prompts and the output type of a command: from its arguments, files or a pipe."""

from __future__ import annotations

import difflib
import importlib
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outlines.inputs import Chat
from outlines.types import CFG, Regex

from ..errors import GrammarError, GrammarWarning, UnsupportedError
from ..guides.grammar.notation.reader import NAMES, grammar_text, read_grammar
from ..plugin.types.output_types import to_json

Prompt = str | list[dict[str, Any]]
"""A text, or the messages of a chat: what a line of JSON can hold."""

PIPE = "-"
"""The argument that stands for the standard input."""

JSONL = (".jsonl", ".ndjson")
"""Suffixes of files with one JSON object per line."""


def read_prompts(arguments: Sequence[str], file: Path | None) -> list[Prompt]:
    """Return the prompts of a command, at least one.

    Parameters
    ----------
    arguments
        The prompts themselves; ``-`` alone for the standard input, one prompt per line.
    file
        One prompt per line; where the suffix is one of :data:`JSONL`, one object per line whose ``prompt`` is a text or a list of
        chat messages. Its other fields are not read.

    Raises
    ------
    UnsupportedError
        No prompts, two sources of them, a file that cannot be read, or a line that is no prompt; names the line.
    """
    if arguments and file is not None:
        raise UnsupportedError(
            "Give one of the two (-- ends the options, if a prompt begins with a dash): prompts were given as arguments and by "
            f"--file {file}."
        )
    if file is not None and str(file) != PIPE:
        lines = _lines(_bytes(file), f"--file {file}")
        read = _from_json if file.suffix in JSONL else _from_text
        prompts = [read(line, f"Line {number} of {file}") for number, line in enumerate(lines, 1)]
        source = f"--file {file} is empty"
    elif file is not None or list(arguments) == [PIPE]:
        lines = _lines(sys.stdin.buffer.read(), "The standard input")
        prompts = [_from_text(line, f"Line {number} of the standard input") for number, line in enumerate(lines, 1)]
        source = "the standard input is empty"
    else:
        prompts = list(arguments)
        source = "none were given"
    if not prompts:
        raise UnsupportedError(
            "Give prompts as arguments, by --file FILE (one per line; .jsonl: objects with a prompt), or through a pipe with - as "
            f"the only argument. There are no prompts: {source}."
        )
    return prompts


def model_input(prompt: Prompt) -> str | Chat:
    """Return a prompt as Outlines takes it."""
    return prompt if isinstance(prompt, str) else Chat([dict(message) for message in prompt])


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UnsupportedError(f"Give a file of prompts: --file {file} cannot be read, {error.strerror}.") from error


def _lines(content: bytes, source: str) -> list[str]:
    """Return the lines of a text; empty ones at its end are not meant."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnsupportedError(
            f"Save the prompts as UTF-8: {source} is not UTF-8, {error.reason} in line {line}."
        ) from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _from_text(line: str, place: str) -> Prompt:
    if not line.strip():
        raise UnsupportedError(
            f'Remove the line, or write prompts as JSONL ({{"prompt": ""}}) where an empty one is meant: {place} is empty.'
        )
    return line


def _from_json(line: str, place: str) -> Prompt:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise UnsupportedError(
            f'Write an object such as {{"prompt": "..."}}: {place} is not valid JSON, {error.msg} at column {error.colno}.'
        ) from error
    except RecursionError as error:
        raise UnsupportedError(f"Give a prompt alone: {place} is nested too deeply to be read.") from error
    except ValueError as error:  # Python reads no integer of thousands of digits
        raise UnsupportedError(
            "Leave the number out, or write it as a text: "
            f"{place} has a number of too many digits to be read ({len(line)} characters in all)."
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


EXPECTED = "Give exactly one of --type module:Class, --schema FILE.json, --regex PATTERN and --grammar FILE.lark."


FREE = "free text"
"""How a command names what has no output type."""


def read_output_type(
    named: str | None, schema: Path | None, regex: str | None, grammar: str | None = None, *, free: bool = False
) -> tuple[str, Any]:
    """Return how the command names its output type, and the type.

    Parameters
    ----------
    named
        ``module:Class``: whatever Outlines takes, in a module that can be imported; the working folder is on the path.
    schema
        A file with a JSON schema.
    regex
        A regular expression.
    grammar
        A file with a grammar in Lark's dialect, or the name of one that comes with the package.
    free
        Whether there may be none, because phrases are banned; the type is ``None`` then.

    Raises
    ------
    UnsupportedError
        Not exactly one of them, a file that cannot be read, or a name that cannot be imported.
    GrammarError
        A schema or a grammar that is not one; points into the file.
    """
    given = {"--type": named, "--schema": schema, "--regex": regex, "--grammar": grammar}
    chosen = [option for option, value in given.items() if value is not None]
    if free and not chosen:
        return FREE, None
    if len(chosen) != 1:
        raise UnsupportedError(
            f"{EXPECTED} {' and '.join(chosen)} were given." if chosen else f"{EXPECTED} No output type was given."
        )
    if schema is not None:
        return f"--schema {schema}", _schema(schema)
    if regex is not None:
        return f"--regex {regex}", Regex(regex)
    if grammar is not None:
        return f"--grammar {grammar}", _grammar(grammar)
    return f"--type {named}", _imported(str(named))


def _schema(schema: Path) -> Any:
    try:
        return to_json(_text(schema, f"--schema {schema}", "a JSON file"), None)
    except GrammarError as error:
        said = str(error) if error.position is None else str(error).split("\n")[0]
        raise GrammarError(f"--schema {schema}: {said}", error.source, error.position) from error
    except RecursionError as error:
        raise UnsupportedError(
            f"Give a schema of fewer levels: --schema {schema} is nested too deeply to be read."
        ) from error


def _grammar(grammar: str) -> CFG:
    text = read_grammar_text(grammar, f"--grammar {grammar}")
    try:
        with warnings.catch_warnings():  # they come when it is compiled
            warnings.simplefilter("ignore", GrammarWarning)
            read_grammar(text)
    except GrammarError as error:
        said = str(error) if error.position is None else str(error).split("\n")[0]
        raise GrammarError(f"--grammar {grammar}: {said}", error.source, error.position) from error
    return CFG(text)


def read_grammar_text(grammar: str, given: str) -> str:
    """Return the text of a file in Lark's dialect, or of a grammar that is shipped; ``given`` is what to call it in a message."""
    path = Path(grammar)
    if path.suffix != ".lark" and not path.exists():
        return grammar_text(grammar)
    return _text(path, given, f"a file in Lark's dialect, or one of {', '.join(NAMES)} and dyck-n")


def _text(path: Path, given: str, expected: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UnsupportedError(f"Give {expected}: {given} cannot be read, {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UnsupportedError(f"Save the file as UTF-8: {given} is not UTF-8, {error.reason}.") from error


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
    except KeyboardInterrupt:  # of whoever waits for the module
        raise
    except BaseException as error:  # a module that is imported runs, and may raise anything, SystemExit too
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
