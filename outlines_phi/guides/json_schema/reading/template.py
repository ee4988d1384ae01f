"""Regular expressions over bytes and JSON values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias, final

from ....automata.automaton import ByteAutomaton
from ....errors import UnsupportedError
from ....regex.composed import Composed
from ..formula import Formula
from .place import LeftOut
from .schema import Schema

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
            needed[-1] = self._looping()
        found = Template.sequence(needed)
        if most is None:
            return found._optional() if least == 0 else found
        rest = Template.sequence(())
        for _ in range(most - least):
            rest = self._then(rest)._optional()
        return found._then(rest)

    def _optional(self) -> Template:
        return Template(self.pieces, self.first | {END}, self.follow, self.schemas)

    def _looping(self) -> Template:
        follow = tuple(after | (self.first - {END}) if END in after else after for after in self.follow)
        return Template(self.pieces, self.first, follow, self.schemas)

    def _beside(self, other: Template) -> Template:
        first, follow = other._moved(len(self.pieces))
        return self._with(other, self.first | first, self.follow + follow)

    def _then(self, other: Template) -> Template:
        first, follow = other._moved(len(self.pieces))
        ways = [after if END not in after else (after - {END}) | first for after in (self.first, *self.follow)]
        return self._with(other, ways[0], (*ways[1:], *follow))

    def _with(self, other: Template, first: frozenset[int], follow: tuple[frozenset[int], ...]) -> Template:
        schemas = tuple(dict.fromkeys(self.schemas + other.schemas))
        return Template(self.pieces + other.pieces, first, follow, schemas)

    def _moved(self, places: int) -> tuple[frozenset[int], tuple[frozenset[int], ...]]:
        """Return the first pieces and the followers of each piece, numbered from ``places`` on."""
        moved = [
            frozenset(piece if piece == END else piece + places for piece in after)
            for after in (self.first, *self.follow)
        ]
        return moved[0], tuple(moved[1:])
