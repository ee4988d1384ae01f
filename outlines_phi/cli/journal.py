"""A file of draws that grows line by line, and from which a run goes on where it ended.

Its first line has everything that decides the draws but the prompts, which each of the others has.
"""

import hashlib
import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple, final

import typer
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ..errors import OutlinesPhiError, UnsupportedError, ValueReadError
from ..fidelity.report_text import jsonable
from ..sampling.draws import Alternative, Draws, Thought, TokenAccount
from .inputs import Prompt

Record = dict[str, Any]

FORMAT, VERSION = "outlines-phi draws", 1  # The format that the first line of a file names
BEGINNING = b'{"record": "run", '  # The beginning of every file

SHOWN = {
    "model.weights": ("the weights or the configuration of the model", "model.name"),
    "model.dtype": ("the type of the weights", "model.dtype"),
    "model.vocabulary": ("the vocabulary of the model", "model.name"),
    "model.tokenizer": ("the tokenizer or its chat template", "model.name"),
    "output_type.pattern": ("the output type", "output_type.name"),
    "banned_phrases.phrases": ("the banned phrases", "banned_phrases.count"),
}
"""Fingerprints, with what they are called and the key under which a reader finds a name."""

UNCOMPARED = {"record", "outlines_phi", "model.name", "output_type.name"}
"""Keys that are there to be read: the same weights may lie in another folder."""

ANEW = "Give another --output, or --overwrite to begin anew."


def check_same_run(saved: Record, header: Record, path: object) -> None:
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


def _flat(header: Record, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in header.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def digest(text: str) -> str:
    """Return a fingerprint of what is too long for a first line."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of a prompt: its draws, an error, or the draws until an error."""

    index: int  # the number of the prompt, from 0
    prompt: Prompt | None  # none where its row has none
    # The result.
    draws: Draws | None = None
    error: OutlinesPhiError | None = None


def records_of(outcome: Outcome, *, token_ids: bool) -> Iterator[Record]:
    """Yield one record per draw of a prompt, and one for the error of a prompt that has no draws, or not all that were asked for.

    ``rejections`` are those of all draws of the prompt, and so is ``tokens_per_call``, under drafts. A trajectory that found no
    allowed token (``Draws.failures``) has no text and no ``log_w``: its weight is 0, and it counts in every mean of weights.
    """
    prompt: Record = {"prompt_index": outcome.index, "prompt": outcome.prompt}
    if outcome.draws is not None:
        yield from _draws(prompt, outcome.draws, token_ids)
    if outcome.error is not None:
        # A prompt that fails is drawn by itself, where it is the first of one.
        message = " ".join(str(outcome.error).removeprefix("Prompt 0: ").split())
        yield {"record": "error", **prompt, "error": type(outcome.error).__name__, "message": message}


def _draws(prompt: Record, draws: Draws, token_ids: bool) -> Iterator[Record]:
    after = {
        "prompt_ess": draws.ess,
        "total_variation": None if draws.certificate is None else draws.certificate.total_variation,
        "confidence": None if draws.certificate is None else draws.certificate.confidence,
        "log_z": jsonable(draws.log_z),
        "log_z_bounds": jsonable(draws.log_z_bounds),
        **({"rejections": dict(draws.rejections)} if draws.rejections else {}),
        **({"tokens_per_call": draws.counts.tokens_per_call} if draws.counts.turns else {}),
    }
    known = zip(draws, draws.weights.tolist(), strict=True)
    for number, (draw, weight) in enumerate([*known, *[(None, 0.0)] * draws.failures]):
        yield {
            "record": "draw",
            **prompt,
            "draw_index": number,
            "text": None if draw is None else draw.text,
            **({"value": None} if draw is None else value_record(partial(getattr, draw, "value"))),
            **({"token_ids": draw and list(draw.token_ids)} if token_ids else {}),
            **({"tokens": list(map(_account, draw.tokens))} if draw is not None and draw.tokens else {}),
            **({} if draw is None or draw.thought is None else {"thought": _thought(draw.thought, token_ids)}),
            "log_p": draw and jsonable(draw.log_p),
            "log_w": draw and jsonable(draw.log_w),
            "weight": weight,
            "guarantee": "weighted" if draw is None else draw.guarantee.name.lower(),
            "ess": 0.0 if draw is None else draw.ess,
            "blocks": draw and draw.blocks,
            "picked": draw and draw.picked,
            **after,
        }


def _thought(thought: Thought, token_ids: bool) -> Record:
    """Return a thought as JSON has it."""
    answer = None if thought.answer is None else thought.answer.name.lower()
    ids = {"token_ids": list(thought.token_ids)} if token_ids else {}
    known = {name: jsonable(getattr(thought, name)) for name in ("forced", "log_p", "log_w")}
    return {"text": thought.text, **ids, **known, "answer": answer}


def _account(account: TokenAccount | Alternative) -> Record:
    """Return an account as JSON has it, its bytes as a text too."""
    found = {name: jsonable(value) for name, value in account._asdict().items() if name not in ("bytes", "top")}
    shown = {"text": account.bytes.decode(errors="replace"), "bytes": list(account.bytes)}
    top = {"top": account.top and list(map(_account, account.top))} if isinstance(account, TokenAccount) else {}
    return {"id": found.pop("id"), **shown, **found, **top}


def line(record: Record) -> bytes:
    """Return a record as a line of UTF-8, escaped where a prompt is no valid Unicode."""
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, allow_nan=False).encode() + b"\n"


def value_record(read: Callable[[], Any]) -> Record:
    """Return the value that ``read`` returns as JSON has it, or why the type refuses the text."""
    try:
        return {"value": to_jsonable_python(read(), inf_nan_mode="strings", fallback=str)}
    except ValueReadError as error:
        return {"value": None, "value_error": " ".join(str(error).split())}
    except (PydanticSerializationError, UnicodeEncodeError, ValueError) as error:
        return {"value": None, "value_error": f"The value has no form in JSON: {error}"}


def records(path: Path) -> Iterator[tuple[Any, int]]:
    """Yield the content of each whole line of a file of draws, and the byte at which it ends; a torn last line is left out."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise UnsupportedError(f"Give the path of a file of draws: {path} cannot be read, {error.strerror}.") from error
    with file:
        for number, content in enumerate(file, 1):
            if number == 1 and not content.startswith(BEGINNING[: len(content)]):
                raise _foreign(path)
            if not content.endswith(b"\n"):
                return
            try:
                record = json.loads(content)
            except (ValueError, RecursionError) as error:
                raise UnsupportedError(f"{ANEW} Line {number} of {path} is not valid JSON: {error}.") from error
            if number == 1:
                _check_header(record, path)
            yield record, file.tell()


def _check_header(header: Record, path: object) -> None:
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
        f"Give another file, or replace this one by `outlines-phi generate --overwrite`: {path} was not written by outlines-phi "
        f"generate, its first line is not that of a file of {FORMAT}."
    )


class Saved(NamedTuple):
    """The draws that a target holds: none where it was not begun, or is begun anew."""

    header: Record | None = None  # its first line
    finished: Mapping[int, bool] = MappingProxyType(
        {}
    )  # by the number of each finished prompt: whether it ended by an error
    end: int = 0  # where the line of the last finished prompt ends, in bytes; what comes after is drawn again


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


@final
@dataclass(frozen=True)
class Lines:
    """The file at a path, which holds the draws of some prompts in their order; ``None`` is the standard output."""

    path: Path | None
    prompts: Sequence[Prompt]

    def check(self) -> None:
        """Raise UnsupportedError unless the file can be written, as far as that is known without touching it."""
        if self.path is not None:
            check_target(self.path)

    def saved(self) -> Saved:
        """Read the file; raises UnsupportedError where that is not of these prompts."""
        found = records(self.path) if self.path is not None and self.path.exists() else iter(())
        nothing: tuple[Any, int] = (None, 0)
        (header, end), finished, drawn = next(found, nothing), dict[int, bool](), 0
        for number, (record, here) in enumerate(found, 2):
            match record:
                case {"record": "draw" | "error" as kind, "prompt_index": int(index), "prompt": prompt}:
                    place, begun = (index, record.get("draw_index", drawn)), len(finished)
                case _:
                    raise UnsupportedError(f"{ANEW} Line {number} of {self.path} is neither a draw nor an error.")
            if place != (begun, drawn) or self.prompts[begun : begun + 1] != [prompt]:
                given = f"{self.prompts[begun]!r:.60}" if begun < len(self.prompts) else f"none, of {len(self.prompts)}"
                raise UnsupportedError(
                    f"{ANEW} Line {number} of {self.path} has draw {place[1]} of prompt {index}, {prompt!r:.60}, where draw "
                    f"{drawn} of prompt {begun} was expected, {given}: a run goes on with the same prompts, or more after them."
                )
            drawn += 1
            if kind == "error" or drawn == header["n"]:
                finished[begun], drawn, end = kind == "error", 0, here
        return Saved(header, finished, end)

    @contextmanager
    def writing(self, header: Record, end: int) -> Iterator[Callable[[Sequence[Record]], None]]:
        """Lend the writer of records from byte ``end`` on; ``header`` is the first, where there is none.

        Lines are handed over whole and flushed, so that a run that is killed leaves at most one torn line, the last.
        """
        with ExitStack() as opened:
            file: BinaryIO | None = None
            if self.path is not None:
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
                file = opened.enter_context(os.fdopen(descriptor, "r+b"))
                _lock(file, self.path)
                file.truncate(end)
                file.seek(end)

            def write(records: Sequence[Record]) -> None:
                written = b"".join(map(line, records))
                if file is None:
                    typer.echo(written, nl=False)
                else:
                    file.write(written)
                    file.flush()

            if not end:
                write([header])
            yield write
