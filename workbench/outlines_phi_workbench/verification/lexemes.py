"""The lexemes of a pattern, by partial derivatives of Python's own parse tree: a part of the oracle."""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, final

import numpy as np
import regex
from numpy.typing import NDArray

from outlines_phi import UnsupportedError
from outlines_phi.automata.byte_machine import ByteMachine, closure
from outlines_phi.guides.grammar.grammar import Terminal

_PARSER = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

BYTES = tuple(bytes([byte]) for byte in range(256))

CATEGORIES = {
    "DIGIT": r"\p{Nd}",
    "SPACE": r"\p{White_Space}",
    "WORD": r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}",
}
"""The classes of Rust's dialect by the properties of Unicode (UTS #18, annex C); those of Python's are Python's own."""

_STRING = re.compile(r"""(["'])\.\*\?\(\?<!\\\\\)\(\\\\\\\\\)\*\?\1""")
"""The strings of Lark's own library, between quotation marks of one kind: they end behind an even number of backslashes."""


Ranges = tuple[tuple[int, int], ...]  # Of bytes, one after the other: the first and the last
Term = tuple[Any, ...]
"""The end of a pattern, ``()``, or a part of it with what comes behind: ranges of bytes, a class, several ways, or a repetition."""

PatternReading = frozenset[Term]  # What the rest of a match may be after the bytes so far


@final
class Lexemes(ByteMachine[PatternReading]):
    """Byte strings that match a pattern as a whole, read one byte at a time; shares nothing with the automata of the engine.

    Partial derivatives (Antimirov, 1996) of Python's own parse tree; ``re`` says what each character class holds. Where
    ``shortest``, a lexeme that has another one as a beginning is none. ``letters`` are what texts are made of.
    """

    def __init__(
        self, pattern: str, shortest: bool = False, dialect: str = "rust", *, letters: Sequence[bytes] = BYTES
    ) -> None:
        self._pattern, self._shortest, self._dialect, self._letters = pattern, shortest, dialect, letters
        self._sequences: list[tuple[Any, ...]] = []
        self._after: dict[tuple[PatternReading, int], PatternReading | None] = {}
        parsed = parsed_by_python(pattern, dialect)
        self.start = self._closed(self._before(whole, ()) for whole in self._possible([parsed], parsed.state.flags))

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

    def step(self, place: PatternReading, byte: int) -> PatternReading | None:
        """Return the reading after one more byte; ``None`` if no lexeme begins so."""
        key = (place, byte)
        if key not in self._after:
            terms = () if self._shortest and self.ends(place) else place
            self._after[key] = self._closed(after for term in terms if term for after in _derived(term, byte)) or None
        return self._after[key]

    def ends(self, place: PatternReading) -> bool:
        """Return True if the bytes so far are a lexeme."""
        return () in place

    def is_live(self, place: PatternReading) -> bool:
        """Return True if it is completed: by bytes always, by longer letters if a search finds how."""
        if self._letters == BYTES:
            return bool(place)

        def further(here: PatternReading) -> list[PatternReading]:
            return [after for letter in self._letters if (after := self.read(letter, here)) is not None]

        return any(map(self.ends, closure([place], further)))

    def _closed(self, terms: Iterable[Term]) -> PatternReading:
        """Return the terms that begin with bytes, and the end, that others come to without reading."""
        return frozenset(
            term for term in closure(terms, self._silent) if not term or term[0][0] not in ("any", "repeat")
        )

    def _silent(self, term: Term) -> list[Term]:
        match term:
            case (("any", *ways), rest):
                return [self._before(way, rest) for way in ways]
            case (("repeat", least, most, inner), rest):
                fewer = most if str(most) == "MAXREPEAT" else most - 1
                again = self._before(inner, (("repeat", max(least - 1, 0), fewer, inner), rest))
                return [again] * (most > 0) + [rest] * (least == 0)
        return []

    def _before(self, number: int, rest: Term) -> Term:
        """Return the term of a sequence, by its number, with ``rest`` behind it."""
        for node in reversed(self._sequences[number]):
            rest = (node, rest)
        return rest

    def _possible(self, several: Iterable[Any], flags: int) -> list[int]:
        """Return the numbers of those sequences of Python's parse tree that something matches."""
        return [number for parsed in several if ("any",) not in self._sequences[number := self._read(parsed, flags)]]

    def _read(self, parsed: Any, flags: int) -> int:
        """Return the number of a sequence of Python's parse tree, in which ``("any",)`` is of nothing."""
        nodes: list[tuple[Any, ...]] = []
        for kind, given in parsed:
            match str(kind):
                case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN" as name:
                    node = ("class", *_written(name, given, self._dialect, flags), self._dialect, int(flags))
                    nodes.append(node if spellings(*node[1:]) else ("any",))
                case "BRANCH":
                    nodes.append(("any", *self._possible(given[1], flags)))
                case "SUBPATTERN":
                    _, added, removed, inner = given
                    nodes.append(("any", *self._possible([inner], (flags | added) & ~removed)))
                case "MAX_REPEAT" | "MIN_REPEAT":
                    least, most, inner = given
                    repeated = self._possible([inner], flags)
                    nodes += [("repeat", least, most, *repeated)] if repeated else [("any",)] * (least > 0)
                case name:
                    raise UnsupportedError(
                        f"Write {self._pattern!r:.80} without assertions, references and atomic groups. It has what is not "
                        f"regular, or not read alike everywhere ({name.lower()}), so nothing can be checked."
                    )
        self._sequences.append(tuple(nodes))
        return len(self._sequences) - 1


def _derived(term: Term, byte: int) -> Iterator[Term]:
    """Yield the terms behind a byte, of a term that begins with bytes."""
    head, rest = term
    for (low, high), *more in spellings(*head[1:]) if head[0] == "class" else [head]:
        if low <= byte <= high:
            yield (tuple(more), rest) if more else rest


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
def spellings(text: str, negated: bool, dialect: str, flags: int) -> tuple[Ranges, ...]:
    """Return the UTF-8 of the characters of a class: ``re`` is asked of each character that there is, in Rust's dialect ``regex``.

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
    return tuple(ranges for low, end in edges.tolist() for ranges in spelled(low, end - 1))


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


def spelled(low: int, high: int) -> Iterator[Ranges]:
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
