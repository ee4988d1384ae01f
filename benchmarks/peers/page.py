"""The tables and the figure of ``docs/peers.md``, from the kept results."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.table import measured_by
from outlines_phi.fidelity.plots import FAINT, INK, figure_class, png
from outlines_phi.fidelity.report_text import TextTable

PAGE = Path(__file__).parents[2] / "docs" / "peers.md"
PICTURE = PAGE.parent / "images" / "peers.png"
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

Rows = list[dict[str, Any]]


def number(value: Any) -> str:
    """Return a value as the tables show it."""
    if not isinstance(value, float | int):
        return str(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value >= 0.0005 or value == 0 else f"{value:.0e}"


def matrix(rows: Rows, corner: str, column: str, cell: Callable[[dict[str, Any]], str]) -> str:
    """Return a table with a row per method and a column per value of ``column``."""
    places, methods = (list(dict.fromkeys(row[key] for row in rows)) for key in (column, "method"))
    by = {(row[column], row["method"]): row for row in rows}
    lines = [
        [method, *(cell(by[place, method]) if (place, method) in by else "" for place in places)] for method in methods
    ]
    return "\n".join(TextTable([corner, *places], lines).markdown())


def with_floor(tv: Any, floor: Any) -> str:
    """Return a total variation with its floor in brackets."""
    return "-" if tv == "" else f"{number(tv)} ({number(floor)})" if floor != "" else number(tv)


def masks_of(rows: Rows) -> str:
    """Return a table of the masks that differ, summed over the languages, with a row per backend."""
    lines = []
    for backend in dict.fromkeys(row["backend"] for row in rows):
        found = [row for row in rows if row["backend"] == backend]
        counts = [str(sum(row[name] for row in found)) for name in ("prefixes", "too few", "too many")]
        lines.append((backend, str(len(found)), *counts))
    return "\n".join(TextTable(("masks of", "languages", "prefixes", "too few", "too many"), lines).markdown())


def banned(row: dict[str, Any]) -> str:
    """Return the cell of a method of banning: its distance, its tokens and what it leaks."""
    leak = f"; leaks {number(row['leak'])}" if row["leak"] else ""
    return f"{with_floor(row['TV of a draw'], row['floor'])}; {number(row['tokens a draw'])}{leak}"


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
    names = ("", "_curves", "_masks", "_bans", "_tools")
    draws, curves, masks, bans, tools = (report.kept(f"peers{name}") for name in names)
    rows, level = draws["rows"], "1000 tokens"
    drawn = [row for row in rows if row["TV of a draw"] != "" or row["calls"] != ""]
    versions = ", ".join(f"{name} {value}" for name, value in draws["settings"].items() if isinstance(value, str))
    many = [row for row in rows if row[f"TV at {level}"] != ""]
    parts = [
        matrix(drawn, "one draw: TV (floor); tokens", "language", lambda row: (
            f"{with_floor(row['TV of a draw'], row['floor'])}; {number(row['tokens'])}"
        )),
        matrix(many, "many draws: TV (floor) at 1,000 tokens", "language", lambda row: with_floor(
            row[f"TV at {level}"], row[f"floor at {level}"]
        )),
        masks_of(masks["rows"]),
        matrix(bans["rows"], "bans: TV (floor); tokens", "case", banned),
        matrix([row for row in tools["rows"] if row["draws"] != ""], "chosen tool: TV (floor)", "choice", lambda row: (
            with_floor(row["TV"], row["floor"])
        )),
        f"{measured_by(draws)}, {versions}. {draws['settings']['draws']} draws of a call each.",
    ]  # fmt: skip
    report.rewrite(PAGE, "peers", "\n\n".join(parts))
    PICTURE.write_bytes(png(figure(rows, curves["rows"])))
