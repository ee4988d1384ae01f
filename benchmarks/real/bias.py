"""The distance of masking from the conditioned distribution: masked draws against ``probabilities``, with intervals.

    python -m benchmarks.real --what bias --only "sentiment; rating"

For each of ten prompts: the exact distribution over values, and masked draws. *TV* is the mean total variation over the prompts,
with a 95 % interval by resampling the draws; beside it stands the *floor*, what as many draws of the exact distribution show.
*Worth* is the effective sample size of a masked draw. Formats whose values are too many to enumerate have that alone.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import outlines
from rich.progress import track

import outlines_phi
from benchmarks.real.rows import Row, kept_rows, say, share_interval
from benchmarks.real.tasks import Task, chosen
from outlines_phi.errors import BudgetError
from outlines_phi.fidelity.comparison import noise_floor
from outlines_phi.sampling.phi_options import Effort

TASKS = "sentiment; topic; letter; city; rating; date"
ENUMERATION = Effort(tokens=2_000)
RESAMPLES = 2_000


def measure(model: Any, task: Task, prompts: int, n: int) -> Row:
    """Make the trials of a task that are missing: one a prompt."""
    generator = outlines_phi.Generator(model, task.output_type, phi="local")
    row = Row.of("bias", task.name, task=task.name, n=n)
    for trial in track(range(prompts), description=f"{task.name:16}"):
        if trial in row:
            continue
        (prompt,) = task.prompts(trial)
        settings = {"max_new_tokens": task.tokens}
        draws = generator.sample(prompt, n, seed=trial, **settings)
        found = {"masked": Counter(draws.texts), "worth": draws.ess / n}
        try:
            law = generator.probabilities(prompt, effort=ENUMERATION, **settings)
            row.add(trial, found | {"exact": {one.text: one.p for one in law.values()}, "log_z": law.log_z_bounds})
        except BudgetError as error:
            row.add(trial, found | {"log_z": error.log_z_bounds})
    return row


def summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the table."""
    trials, n = row["trials"].values(), row["about"]["n"]
    worth = statistics.median(trial["worth"] for trial in trials)
    line = {
        "task": row["about"]["task"],
        "prompts": len(trials),
        "TV": "not enumerated",
        "floor": "",
        "most displaced": "",
    }
    if all("exact" in trial for trial in trials):
        rng, distances, floors, displaced = np.random.default_rng(0), [], [], []
        for trial in trials:
            values = [*trial["exact"], *(value for value in trial["masked"] if value not in trial["exact"])]
            exact = np.array([trial["exact"].get(value, 0.0) for value in values])
            masked = np.array([trial["masked"].get(value, 0) for value in values])
            drawn = np.vstack([masked, rng.multinomial(n, masked / n, size=RESAMPLES)]) / n
            distances.append(np.abs(drawn - exact).sum(axis=1) / 2)
            floors.append(noise_floor(trial["exact"], n))
            most = int(np.abs(drawn[0] - exact).argmax())
            displaced.append((abs(drawn[0, most] - exact[most]), values[most], int(masked[most]), exact[most]))
        mean = np.mean(distances, axis=0)
        low, high = np.quantile(mean[1:], [0.025, 0.975])
        # Resampled draws are farther away than the draws themselves, by as much as these are than their distribution.
        shift = mean[1:].mean() - mean[0]
        _, value, count, p = max(displaced)
        between = "{:.2f} to {:.2f}".format(*share_interval(count, n))
        line["TV"] = f"{mean[0]:.2f} ({max(low - shift, 0):.2f} to {high - shift:.2f})"
        line |= {
            "floor": float(np.mean(floors)),
            "most displaced": f"{value}: masked {count / n:.2f} ({between}), exact {p:.2f}",
        }
    known = [math.log(sum(map(math.exp, trial["log_z"])) / 2) for trial in trials]
    return line | {"a masked draw is worth": worth, "log Phi": statistics.median(known)}


def run(loaded: tuple[Any, Any], only: str, prompts: int, n: int) -> None:
    """Measure the missing trials of the tasks, and say each row."""
    model = outlines_phi.wrap(outlines.from_transformers(*loaded))
    for task in chosen(only or TASKS):
        measure(model, task, prompts, n)
        for row in (kept for kept in kept_rows("bias") if kept["about"]["task"] == task.name):
            line = summary(row)
            say(f"  TV {line['TV']}, worth {line['a masked draw is worth']:.2g}, {line['most displaced']}")
