"""Regular expressions: their dialects (``docs/output-types.md`` has the table of differences), and their trees."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import final

from .code_automaton import EVERYTHING, CodePoints


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


@final
@dataclass(frozen=True)
class Chars:
    """One character of a set."""

    points: CodePoints


@final
@dataclass(frozen=True)
class Sequence:
    """One part after the other; ``named`` is a group with a name, of one part."""

    parts: tuple[Node, ...]
    named: bool = False


@final
@dataclass(frozen=True)
class Choice:
    """One of several branches."""

    branches: tuple[Node, ...]


@final
@dataclass(frozen=True)
class Repeat:
    """A part several times; ``most`` is ``None`` where there is no bound. ``lazy`` says nothing of the language."""

    part: Node
    least: int
    most: int | None
    lazy: bool = False


@final
@dataclass(frozen=True)
class Ahead:
    """Look-ahead: the text after it begins with the part, or does not."""

    part: Node
    negated: bool


@final
@dataclass(frozen=True)
class Behind:
    """Look-behind: the text before it ends with the part, or does not."""

    part: Node
    negated: bool


@final
@dataclass(frozen=True)
class First:
    """The part up to its first end: its texts that none of its other texts begins."""

    part: Node


@final
@dataclass(frozen=True)
class Beginning:
    """Nothing comes before."""


@final
@dataclass(frozen=True)
class End:
    """Nothing follows."""


class Leaf:
    """A part that grammars have, and no regular expression."""


@final
@dataclass(frozen=True)
class RuleName(Leaf):
    """A reference to a rule of a grammar; ``at`` is the offset at which it is written, 0 where that is not told."""

    rule: str
    at: int = field(default=0, compare=False)


Node = Chars | Sequence | Choice | Repeat | Ahead | Behind | First | Beginning | End | Leaf

EMPTY = Sequence(())
ANYTHING = Repeat(Chars(EVERYTHING), 0, None)
"""Any string."""


def parts_of(tree: Node) -> Iterator[Node]:
    """Return the parts of a tree, each after the parts inside it."""
    found, waiting = [], [tree]
    while waiting:
        found.append(part := waiting.pop())
        match part:
            case Sequence(inner) | Choice(inner):
                waiting += inner
            case Repeat(inner) | Ahead(inner) | Behind(inner) | First(inner):
                waiting.append(inner)
    return reversed(found)


def rules_of(tree: Node) -> Iterator[RuleName]:
    """Yield the references to rules in a tree, as they are written."""
    return (part for part in parts_of(tree) if isinstance(part, RuleName))


def blocks_of(tree: Node) -> tuple[Node, ...]:
    """Split a concatenation at its named groups: what stands before each and the group, in turn, and the rest; all are sequences.

    Groups inside a repeat, alternatives, or another such group are not seen. Nothing where there are none.
    """
    found: list[list[Node]] = [[]]
    waiting = [tree]
    while waiting:
        match waiting.pop():
            case Sequence(_, named=True) as group:
                found += [[group], []]
            case Sequence(parts):
                waiting += reversed(parts)
            case part:
                found[-1].append(part)
    return tuple(Sequence(tuple(parts)) for parts in found) if len(found) > 1 else ()


def least_lengths(tree: Node) -> dict[int, int]:
    """Return the fewest characters of a match of each part, by the identity of the part."""
    least: dict[int, int] = {}
    for part in parts_of(tree):
        match part:
            case Chars():
                least[id(part)] = 1
            case Sequence(inner):
                least[id(part)] = sum(least[id(one)] for one in inner)
            case Choice(inner):
                least[id(part)] = min(least[id(one)] for one in inner)
            case First(inner):
                least[id(part)] = least[id(inner)]
            case Repeat(inner, times):
                least[id(part)] = times * least[id(inner)]
            case _:
                least[id(part)] = 0
    return least
