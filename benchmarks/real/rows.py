"""Rows of results that are measured over hours, a file each, so that what was interrupted goes on; and a limit of CPU seconds."""

from __future__ import annotations

import json
import math
import platform
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from rich.console import Console
from scipy.stats import binomtest

from benchmarks import report
from outlines_phi.lm.model import Progress
from outlines_phi.numerics.cache import replacing


class OutOfTime(Exception):
    """A call took more than its CPU seconds."""


@final
class Limit:
    """The CPU seconds of a call: its ``progress=``, which breaks it off after the model call in which they run out."""

    def __init__(self, seconds: float) -> None:
        self.end = time.process_time() + seconds
        self.calls = self.tokens = 0

    def __call__(self, progress: Progress) -> None:
        self.calls, self.tokens = progress.calls, progress.tokens
        if time.process_time() > self.end:
            raise OutOfTime


def cpu() -> str:
    """Return the name of the processor."""
    path = Path("/proc/cpuinfo")
    found = re.search("^model name.*?: (.*)$", path.read_text(), re.MULTILINE) if path.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def say(text: str) -> None:
    """Print a line of progress, cut to 80 columns."""
    Console(width=80, highlight=False).print(text, overflow="ellipsis", no_wrap=True, markup=False)


def file_name(*parts: str) -> str:
    """Return a file's name for a row."""
    return "--".join(re.sub("[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts) + ".json"


def folder(kind: str) -> Path:
    """Return the folder of a kind of results."""
    return report.RESULTS / "real" / kind


@final
@dataclass
class Row:
    """A row: what it is of, and its trials by number.

    Attributes
    ----------
    path
        Its file.
    about
        What is measured and under which settings. A kept row about something else is begun anew.
    trials
        What each trial found, by its number.
    """

    path: Path
    about: dict[str, Any]
    trials: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: str, *key: str, **about: Any) -> Row:
        """Return the row of this key, with the trials that were kept."""
        row = cls(folder(kind) / file_name(*key), json.loads(json.dumps(about)))
        if row.path.exists() and (kept := json.loads(row.path.read_text(encoding="utf-8")))["about"] == row.about:
            row.trials = kept["trials"]
        return row

    def __contains__(self, trial: object) -> bool:
        return str(trial) in self.trials

    def add(self, trial: object, found: Any) -> None:
        """Keep the findings of a trial."""
        self.trials[str(trial)] = json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.5g}"))
        kept = {"about": self.about, "trials": self.trials, "cpu": cpu(), **report.surroundings()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as partial:
            partial.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def kept_rows(kind: str) -> list[dict[str, Any]]:
    """Return all rows of a kind that were kept."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder(kind).glob("*.json"))]


def share_interval(successes: int, n: int) -> tuple[float, float]:
    """Return Wilson's interval of 95 % of a share."""
    found = binomtest(successes, n).proportion_ci(0.95, method="wilson") if n else (0.0, 1.0)
    return float(found[0]), float(found[1])


def finite(value: float) -> float | None:
    """Return a number that JSON can hold, or ``None``."""
    return value if math.isfinite(value) else None
