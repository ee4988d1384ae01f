"""Outlines output types, read by Outlines' own front end."""

from __future__ import annotations

import json
from enum import EnumMeta
from typing import Any, get_args

from jsonschema.exceptions import SchemaError
from outlines.types.dsl import CFG, Choice, JsonSchema, Term, python_types_to_terms, to_regex

from ..errors import EmptyLanguageError, GrammarError, UnsupportedError


def to_pattern(output_type: Any) -> str:
    """Return the regular expression of an output type: exactly the one that Outlines compiles for it.

    Parameters
    ----------
    output_type
        Anything that Outlines takes, context-free grammars excepted: regex and DSL terms, ``Literal``, ``Enum``, ``Choice``, ``bool``,
        ``int``, ``float``, ``str``, a pydantic model, dataclass, TypedDict, or ``JsonSchema`` (text or dict, with ``whitespace_pattern``).

    Raises
    ------
    UnsupportedError
        Not an output type, or one that this version cannot correct; says what to use.
    GrammarError
        A JSON schema that cannot be read.
    EmptyLanguageError
        A choice of nothing.
    """
    _refuse_empty_choice(output_type)
    term = _term(output_type)
    if isinstance(term, CFG):
        raise UnsupportedError(
            "A context-free grammar was given as output type (dict means JSON of any shape, a grammar in Outlines); this version "
            "corrects regular languages. Give a JSON schema or a regex, or draw without correction: phi=None, backend='llguidance'."
        )
    try:
        return to_regex(term)
    except (ValueError, TypeError) as error:
        raise _schema_error(term, error) if isinstance(term, JsonSchema) else UnsupportedError(
            f"{output_type!r} cannot be written as a regular expression: {error}"
        ) from error


def _term(output_type: Any) -> Term:
    if isinstance(output_type, (str, bytes, dict, list)) and not isinstance(output_type, Term):
        raise UnsupportedError(
            f"The output type is the {type(output_type).__name__} {output_type!r:.60}; expected a type or an Outlines term. Wrap it: "
            "outlines.types.regex(pattern), outlines.types.json_schema(schema), or typing.Literal for fixed texts."
        )
    try:
        return python_types_to_terms(output_type)
    except SchemaError as error:
        raise GrammarError(f"The JSON schema is not valid: {error.message}") from error
    except json.JSONDecodeError as error:
        raise GrammarError(f"The JSON schema is not JSON: {error.msg}.", error.doc, error.pos) from error
    except (TypeError, RecursionError) as error:
        raise UnsupportedError(f"{output_type!r} is not an output type that Outlines reads: {error}") from error


def _schema_error(term: JsonSchema, error: Exception) -> GrammarError:
    return GrammarError(
        f"Outlines cannot turn the JSON schema into a regular expression: {error} Schema: {term.schema:.200}"
    )


def _refuse_empty_choice(output_type: Any) -> None:
    """Outlines compiles a choice of nothing to the empty text; nobody means that."""
    if isinstance(output_type, EnumMeta):
        items: Any = list(output_type)
    elif isinstance(output_type, Choice):
        items = list(output_type.items)
    else:
        items = get_args(output_type) if "Literal" in str(getattr(output_type, "__origin__", "")) else [None]
    if not items:
        raise EmptyLanguageError(f"{output_type!r} is a choice of nothing; give at least one alternative.")
