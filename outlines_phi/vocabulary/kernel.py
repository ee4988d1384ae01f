"""The compiled walk of a vocabulary's trie, where it was built: ``walk.c``, called by addresses."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

SOURCE = Path(__file__).with_name("walk.c")
LIBRARY = SOURCE.with_suffix(".so")
"""Made of the source by the build hook, where there is a compiler."""

POINTERS = (
    "first count byte child token_first token_count token words edges row ends within listed text offset edge record part follow "
    "behind frame missed asked mask place reached"
).split()
NUMBERS = "width frames most_frames missing asking most_missing placed ending most_ending full".split()


@final
class WalkTables(ctypes.Structure):
    """The tables that a walk reads, by the address of each."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_int32) for name in NUMBERS),
        ("head", ctypes.c_int32 * 256),
    ]


class Flat(NamedTuple):
    """A byte automaton as the walk reads it: a state is a row and, in its lower ``bits``, a place in a graph of characters.

    ``rows``, ``[rows, columns]``, are the rows behind characters, ``column`` and ``place``, ``[places, 256]``, what a byte leads
    to, ``alive``, ``[rows, places]``, which states are. Rows where a member ``ends``, or a character ``begins``, do so at ``root``.
    """

    rows: NDArray[np.int32]
    column: NDArray[np.int32]
    place: NDArray[np.int32]
    alive: NDArray[np.bool_]
    ends: NDArray[np.bool_]
    begins: NDArray[np.bool_]
    bits: int = 0
    root: int = 0


@final
class Automaton(ctypes.Structure):
    """The addresses of a :class:`Flat` automaton's tables, and the state that it begins in."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in Flat._fields[:6]),
        *((name, ctypes.c_int32) for name in ("columns", "places", "bits", "root", "start")),
    ]

    def enter(self, flat: Flat, start: int) -> None:
        """Fill in."""
        for name, array in zip(Flat._fields, flat[:6], strict=False):
            setattr(self, name, array.ctypes.data)
        self.columns, self.places, self.bits, self.root = flat.rows.shape[1], flat.alive.shape[1], flat.bits, flat.root
        self.start = start


ALONGSIDE, MOST_GROUPS = 4, 1 << 12
FIELDS = 2 + ALONGSIDE
"""Automata that run side by side, and groups of what they tell apart, each with whether it is an end, a count, and states."""


@lru_cache(maxsize=1)
def library() -> Any | None:
    """Return the compiled walk; ``None`` where it was not built, or of an older source, and the walk goes from node to node."""
    try:
        found = ctypes.CDLL(str(LIBRARY))
        current = found.layout() == ctypes.sizeof(WalkTables)
    except (OSError, AttributeError):
        return None
    if not current:
        return None
    number, pointer = ctypes.c_int, ctypes.c_void_p
    found.walk.argtypes, found.resume.argtypes = [pointer, number, number, number], [pointer]
    found.spread.argtypes = [*3 * [pointer], *4 * [number], *4 * [pointer]]
    return found
