"""The docstrings as the reference shows them: roles become references, and parameters that share a description get one each."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r":\w+:`(~?)([\w.]+)`")
SHARED = re.compile(r"^([*\w]+(?:, [*\w]+)+)((?: : [^\n]*)?)\n((?:[ \t]+\S[^\n]*\n?|\n(?=[ \t]))+)", re.MULTILINE)


class Docstrings(Extension):
    """Rewrite each docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring:
            obj.docstring.value = SHARED.sub(apart, ROLE.sub(reference, obj.docstring.value))


def reference(role: re.Match[str]) -> str:
    """Return a role as code, which leads to the name where the reference has it."""
    shortened, name = role[1], role[2]
    shown = name.rpartition(".")[2] if shortened else name
    return f'<autoref identifier="{name}" optional><code>{shown}</code></autoref>'


def apart(found: re.Match[str]) -> str:
    """Return a description for each of the names that share it."""
    names, annotation, description = found.groups()
    told = description.rstrip("\n")
    return "\n".join(f"{name}{annotation}\n{told}" for name in names.split(", ")) + description[len(told) :]
