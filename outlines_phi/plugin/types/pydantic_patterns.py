"""The patterns of pydantic, which are of Rust's crate ``regex`` or of Python's ``re``, in the syntax of ECMA-262."""

from __future__ import annotations

import re
from typing import Any

from .pydantic_kinds import Said, refused

IN_ASCII: Said = {"pattern": r"^[\x00-\x7f]*$"}

_UNICODE_ESCAPE = re.compile(r"\\[sSDWbB]|\[\^[^\]]*\\[dw]|\(\?<?!.*\\[dw]", re.DOTALL)
"""What these engines and ECMA-262 understand differently beyond ASCII, where the difference lets more in."""

_IN_CLASS = r"\[\^?\]?(?:\\.|[^\]\\\[&~-]|&(?!&)|-(?!-)|~(?!~))*"

_CLASS_IN_CLASS = re.compile(rf"(?:\\.|[^\\\[]|{_IN_CLASS}\])*{_IN_CLASS}(?:\[|&&|--|~~)")
"""A class of characters of Rust's own: within another one, or combined with it."""

_TOKEN = re.compile(
    r"\\(?P<letter>[pP][A-Za-z]|[pPxb]\{[^}]*\}|U[0-9A-Fa-f]{8}|.)|(?P<open>\[\^?\]?)|\(\?P?<(?![=!])\w+>|\{,[0-9]+\}|[\].$]",
    re.DOTALL,
)

_SPACE, _NO_SPACE = r"\t-\r\x1c-\x20", r"\x00-\x08\x0e-\x1b!-\u{10ffff}"
"""White space of ``re`` in ASCII, and what is none."""


def in_ecma(pattern: str, *, python: bool) -> Said:
    """Return the schema of the strings in which a pattern is found, or less: in ASCII where its escapes mean other characters.

    Parameters
    ----------
    pattern
        A pattern of Rust's crate ``regex``.
    python
        Whether it is one of ``re``.
    """
    if not python and _CLASS_IN_CLASS.match(pattern):
        return refused(
            "Write out the characters of each class in the pattern, and a backslash before [, &, - and ~",
            f"pydantic reads classes within classes in {pattern!r}, which JSON Schema does not know",
        )
    if re.search(r"(?<!\\)(?:\\\\)*\\(?:[<>]|b\{)", pattern) and not python:
        return refused(
            r"Write \b for the edge of a word in the pattern",
            f"JSON Schema knows no beginnings and ends of words in {pattern!r}",
        )
    said: Said = {"pattern": _Translation(pattern, python).text}
    return {**said, "allOf": [IN_ASCII]} if _UNICODE_ESCAPE.search(pattern) else said


class _Translation:
    """One pass over a pattern; ``within`` a class of characters, or not."""

    def __init__(self, pattern: str, python: bool) -> None:
        self.python, self.within = python, False
        self.excludes = "(?!" in pattern or "(?<!" in pattern
        self.text = _TOKEN.sub(self._token, pattern)

    def _token(self, match: re.Match[str]) -> str:
        token = match[0]
        if match["letter"] is not None:
            return self._escape(token, match["letter"])
        if self.within:
            self.within = token != "]"
            return f"\\{token}" if token.startswith("[") else token
        if match["open"] is not None:
            self.within = True
            return f"{token[:-1]}\\]" if token.endswith("]") else token
        if token.startswith("(?"):
            return "(?:"
        if token.startswith("{,"):
            return f"{{0{token[1:]}"
        # The end of `re` is also before a new line at the end. That is left out, but where it excludes texts.
        return {".": r"[^\n]", "$": r"(?=\n?$)" if self.python and self.excludes else "$"}.get(token, token)

    def _escape(self, token: str, letter: str) -> str:
        match letter[0]:
            case "A":
                return "^"
            case "z" | "Z":
                return "$"
            case "a":
                return r"\x07"
            case "x" | "U" if len(letter) > 1:
                return f"\\u{{{letter[1:].strip('{}')}}}"
            case "p" | "P" if len(letter) == 2:
                return f"\\{letter[0]}{{{letter[1]}}}"
            case "s" | "S" if self.python:
                characters = _SPACE if letter == "s" else _NO_SPACE
                return characters if self.within else f"[{characters}]"
        return token


def flags_of(pattern: Any) -> re.RegexFlag:
    """Return the flags of a compiled pattern of strings, but the one that all have."""
    return re.RegexFlag(pattern.flags & ~re.UNICODE) if isinstance(pattern, re.Pattern) else re.RegexFlag(0)
