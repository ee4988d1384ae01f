"""Write the tables of all kept results into ``docs/performance.md``, between its markers.

python -m benchmarks.table
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS
from outlines_phi.fidelity.report_text import TextTable

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
START, END = "<!-- benchmarks:start -->", "<!-- benchmarks:end -->"
ELSEWHERE = {"auto_calls", "ban_distances", "ban_random_distances", "fidelity"}
ELSEWHERE |= {"peers", "peers_bans", "peers_curves", "peers_masks", "real_model"}
"""Results that have a page of their own."""


def markdown(result: dict[str, Any]) -> str:
    """Return one result as a Markdown table under its title."""
    rows = [[f"{value:.3g}" if isinstance(value, float) else str(value) for value in row] for row in result["rows"]]
    lines = [f"### {result['title']}", "", *TextTable(result["columns"], rows).markdown()]
    machine, settings = result["machine"], result["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines += [
        "",
        f"{', '.join(f'{name}: {value}' for name, value in settings.items())}. "
        f"{machine['device']}, {machine['threads']} threads, Python {machine['python']}, {versions}, {machine['date']}.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Replace what stands between the markers."""
    page = PAGE.read_text()
    before, rest = page.split(START)
    after = rest.split(END)[1]
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json")) if path.stem not in ELSEWHERE]
    tables = "\n".join(map(markdown, results))
    PAGE.write_text(f"{before}{START}\n\n{tables}\n{END}{after}")


if __name__ == "__main__":
    main()
