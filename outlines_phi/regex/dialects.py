"""Differences between the dialects of regular expressions (``docs/output-types.md`` has the table)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, eq=False)
class Dialect:
    """A dialect of regular expressions.

    Attributes
    ----------
    digit, word, space
        The characters of ``\\d``, ``\\w`` and ``\\s``, as the package ``regex`` writes them.
    line_ends
        The characters that ``.`` does not match.
    flags
        The letters of flags, as in ``(?i)``.
    controls
        The letters that stand for a control character behind a backslash.
    code
        Escapes of characters by their codes, a hexadecimal number in one of the groups.
    repeat
        Bounds in braces: the least number, a comma, the greatest number.
    edges
        The assertions of letters behind a backslash.
    nested
        True if there are classes inside classes, and operators between them; braces and repeats are read strictly then.
    before_line_end
        True if ``$`` is also before a line end at the end of the text.
    bracket_first
        True if a bracket at the beginning of a class is a member.
    ends_first
        True if a lazy quantifier ends a lexeme where it first matches; elsewhere it says nothing of what matches.
    """

    digit: str
    word: str
    space: str
    line_ends: str
    flags: str
    controls: Mapping[str, str]
    code: re.Pattern[str]
    repeat: re.Pattern[str]
    edges: Mapping[str, str]
    nested: bool = False
    before_line_end: bool = False
    bracket_first: bool = True
    ends_first: bool = False


_TWO, _FOUR, _EIGHT = (rf"([0-9a-fA-F]{{{digits}}})" for digits in (2, 4, 8))
_BRACED = r"\{([0-9a-fA-F]+)\}"
_CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}

RUST = Dialect(
    digit=r"\p{Nd}",
    word=r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]",
    space=r"\p{White_Space}",
    line_ends="\n",
    flags="imsuUxR",
    controls={**_CONTROLS, "a": "\a"},
    code=re.compile(rf"\\(?:x{_TWO}|u{_FOUR}|U{_EIGHT}|[xuU]{_BRACED})"),
    repeat=re.compile(r"\{\s*([0-9]+)\s*(?:(,)\s*([0-9]*)\s*)?\}"),
    edges={"A": "beginning", "z": "end", "b": "edge", "B": "no edge", "<": "start", ">": "stop"},
    nested=True,
)
"""Rust's crate ``regex``, which Outlines and pydantic use."""

PYTHON = Dialect(
    digit=r"\p{Nd}",
    word=r"[\p{L}\p{N}_]",
    space=r"[\p{White_Space}\x1c-\x1f]",
    line_ends="\n",
    flags="aiLmsux",
    controls={**_CONTROLS, "a": "\a"},
    code=re.compile(rf"\\(?:x{_TWO}|u{_FOUR}|U{_EIGHT})"),
    repeat=re.compile(r"\{(?!\})([0-9]*)(?:(,)([0-9]*))?\}"),
    edges={"A": "beginning", "Z": "end", "b": "edge", "B": "no edge"},
    before_line_end=True,
    ends_first=True,
)
"""Python's module ``re``, which Lark uses."""

ECMA = Dialect(
    digit="[0-9]",
    word="[0-9A-Z_a-z]",
    space=r"[\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]",
    line_ends="\n\r\u2028\u2029",
    flags="ims",
    controls=_CONTROLS,
    code=re.compile(rf"\\(?:x{_TWO}|u{_FOUR}|u{_BRACED})"),
    repeat=re.compile(r"\{([0-9]+)(?:(,)([0-9]*))?\}"),
    edges={"b": "edge", "B": "no edge"},
    bracket_first=False,
)
"""ECMA-262 with the flag ``u``, which JSON Schema asks for, and of Annex B what has a plain meaning."""

IN_ASCII = {"d": "[0-9]", "w": "[0-9A-Z_a-z]", "s": r"[\t-\r ]"}
"""The classes without Unicode."""

DIALECTS: Mapping[str, Dialect] = {"rust": RUST, "python": PYTHON, "ecma": ECMA}
