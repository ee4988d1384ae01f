"""The fate of each keyword and each format of JSON Schema, as the tables of ``docs/output-types.md``.

``python -m outlines_phi.guides.json_schema.reading.summary docs/output-types.md`` writes them between the markers of that page.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..strings.formats import FORMATS, LEFT_OUT
from .keywords import ANNOTATIONS, DRAFTS, KEYWORDS

START, END = "<!-- keywords:start -->", "<!-- keywords:end -->"


def summary() -> str:
    """Return the tables."""
    lines = ["| keyword | drafts | what becomes of it |", "|---|---|---|"]
    lines += [f"| `{name}` | {_drafts(keyword.drafts)} | {keyword.fate} |" for name, keyword in KEYWORDS.items()]
    lines += [f"| {names} | | {fate} |" for names, fate in ANNOTATIONS.items()]
    lines += ["| any other | | an annotation |", "", "| format | what it leaves out of its standard |", "|---|---|"]
    lines += [f"| `{name}` | {LEFT_OUT.get(name, 'nothing')} |" for name in FORMATS]
    lines.append("| any other, `regex` and `idn-hostname` too | asserts nothing, and is named in a warning |")
    return "\n".join(lines)


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
