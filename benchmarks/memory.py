"""The memory of a process over many mixed calls, each with a prompt of its own, under a small bound on kept trees.

python -m benchmarks.memory

Linux only: the resident set is read from /proc.
"""

import gc
import resource
import statistics
import threading
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import track

import outlines_phi
from benchmarks.report import Report
from benchmarks.traffic import Traffic
from outlines_phi.lm import bundled


def resident() -> int:
    """Return the bytes of the process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main(
    calls: Annotated[int, typer.Option(help="Calls.")] = 10_000,
    bound: Annotated[int, typer.Option(help="Bytes that kept trees and their tables may take.")] = 2**20,
    warm_up: Annotated[int, typer.Option(help="Calls after which memory should be flat.")] = 2_000,
    every: Annotated[int, typer.Option(help="Calls between two looks.")] = 1_000,
) -> None:
    """Measure and write ``memory.json``."""
    torch.set_num_threads(1)
    model = outlines_phi.from_transformers(*bundled.load(), max_tree_bytes=bound)
    traffic = Traffic(model)
    report = Report(
        "memory",
        f"{calls} mixed calls with distinct prompts, trees bounded by {bound} bytes",
        ["calls", "seconds", "resident, MB", "largest store, bytes", "trees", "Python objects"],
    )
    looks: list[tuple[int, int]] = []
    start, largest = time.perf_counter(), 0
    for number in track(range(calls)):
        traffic.call(number)
        largest = max(largest, model._trees.bytes)
        assert largest <= bound, f"{largest} bytes are kept after call {number}"
        assert not [thread for thread in threading.enumerate() if thread.name == "outlines_phi stream"]
        if (number + 1) % every == 0:
            gc.collect()
            looks.append((number + 1, resident()))
            seconds = time.perf_counter() - start
            report.add(number + 1, seconds, looks[-1][1] / 2**20, largest, len(model._trees), len(gc.get_objects()))
    flat = [look for look in looks if look[0] >= warm_up]
    slope = statistics.linear_regression(*zip(*flat, strict=True)).slope
    report.write(
        calls=calls,
        bound=bound,
        refused=traffic.refused,
        cancelled=traffic.cancelled,
        warm_up=warm_up,
        **{
            "bytes per call after it": round(slope, 1),
            "largest difference after it, MB": round(
                (max(size for _, size in flat) - min(size for _, size in flat)) / 2**20, 2
            ),
        },
    )


if __name__ == "__main__":
    typer.run(main)
