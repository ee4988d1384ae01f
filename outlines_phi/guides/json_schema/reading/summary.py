"""What becomes of each keyword and each format of JSON Schema, as the tables of ``docs/output-types.md``.

``python -m outlines_phi.guides.json_schema.reading.summary docs/output-types.md`` writes them between the markers of that page.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..strings.formats import FORMATS, LEFT_OUT
from .keywords import ANNOTATIONS, DRAFTS, KEYWORDS

START, END = "<!-- keywords:start -->", "<!-- keywords:end -->"


def summary() -> str:
    """Return the tables, in which names of the same fate share a row."""
    keywords = {f"`{name}`": (_drafts(keyword.drafts), keyword.fate) for name, keyword in KEYWORDS.items()}
    keywords |= {names: ("", fate) for names, fate in ANNOTATIONS.items()}
    keywords["any other"] = ("", "an annotation")
    formats = {f"`{name}`": (LEFT_OUT.get(name, "nothing"),) for name in FORMATS}
    formats["any other, `regex` and `idn-hostname` too"] = ("asserts nothing, and is named in a warning",)
    lines = ["| keyword | drafts | what becomes of it |", "|---|---|---|", *_rows(keywords), ""]
    return "\n".join([*lines, "| format | what it leaves out of its standard |", "|---|---|", *_rows(formats)])


def _rows(cells: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the rows of a table, the names of equal cells in one."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, others in cells.items():
        names.setdefault(others, []).append(name)
    return [f"| {' | '.join([', '.join(found), *others])} |" for others, found in names.items()]


def write(page: Path) -> None:
    """Put the tables between the markers of a page."""
    before, rest = page.read_text(encoding="utf-8").split(START)
    page.write_text(f"{before}{START}\n{summary()}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def _drafts(drafts: Sequence[str]) -> str:
    names = [DRAFTS[draft] for draft in drafts]
    if len(names) == len(DRAFTS):
        return "all"
    return (
        f"from {names[0]}"
        if drafts[-1] == list(DRAFTS)[-1]
        else f"{names[0]} to {names[-1]}"
        if names[1:]
        else names[0]
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]))
