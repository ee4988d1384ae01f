"""Generators with their correction built in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import outlines
import pytest
from outlines.types import regex

from outlines_phi import SMC, AutoPhi, ExactPhi, Generator, LocalPhi, PhiTransformers, UnsupportedError, generate, wrap
from outlines_phi.plugin.generator import PhiGenerator
from tests.plugin.gate import Gate
from tests.plugin.loops import custom, pair, texts

PROMPT = "A person as JSON: "
COLOUR = Literal["red", "green", "dark green"]
NUMBER = regex("[0-9]{2,3}")


@pytest.fixture(scope="module")
def exact(model: PhiTransformers) -> PhiGenerator:
    return Generator(model, COLOUR, phi="exact")


def test_it_is_a_generator_of_outlines(exact: PhiGenerator, model: PhiTransformers) -> None:
    """Calls and batches are those of the model."""
    assert isinstance(exact, outlines.generator.SteerableGenerator) and exact.phi == ExactPhi()
    prompts = [PROMPT, "no", "yes"]
    for options in ({}, {"num_return_sequences": 2}, {"phi": "local"}):
        given: dict[str, Any] = {"phi": "exact", "seed": 3, **options}
        assert exact(PROMPT, seed=3, **options) == model(PROMPT, COLOUR, **given)
        assert exact.batch(prompts, seed=3, **options) == model.batch(prompts, COLOUR, **given)
    assert len(exact.sample(PROMPT, seed=2)) == 1 and exact.sample_batch([], 3) == []


def test_a_text_alone_ends_where_it_can_only_end(model: PhiTransformers) -> None:
    """The law of a forced end is read for the weights alone, by whoever returns them."""
    three_digits, options = regex("[0-9]{3}"), {"seed": 6, "max_new_tokens": 9}
    generator, hf = Generator(model, three_digits, phi="local"), pair(model)
    generated = partial(custom, hf, PROMPT, output_type=three_digits, phi="local", **options)
    generated()  # checks the model
    ways: dict[str, tuple[Callable[[], str], int]] = {
        "sample": (lambda: generator.sample(PROMPT, **options)[0].text, 4),
        "call": (lambda: generator(PROMPT, **options), 3),
        "batch": (lambda: generator.batch([PROMPT], **options)[0], 3),
        "stream": (lambda: "".join(generator.stream(PROMPT, **options)), 3),
        "tensor": (lambda: texts(hf, generated(), PROMPT)[0], 3),
        "output": (lambda: texts(hf, generated(return_dict_in_generate=True), PROMPT)[0], 4),
    }
    written = set()
    for way, (call, calls) in ways.items():
        with Gate(model.model) as gate:
            written.add(call())
        assert gate.calls == calls, way
    assert len(written) == 1 and len(written.pop()) == 3


class TestSeeds:
    PROMPTS = ("Colour: ", "A shop: ", "no")
    SEEDS = (7, 8, 7)
    WAYS: dict[str, dict[str, Any]] = {
        **{phi: {"phi": phi} for phi in ("auto", "exact", "local", "onestep", "learned", "dp-bigram")},
        "particles": {"sampler": SMC(particles=5)},
        "drafted": {"phi": "local", "draft": "forced"},
    }

    @pytest.mark.parametrize("way", WAYS)
    def test_a_prompt_of_a_batch_has_the_draws_that_it_has_alone(self, way: str, model: PhiTransformers) -> None:
        generator, keywords = Generator(model, regex("[a-z]{2,4}")), self.WAYS[way]
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


SEEDS: list[Any] = [[1, 2], [], [1, 2, -1], [1, 2, 0.5], [1, None, 2], "abc"]
REFUSED: list[tuple[Callable[[PhiGenerator], Any], str]] = [
    *((lambda g, n=n: g.sample(PROMPT, n), "a whole number of at least 1") for n in (0, -1, 1.5, "3", True)),
    (lambda g: g.sample(PROMPT, num_return_sequences=3), "its argument n, the number of draws"),
    (lambda g: g.sample(PROMPT, samples=3), r"samples cannot .* argument n of sample\(\)\)\.$"),
    *((lambda g, seed=seed: g.sample_batch(["a", "b", "c"], seed=seed), "seed") for seed in SEEDS),
    (lambda g: Generator(g.model, NUMBER, phi=None).sample(PROMPT), "phi='exact' or phi='local'"),
    (lambda g: Generator(g.model, None), "free text has nothing to correct"),
    (lambda g: Generator(g.model, COLOUR, max_new_tokens=5), "give it to the generator's call"),
    (lambda g: Generator(g.model, COLOUR, ph="exact"), "did you mean phi="),
    (lambda g: Generator(g.model, COLOUR, banned=["x"]), "give banned_phrases="),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_refused(call: Callable[[PhiGenerator], Any], words: str, exact: PhiGenerator) -> None:
    with pytest.raises(UnsupportedError, match=words):
        call(exact)


def test_a_stock_model_is_wrapped(stock: outlines.models.Transformers) -> None:
    one, other = (Generator(stock, COLOUR) for _ in range(2))
    assert one.model is other.model is not stock


def test_a_generator_takes_the_phi_of_its_model(model: PhiTransformers) -> None:
    """The value of ``phi``, which wrapping again keeps."""
    masked, colours = wrap(model, phi="local"), partial(Generator, output_type=COLOUR)
    choice = partial(generate.choice, choices=["a", "b"])
    assert colours(masked).phi == choice(masked).phi == colours(wrap(masked)).phi == LocalPhi()
    assert colours(model).phi == choice(model).phi == AutoPhi()
    assert colours(masked, phi=None).phi is wrap(masked, phi=None).phi is None
