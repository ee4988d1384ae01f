"""Banned phrases on every road: nothing leaks, exact draws have the law that plain enumeration says, and masked ones have not.

A new road is a row of ``ROADS``. The oracle asks the Hugging Face model by itself, and looks for phrases by Python's ``in``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import outlines
import pytest
import torch
from scipy import stats

import outlines_phi
from outlines_phi import BannedPhrases, PhiTransformers, generate, samplers
from outlines_phi.lm import bundled
from tests.languages import ALPHA
from tests.plugin.oracle import free_texts, p_value, without

PROMPT = "Question: is the bakery open on Sunday? Answer: "
BAN = ["it is"]
"""After "no, " the model nearly always writes "it is closed", and seldom "not this year"."""
N, BUDGET, K = 420, 8, 4
LAW: dict[str, Any] = {"top_k": K, "max_new_tokens": BUDGET}

Draw = Callable[[PhiTransformers, str], list[str]]


def stock_call(model: PhiTransformers, phi: str) -> list[str]:
    return model(PROMPT, banned_phrases=BAN, phi=phi, num_return_sequences=N, **LAW)


def stock_batch(model: PhiTransformers, phi: str) -> list[str]:
    options = {"num_return_sequences": N // 30, **LAW}
    rows = model.batch([PROMPT, "Answer: "] * 30, banned_phrases=BAN, phi=phi, **options)
    return [text for row in rows[::2] for text in row]


def stock_generator(model: PhiTransformers, phi: str) -> list[str]:
    return outlines.Generator(model)(PROMPT, banned_phrases=BAN, phi=phi, num_return_sequences=N, **LAW)


def banned_stock_generator(model: PhiTransformers, phi: str) -> list[str]:
    return outlines_phi.ban(outlines.Generator(model), BAN)(PROMPT, phi=phi, num_return_sequences=N, **LAW)


def wrapped(model: PhiTransformers, phi: str) -> list[str]:
    banning = outlines_phi.wrap(model, phi=phi, banned_phrases=BAN)
    return banning(PROMPT, num_return_sequences=N, **LAW)


def banned_model(model: PhiTransformers, phi: str) -> list[str]:
    stock = outlines.from_transformers(model.model, model.hf_tokenizer)
    return outlines_phi.ban(stock, BAN)(PROMPT, phi=phi, num_return_sequences=N, **LAW)


def levelled(model: PhiTransformers, phi: str) -> list[str]:
    ban = BannedPhrases(BAN, level={"exact": "exact", "local": "mask"}[phi])
    return model(PROMPT, banned_phrases=ban, num_return_sequences=N, **LAW)


def generator_call(model: PhiTransformers, phi: str) -> list[str]:
    generator = outlines_phi.Generator(model, None, phi=phi, banned_phrases=BAN)
    return [generator(PROMPT, **LAW) for _ in range(N)]


def generator_batch(model: PhiTransformers, phi: str) -> list[str]:
    generator = outlines_phi.Generator(model, None, phi=phi, banned_phrases=BAN)
    rows = generator.batch([PROMPT, "Answer: "] * 30, num_return_sequences=N // 30, **LAW)
    return [text for row in rows[::2] for text in row]


def generator_sample(model: PhiTransformers, phi: str) -> list[str]:
    generator = outlines_phi.Generator(model, None, banned_phrases=["nothing else"])
    return generator.sample(PROMPT, N, phi=phi, banned_phrases=BAN, **LAW).texts


def generator_stream(model: PhiTransformers, phi: str) -> list[str]:
    generator = outlines_phi.Generator(model, None, phi=phi, banned_phrases=BAN)
    return ["".join(generator.stream(PROMPT, **LAW)) for _ in range(N)]


def asynchronous(model: PhiTransformers, phi: str) -> list[str]:
    generator = outlines_phi.Generator(model, None, phi=phi, banned_phrases=BAN)

    async def calls() -> list[list[str]]:
        return await asyncio.gather(
            *(generator.agenerate(PROMPT, num_return_sequences=N // 12, **LAW) for _ in range(12))
        )

    return [text for texts in asyncio.run(calls()) for text in texts]


def classic(model: PhiTransformers, phi: str) -> list[str]:
    text = generate.text(model, samplers.multinomial(N, top_k=K), phi=phi, banned_phrases=BAN)
    return text(PROMPT, max_tokens=BUDGET)


def installed(model: PhiTransformers, phi: str) -> list[str]:
    stock = outlines.from_transformers(*bundled.load())
    outlines_phi.install()
    try:
        return outlines.Generator(stock, phi=phi, banned_phrases=BAN)(PROMPT, num_return_sequences=N, **LAW)
    finally:
        outlines_phi.uninstall()


def custom_generate(model: PhiTransformers, phi: str) -> list[str]:
    prompt = model.hf_tokenizer(PROMPT, return_tensors="pt")
    ids = model.model.generate(
        **prompt,
        custom_generate=outlines_phi.custom_generate,
        vocabulary=model.hf_tokenizer,
        banned_phrases=BAN,
        phi=phi,
        num_return_sequences=N,
        **LAW,
    )
    return model.hf_tokenizer.batch_decode(ids[:, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


ROADS: dict[str, Draw] = {
    road.__name__: road
    for road in (
        stock_call,
        stock_batch,
        stock_generator,
        banned_stock_generator,
        wrapped,
        banned_model,
        levelled,
        generator_call,
        generator_batch,
        generator_sample,
        generator_stream,
        asynchronous,
        classic,
        installed,
        custom_generate,
    )
}
roads = pytest.mark.parametrize("road", ROADS.values(), ids=ROADS.keys())


@pytest.fixture(scope="module")
def texts(model: PhiTransformers) -> dict[str, float]:
    """Return P(text) under the model's own law."""
    return free_texts(model, PROMPT, k=K, budget=BUDGET)


@pytest.fixture(scope="module")
def truth(texts: dict[str, float]) -> dict[str, float]:
    """Return P(text) under mu*."""
    law = without(texts, BAN, PROMPT)
    assert 0.1 < sum(p for text, p in texts.items() if text not in law) < 0.9
    return law


@pytest.fixture(autouse=True)
def randomness() -> Iterator[None]:
    before = torch.get_rng_state()
    torch.manual_seed(5)
    yield
    torch.set_rng_state(before)


@roads
def test_exact_texts_have_the_law(road: Draw, model: PhiTransformers, truth: dict[str, float]) -> None:
    drawn = road(model, "exact")
    assert len(drawn) == N and p_value(drawn, truth) > ALPHA


@roads
def test_masked_texts_fail_the_same_test(road: Draw, model: PhiTransformers, truth: dict[str, float]) -> None:
    """Power control: they hold no phrase either, but are bent away at its last token."""
    drawn = road(model, "local")
    assert not any(phrase in PROMPT + text for text in drawn for phrase in BAN)
    assert p_value(drawn, truth) < 1e-6


def test_unbanned_texts_hold_the_phrase(model: PhiTransformers, texts: dict[str, float]) -> None:
    drawn = model(PROMPT, banned_phrases=None, do_sample=True, num_return_sequences=N, **LAW)
    assert p_value(drawn, texts) > ALPHA and any(BAN[0] in text for text in drawn)


def same_law(one: list[str], other: list[str]) -> float:
    """Return the p-value of "both are draws of one law", rare texts pooled."""
    counts = Counter(one), Counter(other)
    common = [text for text, n in counts[1].most_common() if n * len(one) >= 5 * len(other)]
    table = [[found[text] for text in common] for found in counts]
    rest = [len(one) - sum(table[0]), len(other) - sum(table[1])]
    rows = [[*row, n] for row, n in zip(table, rest, strict=True)] if sum(rest) else table
    return float(stats.chi2_contingency(rows).pvalue)


@pytest.fixture(scope="module")
def ahead(model: PhiTransformers) -> list[str]:
    """Return many draws of a look-ahead, whose law is tested with its sampler."""
    generator = outlines_phi.Generator(model, None, banned_phrases=BAN)
    return generator.sample(PROMPT, 10 * N, seed=3, **LAW).texts


@pytest.mark.parametrize("road", [road for name, road in ROADS.items() if name != "levelled"], ids=lambda r: r.__name__)
def test_a_look_ahead_is_the_same_on_every_road(road: Draw, model: PhiTransformers, ahead: list[str]) -> None:
    drawn = road(model, "lookahead")
    assert not any(phrase in PROMPT + text for text in drawn for phrase in BAN)
    assert same_law(drawn, ahead) > ALPHA


def test_masked_texts_and_exact_ones_have_other_laws(model: PhiTransformers, ahead: list[str]) -> None:
    for phi in ("local", "exact"):
        drawn = model(PROMPT, banned_phrases=BAN, phi=phi, num_return_sequences=5 * N, **LAW)
        assert same_law(drawn, ahead) < 1e-6, phi


def test_weighted_draws_have_the_law_in_expectation(
    model: PhiTransformers, texts: dict[str, float], truth: dict[str, float]
) -> None:
    ban = BannedPhrases(BAN, level="weighted")
    draws = outlines_phi.Generator(model, None, banned_phrases=ban).sample(PROMPT, 4 * N, seed=1, **LAW)
    w = np.exp(draws.log_w)
    allowed = sum(p for text, p in texts.items() if text in truth)
    assert abs(w.mean() - allowed) < 4 * w.std() / np.sqrt(len(w))
    for text in [text for text, p in truth.items() if p > 0.05]:
        numbers = w * np.array([drawn == text for drawn in draws.texts]) - w * truth[text]
        assert abs(numbers.mean()) < 4 * numbers.std() / np.sqrt(len(w)), text


@pytest.mark.parametrize("phi", ["exact", "auto"])
def test_an_output_type_without_a_phrase(phi: str, model: PhiTransformers) -> None:
    answer = Literal["yes", "not now", "nobody", "no"]
    law = outlines_phi.Generator(model, answer).probabilities(PROMPT, tolerance=0.0, max_new_tokens=12)
    kept = {word: law[word].p for word in ("yes", "not now", "nobody", "no") if "now" not in word}
    truth = {word: p / sum(kept.values()) for word, p in kept.items()}
    for road in (
        lambda: model(PROMPT, answer, banned_phrases=["now"], phi=phi, num_return_sequences=N),
        lambda: outlines_phi.Generator(model, answer, banned_phrases=["now"], phi=phi).sample(PROMPT, N).texts,
        lambda: generate.format(model, answer, samplers.multinomial(N), phi=phi, banned_phrases=["now"])(PROMPT),
    ):
        assert p_value(road(), truth) > ALPHA
    assert p_value(model(PROMPT, answer, phi=phi, num_return_sequences=N), truth) < 1e-6


HALF = "Question: is the bakery open on Sunday? Answer: no, it"


@pytest.fixture(scope="module")
def half(model: PhiTransformers) -> dict[str, float]:
    """Return P(text) after a prompt that ends inside the phrase."""
    return free_texts(model, HALF, k=K, budget=BUDGET)


class TestPrompts:
    def test_a_phrase_may_begin_in_one_prompt_of_a_batch(
        self, half: dict[str, float], truth: dict[str, float], model: PhiTransformers
    ) -> None:
        straddling = without(half, BAN, HALF)
        assert sum(p for text, p in half.items() if text not in straddling) > 0.5
        options: dict[str, Any] = {"banned_phrases": BAN, "phi": "exact", "num_return_sequences": N, **LAW}
        whole, drawn = model.batch([PROMPT, HALF], **options)
        assert p_value(whole, truth) > ALPHA and p_value(drawn, straddling) > ALPHA

    def test_or_it_does_not_count(self, half: dict[str, float], model: PhiTransformers) -> None:
        ban = BannedPhrases(BAN, across_prompt=False)
        drawn = model(HALF, banned_phrases=ban, phi="exact", num_return_sequences=N, **LAW)
        assert any(text.startswith(" is") for text in drawn)
        assert p_value(drawn, without(half, BAN, "")) > ALPHA

    @pytest.mark.parametrize("phi", ["lookahead", "local", None])
    def test_other_corrections_do_not_leak_there(self, phi: str | None, model: PhiTransformers) -> None:
        options: dict[str, Any] = {"do_sample": True, "num_return_sequences": 50, **LAW}
        rows = model.batch([PROMPT, HALF], banned_phrases=BAN, phi=phi, **options)
        for prompt, drawn in zip([PROMPT, HALF], rows, strict=True):
            assert not any(BAN[0] in prompt + text for text in drawn)
