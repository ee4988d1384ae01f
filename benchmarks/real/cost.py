"""The cost of one draw beside stock Outlines, task by task: model calls, model tokens, and CPU seconds of one thread.

    python -m benchmarks.real --what cost --only "letter; date" --phi local,auto,exact

A trial is a draw of stock Outlines and then one under each ``phi``, of the same prompt and from a cold tree (a seeded call keeps
none). The ratio is that of the CPU seconds of a pair; the row is the median over trials. Formats are compiled before, on both
sides. A draw that takes more than a limit of CPU seconds is broken off, and its row says so. A file a row is kept, after each
trial, in ``results/real/cost``: what was interrupted goes on where it was. With ``--device cuda`` the seconds are those of the
wall, the accelerator waited for, and the folder is ``results/real/cuda``.
"""

import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import outlines
import torch
from rich.progress import track

import outlines_phi
from benchmarks.peers.meter import Meter
from benchmarks.real.rows import Limit, OutOfTime, Row, finite, kept_rows, say
from benchmarks.real.tasks import Task, chosen
from outlines_phi.errors import BudgetError, FidelityWarning
from outlines_phi.plugin.call import CallOptions, resolve_phi

STOCK = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
"""The model's own distribution, as Transformers has to be told."""

WARM_UP = 1_000
"""A seed that no trial has."""

COMPILATION = 10.0
"""CPU seconds after which a first draw, in which formats are compiled, is broken off."""


class Bench:
    """One model, in stock Outlines and in this package."""

    def __init__(self, loaded: tuple[Any, Any]) -> None:
        self.meter, self.device = Meter(loaded[0]), loaded[0].device.type
        self.stock = outlines.from_transformers(*loaded)
        self.ours = outlines_phi.wrap(outlines.from_transformers(*loaded))

    @property
    def kind(self) -> str:
        """The folder of the results."""
        return "cost" if self.device == "cpu" else self.device

    def now(self) -> float:
        """Return the CPU seconds of this process; on an accelerator the time, once it is done."""
        if self.device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def stock_call(self, task: Task) -> Callable[[int], dict[str, Any]]:
        """Return the draw of a seed in stock Outlines, with its cost."""
        made = outlines.Generator(self.stock, task.output_type) if task.output_type is not None else self.stock

        def call(seed: int) -> dict[str, Any]:
            prompts = task.prompts(seed)
            torch.manual_seed(seed)
            (calls, _, rows), start = self.meter.read(), self.now()
            found = made.batch(prompts, max_new_tokens=task.tokens, **STOCK)
            seconds = self.now() - start
            after = self.meter.read()
            tokens = after[2] - rows - len(prompts)
            return {"calls": after[0] - calls, "tokens": tokens, "seconds": seconds, "text": str(found[0])}

        return call

    def our_call(self, task: Task, phi: str, limit: float) -> Callable[[int], dict[str, Any]]:
        """Return the draw of a seed under ``phi``, with its cost and what is known of it; broken off after ``limit`` seconds."""
        generator = outlines_phi.Generator(self.ours, task.output_type, phi=phi, **task.options)
        estimator = resolve_phi(phi)

        def call(seed: int) -> dict[str, Any]:
            prompts, watch, start = task.prompts(seed), Limit(limit), self.now()
            seeds = [len(prompts) * seed + i for i in range(len(prompts))]
            settings = {"seed": seeds, "max_new_tokens": task.tokens, "progress": watch}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FidelityWarning)
                try:
                    options = replace(CallOptions.read(settings, None), weighted=False)  # as calls that return texts
                    draws = self.ours.draw(prompts, generator.table, estimator, options)
                except (BudgetError, OutOfTime) as error:
                    cost = {"calls": watch.calls, "tokens": watch.tokens, "seconds": self.now() - start}
                    return cost | {"failed": getattr(error, "reason", f"more than {limit:g} s")}
            counts, seconds = draws[0].counts, self.now() - start
            worst = min((draw for one in draws for draw in one), key=lambda draw: draw.guarantee)
            known = {"guarantee": str(worst.guarantee), "ess": worst.ess, "candidates": worst.candidates}
            known |= {"blocks": worst.blocks, "picked": worst.picked}
            known["log_z"] = finite(statistics.median(one.log_z for one in draws))
            return {
                "calls": counts.calls,
                "tokens": counts.tokens,
                "seconds": seconds,
                **known,
                "text": draws[0][0].text,
            }

        return call


def measure(bench: Bench, task: Task, names: list[str], seeds: int, seconds: float) -> None:
    """Make the trials of a task that are missing."""
    rows = {
        name: Row.of(
            bench.kind, task.name, name, task=task.name, phi=name, tokens=task.tokens, limit=seconds, batch=task.batch
        )
        for name in names
    }
    missing = {name: row for name, row in rows.items() if any(seed not in row for seed in range(seeds))}
    if not missing:
        return
    stock = bench.stock_call(task)
    ours = {name: bench.our_call(task, name, seconds) for name in missing}
    for call in (stock, *(bench.our_call(task, name, min(seconds, COMPILATION)) for name in missing)):
        call(WARM_UP)
    for seed in track(range(seeds), description=f"{task.name:16}"):
        if waiting := [name for name, row in missing.items() if seed not in row]:
            plain = stock(seed)
            for name in waiting:
                missing[name].add(seed, {"stock": plain, "phi": ours[name](seed)})


def summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the table: medians over the trials."""
    pairs = list(row["trials"].values())
    drawn = [pair["phi"] for pair in pairs if "failed" not in pair["phi"]]
    labels = [one["guarantee"] for one in drawn]
    counted = {
        label: labels.count(label) for label in sorted(set(labels), key=lambda label: (-labels.count(label), label))
    }
    said = [label if count == len(pairs) else f"{label} {count} of {len(pairs)}" for label, count in counted.items()]
    if failed := len(pairs) - len(drawn):
        said.append(f"no draw in {row['about']['limit']:g} s of CPU: {failed} of {len(pairs)}")
    picked = [(one["ess"], one["candidates"]) for one in drawn if one["candidates"] > 1]
    blocks = [sum(one.get(name, 0) for one in drawn) for name in ("picked", "blocks")]
    if blocks[0]:
        said.append(f"{blocks[0]} of {blocks[1]} blocks picked")
    worth = " of ".join(f"{statistics.median(part):.2g}" for part in zip(*picked, strict=True))
    known = [one["log_z"] for one in drawn if one["log_z"] is not None]

    def middle(side: str, name: str) -> float:
        return statistics.median(pair[side][name] for pair in pairs)

    return {
        "task": row["about"]["task"],
        "stock: calls / s": f"{middle('stock', 'calls'):.0f}/{middle('stock', 'seconds'):.2f}",
        "phi": row["about"]["phi"],
        "calls / tokens / s": "/".join(
            [f"{middle('phi', name):.0f}" for name in ("calls", "tokens")] + [f"{middle('phi', 'seconds'):.2f}"]
        ),
        "ratio": statistics.median(pair["phi"]["seconds"] / pair["stock"]["seconds"] for pair in pairs),
        "result": "; ".join(said) + (f" (worth {worth} candidates)" if worth else ""),
        "log Phi": statistics.median(known) if known else "",
    }


def run(loaded: tuple[Any, Any], only: str, phi: str, seeds: int, seconds: float) -> None:
    """Measure the missing trials of the tasks, and say each row."""
    bench, names = Bench(loaded), phi.split(",")
    for task in chosen(only):
        measure(bench, task, names, seeds, seconds)
        for row in map(summary, (kept for kept in kept_rows(bench.kind) if kept["about"]["task"] == task.name)):
            say(f"  {row['phi']:9} {row['ratio']:5.2f} x  {row['calls / tokens / s']}  {row['result']}")
