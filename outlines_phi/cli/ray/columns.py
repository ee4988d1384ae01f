"""Draws as columns of a table beside those of the input: one row per draw, or one for the error of an input row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ...errors import UnsupportedError
from ..inputs import PARQUET, Rows
from ..journal import Record

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


def joined(table: Any, records: Sequence[Sequence[Record]]) -> Any:
    """Return a table of Arrow with a row per record: the columns of the row of ``table`` that it is of, and those of its own."""
    arrow = import_module("pyarrow")
    kinds = {"list<int64>": arrow.list_(arrow.int64()), "list<double>": arrow.list_(arrow.float64())}
    rows = [(number, record) for number, each in enumerate(records) for record in each]
    found = table.take([number for number, _ in rows]) if rows else table.slice(0, 0)
    for name, kind in COLUMNS.items():
        cells = [_cell(name, record) for _, record in rows]
        found = found.append_column(name, arrow.array(cells, kinds.get(kind) or arrow.type_for_alias(kind)))
    return found


def _cell(name: str, record: Record) -> Any:
    given = record.get(name)
    if name in AS_JSON:
        return json.dumps(given, ensure_ascii=False) if given is not None or "text" in record else None
    # Half a surrogate pair of a prompt may stand in a message.
    return given.encode("utf-8", "backslashreplace").decode() if isinstance(given, str) else given
