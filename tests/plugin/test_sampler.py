"""``sampler=`` at every door."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest

import outlines_phi
from outlines_phi import SMC, Guarantee, UnsupportedError
from outlines_phi.phi.estimator import LocalPhi
from outlines_phi.sampling.draws import Draws
from outlines_phi.sampling.phi_options import ExactPhi, LookaheadPhi
from tests.plugin.loops import custom, pair

PROMPT = "Question: is the bakery open on Sunday? Answer: "
ANSWER = Literal["yes", "no"]
OPTIONS = SMC(particles=8)

Model = outlines_phi.PhiTransformers


def by_generate(model: Model, **keywords: Any) -> list[str]:
    options = {"output_type": ANSWER, "max_new_tokens": 20, "return_dict_in_generate": True, **keywords}
    (draws,) = custom(pair(model), PROMPT, **options).draws
    assert draws.populations and draws.guarantee <= Guarantee.WEIGHTED
    return draws.texts


DOORS: dict[str, Callable[..., Any]] = {
    "model": lambda model, **keywords: model(PROMPT, ANSWER, **keywords),
    "model.batch": lambda model, **keywords: model.batch([PROMPT], ANSWER, **keywords)[0],
    "model.stream": lambda model, **keywords: "".join(model.stream(PROMPT, ANSWER, **keywords)),
    "model.agenerate": lambda model, **keywords: asyncio.run(model.agenerate(PROMPT, ANSWER, **keywords)),
    "Generator": lambda model, **keywords: outlines_phi.Generator(model, ANSWER)(PROMPT, **keywords),
    "Generator.batch": lambda model, **keywords: outlines_phi.Generator(model, ANSWER).batch([PROMPT], **keywords)[0],
    "Generator.stream": lambda model, **keywords: "".join(
        outlines_phi.Generator(model, ANSWER).stream(PROMPT, **keywords)
    ),
    "Generator.sample": lambda model, **keywords: (
        outlines_phi.Generator(model, ANSWER).sample(PROMPT, **keywords)[0].text
    ),
    "custom_generate": lambda model, **keywords: by_generate(model, **keywords)[0],
    "generate.choice": lambda model, *, sampler, seed, **keywords: outlines_phi.generate.choice(
        model, ["yes", "no"], sampler=OPTIONS, **keywords
    )(PROMPT, seed=seed),
}
doors = pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)


@doors
def test_every_door_takes_a_sampler(door: Callable[..., Any], model: Model, drawn: list[Draws]) -> None:
    """Without phi, particles follow plain masking; the same as with phi="local", and the same text at every door."""
    expected = outlines_phi.Generator(model, ANSWER).sample(PROMPT, sampler=OPTIONS, seed=5)
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
    given, exact = outlines_phi.Generator(model, ANSWER, phi="exact"), outlines_phi.wrap(model, phi=ExactPhi())
    for call in (given, partial(exact, output_type=ANSWER), outlines_phi.Generator(exact, ANSWER)):
        with pytest.raises(UnsupportedError, match="phi='exact'"):
            call(PROMPT, sampler=OPTIONS)
    assert given(PROMPT, sampler=OPTIONS, phi=LocalPhi(), seed=1) in ("yes", "no")
    assert outlines_phi.Generator(model, ANSWER).sample(PROMPT, sampler=None, seed=1).guarantee is Guarantee.EXACT


def test_several_texts_are_several_runs(model: Model) -> None:
    texts = model(PROMPT, ANSWER, sampler=OPTIONS, num_return_sequences=4, seed=2)
    draws = outlines_phi.Generator(model, ANSWER).sample(PROMPT, 4, sampler=OPTIONS, seed=2)
    assert texts == draws.texts
    assert len(draws.populations) == 4
    classic = outlines_phi.generate.choice(model, ["yes", "no"], outlines_phi.samplers.particles(OPTIONS, samples=4))
    assert classic(PROMPT, seed=2) == texts
    one, two = outlines_phi.Generator(model, ANSWER).sample_batch([PROMPT, PROMPT], 4, sampler=OPTIONS, seed=2)
    assert one.texts == texts
    assert two.populations[0].read_by(len).values[0] in (2, 3)


REFUSED: list[tuple[Callable[[Model], Any], str]] = [
    (lambda model: model(PROMPT, ANSWER, sampler=OPTIONS, phi=None), "was given without phi="),
    (lambda model: model(PROMPT, sampler=OPTIONS), "phi='local' beside sampler="),
    (lambda model: model.stream(PROMPT, ANSWER, sampler=OPTIONS, phi=None), "was given without phi="),
    (lambda model: model(PROMPT, ANSWER, sampler="smc"), "sampler='smc' was given; expected SMC"),
    (lambda model: model(PROMPT, ANSWER, sampler=SMC), "expected SMC"),
    (lambda model: model(PROMPT, ANSWER, sampler=OPTIONS, do_sample=False), "is searched for"),
    (lambda model: outlines_phi.Generator(model, ANSWER).mode(PROMPT, sampler=OPTIONS), "draws nothing"),
    (lambda model: outlines_phi.Generator(model, ANSWER).probabilities(PROMPT, sampler=OPTIONS), "draws nothing"),
    (lambda model: outlines_phi.Generator(model, ANSWER).audit(PROMPT, sampler=OPTIONS), "plain masking"),
    (lambda model: by_generate(model, sampler=OPTIONS, do_sample=False), "is searched for"),
    (lambda model: outlines_phi.generate.choice(model, ["a"], OPTIONS, phi=None)(PROMPT), "without phi="),
    (lambda model: outlines_phi.generate.text(model, OPTIONS)(PROMPT, max_tokens=3), "without phi="),
    (lambda model: outlines_phi.generate.choice(model, ["a"], 50), r"or SMC\(...\)"),
    (lambda model: outlines_phi.samplers.particles(50), "expected SMC"),  # type: ignore[arg-type]
    (lambda model: outlines_phi.samplers.particles(OPTIONS, samples=0), "samples=0"),
    (lambda model: outlines_phi.samplers.particles(OPTIONS, temperature=0.0), "temperature"),
    (lambda model: outlines_phi.Generator(model, ANSWER, sampler=5), "sampler=5 was given; expected SMC"),
    (
        lambda model: model(PROMPT, Literal["zzz"], sampler=OPTIONS, top_k=1),
        "populations of particles met a step where top_k=1",
    ),
]


@pytest.mark.parametrize(("call", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_have_a_sampler_says_so(call: Callable[[Model], Any], said: str, model: Model) -> None:
    with pytest.raises((UnsupportedError, outlines_phi.EmptyLanguageError), match=said):
        call(model)


def test_a_generator_keeps_its_sampler(model: Model) -> None:
    """The sampler of a generator holds for every call that says nothing else."""
    made = outlines_phi.Generator(model, ANSWER, phi="onestep", sampler=OPTIONS)
    given = outlines_phi.Generator(model, ANSWER, phi="onestep")
    assert made.sample(PROMPT, 3, seed=4).items == given.sample(PROMPT, 3, seed=4, sampler=OPTIONS).items
    assert made(PROMPT, seed=4) == given(PROMPT, seed=4, sampler=OPTIONS)
    assert made.sample(PROMPT, 3, seed=4, sampler=None).populations == ()
