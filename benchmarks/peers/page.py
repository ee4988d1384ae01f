"""The tables and the figure of ``docs/peers.md``, from the kept results."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.table import markdown
from outlines_phi.fidelity.plots import FAINT, INK, figure_class, png
from outlines_phi.fidelity.report_text import TextTable

PAGE = Path(__file__).parents[2] / "docs" / "peers.md"
PICTURE = PAGE.parent / "images" / "peers.png"
START, END = "<!-- peers:start -->", "<!-- peers:end -->"
STYLES = {
    "ours, exact": ("#1b6ca8", "-", "o"),
    "ours, probabilities": ("#1b6ca8", ":", "s"),
    "Outlines, outlines_core": ("#c44e34", "-", "v"),
    "Outlines, llguidance": ("#d98a3d", "-", "^"),
    "Outlines, xgrammar": ("#b08ea2", "-", "D"),
    "plain rejection": ("#7a7f87", "--", "x"),
    "genlm-control, AWRS": ("#4f8f5b", "--", "P"),
    "genlm-control, AWRS and SMC, N = 10": ("#2f6b3a", "-", "*"),
}
"""The lines of the figure."""

ACROSS = 3
"""Panels side by side."""

LEAST = 5e-4
"""Smaller distances are drawn here."""

COMPILED = (
    "ours, exact",
    "Outlines, outlines_core",
    "Outlines, llguidance",
    "Outlines, xgrammar",
    "genlm-control, AWRS",
)
KEPT = 1.0
"""Milliseconds under which what was compiled was there from another prompt."""

Rows = list[dict[str, Any]]


def kept(name: str) -> dict[str, Any]:
    """Return a kept result, its rows by column."""
    result = json.loads((report.RESULTS / f"{name}.json").read_text())
    return result | {"rows": [dict(zip(result["columns"], row, strict=True)) for row in result["rows"]]}


def number(value: Any) -> str:
    """Return a value as the tables show it."""
    if not isinstance(value, float | int):
        return str(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value >= 0.0005 or value == 0 else f"{value:.0e}"


def matrix(rows: Rows, corner: str, cell: Callable[[dict[str, Any]], str]) -> list[str]:
    """Return a table with a row per method and a column per language."""
    languages, methods = (list(dict.fromkeys(row[key] for row in rows)) for key in ("language", "method"))
    by = {(row["language"], row["method"]): row for row in rows}
    lines = [
        [method, *(cell(by[name, method]) if (name, method) in by else "" for name in languages)] for method in methods
    ]
    return [*TextTable([corner, *languages], lines).markdown(), ""]


def with_floor(tv: Any, floor: Any) -> str:
    """Return a total variation with its floor in brackets."""
    return "-" if tv == "" else f"{number(tv)} ({number(floor)})" if floor != "" else number(tv)


def listed(rows: Rows, columns: Sequence[str]) -> list[str]:
    """Return some columns of a result as a table."""
    lines = [[number(row[column]) if row[column] != "" else "-" for column in columns] for row in rows]
    return [*TextTable(list(columns), lines).markdown(), ""]


def figure(draws: Rows, curves: Rows) -> Any:
    """Return the picture: total variation over model tokens, a panel per language."""
    languages = list(dict.fromkeys(row["language"] for row in curves))
    lines = math.ceil((len(languages) + 1) / ACROSS)
    picture = figure_class()(figsize=(10.5, 3.4 * lines), layout="constrained", facecolor="white")
    axes = picture.subplots(lines, ACROSS, sharey=True, squeeze=False).flatten()
    phi = {row["language"]: row["Phi"] for row in draws}
    for axis, language in zip(axes, languages, strict=False):
        for method, (color, line, marker) in STYLES.items():
            points = [row for row in curves if (row["language"], row["method"]) == (language, method)]
            axis.plot(
                [max(1, row["tokens"]) for row in points],
                [max(LEAST, row["TV"]) for row in points],
                line, color=color, marker=marker, markersize=3.5, linewidth=1.4, label=method,
            )  # fmt: skip
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_ylim(0.8 * LEAST, 1.3)
        axis.set_title(f"{language}, Phi {phi[language]:.2g}", fontsize=9, color=INK, loc="left")
        axis.set_xlabel("model tokens beyond the prompt", fontsize=8, color=INK)
        axis.grid(color=FAINT)
        axis.set_axisbelow(True)
        axis.tick_params(which="both", length=0, colors=INK, labelsize=8)
        axis.spines[:].set_visible(False)
    for axis in axes[len(languages) :]:
        axis.set_axis_off()
    axes[-1].legend(*axes[0].get_legend_handles_labels(), loc="center", frameon=False, fontsize=9)
    picture.supylabel("total variation to the exact distribution", fontsize=9, color=INK)
    return picture


def write() -> None:
    """Replace the text between the markers of the page, and the picture."""
    draws, curves, masks, bans = (kept(name) for name in ("peers", "peers_curves", "peers_masks", "peers_bans"))
    rows = draws["rows"]
    drawn = [row for row in rows if row["TV of a draw"] != "" or row["calls"] != ""]
    many = [row for row in rows if row["TV at 1000 tokens"] != "" or row["TV at 100 tokens"] != ""]
    versions = ", ".join(
        f"{name} {value}"
        for name, value in {**draws["versions"], **draws["settings"]}.items()
        if name not in ("draws", "pool", "bans")
    )
    columns = ["case", "method", "tokens a draw", "ms a draw", "TV of a draw", "floor", "leak", "no draw", "draws"]
    parts = [
        "### One draw", "",
        "TV of a draw to the exact distribution, in brackets that of as many exact draws.", "",
        *matrix(drawn, "TV of a draw", lambda row: with_floor(row["TV of a draw"], row["floor"])),
        *matrix(
            drawn,
            "calls, tokens, processor ms",
            lambda row: ", ".join(number(row[column]) for column in ("calls", "tokens", "ms")),
        ),
        *matrix(
            [row for row in drawn if row["method"] in COMPILED],
            "compiling, processor ms",
            lambda row: number(row["compile, ms"]) if row["compile, ms"] >= KEPT else "kept",
        ),
        "### Many draws at equal model tokens", "",
        "TV of what 100 and 1,000 model tokens give, in brackets that of as many exact draws.", "",
        *(line for level in (100, 1000) for line in matrix(
            many,
            f"TV at {level:,} tokens",
            lambda row, level=level: with_floor(row[f"TV at {level} tokens"], row[f"floor at {level} tokens"]),
        )),
        "### Masks", "", *listed(masks["rows"], masks["columns"]),
        "### Bans", "", *listed(bans["rows"], columns),
        f"Two cores of a CPU, one thread. Python {draws['machine']['python']}, {versions}, {draws['machine']['date']}. "
        f"{draws['settings']['draws']} draws of a call each, {draws['settings']['pool']} of a curve at most.",
    ]  # fmt: skip
    checkpoint = report.RESULTS / "real_model.json"
    if checkpoint.exists():
        parts += ["", markdown(json.loads(checkpoint.read_text())).rstrip("\n")]
    before, rest = PAGE.read_text().split(START)
    PAGE.write_text(f"{before}{START}\n\n" + "\n".join(parts) + f"\n\n{END}{rest.split(END)[1]}")
    PICTURE.write_bytes(png(figure(rows, curves["rows"])))
