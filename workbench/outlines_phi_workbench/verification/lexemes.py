"""The lexemes of one terminal, as Python's own parser of regular expressions reads its pattern: a part of the oracle."""

from __future__ import annotations

import importlib
import re
import sys
import unicodedata
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple, final

from outlines_phi.errors import UnsupportedError

_PARSER = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

Intervals = tuple[tuple[int, int], ...]  # Code points: disjoint intervals, ascending, both ends included

_SURROGATES = (0xD800, 0xDFFF)
_SPACES: Intervals = (
    *((0x09, 0x0D), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
    *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
"""White space, as Unicode has it: Python's ``\\s`` also has the separators U+001C to U+001F, the dialect's has not."""

_WORDS = ((0x200C, 0x200D), (0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189))
"""Word characters that no category tells."""


class PatternReading(NamedTuple):
    """The state of a terminal after the bytes so far: places in its pattern, and the bytes of a character that is not complete.

    Where it does not matter which character it will be, ``places`` are those after it, and ``missing`` bytes are to come.
    """

    places: frozenset[int]
    tail: bytes = b""
    missing: int = 0


@final
class Lexemes:
    """The byte strings that match a pattern as a whole, and their prefixes.

    Python's ``re`` tells whole matches only; here the places in its parse tree that a text may have come to are followed, one
    character at a time (Thompson's construction). Shares nothing with the automata of the engine. Where ``shortest``, a lexeme that
    has another one as a beginning is none.
    """

    def __init__(self, pattern: str, shortest: bool = False) -> None:
        self._pattern, self._shortest = pattern, shortest
        self._silent: list[list[int]] = [[]]
        self._edges: list[list[tuple[Intervals, int]]] = [[]]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # Python warns of what other dialects read otherwise, as `[a&&b]`
                parsed = _PARSER.parse(_in_python(pattern))
        except (re.error, Warning) as error:
            raise UnsupportedError(
                f"Python's re cannot read {pattern!r:.80}, so nothing can be checked: {error}"
            ) from None
        first, self._end = self._new(), 0
        self._build(parsed, parsed.state.flags, first, self._end)
        self._useful = self._leading_to_the_end()
        self._after: dict[tuple[PatternReading, int], PatternReading | None] = {}
        self.start: PatternReading = PatternReading(self._closed([first]))

    def step(self, reading: PatternReading, byte: int) -> PatternReading | None:
        """Return the reading after one more byte; ``None`` if no lexeme begins so."""
        key = (reading, byte)
        if key not in self._after:
            self._after[key] = self._step(reading, byte)
        return self._after[key]

    def matches(self, reading: PatternReading) -> bool:
        """Return True if the bytes so far are a lexeme."""
        return not reading.tail and not reading.missing and self._end in reading.places

    def _step(self, reading: PatternReading, byte: int) -> PatternReading | None:
        if self._shortest and self.matches(reading):
            return None
        if reading.missing:
            return PatternReading(reading.places, missing=reading.missing - 1) if 0x80 <= byte < 0xC0 else None
        tail = reading.tail + bytes([byte])
        span = _characters(tail)
        if span is None:
            return None
        low, high, missing, is_any = span
        meeting = [
            (place, characters, target)
            for place in reading.places
            for characters, target in self._edges[place]
            if _meets(characters, low, high)
        ]
        if not missing or (is_any and all(_covers(characters, low, high) for _, characters, _ in meeting)):
            places = self._closed(target for _, _, target in meeting)
            return PatternReading(places, missing=missing) if places else None
        waiting = frozenset(place for place, _, _ in meeting)
        return PatternReading(waiting, tail) if waiting else None

    def _closed(self, places: Iterable[int]) -> frozenset[int]:
        """Return the places that are reached without reading, as far as they lead to the end."""
        found = set(places)
        pending = list(found)
        while pending:
            new = [place for place in self._silent[pending.pop()] if place not in found]
            found.update(new)
            pending += new
        return frozenset(found & self._useful)

    def _leading_to_the_end(self) -> set[int]:
        into: dict[int, set[int]] = {}
        for place, silent in enumerate(self._silent):
            for target in (*silent, *(target for characters, target in self._edges[place] if characters)):
                into.setdefault(target, set()).add(place)
        found, pending = {self._end}, [self._end]
        while pending:
            new = into.get(pending.pop(), set()) - found
            found |= new
            pending += new
        return found

    def _new(self) -> int:
        self._silent.append([])
        self._edges.append([])
        return len(self._silent) - 1

    def _build(self, parsed: Any, flags: int, first: int, last: int) -> None:
        """Add the ways from ``first`` to ``last`` that a sequence of Python's parse tree describes."""
        here = first
        for kind, given in parsed:
            there = self._new()
            self._piece(str(kind), given, flags, here, there)
            here = there
        self._silent[here].append(last)

    def _piece(self, kind: str, given: Any, flags: int, here: int, there: int) -> None:
        match kind:
            case "LITERAL":
                self._edges[here].append((_folded(((given, given),), flags), there))
            case "NOT_LITERAL":
                self._edges[here].append((_complement(_folded(((given, given),), flags)), there))
            case "ANY":
                left_out = () if flags & re.DOTALL else ((0x0A, 0x0A),)
                self._edges[here].append((_complement(left_out), there))
            case "IN":
                self._edges[here].append((_class(given, flags), there))
            case "BRANCH":
                for branch in given[1]:
                    self._build(branch, flags, here, there)
            case "SUBPATTERN":
                _, added, removed, inner = given
                self._build(inner, (flags | added) & ~removed, here, there)
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, inner = given
                self._repeat(least, most, inner, flags, here, there)
            case _:
                raise UnsupportedError(
                    f"the pattern {self._pattern!r:.80} has what is not regular, or not read alike everywhere ({kind.lower()}), so "
                    "nothing can be checked; write it without assertions, references and atomic groups"
                )

    def _repeat(self, least: int, most: Any, inner: Any, flags: int, here: int, there: int) -> None:
        for _ in range(least):
            after = self._new()
            self._build(inner, flags, here, after)
            here = after
        if str(most) == "MAXREPEAT":
            loop = self._new()
            self._silent[here].append(loop)
            self._build(inner, flags, loop, loop)
            here = loop
        else:
            for _ in range(int(most) - least):
                self._silent[here].append(there)
                after = self._new()
                self._build(inner, flags, here, after)
                here = after
        self._silent[here].append(there)


def _in_python(pattern: str) -> str:
    """Return ``pattern`` with the escapes that Python writes otherwise: ``\\x{41}``."""

    def escape(found: re.Match[str]) -> str:
        return f"\\U{int(found[1], 16):08x}" if found[1] else found[0]

    return re.sub(r"\\x\{([0-9A-Fa-f]{1,6})\}|\\.", escape, pattern, flags=re.DOTALL)


def _characters(tail: bytes) -> tuple[int, int, int, bool] | None:
    """Return the least and the greatest character whose UTF-8 begins so, how many bytes are missing, and whether any will do.

    ``None`` if no character begins so.
    """
    lead = tail[0]
    length = (
        1 if lead < 0x80 else 0 if lead < 0xC2 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4 if lead < 0xF5 else 0
    )
    if not length or any(not 0x80 <= byte < 0xC0 for byte in tail[1:]):
        return None
    if length == 1:
        return lead, lead, 0, True
    missing = length - len(tail)
    first = lead & (0x7F >> length)
    for byte in tail[1:]:
        first = first << 6 | byte & 0x3F
    first, last = first << 6 * missing, (first + 1 << 6 * missing) - 1
    low, high = max(first, (0, 0, 0x80, 0x800, 0x10000)[length]), min(last, sys.maxunicode)
    return (low, high, missing, (low, high) == (first, last)) if low <= high else None


def _covers(characters: Intervals, low: int, high: int) -> bool:
    """Return True if all of ``low`` to ``high`` are ``characters``."""
    place = bisect_right(characters, (low, sys.maxunicode)) - 1
    return place >= 0 and characters[place][1] >= high


def _meets(characters: Intervals, low: int, high: int) -> bool:
    """Return True if one of ``characters`` lies between ``low`` and ``high``."""
    place = bisect_right(characters, (high, sys.maxunicode)) - 1
    return place >= 0 and characters[place][1] >= low


def _union(*parts: Iterable[tuple[int, int]]) -> Intervals:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(interval for part in parts for interval in part):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _complement(characters: Intervals) -> Intervals:
    """Return all characters but these; surrogates are none."""
    low, rest = 0, []
    for first, last in _union(characters, [_SURROGATES]):
        if low < first:
            rest.append((low, first - 1))
        low = last + 1
    return (*rest, (low, sys.maxunicode)) if low <= sys.maxunicode else tuple(rest)


def _class(items: list[Any], flags: int) -> Intervals:
    parts: list[Intervals] = []
    negated = False
    for kind, given in items:
        match str(kind):
            case "NEGATE":
                negated = True
            case "LITERAL":
                parts.append(((given, given),))
            case "RANGE":
                parts.append((given,))
            case "CATEGORY":
                name = str(given).rsplit("_", 1)[1]
                inside = _category(name, bool(flags & re.ASCII))
                parts.append(_complement(inside) if "_NOT_" in str(given) else inside)
    characters = _folded(_union(*parts), flags)
    return _complement(characters) if negated else characters


@lru_cache(maxsize=8)
def _category(name: str, ascii_only: bool) -> Intervals:
    if ascii_only:
        return {
            "DIGIT": ((0x30, 0x39),),
            "SPACE": ((0x09, 0x0D), (0x20, 0x20)),
            "WORD": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
        }[name]
    if name == "SPACE":
        return _SPACES
    wanted = ("Nd",) if name == "DIGIT" else ("L", "M", "Nd", "Nl", "Pc")
    found = ((c, c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)).startswith(wanted))
    return _union(found, () if name == "DIGIT" else _WORDS)


def _folded(characters: Intervals, flags: int) -> Intervals:
    """Return the characters that differ from these by case only, where case is to be ignored."""
    if not flags & re.IGNORECASE:
        return characters
    same, cased = _folds()
    found = (c for low, high in characters for c in cased[bisect_left(cased, low) : bisect_right(cased, high)])
    return _union(characters, ((other, other) for c in found for other in same[c]))


@lru_cache(maxsize=1)
def _folds() -> tuple[dict[int, list[int]], list[int]]:
    """Return for each character that has a case those that differ from it by case only, and all such characters in order."""
    members: dict[str, list[int]] = {}
    for code in range(0x20000):  # no letter beyond these planes has a case
        character = chr(code)
        folded = character.casefold()
        members.setdefault(folded if len(folded) == 1 else character.lower(), []).append(code)
    same = {code: codes for codes in members.values() if len(codes) > 1 for code in codes}
    return same, sorted(same)
