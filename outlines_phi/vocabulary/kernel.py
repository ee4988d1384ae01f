"""The compiled walk of a vocabulary's trie, where it was built: ``walk.c``, called by addresses."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

SOURCE = Path(__file__).with_name("walk.c")
LIBRARY = SOURCE.with_suffix(".so")
"""Made of the source by the build hook, where there is a compiler."""

POINTERS = (
    "node byte child token words edges row ends within listed closing text offset edge record part follow behind frame missed "
    "asked mask place reached"
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


@final
class StepTables(ctypes.Structure):
    """The addresses of a trie, of the steps of a machine, and of the room for a walk."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in "first byte is_end after read unread reached".split()),
        *((name, ctypes.c_int32) for name in ("reading", "lacking", "ending")),
    ]


KINDS = (
    ((0x20, 0x22), (0x23, 0x5C), (0x5D, 0x2028), (0x202A, 0xD800), (0xE000, 0x110000)),
    ((0x30, 0x3A), (0x41, 0x5B), (0x61, 0x7B)),
)
"""Kinds of characters, by runs of code points: those of lines that strings hold as they are, and letters and digits of ASCII."""


class Flat(NamedTuple):
    """A byte automaton as the walk reads it: a state is a row and, in its lower ``bits``, a place in a graph of characters.

    ``rows``, ``[rows, columns]``, are the rows behind characters, ``column`` and ``place``, ``[places, 256]``, what a byte leads
    to, ``alive``, ``[rows, places]``, which states are. Rows where a member ``ends``, or a character ``begins``, do so at ``root``.
    ``meets``, ``[KINDS, columns]``, are the columns that characters of a kind have.
    """

    rows: NDArray[np.int32]
    column: NDArray[np.int32]
    place: NDArray[np.int32]
    alive: NDArray[np.bool_]
    ends: NDArray[np.bool_]
    begins: NDArray[np.bool_]
    meets: NDArray[np.bool_]
    bits: int = 0
    root: int = 0


UNBOUNDED = 2**31 - 1
DEEPEST = 1 << 12  # The bytes of a token that are read by recursion, which takes a frame for each


@final
class Automaton(ctypes.Structure):
    """The addresses of a :class:`Flat` automaton's tables, the state that it begins in, and the lengths of members."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in Flat._fields[:7]),
        *((name, ctypes.c_int32) for name in ("height", "columns", "places", "bits", "root", "start", "least", "most")),
    ]

    @classmethod
    def of(cls, flat: Flat) -> Automaton:
        """Return that of an automaton, which is to be kept."""
        sizes = *flat.rows.shape, flat.alive.shape[1], flat.bits, flat.root
        return cls(*(array.ctypes.data for array in flat[:7]), *sizes, 0, 0, UNBOUNDED)


ALONGSIDE, MOST_GROUPS, PARTS = 12, 1 << 12, 5
FIELDS = 2 + ALONGSIDE
"""Automata that run side by side, and groups of what they tell apart, each with whether it is an end, a count, and states."""


@final
class Part(ctypes.Structure):
    """The addresses of a trie's nodes, and of the masks of the tokens of a kind that are not below these."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("first", "token", "node", "byte", "words")),
        *((name, ctypes.c_int32) for name in ("kind", "longest")),
    ]


@final
class ForestRoom(ctypes.Structure):
    """The tables that automata are spread over, and the room for what is found."""

    _fields_ = [
        ("part", Part * PARTS),
        *((name, ctypes.c_void_p) for name in "walk node group groups lengths level waiting seen vector after".split()),
        ("most", ctypes.c_int32),
        ("widest", ctypes.c_int32),
    ]


@lru_cache(maxsize=1)
def library() -> Any | None:
    """Return the compiled walk; ``None`` where it was not built, or of another source, and the walk goes from node to node."""
    try:
        found = ctypes.CDLL(str(LIBRARY))
        found.source.restype = ctypes.c_uint32
        if found.source() != crc32(SOURCE.read_bytes()):
            return None
    except (OSError, AttributeError):
        return None
    number, pointer = ctypes.c_int, ctypes.c_void_p
    found.read_steps.argtypes, found.read_steps.restype = [pointer], None
    found.walk.argtypes, found.resume.argtypes = [pointer, number, number, number], [pointer]
    found.spread.argtypes = [*2 * [pointer], number, pointer, *2 * [number]]
    found.mark_within.argtypes = [*2 * [pointer], number, pointer, *2 * [number], pointer]
    return found
