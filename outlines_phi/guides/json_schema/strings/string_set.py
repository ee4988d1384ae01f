"""Regular sets of strings: all that a schema can say of one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, final
from unicodedata import category

import numpy as np

from ....numerics.cache import kept
from ....regex.builder import automaton_of
from ....regex.code_automaton import CodeAutomaton
from ....regex.code_points import CODE_POINTS, CodePoints, characters, others
from ....regex.dialects import DIALECTS
from ....regex.patterns import searched
from ....regex.syntax_tree import Chars, Repeat

Interval = tuple[int, int | None]
"""The least and the greatest length, both included; ``None`` is no bound."""


@final
@dataclass(frozen=True)
class StringSet:
    """A regular set of strings of characters: of code points that are no surrogates.

    Lengths count code points. A set that lengths alone tell is kept as its lengths, whatever it was made of, so that
    no bound on a length costs anything; one that is made of values alone is kept as these; every other has its least
    automaton. So equal sets of one form are equal values, and the empty set has one form.

    Attributes
    ----------
    lengths
        Disjoint intervals of lengths that do not touch, in order; ``None`` where lengths do not tell the set.
    automaton
        The automaton over code points, where neither lengths nor values tell the set.
    values
        The members, or all strings that are none; ``None`` where values do not tell the set.
    without
        Whether :attr:`values` are those that are no members.
    """

    lengths: tuple[Interval, ...] | None
    automaton: CodeAutomaton | None = None
    values: frozenset[str] | None = None
    without: bool = False

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
        return cls._of(
            frozenset(value for value in values if value.isascii() or not _has_surrogate(value)), without=False
        )

    @classmethod
    def _of(cls, values: frozenset[str], *, without: bool) -> StringSet:
        if not values:
            return cls.all() if without else cls.none()
        if values == _EMPTY:
            return cls.of_lengths(1, None) if without else cls.of_lengths(0, 0)
        return cls(None, None, values, without)

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

    @property
    def _listed(self) -> tuple[frozenset[str], bool] | None:
        """The values, and whether they are those that are no members, also where lengths tell the same."""
        if self.values is not None:
            return self.values, self.without
        return _LISTED.get(self.lengths)

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

    @cached_property
    def code_automaton(self) -> CodeAutomaton:
        """The automaton over code points.

        Raises
        ------
        UnsupportedError
            A length is greater than an automaton can count.
        """
        if self.automaton is not None:
            return self.automaton
        if self.values is None:
            return CodeAutomaton.of_lengths(self.lengths or ())
        automaton = CodeAutomaton.of_values(self.values)
        return ~automaton if self.without else automaton

    @property
    def is_empty(self) -> bool:
        """Whether there is no member."""
        return self.lengths == ()

    @property
    def shortest(self) -> int:
        """The least number of characters of a member; ``ValueError`` if there is none."""
        if self.is_empty:
            raise ValueError("the set of strings is empty")
        if self.lengths:
            return self.lengths[0][0]
        if self.values is None:
            return int(self.code_automaton.distances[0])
        return 0 if self.without and "" not in self.values else 1 if self.without else min(map(len, self.values))

    @property
    def longest(self) -> int | None:
        """The greatest number of characters of a member, ``None`` if there is no greatest; ``ValueError`` if there is no member."""
        if self.is_empty:
            raise ValueError("the set of strings is empty")
        if self.lengths:
            return self.lengths[-1][1]
        if self.values is None:
            return self.code_automaton.longest
        return None if self.without else max(map(len, self.values))

    def contains(self, text: str) -> bool:
        """Return whether ``text`` is a member."""
        if self.automaton is not None:
            return self.automaton.contains(text)
        if self.values is not None:
            fits = (text in self.values) != self.without
        else:
            fits = any(low <= len(text) and (high is None or len(text) <= high) for low, high in self.lengths or ())
        return fits and (text.isascii() or not _has_surrogate(text))

    def __invert__(self) -> StringSet:
        if self.automaton is not None:
            return StringSet(None, ~self.automaton)
        if self.values is not None:
            return StringSet(None, None, self.values, not self.without)
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
        if self.lengths is not None and other.lengths is not None:
            return StringSet(_both(self.lengths, other.lengths))
        for one, more in ((self, other), (other, self)):
            if one.values is not None and not one.without:
                return StringSet._of(frozenset(filter(more.contains, one.values)), without=False)
            if one.values is not None:
                if more._listed is not None and more._listed[1]:
                    return StringSet._of(one.values | more._listed[0], without=True)
                # Only what can make a difference is taken out.
                values = frozenset(filter(more.contains, one.values))
                if values != one.values:
                    return StringSet._of(values, without=True) & more
        if self.lengths is not None:
            return other & self
        if other.lengths is not None and self.values is None:
            # Only what can make a difference is counted.
            span = ((self.shortest, self.longest),)
            needed = _both(span, other.lengths)
            if needed == span:
                return self
            if not needed:
                return StringSet.none()
            if needed[0][0] == self.shortest:
                needed = ((0, needed[0][1]), *needed[1:])
            if needed[-1][1] == self.longest:
                needed = (*needed[:-1], (needed[-1][0], None))
            other = StringSet(needed)
        return StringSet.of_automaton(self.code_automaton & other.code_automaton)

    def __or__(self, other: StringSet) -> StringSet:
        return ~(~self & ~other)


_EMPTY = frozenset([""])
_LISTED: dict[Any, tuple[frozenset[str], bool]] = {
    ((0, 0),): (_EMPTY, False),
    ((1, None),): (_EMPTY, True),
    ((0, None),): (frozenset(), True),
}
"""What lengths say that values say as well."""


_UNICODE = re.compile(r"\\[bBdDsSwWpP<>]|\(\?[a-zA-Z]*i")
"""What asks for properties of characters."""


@lru_cache(maxsize=1)
def _assigned() -> CodePoints:
    """Return the characters that Python's version of Unicode has."""
    return others(characters("".join(c for c in map(chr, range(CODE_POINTS)) if category(c) == "Cn")))


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
