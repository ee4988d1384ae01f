"""Streams of JSON have the model's own distribution, conditioned on the schema; streams of masked JSON have not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from outlines.types import JsonSchema

import outlines_phi
from tests.languages import ALPHA
from tests.plugin.oracle import p_value

N = 240


@dataclass(frozen=True)
class Written:
    """A schema, the prompt that its values are written after, and the most tokens of a text."""

    schema: Mapping[str, Any]
    prompt: str
    budget: int

    @property
    def output_type(self) -> JsonSchema:
        return JsonSchema(json.dumps(self.schema), whitespace_pattern=" ?")

    def distribution(self, model: outlines_phi.PhiTransformers) -> dict[str, float]:
        """Return the probability of each text, by bounds that are certified to a fiftieth."""
        generator = outlines_phi.Generator(model, self.output_type)
        found = generator.probabilities(self.prompt, tolerance=0.02, max_new_tokens=self.budget)
        return {_canonical(entry.text): entry.p for entry in found.entries if entry.p > 0}

    def of(self, stream: Callable[..., Iterator[str]], n: int = N) -> list[str]:
        """Return ``n`` texts that a stream writes piece by piece."""
        return [_canonical("".join(stream(max_new_tokens=self.budget))) for _ in range(n)]


def _canonical(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


SCHEMAS = {
    "a range of multiples": Written({"type": "integer", "minimum": 3, "maximum": 120, "multipleOf": 7}, "Age: ", 5),
    "all of two, and one of two": Written(
        {
            "allOf": [
                _object(
                    ["race", "role", "alive"],
                    race={"type": "string"},
                    role={"type": "string"},
                    alive={"type": "boolean"},
                ),
                {"properties": {"race": {"enum": ["human", "elf", "dwarf"]}}},
            ],
            "oneOf": [
                {"properties": {"role": {"enum": ["wizard", "healer"]}}},
                {"properties": {"role": {"enum": ["ranger captain"]}, "alive": {"const": True}}},
            ],
        },
        "New character: Aria. JSON: ",
        40,
    ),
    "a nested list": Written({"type": "array", "items": {"$ref": "#"}, "maxItems": 2}, "Brackets: ", 8),
}

schemas = pytest.mark.parametrize("name", SCHEMAS)


@pytest.fixture(scope="module")
def truths(model: outlines_phi.PhiTransformers) -> dict[str, dict[str, float]]:
    """Return the conditioned distribution of each language."""
    return {name: written.distribution(model) for name, written in SCHEMAS.items()}


@schemas
def test_streams_have_the_conditioned_distribution(
    name: str, model: outlines_phi.PhiTransformers, truths: dict[str, dict[str, float]]
) -> None:
    written = SCHEMAS[name]
    generator = outlines_phi.Generator(model, written.output_type, phi="exact")
    texts = written.of(lambda **limits: generator.stream(written.prompt, **limits))
    assert p_value(texts, truths[name]) > ALPHA


@schemas
def test_a_call_of_the_model_streams_the_same(
    name: str, model: outlines_phi.PhiTransformers, truths: dict[str, dict[str, float]]
) -> None:
    written = SCHEMAS[name]
    texts = written.of(lambda **limits: model.stream(written.prompt, written.output_type, phi="exact", **limits))
    assert p_value(texts, truths[name]) > ALPHA


@schemas
def test_streams_of_masked_texts_fail_the_same_test(
    name: str, model: outlines_phi.PhiTransformers, truths: dict[str, dict[str, float]]
) -> None:
    """Power control: masking writes valid JSON with another distribution."""
    written = SCHEMAS[name]
    texts = written.of(lambda **limits: model.stream(written.prompt, written.output_type, phi="local", **limits), n=60)
    assert p_value(texts, truths[name]) < 1e-6
