"""JSON schemas: documents, read into formulas; and the part of one that no value is valid under."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from ....errors import OutlinesPhiError, UnsupportedError
from ..formula import Formula, not_too_deep
from ..values import Path, pointer_to
from .keywords import KEYWORDS
from .place import LeftOut, Reader


@final
@dataclass(frozen=True, eq=False)
class Schema:
    """The formulas of a JSON schema (grammar-theory.md, section 9.1).

    Attributes
    ----------
    formula
        The formula of the whole document.
    definitions
        The formulas of references, by their keys.
    left_out
        The parts that are not asked of a value, in the order of the document.
    document
        The document.
    pointers
        The pointer to each formula in it.
    order
        For each name, the places that put its members in an order with others.
    unlike
        The places where formats may make more values valid, by ``not`` and its like, with the formulas of these values.
    """

    formula: Formula
    definitions: Mapping[str, Formula]
    left_out: tuple[LeftOut, ...]
    document: Any
    pointers: Mapping[Formula, str] = field(default_factory=dict)
    order: Mapping[str, frozenset[str]] = field(default_factory=dict)
    unlike: Mapping[str, Formula] = field(default_factory=dict)

    @classmethod
    def read(cls, document: Any, *, label: str = "", plain: bool = False) -> Schema:
        """Read a document as formulas, as ``json.loads`` made it; numbers may be ``Decimal``.

        Parameters
        ----------
        document
            The document.
        label
            The mark of its definitions among those of other documents.
        plain
            True if integers are written without a fraction and an exponent, as in draft 4.

        Raises
        ------
        UnsupportedError
            A keyword that cannot be honoured, or that holds what it may not; the message says which, by its JSON pointer.
        """
        try:
            with not_too_deep():
                reader = Reader(document, KEYWORDS, label, plain)
                formula = reader.read()
                unlike = reader.unlike()
        except (AttributeError, TypeError, ValueError) as error:
            # The library that follows references takes every $id, $anchor and $ref for a string, and a URI.
            if isinstance(error, OutlinesPhiError):
                raise
            raise UnsupportedError(
                f"Write URIs as $id, $anchor, $schema and $ref of the JSON schema. One of them cannot be read: {error}."
            ) from error
        return cls(formula, reader.definitions, tuple(reader.left_out), document, reader.pointers, reader.order, unlike)


MOST_LOOKED_AT = 20_000
"""The most parts of documents that are read, each time a part of one is left out: first a small part, then a large one."""


def culprit(document: Any, is_empty: Callable[[Any], bool]) -> str:
    """Return the JSON pointer of a smallest part of a document without which it is not empty: some value is valid.

    Where a document is too large to try all of its parts, it may be a larger part.
    """
    # Deep ones first. Without its type anything may be valid, which tells least.
    paths = sorted(_paths(document), key=lambda path: (-len(path), path[-1] == "type"))
    for waiting in (paths, sorted(paths, key=lambda path: (len(path), path[-1] == "type"))):
        for path in waiting[: 1 + MOST_LOOKED_AT // max(len(paths), 1)]:
            if not is_empty(_without(document, path)):
                return pointer_to(path)
    return "#"


def _paths(part: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of each keyword and each item of lists."""
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
