"""The distance of masking from the conditioned distribution: masked draws against ``probabilities``, with intervals.

    python -m benchmarks.real --what bias --only "sentiment; rating"

For each of ten prompts: the exact distribution over values, and masked draws. *TV* is the mean total variation over the prompts,
with a 95 % interval by resampling the draws; beside it stands the *floor*, what as many draws of the exact distribution show.
*Worth* is the effective sample size of a masked draw. Formats whose values are too many to enumerate have that alone.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import outlines
from rich.progress import track

import outlines_phi
from benchmarks.real.rows import Row, kept_rows, say, share_interval
from benchmarks.real.tasks import Task, chosen
from outlines_phi.errors import BudgetError
from outlines_phi.fidelity.findings import noise_floor
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


def shares(trial: Mapping[str, Any]) -> tuple[list[str], np.ndarray]:
    """Return the values of a prompt, and ``[2, values]``: their shares of the masked draws, and their exact probabilities."""
    masked, exact = trial["masked"], trial["exact"]
    values = [*exact, *(value for value in masked if value not in exact)]
    n = sum(masked.values())
    return values, np.array([[masked.get(value, 0) / n, exact.get(value, 0.0)] for value in values]).T


def distance(trials: Sequence[Mapping[str, Any]], n: int) -> tuple[float, float, float, float]:
    """Return the mean total variation over prompts, the ends of its interval, and the floor."""
    rng, distances = np.random.default_rng(0), []
    for masked, exact in (shares(trial)[1] for trial in trials):
        drawn = np.vstack([masked, rng.multinomial(n, masked, size=RESAMPLES) / n])
        distances.append(np.abs(drawn - exact).sum(axis=1) / 2)
    mean = np.mean(distances, axis=0)
    low, high = np.quantile(mean[1:], [0.025, 0.975])
    # Resampled draws are farther away than the draws themselves, by as much as these are than their distribution.
    shift = mean[1:].mean() - mean[0]
    floor = np.mean([noise_floor(trial["exact"], n) for trial in trials])
    return float(mean[0]), float(max(low - shift, 0)), float(high - shift), float(floor)


def displaced(trial: Mapping[str, Any], n: int) -> tuple[float, str]:
    """Return the displacement of the most displaced value of a prompt, and the words for it."""
    values, (masked, exact) = shares(trial)
    most = int(np.abs(masked - exact).argmax())
    low, high = share_interval(round(masked[most] * n), n)
    said = f"{values[most]}: masked {masked[most]:.2f} ({low:.2f} to {high:.2f}), exact {exact[most]:.2f}"
    return float(abs(masked[most] - exact[most])), said


def summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the table."""
    trials, n = list(row["trials"].values()), row["about"]["n"]
    tv, floor, most = "not enumerated", "", ""
    if all("exact" in trial for trial in trials):
        mean, low, high, least = distance(trials, n)
        tv, floor, most = (
            f"{mean:.2f} ({low:.2f} to {high:.2f})",
            f"{least:.2f}",
            max(displaced(trial, n) for trial in trials)[1],
        )
    known = [math.log(sum(map(math.exp, trial["log_z"])) / 2) for trial in trials]
    return {
        "task": row["about"]["task"],
        "prompts": len(trials),
        "TV": tv,
        "floor": floor,
        "most displaced": most,
        "a masked draw is worth": statistics.median(trial["worth"] for trial in trials),
        "log Phi": statistics.median(known),
    }


def run(loaded: tuple[Any, Any], only: str, prompts: int, n: int) -> None:
    """Measure the missing trials of the tasks, and say each row."""
    model = outlines_phi.wrap(outlines.from_transformers(*loaded))
    for task in chosen(only or TASKS):
        measure(model, task, prompts, n)
        for row in (kept for kept in kept_rows("bias") if kept["about"]["task"] == task.name):
            line = summary(row)
            say(f"  TV {line['TV']}, worth {line['a masked draw is worth']:.2g}, {line['most displaced']}")
