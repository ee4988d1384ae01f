"""The lexemes of a pattern, by Thompson's construction over Python's own parse tree: a part of the oracle."""

from __future__ import annotations

import importlib
import itertools
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, final

import numpy as np
import regex
from numpy.typing import NDArray

from outlines_phi import UnsupportedError
from outlines_phi.automata.byte_machine import closure
from outlines_phi.guides.grammar.grammar import Terminal

_PARSER = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

Intervals = tuple[tuple[int, int], ...]  # Code points: disjoint intervals, ascending, both ends included

CATEGORIES = {
    "DIGIT": r"\p{Nd}",
    "SPACE": r"\p{White_Space}",
    "WORD": r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}",
}
"""The classes of Rust's dialect by the properties of Unicode (UTS #18, annex C); those of Python's are Python's own."""

_STRING = re.compile(r"""(["'])\.\*\?\(\?<!\\\\\)\(\\\\\\\\\)\*\?\1""")
"""The strings of Lark's own library, between quotation marks of one kind: they end behind an even number of backslashes."""


PatternReading = frozenset[int]  # The states of the automaton that the bytes so far lead to


@final
class Lexemes:
    """Byte strings that match a pattern as a whole, read one byte at a time; shares nothing with the automata of the engine.

    Python's ``re`` parses the pattern and says what each character class holds. Where ``shortest``, a lexeme that has another one
    as a beginning is none.
    """

    def __init__(self, pattern: str, shortest: bool = False, dialect: str = "rust") -> None:
        self._pattern, self._shortest, self._dialect = pattern, shortest, dialect
        self._silent: dict[int, list[int]] = defaultdict(list)
        # By state: the first and the last byte, and the target.
        self._edges: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._new = itertools.count(1).__next__
        parsed = parsed_by_python(pattern, dialect)
        first, self._end = self._new(), 0
        self._build(parsed, parsed.state.flags, first, self._end)
        into: dict[int, list[int]] = defaultdict(list)
        for place in range(self._new()):
            for target in (*self._silent[place], *(target for _, _, target in self._edges[place])):
                into[target].append(place)
        self._useful = frozenset(closure([self._end], into.__getitem__))
        self._after: dict[tuple[PatternReading, int], PatternReading | None] = {}
        self.start = self._closed([first])

    @classmethod
    def of(cls, terminal: Terminal) -> Lexemes:
        """Return the lexemes of a terminal; an :class:`UnsupportedError` where its pattern is not regular or not read alike."""
        if terminal.dialect != "python":
            return cls(terminal.pattern, terminal.shortest, terminal.dialect)
        pattern = _STRING.sub(r"\1(?:[^\1\\\\\n]|\\\\.)*\1", terminal.pattern)
        shortest = ends_first(parsed_by_python(pattern, "python"))
        if shortest is None:
            raise UnsupportedError(
                f"Write {terminal.pattern!r:.80} with one lazy quantifier at most. Where its lexemes end first is not clear, so "
                "nothing can be checked."
            )
        return cls(pattern, shortest, "python")

    def step(self, reading: PatternReading, byte: int) -> PatternReading | None:
        """Return the reading after one more byte; ``None`` if no lexeme begins so."""
        key = (reading, byte)
        if key not in self._after:
            places = () if self._shortest and self.matches(reading) else reading
            edges = (edge for place in places for edge in self._edges[place])
            self._after[key] = self._closed(target for low, high, target in edges if low <= byte <= high) or None
        return self._after[key]

    def matches(self, reading: PatternReading) -> bool:
        """Return True if the bytes so far are a lexeme."""
        return self._end in reading

    def _closed(self, places: Iterable[int]) -> PatternReading:
        """Return the states that are reached without reading, as far as they lead to the end."""
        return frozenset(closure(places, self._silent.__getitem__)) & self._useful

    def _character(self, characters: Intervals, here: int, there: int) -> None:
        """Add the ways that UTF-8 writes one of ``characters``; what is still to be read is shared by all."""
        shared: dict[tuple[tuple[int, int], ...], int] = {(): there}
        for low, high in characters:
            for ranges in spelled(low, high):
                for length in range(1, len(ranges)):
                    rest = ranges[-length:]
                    if rest not in shared:
                        shared[rest] = self._new()
                        self._edges[shared[rest]].append((*rest[0], shared[rest[1:]]))
                self._edges[here].append((*ranges[0], shared[ranges[1:]]))

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
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                written = _written(kind, given, self._dialect, flags)
                self._character(members(*written, self._dialect, int(flags)), here, there)
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
                    f"Write {self._pattern!r:.80} without assertions, references and atomic groups. It has what is not regular, or "
                    f"not read alike everywhere ({kind.lower()}), so nothing can be checked."
                )

    def _repeat(self, least: int, most: Any, inner: Any, flags: int, here: int, there: int) -> None:
        endless = str(most) == "MAXREPEAT"
        for number in range(least if endless else int(most)):
            if number >= least:
                self._silent[here].append(there)
            after = self._new()
            self._build(inner, flags, here, after)
            here = after
        if endless:
            loop = self._new()
            self._silent[here].append(loop)
            self._build(inner, flags, loop, loop)
            here = loop
        self._silent[here].append(there)


def parsed_by_python(pattern: str, dialect: str) -> Any:
    """Return Python's parse tree; an :class:`UnsupportedError` where it has none, or warns that others read it otherwise."""

    def escape(found: re.Match[str]) -> str:
        return f"\\U{int(found[1], 16):08x}" if found[1] else found[0]

    if dialect == "rust":  # Python writes `\x{41}` otherwise
        pattern = re.sub(r"\\x\{([0-9A-Fa-f]{1,6})\}|\\.", escape, pattern, flags=re.DOTALL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error" if dialect == "rust" else "ignore")
            return _PARSER.parse(pattern)
    except (re.error, Warning, OverflowError, RecursionError) as error:
        raise UnsupportedError(
            f"Write {pattern!r:.80} as Python reads it. Its re cannot, so nothing can be checked: {error}"
        ) from None


def ends_first(parsed: Any) -> bool | None:
    """Return True if a lazy quantifier ends the lexemes where they first match; ``None`` where it is not clear which these are."""
    if "MIN_REPEAT" not in str(parsed):
        return False
    nodes = list(parsed)
    if len(nodes) == 1 and str(nodes[0][0]) == "SUBPATTERN":
        return ends_first(nodes[0][1][3])
    lazy = [place for place, (kind, _) in enumerate(nodes) if str(kind) == "MIN_REPEAT"]
    if len(lazy) != 1 or str(parsed).count("MIN_REPEAT") != 1:
        return None
    widths = (_PARSER.SubPattern(parsed.state, rest).getwidth() for rest in (nodes[: lazy[0]], nodes[lazy[0] + 1 :]))
    return True if all(least == most for least, most in widths) else None


def _written(kind: str, given: Any, dialect: str, flags: int) -> tuple[str, bool]:
    """Return a class of characters as a pattern, and whether it is one of all others."""
    if kind == "ANY":
        return (r"[\s\S]" if flags & re.DOTALL else "."), False
    items = given if kind == "IN" else [(kind.removeprefix("NOT_"), given)]
    text, negated = "", kind == "NOT_LITERAL"
    for name, value in items:
        match str(name):
            case "NEGATE":
                negated = True
            case "LITERAL":
                text += f"\\U{value:08x}"
            case "RANGE":
                text += f"\\U{value[0]:08x}-\\U{value[1]:08x}"
            case "CATEGORY":
                inside, plain = str(value).rsplit("_", 1)[1], "_NOT_" not in str(value)
                if dialect == "rust" and not flags & re.ASCII:
                    text += CATEGORIES[inside] if plain else f"[^{CATEGORIES[inside]}]"
                else:
                    text += "\\" + (inside[0].lower() if plain else inside[0])
    return f"[{text}]", negated


@lru_cache(maxsize=4096)
def members(text: str, negated: bool, dialect: str, flags: int) -> Intervals:
    """Return the characters of a class: ``re`` is asked of each character that there is, in Rust's dialect ``regex``.

    Where case is ignored, the dotted and the dotless I of Turkish are letters of their own, as in Unicode's simple case folding.
    """
    held = _held(text, dialect, flags & re.ASCII)
    if flags & re.IGNORECASE:
        folded = _held(text, dialect, flags & (re.ASCII | re.IGNORECASE))
        folded[[0x130, 0x131] if held[[0x49, 0x69]].any() else [0x130, 0x131, 0x49, 0x69]] = False
        held |= folded
    held = ~held if negated else held
    held[0xD800:0xE000] = False
    edges = np.flatnonzero(np.diff(held, prepend=False, append=False)).reshape(-1, 2)
    return tuple((low, end - 1) for low, end in edges.tolist())


def _held(text: str, dialect: str, flags: int) -> NDArray[np.bool_]:
    """Return ``bool[0x110000]``: the characters that a class has."""
    held = np.zeros(sys.maxunicode + 1, dtype=bool)
    engine: Any = regex if dialect == "rust" else re
    for found in engine.finditer(f"(?:{text})+", _every_character(), flags | (regex.V1 if dialect == "rust" else 0)):
        held[found.start() : found.end()] = True
    return held


@lru_cache(maxsize=1)
def _every_character() -> str:
    return "".join(map(chr, range(sys.maxunicode + 1)))


def spelled(low: int, high: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield sequences of ranges of bytes, which together are the UTF-8 of the characters from ``low`` to ``high``."""
    ends = [end for end in (0x7F, 0x7FF, 0xFFFF) if low <= end < high]  # of the characters of one length
    for bits in (6, 12, 18) if high > 0x7F else ():
        mask = (1 << bits) - 1
        if low >> bits != high >> bits:  # otherwise the last bytes are whole ranges or begin alike
            ends += [low | mask] * bool(low & mask) + [(high & ~mask) - 1] * (high & mask != mask)
    if ends:
        yield from spelled(low, ends[0])
        yield from spelled(ends[0] + 1, high)
    else:
        yield tuple(zip(chr(low).encode(), chr(high).encode(), strict=True))
