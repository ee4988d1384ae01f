"""The kept results: printed by name, or summed up in ``docs/performance.md`` and its figure.

python -m benchmarks.table                       # writes the summary and the figure
python -m benchmarks.table first_draw "hosts_*"  # prints these results in Markdown
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import report, summary
from outlines_phi.fidelity.plots import png
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
    table = TextTable(result["columns"], rows).markdown()
    return "\n".join([f"### {result['title']}", "", *table, "", f"{settings}. {measured_by(result)}.", ""])


def main(names: Sequence[str] = ()) -> None:
    """Print the results of these names or patterns; without any, write the summary and its figure."""
    for path in [path for name in names for path in sorted(report.RESULTS.glob(f"{name}.json"))]:
        print(markdown(json.loads(path.read_text(encoding="utf-8"))))
    if not names:
        comparisons = summary.comparisons()
        report.rewrite(PAGE, "summary", summary.table(comparisons))
        PICTURE.write_bytes(png(summary.figure(comparisons)))


if __name__ == "__main__":
    main(sys.argv[1:])
