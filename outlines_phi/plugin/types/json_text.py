"""JSON values, and the regular expressions that they stand in: what an output type with a JSON schema lets be written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import accumulate, repeat
from typing import Any, NamedTuple, TypeAlias, final

from outlines.types.dsl import (
    Alternatives,
    Choice,
    JsonSchema,
    KleenePlus,
    KleeneStar,
    Optional,
    QuantifyExact,
    Regex,
    Sequence,
    String,
    Term,
    to_regex,
)

from ...errors import GrammarError, UnsupportedError
from ...format_limits import current_limits
from ...guides.json_schema.json_guide import JSONGuide
from ...guides.json_schema.machine.machine import Machine
from ...guides.json_schema.reading.schema import Schema
from ...guides.json_schema.reading.template import Template
from ...regex.patterns import compile_regex
from ...vocabulary.vocabulary import Vocabulary
from .pydantic_schemas import PythonSchema, term_of


class Written(NamedTuple):
    """The text of a JSON schema, and whether it is that of a Python type, whose integers have no fraction (``plain``).

    ``whitespace_pattern`` is the white space between the tokens of its values; ``None`` is what writers of JSON put.
    """

    schema: str
    whitespace_pattern: str | None
    plain: bool


class Joined(NamedTuple):
    """Parts one after the other."""

    parts: tuple[Part, ...]


class OneOf(NamedTuple):
    """Alternatives."""

    parts: tuple[Part, ...]


class Repeated(NamedTuple):
    """A part some times in a row; ``None`` is no bound."""

    part: Part
    least: int
    most: int | None


Part: TypeAlias = str | Written | Joined | OneOf | Repeated  # A regular expression, or what holds JSON values


@final
@dataclass(frozen=True)
class JSONText:
    """Texts of JSON values and what they stand in: ``part`` is the whole."""

    part: Part

    @classmethod
    def of(cls, term: Term) -> JSONText:
        """Return the texts of a term."""
        return cls(_part(term))

    @property
    def whitespace_pattern(self) -> str | None:
        """The pattern of blanks between the tokens of JSON; ``None`` for those that writers of JSON put."""
        found = {one.whitespace_pattern for one in self._written}
        if len(found) > 1:
            raise UnsupportedError(
                f"Give the JSON schemas of one output type the same whitespace_pattern. These have {sorted(map(str, found))}."
            )
        return found.pop()

    @cached_property
    def template(self) -> Template:
        """The texts, the schemas read; errors as :meth:`Schema.read`."""
        labels = {one: str(place) if place else "" for place, one in enumerate(dict.fromkeys(self._written))}
        schemas = {one: Schema.read(_read(one.schema), label=label, plain=one.plain) for one, label in labels.items()}
        return _template(self.part, schemas)

    @cached_property
    def machine(self) -> Machine:
        """The recognizer of the texts."""
        return Machine(self.template, blanks=self.whitespace_pattern)

    def guide(self, vocabulary: Vocabulary) -> JSONGuide:
        """Return the guide of the texts over the tokens of a vocabulary; warns of keywords of the schemas that are not enforced."""
        return JSONGuide.of_template(self.template, vocabulary, blanks=self.whitespace_pattern)

    @property
    def text(self) -> str:
        """The name of the part in messages."""
        return self.part.schema if isinstance(self.part, Written) else repr(self.part)

    @property
    def _written(self) -> Iterator[Written]:
        return _leaves(self.part)


def _read(schema: str) -> Any:
    current_limits().check(
        "source", len(schema.encode("utf-8", "surrogatepass")), "The number of bytes of the JSON schema"
    )
    try:
        return json.loads(schema, parse_float=Decimal, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise not_json(error) from error


def _integer(text: str) -> int | Decimal:
    """Return an integer; one of more digits than Python reads as a decimal."""
    return int(text) if len(text) < 1000 else Decimal(text)


def not_json(error: json.JSONDecodeError) -> GrammarError:
    """Return the error for the text of a schema that is not JSON."""
    return GrammarError(f"The JSON schema is not JSON: {error.msg}.", error.doc, error.pos)


def _part(term: Term) -> Part:
    match term:
        case JsonSchema():
            return Written(term.schema, term.whitespace_pattern, isinstance(term, PythonSchema))
        case Choice():
            return _part(Alternatives([term_of(item) for item in term.items]))
        case Sequence() | Alternatives():
            parts = tuple(_part(one) for one in term.terms)
            if any(not isinstance(part, str) for part in parts):
                return Joined(parts) if isinstance(term, Sequence) else OneOf(parts)
        case Term(term=Term() as inner):
            part = _part(inner)
            if not isinstance(part, str):
                return Repeated(part, *_counts(term))
    return to_pattern(term)


def to_pattern(term: Term) -> str:
    """Return the regular expression of a term; a line break ends a comment at the end of a verbose pattern in it."""
    written = to_regex(term)
    for part in parts_of(term):
        if isinstance(part, Regex) and _VERBOSE.search(part.pattern):
            written = written.replace(f"({part.pattern})", f"({part.pattern}\n)")
    return written


def in_blocks(term: Term) -> str:
    """Return :func:`to_pattern` of a term, each part of a sequence that is no literal text as a named group."""
    parts = list(_in_turn(term))
    if len(parts) == 1:
        return to_pattern(term)
    taken = "".join(part.pattern for part in parts_of(term) if isinstance(part, Regex))
    prefix = next(name for name in accumulate(repeat("_")) if f"<{name}" not in taken)
    written = [
        to_pattern(part) if isinstance(part, String) else f"(?P<{prefix}{i}>{to_pattern(part)})"
        for i, part in enumerate(parts)
    ]
    return "".join(written)


def _in_turn(term: Term) -> Iterator[Term]:
    """Yield the parts of a sequence, and of those that are its parts."""
    if not isinstance(term, Sequence):
        yield term
        return
    for part in term.terms:
        yield from _in_turn(part)


_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")


def parts_of(term: Term) -> Iterator[Term]:
    """Yield a term and the terms in it."""
    yield term
    for part in (getattr(term, "term", None), *getattr(term, "terms", ())):
        if isinstance(part, Term):
            yield from parts_of(part)


COUNTS: dict[type[Term], tuple[int, int | None]] = {KleeneStar: (0, None), KleenePlus: (1, None), Optional: (0, 1)}


def _counts(term: Any) -> tuple[int, int | None]:
    """Return the bounds of the repeats of a part, at least and at most."""
    if isinstance(term, QuantifyExact):
        return term.count, term.count
    return COUNTS.get(type(term)) or (getattr(term, "min_count", 0), getattr(term, "max_count", None))


def _leaves(part: Part) -> Iterator[Written]:
    match part:
        case Written():
            yield part
        case Joined() | OneOf():
            for one in part.parts:
                yield from _leaves(one)
        case Repeated():
            yield from _leaves(part.part)


def _template(part: Part, schemas: Mapping[Written, Schema]) -> Template:
    match part:
        case Written():
            return Template.of_value(schemas[part])
        case Joined():
            return Template.sequence(_template(one, schemas) for one in part.parts)
        case OneOf():
            return Template.one_of([_template(one, schemas) for one in part.parts])
        case Repeated():
            return _template(part.part, schemas).repeated(part.least, part.most)
    return Template.of_bytes(compile_regex(part))
