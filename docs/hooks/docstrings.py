"""The docstrings as the reference shows them.

Roles become references, cited sections of the theory become links, and parameters that share a description get one each.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from pymdownx.slugs import slugify

DOCS = Path(__file__).parent.parent

ROLE = re.compile(r":\w+:`(~?)([\w.]+)`")
CITED = re.compile(r"(?<![\w-])((?:grammar-)?theory)\.md,\s+section\s+(\d+(?:\.\d+)?)")
HEADING = re.compile(r"^#+ ((\d+(?:\.\d+)?)\.? .*)$", re.MULTILINE)
SHARED = re.compile(r"^([*\w]+(?:, [*\w]+)+)((?: : [^\n]*)?)\n((?:[ \t]+\S[^\n]*\n?|\n(?=[ \t]))+)", re.MULTILINE)


class Docstrings(Extension):
    """Rewrite each docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring:
            text = CITED.sub(section, ROLE.sub(reference, obj.docstring.value))
            obj.docstring.value = SHARED.sub(apart, text)


def reference(role: re.Match[str]) -> str:
    """Return a role as code, which leads to the name where it is one of the reference."""
    shortened, name = role[1], role[2]
    shown = name.rpartition(".")[2] if shortened else name
    if not name.startswith("outlines_phi."):  # of the same class, or of another library
        return f"`{shown}`"
    return f'<autoref identifier="{name}" optional><code>{shown}</code></autoref>'


def section(citation: re.Match[str]) -> str:
    """Return a citation with a link to the heading of its section."""
    page, number = citation.groups()
    headings = {found[2]: found[1] for found in HEADING.finditer((DOCS / f"{page}.md").read_text(encoding="utf-8"))}
    anchor = slugify(case="lower")(headings[number], "-")
    return f'<autoref identifier="{anchor}">{page.replace("-", " ")}, section {number}</autoref>'


def apart(found: re.Match[str]) -> str:
    """Return a description for each of the names that share it."""
    names, annotation, description = found.groups()
    told = description.rstrip("\n")
    return "\n".join(f"{name}{annotation}\n{told}" for name in names.split(", ")) + description[len(told) :]
