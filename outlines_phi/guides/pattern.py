"""The shape of a regular expression in Outlines' dialect: its tokens, its repeats, and what in it is not offered."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final


class Token(NamedTuple):
    """A piece of a pattern: ``pattern.text[start:end]``.

    ``kind`` is one of ``atom`` (matches one character), ``look`` (an assertion), ``open``, ``close``, ``or``, ``flags``, ``repeat``.
    """

    kind: str
    start: int
    end: int


class Problem(NamedTuple):
    """Why a pattern cannot be read, and where; ``alternative`` is set when the feature exists but is not offered."""

    position: int
    message: str
    alternative: str = ""


_REPEAT = re.compile(r"[*+?]|\{\s*(\d+)\s*(,)?\s*(\d+)?\s*\}")
_ESCAPE = re.compile(
    r"\\(?:[pP](?:\{[^}]*\}|[^{])|[xuU]\{[^}]*\}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|b\{[^}]*\}|.)", re.DOTALL
)
_POSIX = re.compile(
    r"\[:\^?(?:alnum|alpha|ascii|blank|cntrl|digit|graph|lower|print|punct|space|upper|word|xdigit):\]"
)
_GROUP = re.compile(r"\((?:\?(?:P?<[^>]*>|(?P<flags>[a-zA-Z-]*)(?P<end>[:)])))?")
_LOOKS = re.compile(r"\\(?:b|B|<|>|A|z)")

_EXACT = "a match always covers the whole output, so leave it out"
_UNSUPPORTED: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(start), feature, alternative)
    for start, feature, alternative in (
        (r"\(\?<?[=!]", "look-around", "write the allowed texts out, or intersect two guides with `&`"),
        (r"\(\?P=|\(\?P>|\\[1-9]|\\[kg]", "a back-reference", "write out each alternative"),
        (r"\(\?>", "an atomic group", "use `(?:`"),
        (r"\(\?#", "a comment", "use `(?x)` with `# ...` at the end of a line"),
        (r"\(\?\(", "a conditional group", "write out each alternative with `|`"),
        (r"\(\?[|&0-9+']", "this kind of group", "use `(?:...)` or `(?P<name>...)`"),
        (r"\\Z", "`\\Z`", _EXACT),
        (r"\\G", "`\\G`", _EXACT),
        (r"\\K", "`\\K`", _EXACT),
        (r"\\[RhHN]", "this class", r"use `\r?\n`, `[ \t]` or `[^\n]`"),
        (r"\\X", "a grapheme cluster", r"use `\P{M}\p{M}*`"),
        (r"\\[QE]", "a quoted run", "escape each character, as `re.escape` does"),
        (r"\\e", "`\\e`", r"use `\x1B`"),
        (r"\\0", "an octal escape", r"use `\x00`"),
    )
)


@final
@dataclass(frozen=True)
class Pattern:
    """What can be known of a pattern without building it.

    The engine alone decides which patterns are read and what they mean. This only finds the position of an error, and what makes a build fast;
    both are tested against the engine on random patterns.

    Attributes
    ----------
    text
        The pattern.
    tokens
        Its pieces in order, up to a problem.
    problem
        Why it cannot be read, or ``None``.
    verbose
        Whether the flag ``x`` occurs. White space and comments then hide structure, so ``tokens`` and ``problem`` say nothing.
    """

    text: str
    tokens: tuple[Token, ...]
    problem: Problem | None
    verbose: bool

    @classmethod
    def read(cls, text: str) -> Pattern:
        """Return the shape of ``text``; a problem is recorded, not raised."""
        return _Reader(text).read()

    @cached_property
    def atoms(self) -> frozenset[str]:
        """The pieces that match one character, each once."""
        return frozenset(self.text[t.start : t.end] for t in self.tokens if t.kind == "atom")

    @cached_property
    def looks_behind(self) -> bool:
        """Whether an assertion depends on what comes before it (``$`` and ``\\z`` do not)."""
        return any(t.kind == "look" and self.text[t.start : t.end] not in ("$", r"\z") for t in self.tokens)

    @property
    def must_be_read_alone(self) -> bool:
        """Whether the pattern may mean something else, or something at all, inside a group that follows other text."""
        return self.problem is not None or self.verbose or self.looks_behind

    @cached_property
    def has_flags(self) -> bool:
        """Whether a flag is set anywhere, in ``(?s)`` or ``(?s:...)``."""
        return any(_flags(self.text, token) for token in self.tokens)

    @cached_property
    def largest_repeat(self) -> int:
        """The largest number of times that an atom is written out: bounds of repeats, multiplied where they nest."""
        largest, stack = 1, [1]
        last = 1  # how often the piece before the repeat is written out already
        for token in self.tokens:
            if token.kind == "open":
                stack.append(1)
            elif token.kind == "close":
                last = stack.pop()
            elif token.kind == "repeat":
                last *= max([1, *_bounds(self.text, token)])
            else:
                last = 1
            if token.kind != "open":
                stack[-1] = max(stack[-1], last)
                largest = max(largest, last)
        return largest

    @cached_property
    def largest_bound(self) -> int:
        """The largest bound of a single repeat."""
        repeats = (_bounds(self.text, token) for token in self.tokens if token.kind == "repeat")
        return max((bound for bounds in repeats for bound in bounds), default=1)

    def with_repeats_at_most(self, cap: int) -> str:
        """Return the pattern with every bound of a repeat above ``cap`` cut to ``cap``."""
        pieces, done = [], 0
        for token in self.tokens:
            if token.kind == "repeat" and max(_bounds(self.text, token), default=0) > cap:
                cut = re.sub(r"\d+", lambda bound: str(min(int(bound[0]), cap)), self.text[token.start : token.end])
                pieces += [self.text[done : token.start], cut]
                done = token.end
        return "".join([*pieces, self.text[done:]])


def _bounds(text: str, token: Token) -> list[int]:
    return [int(bound) for bound in re.findall(r"\d+", text[token.start : token.end])]


def _flags(text: str, token: Token) -> str:
    found = _GROUP.match(text, token.start) if token.kind in ("flags", "open") else None
    return (found["flags"] or "") if found else ""


class _Reader:
    """One pass over a pattern, as the grammar of the engine (the Rust crate regex-syntax) reads it."""

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
        if problem is None and not verbose and self.opened:
            problem = Problem(self.opened[-1], "this group is never closed")
        return Pattern(self.text, tuple(self.tokens), None if verbose else problem, verbose)

    def _next(self, at: int) -> Token | Problem:
        for start, feature, alternative in _UNSUPPORTED:
            if start.match(self.text, at):
                return Problem(at, f"{feature} is not supported in a regular expression for generation", alternative)
        match self.text[at]:
            case "\\":
                return self._escape(at)
            case "[":
                return self._class(at)
            case "(":
                return self._group(at)
            case ")":
                if not self.opened:
                    return Problem(at, "there is no group to close here")
                self.opened.pop()
                return Token("close", at, at + 1)
            case "|":
                return Token("or", at, at + 1)
            case "^" | "$":
                return Token("look", at, at + 1)
            case "*" | "+" | "?" | "{":
                return self._repeat(at)
            case _:
                return Token("atom", at, at + 1)

    def _escape(self, at: int) -> Token | Problem:
        found = _ESCAPE.match(self.text, at)
        if not found:
            return Problem(at, "this backslash escapes nothing")
        return Token("look" if _LOOKS.match(self.text, at) else "atom", at, found.end())

    def _group(self, at: int) -> Token | Problem:
        found = _GROUP.match(self.text, at)
        if not found or (found.end() == at + 1 and self.text.startswith("?", at + 1)):
            return Problem(at, "this kind of group is not known; use `(?:...)`, `(?P<name>...)` or flags `imsuxUR`")
        if found["end"] == ")":
            return Token("flags", at, found.end())
        self.opened.append(at)
        return Token("open", at, found.end())

    def _repeat(self, at: int) -> Token | Problem:
        if not self.tokens or self.tokens[-1].kind in ("open", "or", "flags"):
            return Problem(at, "there is nothing to repeat here; escape the character to match it")
        found = _REPEAT.match(self.text, at)
        if not found:
            return Problem(at, "a repeat is written {n}, {n,} or {m,n}; write \\{ to match a brace")
        if found[3] and int(found[3]) < int(found[1]):
            return Problem(at, f"this repeat asks for at least {found[1]} and at most {found[3]}")
        return Token("repeat", at, found.end())

    def _class(self, at: int) -> Token | Problem:
        depth, here = 0, at
        while here < len(self.text):
            if self.text[here] == "[" and not (depth and _POSIX.match(self.text, here)):
                depth += 1
                # `^`, then any number of `-`, then a `]` if nothing came before it, are read as themselves.
                here = re.compile(r"\[\^?(?:-+|\])?").match(self.text, here).end()  # type: ignore[union-attr]
            elif self.text[here] == "]":
                depth -= 1
                here += 1
                if not depth:
                    return Token("atom", at, here)
            elif re.compile(r"&&|--|~~").match(self.text, here):
                here += 2
            else:
                here = self._item(here)
                # After `a-` comes the end of a range, whatever it is, except `]` and `-`.
                if self.text.startswith("-", here) and self.text[here + 1 : here + 2] not in ("]", "-", ""):
                    here = self._item(here + 1)
        return Problem(at, "this character class is never closed")

    def _item(self, at: int) -> int:
        found = _POSIX.match(self.text, at) or _ESCAPE.match(self.text, at)
        return found.end() if found else at + 1
