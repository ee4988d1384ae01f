"""The prompts of a command: from its arguments, a file or a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outlines.inputs import Chat

from ...errors import UnsupportedError

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
