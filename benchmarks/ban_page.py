"""Write the table and the figure of ``docs/banned-phrases.md`` from the kept results of ``benchmarks.ban_distances``.

python -m benchmarks.ban_page
"""

import statistics
from pathlib import Path
from typing import Any

from benchmarks.ban_distances import COMPARED, EXACT, LEAKY, MASK, NOTHING
from benchmarks.report import kept, rewrite
from outlines_phi.fidelity.plots import COLORS, FAINT, INK, figure_class, png
from outlines_phi.fidelity.report_text import TextTable

PAGE = Path(__file__).parent.parent / "docs" / "banned-phrases.md"
PICTURE = PAGE.parent / "images" / "banned-phrases.png"
METHODS = (NOTHING, *COMPARED, EXACT)
SAME = 1e-9
"""Distances that differ by less are equal."""

Rows = list[dict[str, Any]]


def number(value: float | str) -> str:
    """Return ``value`` as the tables show it."""
    return (
        value if isinstance(value, str) else "0" if value == 0 else f"{value:.3f}" if value >= 5e-4 else f"{value:.0e}"
    )


def cases(rows: Rows) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the rows by case and method."""
    return {row["case"]: {other["method"]: other for other in rows if other["case"] == row["case"]} for row in rows}


def distances(named: Rows, random: Rows) -> str:
    """Return the table of distances and leaks."""
    by_case = cases(named)
    lines = []
    for method in METHODS:
        found = [
            number(rows[method]["TV to mu*"])
            + (f" (leak {number(rows[method]['leak'])})" if rows[method]["leak"] else "")
            for rows in by_case.values()
        ]
        lines.append([method, *found, *over_random(method, random)])
    head = ["TV to the truth", *by_case, f"{len(random)} random distributions: median, worst", "farther than the mask"]
    return "\n".join(TextTable(head, lines).markdown())


def over_random(method: str, random: Rows) -> list[str]:
    """Return the cells of a method over the random distributions."""
    if method == EXACT:
        return ["0, 0", "0"]
    away = [1 - row["Phi"] if method == NOTHING else row[method] for row in random]
    farther = sum(tv > row[MASK] + SAME for tv, row in zip(away, random, strict=True))
    leaks = [row[f"leak of {method}"] for row in random] if method in LEAKY else away if method == NOTHING else []
    leak = f" (leak {number(statistics.median(leaks))}, {number(max(leaks))})" if leaks else ""
    return [f"{number(statistics.median(away))}, {number(max(away))}{leak}", "" if method == MASK else str(farther)]


def figure(named: Rows, random: Rows) -> Any:
    """Return the picture: TV of each method, a dot per random distribution, a mark per named case."""
    picture = figure_class()(figsize=(9.6, 4.4), layout="constrained", facecolor="white")
    axis = picture.subplots()
    for place, method in enumerate(COMPARED):
        away = sorted(row[method] for row in random)
        spread = [place + 0.26 * ((i * 0.618) % 1 - 0.5) for i in range(len(away))]
        axis.scatter(away, spread, s=7, color="#9aa3b2", alpha=0.55, linewidths=0, zorder=2)
        middle = statistics.median(away)
        axis.vlines(middle, place - 0.3, place + 0.3, color=INK, linewidth=2.2, zorder=3)
        axis.annotate(number(middle), (middle, place - 0.34), ha="center", va="bottom", fontsize=8, color=INK)
    for (name, rows), color, marker, size in zip(cases(named).items(), COLORS, "DsP", (110, 44, 60), strict=False):
        points = [rows[method]["TV to mu*"] for method in COMPARED]
        axis.scatter(
            points, range(len(points)), s=size, color=color, marker=marker, label=name, zorder=4, edgecolors="white"
        )
    axis.set_xscale("symlog", linthresh=1e-3, linscale=0.4)
    axis.set_xlim(0, 1)
    axis.set_yticks(range(len(COMPARED)), COMPARED, fontsize=9, color=INK)
    axis.set_ylim(len(COMPARED) - 0.5, -0.6)
    axis.set_title(
        "Distance from the model's distribution without the phrases (TV)",
        loc="left",
        fontsize=11,
        fontweight="bold",
        color=INK,
    )
    axis.set_xlabel(f"dots: {len(random)} random distributions, with their median; 0 is exact", fontsize=9, color=INK)
    axis.grid(axis="x", color=FAINT, linewidth=1.2)
    axis.set_axisbelow(True)
    axis.tick_params(length=0, colors=INK)
    axis.spines[:].set_visible(False)
    axis.legend(loc="upper center", bbox_to_anchor=(0.4, -0.14), ncols=3, frameon=False, fontsize=9)
    return picture


def main() -> None:
    """Replace the text between the markers, and the picture."""
    distributions, random = kept("ban_distances"), kept("ban_random_distances")
    versions = ", ".join(f"{name} {version}" for name, version in distributions["versions"].items())
    table = distances(distributions["rows"], random["rows"])
    rewrite(PAGE, "bans", f"{table}\n\n{versions}, {distributions['machine']['date']}.")
    PICTURE.write_bytes(png(figure(distributions["rows"], random["rows"])))


if __name__ == "__main__":
    main()
