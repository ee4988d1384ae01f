"""Tables of texts: as plain text and as Markdown. A page and a terminal draw the same tables by their own means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class TextTable(NamedTuple):
    """A titled table with a remark under it; the first column has the names of the rows, the others are aligned to the right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    remark: str = ""

    def plain(self) -> list[str]:
        """Return the lines of a plain text, without title and remark; none where there are no rows."""
        if not self.rows:
            return []
        lines = [self.head, *self.rows]
        first, *rest = (max(map(len, column)) for column in zip(*lines, strict=True))
        return ["  ".join([name.ljust(first), *map(str.rjust, cells, rest)]).rstrip() for name, *cells in lines]

    def markdown(self) -> list[str]:
        """Return the lines in Markdown, without title and remark; none where there are no rows."""
        if not self.rows:
            return []
        lines = [f"| {' | '.join(line)} |" for line in (self.head, *(map(_escaped, row) for row in self.rows))]
        return [lines[0], "|---" + "|---:" * (len(self.head) - 1) + "|", *lines[1:]]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`")
