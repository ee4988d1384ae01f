"""The compiled walk of a vocabulary's trie, where it was built: ``walk.c``, called by addresses."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

SOURCE = Path(__file__).with_name("walk.c")
LIBRARY = SOURCE.with_suffix(".so")
"""Made of the source by the build hook, where there is a compiler."""

POINTERS = (
    "first count byte child token_first token_count token words edges ends within edge record part follow behind frame "
    "missed mask"
).split()
NUMBERS = "width frames most_frames missing most_missing full".split()


@final
class Walk(ctypes.Structure):
    """The tables that a walk reads, by the address of each."""

    _fields_ = [*((name, ctypes.c_void_p) for name in POINTERS), *((name, ctypes.c_int32) for name in NUMBERS)]


@lru_cache(maxsize=1)
def library() -> Any | None:
    """Return the compiled walk; ``None`` where it was not built, and masks are made of rows."""
    try:
        found = ctypes.CDLL(str(LIBRARY))
    except OSError:
        return None
    number, pointer = ctypes.c_int, ctypes.c_void_p
    found.walk.argtypes, found.resume.argtypes = [pointer, number, number, number], [pointer]
    found.spell.argtypes = [pointer, number, ctypes.c_char_p, number, pointer, pointer]
    return found


