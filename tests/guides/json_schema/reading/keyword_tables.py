"""The fate of each keyword and each format of JSON Schema, as the tables of ``docs/output-types.md``.

``python -m tests.guides.json_schema.reading.keyword_tables docs/output-types.md`` writes them between the markers of that page.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from outlines_phi.guides.json_schema.formats import FORMATS, LEFT_OUT
from outlines_phi.guides.json_schema.reading.keywords import KEYWORDS
from outlines_phi.guides.json_schema.reading.place import DRAFTS

START, END = "<!-- keywords:start -->", "<!-- keywords:end -->"


ANNOTATIONS: Mapping[str, str] = {
    "`$schema`": "names the draft; without it, and if it names another dialect, that is 2020-12",
    "`$id` (in draft 4 `id`), `$anchor`, `$dynamicAnchor`, `$recursiveAnchor`": "give names to what is referred to",
    "`$defs`, `definitions`": "hold what is referred to",
    "`title`, `description`, `default`, `examples`, `deprecated`, `readOnly`, `writeOnly`, `$comment`": "an annotation",
    "`contentEncoding`, `contentMediaType`, `contentSchema`": "an annotation",
    "`nullable`": "no keyword of the standard: named in a warning",
    "`$vocabulary`": "an annotation, which says nothing of the schema that it stands in",
}
"""The other keywords of the standard, and what becomes of them, for the documentation."""


def summary() -> str:
    """Return the tables, in which names of the same fate share a row."""
    keywords = [
        *[("keyword", "drafts", "what becomes of it"), ("---", "---", "---")],
        *((f"`{name}`", _drafts(keyword.drafts), keyword.fate) for name, keyword in KEYWORDS.items()),
        *((names, "", fate) for names, fate in (*ANNOTATIONS.items(), ("any other", "an annotation"))),
    ]
    formats = [(f"`{name}`", LEFT_OUT.get(name, "nothing")) for name in FORMATS]
    head = [("format", "what it leaves out of its standard"), ("---", "---")]
    return f"{_table(keywords)}\n\n{_table(head + formats)}"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    names = {fate: ", ".join(row[0] for row in rows if row[1:] == fate) for fate in (row[1:] for row in rows)}
    return "\n".join(f"| {' | '.join((names[fate], *fate))} |" for fate in names)


def write(page: Path) -> None:
    """Put the tables between the markers of a page."""
    before, rest = page.read_text(encoding="utf-8").split(START)
    page.write_text(f"{before}{START}\n{summary()}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def _drafts(drafts: Sequence[str]) -> str:
    if len(drafts) == len(DRAFTS):
        return "all"
    first, last = DRAFTS[drafts[0]], DRAFTS[drafts[-1]]
    return f"from {first}" if drafts[-1] == list(DRAFTS)[-1] else f"{first} to {last}" if drafts[1:] else first


if __name__ == "__main__":
    write(Path(sys.argv[1]))
