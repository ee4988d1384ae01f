r"""The spellings of strings in JSON: each character raw, by its short escape, or as ``\uXXXX``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

from ....numerics.cache import kept
from ....regex.composed import Composed
from ....regex.spelling import Spelling
from .string_set import StringSet

QUOTE, BACKSLASH, U = b'"\\u'

NOT_RAW = '"\\' + "".join(map(chr, range(0x20)))
"""The characters that JSON does not let stand as they are."""

RAW_ASCII = "".join(chr(code) for code in range(0x80) if chr(code) not in NOT_RAW)
"""The characters that are spelled in one byte."""

SHORT = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
"""The character that each letter stands for after a backslash."""

HEX: list[tuple[int, ...]] = [tuple({ord(f"{digit:x}"), ord(f"{digit:X}")}) for digit in range(16)]
"""The bytes of each hexadecimal digit, in either case."""

AFTER_HIGH: list[list[tuple[int, ...]]] = [HEX, HEX, [(BACKSLASH,)], [(U,)], [HEX[0xD]], HEX[0xC:], HEX, HEX]
"""The bytes after the first two digits of a high surrogate, d8 to db: two more, and the low surrogate, dc00 to dfff."""


@lru_cache(maxsize=4096)
def spellings(character: str, *, ascii: bool = False) -> tuple[bytes, ...]:
    """Return the spellings of a character in JSON, hexadecimal digits in lower case, a shortest one first."""
    found = [] if character in NOT_RAW or (ascii and not character.isascii()) else [character.encode()]
    found += [b"\\" + letter.encode() for letter, meant in SHORT.items() if meant == character]
    units = character.encode("utf-16-be").hex()
    found.append("".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)).encode())
    return tuple(found)


def spelled_size(text: str, *, ascii: bool = False) -> int:
    """Return the length of a shortest spelling of a string in JSON, without quotes."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return len(text)
    return sum(len(spellings(character, ascii=ascii)[0]) for character in text)


@lru_cache(maxsize=2)
def free(*, ascii: bool) -> Composed:
    """Return the automaton of the spellings of all strings."""
    return composed(StringSet.all(), ascii=ascii)


def members(strings: StringSet, *, ascii: bool) -> Iterator[tuple[str, int]]:
    """Yield the members, those with short spellings first, each with the size of its shortest spelling and a closing quote."""
    if strings.values is not None and not strings.without:
        sizes = sorted((spelled_size(text, ascii=ascii), text) for text in strings.values)
        yield from ((text, size + 1) for size, text in sizes)
        return
    seen = set[str](strings.values or ())
    every = strings.without or strings.lengths == ((0, None),)
    if every:
        for text in ("", *RAW_ASCII):
            if text not in seen:
                seen.add(text)
                yield text, len(text) + 1
    for count in (4**step for step in itertools.count()):
        known = _first_members(StringSet.all() if every else strings, ascii, count)
        for text, size in known:
            if text not in seen:
                seen.add(text)
                yield text, size
        if len(known) < count:
            return


@kept
def _first_members(strings: StringSet, ascii: bool, count: int) -> list[tuple[str, int]]:
    """Return the first members by the sizes of their spellings, each with that size; repeated where it has several."""
    spelled = islice(composed(strings, ascii=ascii).members(), count)
    return [(json.loads(b'"' + spelling), len(spelling)) for spelling in spelled]


@kept
def composed(strings: StringSet, *, ascii: bool) -> Composed:
    r"""Return the automaton of the JSON spellings of the members, from after the opening quote; it ends with the closing one.

    Every spelling that RFC 8259 allows is there: raw UTF-8, the short escapes, ``\uXXXX`` in either case, and a pair of
    these for a character beyond U+FFFF. A lone surrogate is not: it spells no character. With
    ``ascii`` only those without raw UTF-8 are. Lengths stand beside the states.

    Raises
    ------
    UnsupportedError
        A length is greater than an automaton can count.
    """
    in_bytes = in_ascii if ascii else in_json
    return Composed(strings.automaton or strings.code_automaton, in_bytes, QUOTE, strings.cuts)


@kept
def in_json(bounds: tuple[int, ...], classes: tuple[int, ...]) -> tuple[Spelling, int]:
    """Return the spelling of characters inside a JSON string, and where it begins."""
    return _in_bytes(bounds, classes, 0x110000)


@kept
def in_ascii(bounds: tuple[int, ...], classes: tuple[int, ...]) -> tuple[Spelling, int]:
    """Return the same without raw UTF-8."""
    return _in_bytes(bounds, classes, 0x80)


def _in_bytes(bounds: tuple[int, ...], classes: tuple[int, ...], raw_below: int) -> tuple[Spelling, int]:
    spelling = Spelling(bounds, classes)
    surrogate = spelling.fork(
        HEX[:12],
        [spelling.digits(0xD000 + (digit << 8), [HEX, HEX]) for digit in range(8)]
        + [spelling.digits(0x10000 + (digit << 18), AFTER_HIGH) for digit in range(4)],
    )
    firsts = [spelling.digits(first << 12, [HEX] * 3) if first != 0xD else surrogate for first in range(16)]
    escapes = [(ord(letter), ord(letter), spelling.digits(ord(meant), ())) for letter, meant in SHORT.items()]
    escapes.append((U, U, spelling.fork(HEX, firsts)))
    escape = spelling.place(sorted(escapes))
    raw = [edge for edge in spelling.in_utf8(NOT_RAW) if edge[0] < raw_below]
    return spelling, spelling.place(sorted([*raw, (BACKSLASH, BACKSLASH, escape)]))
