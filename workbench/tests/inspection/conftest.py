"""Languages that are inspected, over the vocabulary of the bundled model."""

import re
from functools import partial
from html import unescape
from typing import Any

import transformers
from outlines.types import JsonSchema, Regex

from outlines_phi import BannedPhrases, Vocabulary
from outlines_phi.guides import read_grammar
from outlines_phi.guides.grammar.notation.reader import grammar_text
from outlines_phi.lm import bundled
from outlines_phi.plugin.types.tables import CompiledTypes
from outlines_phi_workbench.inspection.inspected import Inspected

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 3},
        "tags": {"type": "array", "items": {"enum": ["a", "bc"]}},
    },
    "required": ["name"],
    "additionalProperties": False,
}
LANGUAGES: dict[str, tuple[Any, str]] = {
    "arithmetic": (read_grammar(grammar_text("arithmetic")), "1+(2*3"),
    "schema": (JsonSchema(SCHEMA), '{"name": "bo", "tags": ["a"'),
    "decimal": (Regex(r"(0|[1-9][0-9]{0,3})(\.[0-9]+)?"), "12.5"),
}
"""Output types, and the beginning of a text of each."""


TOKENIZER = transformers.AutoTokenizer.from_pretrained(str(bundled.path()))
VOCABULARY = Vocabulary.from_tokenizer(TOKENIZER)
TYPES = CompiledTypes(VOCABULARY)
encode = partial(TOKENIZER.encode, add_special_tokens=False)


def inspected(name: str, *phrases: str, budget: int | None = None) -> Inspected:
    banned = BannedPhrases(phrases) if phrases else None
    return Inspected(name, TYPES.without(LANGUAGES[name][0], banned).guide, budget)


def said(page: str) -> str:
    """Return the text of a page."""
    return " ".join(unescape(re.sub("<[^>]+>", " ", page)).split())
