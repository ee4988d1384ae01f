"""The reports of benchmarks, printed and kept."""

import json
import platform
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
VERSIONS = ("outlines", "outlines_core", "torch", "transformers", "numpy")


def surroundings() -> dict[str, Any]:
    """Return the surroundings of results beside the code: the machine, and the versions."""
    machine = {
        "python": platform.python_version(),
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "date": date.today().isoformat(),
    }
    return {"machine": machine, "versions": {name: version(name) for name in VERSIONS}}


class Report:
    """A table of measurements that ends as ``results/<name>.json``."""

    def __init__(self, name: str, title: str, columns: list[str]) -> None:
        self.name, self.title, self.columns = name, title, columns
        self.rows: list[list[Any]] = []

    def add(self, *row: Any) -> None:
        """Add a row, in the order of the columns."""
        assert len(row) == len(self.columns)
        self.rows.append([float(f"{value:.4g}") if isinstance(value, float) else value for value in row])

    def resume(self, **settings: Any) -> None:
        """Go on with the rows that a run of the same settings has kept."""
        path = RESULTS / f"{self.name}.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if (known.get("settings"), known.get("columns")) == (settings, self.columns):
            self.rows = known["rows"]

    def write(self, **settings: Any) -> None:
        """Print the table and keep it as JSON, with the versions and the machine."""
        table = Table(title=self.title)
        for column in self.columns:
            table.add_column(column)
        for row in self.rows:
            table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row))
        Console().print(table)
        self.keep(**settings)

    def keep(self, **settings: Any) -> None:
        """Keep the table as JSON, with the versions and the machine."""
        kept = {
            "title": self.title,
            "columns": self.columns,
            "rows": self.rows,
            "settings": settings,
            **surroundings(),
        }
        path = RESULTS / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(kept, indent=1) + "\n")


def rewrite(page: Path, name: str, text: str) -> None:
    """Put ``text`` between the markers ``<!-- name:start -->`` and ``<!-- name:end -->`` of a page."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    before, rest = page.read_text(encoding="utf-8").split(start)
    page.write_text(f"{before}{start}\n\n{text.strip()}\n\n{end}{rest.split(end)[1]}", encoding="utf-8")


def kept(name: str) -> dict[str, Any]:
    """Return a kept result, each of its rows by column."""
    result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return result | {"rows": [dict(zip(result["columns"], row, strict=True)) for row in result["rows"]]}
