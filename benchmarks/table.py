"""The kept results: printed by name, or summed up in ``docs/performance.md`` and its figure.

python -m benchmarks.table                       # writes the summary and the figure
python -m benchmarks.table first_draw "hosts_*"  # prints these results in Markdown
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import report
from benchmarks.report import kept
from outlines_phi.fidelity.plots import COLORS, INK, figure_class, png
from outlines_phi.fidelity.report_text import TextTable

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "performance.md"
PICTURE = DOCS / "images" / "performance.png"


def measured_by(result: dict[str, Any]) -> str:
    """Return the machine and the versions that a result was measured with, and when."""
    versions = (f"{name} {version}" for name, version in result["versions"].items())
    machine = "{device}, {threads} threads, Python {python}".format_map(result["machine"])
    return ", ".join([machine, *versions, result["machine"]["date"]])


def markdown(result: dict[str, Any]) -> str:
    """Return one result as a Markdown table under its title, with its settings and what it was measured by."""
    rows = [[f"{value:.3g}" if isinstance(value, float) else str(value) for value in row] for row in result["rows"]]
    settings = ", ".join(f"{name}: {value}" for name, value in result["settings"].items())
    lines = TextTable(result["columns"], rows).markdown()
    return "\n".join([f"### {result['title']}", "", *lines, "", f"{settings}. {measured_by(result)}.", ""])


PAPER, LINES = "#f4f5f8", "#d5d9e2"
"""Of the figure: it stands on light pages and on dark ones."""

Row = dict[str, Any]


class Comparison(NamedTuple):
    """The relative cost of a part of this package: a ratio for each row that was measured."""

    what: str
    beside: str
    unit: str
    ratios: Sequence[float]
    result: str  # where the rows are kept


def comparisons() -> list[Comparison]:
    """Return all comparisons, from the kept results."""
    return [
        Comparison(
            "The first exact draw of a prompt", "one plain draw", "model calls",
            of("first_draw", "calls p50"), "first_draw",
        ),
        Comparison(
            "The first exact draw of a prompt", "one plain draw", "model tokens",
            of("first_draw", "tokens p50"), "first_draw",
        ),
        Comparison(
            "400 exact draws of a prompt", "400 plain draws, same cache", "model tokens",
            of("many_draws", "ratio"), "many_draws",
        ),
        Comparison(
            "An exact draw of 32 prompts in a batch", "the longest alone", "model calls",
            of("batch", "ratio"), "batch",
        ),
        Comparison(
            "An exact draw of a finite type", "one plain call", "time", of("finite", "exact / plain"), "finite",
        ),
        Comparison("One exact draw", "genlm-control, fewest particles", "model tokens", peer("tokens / its"), "control_draw"),
        Comparison("One exact draw", "genlm-control, fewest particles", "time", peer("time / its"), "control_draw"),
        Comparison(
            "A call whose tree is kept", "a call of stock Outlines", "time outside the model",
            [row["generator(p), kept tree"] / row["stock Outlines"] for row in rows("overhead")], "overhead",
        ),
        Comparison("A masked step", "stock Outlines", "time", of("step", "ours / stock"), "step"),
        Comparison(
            "From a pattern to its guide", "outlines_core", "time",
            [row["ours"] / row["outlines_core"] for row in rows("compile") if isinstance(row["outlines_core"], float)],
            "compile",
        ),
        Comparison("From a grammar to its first mask", "llguidance", "time", grammars("ready, s"), "grammar_masks"),
        Comparison("A masked step of a grammar", "llguidance", "time", grammars("step"), "grammar_masks"),
        Comparison("From a JSON schema to its first mask", "llguidance", "time", schemas("ready"), "maskbench_times"),
        Comparison("A mask of a JSON schema", "llguidance", "time", schemas("mask"), "maskbench_times"),
        Comparison(
            "Look-ahead without a phrase", "free text", "model tokens",
            of("ban_tokens", "tokens / unconstrained"), "ban_tokens",
        ),
        Comparison(
            "Exact draws with forced and copied drafts", "the same without a draft", "time",
            of("drafting", "of no draft", lambda row: row["phi"] == "exact" and row["draft"] == "forced, prompt_lookup"
               and row["record"] != "both"), "drafting",
        ),
        Comparison("16 exact answers in one call", "the host's own generation", "time a token", hosts(), "hosts_*"),
        Comparison(
            "Exact records in vLLM", "its own structured output", "time",
            [1 / row["relative throughput"] for row in rows("vllm_records") if row["what"].startswith("exact")],
            "vllm_records",
        ),
    ]  # fmt: skip


def rows(name: str) -> list[Row]:
    """Return the rows of a kept result, by column."""
    return kept(name)["rows"]


def of(name: str, column: str, where: Callable[[Row], bool] = lambda row: True) -> list[float]:
    """Return a column of a kept result."""
    return [float(row[column]) for row in rows(name) if where(row)]


def peer(column: str) -> list[float]:
    """Return a share of what genlm-control takes, at the fewest of its particles that reach the exact distribution."""
    return [row[column] for row in reached()]


def reached() -> Iterator[Row]:
    """Yield, for each language, the first row of genlm-control that reaches the exact distribution; none where none does."""
    seen = set()
    for row in rows("control_draw"):
        if row["sampler"].startswith("genlm-control") and row["reached"] == "yes" and row["language"] not in seen:
            seen.add(row["language"])
            yield row


def grammars(column: str) -> list[float]:
    """Return the ratio of each grammar to llguidance."""
    taken = {(row["grammar"], row["engine"]): row[column] for row in rows("grammar_masks") if row[column] != ""}
    return [time / taken[name, "llguidance"] for (name, engine), time in taken.items() if engine == "ours"]


def schemas(kind: str) -> list[float]:
    """Return the ratios of JSON schemas to llguidance: the medians, and the 90th and 99th percentiles."""
    times = {row["engine"]: row for row in rows("maskbench_times")}
    columns = [f"{kind} {quantile}" for quantile in ("p50", "p90", "p99")]
    return [times["ours"][column] / times["llguidance"][column] for column in columns]


def hosts() -> list[float]:
    """Return the ratios of a token of an exact draw to one of the own generation of each host."""
    names = ("hosts_transformers", "hosts_llamacpp", "hosts_mlx", "hosts_vllm")
    return [row["relative"] for name in names for row in rows(name) if row["what"] == "exact, an answer, one call"]


def table(shown: Sequence[Comparison]) -> str:
    """Return the table in Markdown: of each comparison the least, the middle and the largest ratio."""
    lines = [
        (one.what, f"{one.beside}, {one.unit}", str(len(one.ratios)), *map(number, spread(one.ratios)), one.result)
        for one in shown
    ]
    return "\n".join(TextTable(("what", "relative to", "rows", "least", "middle", "most", "result"), lines).markdown())


def spread(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the least, the middle and the largest."""
    return min(ratios), statistics.median(ratios), max(ratios)


def number(ratio: float) -> str:
    """Return a ratio in a few digits."""
    return f"{ratio:.2g}" if ratio < 0.995 else f"{ratio:.3g}"


def figure(shown: Sequence[Comparison]) -> Any:
    """Return the picture of the comparisons: a dot for each row that was measured, a bar for the middle, from cheap to dear."""
    picture = figure_class()(figsize=(6.8, 0.42 * len(shown) + 1), layout="constrained", facecolor=PAPER)
    axis = picture.subplots()
    axis.set_facecolor(PAPER)
    axis.axvline(1, color=INK, linewidth=1.2, zorder=1)
    for place, one in enumerate(shown):
        low, middle, high = spread(one.ratios)
        axis.hlines(place, low, high, color=LINES, linewidth=6, zorder=2, capstyle="round")
        axis.scatter(one.ratios, [place] * len(one.ratios), s=26, color=COLORS[0], alpha=0.7, linewidths=0, zorder=3)
        axis.vlines(middle, place - 0.22, place + 0.22, color=INK, linewidth=2.4, zorder=4)
        said = f"{one.what}: {one.unit}, beside {one.beside}"
        axis.text(
            0,
            place - 0.3,
            said,
            transform=axis.get_yaxis_transform(),
            fontsize=8,
            color=INK,
            va="bottom",
            bbox={"facecolor": PAPER, "linewidth": 0, "pad": 0.5},
        )
    axis.set_yticks([])
    axis.set_ylim(len(shown) - 0.6, -0.9)
    axis.set_xscale("log")
    ticks = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=9, color=INK)
    axis.minorticks_off()
    axis.set_title(
        "Cost relative to what stands beside it: left of 1 is cheaper",
        loc="left",
        fontsize=11,
        fontweight="bold",
        color=INK,
    )
    axis.set_xlabel("dots: rows of the tables; bars: their middle", fontsize=9, color=INK)
    axis.grid(axis="x", color=LINES, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(length=0, colors=INK)
    axis.spines[:].set_visible(False)
    return picture


def main(names: Sequence[str] = ()) -> None:
    """Print the results of these names or patterns; without any, write the summary and its figure."""
    for path in [path for name in names for path in sorted(report.RESULTS.glob(f"{name}.json"))]:
        print(markdown(json.loads(path.read_text(encoding="utf-8"))))
    if not names:
        shown = comparisons()
        report.rewrite(PAGE, "summary", table(shown))
        PICTURE.write_bytes(png(figure(shown)))


if __name__ == "__main__":
    main(sys.argv[1:])
