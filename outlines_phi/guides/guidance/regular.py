"""A guidance grammar without recursion, as one regular expression over lexemes and JSON values."""

from __future__ import annotations

from typing import Any

from ...errors import UnsupportedError
from ..json_schema.reading.template import Template
from .guidance_rules import START, GuidanceRules
from .lexeme_kinds import JSONValue, Lexeme
from .written_parts import EitherOf, InTurn, NamedPart, RepeatedPart

MOST_POSITIONS = 5_000


def template_of(rules: GuidanceRules) -> Template:
    """Return the template of rules without recursion: its pieces of bytes are the automata of the lexemes.

    Raises
    ------
    UnsupportedError
        It has more than :data:`MOST_POSITIONS` pieces.
    """
    known: dict[str, Template] = {}

    def of(tree: Any) -> Template:
        match tree:
            case Lexeme():
                return Template.of_bytes(tree.automaton)
            case JSONValue():
                return tree.template
            case NamedPart():
                if tree.name not in known:
                    known[tree.name] = _checked(of(rules.rules[tree.name].body))
                return known[tree.name]
            case InTurn():
                return Template.sequence(_checked(of(part)) for part in tree.parts)
            case EitherOf():
                return _checked(Template.one_of([_checked(of(part)) for part in tree.parts]))
            case RepeatedPart():
                return _checked(of(tree.part).repeated(tree.least, tree.most))
        raise AssertionError(tree)

    return _checked(of(NamedPart(START, 0)))


def _checked(template: Template) -> Template:
    if len(template.pieces) > MOST_POSITIONS:
        raise UnsupportedError(
            f"Write parts of the grammar as one lexeme: a regular expression, or a select of texts. It has more than "
            f"{MOST_POSITIONS:,} lexemes when its rules and repeats are written out."
        )
    return template
