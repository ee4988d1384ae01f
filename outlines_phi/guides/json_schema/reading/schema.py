"""JSON schemas, read into formulas, and templates of text around JSON values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeAlias, final

from ....automata.automaton import ByteAutomaton
from ....errors import OutlinesPhiError, UnsupportedError
from ....regex.spelling import Composed
from ..formula import Formula, Path, not_too_deep, pointer_to
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


Bytes: TypeAlias = ByteAutomaton | Composed
Piece: TypeAlias = Bytes | Formula
"""Bytes that an automaton accepts, or one value that a formula is true of."""

END = -1
"""The place behind the last piece."""

MOST_PIECES = 1_000


@final
@dataclass(frozen=True, eq=False)
class Template:
    """A regular expression over bytes and JSON values, as its position automaton (Glushkov 1961).

    Attributes
    ----------
    pieces
        The parts of texts.
    first
        The pieces that a text may begin with; :data:`END` if it may be empty.
    follow
        The pieces that may come after each piece; :data:`END` if the text may end there.
    schemas
        The sources of the formulas.
    """

    pieces: tuple[Piece, ...]
    first: frozenset[int]
    follow: tuple[frozenset[int], ...]
    schemas: tuple[Schema, ...]

    @property
    def definitions(self) -> dict[str, Formula]:
        """The formulas of references, by key."""
        return {key: formula for schema in self.schemas for key, formula in schema.definitions.items()}

    @property
    def pointers(self) -> dict[Formula, str]:
        """The pointer of each formula in its schema."""
        return {formula: pointer for schema in self.schemas for formula, pointer in schema.pointers.items()}

    @property
    def order(self) -> dict[str, frozenset[str]]:
        """For each name, the places that put its members in an order with others."""
        found: dict[str, frozenset[str]] = {}
        for schema in self.schemas:
            for name, places in schema.order.items():
                found[name] = found.get(name, frozenset()) | places
        return found

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The parts of the schemas that are not asked of the values."""
        return tuple(left for schema in self.schemas for left in schema.left_out)

    @classmethod
    def of_bytes(cls, automaton: Bytes) -> Template:
        """Return the texts that an automaton accepts."""
        return cls((automaton,), frozenset([0]), (frozenset([END]),), ())

    @classmethod
    def of_value(cls, schema: Schema) -> Template:
        """Return the texts of one value that a schema is true of; schemas of one template are read under labels of their own."""
        return cls((schema.formula,), frozenset([0]), (frozenset([END]),), (schema,))

    def of_piece(self, piece: int) -> Template:
        """Return the texts of one piece alone."""
        return Template((self.pieces[piece],), frozenset([0]), (frozenset([END]),), self.schemas)

    @classmethod
    def sequence(cls, parts: Iterable[Template]) -> Template:
        """Return a text of each, one after the other."""
        return reduce(cls._then, parts, cls((), frozenset([END]), (), ()))

    @classmethod
    def one_of(cls, parts: Sequence[Template]) -> Template:
        """Return the texts of all of them."""
        return reduce(cls._beside, parts)

    def repeated(self, least: int, most: int | None) -> Template:
        """Return ``least`` to ``most`` texts in a row; ``None`` is no bound."""
        copies = max(least, 1) if most is None else most
        if copies > 1 and copies * len(self.pieces) > MOST_PIECES:
            raise UnsupportedError(
                f"Repeat a part of the output type fewer times. Written out {copies:,} times, it comes to more than "
                f"{MOST_PIECES:,} parts."
            )
        needed = [self] * (copies if most is None else least)
        if most is None:
            again = tuple(after | (self.first - {END}) if END in after else after for after in self.follow)
            needed[-1] = Template(self.pieces, self.first, again, self.schemas)
        found = Template.sequence(needed)
        if most is None:
            return found._optional() if least == 0 else found
        rest = Template.sequence(())
        for _ in range(most - least):
            rest = self._then(rest)._optional()
        return found._then(rest)

    def _optional(self) -> Template:
        return Template(self.pieces, self.first | {END}, self.follow, self.schemas)

    def _beside(self, other: Template) -> Template:
        first, follow = other._moved(len(self.pieces))
        return self._with(other, self.first | first, self.follow + follow)

    def _then(self, other: Template) -> Template:
        first, follow = other._moved(len(self.pieces))
        ways = [after if END not in after else (after - {END}) | first for after in (self.first, *self.follow)]
        return self._with(other, ways[0], (*ways[1:], *follow))

    def _with(self, other: Template, first: frozenset[int], follow: tuple[frozenset[int], ...]) -> Template:
        return Template(self.pieces + other.pieces, first, follow, tuple(dict.fromkeys(self.schemas + other.schemas)))

    def _moved(self, places: int) -> tuple[frozenset[int], tuple[frozenset[int], ...]]:
        """Return the first pieces and the followers of each piece, numbered from ``places`` on."""
        moved = [
            frozenset(piece if piece == END else piece + places for piece in after)
            for after in (self.first, *self.follow)
        ]
        return moved[0], tuple(moved[1:])
