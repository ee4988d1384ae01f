"""Write the kept results into the pages on performance: all tables into ``docs/appendix``, a summary and its figure into
``docs/performance.md``.

python -m benchmarks.table
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks import report, summary
from outlines_phi.fidelity.plots import png
from outlines_phi.fidelity.report_text import TextTable

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "performance.md"
PICTURE = DOCS / "images" / "performance.png"
APPENDIX = DOCS / "appendix"
PAGES: dict[str, tuple[str, ...]] = {
    "exact-draws": ("first_draw", "many_draws", "batch", "finite", "auto", "bottleneck", "bundled", "layouts"),
    "growth": ("scaling", "large_vocabulary", "overhead", "memory", "estimators", "smc"),
    "genlm-control": ("control_draw", "control_many"),
    "ban-costs": ("ban_ready", "ban_step", "ban_tokens"),
    "drafts": ("drafting", "drafting_sibling", "drafting_verify"),
    "masks": ("step", "compile", "grammar_masks", "maskbench", "maskbench_times", "schema_suite"),
    "host-costs": (
        "hosts_transformers", "hosts_llamacpp", "hosts_mlx", "hosts_vllm", "vllm_engine", "vllm_records", "ray_overhead",
    ),
}  # fmt: skip
"""The results that each page of the appendix shows."""

ELSEWHERE = {"auto_calls", "ban_distances", "ban_random_distances", "fidelity"}
ELSEWHERE |= {"peers", "peers_bans", "peers_curves", "peers_masks", "real_model"}
"""Results that have a page of their own."""


def page(results: list[dict[str, Any]]) -> str:
    """Return the tables of a page in Markdown; most have been measured in the same surroundings, which end the page."""
    usual = statistics.mode(map(measured_by, results))
    return "\n".join([*(markdown(result, usual) for result in results), f"Where nothing else is said: {usual}."])


def measured_by(result: dict[str, Any]) -> str:
    """Return the machine and the versions that a result was measured with."""
    versions = (f"{name} {version}" for name, version in result["versions"].items())
    return ", ".join(["{device}, {threads} threads, Python {python}".format_map(result["machine"]), *versions])


def markdown(result: dict[str, Any], usual: str) -> str:
    """Return one result as a Markdown table under its title; what it was measured by is said where it is not as usual."""
    rows = [[f"{value:.3g}" if isinstance(value, float) else str(value) for value in row] for row in result["rows"]]
    settings = ", ".join(f"{name}: {value}" for name, value in result["settings"].items())
    own = [said for said in [measured_by(result)] if said != usual]
    told = f"{settings}. {', '.join([*own, result['machine']['date']])}."
    return "\n".join([f"### {result['title']}", "", *TextTable(result["columns"], rows).markdown(), "", told, ""])


def main() -> None:
    """Replace the text between the markers of the pages, and the picture."""
    for name, shown in PAGES.items():
        results = [json.loads((report.RESULTS / f"{stem}.json").read_text(encoding="utf-8")) for stem in shown]
        report.rewrite(APPENDIX / f"{name}.md", "benchmarks", page(results))
    comparisons = summary.comparisons()
    report.rewrite(PAGE, "summary", summary.table(comparisons))
    PICTURE.write_bytes(png(summary.figure(comparisons)))


if __name__ == "__main__":
    main()
