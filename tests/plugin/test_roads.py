"""One law on every road: whichever door a call comes through, its texts are draws of mu*, and masked ones fail the same test.

A new road is a row of ``ROADS``. Hosts' own loops under :class:`PhiLogitsProcessor` draw weighted texts; their laws are in
``test_phi_processor``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal

import outlines
import pytest
import torch
from scipy import stats

import outlines_phi
from outlines_phi import PhiTransformers, generate, samplers
from outlines_phi.lm import bundled
from tests.languages import ALPHA

PROMPT = "Question: is the bakery open on Monday? Answer: "
# "no" last: over any vocabulary a stock generator loses what goes on after an earlier alternative (docs/output-types.md).
WORDS = ["yes", "not now", "nobody", "no"]
ANSWER = Literal["yes", "not now", "nobody", "no"]
N, BUDGET = 1200, 12

Draw = Callable[[PhiTransformers, str], list[str]]


def stock_call(model: PhiTransformers, phi: str) -> list[str]:
    return model(PROMPT, ANSWER, phi=phi, num_return_sequences=N, max_new_tokens=BUDGET)


def stock_batch(model: PhiTransformers, phi: str) -> list[str]:
    rows = model.batch([PROMPT, "Answer: "] * 30, ANSWER, phi=phi, num_return_sequences=N // 30, max_new_tokens=BUDGET)
    return [text for row in rows[::2] for text in row]


def stock_generator(model: PhiTransformers, phi: str) -> list[str]:
    return outlines.Generator(model, ANSWER)(PROMPT, phi=phi, num_return_sequences=N, max_new_tokens=BUDGET)


def generator_call(model: PhiTransformers, phi: str) -> list[str]:
    generator = outlines_phi.Generator(model, ANSWER, phi=phi)
    return [generator(PROMPT, max_new_tokens=BUDGET) for _ in range(N)]


def generator_batch(model: PhiTransformers, phi: str) -> list[str]:
    generator = outlines_phi.Generator(model, ANSWER, phi=phi)
    rows = generator.batch([PROMPT, "Answer: "] * 30, num_return_sequences=N // 30, max_new_tokens=BUDGET)
    return [text for row in rows[::2] for text in row]


def generator_stream(model: PhiTransformers, phi: str) -> list[str]:
    generator = outlines_phi.Generator(model, ANSWER, phi=phi)
    return ["".join(generator.stream(PROMPT, max_new_tokens=BUDGET)) for _ in range(N)]


def asynchronous(model: PhiTransformers, phi: str) -> list[str]:
    generator = outlines_phi.Generator(model, ANSWER, phi=phi)

    async def calls() -> list[list[str]]:
        options = {"num_return_sequences": N // 12, "max_new_tokens": BUDGET}
        return await asyncio.gather(*(generator.agenerate(PROMPT, **options) for _ in range(12)))

    return [text for texts in asyncio.run(calls()) for text in texts]


def classic(model: PhiTransformers, phi: str) -> list[str]:
    return generate.choice(model, WORDS, samplers.multinomial(N), phi=phi)(PROMPT, max_tokens=BUDGET)


def installed(model: PhiTransformers, phi: str) -> list[str]:
    stock = outlines.from_transformers(*bundled.load())
    outlines_phi.install()
    try:
        return outlines.Generator(stock, ANSWER, phi=phi)(PROMPT, num_return_sequences=N, max_new_tokens=BUDGET)
    finally:
        outlines_phi.uninstall()


def custom_generate(model: PhiTransformers, phi: str) -> list[str]:
    prompt = model.hf_tokenizer(PROMPT, return_tensors="pt")
    ids = model.model.generate(
        **prompt,
        custom_generate=outlines_phi.custom_generate,
        output_type=ANSWER,
        vocabulary=model.hf_tokenizer,
        phi=phi,
        num_return_sequences=N,
        max_new_tokens=BUDGET,
    )
    return model.hf_tokenizer.batch_decode(ids[:, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


ROADS: dict[str, Draw] = {
    road.__name__: road
    for road in (
        stock_call,
        stock_batch,
        stock_generator,
        generator_call,
        generator_batch,
        generator_stream,
        asynchronous,
        classic,
        installed,
        custom_generate,
    )
}
roads = pytest.mark.parametrize("road", ROADS.values(), ids=ROADS.keys())


@pytest.fixture(scope="module")
def truth(model: PhiTransformers) -> dict[str, float]:
    """Return P(text) under mu*, by complete enumeration."""
    law = outlines_phi.Generator(model, ANSWER).probabilities(PROMPT, tolerance=0.0, max_new_tokens=BUDGET)
    return {word: law[word].p for word in WORDS}


@pytest.fixture(autouse=True)
def randomness() -> Iterator[None]:
    before = torch.get_rng_state()
    torch.manual_seed(5)
    yield
    torch.set_rng_state(before)


def p_value(texts: list[str], law: dict[str, float]) -> float:
    """Return the p-value of "the texts are draws of this law", rare texts pooled."""
    assert len(texts) == N and set(texts) <= set(law)
    found, common = Counter(texts), [word for word in law if N * law[word] >= 5]
    observed = [found[word] for word in common] + [N - sum(found[word] for word in common)]
    expected = [N * law[word] for word in common] + [N * (1 - sum(law[word] for word in common))]
    cells = [(o, e) for o, e in zip(observed, expected, strict=True) if e >= 1]
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    return float(stats.chi2.sf(statistic, len(cells) - 1))


@roads
@pytest.mark.parametrize("phi", ["exact", "auto"])
def test_every_road_has_the_law(road: Draw, phi: str, model: PhiTransformers, truth: dict[str, float]) -> None:
    assert p_value(road(model, phi), truth) > ALPHA


@roads
def test_masked_texts_fail_the_same_test(road: Draw, model: PhiTransformers, truth: dict[str, float]) -> None:
    """Power control: texts of phi="local" without their weights are draws of mu_proj."""
    assert p_value(road(model, "local"), truth) < 1e-6
