"""Grammars in GBNF, the dialect of llama.cpp: rules over characters, without terminals and without a lexer.

``name ::= ...`` up to the end of the line; inside parentheses, behind ``::=`` and behind ``|`` a line may break anywhere. What a
rule says is read into a tree; :mod:`~outlines_phi.guides.grammar.notation.scannerless` makes a grammar of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from ....errors import GrammarError
from ....regex.code_points import AFTER_SURROGATES, CODE_POINTS, FIRST_SURROGATE, both, others, ranges
from ....regex.syntax_tree import Chars, Choice, Node, Repeat, RuleName, Sequence, rules_of
from .lowering import GrammarRule
from .source import check_writable, meant

VALID = others((FIRST_SURROGATE, AFTER_SURROGATES))
"""All characters: no text has a surrogate."""

_MOST_NESTED = 150  # The most groups inside each other that are read

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_ESCAPE = re.compile(r"""\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([tnr\\"\[\]-]))""")
_BOUNDS = re.compile(r"\{[ \t]*([0-9]+)[ \t]*(?:(,)[ \t]*([0-9]+)?[ \t]*)?\}")
_BREAK = re.compile(r"\r\n?|\n")

_NAMED = {"t": 0x09, "n": 0x0A, "r": 0x0D}
_OPERATORS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def read_gbnf(text: str, starts: Iterable[str]) -> dict[str, GrammarRule]:
    """Return the rules that ``text`` defines, by name.

    A :class:`GrammarError` with line, column and caret where it cannot be read, or a rule that is used is not defined.
    """
    rules = _GBNFText(text).rules()
    for start in starts:
        if start not in rules:
            hint = meant(start, rules)
            raise GrammarError(
                f"there is no rule {start!r} to start with; {hint}Define it, or name another with `start=`", text, 0
            )
    return rules


@final
@dataclass
class _GBNFText:
    """The text of a grammar, read from left to right; ``at`` is the offset of what comes next."""

    text: str
    at: int = 0
    depth: int = 0

    def rules(self) -> dict[str, GrammarRule]:
        """Read all rules."""
        check_writable(self.text)
        rules: dict[str, GrammarRule] = {}
        self._skip(_BLANK_LINES)
        while self.at < len(self.text):
            at, name = self.at, self._name()
            if name in rules:
                raise self._error(f"rule {name!r} is defined twice; remove one, or join them with `|`", at)
            self._skip(_BLANK)
            if not self.text.startswith("::=", self.at):
                raise self._error("`::=` is expected here, behind the name of a rule")
            self.at += 3
            self._skip(_BLANK_LINES)
            rules[name] = GrammarRule(self._choice(nested=False), self.text.count("\n", 0, at) + 1)
            if self.at < len(self.text) and not self._skip(_BREAK):
                raise self._error(
                    "a rule ends here, so a new line is expected. A rule goes on over several lines inside parentheses and behind "
                    "`|`"
                )
            self._skip(_BLANK_LINES)
        for used in (used for rule in rules.values() for used in rules_of(rule.body)):
            if used.rule not in rules:
                hint = meant(used.rule, rules)
                raise self._error(f"rule {used.rule!r} is not defined; {hint}Define it, or leave it out", used.at)
        return rules

    def _choice(self, *, nested: bool) -> Node:
        alternatives = [self._sequence(nested)]
        while self.text.startswith("|", self.at):
            self.at += 1
            self._skip(_BLANK_LINES)
            alternatives.append(self._sequence(nested))
        return alternatives[0] if len(alternatives) == 1 else Choice(tuple(alternatives))

    def _sequence(self, nested: bool) -> Node:
        parts: list[Node] = []
        while self.at < len(self.text):
            at = self.at
            if (bounds := self._bounds()) is not None:
                if not parts:
                    raise self._error("there is nothing to repeat before this; write it behind what it repeats", at)
                parts[-1] = Repeat(parts[-1], *bounds)
            elif (part := self._part()) is not None:
                parts.append(part)
            else:
                break
            self._skip(_BLANK_LINES if nested else _BLANK)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _part(self) -> Node | None:
        """Read an operand of a repetition; ``None`` where the sequence has ended."""
        sign = self.text[self.at]
        if sign == '"':
            return self._literal()
        if sign == "[":
            return self._class()
        if sign == "(":
            return self._group()
        if sign == ".":
            self.at += 1
            return Chars(VALID)
        if sign in "<!":
            raise self._error(
                "a token is named here, `<...>` or `!<...>`, and a grammar says what texts are, however tokens write them. Write "
                'the text that it has, as in `"abc"`; special tokens write nothing and are never drawn inside a text'
            )
        if _NAME.match(self.text, self.at):
            at = self.at
            return RuleName(self._name(), at)
        return None

    def _literal(self) -> Node:
        opened = self.at
        self.at += 1
        characters: list[Node] = []
        while not self.text.startswith('"', self.at):
            at, code = self.at, self._character(opened, "string")
            if 0xD800 <= code < 0xE000:
                raise self._error("a lone surrogate has no UTF-8; remove it", at)
            characters.append(Chars(ranges((code, code))))
        self.at += 1
        return characters[0] if len(characters) == 1 else Sequence(tuple(characters))

    def _class(self) -> Chars:
        opened = self.at
        self.at += 1
        if negated := self.text.startswith("^", self.at):
            self.at += 1
        codes = []
        while not self.text.startswith("]", self.at):
            at = self.at
            low = high = self._character(opened, "class of characters")
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                high = self._character(opened, "class of characters")
            if high < low:
                raise self._error("this range is empty: its first character comes after its last; swap them", at)
            codes.append((low, high))
        self.at += 1
        within = both(others(ranges(*codes)) if negated else ranges(*codes), VALID)
        if not codes or not within:
            raise self._error("this class has no character; write `.` for any character, or leave it out", opened)
        return Chars(within)

    def _group(self) -> Node:
        opened = self.at
        self.at += 1
        self.depth += 1
        if self.depth > _MOST_NESTED:
            raise self._error(
                f"more than {_MOST_NESTED} groups are inside each other here; give inner ones a rule", opened
            )
        self._skip(_BLANK_LINES)
        inside = self._choice(nested=True)
        if not self.text.startswith(")", self.at):
            if self.at == len(self.text):
                raise self._error("this group is not closed; add `)`", opened)
            raise self._error("`)` is expected here, or more of the group")
        self.at += 1
        self.depth -= 1
        return inside

    def _bounds(self) -> tuple[int, int | None] | None:
        """Read the bounds of the repeats of the item before; ``None`` where nothing says it."""
        sign = self.text[self.at]
        if sign in _OPERATORS:
            self.at += 1
            return _OPERATORS[sign]
        if sign != "{":
            return None
        found = _BOUNDS.match(self.text, self.at)
        if not found or max(len(found[1]), len(found[3] or "")) > 6:
            raise self._error("repeats are written `{3}`, `{3,}` or `{3,5}`, with numbers of at most six digits")
        least = int(found[1])
        most = (int(found[3]) if found[3] else None) if found[2] else least
        if most is not None and most < least:
            raise self._error(f"this asks for at least {least} and at most {most}; swap them")
        self.at = found.end()
        return least, most

    def _character(self, opened: int, what: str) -> int:
        if self.at == len(self.text):
            raise self._error(
                f"this {what} is not closed; add `{']' if self.text[opened] == '[' else self.text[opened]}`", opened
            )
        if self.text[self.at] != "\\":
            self.at += 1
            return ord(self.text[self.at - 1])
        found = _ESCAPE.match(self.text, self.at)
        if not found:
            raise self._error(
                r"this escape is not known. There are `\n`, `\r`, `\t`, `\\`, `\"`, `\[`, `\]`, `\-`, and `\x41`, `\u0041` and "
                r"`\U00000041` for code points"
            )
        hexadecimal = found[1] or found[2] or found[3]
        code = int(hexadecimal, 16) if hexadecimal else _NAMED.get(found[4], ord(found[4]))
        if code >= CODE_POINTS:
            raise self._error("there is no character of this code point; the last is `\\U0010FFFF`")
        self.at = found.end()
        return code

    def _name(self) -> str:
        found = _NAME.match(self.text, self.at)
        if not found:
            raise self._error("the name of a rule is expected here, of letters, digits, `-` and `_`")
        self.at = found.end()
        return found[0]

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        """Go behind what ``pattern`` matches here, and return whether that is anything."""
        found = pattern.match(self.text, self.at)
        before, self.at = self.at, found.end() if found else self.at
        return self.at > before

    def _error(self, message: str, position: int | None = None) -> GrammarError:
        return GrammarError(message, self.text, self.at if position is None else position)
