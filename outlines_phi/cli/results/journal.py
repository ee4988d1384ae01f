"""A file of draws that grows line by line, and from which a run goes on where it ended."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, final

import typer

from ...errors import UnsupportedError
from ..inputs.prompts import Prompt
from .records import Record, line
from .run import check_format

BEGINNING = b'{"record": "run", '
"""How every file begins."""


@final
@dataclass(frozen=True, kw_only=True)
class Saved:
    """What a file holds.

    Attributes
    ----------
    header
        Its first line.
    prompts
        How many prompts from the first one on are finished: all draws are there, or an error.
    errors
        Those of them that ended by an error.
    end
        Where the line of the last finished prompt ends, in bytes; what comes after is drawn again.
    """

    header: dict[str, Any]
    prompts: int
    errors: int
    end: int


def read(path: Path, prompts: Sequence[Prompt]) -> Saved | None:
    """Return what the file at ``path`` holds of the draws of ``prompts``; ``None`` where it was not begun.

    A last line that is torn, because the run was killed while it wrote, does not count.

    Raises
    ------
    UnsupportedError
        Another file, one of other prompts, or one with a broken line; names it and what to do.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnsupportedError(f"{path} cannot be read: {error.strerror}. Give the path of a file.") from error
    with file:
        first = file.readline()
        if not first.endswith(b"\n") and (first.startswith(BEGINNING) or BEGINNING.startswith(first)):
            return None
        # What does not even begin like such a file is another one, JSON or not.
        header = check_format(_parse(first, 1, path) if first.startswith(BEGINNING) else None, path)
        finished, errors, drawn, end = 0, 0, 0, file.tell()
        for number, content in enumerate(file, 2):
            if not content.endswith(b"\n"):
                break
            record = _parse(content, number, path)
            failed = _check(record, finished, drawn, prompts, f"Line {number} of {path}")
            drawn += 1
            if failed or drawn == header["n"]:
                finished, errors, drawn, end = finished + 1, errors + failed, 0, file.tell()
    return Saved(header=header, prompts=finished, errors=errors, end=end)


def _parse(content: bytes, number: int, path: Path) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UnsupportedError(
            f"Line {number} of {path} is not valid JSON: {error}. Remove the file's lines from there on, give another --output, or "
            "--overwrite to begin anew."
        ) from error


def _check(record: Any, index: int, drawn: int, prompts: Sequence[Prompt], place: str) -> bool:
    """Return whether a record is an error; raise UnsupportedError unless it is the next one of a run over ``prompts``."""
    match record:
        case {"record": "draw", "prompt_index": int(found), "draw_index": int(number), "prompt": prompt}:
            failed, expected = False, (index, drawn)
        case {"record": "error", "prompt_index": int(found), "prompt": prompt}:
            failed, number, expected = True, drawn, (index, drawn)
        case _:
            raise UnsupportedError(
                f"{place} is neither a draw nor an error. Repair the file, or give another --output."
            )
    if (found, number) != expected:
        raise UnsupportedError(
            f"{place} has draw {number} of prompt {found} where draw {drawn} of prompt {index} was expected: lines are missing or "
            "out of order. Give another --output, or --overwrite to begin anew."
        )
    if index >= len(prompts) or prompts[index] != prompt:
        given = (
            f"{prompts[index]!r:.60} in this command" if index < len(prompts) else f"{len(prompts)} prompts were given"
        )
        raise UnsupportedError(
            f"{place} is of other prompts: prompt {index} (counted from 0) is {prompt!r:.60} in the file, and {given}. A run goes "
            "on with the same prompts, or more after them. Give another --output, or --overwrite to begin anew."
        )
    return failed


def check_target(path: Path) -> None:
    """Raise UnsupportedError unless a file can be written at ``path``, as far as that is known without touching it."""
    if path.exists() and not path.is_file():
        raise UnsupportedError(
            f"--output {path} is not a file. Give the path of one, or leave --output out for the standard output."
        )
    if not path.parent.is_dir():
        raise UnsupportedError(f"--output {path} cannot be written: there is no folder {path.parent}. Make it first.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UnsupportedError(f"--output {path} cannot be written: permission denied. Give another path.")


def _lock(file: BinaryIO, path: Path) -> None:
    """Raise UnsupportedError where another run has the file open; the lock ends with the process, however that ends."""
    if find_spec("fcntl") is None:  # not a POSIX system
        return
    fcntl = importlib.import_module("fcntl")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UnsupportedError(
            f"--output {path} is being written by another run. Wait for it, or give another file."
        ) from error
    except OSError:  # a file system without locks
        return


@final
class Journal:
    """Where the lines go: to the end of a file, or to the standard output.

    Lines are handed over whole and flushed, so that a run that is killed leaves at most one torn line, the last.

    Parameters
    ----------
    path
        The file; ``None`` for the standard output.
    saved
        What of the file stays; ``None`` to begin anew.
    """

    def __init__(self, path: Path | None, saved: Saved | None) -> None:
        self._file: BinaryIO | None = None
        if path is not None:
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666), "r+b")
            try:
                _lock(self._file, path)
            except UnsupportedError:
                self._file.close()
                raise
            end = 0 if saved is None else saved.end
            self._file.truncate(end)
            self._file.seek(end)

    def write(self, records: Sequence[Record]) -> None:
        """Write some records, each a line."""
        content = b"".join(map(line, records))
        if self._file is None:
            typer.echo(content, nl=False)
        else:
            self._file.write(content)
            self._file.flush()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
