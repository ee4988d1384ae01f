"""Terms that a text is read by: what they capture in it are values, and the special tokens in their strings are tokens.

Texts are read as by parsing expressions (Ford 2004): of alternatives the first that fits counts, repetitions take what they can.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, final

from outlines.types.dsl import Alternatives, Regex, String, Term
from outlines.types.dsl import Sequence as InTurn

from ...vocabulary.special_tokens import MARK, spelling
from ...vocabulary.vocabulary import Vocabulary
from .output_types import FreeText, JSONText, Special, Written, counts_of, part_of, parts_of

Parsed: TypeAlias = tuple[list[Any], int]  # Values, and the end of what holds them

NAME_MARK = "\0"
"""The character around the name of a tool in strings of which the beginnings are asked."""


@final
@dataclass
class Captured(InTurn):
    """A sequence of which ``make`` returns the value, by its text and the values in it; a ``ValueError`` where it is none."""

    make: Callable[[str, list[Any]], Any]

    def __reduce__(self) -> Any:
        return InTurn, (self.terms,)  # elsewhere, texts are written and not read


def one_of(terms: Sequence[Term]) -> Term:
    """Return the alternatives, or the only one."""
    return terms[0] if len(terms) == 1 else Alternatives(list(terms))


@final
@dataclass(frozen=True)
class TokenNames:
    """The special tokens of a tokenizer in strings: there a name stands for the token."""

    special: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset()  # Those of them that end the text: they write nothing

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> TokenNames:
        """Return those of a vocabulary: tokens that write nothing."""
        special = {name: v for name, v in vocabulary.special.items() if not vocabulary.tokens[v]}
        return cls(frozenset(special), frozenset(name for name, v in special.items() if v in vocabulary.eos_ids))

    @cached_property
    def _named(self) -> re.Pattern[str]:
        names = sorted(self.special, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, names))})" if names else "(?!)()")

    def is_text(self, string: str) -> bool:
        """Return True if a string holds no special token."""
        return self._named.search(string) is None

    def ends_text(self, string: str) -> bool:
        """Return True if a string ends the whole text."""
        return any(name in self.ends for name in self._named.findall(string))

    def terms(self, string: str) -> list[Term]:
        """Return the parts of a string; a marked name is captured behind its last character."""
        before, *marked = string.split(NAME_MARK)
        if marked:
            name, after = marked
            return [*self.terms(before + name), Captured([], lambda *_: name), *self.terms(after)]
        parts = enumerate(self._named.split(string))
        return [Special(part) if i % 2 else String(part) for i, part in parts if part and part not in self.ends]


def beginnings(term: Term) -> list[Term]:
    """Return the ways in which texts begin with no text, up to the first capture, of a name, and what is next behind it."""
    match term:
        case Alternatives():
            return [found for one in term.terms for found in beginnings(one)]
        case InTurn():
            for i, part in enumerate(term.terms):
                behind = InTurn(term.terms[i + 1 :])
                if found := [Captured([_first(behind)], part.make)] if isinstance(part, Captured) else beginnings(part):
                    return [InTurn([*map(_least, term.terms[:i]), one]) for one in found]
        case Term(term=Term() as inner):
            return beginnings(inner)
    return []


def _first(term: Term) -> Term:
    """Return the characters and special tokens that texts begin with."""
    machine = JSONText(part_of(term)).machine
    tokens = [part for part in parts_of(term) if isinstance(part, Special) and machine.read(spelling(part.written))]
    plain = [String(chr(byte)) for byte in range(0x80) if machine.step(machine.start, byte) is not None]
    others = [Regex("[^\\x00-\\x7f]")] if any(machine.steps(machine.start, range(0xC2, 0xF5))) else []
    return one_of([*plain, *others, *tokens])


def _least(term: Term) -> Term:
    """Return the ends alone of a text; nothing of what may be left out."""
    match term:
        case FreeText(end=ends):
            return one_of([String(end) for end in ends or ("",)])
        case InTurn():
            return InTurn([*map(_least, term.terms)])
        case Term(term=Term()) if counts_of(term)[0] == 0:
            return String("")
    return term


def read_by(term: Term, written: str) -> list[Any]:
    """Return the values in a text, in which special tokens are spelled; a ``ValueError`` where a term does not read it."""
    found, end = _parsed(term, written, 0) or ([], 0)
    if end < len(written):
        raise ValueError(f"nothing of the format stands at character {end}: {written[end:]!r:.80}")
    return found


def _parsed(term: Term, text: str, at: int) -> Parsed | None:
    """Return the values that stand in a text from a place on, and where they end; ``None`` for none."""
    match term:
        case Alternatives():
            return next(filter(None, (_parsed(part, text, at) for part in term.terms)), None)
        case InTurn():
            values, end = list[Any](), at
            for part in term.terms:
                if (found := _parsed(part, text, end)) is None:
                    return None
                values, end = values + found[0], found[1]
            try:
                return [term.make(text[at:end], values)] if isinstance(term, Captured) else values, end
            except ValueError:
                return None
        case Term(term=Term() as inner):
            (least, most), values, n = counts_of(term), [], 0
            while n != most and (found := _parsed(inner, text, at)) is not None and (found[1] > at or n < least):
                values, at, n = values + found[0], found[1], n + 1
            return (values, at) if n >= least else None
        case Written(part=("json", *_)):
            try:
                return [], json.JSONDecoder().raw_decode(text, at)[1]
            except ValueError:
                return None
    found_here = re.compile(_pattern(term)).match(text, at)
    return None if found_here is None else (list(found_here.groupdict().values()), found_here.end())


def _pattern(term: Term) -> str:
    """Return the regular expression of a term without parts, free text in a group."""
    match term:
        case String(value=value):  # the blanks that it begins with may be among those that a repetition took
            blanks, rest = re.escape(value[: -len(value.lstrip()) or None]), re.escape(value.lstrip())
            return f"(?:{blanks}|(?<={blanks})){rest}"
        case Special():
            return re.escape(_shown(spelling(term.written)))
        case FreeText(without=without, end=end):
            ends = f"(?:{'|'.join(map(re.escape, end))})" if end else ""
            return f"(?P<text>{_text((*without, *end))}){ends}"
        case Written(part=("string", _, without)):
            return _text(without)
        case Written(part=("ecma", pattern)) | Regex(pattern=pattern):
            return str(pattern)
    raise TypeError(f"no text is read by {term!r}")


def _text(without: Sequence[str]) -> str:
    return f"(?s:(?:(?!{'|'.join(map(re.escape, (*without, _shown(MARK))))}).)*)"


def _shown(spelled: bytes) -> str:
    return spelled.decode(errors="surrogateescape")
