"""Bytes, and sets of bytes, as a reader knows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

MOST_SHOWN = 12  # Ranges of a set of bytes that are written out

_NAMED = {0x20: "␣", 0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}


def byte_name(byte: int) -> str:
    """Return the display of one byte: its character in ASCII, else two hexadecimal digits."""
    if byte in _NAMED:
        return _NAMED[byte]
    return chr(byte) if 0x20 < byte < 0x7F else f"\\x{byte:02x}"


def byte_set(members: Iterable[int]) -> str:
    """Return the display of a set of bytes: one by itself, several as a character class of ranges, ``[0-9a-f]``."""
    ordered = sorted(set(members))
    if len(ordered) == 1:
        return byte_name(ordered[0])
    if len(ordered) == 256:
        return "any byte"
    if len(ordered) > 128:
        return f"all but {byte_set(set(range(256)).difference(ordered))}"
    ranges = [
        [byte for _, byte in group] for _, group in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0])
    ]
    shown = "".join(map(_range, ranges[:MOST_SHOWN]))
    return f"[{shown}{'…' if len(ranges) > MOST_SHOWN else ''}]"


def text_name(text: bytes) -> str:
    """Return the display of a text: UTF-8 as characters, the rest as escapes, blanks so that they can be seen."""
    decoded = text.decode(errors="backslashreplace")
    return "".join(_NAMED.get(ord(one), one) if one.isprintable() else _escaped(one) for one in decoded)


def _escaped(character: str) -> str:
    return _NAMED.get(ord(character)) or character.encode("unicode_escape").decode()


def _range(members: Sequence[int]) -> str:
    first, last = byte_name(members[0]), byte_name(members[-1])
    return first if len(members) == 1 else f"{first}{last}" if len(members) == 2 else f"{first}-{last}"
