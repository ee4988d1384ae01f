"""The estimators by their names, and ``sampler=``, at every door of the package; ``phi="fields"`` and the texts of ``auto``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal

import pytest
from outlines.types import Regex
from pydantic import BaseModel

import outlines_phi
from benchmarks.estimators.dp_frozen import FrozenDPPhi
from outlines_phi import (
    SMC,
    BigramDPPhi,
    Draws,
    ExactPhi,
    FieldsPhi,
    Generator,
    Guarantee,
    LookaheadPhi,
    PhiLogitsProcessor,
    PhiTransformers,
    UnsupportedError,
)
from outlines_phi.lm import bundled
from outlines_phi.phi.estimator import LocalPhi, Phi
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
        return outlines_phi.from_transformers(*bundled.load()).stream(PERSON, Person, phi="fields", max_new_tokens=60)

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


SUNDAY = "Question: is the bakery open on Sunday? Answer: "
YES_NO = Literal["yes", "no"]
OPTIONS = SMC(particles=8)

Model = outlines_phi.PhiTransformers


def by_generate(model: Model, **keywords: Any) -> list[str]:
    options = {"output_type": YES_NO, "max_new_tokens": 20, "return_dict_in_generate": True, **keywords}
    (draws,) = custom(pair(model), SUNDAY, **options).draws
    assert draws.populations and draws.guarantee <= Guarantee.WEIGHTED
    return draws.texts


DOORS: dict[str, Callable[..., Any]] = {
    "model": lambda model, **keywords: model(SUNDAY, YES_NO, **keywords),
    "model.batch": lambda model, **keywords: model.batch([SUNDAY], YES_NO, **keywords)[0],
    "model.stream": lambda model, **keywords: "".join(model.stream(SUNDAY, YES_NO, **keywords)),
    "model.agenerate": lambda model, **keywords: asyncio.run(model.agenerate(SUNDAY, YES_NO, **keywords)),
    "Generator": lambda model, **keywords: outlines_phi.Generator(model, YES_NO)(SUNDAY, **keywords),
    "Generator.batch": lambda model, **keywords: outlines_phi.Generator(model, YES_NO).batch([SUNDAY], **keywords)[0],
    "Generator.stream": lambda model, **keywords: "".join(
        outlines_phi.Generator(model, YES_NO).stream(SUNDAY, **keywords)
    ),
    "Generator.sample": lambda model, **keywords: (
        outlines_phi.Generator(model, YES_NO).sample(SUNDAY, **keywords)[0].text
    ),
    "custom_generate": lambda model, **keywords: by_generate(model, **keywords)[0],
    "generate.choice": lambda model, *, sampler, seed, **keywords: outlines_phi.generate.choice(
        model, ["yes", "no"], sampler=OPTIONS, **keywords
    )(SUNDAY, seed=seed),
}
doors = pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)


@doors
def test_every_door_takes_a_sampler(door: Callable[..., Any], model: Model, drawn: list[Draws]) -> None:
    """Without phi, particles follow plain masking; the same as with phi="local", and the same text at every door."""
    expected = outlines_phi.Generator(model, YES_NO).sample(SUNDAY, sampler=OPTIONS, seed=5)
    assert door(model, sampler=OPTIONS, seed=5) == expected[0].text
    assert door(model, sampler=OPTIONS, seed=5, phi="local") == expected[0].text
    assert all(len(draws.populations) == len(draws) == 1 for draws in drawn)
    assert {draws.guarantee for draws in drawn} == {expected.guarantee}
    assert door(model, sampler=OPTIONS, seed=5, phi="onestep") in ("yes", "no")


@doors
@pytest.mark.parametrize("phi", ["exact", "auto", LookaheadPhi(weights=True), ExactPhi()], ids=str)
def test_an_estimator_that_draws_by_itself_is_refused(door: Callable[..., Any], phi: Any, model: Model) -> None:
    name = phi if isinstance(phi, str) else phi.name
    with pytest.raises(UnsupportedError, match=rf"phi='local'.*sampler=SMC\(...\) was given with phi='{name}'"):
        door(model, sampler=OPTIONS, seed=1, phi=phi)


def test_the_default_of_a_generator_and_of_a_model(model: Model) -> None:
    """A generator's own default gives way to masking; what somebody chose does not."""
    given, exact = outlines_phi.Generator(model, YES_NO, phi="exact"), outlines_phi.wrap(model, phi=ExactPhi())
    for call in (given, partial(exact, output_type=YES_NO), outlines_phi.Generator(exact, YES_NO)):
        with pytest.raises(UnsupportedError, match="phi='exact'"):
            call(SUNDAY, sampler=OPTIONS)
    assert given(SUNDAY, sampler=OPTIONS, phi=LocalPhi(), seed=1) in ("yes", "no")
    assert outlines_phi.Generator(model, YES_NO).sample(SUNDAY, sampler=None, seed=1).guarantee is Guarantee.EXACT


def test_several_texts_are_several_runs(model: Model) -> None:
    texts = model(SUNDAY, YES_NO, sampler=OPTIONS, num_return_sequences=4, seed=2)
    draws = outlines_phi.Generator(model, YES_NO).sample(SUNDAY, 4, sampler=OPTIONS, seed=2)
    assert texts == draws.texts and len(draws.populations) == 4
    classic = outlines_phi.generate.choice(model, ["yes", "no"], outlines_phi.samplers.particles(OPTIONS, samples=4))
    assert classic(SUNDAY, seed=2) == texts
    one, two = outlines_phi.Generator(model, YES_NO).sample_batch([SUNDAY, SUNDAY], 4, sampler=OPTIONS, seed=2)
    assert one.texts == texts
    assert two.populations[0].read_by(len).values[0] in (2, 3)


REFUSED: list[tuple[Callable[[Model], Any], str]] = [
    (lambda model: model(SUNDAY, YES_NO, sampler=OPTIONS, phi=None), "was given without phi="),
    (lambda model: model(SUNDAY, sampler=OPTIONS), "phi='local' beside sampler="),
    (lambda model: model.stream(SUNDAY, YES_NO, sampler=OPTIONS, phi=None), "was given without phi="),
    (lambda model: model(SUNDAY, YES_NO, sampler="smc"), "sampler='smc' was given; expected SMC"),
    (lambda model: model(SUNDAY, YES_NO, sampler=SMC), "expected SMC"),
    (lambda model: model(SUNDAY, YES_NO, sampler=OPTIONS, do_sample=False), "is searched for"),
    (lambda model: outlines_phi.Generator(model, YES_NO).mode(SUNDAY, sampler=OPTIONS), "draws nothing"),
    (lambda model: outlines_phi.Generator(model, YES_NO).probabilities(SUNDAY, sampler=OPTIONS), "draws nothing"),
    (lambda model: outlines_phi.Generator(model, YES_NO).audit(SUNDAY, sampler=OPTIONS), "plain masking"),
    (lambda model: by_generate(model, sampler=OPTIONS, do_sample=False), "is searched for"),
    (lambda model: outlines_phi.generate.choice(model, ["a"], OPTIONS, phi=None)(SUNDAY), "without phi="),
    (lambda model: outlines_phi.generate.text(model, OPTIONS)(SUNDAY, max_tokens=3), "without phi="),
    (lambda model: outlines_phi.generate.choice(model, ["a"], 50), r"or SMC\(...\)"),
    (lambda model: outlines_phi.samplers.particles(50), "expected SMC"),  # type: ignore[arg-type]
    (lambda model: outlines_phi.samplers.particles(OPTIONS, samples=0), "samples=0"),
    (lambda model: outlines_phi.samplers.particles(OPTIONS, temperature=0.0), "temperature"),
    (lambda model: outlines_phi.Generator(model, YES_NO, sampler=5), "sampler=5 was given; expected SMC"),
    (
        lambda model: model(SUNDAY, Literal["zzz"], sampler=OPTIONS, top_k=1),
        "populations of particles met a step where top_k=1",
    ),
]


@pytest.mark.parametrize(("call", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_have_a_sampler_says_so(call: Callable[[Model], Any], said: str, model: Model) -> None:
    with pytest.raises((UnsupportedError, outlines_phi.EmptyLanguageError), match=said):
        call(model)


def test_a_generator_keeps_its_sampler(model: Model) -> None:
    """The sampler of a generator holds for every call that says nothing else."""
    made = outlines_phi.Generator(model, YES_NO, phi="onestep", sampler=OPTIONS)
    given = outlines_phi.Generator(model, YES_NO, phi="onestep")
    assert made.sample(SUNDAY, 3, seed=4).items == given.sample(SUNDAY, 3, seed=4, sampler=OPTIONS).items
    assert made(SUNDAY, seed=4) == given(SUNDAY, seed=4, sampler=OPTIONS)
    assert made.sample(SUNDAY, 3, seed=4, sampler=None).populations == ()
