"""The tables and figures of ``docs/real-model.md`` and of the README, from the kept results.

python -m benchmarks.real.page
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.real import accuracy, bias, calibration, choices, cost, fit, overhead
from benchmarks.real.rows import kept_rows
from benchmarks.real.tasks import TASKS
from outlines_phi.fidelity.plots import COLORS, FAINT, INK, Measured, bars, figure_class, png
from outlines_phi.fidelity.report_text import TextTable

PAGE = Path(__file__).parents[2] / "docs" / "real-model.md"
README = Path(__file__).parents[2] / "README.md"
SUMMARIES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "cost": cost.summary, "bias": bias.summary, "accuracy": accuracy.summary, "calibration": calibration.summary,
    "fit": fit.summary, "choices": choices.summary, "overhead": overhead.summary, "cuda": cost.summary,
}  # fmt: skip
ROW = "set", "method", "T"
"""Columns of accuracy that say of what a row is."""

METHODS = ["greedy", "mode", "local", "fields", "auto", "exact", *calibration.METHODS, *choices.SCORES]
ORDER = [*(task.name for task in TASKS), *accuracy.SETS, *choices.FORMS]
SHOWN = "rating", "topic"
"""Tasks of which the values of a prompt are drawn: that of the middle total variation."""

VALUES = 6


def of_bias(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return the figure of masking's bias: total variations of tasks, then masked shares and exact probabilities of values."""
    known = {row["about"]["task"]: row for row in rows if all("exact" in trial for trial in row["trials"].values())}
    panels = [name for name in SHOWN if name in known]
    figure = figure_class()(figsize=(4 * (1 + len(panels)), 2.9), layout="constrained", facecolor="white")
    left, *others = figure.subplots(1, 1 + len(panels), squeeze=False)[0]
    distances = {name: bias.distance(list(row["trials"].values()), row["about"]["n"]) for name, row in known.items()}
    bars(
        left, [Measured(name, "", 0.0, tv, tv, low, high) for name, (tv, low, high, _) in distances.items()], COLORS[0]
    )
    left.set_title("Masking's total variation to the model", loc="left", fontsize=10, fontweight="bold", color=INK)
    left.set_xlabel("mean of the prompts, with its interval of 95 %", fontsize=8, color=INK)
    for axis, name in zip(others, panels, strict=True):
        trials = sorted(known[name]["trials"].values(), key=lambda trial: bias.distance([trial], 300)[0])
        values, (masked, exact) = bias.shares(trials[len(trials) // 2])
        most = sorted(range(len(values)), key=lambda i: -max(masked[i], exact[i]))[:VALUES]
        bars(axis, [Measured(values[i], "", 0.0, masked[i], exact[i], exact[i], exact[i]) for i in most], COLORS[0])
        axis.set_title(
            f"{name}: bars masked, marks the model's own", loc="left", fontsize=10, fontweight="bold", color=INK
        )
        axis.set_xlabel("probability, after the prompt of the middle total variation", fontsize=8, color=INK)
    return figure


def of_calibration(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return the reliability figure: of each set, the share of right answers by their confidence; marks grow with the answers."""
    names = list(dict.fromkeys(row["about"]["set"] for row in rows))
    figure = figure_class()(figsize=(4.6 * len(names), 4.2), layout="constrained", facecolor="white")
    for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        axis.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
        for row, color in zip((row for row in rows if row["about"]["set"] == name), COLORS, strict=False):
            bins = calibration.reliability(calibration.pairs(list(row["trials"].values())))
            counts, confidence, right = zip(*bins, strict=True)
            axis.plot(confidence, right, color=color, linewidth=1.4, label=row["about"]["method"])
            axis.scatter(confidence, right, s=[6 + 2 * count for count in counts], color=color, alpha=0.7, linewidths=0)
        axis.set_title(name, loc="left", fontsize=11, fontweight="bold", color=INK)
        axis.set(xlim=(0, 1), ylim=(0, 1))
        axis.set_xlabel("confidence", fontsize=9, color=INK)
        axis.set_ylabel("share of answers that are right", fontsize=9, color=INK)
        axis.grid(color=FAINT)
        axis.spines[:].set_visible(False)
        axis.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


FIGURES = {"bias": of_bias, "calibration": of_calibration}


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the place of a row in its table."""
    about = row["about"]
    name, method = about.get("task") or about["set"], about.get("phi") or about.get("method", "greedy")
    return (
        ORDER.index(name),
        -about.get("temperature", 1.0),
        METHODS.index(method) if method in METHODS else len(METHODS),
        about.get("added", ""),
        about.get("ends") != "text",
    )


def cell(value: Any, form: str = ".3g") -> str:
    """Return a value as a table shows it."""
    return format(value, form) if isinstance(value, float) else str(value)


def markdown(lines: Sequence[dict[str, Any]]) -> str:
    """Return a table, without the spaces beside its bars; or that there is none yet."""
    table = TextTable(list(lines[0]) if lines else [], [[cell(value) for value in line.values()] for line in lines])
    return re.sub(r" ?(?<!\\)\| ?", "|", "\n".join(table.markdown())) or "Not measured yet."


def remark(results: Sequence[dict[str, Any]]) -> str:
    """Return on what, with what and when results were measured."""
    hardware = sorted({result["cpu"] for result in results if "cpu" in result})
    versions = sorted({f"{name} {version}" for result in results for name, version in result["versions"].items()})
    dates = sorted({result["machine"]["date"] for result in results})
    return f"{', '.join(hardware)}, one thread. {', '.join(versions)}. {' to '.join(dict.fromkeys([dates[0], dates[-1]]))}."


def by_method(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines of accuracy by method and temperature: columns of the sets side by side, without those that say nothing."""
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    columns = {(line["set"], name): "" for line in lines for name, value in line.items() if value and name not in ROW}
    for line in lines:
        row = merged.setdefault((line["method"], line["T"]), {name: line[name] for name in ROW[1:]} | columns)
        row |= {(line["set"], name): line[name] for name in line if (line["set"], name) in row}
    return [
        {name if isinstance(name, str) else ": ".join(name): value for name, value in row.items()}
        for row in merged.values()
    ]


def dyck(kept: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a line for each language of Dyck words: the total variation of each method, and the floor of draws in brackets."""
    lines: dict[str, dict[str, Any]] = {}
    for one in (dict(zip(kept["columns"], row, strict=True)) for row in kept["rows"]):
        line = lines.setdefault(one["language"], {"language": one["language"], "Phi": one["Phi"]})
        line[one["method"]] = f"{cell(one['TV'])} ({cell(one['floor'])})" if one["floor"] else one["TV"]
    return list(lines.values())


OVERVIEW = "sentiment", "letter", "city", "rating", "date", "record, 3 fields", "record, 6 fields"
"""The tasks of the README's table."""


def overview(costs: Sequence[dict[str, Any]], biases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a line for each task under ``auto``: the bias of masking, and what draws without it cost."""
    known, lines = {line["task"]: line for line in map(bias.summary, biases)}, []
    for row in (row for row in costs if row["about"]["phi"] == "auto" and row["about"]["task"] in OVERVIEW):
        line, trials = cost.summary(row), row["trials"].values()
        masked = known.get(line["task"], {"TV": "", "a masked draw is worth": ""})
        exact = sum(pair["phi"].get("guarantee") == "EXACT" for pair in trials)
        lines.append(
            {
                "task": line["task"],
                "TV of masking": masked["TV"],
                "masked draw worth": cell(masked["a masked draw is worth"], ".2g"),
                "CPU, auto": f"{line['ratio']:.1f}",
                "draws exact": f"{exact}/{len(trials)}",
            }
        )
    return lines


def write() -> None:
    """Replace the text between the markers of the page and of the README, and the figures."""
    rows = {kind: sorted(kept_rows(kind), key=place) for kind in SUMMARIES}
    rows["cuda"] = [row for row in rows["cuda"] if row["about"]["phi"] == "auto"]
    for kind, summary in SUMMARIES.items():
        lines = [summary(row) for row in rows[kind]]
        report.rewrite(PAGE, kind, markdown(by_method(lines) if kind == "accuracy" else lines))
    path = report.RESULTS / "real" / "dyck.json"
    kept = [json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []
    report.rewrite(PAGE, "dyck", markdown([line for one in kept for line in dyck(one)]))
    report.rewrite(PAGE, "measured", remark([row for kind in SUMMARIES if kind != "cuda" for row in rows[kind]] + kept))
    report.rewrite(README, "real", markdown(overview(rows["cost"], rows["bias"])))
    (PAGE.parent / "images").mkdir(exist_ok=True)
    for kind, figure in FIGURES.items():
        if rows[kind]:
            (PAGE.parent / "images" / f"real-{kind}.png").write_bytes(png(figure(rows[kind])))


if __name__ == "__main__":
    write()
