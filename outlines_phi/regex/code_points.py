"""Sets of code points, as the places where they begin and end."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import regex
from numpy.typing import NDArray

CodePoints = tuple[int, ...]
"""An inversion list: the first code point of a run inside the set, then of the run outside that follows, and so on."""

FIRST_SURROGATE, AFTER_SURROGATES = 0xD800, 0xE000
"""Surrogates are no characters. A set may hold them, but no string does."""

NOTHING: CodePoints = ()
CODE_POINTS = sys.maxunicode + 1
EVERYTHING: CodePoints = (0, CODE_POINTS)
ASCII: CodePoints = (0, 0x80)


def ranges(*pairs: tuple[int, int]) -> CodePoints:
    """Return the set of all code points from ``first`` to ``last``, both included, for each pair of them."""
    found: list[int] = []
    for first, last in sorted(pairs):
        if found and first <= found[-1]:
            found[-1] = max(found[-1], last + 1)
        else:
            found += [first, last + 1]
    return tuple(found)


def characters(text: str) -> CodePoints:
    """Return the set of the characters of ``text``."""
    return ranges(*((ord(character), ord(character)) for character in text))


def union(sets: Iterable[CodePoints]) -> CodePoints:
    """Return the union of ``sets``."""
    return ranges(
        *((first, after - 1) for points in sets for first, after in zip(points[::2], points[1::2], strict=True))
    )


def others(points: CodePoints) -> CodePoints:
    """Return the complement of ``points``."""
    inside = points[1:] if points[:1] == (0,) else (0, *points)
    return inside[:-1] if inside[-1:] == (CODE_POINTS,) else (*inside, CODE_POINTS)


def both(one: CodePoints, other: CodePoints) -> CodePoints:
    """Return the intersection of two sets."""
    return others(union([others(one), others(other)]))


def contains(points: CodePoints, code_point: int) -> bool:
    """Return True if ``code_point`` is in the set."""
    return bool(bisect_right(points, code_point) % 2)


def cut(sets: list[CodePoints]) -> tuple[NDArray[np.int32], NDArray[np.int32], list[list[int]]]:
    """Cut the code points into classes that no set tells apart: the first of each run, its class, and the classes of each set.

    No run begins inside the surrogates: they go with the character before them.
    """
    bounds = np.unique(np.array([0, *(place for points in sets for place in points)], dtype=np.int32))
    bounds = bounds[bounds < CODE_POINTS]
    bounds[(bounds >= FIRST_SURROGATE) & (bounds < AFTER_SURROGATES)] = AFTER_SURROGATES
    bounds = np.unique(bounds)
    inside = np.array([np.searchsorted(points, bounds, side="right") % 2 for points in sets], dtype=np.uint8)
    packed = np.packbits(inside.reshape(len(sets), len(bounds)), axis=0).T
    number: dict[bytes, int] = {}
    classes = np.array([number.setdefault(row.tobytes(), len(number)) for row in packed], dtype=np.int32)
    members = [sorted(set(classes[row == 1].tolist())) for row in inside]
    return bounds, classes, members


@lru_cache(maxsize=64)
def found(written: str) -> CodePoints:
    """Return the characters that a class matches, written as the package ``regex`` reads it; ``regex.error`` where it does not."""
    spans = (match.span() for match in regex.finditer(f"(?:{written})+", _every_character()))
    return tuple(place for span in spans for place in span)


@lru_cache(maxsize=1)
def _every_character() -> str:
    return np.arange(CODE_POINTS, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


@lru_cache(maxsize=256)
def in_any_case(points: CodePoints) -> CodePoints:
    """Return the characters that are in ``points`` but for their case, by Unicode's simple case folding."""
    cased = both(points, found(_CASED))
    if not cased:
        return points
    written = "".join(
        f"\\U{first:08X}-\\U{after - 1:08X}" for first, after in zip(cased[::2], cased[1::2], strict=True)
    )
    folded = set(regex.findall(f"(?i:[{written}])", "".join(regex.findall(_CASED, _every_character()))))
    # The package takes the letters I, i, and the Turkic ones without and with a dot for one.
    folded -= set("\u0130\u0131" if contains(points, ord("i")) or contains(points, ord("I")) else "\u0130\u0131Ii")
    return union([points, characters("".join(folded))])


_CASED = r"[\p{Changes_When_Casemapped}\p{Changes_When_Casefolded}\p{Cased}\u0345]"
"""The characters that may have another case."""
