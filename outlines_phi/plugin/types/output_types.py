"""Outlines output types, read by Outlines' own front end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeAlias

from jsonschema.exceptions import SchemaError
from outlines.types.dsl import CFG, Alternatives, Choice, JsonSchema, Regex, Term, python_types_to_terms, to_regex

from ...errors import EmptyLanguageError, GrammarError, OutlinesPhiError, UnsupportedError
from ..mistakes import no_format, too_deep
from .core_schema import check_core
from .json_text import JSONText
from .python_schemas import UncheckedSchema, term_of

COLLECTIONS = (str, bytes, dict, list, tuple, set, frozenset)
"""What is often given in place of an output type, and is none."""


def to_pattern(output_type: Any) -> str:
    """Return the regular expression that Outlines compiles for an output type.

    Parameters
    ----------
    output_type
        Anything that Outlines takes, but grammars (see :func:`to_language`): regex and DSL terms, ``Literal``, ``Enum``,
        ``Choice``, ``bool``, ``int``, ``float``, ``str``, ``date``, ``time``, ``datetime``, ``Union``, ``list``,
        ``tuple``, ``dict`` of types, a pydantic model, dataclass, TypedDict, function, genson builder, or ``JsonSchema``
        (text or dict, with ``whitespace_pattern``).

    Raises
    ------
    UnsupportedError
        Not an output type, or one that this version cannot correct; says what to use.
    GrammarError
        A JSON schema that cannot be read.
    EmptyLanguageError
        A choice of nothing.
    """
    return _to_regex(_term(output_type, python_types_to_terms), output_type)


@dataclass(frozen=True)
class GrammarText:
    """The text of a context-free grammar, in Lark's dialect."""

    text: str


Language: TypeAlias = str | GrammarText | JSONText
"""A regular expression, a context-free grammar, or JSON values and what they stand in."""


def to_language(output_type: Any) -> Language:
    """Return what an output type lets be written; errors as :func:`to_pattern`.

    ``dict`` means JSON of any shape, a grammar in Outlines.
    """
    term = to_term(output_type)
    if isinstance(term, CFG):
        return GrammarText(term.definition)
    _check(term, output_type)
    if not holds_json(term):
        return _to_regex(term, output_type)
    return JSONText.of(term)


def to_core_language(output_type: Any) -> str | GrammarText:
    """Return the regular expression of an output type as outlines_core has it, or its grammar; errors as :func:`to_pattern`."""
    term = _term(output_type, python_types_to_terms)
    return GrammarText(term.definition) if isinstance(term, CFG) else _to_regex(term, output_type)


def _check(term: Term, output_type: Any) -> None:
    if any(isinstance(part, CFG) for part in _parts(term)):
        raise UnsupportedError(
            "A context-free grammar was given as a part of an output type (dict means JSON of any shape, a grammar in Outlines), "
            "and the other parts are regular. Write them into the grammar, as rules or terminals, and give that alone."
        )
    if any(not alternatives for alternatives in _choices(term)):
        raise EmptyLanguageError(f"{output_type!r} holds a choice of nothing; give at least one alternative.")


def _to_regex(term: Term, output_type: Any) -> str:
    _check(term, output_type)
    try:
        for schema in _schemas(term):
            check_core(schema.schema)
        return to_regex(term)
    except OutlinesPhiError:
        raise
    except RecursionError:
        raise too_deep("output type") from None
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        if isinstance(term, JsonSchema):
            raise _schema_error(term, error) from error
        raise UnsupportedError(f"{output_type!r} cannot be written as a regular expression: {error}") from error


def left_to_outlines(output_type: Any, *, at_hand: bool) -> bool:
    """Return whether Outlines itself masks for an output type where nothing is corrected.

    That is so for grammars and free text, and for regular languages while nothing is ``at_hand`` to mask them here.
    """
    if output_type is None:
        return True
    term = to_term(output_type)
    return isinstance(term, CFG) or (not at_hand and not holds_json(term))


def holds_json(term: Term) -> bool:
    """Return whether a JSON schema is a part of a term."""
    return any(True for _ in _schemas(term))


def _schemas(term: Term) -> Iterator[JsonSchema]:
    for part in _parts(term):
        if isinstance(part, JsonSchema):
            yield part
        if isinstance(part, Choice):
            for item in part.items:
                yield from _schemas(term_of(item))


def to_term(output_type: Any) -> Term:
    """Return what Outlines reads an output type as, with the schemas of Python types as this package reads them; errors as
    :func:`to_pattern`.
    """
    return _term(output_type, term_of)


def _term(output_type: Any, read: Callable[[Any], Term]) -> Term:
    if isinstance(output_type, COLLECTIONS) and not isinstance(output_type, Term):
        raise no_format(output_type)
    try:
        return read(output_type)
    except OutlinesPhiError:
        raise
    except SchemaError as error:
        raise GrammarError(f"The JSON schema is not valid: {error.message}") from error
    except json.JSONDecodeError as error:
        raise GrammarError(f"The JSON schema is not JSON: {error.msg}.", error.doc, error.pos) from error
    except RecursionError:
        raise too_deep("output type") from None
    except (TypeError, ValueError, RuntimeError, NameError) as error:
        raise no_format(output_type, _reason(error)) from error


def to_json(schema: Any, whitespace_pattern: str | None) -> JsonSchema:
    """Return the JSON schema of an object that stands for one, or of its text or dict.

    Raises
    ------
    UnsupportedError
        Not an object that stands for a JSON schema.
    GrammarError
        A schema that cannot be read.
    """
    term = _read_schema(schema) if isinstance(schema, (str, dict)) else copy(to_term(schema))
    if not isinstance(term, JsonSchema):
        raise UnsupportedError(
            f"{schema!r:.80} does not stand for a JSON schema; expected a pydantic model, a dataclass, a TypedDict, an Enum, a "
            "function, a genson SchemaBuilder, or the text or dict of a schema. generate.format takes other types."
        )
    if whitespace_pattern is not None:
        term.whitespace_pattern = whitespace_pattern
    return term


def _read_schema(schema: str | dict[str, Any]) -> JsonSchema:
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        json.loads(text)
    except json.JSONDecodeError as error:
        raise GrammarError(f"The JSON schema is not JSON: {error.msg}.", error.doc, error.pos) from error
    except RecursionError:
        raise too_deep("JSON schema") from None
    except TypeError as error:
        raise GrammarError(f"Give a dict of what JSON has. The JSON schema is not JSON: {error}.") from error
    except ValueError as error:  # an integer of thousands of digits
        raise GrammarError(f"The JSON schema cannot be read: {error}. Write a smaller number.") from error
    return UncheckedSchema(text)


def _schema_error(term: JsonSchema, error: Exception) -> GrammarError:
    return GrammarError(
        f"Outlines cannot turn the JSON schema into a regular expression: {_reason(error)}\nThe schema is {term.schema:.200}; "
        "change the part that is named, or write the format as a regex."
    )


def _reason(error: Exception) -> str:
    """Return what Outlines says, without its request to report it: what is not offered here is said by this package."""
    return re.split(r"\s*(?:If it should be supported, p|P)lease open an issue", str(error))[0]


def patterns(output_type: Any) -> Iterator[str]:
    """Yield the regular expressions that an output type was written with, as they were given."""
    yield from (part.pattern for part in _parts(to_term(output_type)) if isinstance(part, Regex))


def _parts(term: Term) -> Iterator[Term]:
    """Yield a term and all that it is made of."""
    yield term
    for part in (getattr(term, "term", None), *getattr(term, "terms", ())):
        if isinstance(part, Term):
            yield from _parts(part)


def _choices(term: Term) -> Iterator[list[Any]]:
    """Yield the alternatives of every choice in a term.

    Outlines compiles a choice of nothing to the empty text; nobody means that.
    """
    for part in _parts(term):
        match part:
            case Choice():
                yield list(part.items)
            case Alternatives():
                yield list(part.terms)
