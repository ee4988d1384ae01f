"""A file of draws that grows line by line, and from which a run goes on where it ended.

Its first line has everything that decides the draws but the prompts, which each of the others has.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, final

import typer

from ... import __version__
from ...errors import UnsupportedError
from ...guides.phrases.banned import BannedPhrases
from ...settings import SamplingSettings
from ..inputs.prompts import Prompt
from .records import Record, line

FORMAT, VERSION = "outlines-phi draws", 1
"""What the first line of a file says that it is."""

BEGINNING = b'{"record": "run", '
"""How every file begins."""

SHOWN = {
    "model.weights": ("the weights or the configuration of the model", "model.name"),
    "model.vocabulary": ("the vocabulary of the model", "model.name"),
    "model.tokenizer": ("the tokenizer or its chat template", "model.name"),
    "output_type.pattern": ("the output type", "output_type.name"),
    "banned_phrases.phrases": ("the banned phrases", "banned_phrases.count"),
}
"""Fingerprints, with what they are called and the key under which a reader finds a name."""

UNCOMPARED = {"record", "outlines_phi", "model.name", "output_type.name"}
"""Keys that are there to be read: the same weights may lie in another folder."""

ANEW = "Give another --output, or --overwrite to begin anew."


def header(
    *,
    model: dict[str, str],
    output_type: str,
    pattern: str,
    settings: SamplingSettings,
    tokenization: str,
    ban: BannedPhrases | None,
    **others: Any,
) -> dict[str, Any]:
    """Return the first line of a file.

    Parameters
    ----------
    model
        See :func:`outlines_phi.cli.inputs.model.identity`.
    output_type, pattern
        How the command names the output type, and the regular expression or the grammar that it stands for.
    settings, tokenization
        What defines the distribution.
    ban
        What must not be written: its options and a fingerprint, since phrases may be thousands.
    others
        Whatever else decides the draws, as JSON has it; ``None`` is left out.
    """
    drawn_by = asdict(settings)
    del drawn_by["seed"]
    banned = None
    if ban is not None:
        options = {"ignore_case": ban.ignore_case, "whole_word": ban.whole_word, "across_prompt": ban.across_prompt}
        banned = {"count": len(ban), "phrases": _digest("\n".join(ban.names)), **options}
    return {
        "record": "run",
        "format": FORMAT,
        "version": VERSION,
        "outlines_phi": __version__,
        "model": model,
        "output_type": {"name": output_type, "pattern": _digest(pattern)},
        "settings": {**drawn_by, "tokenization": tokenization},
        **({} if banned is None else {"banned_phrases": banned}),
        **{name: value for name, value in others.items() if value is not None},
    }


def check_same_run(saved: dict[str, Any], header: dict[str, Any], path: object) -> None:
    """Raise UnsupportedError where ``saved``, the first line of the file at ``path``, is of another run; says of which."""
    then, now = dict(_flat(saved)), dict(_flat(header))
    different = [key for key in {**now, **then} if key not in UNCOMPARED and then.get(key) != now.get(key)]
    if different:
        named = [SHOWN.get(key, (key.removeprefix("settings."), key)) for key in different]
        parts = (f"{what} ({then.get(key)!r} in the file, {now.get(key)!r} in this command)" for what, key in named)
        raise UnsupportedError(
            "Give the same arguments to go on with the file, another --output, or --overwrite to begin anew. "
            f"{path} was begun by another run, which differs in {'; '.join(parts)}."
        )


def _flat(header: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in header.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Line(NamedTuple):
    """A whole line of a file: its number from 1, what it holds, and the byte at which it ends."""

    number: int
    record: Any
    end: int


def whole_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a file, checked to be one of draws; a last line does not count that a kill of the run has torn.

    Raises
    ------
    UnsupportedError
        Another file, or a line that is no JSON; names it and what to do.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise UnsupportedError(f"{path} cannot be read: {error.strerror}. Give the path of a file of draws.") from error
    with file:
        for number, content in enumerate(file, 1):
            if number == 1 and not content.startswith(BEGINNING[: len(content)]):
                raise _foreign(path)
            if not content.endswith(b"\n"):
                return
            try:
                record = json.loads(content)
            except (ValueError, RecursionError) as error:
                raise UnsupportedError(
                    f"Remove the lines of {path} from line {number} on, give another --output, or --overwrite to begin anew. "
                    f"Line {number} of {path} is not valid JSON: {error}."
                ) from error
            if number == 1:
                _check_header(record, path)
            yield Line(number, record, file.tell())


def _check_header(header: dict[str, Any], path: object) -> None:
    match header:
        case {"format": str(found), "version": version} if found == FORMAT and version != VERSION:
            raise UnsupportedError(
                f"Use the version of outlines_phi that wrote {path}, or another file. It has version {version!r} of the format "
                f"{FORMAT!r}; this one reads {VERSION}."
            )
        case {"format": str(found), "phi": str(), "n": int(), "seed": int(), "output_type": {"name": str()}} if (
            found == FORMAT
        ):
            return
    raise _foreign(path)


def _foreign(path: object) -> UnsupportedError:
    return UnsupportedError(
        f"Give another file, or --overwrite to replace it: {path} was not written by outlines-phi generate, its first line is not "
        f"that of a file of {FORMAT}."
    )


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

    Raises
    ------
    UnsupportedError
        Another file, one of other prompts, or one with a broken line; names it and what to do.
    """
    lines = whole_lines(path) if path.exists() else iter(())
    first = next(lines, None)
    if first is None:
        return None
    finished, errors, drawn, end = 0, 0, 0, first.end
    for number, record, here in lines:
        failed = _check_next(record, finished, drawn, prompts, f"Line {number} of {path}")
        drawn += 1
        if failed or drawn == first.record["n"]:
            finished, errors, drawn, end = finished + 1, errors + failed, 0, here
    return Saved(header=first.record, prompts=finished, errors=errors, end=end)


def _check_next(record: Any, index: int, drawn: int, prompts: Sequence[Prompt], place: str) -> bool:
    """Return whether a record is an error; raise UnsupportedError unless it is the next one of a run over ``prompts``."""
    match record:
        case {"record": "draw" | "error" as kind, "prompt_index": int(found), "prompt": prompt}:
            number = record.get("draw_index", drawn)
        case _:
            raise UnsupportedError(f"{ANEW} {place} is neither a draw nor an error.")
    if (found, number) != (index, drawn):
        raise UnsupportedError(
            f"{ANEW} {place} has draw {number} of prompt {found} where draw {drawn} of prompt {index} was expected: lines are "
            "missing or out of order."
        )
    if prompts[index : index + 1] != [prompt]:
        given = f"{prompts[index]!r:.60} in this command" if index < len(prompts) else f"only {len(prompts)} are given"
        raise UnsupportedError(
            f"{ANEW} {place} is of other prompts: prompt {index} (counted from 0) is {prompt!r:.60} in the file, {given}; a run "
            "goes on with the same prompts, or more after them."
        )
    return bool(kind == "error")


def check_target(path: Path) -> None:
    """Raise UnsupportedError unless a file can be written at ``path``, as far as that is known without touching it."""
    if path.exists() and not path.is_file():
        raise UnsupportedError(
            f"Give the path of a file, or leave --output out for the standard output: --output {path} is not a file."
        )
    if not path.parent.is_dir():
        raise UnsupportedError(f"Make the folder first: --output {path}: there is no folder {path.parent}.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UnsupportedError(f"Give another path: --output {path} cannot be written, permission denied.")


def _lock(file: BinaryIO, path: Path) -> None:
    """Raise UnsupportedError where another run has the file open; the lock ends with the process, however that ends."""
    if find_spec("fcntl") is None:  # not a POSIX system
        return
    fcntl = importlib.import_module("fcntl")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UnsupportedError(
            f"Wait, or give another file: --output {path} is being written by another run."
        ) from error
    except OSError:  # a file system without locks
        return


@contextmanager
def writing(path: Path | None, end: int) -> Iterator[Callable[[Sequence[Record]], None]]:
    """Lend what writes records to a file from byte ``end`` on, or to the standard output where ``path`` is ``None``.

    Lines are handed over whole and flushed, so that a run that is killed leaves at most one torn line, the last.
    """
    if path is None:
        yield lambda records: typer.echo(b"".join(map(line, records)), nl=False)
        return
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666), "r+b") as file:
        _lock(file, path)
        file.truncate(end)
        file.seek(end)

        def write(records: Sequence[Record]) -> None:
            file.write(b"".join(map(line, records)))
            file.flush()

        yield write
