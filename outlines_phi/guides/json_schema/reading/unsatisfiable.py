"""What makes a JSON schema unsatisfiable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..values import Path, pointer_to

MOST_LOOKED_AT = 20_000
"""How many parts of documents are read, each time a part of one is left out: first a small part, then a large one."""


def culprit(document: Any, is_empty: Callable[[Any], bool]) -> str:
    """Return where a document stands without which a value would be valid: a smallest part of it, by its JSON pointer.

    Where a document is too large to try all of its parts, it may be a larger part.

    Parameters
    ----------
    document
        A schema that no value is valid under.
    is_empty
        Whether that is so of another document.
    """
    # Deep ones first. Without its type anything may be valid, which tells least.
    paths = sorted(_paths(document), key=lambda path: (-len(path), path[-1] == "type"))
    for waiting in (paths, sorted(paths, key=lambda path: (len(path), path[-1] == "type"))):
        for path in waiting[: 1 + MOST_LOOKED_AT // max(len(paths), 1)]:
            if not is_empty(_without(document, path)):
                return pointer_to(path)
    return "#"


def _paths(part: Any, path: Path = ()) -> Iterator[Path]:
    """Yield where each keyword and each item of lists stands."""
    waiting: list[tuple[Any, Path]] = [(part, path)]
    while waiting:
        part, path = waiting.pop()
        steps = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        for step, inner in steps:
            yield (*path, step)
            if step != "enum" or not isinstance(inner, list):  # values are no schemas
                waiting.append((inner, (*path, step)))


def _without(document: Any, path: Path) -> Any:
    """Return a document without the keyword at a place; an item of a list gives way to ``true``."""
    step, *rest = path
    changed = document.copy()
    if rest:
        changed[step] = _without(document[step], tuple(rest))
    elif isinstance(document, list):
        changed[step] = True
    else:
        del changed[step]
    return changed
