"""What Unicode says of characters: which are part of a word, and what their case folds to."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

CODE_POINTS = 0x110000

_BLOCK = 256
_SURROGATES = range(0xD800, 0xE000)


def is_word(character: str) -> bool:
    """Return whether ``character`` is part of a word: a letter, a number in any script, or ``_``."""
    return character.isalnum() or character == "_"


@cache
def word_characters() -> NDArray[np.bool_]:
    """``bool[CODE_POINTS]``: :func:`is_word` of every character."""
    found = np.zeros(CODE_POINTS, dtype=bool)
    for first in range(0, CODE_POINTS, _BLOCK):
        block = "".join(map(chr, range(first, first + _BLOCK)))
        # Most blocks are all letters or have none.
        found[first : first + _BLOCK] = True if block.isalnum() else [is_word(character) for character in block]
    found.flags.writeable = False
    return found


@cache
def foldings() -> dict[str, str]:
    """The full case folding of every character that has another than itself."""
    folded: dict[str, str] = {}
    for first in range(0, CODE_POINTS, _BLOCK):
        block = "".join(map(chr, range(first, first + _BLOCK)))
        if block.casefold() != block:
            folded |= {c: c.casefold() for c in block if c.casefold() != c}
    return folded


@cache
def uneven_foldings() -> frozenset[str]:
    """The characters whose folding is several, or one that is part of a word where they are not, or the other way round."""
    return frozenset(c for c, folded in foldings().items() if len(folded) > 1 or is_word(folded) != is_word(c))
