"""Regular expressions in the syntax of ECMA-262, as trees."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn, final

from ....errors import GrammarError, UnsupportedError
from .code_points import (
    CODE_POINTS,
    EVERYTHING,
    CodePoints,
    characters,
    in_any_case,
    others,
    ranges,
    union,
    with_property,
)

MOST_NESTED = 100
"""How many groups may be inside each other."""


@final
@dataclass(frozen=True)
class Chars:
    """One character of a set."""

    points: CodePoints


@final
@dataclass(frozen=True)
class Sequence:
    """One part after the other."""

    parts: tuple[Node, ...]


@final
@dataclass(frozen=True)
class Choice:
    """One of several branches."""

    branches: tuple[Node, ...]


@final
@dataclass(frozen=True)
class Repeat:
    """A part several times; ``most`` is ``None`` where there is no bound."""

    part: Node
    least: int
    most: int | None


@final
@dataclass(frozen=True)
class Ahead:
    """What follows begins with the part, or does not."""

    part: Node
    negated: bool


@final
@dataclass(frozen=True)
class Behind:
    """What comes before ends with the part, or does not."""

    part: Node
    negated: bool


@final
@dataclass(frozen=True)
class Beginning:
    """Nothing comes before."""


@final
@dataclass(frozen=True)
class End:
    """Nothing follows."""


Node = Chars | Sequence | Choice | Repeat | Ahead | Behind | Beginning | End

DIGIT = ranges((0x30, 0x39))
WORD = ranges((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE = union([characters("\t\n\v\f\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"), ranges((0x2000, 0x200A))])
NOT_LINE_END = others(characters("\n\r\u2028\u2029"))

CLASSES = {"d": DIGIT, "w": WORD, "s": SPACE, "D": others(DIGIT), "W": others(WORD), "S": others(SPACE)}
CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}

_BEFORE, _AFTER = Behind(Chars(WORD), False), Ahead(Chars(WORD), False)
_NOT_BEFORE, _NOT_AFTER = Behind(Chars(WORD), True), Ahead(Chars(WORD), True)
EDGES = {
    "b": Choice((Sequence((_BEFORE, _NOT_AFTER)), Sequence((_NOT_BEFORE, _AFTER)))),
    "B": Choice((Sequence((_BEFORE, _AFTER)), Sequence((_NOT_BEFORE, _NOT_AFTER)))),
}
"""Where a word begins or ends, and where none does."""

_REPEAT = re.compile(r"(?:([*+?])|\{([0-9]+)(?:(,)([0-9]*))?\})\??")
_GROUP = re.compile(r"\((?:\?(?:(?P<kind>i?:|=|!|<=|<!)|<(?P<name>[\w$]+)>)|(?!\?))")
_SURROGATES = re.compile(r"\\u[dD]([89abAB][0-9a-fA-F]{2})\\u[dD]([c-fC-F][0-9a-fA-F]{2})")
_CODE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{0*([0-9a-fA-F]{1,6})\})")
_CONTROL = re.compile(r"\\c([a-zA-Z])")
_PROPERTY = re.compile(r"\\([pP])\{([A-Za-z0-9_]+(?:=[A-Za-z0-9_]+)?)\}")


def read(pattern: str) -> Node:
    """Return the tree of ``pattern``, which is read as with the flag ``u``.

    The syntax for the Web (Annex B of the standard) is allowed where its meaning is plain: an escape of a character that is
    neither letter nor digit, a brace that begins no repeat, a bracket that closes no class, a class such as ``[\\w-.]``.

    Raises
    ------
    GrammarError
        The pattern cannot be read.
    UnsupportedError
        It has a feature that is not offered.
    """
    reader = _EcmaReader(pattern)
    tree = reader.choice(0)
    if reader.at < len(pattern):
        reader.fail("there is no group to close here")
    return tree


class _EcmaReader:
    """One pass over a pattern, from ``at`` on."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.any_case = text, 0, False

    def fail(self, problem: str) -> NoReturn:
        raise GrammarError(problem, self.text, self.at)

    def refuse(self, remedy: str, feature: str) -> NoReturn:
        raise UnsupportedError(
            f"{remedy}. The pattern {self.text!r} has {feature} at offset {self.at}, which is not offered."
        )

    def found(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        """Return the match at this place, and go behind it."""
        match = expression.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def choice(self, depth: int) -> Node:
        if depth > MOST_NESTED:
            self.refuse(f"Nest at most {MOST_NESTED} groups", "more groups inside each other")
        branches = [self.sequence(depth)]
        while self.text.startswith("|", self.at):
            self.at += 1
            branches.append(self.sequence(depth))
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            part = self.part(depth)
            while repeat := self.found(_REPEAT):
                part = self.repeated(part, repeat)
            parts.append(part)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def repeated(self, part: Node, repeat: re.Match[str]) -> Node:
        if isinstance(part, (Repeat, Beginning, End, Behind)):
            self.at = repeat.start()
            self.fail("there is nothing to repeat here; escape the character to match it")
        sign, low, comma, high = repeat.groups()
        if sign:
            return Repeat(part, int(sign == "+"), 1 if sign == "?" else None)
        least, most = int(low), int(low) if not comma else int(high) if high else None
        if most is not None and most < least:
            self.at = repeat.start()
            self.fail(f"this repeat asks for at least {least} and at most {most}")
        return Repeat(part, least, most)

    def part(self, depth: int) -> Node:
        character = self.text[self.at]
        match character:
            case "^" | "$":
                self.at += 1
                return Beginning() if character == "^" else End()
            case "(":
                return self.group(depth)
            case "[":
                return Chars(self.bracket())
            case "\\":
                return self.escape()
            case "*" | "+" | "?":
                self.fail("there is nothing to repeat here; escape the character to match it")
            case "{" if _REPEAT.match(self.text, self.at):
                self.fail(r"there is nothing to repeat here; write \{ to match a brace")
        self.at += 1
        return Chars(NOT_LINE_END if character == "." else self.cased(characters(character)))

    def cased(self, points: CodePoints) -> CodePoints:
        """Return a character or a range in any case, where that is asked; a class such as ``\\W`` is what it is."""
        return in_any_case(points) if self.any_case and len(points) == 2 else points

    def group(self, depth: int) -> Node:
        opened = self.at
        group = self.found(_GROUP)
        if not group:
            name = self.text[opened : self.text.find(")", opened) + 1 or None]
            self.refuse("Write out what the flags mean, or use (?:...) or (?i:...)", f"a kind of group, {name:.20},")
        before, self.any_case = self.any_case, self.any_case or group["kind"] == "i:"
        part = self.choice(depth + 1)
        self.any_case = before
        if not self.text.startswith(")", self.at):
            self.at = opened
            self.fail("this group is never closed")
        self.at += 1
        match group["kind"]:
            case "=" | "!" as kind:
                return Ahead(part, kind == "!")
            case "<=" | "<!" as kind:
                return Behind(part, kind == "<!")
        # A repeat in a group can be repeated.
        return Sequence((part,)) if isinstance(part, (Repeat, Beginning, End, Behind)) else part

    def escape(self) -> Node:
        letter = self.text[self.at + 1 : self.at + 2]
        if letter in EDGES:
            self.at += 2
            return EDGES[letter]
        if letter == "k" or letter in "123456789" and letter:
            self.refuse("Write out what the group matches", "a back-reference")
        return Chars(self.cased(self.escaped()))

    def bracket(self) -> CodePoints:
        opened = self.at
        self.at += 1
        negated = self.text.startswith("^", self.at)
        self.at += negated
        items: list[CodePoints] = []
        while not self.text.startswith("]", self.at):
            if self.at >= len(self.text):
                self.at = opened
                self.fail("this character class is never closed")
            first = self.item()
            if self.text.startswith("-", self.at) and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                dash = self.at
                self.at += 1
                last = self.item()
                if _is_single(first) and _is_single(last):
                    if last < first:
                        self.at = dash
                        self.fail("the characters of this range are in the wrong order")
                    items.append((first[0], last[1]))
                    continue
                items += [characters("-"), last]  # beside a class of characters, as in [\w-.], the dash is itself
            items.append(first)
        self.at += 1
        found = union(map(self.cased, items))
        return others(found) if negated else found

    def item(self) -> CodePoints:
        """Return one character of a class, or what an escape stands for there."""
        if self.text[self.at] == "\\":
            if self.text.startswith("b", self.at + 1):
                self.at += 2
                return characters("\b")
            return self.escaped()
        self.at += 1
        return characters(self.text[self.at - 1])

    def escaped(self) -> CodePoints:
        """Return the characters that an escape stands for, inside a class or outside."""
        letter = self.text[self.at + 1 : self.at + 2]
        if letter in CLASSES:
            self.at += 2
            return CLASSES[letter]
        if letter in CONTROLS:
            self.at += 2
            return characters(CONTROLS[letter])
        if pair := self.found(_SURROGATES):
            high, low = (int(digits, 16) for digits in pair.groups())
            return characters(chr(0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF)))
        if code := self.found(_CODE):
            point = int(code[1] or code[2] or code[3], 16)
            if point >= CODE_POINTS:
                self.at = code.start()
                self.fail("there is no such character")
            return (point, point + 1)
        if control := self.found(_CONTROL):
            return characters(chr(ord(control[1]) % 32))
        if named := self.found(_PROPERTY):
            points = in_any_case(with_property(named[2])) if self.any_case else with_property(named[2])
            return others(points) if named[1] == "P" else points
        if letter == "0" and self.text[self.at + 2 : self.at + 3] not in tuple("0123456789"):
            self.at += 2
            return characters("\0")
        if not letter:
            self.fail("this backslash escapes nothing")
        if letter.isalnum() and letter.isascii():
            self.refuse("Write the character itself, or its code as \\uXXXX", f"the escape \\{letter}")
        self.at += 2
        return characters(letter)


def _is_single(points: CodePoints) -> bool:
    """Return whether the set has one member."""
    return len(points) == 2 and points[1] == points[0] + 1


ANYTHING = Repeat(Chars(EVERYTHING), 0, None)
"""Any string."""
