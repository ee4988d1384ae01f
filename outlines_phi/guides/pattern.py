"""The shape of a regular expression in Outlines' dialect: its pieces, its repeats, and what in it cannot be read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, final


class Token(NamedTuple):
    """A piece of a pattern, ``pattern.text[start:end]``.

    ``kind`` is ``atom`` (matches one character), ``look`` (an assertion), ``open``, ``close``, ``or``, ``flags`` or
    ``repeat``.
    """

    kind: str
    start: int
    end: int


class Problem(NamedTuple):
    """Why a pattern cannot be read, and where.

    ``alternative`` is set for a feature that other engines offer, and ``message`` is its name then.
    """

    position: int
    message: str
    alternative: str = ""


@final
@dataclass(frozen=True)
class Pattern:
    """A regular expression as a sequence of pieces, up to a problem, and why it cannot be read.

    outlines_core alone decides which patterns are read and what they mean. This only finds the position of an error, which it does
    not tell, and what makes a build fast. Where the flag ``x`` occurs (``verbose``), white space and comments hide the structure.
    """

    text: str
    tokens: tuple[Token, ...]
    problem: Problem | None
    verbose: bool

    @classmethod
    def read(cls, text: str) -> Pattern:
        """Return the shape of ``text``; a problem is recorded, not raised."""
        return _PatternReader(text).read()

    @property
    def must_be_read_alone(self) -> bool:
        """Whether the pattern may be refused alone and yet be read inside a group that follows other text."""
        return self.problem is not None or self.verbose or self.looks_behind

    @cached_property
    def atoms(self) -> frozenset[str]:
        """The pieces that match one character, each once."""
        return frozenset(self.text[t.start : t.end] for t in self.tokens if t.kind == "atom")

    @cached_property
    def looks_behind(self) -> bool:
        """Whether an assertion depends on what comes before it; ``$`` and ``\\z`` do not."""
        return any(t.kind == "look" and self.text[t.start : t.end] not in ("$", r"\z") for t in self.tokens)

    @cached_property
    def has_flags(self) -> bool:
        """Whether a flag is set anywhere, in ``(?s)`` or ``(?s:...)``."""
        return any(_flags(self.text, token) for token in self.tokens)

    @cached_property
    def largest_bound(self) -> int:
        """The largest bound of a repeat."""
        if self.verbose:
            return max(
                (int(bound) for found in _BOUNDS.findall(self.text) for bound in _BOUND.findall(found)), default=1
            )
        repeats = (_bounds(self.text, token) for token in self.tokens if token.kind == "repeat")
        return max((bound for bounds in repeats for bound in bounds), default=1)

    @cached_property
    def length(self) -> int:
        """How many pieces the pattern has that match a character."""
        return sum(token.kind == "atom" for token in self.tokens)

    @cached_property
    def written_out(self) -> int:
        """How many it has when what is repeated is written out, as often as its bounds say."""
        inside = [0]  # per open group
        last = 0  # of what a repeat would apply to
        for token in self.tokens:
            if token.kind == "open":
                inside.append(0)
            elif token.kind == "close":
                last = inside.pop()
                inside[-1] += last
            elif token.kind == "repeat":
                more = last * (max([1, *_bounds(self.text, token)]) - 1)
                inside[-1] += more
                last += more
            else:
                last = int(token.kind == "atom")
                inside[-1] += last
        return sum(inside)

    @property
    def nesting(self) -> int:
        """The depth of the deepest group."""
        return max(accumulate((token.kind == "open") - (token.kind == "close") for token in self.tokens), default=0)

    def with_repeats_at_most(self, cap: int) -> str:
        """Return the pattern with every bound of a repeat above ``cap`` cut to ``cap``."""

        def cut(written: str) -> str:
            return _BOUND.sub(lambda bound: str(min(int(bound[0]), cap)), written)

        if self.verbose:  # as far as can be told
            return _BOUNDS.sub(lambda found: cut(found[0]), self.text)
        pieces, done = [], 0
        for token in self.tokens:
            if token.kind == "repeat" and max(_bounds(self.text, token), default=0) > cap:
                pieces += [self.text[done : token.start], cut(self.text[token.start : token.end])]
                done = token.end
        return "".join([*pieces, self.text[done:]])


_DIGITS = 9  # Of a bound that can be read
_BOUND = re.compile(r"\d+")
_BOUNDS = re.compile(r"\{\s*\d+\s*(?:,\s*\d*\s*)?\}")
_REPEAT = re.compile(r"[*+?]|\{\s*(\d+)\s*(?:,\s*(\d+)?\s*)?\}")
_ESCAPE = re.compile(
    r"\\(?:[pP](?:\{[^}]*\}|[^{])|[xuU]\{[^}]*\}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|b\{[^}]*\}|.)",
    re.DOTALL,
)
_LOOK = re.compile(r"\\[bB<>Az]")
_GROUP = re.compile(r"\((?:\?(?:P?<[^>]*>|(?P<flags>[a-zA-Z-]*)(?P<end>[:)]))|(?!\?))")
# `^`, any number of `-`, and a `]` that comes before all else are read as themselves.
_CLASS_OPEN = re.compile(r"\[\^?(?:-+|\])?")
_CLASS_OPERATOR = re.compile(r"&&|--|~~")
_CLASS_NAMED = re.compile(
    r"\[:\^?(?:alnum|alpha|ascii|blank|cntrl|digit|graph|lower|print|punct|space|upper|word|xdigit):\]"
)

_WHOLE = "leave it out: a match always covers the whole output"
_NOT_OFFERED = tuple(
    (re.compile(start), feature, alternative)
    for start, feature, alternative in (
        (r"\(\?<?[=!]", "look-around", "write the allowed texts out, or intersect two guides with `&`"),
        (r"\(\?P[=>]|\\[1-9kg]", "a back-reference", "write each alternative out"),
        (r"\(\?>", "an atomic group", "use `(?:...)`"),
        (r"\(\?#", "a comment", "leave it out"),
        (
            r"\(\?[a-zA-Z]*-?[a-zA-Z]*[aL][a-zA-Z]*[:)]",
            "the flag a or L",
            r"use `[A-Za-z0-9_]` for `\w`, or `(?-u:...)`",
        ),
        (r"\(\?\(", "a conditional group", "write each alternative out, with `|`"),
        (r"\(\?[|&0-9+']", "this kind of group", "use `(?:...)` or `(?P<name>...)`"),
        (r"\\[ZGK]", "this assertion", _WHOLE),
        (r"\\[RhHN]", "this class", r"use `\r?\n`, `[ \t]` or `[^\n]`"),
        (r"\\X", "a grapheme cluster", r"use `\P{M}\p{M}*`"),
        (r"\\[QE]", "a quoted run", "escape each character, as `re.escape` does"),
        (r"\\[e0]", "this escape", r"use `\x1B` or `\x00`"),
    )
)


def _bounds(text: str, token: Token) -> list[int]:
    return [int(bound) for bound in _BOUND.findall(text[token.start : token.end])]


def _flags(text: str, token: Token) -> str:
    found = _GROUP.match(text, token.start) if token.kind in ("flags", "open") else None
    return (found["flags"] or "") if found else ""


class _PatternReader:
    """One pass over a pattern, in the grammar of the Rust crate regex-syntax."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[Token] = []
        self.opened: list[int] = []

    def read(self) -> Pattern:
        position, problem, verbose = 0, None, False
        while position < len(self.text) and problem is None and not verbose:
            found = self._next(position)
            if isinstance(found, Problem):
                problem = found
            else:
                self.tokens.append(found)
                position = found.end
                verbose = "x" in _flags(self.text, found)
        if problem is None and self.opened:
            problem = Problem(self.opened[-1], "this group is never closed")
        return Pattern(self.text, tuple(self.tokens), None if verbose else problem, verbose)

    def _next(self, at: int) -> Token | Problem:
        match self.text[at]:
            case "\\":
                return self._not_offered(at) or self._escape(at)
            case "(":
                return self._not_offered(at) or self._group(at)
            case ")":
                if not self.opened:
                    return Problem(at, "there is no group to close here")
                self.opened.pop()
                return Token("close", at, at + 1)
            case "[":
                return self._class(at)
            case "|":
                return Token("or", at, at + 1)
            case "^" | "$":
                return Token("look", at, at + 1)
            case "*" | "+" | "?" | "{":
                return self._repeat(at)
            case _:
                return Token("atom", at, at + 1)

    def _not_offered(self, at: int) -> Problem | None:
        for start, feature, alternative in _NOT_OFFERED:
            if start.match(self.text, at):
                return Problem(at, feature, alternative)
        return None

    def _escape(self, at: int) -> Token | Problem:
        found = _ESCAPE.match(self.text, at)
        if not found:
            return Problem(at, "this backslash escapes nothing")
        return Token("look" if _LOOK.match(self.text, at) else "atom", at, found.end())

    def _group(self, at: int) -> Token | Problem:
        found = _GROUP.match(self.text, at)
        if not found:
            return Problem(at, "this kind of group is not known; use `(?:...)`, `(?P<name>...)` or the flags `imsuxUR`")
        if found["end"] == ")":
            return Token("flags", at, found.end())
        self.opened.append(at)
        return Token("open", at, found.end())

    def _repeat(self, at: int) -> Token | Problem:
        if not self.tokens or self.tokens[-1].kind in ("open", "or", "flags"):
            return Problem(at, "there is nothing to repeat here; escape the character to match it")
        found = _REPEAT.match(self.text, at)
        if not found:
            return Problem(at, r"a repeat is written {n}, {n,} or {m,n}; write \{ to match a brace")
        if max(map(len, filter(None, found.groups())), default=0) > _DIGITS:
            return Problem(at, f"this repeat has a bound of more than {_DIGITS} digits")
        if found[2] and int(found[2]) < int(found[1]):
            return Problem(at, f"this repeat asks for at least {found[1]} and at most {found[2]}")
        return Token("repeat", at, found.end())

    def _class(self, at: int) -> Token | Problem:
        depth, here = 0, at
        while here < len(self.text):
            if self.text[here] == "]":
                depth, here = depth - 1, here + 1
                if not depth:
                    return Token("atom", at, here)
            elif depth and (found := _CLASS_NAMED.match(self.text, here) or _CLASS_OPERATOR.match(self.text, here)):
                here = found.end()
            elif found := _CLASS_OPEN.match(self.text, here):
                depth, here = depth + 1, found.end()
            else:
                here = self._class_item(here)
                # What follows `a-` ends a range, whatever it is; but `]` closes the class and `--` is an operator.
                if self.text.startswith("-", here) and self.text[here + 1 : here + 2] not in ("]", "-", ""):
                    here = self._class_item(here + 1)
        return Problem(at, "this character class is never closed")

    def _class_item(self, at: int) -> int:
        found = _ESCAPE.match(self.text, at)
        return found.end() if found else at + 1
