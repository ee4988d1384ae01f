"""Actors of Ray Data, each with a model of its own: batches of prompts go in, draws come out, as columns or as records."""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, final

from ..errors import OutlinesPhiError, UnsupportedError
from ..numerics.checks import counted
from .batches import Task, told
from .inputs import PARQUET, Rows, read_prompt
from .journal import Record, records_of
from .loaded_model import needing

NUMBER = "prompt_index"  # The column that numbers the rows of a file

COLUMNS = {
    "draw_index": "int64",
    "text": "string",
    "value": "string",
    "value_error": "string",
    "token_ids": "list<int64>",
    "log_p": "double",
    "log_w": "double",
    "weight": "double",
    "guarantee": "string",
    "ess": "double",
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
"""The columns of a draw, named as in a line of a file, and their types; ``value`` and ``rejections`` are JSON."""

AS_JSON = ("value", "rejections")


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
    """How many actors there are, and what Ray reserves for each: ``gpus`` by default one where the cluster has any."""

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
        pool = Pool(actors=self.actors, cpus=self.cpus, gpus=gpus)
        if len(ray.nodes()) == 1:
            pool._check_room(there)
        return pool

    def _check_room(self, there: dict[str, float]) -> None:
        for kind, each in (("CPU", self.cpus), ("GPU", self.gpus or 0)):
            if each * self.actors > there.get(kind, 0):
                raise UnsupportedError(
                    f"Give fewer --actors, or start Ray on more machines: {counted(self.actors, 'actor')} of {each:g} {kind} each "
                    f"do not fit, Ray has {there.get(kind, 0):g} here."
                )

    @property
    def _resources(self) -> dict[str, float]:
        return {"num_cpus": self.cpus, "num_gpus": self.gpus or 0}

    def once(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns in a process of its own, which has what an actor has, and ends with it."""
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
