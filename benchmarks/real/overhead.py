"""The time of a model call beside the model: its forward pass alone, a draw of stock Outlines, and a draw of ``local``.

    python -m benchmarks.real --what overhead

Milliseconds of CPU of one thread for each model call of a record, the prompt's included. The three take turns; the forward passes
are those over the prompt and over the tokens of the text that stock Outlines has drawn, one after the other.
"""

import math
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
from rich.progress import track
from transformers import DynamicCache

from benchmarks.real.cost import WARM_UP, Bench
from benchmarks.real.rows import Row, kept_rows, say
from benchmarks.real.tasks import chosen

TASK = "record, 3 fields"


@torch.inference_mode()
def forward(bench: Bench, prompt: str, text: str, calls: int) -> float:
    """Return the CPU seconds of so many forward passes: over a prompt, then over single tokens of ``text``."""
    hf_model, tokenizer = bench.stock.model, bench.stock.tokenizer
    templated = bench.stock.type_adapter.format_input(prompt)
    ids = tokenizer.tokenizer(templated, add_special_tokens=False, return_tensors="pt")["input_ids"]
    tokens = tokenizer.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"][:, : calls - 1]
    cache, start = DynamicCache(), time.process_time()
    for part in (ids, *tokens.split(1, dim=1)):
        hf_model(part, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return (time.process_time() - start) / (1 + tokens.shape[1])


def summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of the table: medians over the trials."""
    trials = row["trials"].values()
    middle = {name: statistics.median(trial[name] for trial in trials) for name in ("forward", "stock", "local")}
    beside = {f"{name} over forward": middle[name] / middle["forward"] for name in ("stock", "local")}
    return {"task": TASK, **{f"{name}, ms a call": value for name, value in middle.items()}, **beside}


def run(loaded: tuple[Any, Any], seeds: int) -> None:
    """Measure the missing trials, and say the row."""
    bench, (task,), row = Bench(loaded), chosen(TASK), Row.of("overhead", TASK, task=TASK)
    if any(seed not in row for seed in range(seeds)):
        calls = {"stock": bench.stock_call(task), "local": bench.our_call(task, "local", math.inf)}
        for seed in (WARM_UP, *track(range(seeds), description="overhead")):
            if seed in row:
                continue
            drawn = {name: call(seed) for name, call in calls.items()}
            found = {name: 1e3 * one["seconds"] / one["calls"] for name, one in drawn.items()}
            (prompt,), stock = task.prompts(seed), drawn["stock"]
            found["forward"] = 1e3 * forward(bench, prompt, stock["text"], stock["calls"])
            if seed != WARM_UP:
                row.add(seed, found)
    for line in map(summary, kept_rows("overhead")):
        say("  " + ", ".join(f"{name} {value:.3g}" for name, value in line.items() if name != "task"))
