"""Sets of code points, as the places where they begin and end."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ....automata.automaton import ByteAutomaton
from ....errors import UnsupportedError
from ...regex import compile_regex

CodePoints = tuple[int, ...]
"""An inversion list: the first code point of a run inside the set, then of the run outside that follows, and so on."""

FIRST_SURROGATE, AFTER_SURROGATES = 0xD800, 0xE000
"""Surrogates are no characters. A set may hold them, but no string does."""

NOTHING: CodePoints = ()
CODE_POINTS = sys.maxunicode + 1
EVERYTHING: CodePoints = (0, CODE_POINTS)


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
    """Return what is in any of ``sets``."""
    return ranges(
        *((first, after - 1) for points in sets for first, after in zip(points[::2], points[1::2], strict=True))
    )


def others(points: CodePoints) -> CodePoints:
    """Return what is not in ``points``."""
    inside = points[1:] if points[:1] == (0,) else (0, *points)
    return inside[:-1] if inside[-1:] == (CODE_POINTS,) else (*inside, CODE_POINTS)


def contains(points: CodePoints, code_point: int) -> bool:
    """Return whether ``code_point`` is in the set."""
    return bool(bisect_right(points, code_point) % 2)


def cut(sets: list[CodePoints]) -> tuple[NDArray[np.int32], NDArray[np.int32], list[list[int]]]:
    """Cut the code points into classes that no set tells apart: the first of each run, its class, and the classes of each set.

    No run begins inside the surrogates: they go with the character before them.
    """
    bounds = np.unique(np.array([0, *(place for points in sets for place in points)], dtype=np.int32))
    bounds = np.unique(skip_surrogates(bounds[bounds < CODE_POINTS]))
    inside = np.array([np.searchsorted(points, bounds, side="right") % 2 for points in sets], dtype=np.uint8)
    packed = np.packbits(inside.reshape(len(sets), len(bounds)), axis=0).T
    number: dict[bytes, int] = {}
    classes = np.array([number.setdefault(row.tobytes(), len(number)) for row in packed], dtype=np.int32)
    members = [sorted(set(classes[row == 1].tolist())) for row in inside]
    return bounds, classes, members


def skip_surrogates(bounds: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return ``bounds`` with each place inside the surrogates moved to the end of them."""
    return np.where((bounds >= FIRST_SURROGATE) & (bounds < AFTER_SURROGATES), AFTER_SURROGATES, bounds).astype(
        np.int32
    )


@lru_cache(maxsize=64)
def with_property(name: str) -> CodePoints:
    r"""Return the characters with a Unicode property, written as between the braces of ``\p{...}``.

    Raises
    ------
    UnsupportedError
        There is no property of that name.
    """
    if name.split("=")[-1] in ("Cs", "Surrogate"):
        return (FIRST_SURROGATE, AFTER_SURROGATES)
    try:
        automaton = compile_regex(f"\\p{{{name}}}")
    except ValueError:
        raise UnsupportedError(
            f"List the characters in brackets instead. The Unicode property {name!r} is not known."
        ) from None
    return tuple(_places(automaton))


@lru_cache(maxsize=256)
def in_any_case(points: CodePoints) -> CodePoints:
    """Return the characters that are in ``points`` but for their case, by Unicode's simple case folding."""
    within = "".join(f"\\x{{{a:X}}}-\\x{{{b - 1:X}}}" for a, b in zip(points[::2], points[1::2], strict=True))
    return tuple(_places(compile_regex(f"(?i:[{within}])"))) if within else NOTHING


def _places(automaton: ByteAutomaton) -> list[int]:
    """Return where the characters begin and end that an automaton of single characters in UTF-8 accepts."""
    targets = automaton.targets[:, automaton.byte_class]
    found = [np.flatnonzero(automaton.accepting[targets[automaton.start, :0x80]])]
    for length, leads in ((2, range(0xC0, 0xE0)), (3, range(0xE0, 0xF0)), (4, range(0xF0, 0xF5))):
        states = targets[automaton.start, leads.start : leads.stop]
        for _ in range(length - 1):
            states = targets[states, 0x80:0xC0].reshape(-1)
        found.append(np.flatnonzero(automaton.accepting[states]))  # the bits of the lead byte begin at zero
    points = np.concatenate(found)
    if not len(points):
        return []
    breaks = np.flatnonzero(np.diff(points) != 1)
    firsts, lasts = points[np.concatenate([[0], breaks + 1])], points[np.concatenate([breaks, [len(points) - 1]])]
    return np.stack([firsts, lasts + 1], axis=1).reshape(-1).tolist()
