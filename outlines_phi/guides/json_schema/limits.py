"""Limits of JSON schemas, and the names of members that are told apart within them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

from ...errors import UnsupportedError
from ...format_limits import LimitError, limits
from .shapes import ObjectShape
from .strings.string_set import StringSet


def states_of(*, compiling: bool) -> AbstractContextManager[Any]:
    """Bound the states of automata as the limits in force say, or not at all within a text, where nothing is refused."""
    return nullcontext() if compiling else limits(states=1 << 40)


@contextmanager
def not_too_deep() -> Iterator[None]:
    """Refuse a schema that has more parts inside each other than Python follows."""
    try:
        yield
    except RecursionError:
        raise UnsupportedError(
            "Give a JSON schema with fewer schemas inside each other. This one is too deep."
        ) from None


MOST_NAMES = 10_000
"""Members that an object may have to have."""

MOST_CELLS = 128
"""Sets of names that are told apart in one object."""


MOST_CHOICES = 1_000
"""Names of one object, times members of which something is asked whatever their names are."""


def refuse_large(shapes: Sequence[ObjectShape]) -> None:
    """Refuse objects that need more members than are counted, or tell more names apart than are looked at."""
    most = max((shape.least - len(shape.required) for shape in shapes), default=0)
    if most > MOST_NAMES:
        raise LimitError(f"Ask for at most {MOST_NAMES:,} members of an object", f"There are {most:,} of any name")
    asked = [(shape, len(shape.some) + (shape.least > len(shape.required) + 1)) for shape in shapes]
    choices = max((count * len(set(shape.names())) for shape, count in asked if count), default=0)
    if choices > MOST_CHOICES:
        raise LimitError(
            "Name fewer members of an object beside minProperties, or beside what not, oneOf and if ask of any of its members",
            f"What must come may be each of them, in {choices:,} ways, more than {MOST_CHOICES:,}",
        )
    names = dict.fromkeys(one.names for shape in shapes for one in shape.every + shape.some)
    if 1 << len(names) > MOST_CELLS:
        told_apart(frozenset(), tuple(names))


@lru_cache(maxsize=4096)
def told_apart(taken: frozenset[str], asked: Sequence[StringSet], *, bounded: bool = True) -> list[StringSet]:
    """Return the names that are not taken, cut into sets that none of those asked for tells apart."""
    cells = [~StringSet.of_values(taken)]
    for strings in asked:
        with states_of(compiling=bounded):
            cells = [part for cell in cells for part in (cell & strings, cell & ~strings) if not part.is_empty]
        if bounded and len(cells) > MOST_CELLS:
            raise LimitError(
                "Anchor the patterns of patternProperties by ^ and $, or write fewer for one object",
                f"They tell more than {MOST_CELLS} sets of names apart",
            )
    return cells
