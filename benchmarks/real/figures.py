"""The figures of the real model, from the kept results: how biased masking is, and how well confidences are calibrated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.real import bias, calibration
from outlines_phi.fidelity.plots import COLORS, FAINT, INK, Measured, bars, figure_class

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
