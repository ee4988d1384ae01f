"""The estimators by their names, at every door of the package."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import pytest
import torch

import outlines_phi
from benchmarks.estimators.dp_frozen import FrozenDPPhi
from outlines_phi import BigramDPPhi, PhiLogitsProcessor, PhiTransformers, UnsupportedError
from outlines_phi.lm import bundled
from outlines_phi.phi.estimator import Phi
from outlines_phi.plugin.call import resolve_phi
from outlines_phi.sampling.draw import Guarantee
from outlines_phi.settings import SamplingSettings
from outlines_phi_workbench.suite.reference import Reference, enumerate_language
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


def reference_of(model: PhiTransformers, phi: Phi, **options: Any) -> Reference:
    settings = SamplingSettings(max_new_tokens=BUDGET, **options)
    law = (model.lm, model.table(ANSWER), model._prompt_ids(PROMPT), settings, BUDGET)
    return enumerate_language(*law, estimators={phi.name: phi})  # type: ignore[dict-item]


def agree(ids: Iterable[tuple[int, ...]], log_w: Iterable[float], phi: Phi, reference: Reference) -> bool:
    """Return True if every draw is a member with the weight ``p / q`` that the enumeration has for it."""
    weights = dict(zip(ids, log_w, strict=True))
    assert set(weights) <= set(reference.log_p)
    expected = {ids: reference.log_p[ids] - reference.log_q[phi.name][ids] for ids in weights}
    return all(abs(weights[ids] - expected[ids]) < 2e-3 for ids in weights)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_the_estimator_with_its_defaults(name: str) -> None:
    assert resolve_phi(name) == NAMES[name]


@given
def test_a_generator_draws_with_weights(phi: str | Phi, meant: Phi, model: PhiTransformers) -> None:
    generator = outlines_phi.Generator(model, ANSWER, phi=phi)
    draws = generator.sample(PROMPT, n=N, seed=1, max_new_tokens=BUDGET)
    assert set(draws.texts) <= TEXTS and draws.guarantee is Guarantee.WEIGHTED
    assert agree((draw.token_ids for draw in draws), draws.log_w, meant, reference_of(model, meant))
    assert generator(PROMPT, seed=2, max_new_tokens=BUDGET) in TEXTS
    assert "".join(generator.stream(PROMPT, seed=2, max_new_tokens=BUDGET)) in TEXTS


@given
def test_rows_of_other_lengths_change_nothing(phi: str | Phi, meant: Phi, model: PhiTransformers) -> None:
    """The weights of a prompt, beside prompts that are padded or make it padded."""
    generator = outlines_phi.Generator(model, ANSWER, phi=phi)
    prompts = ["no", PROMPT, PROMPT + PROMPT]
    draws = generator.sample_batch(prompts, N, seed=4, max_new_tokens=BUDGET)[1]
    assert agree((draw.token_ids for draw in draws), draws.log_w, meant, reference_of(model, meant))


@given
def test_custom_generate_takes_it(phi: str | Phi, meant: Phi, model: PhiTransformers) -> None:
    hf_model, hf_tokenizer = bundled.load()
    result = hf_model.generate(
        **hf_tokenizer(PROMPT, return_tensors="pt"),
        custom_generate=outlines_phi.custom_generate,
        output_type=ANSWER,
        vocabulary=hf_tokenizer,
        phi=phi,
        seed=3,
        temperature=0.7,
        max_new_tokens=BUDGET,
        num_return_sequences=N,
        return_dict_in_generate=True,
    )
    draws, reference = result.draws[0], reference_of(model, meant, temperature=0.7)
    assert result.log_w.tolist() == near_log(draws.log_w.tolist())
    assert agree((draw.token_ids for draw in draws), draws.log_w, meant, reference)


@pytest.mark.parametrize("phi", ["dp", "dp-bigram", BigramDPPhi()], ids=str)
def test_a_logits_processor_has_no_model(phi: Any, model: PhiTransformers) -> None:
    with pytest.raises(UnsupportedError, match="custom_generate.* or outlines_phi.Generator.*needs the model"):
        PhiLogitsProcessor(model, ANSWER, phi=phi, max_new_tokens=BUDGET)


def test_a_logits_processor_runs_an_estimator_of_the_application(model: PhiTransformers) -> None:
    phi = FrozenDPPhi(horizon=3, states=10)
    processor = PhiLogitsProcessor(model, ANSWER, phi=phi, temperature=0.7, max_new_tokens=BUDGET)
    torch.manual_seed(0)
    inputs = model.hf_tokenizer([PROMPT], return_tensors="pt")
    options = processor.host_options | {"num_return_sequences": N}
    sequences = model.model.generate(**inputs, logits_processor=[processor], **options)
    rows = sequences[:, inputs["input_ids"].shape[1] :].tolist()
    end = model.lm.vocabulary.eos_ids[0]
    ids = [tuple(row[: row.index(end) + 1]) for row in rows]
    reference = reference_of(model, processor.phi, temperature=0.7)
    assert len(set(ids)) > 1 and agree(ids, processor.log_w(sequences), processor.phi, reference)
