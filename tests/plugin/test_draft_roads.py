"""Drafts on every road: the law is that without them, on roads to exact draws and to masked ones, and drafts are really followed.

A new road is a row of ``ROADS``. The oracle asks the Hugging Face model by itself, and looks for phrases by Python's ``in``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import outlines
import pytest
import torch
from scipy import stats

import outlines_phi
from outlines_phi import Draft, Drafter, Drafting, DraftRun, PhiTransformers, Site, generate, samplers
from outlines_phi.lm import bundled
from tests.languages import ALPHA
from tests.plugin.oracle import free_texts, p_value, without

PROMPT = "Question: is the bakery open on Sunday? Answer: "
BAN = ["it is"]
N, BUDGET, K = 420, 8, 4
LAW: dict[str, Any] = {"top_k": K, "max_new_tokens": BUDGET}


class Guesser(Drafter, Drafting):
    """Proposes the rest of a sentence that it has in mind, in the tokenizer's tokens, and counts what it has proposed."""

    name: ClassVar[str] = "guesser"

    def __init__(self, *sentences: str) -> None:
        tokenizer = bundled.load()[1]
        self.minds = [tuple(tokenizer.encode(sentence)) for sentence in sentences]
        self.proposed = 0

    def begin(self, run: DraftRun) -> Drafting:
        return self

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        drafts = []
        for site, length in zip(sites, lengths, strict=True):
            written = len(site.tokens)
            rest = next((mind[written:] for mind in self.minds if mind[:written] == site.tokens), ())
            drafts.append(Draft(rest[:length]))
            self.proposed += len(drafts[-1].tokens)
        return drafts


Draw = Callable[[PhiTransformers, str, Any], list[str]]


def stock_call(model: PhiTransformers, phi: str, draft: Any) -> list[str]:
    return model(PROMPT, banned_phrases=BAN, phi=phi, draft=draft, num_return_sequences=N, **LAW)


def stock_batch(model: PhiTransformers, phi: str, draft: Any) -> list[str]:
    options = {"num_return_sequences": N // 30, **LAW}
    rows = model.batch([PROMPT, "Answer: "] * 30, banned_phrases=BAN, phi=phi, draft=draft, **options)
    return [text for row in rows[::2] for text in row]


def stock_generator(model: PhiTransformers, phi: str, draft: Any) -> list[str]:
    options = {"num_return_sequences": N, **LAW}
    return outlines.Generator(model)(PROMPT, banned_phrases=BAN, phi=phi, draft=draft, **options)


def banned_generator(model: PhiTransformers, phi: str, draft: Any) -> list[str]:
    generator = outlines_phi.Generator(model, None, phi=phi, banned_phrases=["no such"], draft=draft)
    return outlines_phi.ban(generator, BAN)(PROMPT, num_return_sequences=N, **LAW)


def generator_call(model: PhiTransformers, phi: str, draft: Any) -> list[str]:
    generator = outlines_phi.Generator(model, None, phi=phi, banned_phrases=BAN, draft=draft, draft_length=3)
    return [generator(PROMPT, **LAW) for _ in range(N)]


def generator_batch(model: PhiTransformers, phi: str, draft: Any) -> list[str]:
    generator = outlines_phi.Generator(model, None, phi=phi, banned_phrases=BAN, draft=draft)
    rows = generator.batch([PROMPT, "Answer: "] * 30, num_return_sequences=N // 30, **LAW)
    return [text for row in rows[::2] for text in row]


def generator_sample(model: PhiTransformers, phi: str, draft: Any) -> list[str]:
    generator = outlines_phi.Generator(model, None, banned_phrases=BAN, draft="tree")
    return generator.sample(PROMPT, N, phi=phi, draft=draft, **LAW).texts


def generator_stream(model: PhiTransformers, phi: str, draft: Any) -> list[str]:
    generator = outlines_phi.Generator(model, None, phi=phi, banned_phrases=BAN, draft=draft)
    return ["".join(generator.stream(PROMPT, **LAW)) for _ in range(N)]


def asynchronous(model: PhiTransformers, phi: str, draft: Any) -> list[str]:
    generator = outlines_phi.Generator(model, None, phi=phi, banned_phrases=BAN, draft=draft)

    async def calls() -> list[list[str]]:
        return await asyncio.gather(
            *(generator.agenerate(PROMPT, num_return_sequences=N // 12, **LAW) for _ in range(12))
        )

    return [text for texts in asyncio.run(calls()) for text in texts]


def classic(model: PhiTransformers, phi: str, draft: Any) -> list[str]:
    text = generate.text(model, samplers.multinomial(N, top_k=K), phi=phi, banned_phrases=BAN, draft=draft)
    return text(PROMPT, max_tokens=BUDGET)


def installed(model: PhiTransformers, phi: str, draft: Any) -> list[str]:
    stock = outlines.from_transformers(*bundled.load())
    outlines_phi.install()
    try:
        generator = outlines.Generator(stock, phi=phi, banned_phrases=BAN, draft=draft)
        return generator(PROMPT, num_return_sequences=N, **LAW)
    finally:
        outlines_phi.uninstall()


def custom_generate(model: PhiTransformers, phi: str, draft: Any) -> list[str]:
    prompt = model.hf_tokenizer(PROMPT, return_tensors="pt")
    ids = model.model.generate(
        **prompt,
        custom_generate=outlines_phi.custom_generate,
        vocabulary=model.hf_tokenizer,
        banned_phrases=BAN,
        phi=phi,
        draft=draft,
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
        banned_generator,
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
def truth(model: PhiTransformers) -> dict[str, float]:
    """Return P(text) under mu*."""
    return without(free_texts(model, PROMPT, k=K, budget=BUDGET), BAN, PROMPT)


@pytest.fixture(autouse=True)
def randomness() -> Iterator[None]:
    before = torch.get_rng_state()
    torch.manual_seed(5)
    yield
    torch.set_rng_state(before)


@pytest.fixture
def guesser() -> Guesser:
    """Right now and then, wrong most of the time, and once banned."""
    return Guesser("no, it is closed", "yes, until noon", "nobody knows")


@roads
def test_exact_texts_have_the_law(
    road: Draw, fresh: PhiTransformers, truth: dict[str, float], guesser: Guesser
) -> None:
    drawn = road(fresh, "exact", [guesser, "prompt_lookup"])
    assert len(drawn) == N and p_value(drawn, truth) > ALPHA
    assert guesser.proposed


@roads
def test_masked_texts_fail_the_same_test(
    road: Draw, model: PhiTransformers, truth: dict[str, float], guesser: Guesser
) -> None:
    """Power control: drafts that are followed cannot make up for the bias of masking."""
    drawn = road(model, "local", guesser)
    assert p_value(drawn, truth) < 1e-6
    assert guesser.proposed


def same_law(one: list[str], other: list[str]) -> float:
    """Return the p-value of "both are draws of one law", rare texts pooled."""
    counts = Counter(one), Counter(other)
    common = [text for text, n in counts[1].most_common() if n * len(one) >= 5 * len(other)]
    table = [[found[text] for text in common] for found in counts]
    rest = [len(one) - sum(table[0]), len(other) - sum(table[1])]
    rows = [[*row, n] for row, n in zip(table, rest, strict=True)] if sum(rest) else table
    return float(stats.chi2_contingency(rows).pvalue)


@pytest.fixture(scope="module")
def undrafted(model: PhiTransformers) -> dict[str, list[str]]:
    """Return many draws without a draft, whose laws are tested elsewhere."""
    generator = outlines_phi.Generator(model, None, banned_phrases=BAN)
    return {phi: generator.sample(PROMPT, 10 * N, seed=3, phi=phi, **LAW).texts for phi in ("local", "lookahead")}


@pytest.fixture(scope="module")
def sibling() -> Any:
    """A model that is another one: its layers are noisy."""
    hf_model = bundled.load()[0]
    torch.manual_seed(0)
    with torch.no_grad():
        for weights in hf_model.model.layers.parameters():
            weights += 0.5 * weights.std() * torch.randn_like(weights)
    return hf_model


ONE_BY_ONE = (generator_call, generator_stream)
"""Roads of a call for each text, where a drafting model is read anew each time."""


@pytest.mark.parametrize("road", [road for road in ROADS.values() if road not in ONE_BY_ONE], ids=lambda r: r.__name__)
@pytest.mark.parametrize("phi", ["local", "lookahead"])
def test_sampled_drafts_change_no_law(
    road: Draw, phi: str, model: PhiTransformers, sibling: Any, undrafted: dict[str, list[str]]
) -> None:
    drawn = road(model, phi, sibling)
    assert not any(phrase in PROMPT + text for text in drawn for phrase in BAN)
    assert same_law(drawn, undrafted[phi]) > ALPHA


def test_the_sibling_and_the_two_laws_differ(
    model: PhiTransformers, sibling: Any, undrafted: dict[str, list[str]]
) -> None:
    """Power control: a road that returned what the sibling writes, or the other law, would be found out."""
    assert same_law(undrafted["local"], undrafted["lookahead"]) < 1e-6
    other = outlines_phi.from_transformers(sibling, model.hf_tokenizer)
    drawn = other(PROMPT, banned_phrases=BAN, phi="local", num_return_sequences=N, **LAW)
    assert same_law(drawn, undrafted["local"]) < 1e-6
