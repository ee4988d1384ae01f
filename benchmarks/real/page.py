"""The tables of ``docs/real-model.md``, from the kept results.

python -m benchmarks.real.page
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.real import accuracy, bias, cost, overhead
from benchmarks.real.rows import kept_rows
from benchmarks.real.tasks import TASKS
from outlines_phi.fidelity.report_text import TextTable

PAGE = Path(__file__).parents[2] / "docs" / "real-model.md"
SUMMARIES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "cost": cost.summary, "bias": bias.summary, "accuracy": accuracy.summary, "overhead": overhead.summary,
}  # fmt: skip
DYCK = "language", "Phi", "prefixes", "method", "TV", "floor"
"""Columns of the page, of the table of Dyck words."""

METHODS = ["greedy", "mode", "local", "fields", "auto", "exact"]
ORDER = [*(task.name for task in TASKS), *accuracy.SETS]


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the place of a row in its table."""
    about = row["about"]
    name, method = about.get("task") or about["set"], about.get("phi") or about.get("method", "greedy")
    return (
        ORDER.index(name),
        -about.get("temperature", 1.0),
        METHODS.index(method) if method in METHODS else len(METHODS),
    )


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def markdown(lines: Sequence[dict[str, Any]]) -> str:
    """Return a table."""
    return "\n".join(TextTable(list(lines[0]), [[cell(value) for value in line.values()] for line in lines]).markdown())


def remark(results: Sequence[dict[str, Any]]) -> str:
    """Return on what, with what and when results were measured."""
    hardware = sorted({result.get("cpu", result["machine"]["processor"]) for result in results})
    versions = ", ".join(f"{name} {version}" for name, version in results[-1]["versions"].items())
    dates = sorted({result["machine"]["date"] for result in results})
    return f"{', '.join(hardware)}, one thread. {versions}. {' to '.join(dict.fromkeys([dates[0], dates[-1]]))}."


def write() -> None:
    """Replace the text between the markers of the page; a table that nothing was kept for says so."""
    for kind, summary in SUMMARIES.items():
        rows = sorted(kept_rows(kind), key=place)
        text = f"{markdown([summary(row) for row in rows])}\n\n{remark(rows)}" if rows else "Not measured yet."
        report.rewrite(PAGE, kind, text)
    path = report.RESULTS / "real" / "dyck.json"
    text = "Not measured yet."
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        lines = [dict(zip(kept["columns"], row, strict=True)) for row in kept["rows"]]
        text = f"{markdown([{name: line[name] for name in DYCK} for line in lines])}\n\n{remark([kept])}"
    report.rewrite(PAGE, "dyck", text)


if __name__ == "__main__":
    write()
