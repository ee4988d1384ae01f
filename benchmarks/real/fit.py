"""Effects of a format's fit: ``log Phi``, and the rate of right likeliest values, by the prompt and by the end of a text.

    python -m benchmarks.real --what fit

Two tasks of ten prompts with one right answer each, by enumeration: as they are, with the format asked for in the prompt, and
with texts that may go on after the value (``ends="open"``).
"""

import statistics
import warnings
from collections.abc import Mapping
from typing import Any

import outlines

import outlines_phi
from benchmarks.real.rows import Row, kept_rows, say
from benchmarks.real.tasks import ITEMS, chosen
from outlines_phi.errors import FitWarning

FORMS = ("topic", ""), ("topic", "\n\nAnswer with one word."), ("letter", "")
"""Task, and what is added to its prompts."""

ENDS = "text", "open"


def measure(model: Any, name: str, added: str, ends: str) -> None:
    """Make the trials of a row that are missing: one a prompt."""
    (task,), right = chosen(name), ITEMS[f"{name}, right"]
    row = Row.of("fit", name, "asked" if added else "as it is", ends, task=name, added=added.strip(), ends=ends)
    generator = outlines_phi.Generator(model, task.output_type, ends=ends)
    for trial, answer in enumerate(right):
        if trial not in row:
            law = generator.probabilities(task.prompts(trial)[0] + added, max_new_tokens=task.tokens)
            said = law.entries[0].text
            row.add(trial, {"log_z": law.log_z_bounds[0], "said": said, "right": said == answer, "p": law[answer].p})


def summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the table."""
    about, trials = row["about"], row["trials"].values()
    return {
        "task": about["task"],
        "added to the prompt": about["added"] or "nothing",
        "ends": about["ends"],
        "log Phi": statistics.median(trial["log_z"] for trial in trials),
        "likeliest value right": f"{sum(trial['right'] for trial in trials)} of {len(trials)}",
        "probability of the right one": f"{statistics.mean(trial['p'] for trial in trials):.2f}",
    }


def run(loaded: tuple[Any, Any]) -> None:
    """Measure the missing trials, and say each row."""
    model = outlines_phi.wrap(outlines.from_transformers(*loaded))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        for name, added in FORMS:
            for ends in ENDS:
                measure(model, name, added, ends)
    for line in map(summary, kept_rows("fit")):
        say("  " + ", ".join(map(str, line.values())))
