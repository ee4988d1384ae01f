"""The cost of drawing in an actor of Ray beside the same work in this process, start-up left out.

    python -m benchmarks.ray_overhead      (in the environment of make test-ray)

The bundled model, one thread, batches of prompts: what one actor draws from when its first batch arrives to when its last does,
beside the same batches here. By the clock, and in processor seconds: those of the driver and the actor, and with all that Ray runs
beside them. Each repetition measures both, one after the other; the figures are medians, of ratios too, since other work on the
machine disturbs them.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from outlines.types import regex

from benchmarks.report import Report
from outlines_phi.cli.actors import Pool, drawn
from outlines_phi.cli.batches import Outcome, Task
from outlines_phi.cli.inputs import BUNDLED, load
from outlines_phi.cli.journal import line, records_of
from outlines_phi.plugin.call import Call, Correction

TYPE = regex("[a-zA-Z ,.]{2,60}")
TICKS = os.sysconf("SC_CLK_TCK")


def seconds_of(pids: set[int]) -> float:
    """Return the processor seconds of some processes."""
    spent = 0
    for pid in pids:
        with suppress(OSError):  # an idle process of Ray may end
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            spent += int(fields[11]) + int(fields[12])
    return spent / TICKS


def processes() -> dict[int, tuple[int, str]]:
    """Return the parent and the command of every process below this one, and of this one."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            name = (path / "cmdline").read_text().replace("\0", " ")
            found[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1]), name
        except OSError:  # it has ended
            continue
    ours, more = {os.getpid()}, {os.getpid()}
    while more:
        more = {pid for pid, (parent, _) in found.items() if parent in more} - ours
        ours |= more
    return {pid: found[pid] for pid in ours}


def measured(batches: Iterator[Any], count: int, actors: bool) -> tuple[float, float, float]:
    """Return the seconds of the clock, of the processes that work, and of all of them, from the first of the batches to the last.

    The actor ends with what comes after the last one, and its seconds with it.
    """
    next(batches)
    there = {pid: each for pid, each in processes().items() if actors or pid == os.getpid()}
    work = {pid for pid, (_, name) in there.items() if pid == os.getpid() or "MapWorker" in name}
    begin, *spent = time.perf_counter(), seconds_of(work), seconds_of(set(there))
    for _ in islice(batches, count - 1):
        pass
    clock = time.perf_counter() - begin
    return clock, seconds_of(work) - spent[0], seconds_of(set(there)) - spent[1]


def lines(outcomes: list[Outcome]) -> list[bytes]:
    """Return the lines that a command writes of a batch."""
    return [line(record) for outcome in outcomes for record in records_of(outcome, token_ids=False)]


def main(
    rows: Annotated[int, typer.Option(help="Prompts.")] = 320,
    n: Annotated[int, typer.Option(help="Draws of each.")] = 32,
    batch_size: Annotated[int, typer.Option(help="Prompts that share model calls.")] = 16,
    repeats: Annotated[int, typer.Option(help="Medians of so many.")] = 5,
) -> None:
    """Measure and write ``ray_overhead.json``."""
    torch.set_num_threads(1)
    prompts = [f"Question: is shop number {number} open? Answer: " for number in range(rows)]
    call = Call.of(Correction().replaced_by("exact"), TYPE, {})
    made: Callable[[], Any] = partial(load, BUNDLED, "cpu", None)
    task = Task(load=made, model=BUNDLED, output_type=TYPE, type_name="", call=call, n=n, seed=1)
    batches = task.batches(task.loaded())
    given = [({"prompt": prompt}, prompt) for prompt in prompts]
    pool = Pool(actors=1).started()
    found = []
    for _ in range(repeats):
        plain = (lines(outcomes) for outcomes in batches.outcomes(prompts, batch_size, 0))
        here = measured(plain, rows // batch_size, actors=False)
        acted = drawn(task, given, (), pool, batch_size, token_ids=False)
        there = measured((list(map(line, records)) for records, _ in acted), rows // batch_size, actors=True)
        found.append((here, there))
        print(here, there, flush=True)
    report = Report(
        "ray_overhead",
        f"One actor of Ray beside one process: {rows - batch_size} prompts of {n} exact draws, batches of {batch_size}; seconds",
        ["what", "one process", "one actor", "ratio"],
    )
    for place, what in enumerate(("clock", "processor: driver and actor", "processor: all of Ray")):
        pairs = [(here[place], there[place]) for here, there in found]
        mine, theirs = zip(*pairs, strict=True)
        ratio = statistics.median(b / a for a, b in pairs)
        report.add(what, statistics.median(mine), statistics.median(theirs), ratio)
    report.write(rows=rows, n=n, batch_size=batch_size, repeats=repeats, load=os.getloadavg()[0])


if __name__ == "__main__":
    typer.run(main)
