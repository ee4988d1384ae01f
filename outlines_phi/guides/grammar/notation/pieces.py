"""Which expressions of a grammar over characters are regular, and their patterns and automata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

from ....automata.automaton import ByteAutomaton
from ....errors import OutlinesPhiError
from ....regex.patterns import compile_regex
from .dialect import literal
from .gbnf import Alternation, Characters, Concatenation, Expression, GBNFRule, Intervals, Repetition, RuleName

_MOST_WRITTEN = 10_000
"""How many characters the pattern of a terminal may have."""


class _NotRegular(Exception):
    """A rule uses itself, or its expression is too long to be that of a terminal."""


@final
class Pieces:
    """The expressions of rules: which are regular, as patterns; ``opened`` are those that are taken apart nevertheless."""

    def __init__(self, rules: Mapping[str, GBNFRule]) -> None:
        self.rules = rules
        self.opened: set[Expression] = set()
        self._patterns: dict[str, str | None] = {}
        self._automata: dict[Expression, ByteAutomaton | None] = {}

    def is_terminal(self, expression: Expression) -> bool:
        """Return whether an expression is to be one terminal."""
        return expression not in self.opened and self.pattern(expression) is not None

    def pattern(self, expression: Expression) -> str | None:
        """Return the regular expression of what an expression derives, ``None`` if it is not regular or too long."""
        try:
            return self.written(expression)
        except _NotRegular:
            return None

    def automaton(self, terminal: Expression) -> ByteAutomaton | None:
        """Return the automaton of a terminal, ``None`` where it is too large."""
        if terminal not in self._automata:
            try:
                self._automata[terminal] = compile_regex(self.written(terminal))
            except OutlinesPhiError:
                self._automata[terminal] = None
        return self._automata[terminal]

    def nonempty(self, expression: Expression) -> Expression | None:
        """Return what derives the same texts but the empty one; ``None`` if there are no others."""
        if not self.is_nullable(expression):
            return expression
        match expression:
            case RuleName(rule):
                return self.nonempty(self.rules[rule].body)
            case Alternation(alternatives):
                return _alternation(map(self.nonempty, alternatives))
            case Repetition(part, _, most):
                first = self.nonempty(part)
                return None if first is None or most == 0 else Repetition(first, 1, most)
        assert isinstance(expression, Concatenation)
        ways = (
            (first, *expression.parts[place + 1 :])
            for place, part in enumerate(expression.parts)
            if (first := self.nonempty(part)) is not None
        )
        return _alternation(map(concatenation, ways))

    def is_nullable(self, expression: Expression) -> bool:
        """Return whether a regular expression derives the empty text."""
        match expression:
            case Characters():
                return False
            case RuleName(rule):
                return self.is_nullable(self.rules[rule].body)
            case Alternation(alternatives):
                return any(map(self.is_nullable, alternatives))
            case Repetition(part, least, _):
                return least == 0 or self.is_nullable(part)
        return all(map(self.is_nullable, expression.parts))

    def written(self, expression: Expression) -> str:
        match expression:
            case Characters(codes):
                found = class_of(codes)
            case RuleName(rule):
                if rule not in self._patterns:
                    self._patterns[rule] = None  # if it uses itself
                    self._patterns[rule] = self.pattern(self.rules[rule].body)
                if (pattern := self._patterns[rule]) is None:
                    raise _NotRegular
                found = f"(?:{pattern})"
            case Alternation(alternatives):
                found = f"(?:{'|'.join(map(self.written, alternatives))})"
            case Repetition(part, least, most):
                found = f"(?:{self.written(part)}){{{least},{'' if most is None else most}}}"
            case Concatenation(parts):
                found = "".join(map(self.written, parts))
        if len(found) > _MOST_WRITTEN:
            raise _NotRegular
        return found


def concatenation(parts: Iterable[Expression]) -> Expression:
    """Return one part after another."""
    found = tuple(parts)
    return found[0] if len(found) == 1 else Concatenation(found)


def _alternation(alternatives: Iterable[Expression | None]) -> Expression | None:
    found = tuple(dict.fromkeys(each for each in alternatives if each is not None))
    return found[0] if len(found) == 1 else Alternation(found) if found else None


def class_of(codes: Intervals) -> str:
    """Return the pattern of one character."""
    ends = [tuple(literal(chr(code)).pattern for code in pair) for pair in codes]
    if len(codes) == 1 and codes[0][0] == codes[0][1]:
        return ends[0][0]
    return f"[{''.join(low if low == high else f'{low}-{high}' for low, high in ends)}]"
