"""The estimators by their names, at every door of the package; ``phi="fields"`` and the texts of ``auto``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import pytest
from outlines.types import Regex
from pydantic import BaseModel

import outlines_phi
from benchmarks.estimators.dp_frozen import FrozenDPPhi
from outlines_phi import BigramDPPhi, FieldsPhi, Generator, Guarantee, PhiLogitsProcessor, PhiTransformers
from outlines_phi.lm import bundled
from outlines_phi.phi.estimator import Phi
from outlines_phi.plugin.call import resolve_phi
from outlines_phi_workbench.suite.reference import Reference
from tests.plugin.loops import custom, generate, pair, seeded, written
from tests.plugin.oracle import reference
from tests.precision import near_log

PROMPT = "Question: is the bakery open on Monday? Answer: "
ANSWER = Literal["yes", "no", "not now", "nobody"]
TEXTS = {"yes", "no", "not now", "nobody"}
BUDGET = 12
N = 400

NAMES: dict[str, Phi] = {"dp": BigramDPPhi(), "dp-bigram": BigramDPPhi()}
GIVEN: list[tuple[str | Phi, Phi]] = [*NAMES.items(), (FrozenDPPhi(), FrozenDPPhi())]
"""The arguments of calls, and the estimator that each means: names, and one of the application's own."""

given = pytest.mark.parametrize(("phi", "meant"), GIVEN, ids=[*NAMES, "own"])


def law_of(model: PhiTransformers, phi: Phi, **options: Any) -> Reference:
    return reference(model, ANSWER, PROMPT, BUDGET, estimators={phi.name: phi}, **options)


def agree(ids: Iterable[tuple[int, ...]], log_w: Iterable[float], phi: Phi, reference: Reference) -> bool:
    """Return True if every draw is a member with the weight ``p / q`` that the enumeration has for it."""
    weights = dict(zip(ids, log_w, strict=True))
    assert set(weights) <= set(reference.log_p)
    expected = {ids: reference.log_p[ids] - reference.log_q[phi.name][ids] for ids in weights}
    return all(abs(weights[ids] - expected[ids]) < 2e-3 for ids in weights)


@given
def test_a_generator_draws_with_weights(phi: str | Phi, meant: Phi, model: PhiTransformers) -> None:
    """Also beside prompts that are padded or make it padded."""
    assert resolve_phi(phi) == meant
    generator, law = outlines_phi.Generator(model, ANSWER, phi=phi), law_of(model, meant)
    alone = generator.sample(PROMPT, n=N, seed=1, max_new_tokens=BUDGET)
    _, padded, _ = generator.sample_batch(["no", PROMPT, PROMPT + PROMPT], N, seed=4, max_new_tokens=BUDGET)
    for draws in (alone, padded):
        assert set(draws.texts) <= TEXTS and draws.guarantee is Guarantee.WEIGHTED
        assert agree((draw.token_ids for draw in draws), draws.log_w, meant, law)
    assert generator(PROMPT, seed=2, max_new_tokens=BUDGET) in TEXTS
    assert "".join(generator.stream(PROMPT, seed=2, max_new_tokens=BUDGET)) in TEXTS


@given
def test_custom_generate_takes_it(phi: str | Phi, meant: Phi, model: PhiTransformers) -> None:
    options = {"output_type": ANSWER, "temperature": 0.7, "max_new_tokens": BUDGET, "num_return_sequences": N}
    result = custom(pair(model), PROMPT, phi=phi, seed=3, return_dict_in_generate=True, **options)
    (draws,) = result.draws
    assert result.log_w.tolist() == near_log(draws.log_w.tolist())
    assert agree((draw.token_ids for draw in draws), draws.log_w, meant, law_of(model, meant, temperature=0.7))


def test_a_logits_processor_runs_an_estimator_of_the_application(model: PhiTransformers) -> None:
    phi, hf = FrozenDPPhi(horizon=3, states=10), pair(model)
    processor = PhiLogitsProcessor(model, ANSWER, phi=phi, temperature=0.7, max_new_tokens=BUDGET)
    options = processor.host_options | {"num_return_sequences": N, "logits_processor": [processor]}
    sequences = seeded(generate, hf, PROMPT, **options)
    ids, law = written(hf, sequences, PROMPT), law_of(model, processor.phi, temperature=0.7)
    assert len(set(ids)) > 1 and agree(ids, processor.log_w(sequences), processor.phi, law)


PERSON = "Person: Nora is a teacher. JSON: "
GROUPS = Regex(r"(?P<name>[a-z]{1,4}) (?P<age>\d{1,3})")


class Person(BaseModel):
    name: str
    age: int
    city: Literal["Paris", "Rome", "Lisbon"]


def test_a_stream_keeps_the_model_alive_that_nobody_else_holds() -> None:
    def pieces() -> Iterator[str]:
        owner = outlines_phi.from_transformers(*bundled.load())
        return owner.stream(PERSON, Person, phi="fields", max_new_tokens=60)

    assert json.loads("".join(pieces()))


def test_forced_text_is_drafted_and_changes_no_draw(model: PhiTransformers) -> None:
    draws = Generator(model, Person, phi="fields").sample(PERSON, 4, seed=5, max_new_tokens=60)
    assert draws.counts.followed > 0
    lookup = Generator(model, Person, phi="fields", draft="prompt_lookup").sample(PERSON, 4, seed=5, max_new_tokens=60)
    assert lookup.texts == draws.texts


def test_weights_come_where_they_are_asked_for(model: PhiTransformers) -> None:
    draws = Generator(model, Person).sample(PERSON, 4, phi=FieldsPhi(weights=True), seed=1, max_new_tokens=60)
    assert {draw.guarantee for draw in draws} == {Guarantee.WEIGHTED} and draws.log_z < 0


@pytest.mark.filterwarnings("ignore::outlines_phi.FidelityWarning")
def test_truncation_is_left_to_candidates_by_auto(model: PhiTransformers) -> None:
    texts = Generator(model, Person)(PERSON, top_k=4, num_return_sequences=4, seed=1, max_new_tokens=60)
    assert all(Person.model_validate_json(text) for text in texts)


@pytest.mark.parametrize("options", [{}, {"open_at": "[^0-9]"}])
def test_texts_that_begin_with_a_member_are_one_block(model: PhiTransformers, options: dict[str, str]) -> None:
    draws = Generator(model, GROUPS, phi="fields", ends="open", **options).sample(PERSON, 3, seed=1)
    assert {draw.blocks for draw in draws} == {1}


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda generator: generator.fit([]), "Give fit.. at least one prompt"),
        (lambda generator: generator.marginals(PERSON, n=0), "n=0 was given to marginals"),
        (lambda generator: generator(PERSON, ends="open", open_at=3), "Give open_at= a regular expression as a str"),
    ],
)
def test_bad_input_of_what_is_beside_draws(ask: Callable[..., object], message: str, model: PhiTransformers) -> None:
    with pytest.raises(outlines_phi.UnsupportedError, match=message):
        ask(Generator(model, Literal["yes", "no"]))
