"""Actors of Ray Data, each with a model of its own, and the folder of parts that ``outlines-phi generate --ray`` has them write."""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, final

from pydantic_core import to_jsonable_python

from ..errors import OutlinesPhiError, UnsupportedError
from ..numerics.cache import replacing
from ..numerics.checks import counted
from . import journal
from .batches import Drawing, Task, Told, run, told
from .inputs import PARQUET, Rows, check_chats, needing, read_prompt
from .journal import ANEW, Record, Saved, records_of

NUMBER = "prompt_index"  # The column that numbers the rows of a file

COLUMNS = {
    "draw_index": "int64",
    "text": "string",
    "value": "string",
    "value_error": "string",
    "token_ids": "list<int64>",
    "tokens": "string",
    "log_p": "double",
    "log_w": "double",
    "weight": "double",
    "guarantee": "string",
    "ess": "double",
    "blocks": "int64",
    "picked": "int64",
    "prompt_ess": "double",
    "total_variation": "double",
    "confidence": "double",
    "log_z": "double",
    "log_z_bounds": "list<double>",
    "rejections": "string",
    "tokens_per_call": "double",
    "error": "string",
    "message": "string",
}
"""The columns of a draw, named as in a line of a file, and their types; those of :data:`AS_JSON` are JSON."""

AS_JSON = ("value", "tokens", "rejections")


def check_names(names: Sequence[str], source: str) -> None:
    """Raise UnsupportedError where a column of the input has the name of one that a draw has."""
    ours = ["record", NUMBER, *COLUMNS]
    if taken := [name for name in names if name in ours]:
        raise UnsupportedError(
            f"Rename {', '.join(taken)}: {source} has a column of the name of one that is written beside it ({', '.join(ours)})."
        )


def table_of(rows: Rows, file: Path | None) -> Any:
    """Return the rows of an input as a table of Arrow, with their numbers; as it is, where their ``file`` is one."""
    arrow = import_module("pyarrow")
    if file is not None and file.suffix == PARQUET:
        table = import_module("pyarrow.parquet").read_table(file)
    else:
        try:
            table = arrow.Table.from_pylist([row for row, _ in rows])
        except (arrow.ArrowException, UnicodeEncodeError) as error:
            raise UnsupportedError(
                f"Give the values of a column one type, or draw into --parts jsonl: {file or 'the input'} is no table, {error}."
            ) from error
    return table.append_column(NUMBER, arrow.array(range(len(rows)), arrow.int64()))


def joined(table: Any, records: Sequence[Record], rows: Sequence[int]) -> Any:
    """Return a table of Arrow with a row per record: the columns of ``rows`` of ``table``, one for each, and those of its own."""
    arrow = import_module("pyarrow")
    kinds = {"list<int64>": arrow.list_(arrow.int64()), "list<double>": arrow.list_(arrow.float64())}
    found = table.take(rows) if rows else table.slice(0, 0)
    for name, kind in COLUMNS.items():
        cells = [_cell(name, record) for record in records]
        found = found.append_column(name, arrow.array(cells, kinds.get(kind) or arrow.type_for_alias(kind)))
    return found


def _cell(name: str, record: Record) -> Any:
    given = record.get(name)
    if name in AS_JSON:
        return json.dumps(given, ensure_ascii=False) if given is not None or "text" in record else None
    # Half a surrogate pair of a prompt may stand in a message.
    return given.encode("utf-8", "backslashreplace").decode() if isinstance(given, str) else given


def ray_data() -> Any:
    """Return the module ``ray.data``."""
    with needing("ray", "Drawing on Ray"):
        return import_module("ray.data")


@final
@dataclass(frozen=True, kw_only=True)
class Pool:
    """Number of actors, and the resources that Ray reserves for each: ``gpus`` by default one where the cluster has any."""

    actors: int = 1
    cpus: float = 1
    gpus: float | None = None

    def started(self) -> Pool:
        """Start Ray on this machine, if it is not running and no address of a cluster is set; return the pool with its GPUs.

        Raises :class:`UnsupportedError` where a cluster of this machine alone has no room for the actors, which would wait for it.
        """
        ray_data()
        ray = import_module("ray")
        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        # Ray Data tells of its plans; a command tells of its prompts.
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        there = ray.cluster_resources()
        gpus = float("GPU" in there) if self.gpus is None else self.gpus
        for kind, each in (("CPU", self.cpus), ("GPU", gpus)):
            if len(ray.nodes()) == 1 and each * self.actors > there.get(kind, 0):
                raise UnsupportedError(
                    f"Give fewer --actors, or start Ray on more machines: {counted(self.actors, 'actor')} of {each:g} {kind} each "
                    f"do not fit, Ray has {there.get(kind, 0):g} here."
                )
        return Pool(actors=self.actors, cpus=self.cpus, gpus=gpus)

    @property
    def _resources(self) -> dict[str, float]:
        return {"num_cpus": self.cpus, "num_gpus": self.gpus or 0}

    def once(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function in a process of its own, which has the resources of an actor, and return its result."""
        ray = import_module("ray")
        try:
            return ray.get(ray.remote(max_calls=1, **self._resources)(function).remote(*arguments))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, OutlinesPhiError):
                raise error.cause from None
            raise

    def map(self, dataset: Any, drawer: type, batch_size: int, **arguments: Any) -> Any:
        """Return a dataset whose batches went through actors of a class, which is made with ``arguments``.

        Ray starts an actor that died again, and gives its batches to another one.
        """
        return dataset.map_batches(
            drawer,
            fn_constructor_kwargs=arguments,
            batch_size=batch_size,
            batch_format="pyarrow",
            compute=ray_data().ActorPoolStrategy(size=self.actors, max_tasks_in_flight_per_actor=2),
            **self._resources,
        )


@final
class ColumnDrawer:
    """Batches of a dataset, as tables: in go prompts and keys, out come the draws beside all that stood there.

    ``key`` is the column of what names the random streams of a row, by its content.
    """

    def __init__(self, task: Task, prompt: str, key: str | None, token_ids: bool) -> None:
        self._batches = task.batches(task.loaded())
        self._prompt, self._key, self._token_ids = prompt, key, token_ids

    def __call__(self, table: Any) -> Any:
        """Return the draws of the rows of a table."""
        prompts = [
            read_prompt(value, self._prompt, f"The row has no prompt: {value!r:.80}.")
            for value in table.column(self._prompt).to_pylist()
        ]
        keys: Sequence[Any] = [0] * len(prompts) if self._key is None else table.column(self._key).to_pylist()
        outcomes = self._batches.drawn(list(zip(map(stream_of, keys), prompts, strict=True)))
        found = [(row, r) for row, each in enumerate(outcomes) for r in records_of(each, token_ids=self._token_ids)]
        return joined(table, [record for _, record in found], [row for row, _ in found])


@final
class RecordDrawer:
    """Batches of numbered prompts, written as JSON: out comes what :func:`told` returns, pickled, in one row per batch."""

    def __init__(self, task: Task, token_ids: bool) -> None:
        self._batches, self._token_ids = task.batches(task.loaded()), token_ids

    def __call__(self, table: Any) -> Any:
        """Return the records of the prompts of a table."""
        numbers, prompts = (table.column(name).to_pylist() for name in ("number", "prompt"))
        outcomes = self._batches.drawn(list(zip(numbers, map(json.loads, prompts), strict=True)))
        return {"drawn": [pickle.dumps(told(outcomes, token_ids=self._token_ids))]}


def stream_of(key: Any) -> int:
    """Return the number that names the random streams of a row: its key, where that is one, else a digest of it.

    Raises :class:`UnsupportedError` where there is no key.
    """
    if isinstance(key, int) and not isinstance(key, bool) and key >= 0:
        return key
    if key is None:
        raise UnsupportedError(
            "Give every row a key, or leave out key= and seed=: a row has none in the column of the keys."
        )
    text = json.dumps(key, sort_keys=True, default=str)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big") + 2**64


PART_ROWS, PART_SECONDS = 1024, 10.0
"""A part is written with so many rows, or after so long: what a kill of the run loses, beside the batches under way."""
RUN = "run.jsonl"  # The file with the first line
FORMS = ("jsonl", "parquet")
PART = "part-{:06d}.{}"


@final
@dataclass(frozen=True, kw_only=True)
class Parts:
    """The draws of the rows of an input, in a folder.

    A part has all draws of each of its rows, or the error, beside what stood there in the input.
    """

    path: Path  # the folder
    form: str  # one of :data:`FORMS`
    column: str  # the column of the prompts in the input
    rows: Rows
    file: Path | None = None  # the file of the rows, where they come from one
    _tables: list[Any] = field(default_factory=list, init=False)  # the rows as a table, once it was needed

    def check(self) -> None:
        """Raise UnsupportedError unless the folder can be written, as far as that is known, and the input has names of its own."""
        others = dict.fromkeys(name for row, _ in self.rows for name in row if name != self.column)
        check_names([self.column, *others] if self.form == "parquet" else list(others), "the input")
        if self.form == "jsonl" and "prompt" in others:
            raise UnsupportedError(
                f"Rename prompt, which a line has of its own: the input has it beside --column {self.column}."
            )
        if self.path.exists() and not self.path.is_dir():
            raise UnsupportedError(
                f"Give the path of a folder: --output {self.path} is a file, and --ray writes parts."
            )
        if not self.path.parent.is_dir():
            raise UnsupportedError(f"Make the folder {self.path.parent} first: --output {self.path} is in it.")
        if self.path.exists() and any(self.path.iterdir()) and not (self.path / RUN).exists():
            raise UnsupportedError(
                f"Give another folder, or empty it: --output {self.path} has files that outlines-phi did not write."
            )

    def saved(self) -> Saved:
        """Read the parts that were written.

        Raises :class:`UnsupportedError` where a part has another prompt than the input, or is of another form.
        """
        begun, found = self.path / RUN, dict[int, bool]()
        header, _ = next(journal.records(begun), (None, 0)) if begun.exists() else (None, 0)
        for path in self._parts() if header is not None else ():
            if path.suffix != f".{self.form}":
                raise UnsupportedError(
                    f"Give --parts {path.suffix[1:]} to go on, or --overwrite: {path} is not {self.form}."
                )
            for number, prompt, failed in self._read(path):
                expected = self.rows[number][1] if number < len(self.rows) else f"none, of {len(self.rows)}"
                if prompt != (None if isinstance(expected, UnsupportedError) else expected):
                    raise UnsupportedError(
                        f"{ANEW} {path} has draws of row {number}, {prompt!r:.60}, where {expected!r:.60} was expected: a run goes "
                        "on with the same rows, or more after them."
                    )
                found[number] = found.get(number, False) or failed
        return Saved(header, found, 0 if header is None else begun.stat().st_size)

    def _parts(self) -> list[Path]:
        return sorted(path for path in self.path.glob("part-*") if path.suffix in (".jsonl", PARQUET))

    def _read(self, path: Path) -> Iterator[tuple[int, Any, bool]]:
        try:
            if self.form == "jsonl":
                with path.open(encoding="utf-8", newline="\n") as file:
                    for line in file:
                        record = json.loads(line)
                        yield record[NUMBER], record["prompt"], record["record"] == "error"
            else:
                table = import_module("pyarrow.parquet").read_table(path, columns=[NUMBER, self.column, "error"])
                for record in table.to_pylist():
                    prompt = read_prompt(record[self.column], self.column, "")
                    yield record[NUMBER], None if isinstance(prompt, Exception) else prompt, record["error"] is not None
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise UnsupportedError(f"{ANEW} {path} is no part of a run: {error}.") from error

    @contextmanager
    def writing(self, header: Record, end: int) -> Iterator[Callable[[Sequence[Record]], None]]:
        """Lend the writer of the records of rows, as new parts now and then; no other run writes meanwhile."""
        self.path.mkdir(exist_ok=True)
        with journal.Lines(self.path / RUN, ()).writing(header, end):
            for stale in (*self.path.glob(".part-*"), *(() if end else self._parts())):
                stale.unlink()
            numbers = count(max((int(path.stem.removeprefix("part-")) + 1 for path in self._parts()), default=0))
            held: list[Record] = []
            begin = time.monotonic()

            def written(records: Sequence[Record]) -> None:
                nonlocal begin
                held.extend(records)
                if len({record[NUMBER] for record in held}) >= PART_ROWS or time.monotonic() - begin > PART_SECONDS:
                    self._write(next(numbers), held)
                    held.clear()
                    begin = time.monotonic()

            try:
                yield written
            finally:
                if held:
                    self._write(next(numbers), held)

    def _write(self, number: int, records: Sequence[Record]) -> None:
        with replacing(self.path / PART.format(number, self.form)) as draft:
            if self.form == "jsonl":
                draft.write_bytes(b"".join(map(self._line, records)))
            else:
                self._tables.extend([table_of(self.rows, self.file)] if not self._tables else [])
                table = joined(self._tables[0], records, [record[NUMBER] for record in records])
                import_module("pyarrow.parquet").write_table(table, draft)

    def _line(self, record: Record) -> bytes:
        row = {name: value for name, value in self.rows[record[NUMBER]][0].items() if name != self.column}
        return journal.line({**record, **to_jsonable_python(row, inf_nan_mode="strings", fallback=str)})


BLOCKS = 2_000  # Pieces of the input that Ray is handed, at most: each costs some milliseconds


def drawn(
    task: Task, rows: Rows, finished: Container[int], pool: Pool, batch_size: int, *, token_ids: bool
) -> Iterator[Told]:
    """Draw the rows that are not ``finished``, by actors; yield the records of each as they come."""
    left = {number: prompt for number, (_, prompt) in enumerate(rows) if number not in finished}
    errors = {number: prompt for number, prompt in left.items() if isinstance(prompt, UnsupportedError)}
    if errors:
        bad = [journal.Outcome(index=number, prompt=None, error=error) for number, error in errors.items()]
        yield told(bad, token_ids=token_ids)
    prompts = {number: json.dumps(prompt) for number, prompt in left.items() if number not in errors}
    if not prompts:
        return
    table = import_module("pyarrow").table({"number": list(prompts), "prompt": list(prompts.values())})
    size = batch_size * -(-len(prompts) // (batch_size * BLOCKS))
    blocks = ray_data().from_arrow([table.slice(first, size) for first in range(0, len(prompts), size)])
    found = pool.map(blocks, RecordDrawer, batch_size, task=task, token_ids=token_ids)
    for block in found.iter_batches(batch_size=None, batch_format="pyarrow"):
        yield from map(pickle.loads, block.column("drawn").to_pylist())


def draw_into(
    parts: Parts,
    task: Task,
    pool: Pool,
    batch_size: int,
    *,
    token_ids: bool = False,
    overwrite: bool = False,
    quiet: bool = True,
) -> int:
    """Draw by actors what the parts do not have yet; return the exit code."""
    rows = parts.rows

    def begun(task: Task) -> tuple[Record, Drawing]:
        started = pool.started()
        prompts = ["" if isinstance(prompt, UnsupportedError) else prompt for _, prompt in rows]
        # Up to the first chat, which the model may have no template for; none where there are no chats.
        chat = next((number for number, prompt in enumerate(prompts) if isinstance(prompt, list)), -1)
        header = started.once(_header, task, prompts[: chat + 1]) | {"parts": parts.form}
        return header, lambda done, _: drawn(task, rows, done, started, batch_size, token_ids=token_ids)

    return run(parts, task, begun, len(rows), overwrite=overwrite, shown=not quiet)


def _header(task: Task, prompts: list[Any]) -> Record:
    """Return the settings of the draws; raises the error that every prompt would raise."""
    model = task.loaded()
    check_chats(model, prompts)
    task.batches(model)
    return task.header(model)
