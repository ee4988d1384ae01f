"""Every keyword, and pairs of them under every connective, beside the reference validator over enumerated texts."""

from __future__ import annotations

import json
import random
from itertools import combinations_with_replacement, product
from typing import Any

import jsonschema
import pytest

from outlines_phi.errors import EmptyLanguageError, UnsupportedError
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.reading.keywords import KEYWORDS
from outlines_phi.guides.json_schema.reading.schema import Schema

from ..test_drafts import DRAFTS, MALFORMED, SAID, of_draft

SCALARS = ["null", "true", "0", "1", "-1", "2", "1.5", "10", '""', '"a"', '"ab"', '"ba"', r'"\u0061"', '"1.1.1.1"']
FEW = ["1", "2", '"a"', '"ab"', "[]", '{"a":1}']
MEMBERS = [f"{name}:{value}" for name in ('"a"', '"b"', '"ab"', r'"\u0062"') for value in FEW]
ARRAYS = [f"[{','.join(items)}]" for count in range(4) for items in product(FEW[: 7 - count], repeat=count)]
OBJECTS = [f"{{{','.join(members)}}}" for count in range(3) for members in product(MEMBERS, repeat=count)]
TEXTS = [*SCALARS, *ARRAYS, *OBJECTS]
SOME = random.Random(0).sample(TEXTS, 250)


def is_plain(text: str) -> bool:
    """Return True if nothing is escaped and no name comes twice: else a text may be left out, for the value has another."""
    pairs: list[list[str]] = []
    json.loads(text, object_pairs_hook=lambda members: pairs.append([name for name, _ in members]))
    return "\\" not in text and all(len(set(names)) == len(names) for names in pairs)


VALUES = {text: (json.loads(text), is_plain(text)) for text in TEXTS}


def check(document: dict[str, Any], validator: Any, texts: list[str]) -> tuple[bool, bool]:
    """Compare machine and validator; return whether some text is valid, and whether some is not."""
    machine = Machine(Schema.read(document), any_order=True, blanks="")
    verdicts = set[bool]()
    for text in texts:
        value, plain = VALUES[text]
        valid, accepted = validator.is_valid(value), machine.accepts(text.encode())
        assert valid or not accepted, (document, text)
        assert accepted or not valid or not plain, (document, text)
        verdicts.add(valid)
    return True in verdicts, False in verdicts


TOLD = SAID | {
    "if": {"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"type": "number"}},
    "$recursiveRef": {"type": ["array", "string"], "items": {"$recursiveRef": "#"}},
}
"""A schema with each keyword, of which some values are valid and some are not."""


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_texts_are_those_that_the_validator_holds_valid(keyword: str) -> None:
    known = [
        draft
        for draft in KEYWORDS[keyword].drafts
        if TOLD[keyword] is not SAID[keyword] or (keyword, draft) not in MALFORMED
    ]
    document = of_draft(known[-1], TOLD[keyword])
    checker = jsonschema.FormatChecker()
    assert check(document, DRAFTS[known[-1]][1](document, format_checker=checker), TEXTS) == (True, True)


def connected(one: Any, other: Any, rng: random.Random) -> dict[str, Any]:
    """Return a schema of both."""
    names = rng.choice([["a"], ["b"], ["a", "b"]])
    return rng.choice(
        [
            {"allOf": [one, other]}, {"anyOf": [one, other]}, {"oneOf": [one, other]}, {"if": one, "then": other},
            {"if": one, "else": other}, {"allOf": [one, {"not": other}]}, {"items": one, "additionalProperties": other},
            {"properties": dict.fromkeys(names, one), "additionalProperties": other}, {"contains": one, "items": other},
            {"prefixItems": [one], "items": other, "patternProperties": {"b": other}}, {"not": {"anyOf": [one, other]}},
        ]
    )  # fmt: skip


@pytest.mark.parametrize("part", range(6))
def test_pairs_of_keywords_under_every_connective(part: int) -> None:
    here = {
        keyword: document
        for keyword, document in SAID.items()
        if "draft2020-12" in KEYWORDS[keyword].drafts and not keyword.endswith(("ef", "additionalItems"))
    }
    rng, compared = random.Random(part), 0
    for one, other in list(combinations_with_replacement(here, 2))[part::6]:
        document = connected(here[one], here[other], rng)
        try:
            validator = jsonschema.Draft202012Validator(document, format_checker=jsonschema.FormatChecker())
            check(document, validator, SOME[:60])
            compared += 1
        except (EmptyLanguageError, UnsupportedError):
            continue
    assert compared > 80


def test_a_keyword_that_is_dropped_is_told() -> None:
    """The control: the comparison sees each keyword that a reader would pass over."""
    for keyword in ("multipleOf", "oneOf", "uniqueItems", "patternProperties", "dependentRequired", "not", "contains"):
        validator = jsonschema.Draft202012Validator(SAID[keyword])
        with pytest.raises(AssertionError):
            check({}, validator, TEXTS)
