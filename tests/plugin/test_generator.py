"""Generators with their correction built in."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import outlines
import pytest
import torch
from outlines.types import regex

import outlines_phi
from outlines_phi import AutoPhi, ExactPhi, Guarantee, LocalPhi, PhiTransformers
from outlines_phi.errors import UnsupportedError
from outlines_phi.plugin.generator import PhiGenerator

PROMPT = "A person as JSON: "
COLOUR = Literal["red", "green", "dark green"]
NUMBER = regex("[0-9]{2,3}")


@pytest.fixture(scope="module")
def exact(model: PhiTransformers) -> PhiGenerator:
    return outlines_phi.Generator(model, COLOUR, phi="exact")


def test_it_is_a_generator_of_outlines(exact: PhiGenerator) -> None:
    assert isinstance(exact, outlines.generator.SteerableGenerator)
    assert exact.phi == ExactPhi()
    assert outlines_phi.Generator(exact.model, COLOUR).phi == AutoPhi()


def test_calls_and_batches_are_those_of_the_model(exact: PhiGenerator, model: PhiTransformers) -> None:
    prompts = [PROMPT, "no", "yes"]
    assert exact(PROMPT, seed=3) == model(PROMPT, COLOUR, phi="exact", seed=3)
    assert exact.batch(prompts, seed=3) == model.batch(prompts, COLOUR, phi="exact", seed=3)
    several = exact(PROMPT, seed=3, num_return_sequences=2)
    assert several == model(PROMPT, COLOUR, phi="exact", seed=3, num_return_sequences=2)
    assert exact(PROMPT, phi="local", seed=3) == model(PROMPT, COLOUR, phi="local", seed=3)


def test_without_phi_it_is_stock_outlines(model: PhiTransformers, stock: outlines.models.Transformers) -> None:
    generator = outlines_phi.Generator(model, NUMBER, phi=None)
    torch.manual_seed(8)
    text = generator(PROMPT, max_new_tokens=9)
    torch.manual_seed(8)
    assert text == stock(PROMPT, NUMBER, max_new_tokens=9)


def test_a_text_alone_ends_where_it_can_only_end(model: PhiTransformers) -> None:
    """The law of a forced end is read for the weights alone, by whoever returns them."""
    three_digits = regex("[0-9]{3}")
    generator = outlines_phi.Generator(model, three_digits, phi="local")
    calls = Counter[str]()
    texts = dict[str, str]()

    def count(name: str, call: Callable[[], str]) -> None:
        hook = model.model.register_forward_hook(lambda *_: calls.update([name]))
        texts[name] = call()
        hook.remove()

    inputs = model.hf_tokenizer(PROMPT, return_tensors="pt")

    def generated(**options: Any) -> str:
        output = model.model.generate(
            **inputs,
            custom_generate=outlines_phi.custom_generate,
            vocabulary=model.hf_tokenizer,
            output_type=three_digits,
            phi="local",
            seed=6,
            max_new_tokens=9,
            **options,
        )
        ids = output if isinstance(output, torch.Tensor) else output.sequences
        return model.hf_tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    generated()  # checks the model
    count("sample", lambda: generator.sample(PROMPT, seed=6, max_new_tokens=9)[0].text)
    count("call", lambda: generator(PROMPT, seed=6, max_new_tokens=9))
    count("batch", lambda: generator.batch([PROMPT], seed=6, max_new_tokens=9)[0])
    count("stream", lambda: "".join(generator.stream(PROMPT, seed=6, max_new_tokens=9)))
    count("tensor", generated)
    count("output", lambda: generated(return_dict_in_generate=True))
    assert len(set(texts.values())) == 1 and len(texts["call"]) == 3
    assert calls == {"sample": 4, "call": 3, "batch": 3, "stream": 3, "tensor": 3, "output": 4}


class TestSample:
    def test_draws_are_those_of_a_call(self, exact: PhiGenerator) -> None:
        draws = exact.sample(PROMPT, 5, seed=2)
        assert draws.texts == exact(PROMPT, num_return_sequences=5, seed=2)
        assert draws.guarantee == Guarantee.EXACT
        assert (draws.counts.accepted, len(draws), draws.failures) == (5, 5, 0)
        assert set(draws.texts) <= {"red", "green", "dark green"}

    def test_one_is_a_sequence_of_one(self, exact: PhiGenerator) -> None:
        assert len(exact.sample(PROMPT, seed=2)) == 1

    def test_a_batch_has_one_result_for_each_prompt(self, exact: PhiGenerator) -> None:
        results = exact.sample_batch([PROMPT, "no"], 3, phi="onestep", seed=2)
        assert [(len(draws), draws.guarantee) for draws in results] == [(3, Guarantee.WEIGHTED)] * 2
        assert exact.sample_batch([], 3) == []

    def test_an_enumerated_tree_knows_phi(self, model: PhiTransformers) -> None:
        certified = outlines_phi.Generator(model, COLOUR, phi=ExactPhi(tolerance=1e-6)).sample(PROMPT, 3)
        lower, upper = certified.log_z_bounds
        assert lower <= upper <= lower + 2e-6 and math.isfinite(lower)
        assert certified.guarantee == Guarantee.CERTIFIED
        # Weighted draws of plain masking estimate the same number.
        weighted = outlines_phi.Generator(model, COLOUR, phi="local").sample(PROMPT, 2_000, seed=1)
        w = np.exp(weighted.log_w - lower)
        assert abs(w.mean() - 1) < 5 * w.std() / math.sqrt(len(w)) + 1e-5

    def test_the_law_follows_the_settings(self, model: PhiTransformers) -> None:
        generator = outlines_phi.Generator(model, COLOUR, phi=ExactPhi(tolerance=1e-6))
        z = {t: generator.sample(PROMPT, temperature=t).log_z for t in (0.5, 1.0, 2.0)}
        assert len({round(value, 3) for value in z.values()}) == 3
        draws = generator.sample(PROMPT, max_new_tokens=200)
        assert draws.budget == 200

    @pytest.mark.parametrize("n", [0, -1, 1.5, "3", True])
    def test_n_is_a_count(self, n: object, exact: PhiGenerator) -> None:
        with pytest.raises(UnsupportedError, match="expected a whole number of at least 1"):
            exact.sample(PROMPT, n)  # type: ignore[arg-type]

    def test_n_is_not_a_keyword_of_calls(self, exact: PhiGenerator) -> None:
        with pytest.raises(UnsupportedError, match="its argument n, the number of draws"):
            exact.sample(PROMPT, num_return_sequences=3)

    def test_an_unknown_keyword(self, exact: PhiGenerator) -> None:
        with pytest.raises(UnsupportedError, match=r"samples cannot .* argument n of sample\(\)\)\.$"):
            exact.sample(PROMPT, samples=3)

    def test_it_needs_an_estimator(self, model: PhiTransformers) -> None:
        generator = outlines_phi.Generator(model, COLOUR, phi=None)
        with pytest.raises(UnsupportedError, match="phi='exact' or phi='local'"):
            generator.sample(PROMPT)
        assert len(generator.sample(PROMPT, 2, phi="exact")) == 2


class TestSeeds:
    PROMPTS = ("Colour: ", "A shop: ", "no")
    SEEDS = (7, 8, 7)
    WAYS: dict[str, dict[str, Any]] = {
        **{phi: {"phi": phi} for phi in ("auto", "exact", "local", "onestep", "learned", "dp-bigram")},
        "particles": {"sampler": outlines_phi.SMC(particles=5)},
        "drafted": {"phi": "local", "draft": "forced"},
    }

    @pytest.mark.parametrize("way", WAYS)
    def test_a_prompt_of_a_batch_has_the_draws_that_it_has_alone(self, way: str, model: PhiTransformers) -> None:
        generator, keywords = outlines_phi.Generator(model, regex("[a-z]{2,4}")), self.WAYS[way]
        alone = [
            generator.sample(prompt, 6, seed=seed, **keywords).texts
            for prompt, seed in zip(self.PROMPTS, self.SEEDS, strict=True)
        ]

        def together(seed: object) -> list[list[str]]:
            return [draws.texts for draws in generator.sample_batch(list(self.PROMPTS), 6, seed=seed, **keywords)]

        assert together(list(self.SEEDS)) == together(self.SEEDS) == alone
        assert together(7)[1:] != alone[1:] and together([7, 9, 7])[1] != alone[1]

    def test_calls_take_them_too(self, exact: PhiGenerator) -> None:
        expected = [exact(prompt, seed=seed) for prompt, seed in zip(self.PROMPTS, self.SEEDS, strict=True)]
        assert exact.batch(list(self.PROMPTS), seed=self.SEEDS) == expected
        assert exact(PROMPT, seed=[3]) == exact(PROMPT, seed=3)

    @pytest.mark.parametrize("seed", [[1, 2], [], [1, 2, -1], [1, 2, 0.5], [1, None, 2], "abc"])
    def test_others_are_refused(self, seed: Any, exact: PhiGenerator) -> None:
        with pytest.raises(UnsupportedError, match="seed"):
            exact.sample_batch(list(self.PROMPTS), seed=seed)


class TestRefused:
    def test_a_stock_model_is_wrapped(self, stock: outlines.models.Transformers) -> None:
        one, other = (outlines_phi.Generator(stock, COLOUR) for _ in range(2))
        assert one.model is other.model is not stock

    def test_no_output_type(self, model: PhiTransformers) -> None:
        with pytest.raises(UnsupportedError, match="free text has nothing to correct"):
            outlines_phi.Generator(model, None)

    @pytest.mark.parametrize(
        ("keywords", "words"),
        [
            ({"max_new_tokens": 5}, "give it to the generator's call"),
            ({"ph": "exact"}, "did you mean phi="),
            ({"banned": ["x"]}, "give banned_phrases="),
        ],
    )
    def test_unknown_keywords(self, model: PhiTransformers, keywords: dict, words: str) -> None:
        with pytest.raises(UnsupportedError, match=words):
            outlines_phi.Generator(model, COLOUR, **keywords)


class TestDefaults:
    def test_a_generator_takes_the_phi_of_its_model(self, model: PhiTransformers) -> None:
        masked = outlines_phi.wrap(model, phi="local")
        assert outlines_phi.Generator(masked, COLOUR).phi == LocalPhi()
        assert outlines_phi.generate.choice(masked, ["a", "b"]).phi == LocalPhi()
        assert outlines_phi.Generator(masked, COLOUR, phi=None).phi is None
        assert outlines_phi.generate.choice(model, ["a", "b"]).phi == AutoPhi()

    def test_wrapping_again_keeps_it(self, model: PhiTransformers) -> None:
        once = outlines_phi.wrap(model, phi="exact")
        assert outlines_phi.wrap(once).phi == ExactPhi()
        assert outlines_phi.wrap(once, phi=None).phi is None


def test_draws_are_shown_in_a_line(exact: PhiGenerator) -> None:
    draws = exact.sample(PROMPT, 50, seed=1)
    assert repr(draws).startswith("<50 draws, EXACT: ess 50, log Phi") and "model calls" in repr(draws)
