"""``outlines-phi generate --ray``: the draws of many prompts, made by actors, into a folder that a run goes on with."""

from __future__ import annotations

import json
import pickle
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, final

from ...errors import UnsupportedError
from ...numerics.checks import counted
from ..batches import Outcome, Summary
from ..ending import FAILED, INTERRUPTED, note, tell
from ..inputs import Prompt, Rows
from ..journal import Record, check_same_run, records_of, seeded
from ..loaded_model import check_chats
from ..task import Task
from ..terminal import bar
from .drawers import RecordDrawer
from .parts import Parts
from .pool import Pool, ray_data

PART_ROWS, PART_SECONDS = 1024, 10.0
"""A part is written with so many rows, or after so long: what a kill of the run loses, beside the batches under way."""

BLOCKS = 2_000  # Pieces of the input that Ray is handed, at most: each costs some milliseconds


@final
@dataclass(frozen=True, kw_only=True)
class FolderRun:
    """A run of a task over the rows of an input, into parts."""

    task: Task
    parts: Parts
    pool: Pool
    batch_size: int
    # What is written and shown.
    token_ids: bool = False
    overwrite: bool = False
    quiet: bool = True

    def work(self) -> int:
        """Draw what the parts do not have yet; return the exit code."""
        parts, rows = self.parts, self.parts.rows
        parts.check()
        saved = None if self.overwrite else parts.header()
        finished = {} if saved is None else parts.finished()
        run = replace(self, task=replace(self.task, seed=seeded(self.task.seed, saved)), pool=self.pool.started())
        header = run.pool.once(_header, run.task, _to_first_chat(rows)) | {"parts": parts.form}
        if saved is not None:
            check_same_run(saved, header, parts.folder)
        asked = counted(len(rows), "prompt")
        summary = Summary(prompts=len(finished), errors=Counter(earlier=sum(finished.values())))
        if finished:
            note(f"{parts.folder} has {len(finished)} of {asked}; going on from there.")
        left = [number for number in range(len(rows)) if number not in finished]
        interrupted = False
        with (
            parts.writing(header, anew=saved is None) as write,
            bar("prompts", len(rows), begin=len(finished), shown=not self.quiet) as progress,
        ):
            held: dict[int, Sequence[Record]] = {}
            begin = time.monotonic()
            try:
                for records, more in run._drawn(left):
                    held |= records
                    summary.add(more)
                    if len(held) >= PART_ROWS or time.monotonic() - begin > PART_SECONDS:
                        write(held)
                        held, begin = {}, time.monotonic()
                    progress.move(summary.prompts)
            except KeyboardInterrupt:
                interrupted = True
            finally:
                if held:
                    write(held)
        summary.note_written(parts.folder, asked)
        summary.report(asked, self.task.call.phi)
        if interrupted:
            resume = "The same command, without --overwrite, goes on from there."
            tell("Interrupted", "yellow", f"after {summary.prompts} of {asked}. {resume}")
            return INTERRUPTED
        return FAILED if summary.errors.total() else 0

    def _drawn(self, numbers: Sequence[int]) -> Iterator[tuple[dict[int, Sequence[Record]], Summary]]:
        """Yield the records of rows, by their numbers, as they come, and the summary of each batch."""
        prompts: dict[int, Prompt] = {}
        bad = []
        for number in numbers:
            match self.parts.rows[number][1]:
                case UnsupportedError() as error:
                    bad.append(Outcome(index=number, prompt=None, error=error))
                case prompt:
                    prompts[number] = prompt
        if bad:
            yield {each.index: list(records_of(each, token_ids=self.token_ids)) for each in bad}, Summary.of(bad)
        if not prompts:
            return
        table = import_module("pyarrow").table(
            {"number": list(prompts), "prompt": list(map(json.dumps, prompts.values()))}
        )
        size = self.batch_size * -(-len(prompts) // (self.batch_size * BLOCKS))
        blocks = ray_data().from_arrow([table.slice(first, size) for first in range(0, len(prompts), size)])
        drawn = self.pool.map(blocks, RecordDrawer, self.batch_size, task=self.task, token_ids=self.token_ids)
        for block in drawn.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield from map(pickle.loads, block.column("drawn").to_pylist())


def _header(task: Task, prompts: list[Any]) -> Record:
    """Return what the draws depend on; raises what every prompt would raise."""
    model = task.loaded()
    check_chats(model, prompts)
    task.batches(model)
    return task.header(model)


def _to_first_chat(rows: Rows) -> list[Any]:
    """Return the prompts up to the first chat, which the model may have no template for; none where there are no chats."""
    prompts = ["" if isinstance(prompt, UnsupportedError) else prompt for _, prompt in rows]
    chat = next((number for number, prompt in enumerate(prompts) if isinstance(prompt, list)), -1)
    return prompts[: chat + 1]
