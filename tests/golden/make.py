"""Make the golden data anew and say which rows changed: ``python -m tests.golden.make``, with ``--dry`` only say so."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.golden.masks import MASKS, PATTERNS, Mask, digest, least_automaton
from tests.golden.texts import ROWS, Row

FOLDER = Path(__file__).parent
Rows = list[dict[str, Any]]


def text_row(row: Row) -> dict[str, Any]:
    return {"name": row.name, "seed": row.seed, "texts": row.texts()}


def mask_row(mask: Mask) -> dict[str, Any]:
    allowed = mask.allowed()
    return {"name": mask.name, "allowed": len(allowed), "digest": digest(allowed)}


def automaton_row(regex: str) -> dict[str, Any]:
    targets, accepting = least_automaton(regex)
    return {"name": regex, "states": len(targets), "digest": digest(targets, accepting)}


TABLES: dict[str, Callable[[], Rows]] = {
    "texts": lambda: list(map(text_row, ROWS)),
    "masks": lambda: list(map(mask_row, MASKS)),
    "automata": lambda: list(map(automaton_row, PATTERNS)),
}


def kept(table: str) -> Rows:
    path = FOLDER / f"{table}.json"
    return json.loads(path.read_text()) if path.exists() else []


def changes(before: Rows, after: Rows) -> list[str]:
    """Return the differences, a line for each row."""
    old, new = ({row["name"]: row for row in rows} for rows in (before, after))
    assert len(new) == len(after), "two rows have one name"
    return [f"{name}:\n  {old.get(name)}\n  {new.get(name)}" for name in old | new if old.get(name) != new.get(name)]


def main(dry: bool) -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    for table, make in TABLES.items():
        rows = make()
        changed = changes(kept(table), rows)
        print(f"{table}: {len(changed)} of {len(rows)} rows changed", *changed, sep="\n")
        if not dry:
            lines = ",\n".join(json.dumps(row) for row in rows)
            (FOLDER / f"{table}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main("--dry" in sys.argv[1:])
