"""``phi="fields"`` and the texts of ``auto``, on the bundled model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
from outlines.types import Regex
from pydantic import BaseModel

import outlines_phi
from outlines_phi import FieldsPhi, Generator, Guarantee, PhiTransformers
from outlines_phi.lm import bundled

PROMPT = "Person: Nora is a teacher. JSON: "
GROUPS = Regex(r"(?P<name>[a-z]{1,4}) (?P<age>\d{1,3})")


class Person(BaseModel):
    name: str
    age: int
    city: Literal["Paris", "Rome", "Lisbon"]


def test_pieces_are_the_text_of_a_call_field_by_field(model: PhiTransformers) -> None:
    generator = Generator(model, Person, phi="fields")
    pieces = list(generator.stream(PROMPT, seed=3, max_new_tokens=60))
    assert "".join(pieces) == generator(PROMPT, seed=3, max_new_tokens=60)
    assert len(pieces) > 3 and Person.model_validate_json("".join(pieces))


def test_a_stream_keeps_the_model_alive_that_nobody_else_holds() -> None:
    def pieces() -> Iterator[str]:
        owner = outlines_phi.from_transformers(*bundled.load())
        return owner.stream(PROMPT, Person, phi="fields", max_new_tokens=60)

    assert json.loads("".join(pieces()))


def test_forced_text_is_drafted_and_changes_no_draw(model: PhiTransformers) -> None:
    draws = Generator(model, Person, phi="fields").sample(PROMPT, 4, seed=5, max_new_tokens=60)
    assert draws.counts.followed > 0
    lookup = Generator(model, Person, phi="fields", draft="prompt_lookup").sample(PROMPT, 4, seed=5, max_new_tokens=60)
    assert lookup.texts == draws.texts


def test_weights_come_where_they_are_asked_for(model: PhiTransformers) -> None:
    draws = Generator(model, Person).sample(PROMPT, 4, phi=FieldsPhi(weights=True), seed=1, max_new_tokens=60)
    assert {draw.guarantee for draw in draws} == {Guarantee.WEIGHTED} and draws.log_z < 0


@pytest.mark.filterwarnings("ignore::outlines_phi.FidelityWarning")
def test_truncation_is_left_to_candidates_by_auto(model: PhiTransformers) -> None:
    texts = Generator(model, Person)(PROMPT, top_k=4, num_return_sequences=4, seed=1, max_new_tokens=60)
    assert all(Person.model_validate_json(text) for text in texts)


@pytest.mark.parametrize("options", [{}, {"open_at": "[^0-9]"}])
def test_texts_that_begin_with_a_member_are_one_block(model: PhiTransformers, options: dict[str, str]) -> None:
    draws = Generator(model, GROUPS, phi="fields", ends="open", **options).sample(PROMPT, 3, seed=1)
    assert {draw.blocks for draw in draws} == {1}


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda generator: generator.fit([]), "Give fit.. at least one prompt"),
        (lambda generator: generator.marginals(PROMPT, n=0), "n=0 was given to marginals"),
        (lambda generator: generator(PROMPT, ends="open", open_at=3), "Give open_at= a regular expression as a str"),
    ],
)
def test_bad_input_of_what_is_beside_draws(ask: Callable[..., object], message: str, model: PhiTransformers) -> None:
    with pytest.raises(outlines_phi.UnsupportedError, match=message):
        ask(Generator(model, Literal["yes", "no"]))
