"""Regular expressions of all dialects, read as trees."""

import re
import unicodedata
from typing import NamedTuple, NoReturn

import regex

from ..errors import GrammarError, UnsupportedError
from ..format_limits import current_limits
from . import code_automaton
from .code_automaton import (
    AFTER_SURROGATES,
    ASCII,
    CODE_POINTS,
    EVERYTHING,
    FIRST_SURROGATE,
    CodePoints,
    both,
    characters,
    in_any_case,
    others,
    union,
)
from .syntax_tree import (
    ECMA,
    EMPTY,
    IN_ASCII,
    PYTHON,
    Ahead,
    Beginning,
    Behind,
    Chars,
    Choice,
    Dialect,
    End,
    Node,
    Repeat,
    Sequence,
)

_GROUP = re.compile(
    r"\((?:\?(?:(?P<look><?[=!])|P?<(?P<name>[^\W\d][\w.$\[\]]*)>|(?P<flags>[a-zA-Z-]*)(?P<end>[:)]))|(?!\?))"
)
_EDGE = re.compile(r"\\b\{(start|end|start-half|end-half)\}")
_EDGES = {
    "edge": ((True, False), (False, True)),
    "no edge": ((True, True), (False, False)),
    "start": ((False, True),),
    "stop": ((True, False),),
    "end": ((True, False),),
    "start-half": ((False, None),),
    "end-half": ((None, False),),
}
"""Pairs of an edge: is the character before it of a word, and the one after it."""

_SURROGATES = re.compile(r"\\u[dD]([89abAB][0-9a-fA-F]{2})\\u[dD]([c-fC-F][0-9a-fA-F]{2})")
_CONTROL = re.compile(r"\\c([a-zA-Z])")
_OCTAL = re.compile(r"\\(0[0-7]{0,2}|[0-3][0-7]{2})")
_NAMED = re.compile(r"\\N\{([^}]+)\}")
_PROPERTY = re.compile(r"\\([pP])(?:\{\s*([\w\s-]+?)\s*(?:(!=|=|:)\s*([\w\s.-]+?)\s*)?\}|([A-Z]))")
_POSIX = re.compile(r"\[:(\^?)(alnum|alpha|ascii|blank|cntrl|digit|graph|lower|print|punct|space|upper|word|xdigit):\]")
_POSIX_CLASSES = {
    "alnum": "[0-9A-Za-z]",
    "alpha": "[A-Za-z]",
    "ascii": r"[\x00-\x7f]",
    "blank": r"[\t ]",
    "cntrl": r"[\x00-\x1f\x7f]",
    "digit": "[0-9]",
    "graph": "[!-~]",
    "lower": "[a-z]",
    "print": "[ -~]",
    "punct": r"[!-/:-@\[-`{-~]",
    "space": r"[\t-\r ]",
    "upper": "[A-Z]",
    "word": "[0-9A-Za-z_]",
    "xdigit": "[0-9A-Fa-f]",
}
_OPERATOR = re.compile("&&|--|~~")
_BLANKS = re.compile(r"(?:\s|#[^\n]*)+")
_COMMENT = re.compile(r"\(\?#[^)]*\)")
_FLAGS = re.compile(r"(?!.*(.).*\1)[a-zA-Z]*(?:-[a-zA-Z]+)?")
_REFUSED = (
    ("(?>", "Use (?:...)", "an atomic group"),
    ("(?P=", "Write out what the group matches", "a back-reference"),
    ("(?(", "Write each alternative out, with |", "a conditional group"),
)
_DIGITS = 12  # Of a bound that can be read


class RefusedFeature(UnsupportedError):
    """A pattern has a ``feature``, at an offset, that is not offered; the ``remedy`` says what to write instead."""

    def __init__(
        self, remedy: str, feature: str, pattern: str, position: int, rest: str = "which is not offered"
    ) -> None:
        super().__init__(f"{remedy}. The pattern {pattern!r} has {feature} at offset {position}, {rest}.")
        self.remedy, self.feature, self.position = remedy, feature, position


class Mark(NamedTuple):
    """Position of an assertion or a repeat in a pattern; of look-around, its opening."""

    is_repeat: bool
    begin: int
    end: int


class _Open(NamedTuple):
    """A group that is open: where and as what it began, and what was read before it."""

    at: int
    look: str
    named: bool
    flags: frozenset[str]
    branches: list[Node]
    parts: list[Node]


def read(pattern: str, dialect: Dialect, *, flags: str = "") -> Node:
    """Return the tree of ``pattern``.

    Beyond its own syntax each dialect reads look-ahead, look-behind, edges of words, and names of groups in the way of the others.
    Of ECMA-262 the syntax for the Web (Annex B) is allowed where its meaning is plain: an escape of a character that is neither
    letter nor digit, a brace that begins no repeat, a bracket that closes no class, a class such as ``[\\w-.]``.

    Raises
    ------
    GrammarError
        The pattern cannot be read.
    UnsupportedError
        It has a feature that is not offered.
    """
    if dialect is PYTHON:
        try:
            re.compile(pattern)
        except re.error as error:
            raise GrammarError(error.msg, pattern, error.pos) from None
        except (OverflowError, RecursionError, ValueError):
            raise GrammarError("it is too large, or nested too deeply; write it as several", pattern) from None
    return _PatternReader(pattern, dialect, frozenset(flags)).tree()


def marks(pattern: str, dialect: Dialect) -> list[Mark]:
    """Return the positions of assertions and repeats in ``pattern``, in order; errors as :func:`read`."""
    reader = _PatternReader(pattern, dialect, frozenset())
    reader.tree()
    return sorted(reader.marks, key=lambda mark: mark.begin)


def class_of(written: str) -> CodePoints:
    """Return the characters of a class in brackets or of a property; only for a property all characters are looked at."""
    return code_automaton.found(written) if r"\p" in written else _PatternReader(written, ECMA, frozenset()).bracket()


class _PatternReader:
    """One pass over a pattern, from ``at`` on; ``repeats`` tells whether what was read can be repeated."""

    def __init__(self, text: str, dialect: Dialect, flags: frozenset[str]) -> None:
        self.text, self.dialect, self.flags = text, dialect, flags
        self.at, self.depth, self.deepest, self.repeats = 0, 0, 0, False
        self.names: set[str] = set()
        self.marks: list[Mark] = []

    def fail(self, problem: str, at: int | None = None) -> NoReturn:
        raise GrammarError(problem, self.text, self.at if at is None else at)

    def refuse(self, remedy: str, feature: str, rest: str = "which is not offered") -> NoReturn:
        raise RefusedFeature(remedy, feature, self.text, self.at, rest)

    def found(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        """Return the match at this place, and go behind it."""
        match = expression.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def follows(self, written: str) -> bool:
        """Skip ``written`` if it is at this place, and return True then."""
        if not self.text.startswith(written, self.at):
            return False
        self.at += len(written)
        return True

    def deeper(self, change: int) -> None:
        """Count the groups and classes that are open."""
        self.depth += change
        self.deepest = max(self.depth, self.deepest)

    def check_nesting(self) -> None:
        """Refuse groups and classes inside each other beyond the limit."""
        current_limits().check(
            "nesting", self.deepest, "The number of groups inside each other in the regular expression"
        )

    def more(self) -> bool:
        """Return True if anything is left, behind blanks and comments."""
        while ("x" in self.flags and self.found(_BLANKS)) or (self.dialect is PYTHON and self.found(_COMMENT)):
            pass
        return self.at < len(self.text)

    def tree(self) -> Node:
        opened: list[_Open] = []
        branches: list[Node] = []
        parts: list[Node] = []
        while self.more():
            match self.text[self.at]:
                case "(":
                    group = self.group(branches, parts)
                    self.repeats = False
                    if group is not None:
                        opened.append(group)
                        branches, parts = [], []
                case ")":
                    if not opened:
                        self.fail("there is no group to close here")
                    self.at += 1
                    self.deeper(-1)
                    inside = _joined(branches, parts)
                    _, look, named, self.flags, branches, parts = opened.pop()
                    if named:
                        inside = Sequence((inside,), named)
                    if look:
                        inside = (Behind if look.startswith("<") else Ahead)(inside, look.endswith("!"))
                    parts.append(inside)
                    self.repeats = self.dialect.nested or not look.startswith("<")
                case "|":
                    self.at += 1
                    branches.append(_joined([], parts))
                    parts, self.repeats = [], False
                case "*" | "+" | "?" | "{" if self.repeated(parts):
                    self.repeats = self.dialect.nested
                case _:
                    begin = self.at
                    parts.append(part := self.part())
                    if not isinstance(part, Chars):
                        self.marks.append(Mark(False, begin, self.at))
                    self.repeats = self.dialect.nested or not isinstance(part, (Beginning, End))
        if opened:
            self.fail("this group is never closed", opened[-1].at)
        self.check_nesting()
        return _joined(branches, parts)

    def repeated(self, parts: list[Node]) -> bool:
        """Repeat the last of the parts, unless a brace begins no repeat."""
        begin, sign = self.at, self.text[self.at]
        low, comma, high = str(int(sign == "+")), ",", "1" if sign == "?" else ""
        if sign == "{":
            bounds = self.found(self.dialect.repeat)
            if not bounds and not self.dialect.nested:
                return False
            if not bounds:
                self.fail(r"a repeat is written {n}, {n,} or {m,n}; write \{ to match a brace")
            low, comma, high = bounds.groups("")
        else:
            self.at += 1
        if not self.repeats:
            self.fail("there is nothing to repeat here; escape the character to match it", begin)
        if max(len(low), len(high)) > _DIGITS:
            self.fail(f"this repeat has a bound of more than {_DIGITS} digits", begin)
        least = int(low or 0)
        most = least if not comma else int(high) if high else None
        if most is not None and most < least:
            self.fail(f"this repeat asks for at least {least} and at most {most}", begin)
        lazy = self.follows("?") != ("U" in self.flags)
        if self.dialect is PYTHON and self.text.startswith("+", self.at):
            self.refuse("Use *, + or ?", "a possessive quantifier")
        self.marks.append(Mark(True, begin, self.at))
        parts.append(Repeat(parts.pop(), least, most, lazy))
        return True

    def group(self, branches: list[Node], parts: list[Node]) -> _Open | None:
        """Return the group that begins here; ``None`` for flags that hold from here on."""
        begin = self.at
        for start, remedy, feature in _REFUSED:
            if self.text.startswith(start, begin):
                self.refuse(remedy, feature)
        group = self.found(_GROUP)
        if not group:
            self.fail("this kind of group is not known; use (?:...), (?P<name>...) or flags such as (?i:...)")
        if group["name"] in self.names and self.dialect is not ECMA:
            self.fail("redefinition of the name of a group", group.start("name"))
        self.names |= {group["name"]} - {None}
        before, written = self.flags, group["flags"] or ""
        if foreign := set(written) - {"-", *self.dialect.flags}:
            self.at = begin
            if foreign <= {"a", "L"}:
                self.refuse("Use `[A-Za-z0-9_]` for `\\w`, or `(?-u:...)`", "the flag a or L")
            self.fail(f"these flags are not known; there are {', '.join(self.dialect.flags)}")
        if not _FLAGS.fullmatch(written) or (not written and group["end"] == ")"):
            self.fail("flags are written as in (?i) or (?s-i:...), each once", begin)
        on, _, off = written.partition("-")
        self.flags = (self.flags | set(on)) - set(off)
        if "u" in written:
            self.flags = self.flags - {"a"} if "u" in on else self.flags | {"a"}
        if group["end"] == ")":
            return None
        self.deeper(1)
        if group["look"]:
            self.marks.append(Mark(False, begin, self.at))
        return _Open(begin, group["look"] or "", bool(group["name"]), before, branches, parts)

    def part(self) -> Node:
        """Read an atom: one character, or an assertion between two."""
        match self.text[self.at]:
            case "[":
                return Chars(self.bracket())
            case "\\":
                return self.escape()
        self.at += 1
        match self.text[self.at - 1]:
            case "^" | "$" as sign:
                return self.edge(sign)
            case ".":
                if self.dialect.nested and "a" in self.flags:
                    self.refuse("Leave `(?-u)` out", "bytes that are no characters")
                return Chars(EVERYTHING if "s" in self.flags else others(characters(self.line_ends)))
        return Chars(self.cased(characters(self.text[self.at - 1])))

    @property
    def line_ends(self) -> str:
        return "\r\n" if "R" in self.flags else self.dialect.line_ends

    def edge(self, sign: str) -> Node:
        """Return the assertion of ``^`` or ``$``."""
        text: Node = Beginning() if sign == "^" else End()
        look, other, near, far = (
            (Behind, Ahead, _NEW_LINE, _RETURN) if sign == "^" else (Ahead, Behind, _RETURN, _NEW_LINE)
        )
        if "m" not in self.flags:
            last = Ahead(Sequence((_NEW_LINE, End())), False)
            return Choice((text, last)) if self.dialect.before_line_end and sign == "$" else text
        if "R" not in self.flags:
            return Choice((text, look(Chars(characters(self.line_ends)), False)))
        return Choice((text, look(near, False), Sequence((look(far, False), other(near, True)))))

    def escape(self) -> Node:
        """Read an escape, outside of a class."""
        letter = self.text[self.at + 1 : self.at + 2]
        named = self.found(_EDGE) if self.dialect.nested else None
        if kind := named[1] if named else self.dialect.edges.get(letter):
            self.at += 0 if named else 2
            if kind in ("beginning", "end"):
                return Beginning() if kind == "beginning" else End()
            word = Chars(self.named("w"))
            sides = (((Behind, before), (Ahead, after)) for before, after in _EDGES[kind])
            ways = [
                Sequence(tuple(look(word, not inside) for look, inside in pair if inside is not None)) for pair in sides
            ]
            return Choice(tuple(ways))
        if letter == "k" or (letter.isdigit() and not (self.dialect is PYTHON and _OCTAL.match(self.text, self.at))):
            if letter != "0" or self.dialect.nested:
                self.refuse("Write out what the group matches", "a back-reference")
        if letter == "Z":
            self.refuse("Use `$`, or leave it out where the whole output is matched", r"the assertion \Z")
        return Chars(self.one(self.escaped()))

    def named(self, letter: str) -> CodePoints:
        """Return the characters of a class that has a letter."""
        of = {"d": self.dialect.digit, "w": self.dialect.word, "s": self.dialect.space}
        return class_of((IN_ASCII if "a" in self.flags else of)[letter])

    def cased(self, points: CodePoints) -> CodePoints:
        """Return characters in any case, where that is asked."""
        if "i" not in self.flags:
            return points
        return union([points, both(in_any_case(points), ASCII)]) if "a" in self.flags else in_any_case(points)

    def one(self, points: CodePoints) -> CodePoints:
        """Return a single character in any case, where that is asked; a class such as ``\\W`` is what it is."""
        return self.cased(points) if _is_single(points) else points

    def bracket(self) -> CodePoints:
        """Return the characters of a class in brackets."""
        begin, nested = self.at, self.dialect.nested
        self.deeper(1)
        self.check_nesting()
        self.at += 1
        negated = self.follows("^")
        items: list[CodePoints] = []
        left, operator = EVERYTHING, "&&"
        while nested and self.inside(begin) and self.follows("-"):
            items.append(characters("-"))
        if self.dialect.bracket_first and not items and self.follows("]"):
            items.append(characters("]"))
        while not (self.inside(begin) and self.follows("]")):
            if nested and (sign := self.found(_OPERATOR)):
                left, operator, items = _combined(left, operator, union(items)), sign[0], []
            else:
                items += self.items(begin)
        self.deeper(-1)
        found = _combined(left, operator, union(items))
        return self.in_text(others(found) if negated else found, begin)

    def in_text(self, points: CodePoints, begin: int) -> CodePoints:
        """Return characters; without Unicode there are none beyond ASCII in Rust's dialect, but bytes."""
        if self.dialect.nested and "a" in self.flags and points and points[-1] > ASCII[-1]:
            self.at = begin
            self.refuse("Leave `(?-u)` out", "bytes that are no characters")
        return points

    def inside(self, begin: int) -> bool:
        """Go behind blanks inside the class that begins there, which has to go on."""
        if not (self.more() if self.dialect.nested else self.at < len(self.text)):
            self.fail("this character class is never closed", begin)
        return True

    def items(self, begin: int) -> list[CodePoints]:
        """Return a character or a range of a class, in any case where that is asked, or what stands for several."""
        if self.dialect.nested:
            if posix := self.found(_POSIX):
                points = self.cased(class_of(_POSIX_CLASSES[posix[2]]))
                return [others(points) if posix[1] else points]
            if self.text[self.at] == "[":
                return [self.bracket()]
        first = self.item()
        self.inside(begin)
        dash = self.at
        if not self.follows("-"):
            return [self.one(first)]
        if self.inside(begin) and self.text[self.at] in ("]", "-" if self.dialect.nested else "]"):
            self.at = dash
            return [self.one(first)]
        last = self.item()
        if _is_single(first) and _is_single(last):
            if last < first:
                self.fail("the characters of this range are in the wrong order", dash)
            return [self.cased((first[0], last[1]))]
        if self.dialect.nested:
            self.fail("a range is between two characters", dash)
        return [first, characters("-"), self.one(last)]  # beside a class, as in [\w-.], the dash is itself

    def item(self) -> CodePoints:
        """Return one character of a class, or what an escape stands for there."""
        if self.text[self.at] != "\\":
            self.at += 1
            return characters(self.text[self.at - 1])
        if not self.dialect.nested and self.follows(r"\b"):
            return characters("\b")
        return self.escaped()

    def escaped(self) -> CodePoints:
        """Return the characters that an escape stands for, inside a class or outside."""
        begin, letter, dialect = self.at, self.text[self.at + 1 : self.at + 2], self.dialect
        self.at += 2
        if letter.lower() in ("d", "s", "w"):
            points = self.named(letter.lower())
            return self.in_text(points if letter.islower() else others(points), begin)
        if letter in dialect.controls:
            return characters(dialect.controls[letter])
        self.at = begin
        if dialect is ECMA and (pair := self.found(_SURROGATES)):
            high, low = (int(digits, 16) for digits in pair.groups())
            return characters(chr(0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF)))
        if dialect is ECMA and (control := self.found(_CONTROL)):
            return characters(chr(ord(control[1]) % 32))
        if code := self.found(dialect.code):
            point = int(next(filter(None, code.groups())), 16)
            if point >= CODE_POINTS or (dialect.nested and FIRST_SURROGATE <= point < AFTER_SURROGATES):
                self.fail("there is no such character", begin)
            return self.in_text((point, point + 1), begin)
        if dialect is PYTHON and (octal := self.found(_OCTAL)):
            return characters(chr(int(octal[1], 8)))
        if dialect is PYTHON and (name := self.found(_NAMED)):
            return characters(unicodedata.lookup(name[1]))
        if dialect is not PYTHON and (named := self.found(_PROPERTY)):
            return self.in_text(self.with_property(begin, named), begin)
        if not letter:
            self.fail("this backslash escapes nothing")
        known = letter == "0" and not dialect.nested and not self.text[begin + 2 : begin + 3].isdigit()
        if not known and letter.isascii() and letter.isalnum() or (dialect.nested and not letter.isascii()):
            self.refuse(r"Write the character itself, or its code as \uXXXX", f"the escape \\{letter}")
        self.at += 2
        return characters("\0" if known else letter)

    def with_property(self, begin: int, named: re.Match[str]) -> CodePoints:
        """Return the characters with a Unicode property."""
        sign, name, equals, value, letter = named.groups()
        written = letter or (f"{name}={value}" if equals else name)
        try:
            points = self.cased(code_automaton.found(f"\\p{{{written}}}"))
        except regex.error:
            self.at = begin
            self.refuse(
                "List the characters in brackets instead", f"the Unicode property {written!r}", "which is not known"
            )
        return others(points) if (sign == "P") != (equals == "!=") else points


_NEW_LINE, _RETURN = Chars(characters("\n")), Chars(characters("\r"))


def _joined(branches: list[Node], parts: list[Node]) -> Node:
    """Return the branches and the parts of a last one."""
    last = parts[0] if len(parts) == 1 else Sequence(tuple(parts)) if parts else EMPTY
    return Choice((*branches, last)) if branches else last


def _is_single(points: CodePoints) -> bool:
    """Return True if the set has one member."""
    return len(points) == 2 and points[1] == points[0] + 1


def _combined(left: CodePoints, operator: str, right: CodePoints) -> CodePoints:
    """Return the intersection, the difference or the symmetric difference of two sets."""
    match operator:
        case "&&":
            return both(left, right)
        case "--":
            return both(left, others(right))
    return union([both(left, others(right)), both(right, others(left))])
