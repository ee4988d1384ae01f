"""Typed values of texts: what an output type means by what it had written.

Terms capture parts of texts, which are read as by parsing expressions (Ford 2004): of alternatives the first that fits counts,
repetitions take what they can.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, cycle, groupby
from typing import Any, Literal, NamedTuple, TypeAlias, final, get_args, get_origin

from outlines.processors import OutlinesLogitsProcessor
from outlines.types import string
from outlines.types import utils as kind
from outlines.types.dsl import CFG, Alternatives, Choice, JsonSchema, Regex, String, Term
from outlines.types.dsl import Sequence as InTurn
from pydantic import BaseModel, TypeAdapter

from ...errors import ValueReadError
from ...guides.grammar.grammar import Grammar
from ...guides.guide import Guide
from ...guides.table import Table
from ...regex.patterns import compile_regex
from ...vocabulary.special_tokens import MARK, spelling
from ...vocabulary.vocabulary import Vocabulary
from .output_types import (
    FreeText,
    GuidanceText,
    JSONText,
    Language,
    Special,
    Thinking,
    TypedTerm,
    Written,
    counts_of,
    holds_special,
    part_of,
    parts_of,
    to_language,
)
from .pydantic_schemas import functions_of, signature

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


class Format(NamedTuple):
    """A language whose members stand for values."""

    read: Callable[[str], Any]  # The value that a member stands for; raises what the type raises
    ends: Callable[[bytes, int], Iterator[int]]  # Where a member that begins at a place may end, nearest first
    table: Mapping[str, Any] | None = None  # All members with their values, where they are listed

    def holds(self, text: str) -> bool:
        """Return True if ``text`` is a member."""
        written = text.encode()
        return len(written) in self.ends(written, 0)


def parsed(language: Language, parse: Callable[[str], Any]) -> Format:
    """Return the members of a language, each read by ``parse``. Those of a grammar are no part of another format."""
    return Format(parse, partial(_ends, language))


def fixed_texts(values: Mapping[str, Any]) -> Format:
    """Return finitely many texts, each with its value: a ``Literal``, an ``Enum``, the values of a ``Choice``."""
    written = frozenset(text.encode(errors="surrogatepass") for text in values)
    return Format(values.__getitem__, partial(_found, written, sorted(set(map(len, written)))), values)


def _found(written: Set[bytes], lengths: Sequence[int], text: bytes, begin: int) -> Iterator[int]:
    return (begin + n for n in lengths if begin + n <= len(text) and text[begin : begin + n] in written)


def first_fitting(formats: Sequence[Format]) -> Format:
    """Return the union of several formats. A text that several of them hold is read by the first that takes it."""
    alternatives: list[Format] = []
    for in_tables, run in groupby(formats, lambda part: part.table is not None):
        parts = list(run)
        tables = [part.table.items() for part in reversed(parts) if part.table is not None]
        alternatives += [fixed_texts(dict(chain(*tables)))] if in_tables else parts

    def read(text: str) -> Any:
        refused: Exception = ValueError(f"{text!r:.80} is not in the format.")
        for alternative in alternatives:
            if alternative.holds(text):
                try:
                    return alternative.read(text)
                except Exception as error:  # a validator may raise anything; another alternative may take the text
                    refused = error
        raise refused

    return Format(
        read, lambda text, begin: iter(sorted({end for part in alternatives for end in part.ends(text, begin)}))
    )


@final
@dataclass(frozen=True)
class Bracketed:
    """Formats in a row between two brackets: a list, a tuple, a dict; ``build`` makes its value of theirs.

    ``cells`` are the formats in turn, each with the text that separates it from the next. They start over after the last one where
    the row is ``endless``; it may end after a last cell only.
    """

    cells: Sequence[tuple[Format, str]]
    endless: bool
    build: Callable[[list[Any]], Any]

    def __call__(self, text: str) -> Any:
        body = text[1:-1].encode()
        empty = not body and not (self.cells and self.cells[0][0].holds(""))
        spans = zip(cycle(self.cells), [] if empty else self._spans(body))
        return self.build([cell.read(body[a:b].decode()) for (cell, _), (a, b) in spans])

    def _spans(self, body: bytes) -> list[tuple[int, int]]:
        """Return the spans of all cells; of several ways to cut, the one with the shortest first cells."""
        spans: list[tuple[int, int]] = []
        ways = [(0, self._ends(body, 0, 0))]  # of every cell so far: its beginning, and its possible ends
        failed: set[tuple[int, int]] = set()
        while ways:
            column = (len(ways) - 1) % len(self.cells)
            begin, ends = ways[-1]
            end = next(ends, None)
            if end is None:
                failed.add((begin, column))
                ways.pop()
                continue
            spans[len(ways) - 1 :] = [(begin, end)]
            if end == len(body):
                return spans
            following = end + len(self.cells[column][1])
            after = (column + 1) % len(self.cells)
            if (following, after) not in failed:
                ways.append((following, self._ends(body, following, after)))
        raise ValueError(f"{body.decode()!r:.80} is not in the format.")

    def _ends(self, body: bytes, begin: int, column: int) -> Iterator[int]:
        """Yield the ends of the cell of ``column`` that begins at ``begin``, nearest first."""
        form, separator = self.cells[column]
        last = column == len(self.cells) - 1
        for end in form.ends(body, begin):
            goes_on = (self.endless or not last) and body.startswith(separator.encode(), end)
            if goes_on or (last and end == len(body)):
                yield end


def _ends(language: Language, text: bytes, begin: int) -> Iterator[int]:
    """Yield the ends of the members of a language that begin at a place in a text, nearest first."""
    match language:
        case JSONText(machine=machine):
            yield from machine.prefixes(text, begin)
        case str():
            yield from compile_regex(language).prefixes(text, begin)


Place = Literal["alone", "item", "key"]
"""The position of a format: Outlines quotes the texts of a ``Literal`` or ``Enum`` inside containers, and all keys of a dict."""


def reader(output_type: Any) -> Callable[[str], Any]:
    """Return the reader of typed values from texts written for ``output_type`` (``docs/output-types.md``, Values).

    It pickles with its output type. Errors as :func:`outlines_phi.plugin.types.output_types.to_language`.
    """
    match output_type:
        case Guide() | Table() | Grammar() | OutlinesLogitsProcessor():
            return str
        case Thinking():
            return reader(output_type.answer)
    return ValueReader(output_type)


@final
class ValueReader:
    """The reader of one output type; ``form`` is its format, where it is not the one that Outlines has for the type."""

    def __init__(self, output_type: Any, form: Format | None = None) -> None:
        self.output_type, self._given = output_type, form
        self._format = format_of(output_type) if form is None else form

    def __call__(self, text: str) -> Any:
        """Return the value of ``text``; a :class:`ValueReadError` where the type refuses it."""
        try:
            return self._format.read(text)
        except Exception as error:  # a type's own validators may raise anything
            raise ValueReadError(
                f"Catch this error and take its .text or the draw's, or write the values out, as a Literal or a regex. "
                f"{name(self.output_type)} refuses {text!r:.200}: it was cut short (with phi=None), or the type checks more than "
                f"its format says (validators, the 30th of February).\n{error}",
                text=text,
            ) from error

    @property
    def keeps(self) -> bool:
        """True if every text is its own value."""
        return self._format.read is str

    @cached_property
    def spelled(self) -> bool:
        """True if values are read from :attr:`WrittenText.spelled`, with special tokens: calls of tools, captures of guidance."""
        if isinstance(self.output_type, TypedTerm):
            return True
        language = to_language(self.output_type) if isinstance(self.output_type, CFG) else None
        return isinstance(language, GuidanceText) and language.grammar.has_special and not self.keeps

    def __repr__(self) -> str:
        return f"reader({name(self.output_type)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ValueReader, (self.output_type, self._given)


def name(output_type: Any) -> str:
    """Return the name of an output type in messages."""
    of_class = getattr(output_type, "__name__", "") if get_origin(output_type) is None else ""
    return of_class or f"{output_type!r:.80}".replace("typing.", "")


def format_of(output_type: Any, place: Place = "alone") -> Format:
    """Return the format that Outlines has for ``output_type``, such that it can be read back."""
    match output_type:
        case TypedTerm():
            return parsed(to_language(output_type), output_type.read)
        case Term() if holds_special(output_type):
            return parsed(to_language(output_type), str)
        case Alternatives():
            return first_fitting([format_of(term, place) for term in output_type.terms])
        case Choice():
            return first_fitting([format_of(item) for item in output_type.items])
        case String():
            return fixed_texts({_written(output_type.value, place): output_type.value})
        case Regex():
            return _keyed(to_language(output_type), str, place, quoted=output_type.pattern != string.pattern)
        case JsonSchema():
            return parsed(to_language(output_type), json.loads)
        case Term():
            language = to_language(output_type)
            if isinstance(language, GuidanceText) and language.grammar.has_captures:
                return parsed(language, language.value)
            return parsed(language, str)
        case bool() | int() | float() | str():
            return fixed_texts({_written(output_type, place): output_type})
        case _ if hasattr(output_type, "__value__"):  # an alias
            return format_of(output_type.__value__, place)
    for belongs, make in _MADE:
        if belongs(output_type):
            return make(output_type, place)
    return parsed(to_language(output_type), partial(_arguments, signature(output_type)))  # a function


def _written(value: Any, place: Place) -> str:
    """Return the text of an alternative that is a value."""
    if place == "key" or (place == "item" and isinstance(value, str)):
        return f'"{value}"'
    return str.__str__(value) if isinstance(value, str) else str(value)


def _keyed(language: Language, parse: Callable[[str], Any], place: Place, *, quoted: bool) -> Format:
    if place != "key" or not quoted:
        return parsed(language, parse)
    return parsed(f'"(?:{language})"', lambda text: parse(text[1:-1]))


# Not fromisoformat: the format has the digits of all scripts, which int() reads.


def _moment(cls: Callable[..., Any], text: str) -> Any:
    return cls(*map(int, re.split("[-: ]", text)))


def _enum(output_type: Any, place: Place) -> Format:
    scalar = (str, int, float)
    named = [fixed_texts({_written(one.value, place): one}) for one in output_type if isinstance(one.value, scalar)]
    others = [one.value for one in output_type if not isinstance(one.value, scalar)] + functions_of(output_type)
    return first_fitting([*named, *(format_of(other, place) for other in others)])


def _union(output_type: Any, place: Place) -> Format:
    arguments = get_args(output_type)
    parts = [format_of(argument, place) for argument in arguments if argument is not type(None)]
    nothing = [fixed_texts({_written(None, place): None})] if type(None) in arguments else []
    return first_fitting([*parts, *nothing])


def _list(output_type: Any, place: Place) -> Format:
    (item,) = get_args(output_type)
    return parsed(to_language(output_type), Bracketed([(format_of(item, "item"), ", ")], endless=True, build=list))


def _tuple(output_type: Any, place: Place) -> Format:
    arguments = [argument for argument in get_args(output_type) if argument != ()]
    endless = len(arguments) == 2 and arguments[1] is Ellipsis
    cells = [(format_of(argument, "item"), ", ") for argument in arguments if argument is not Ellipsis]
    return parsed(to_language(output_type), Bracketed(cells, endless=endless, build=tuple))


def _dict(output_type: Any, place: Place) -> Format:
    key, value = get_args(output_type)
    cells = [(format_of(key, "key"), ":"), (format_of(value, "item"), ", ")]
    pairs = lambda values: dict(zip(values[::2], values[1::2], strict=True))  # noqa: E731
    return parsed(to_language(output_type), Bracketed(cells, endless=True, build=pairs))


def _instance(output_type: Any, place: Place) -> Format:
    return parsed(to_language(output_type), TypeAdapter(output_type).validate_json)


def _arguments(arguments: type[BaseModel], text: str) -> dict[str, Any]:
    written = arguments.model_validate_json(text)
    return {key: getattr(written, key) for key in arguments.model_fields if key in written.model_fields_set}


def _basic(parse: Callable[[str], Any], output_type: Any, place: Place) -> Format:
    return _keyed(to_language(output_type), parse, place, quoted=not kind.is_str(output_type))


def _object(output_type: Any, place: Place) -> Format:
    return parsed(to_language(output_type), json.loads)


_MADE: tuple[tuple[Callable[[Any], bool], Callable[[Any, Place], Format]], ...] = (
    # those that Outlines has a pattern for, with what reads it
    (kind.is_bool, partial(_basic, "True".__eq__)),
    (kind.is_int, partial(_basic, int)),
    (kind.is_float, partial(_basic, float)),
    (kind.is_str, partial(_basic, lambda text: text[1:-1])),
    (kind.is_time, partial(_basic, partial(_moment, datetime.time))),
    (kind.is_date, partial(_basic, partial(_moment, datetime.date))),
    (kind.is_datetime, partial(_basic, partial(_moment, datetime.datetime))),
    # the others
    (kind.is_dataclass, _instance),
    (kind.is_typed_dict, _instance),
    (kind.is_pydantic_model, _instance),
    (kind.is_genson_schema_builder, _object),
    (kind.is_native_dict, _object),
    (kind.is_enum, _enum),
    (
        kind.is_literal,
        lambda given, place: first_fitting([fixed_texts({_written(v, place): v}) for v in get_args(given)]),
    ),
    (kind.is_union, _union),
    (kind.is_typing_list, _list),
    (kind.is_typing_tuple, _tuple),
    (kind.is_typing_dict, _dict),
)
"""The types but functions, in the order in which Outlines asks, with what makes their formats."""
