"""A folder of draws: a first file that says what they depend on, and parts, each written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, final

from pydantic_core import to_jsonable_python

from ...errors import UnsupportedError
from ...numerics.cache import replacing
from .. import journal
from ..inputs import PARQUET, Rows, read_prompt
from ..journal import ANEW, Record
from .columns import NUMBER, check_names, joined, table_of

RUN = "run.jsonl"  # The file with the first line
FORMS = ("jsonl", "parquet")
PART = "part-{:06d}.{}"


@final
@dataclass(frozen=True, kw_only=True)
class Parts:
    """The draws of the rows of an input, in a folder.

    A part has all draws of each of its rows, or the error, beside what stood there in the input.
    """

    folder: Path
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
        if self.folder.exists() and not self.folder.is_dir():
            raise UnsupportedError(
                f"Give the path of a folder: --output {self.folder} is a file, and --ray writes parts."
            )
        if not self.folder.parent.is_dir():
            raise UnsupportedError(f"Make the folder {self.folder.parent} first: --output {self.folder} is in it.")
        if self.folder.exists() and any(self.folder.iterdir()) and not (self.folder / RUN).exists():
            raise UnsupportedError(
                f"Give another folder, or empty it: --output {self.folder} has files that outlines-phi did not write."
            )

    def header(self) -> Record | None:
        """Return what the draws of the folder depend on; ``None`` where it was not begun."""
        path = self.folder / RUN
        return next((record for record, _ in journal.records(path)), None) if path.exists() else None

    def finished(self) -> dict[int, bool]:
        """Return the numbers of the rows that are in the parts, and of each whether it ended by an error.

        Raises :class:`UnsupportedError` where a part has another prompt than the input, or is of another form.
        """
        found: dict[int, bool] = {}
        for path in self._parts():
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
        return found

    def _parts(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("part-*") if path.suffix in (".jsonl", PARQUET))

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
    def writing(self, header: Record, *, anew: bool) -> Iterator[Callable[[Mapping[int, Sequence[Record]]], None]]:
        """Lend what writes the records of rows, by their numbers, as a new part; no other run writes meanwhile."""
        self.folder.mkdir(exist_ok=True)
        begun = self.folder / RUN
        size = begun.stat().st_size if begun.exists() and not anew else 0
        with journal.writing(begun, size) as write:
            if not size:
                for path in self._parts():
                    path.unlink()
                write([header])
            for torn in self.folder.glob(".part-*"):
                torn.unlink()
            number = max((int(path.stem.removeprefix("part-")) for path in self._parts()), default=-1)

            def written(records: Mapping[int, Sequence[Record]]) -> None:
                nonlocal number
                number += 1
                with replacing(self.folder / PART.format(number, self.form)) as draft:
                    if self.form == "jsonl":
                        draft.write_bytes(b"".join(self._lines(records)))
                    else:
                        import_module("pyarrow.parquet").write_table(self._joined(records), draft)

            yield written

    def _lines(self, records: Mapping[int, Sequence[Record]]) -> Iterator[bytes]:
        for number, each in records.items():
            row = {name: value for name, value in self.rows[number][0].items() if name != self.column}
            row = to_jsonable_python(row, inf_nan_mode="strings", fallback=str)
            for record in each:
                yield journal.line({**record, **row})

    def _joined(self, records: Mapping[int, Sequence[Record]]) -> Any:
        if not self._tables:
            self._tables.append(table_of(self.rows, self.file))
        return joined(self._tables[0].take(list(records)), list(records.values()))
