"""Languages that are inspected, over the vocabulary of the bundled model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import transformers

from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.grammar.notation.reader import grammar_text, read_grammar
from outlines_phi.guides.guide import Guide
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.guides.phrases.ban_language import banned
from outlines_phi.guides.phrases.banned import BannedPhrases
from outlines_phi.lm import bundled
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.vocabulary.vocabulary import Vocabulary
from outlines_phi_workbench.inspection.inspected import Inspected

LIST = 'start: "[" [NUMBER ("," NUMBER)*] "]"\nNUMBER: /[0-9]+/\n%ignore /[ ]+/\n'
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 3},
        "tags": {"type": "array", "items": {"enum": ["a", "bc"]}},
    },
    "required": ["name"],
    "additionalProperties": False,
}
TREE = {
    "type": "object",
    "properties": {"left": {"$ref": "#"}, "n": {"type": "integer"}},
    "additionalProperties": False,
}
DECIMAL = r"(0|[1-9][0-9]{0,3})(\.[0-9]+)?"

TEXTS = {
    "arithmetic": "1+(2*3",
    "list": "[1, 2",
    "schema": '{"name": "bo", "tags": ["a"',
    "tree": '{"left": {"n": 1',
    "decimal": "12.5",
}
"""Languages, and the beginning of a text of each."""

Encode = Callable[[str], Sequence[int]]


@cache
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(str(bundled.path()))


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary.from_tokenizer(tokenizer())


@cache
def guide(name: str) -> Guide:
    match name:
        case "arithmetic":
            return CFGGuide.of(read_grammar(grammar_text(name)), vocabulary())
        case "list":
            return CFGGuide.of(read_grammar(LIST), vocabulary())
        case "schema" | "tree":
            return JSONGuide.of(SCHEMA if name == "schema" else TREE, vocabulary())
    return FSMGuide.from_automaton(compile_regex(DECIMAL), vocabulary())


@cache
def inspected(name: str) -> Inspected:
    return Inspected.of(name, guide(name))


def without(name: str, *phrases: str, budget: int | None = None) -> Inspected:
    plain = guide(name)
    return Inspected.of(name, banned(plain, BannedPhrases(phrases)), plain, budget)


def encode(text: str) -> Sequence[int]:
    return list(tokenizer().encode(text, add_special_tokens=False))


@pytest.fixture(params=list(TEXTS))
def language(request: pytest.FixtureRequest) -> str:
    """The name of a language."""
    return str(request.param)
