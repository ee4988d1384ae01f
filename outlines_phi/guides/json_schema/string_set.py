"""Regular sets of strings: all that a schema can say of one; and the spellings of their members in JSON."""

from __future__ import annotations

import itertools
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import islice
from typing import final
from unicodedata import category

import numpy as np

from ...numerics.cache import kept
from ...regex.builder import automaton_of
from ...regex.code_automaton import (
    CODE_POINTS,
    CodeAutomaton,
    CodePoints,
    Interval,
    characters,
    check_states,
    is_within,
    others,
)
from ...regex.patterns import searched
from ...regex.spelling import Composed, Digit, Spelling, spelling_of
from ...regex.syntax_tree import DIALECTS, Chars, Repeat

MULTIPLIED = 1_000
"""States times lengths of which an automaton is made; of more, the count stands beside the state."""

COUNTED = 1_000
"""States times lengths that may be told apart, for each state that an automaton may have."""

MOST_CUTS = 30
"""Lengths at which other sets begin that are told by bits."""


@final
@dataclass(frozen=True)
class StringSet:
    """A regular set of strings of characters: of code points that are no surrogates.

    Lengths count code points. A set that lengths alone tell is kept as its lengths, whatever it was made of, so that
    no bound on a length costs anything; one that is made of values alone is kept as these; every other has its least
    automaton, which takes no account of lengths that would multiply its states. Values that are left out stand beside the others.
    So equal sets of one form are equal values, unless lengths are cut or values left out, and the empty set has one form.

    Attributes
    ----------
    lengths
        Disjoint intervals of lengths that do not touch, in order; ``None`` where lengths do not tell the set.
    automaton
        The automaton over code points, where neither lengths nor values tell the set.
    values
        The members; ``None`` where values do not tell the set.
    cuts
        Lengths at which another set begins: the bits of what the automaton accepts are those of strings that are shorter than the
        first, of those up to the second, and so on.
    but
        The strings that are no members, of those that the lengths or the automaton tell; none where lengths are cut.
    """

    lengths: tuple[Interval, ...] | None
    automaton: CodeAutomaton | None = None
    values: frozenset[str] | None = None
    cuts: tuple[int, ...] = ()
    but: frozenset[str] = frozenset()

    @classmethod
    def all(cls) -> StringSet:
        """Return the set of all strings."""
        return cls.of_lengths(0, None)

    @classmethod
    def none(cls) -> StringSet:
        """Return the empty set."""
        return cls(())

    @classmethod
    def of_lengths(cls, low: int, high: int | None) -> StringSet:
        """Return the strings of ``low`` to ``high`` characters, both included; ``None`` is no bound."""
        low = max(low, 0)
        return cls.none() if high is not None and high < low else cls(((low, high),))

    @classmethod
    def of_values(cls, values: Iterable[str]) -> StringSet:
        """Return the set of these strings; one with a lone surrogate is left out."""
        found = frozenset(value for value in values if value.isascii() or not _has_surrogate(value))
        return cls(None, None, found) if found - _EMPTY else cls.of_lengths(0, 0) if found else cls.none()

    @classmethod
    @kept
    def matching(cls, pattern: str, dialect: str = "ecma") -> StringSet:
        """Return the strings in which ``pattern`` is found; errors as :func:`searched`.

        Of a Python type they are valid for older versions of Unicode too: their characters are those that Python's version has.
        """
        found = cls.of_automaton(searched(pattern, DIALECTS[dialect]))
        if dialect == "ecma" or not _UNICODE.search(pattern):
            return found
        return found & cls.of_automaton(automaton_of(Repeat(Chars(_assigned()), 0, None), "The pattern"))

    @classmethod
    def of_automaton(cls, automaton: CodeAutomaton) -> StringSet:
        """Return the set of the members of ``automaton``."""
        targets = automaton.targets
        # One column means that only the length counts; the states then follow each other, and the last leads back to one.
        if targets.shape[1] > 1 or targets[-1, 0] != len(targets) - 1:
            return cls(None, automaton)
        changes = np.flatnonzero(np.diff(automaton.accepting, prepend=False)).tolist()
        ends = [*(change - 1 for change in changes), None]
        return cls(tuple(zip(changes[::2], ends[1::2], strict=False)))

    @classmethod
    def _of_bits(cls, automaton: CodeAutomaton, cuts: Sequence[int]) -> StringSet:
        """Return the set of an automaton whose bits tell lengths apart."""
        bits = automaton.accepting
        kept = [n for n in range(len(cuts)) if ((bits >> n ^ bits >> n + 1) & 1).any()]
        if not kept:
            return cls.of_automaton(replace(automaton, accepting=bits & 1 > 0))
        cuts = tuple(cuts[n] for n in kept)
        automaton = _repacked(automaton, [*kept, kept[-1] + 1])
        if automaton.targets.size == 1:
            spans = zip((0, *cuts), (*(cut - 1 for cut in cuts), None), strict=True)
            return cls(tuple(span for n, span in enumerate(spans) if automaton.accepting[0] >> n & 1))
        if len(automaton) * cuts[-1] <= MULTIPLIED:
            return cls.of_automaton(automaton.multiplied(cuts))
        check_states(len(automaton) * cuts[-1] // COUNTED, "A length, beside what else restricts the string,")
        return cls.none() if automaton.shortest(cuts) is None else cls(None, automaton, cuts=cuts)

    @property
    def _edges(self) -> Iterable[int]:
        """The lengths at which another set begins."""
        edges = (edge for low, high in self.lengths or () for edge in (low, None if high is None else high + 1))
        return (*filter(None, edges), *self.cuts)

    def _bits(self, cuts: Sequence[int]) -> CodeAutomaton:
        """Return the automaton whose bits tell lengths apart that are cut so."""
        if self.lengths is not None:
            bits = sum(is_within(first, self.lengths) << n for n, first in enumerate((0, *cuts)))
            one = np.zeros(1, dtype=np.int32)
            return CodeAutomaton(one, one, one[:, None], np.array([bits]))
        automaton = self.automaton or self.code_automaton
        return _repacked(automaton, [bisect_right(self.cuts, first) for first in (0, *cuts)])

    @cached_property
    def code_automaton(self) -> CodeAutomaton:
        """The automaton over code points.

        Raises
        ------
        UnsupportedError
            A length is greater than an automaton can count.
        """
        if self.but:
            return self._merged.code_automaton
        if self.automaton is not None:
            return self.automaton.multiplied(self.cuts) if self.cuts else self.automaton
        if self.values is not None:
            return CodeAutomaton.of_values(self.values)
        return CodeAutomaton.of_lengths(self.lengths or ())

    @property
    def is_empty(self) -> bool:
        """True if there is no member."""
        return self.lengths == ()

    @property
    def shortest(self) -> int:
        """The least number of characters of a member; ``ValueError`` if there is none."""
        if self.is_empty:
            raise ValueError("the set of strings is empty")
        if self.but:
            return self._merged.shortest
        if self.automaton is not None:
            return self.automaton.shortest(self.cuts) or 0
        return min(map(len, self.values)) if self.values is not None else (self.lengths or ((0, None),))[0][0]

    @property
    def longest(self) -> int | None:
        """The greatest number of characters of a member, ``None`` if there is no greatest; ``ValueError`` if there is no member.

        Where lengths are cut or values left out, a bound of it.
        """
        if self.is_empty:
            raise ValueError("the set of strings is empty")
        if self.lengths:
            return self.lengths[-1][1]
        if self.automaton is not None:
            longest = _repacked(self.automaton, [len(self.cuts)]).longest
            return None if longest is None else max(longest, *(cut - 1 for cut in self.cuts), 0)
        return None if self.values is None else max(map(len, self.values))

    def contains(self, text: str) -> bool:
        """Return True if ``text`` is a member."""
        if self.automaton is not None:
            fits = self.automaton.contains(text, bisect_right(self.cuts, len(text)))
        elif self.values is not None:
            fits = text in self.values
        else:
            fits = is_within(len(text), self.lengths or ()) and (text.isascii() or not _has_surrogate(text))
        return fits and text not in self.but

    @cached_property
    def whole(self) -> StringSet:
        """The set with the values that it leaves out."""
        return replace(self, but=frozenset()) if self.but else self

    @cached_property
    def _merged(self) -> StringSet:
        """The same set of one that leaves values out, told by its automaton alone."""
        return self.whole & StringSet(None, ~CodeAutomaton.of_values(self.but))

    def without(self, values: Iterable[str]) -> StringSet:
        """Return the set without some strings. Its automaton stays as it is, so that sets of seen values share it."""
        gone = frozenset(filter(self.contains, values))
        if self.values is not None:
            return StringSet.of_values(self.values - gone)
        if not gone:
            return self
        # The empty string is told by lengths where it is left out alone, or others are bounded.
        if self.lengths == ((1, None),):
            return StringSet.all().without({"", *gone})
        if self.lengths is not None and "" in gone and (self.lengths[-1][1] is not None or self.but | gone == _EMPTY):
            return (self & StringSet.of_lengths(1, None)).without(gone)
        found = replace(self, but=self.but | gone)
        if max(self._edges, default=0) > MULTIPLIED or self.cuts:
            return found._merged
        # What has a longest member may have no other one.
        is_rich = self.automaton is None or self.automaton.longest is None
        return found if is_rich or next(members(found, ascii=False), None) else StringSet.none()

    def __invert__(self) -> StringSet:
        if self.but:
            return StringSet.of_values(self.but) if self.whole == StringSet.all() else ~self._merged
        if self.automaton is not None:
            if self.cuts:
                accepting = self.automaton.accepting ^ (2 << len(self.cuts)) - 1
                return StringSet._of_bits(replace(self.automaton, accepting=accepting), self.cuts)
            return StringSet(None, ~self.automaton)
        if self.values is not None:
            return StringSet.all().without(self.values)
        gaps: list[Interval] = []
        start: int | None = 0
        for low, high in self.lengths or ():
            if start is not None and start < low:
                gaps.append((start, low - 1))
            start = None if high is None else high + 1
        return StringSet((*gaps, (start, None)) if start is not None else tuple(gaps))

    def __and__(self, other: StringSet) -> StringSet:
        if self.is_empty or other.is_empty:
            return StringSet.none()
        if self.but or other.but:
            return (self.whole & other.whole).without(self.but | other.but)
        if self.lengths is not None and other.lengths is not None:
            return StringSet(_both(self.lengths, other.lengths))
        for one, more in ((self, other), (other, self)):
            if one.values is not None:
                return StringSet.of_values(filter(more.contains, one.values))
        if self.lengths is not None:
            return other & self
        if other.lengths is not None and not self.cuts:
            # Only what can make a difference is counted.
            other |= ~StringSet.of_lengths(self.shortest, self.longest)
            if other == StringSet.all():
                return self
        cuts = sorted({*self._edges, *other._edges})
        if not cuts or len(cuts) > MOST_CUTS:
            return StringSet.of_automaton(self.code_automaton & other.code_automaton)
        return StringSet._of_bits(self._bits(cuts) & other._bits(cuts), cuts)

    def __or__(self, other: StringSet) -> StringSet:
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        return ~(~self & ~other)


_EMPTY = frozenset([""])

_UNICODE = re.compile(r"\\[bBdDsSwWpP<>]|\(\?[a-zA-Z]*i")
"""The parts of a pattern that ask for properties of characters."""


@lru_cache(maxsize=1)
def _assigned() -> CodePoints:
    """Return the characters that Python's version of Unicode has."""
    return others(characters("".join(c for c in map(chr, range(CODE_POINTS)) if category(c) == "Cn")))


def _repacked(automaton: CodeAutomaton, chosen: Sequence[int]) -> CodeAutomaton:
    """Return an automaton with some of the bits that its states accept."""
    accepting = automaton.accepting.astype(np.int64)
    return replace(automaton, accepting=np.sum([(accepting >> bit & 1) << n for n, bit in enumerate(chosen)], axis=0))


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _both(left: tuple[Interval, ...], right: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """Return the lengths in both."""
    found: list[Interval] = []
    for low, high in left:
        for other_low, other_high in right:
            first = max(low, other_low)
            last = other_high if high is None else high if other_high is None else min(high, other_high)
            if last is None or first <= last:
                found.append((first, last))
    return tuple(sorted(found, key=lambda interval: interval[0]))


QUOTE, BACKSLASH, U = b'"\\u'

NOT_RAW = '"\\' + "".join(map(chr, range(0x20)))
"""The characters that JSON does not let stand as they are."""

RAW_ASCII = "".join(chr(code) for code in range(0x80) if chr(code) not in NOT_RAW)
"""The characters that are spelled in one byte."""

SHORT = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
"""The character that each letter stands for after a backslash."""

_VALUES = [{ord(f"{digit:x}"), ord(f"{digit:X}")} for digit in range(16)]
"""The hexadecimal digits, in either case."""

_HEX, _BELOW_D, _ABOVE_D = Digit(*_VALUES), Digit(*_VALUES[:0xD]), Digit(*_VALUES[0xE:])
_BELOW_SURROGATES = Digit(*_VALUES[:8])
_BETWEEN = [Digit([BACKSLASH]), Digit([U]), Digit(_VALUES[0xD])]
_PAIR = [Digit(*_VALUES[8:12]), _HEX, _HEX, *_BETWEEN, Digit(*_VALUES[0xC:]), _HEX, _HEX]
"""The digits of a pair of surrogates behind ``\\ud``."""


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
    return composed_of(StringSet.all(), ascii=ascii)


def members(strings: StringSet, *, ascii: bool) -> Iterator[tuple[str, int]]:
    """Yield the members by the size of the shortest spelling and a closing quote, each with that size."""
    if strings.values is not None:
        sizes = sorted((spelled_size(text, ascii=ascii), text) for text in strings.values)
        yield from ((text, size + 1) for size, text in sizes)
        return
    seen, whole = set(strings.but), strings.whole
    if whole == StringSet.all():
        for text in ("", *RAW_ASCII):
            if text not in seen:
                seen.add(text)
                yield text, len(text) + 1
    for count in (4**step for step in itertools.count()):
        known = _first_members(whole, ascii, count)
        for text, size in known:
            if text not in seen:
                seen.add(text)
                yield text, size
        if len(known) < count:
            return


@kept
def _first_members(strings: StringSet, ascii: bool, count: int) -> list[tuple[str, int]]:
    """Return the first members by the sizes of their spellings, each with that size; repeated where it has several."""
    spelled = islice(composed_of(strings, ascii=ascii).members(), count)
    return [(json.loads(b'"' + spelling), len(spelling)) for spelling in spelled]


@kept
def composed_of(strings: StringSet, *, ascii: bool) -> Composed:
    r"""Return the automaton of the JSON spellings of the members, from after the opening quote; it ends with the closing one.

    Every spelling that RFC 8259 allows is there: raw UTF-8, the short escapes, ``\uXXXX`` in either case, and a pair of
    these for a character beyond U+FFFF. A lone surrogate is not: it spells no character. With
    ``ascii`` only those without raw UTF-8 are. Lengths stand beside the states.

    Raises
    ------
    UnsupportedError
        A length is greater than an automaton can count.
    """
    return Composed(strings.automaton or strings.code_automaton, in_ascii if ascii else in_json, QUOTE, strings.cuts)


def _in_json(spelling: Spelling, *, below: int = 0x100) -> int:
    """Return the root of the spelling of characters inside a JSON string, by bytes ``below`` one and by escapes."""
    behind_d = [*spelling.digits(0xD000, [_BELOW_SURROGATES, _HEX, _HEX]), *spelling.digits(0x10000, _PAIR)]
    surrogate = spelling.place(sorted(behind_d))
    firsts = [(byte, byte, surrogate) for byte in _VALUES[0xD]]
    for base, digit in ((0, _BELOW_D), (0xE000, _ABOVE_D)):
        firsts += spelling.digits(base, [digit, _HEX, _HEX, _HEX])
    escapes = [(ord(letter), ord(letter), spelling.class_of(ord(meant))) for letter, meant in SHORT.items()]
    escapes.append((U, U, spelling.place(sorted(firsts))))
    escape = spelling.place(sorted(escapes))
    raw = [edge for edge in spelling.in_utf8(NOT_RAW) if edge[0] < below]
    return spelling.place(sorted([*raw, (BACKSLASH, BACKSLASH, escape)]))


in_json, in_ascii = spelling_of(_in_json), spelling_of(partial(_in_json, below=0x80))
"""The spellings of characters inside a JSON string; without raw UTF-8."""
