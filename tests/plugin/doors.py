"""Every door by which an application asks for texts, and what is asked of it.

A new door is a row of ``DOORS``, or of ``BANNING`` where it is one for banned phrases alone, and comes into every test of doors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import outlines
import pytest

import outlines_phi
from outlines_phi import BannedPhrases, PhiTransformers, generate, samplers
from outlines_phi.lm import bundled
from tests.plugin.instruments import custom, pair, texts


@dataclass(frozen=True)
class Wanted:
    """``n`` texts after a prompt: free ones, or one of ``words``, by at most ``budget`` tokens of the ``top_k`` likeliest."""

    prompt: str
    n: int
    budget: int
    words: tuple[str, ...] = ()
    top_k: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """The keywords of a draw that every door has: ``phi``, ``banned_phrases``, ``draft`` ..."""

    def by(self, **options: Any) -> Wanted:
        """Return the same texts, drawn with these options too."""
        return replace(self, options=self.options | options)

    @property
    def output_type(self) -> Any:
        return Literal[self.words] if self.words else None

    @property
    def limits(self) -> dict[str, Any]:
        return {"max_new_tokens": self.budget} | ({} if self.top_k is None else {"top_k": self.top_k})

    @property
    def many(self) -> dict[str, Any]:
        """The limits and the number of texts, as a call has them."""
        return {"num_return_sequences": self.n, **self.limits}

    @property
    def prompts(self) -> list[str]:
        """A batch whose every other prompt is the one that is asked for."""
        return [self.prompt, "Answer: "] * 30

    @property
    def part(self) -> dict[str, Any]:
        """As ``many``, for a batch of ``prompts``."""
        return {"num_return_sequences": self.n // 30, **self.limits}

    @property
    def unbanned(self) -> tuple[list[str], dict[str, Any]]:
        """The phrases, and the other options."""
        return self.options["banned_phrases"], {k: v for k, v in self.options.items() if k != "banned_phrases"}

    def generator(self, model: PhiTransformers) -> outlines_phi.Generator:
        return outlines_phi.Generator(model, self.output_type, **self.options)


BAN = ["it is"]
"""After "no, " the model nearly always writes "it is closed", and seldom "not this year"."""

SUNDAY = Wanted(
    "Question: is the bakery open on Sunday? Answer: ", n=240, budget=8, top_k=4, options={"banned_phrases": BAN}
)
"""Free text without the phrase."""

Door = Callable[[PhiTransformers, Wanted], list[str]]


def every_other(rows: Sequence[Sequence[str]]) -> list[str]:
    return [text for row in rows[::2] for text in row]


def stock_call(model: PhiTransformers, wanted: Wanted) -> list[str]:
    return model(wanted.prompt, wanted.output_type, **wanted.many, **wanted.options)


def stock_batch(model: PhiTransformers, wanted: Wanted) -> list[str]:
    return every_other(model.batch(wanted.prompts, wanted.output_type, **wanted.part, **wanted.options))


def stock_generator(model: PhiTransformers, wanted: Wanted) -> list[str]:
    return outlines.Generator(model, wanted.output_type)(wanted.prompt, **wanted.many, **wanted.options)


def wrapped(model: PhiTransformers, wanted: Wanted) -> list[str]:
    """Defaults of the model, and what only a call knows."""
    own = {name: value for name, value in wanted.options.items() if name in ("phi", "banned_phrases")}
    rest = {name: value for name, value in wanted.options.items() if name not in own}
    return outlines_phi.wrap(model, **own)(wanted.prompt, wanted.output_type, **wanted.many, **rest)


def generator_call(model: PhiTransformers, wanted: Wanted) -> list[str]:
    generator = wanted.generator(model)
    return [generator(wanted.prompt, **wanted.limits) for _ in range(wanted.n)]


def generator_batch(model: PhiTransformers, wanted: Wanted) -> list[str]:
    return every_other(wanted.generator(model).batch(wanted.prompts, **wanted.part))


def generator_sample(model: PhiTransformers, wanted: Wanted) -> list[str]:
    """Options of the call in place of the generator's."""
    replaced = {"banned_phrases": ["nothing else"], "draft": "tree"}
    own = {option: other for option, other in replaced.items() if option in wanted.options}
    generator = outlines_phi.Generator(model, wanted.output_type, **own)
    return generator.sample(wanted.prompt, wanted.n, **wanted.limits, **wanted.options).texts


def generator_stream(model: PhiTransformers, wanted: Wanted) -> list[str]:
    generator = wanted.generator(model)
    return ["".join(generator.stream(wanted.prompt, **wanted.limits)) for _ in range(wanted.n)]


def asynchronous(model: PhiTransformers, wanted: Wanted) -> list[str]:
    generator = wanted.generator(model)
    options = {"num_return_sequences": wanted.n // 12, **wanted.limits}

    async def calls() -> list[list[str]]:
        return await asyncio.gather(*(generator.agenerate(wanted.prompt, **options) for _ in range(12)))

    return [text for texts in asyncio.run(calls()) for text in texts]


def classic(model: PhiTransformers, wanted: Wanted) -> list[str]:
    sampler = samplers.multinomial(wanted.n, top_k=wanted.top_k)
    door, words = (generate.choice, [list(wanted.words)]) if wanted.words else (generate.text, [])
    return door(model, *words, sampler, **wanted.options)(wanted.prompt, max_tokens=wanted.budget)


def installed(model: PhiTransformers, wanted: Wanted) -> list[str]:
    stock = outlines.from_transformers(*bundled.load())
    outlines_phi.install()
    try:
        return outlines.Generator(stock, wanted.output_type, **wanted.options)(wanted.prompt, **wanted.many)
    finally:
        outlines_phi.uninstall()


def custom_generate(model: PhiTransformers, wanted: Wanted) -> list[str]:
    hf, options = pair(model), {"output_type": wanted.output_type, **wanted.many, **wanted.options}
    return texts(hf, custom(hf, wanted.prompt, **options), wanted.prompt)


def banned_stock_generator(model: PhiTransformers, wanted: Wanted) -> list[str]:
    phrases, options = wanted.unbanned
    generator = outlines_phi.ban(outlines.Generator(model, wanted.output_type), phrases)
    return generator(wanted.prompt, **wanted.many, **options)


def banned_generator(model: PhiTransformers, wanted: Wanted) -> list[str]:
    """Beside a ban of its own."""
    phrases, options = wanted.unbanned
    generator = outlines_phi.Generator(model, wanted.output_type, banned_phrases=["no such"], **options)
    return outlines_phi.ban(generator, phrases)(wanted.prompt, **wanted.many)


def banned_model(model: PhiTransformers, wanted: Wanted) -> list[str]:
    phrases, options = wanted.unbanned
    banning = outlines_phi.ban(outlines.from_transformers(model.model, model.hf_tokenizer), phrases)
    return banning(wanted.prompt, wanted.output_type, **wanted.many, **options)


def levelled(model: PhiTransformers, wanted: Wanted) -> list[str]:
    """The correction is an option of the phrases."""
    phrases, options = wanted.unbanned
    ban = BannedPhrases(phrases, level={"local": "mask"}.get(phi := options.pop("phi"), phi))
    return model(wanted.prompt, wanted.output_type, banned_phrases=ban, **wanted.many, **options)


DOORS = (
    stock_call,
    stock_batch,
    stock_generator,
    wrapped,
    generator_call,
    generator_batch,
    generator_sample,
    generator_stream,
    asynchronous,
    classic,
    installed,
    custom_generate,
)
BANNING = (banned_stock_generator, banned_generator, banned_model, levelled)
ONE_BY_ONE = (generator_call, generator_stream)
"""Doors with a call for each text."""


def fewer(wanted: Wanted, door: Door) -> Wanted:
    """Return the request to a door with a call for each text, if a call is dear: a third of the texts."""
    return replace(wanted, n=wanted.n // 3) if door in ONE_BY_ONE else wanted


def through(*doors: Door) -> pytest.MarkDecorator:
    """Return the mark of a test that is run for each of these doors."""
    return pytest.mark.parametrize("door", doors, ids=lambda door: door.__name__)
