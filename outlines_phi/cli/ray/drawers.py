"""What an actor of Ray does: it loads a model once, and draws batch after batch."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Sequence
from typing import Any, final

from ...errors import UnsupportedError
from ..batches import Summary
from ..inputs import read_prompt
from ..journal import records_of
from ..task import Task
from .columns import joined


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
        return joined(table, [list(records_of(outcome, token_ids=self._token_ids)) for outcome in outcomes])


@final
class RecordDrawer:
    """Batches of numbered prompts, written as JSON: out come their records and a summary, pickled, in one row per batch."""

    def __init__(self, task: Task, token_ids: bool) -> None:
        self._batches, self._token_ids = task.batches(task.loaded()), token_ids

    def __call__(self, table: Any) -> Any:
        """Return the records of the prompts of a table, by their numbers."""
        numbers, prompts = (table.column(name).to_pylist() for name in ("number", "prompt"))
        outcomes = self._batches.drawn(list(zip(numbers, map(json.loads, prompts), strict=True)))
        summary = Summary.of(outcomes)
        records = {outcome.index: list(records_of(outcome, token_ids=self._token_ids)) for outcome in outcomes}
        return {"drawn": [pickle.dumps((records, summary))]}


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
