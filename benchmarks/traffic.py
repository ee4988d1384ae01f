"""Mixed calls of one model, as an application might make them: every road, and a prompt of its own for each."""

import asyncio
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, final

import outlines
from outlines.types import regex

import outlines_phi
from benchmarks.bundled import Answer, Character, Person
from outlines_phi.lm import bundled

EXPECTED = (outlines_phi.EmptyLanguageError, outlines_phi.UnsupportedError, outlines_phi.BudgetError)
"""The errors that answer the calls that ask for too much."""


@final
class Traffic:
    """Calls by their number: the road is that of ``number % len(roads)``, the prompt is its own.

    Parameters
    ----------
    model
        The wrapped bundled model.
    """

    def __init__(self, model: outlines_phi.PhiTransformers) -> None:
        self.model = model
        self.answers = outlines_phi.Generator(model, Answer, phi="exact")
        self.people = outlines_phi.Generator(model, Person, phi="exact")
        self.stock = outlines.Generator(model, Character)
        self.foreign = outlines.Generator(outlines.from_transformers(*bundled.load()), Answer)
        self.classic = outlines_phi.generate.json(model, Character)
        self.cancelled = 0
        self.refused = 0
        self.roads: tuple[Callable[[int], Any], ...] = (
            self._exact,
            self._json,
            self._auto,
            self._weighted,
            self._host,
            self._batch,
            self._stream,
            self._given_up,
            self._stock,
            self._classic,
            self._own_type,
            self._async,
            self._cancelled,
            self._search,
            self._refused,
        )

    def call(self, number: int) -> None:
        """Make one call."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", outlines_phi.FidelityWarning)
            self.roads[number % len(self.roads)](number)

    def _exact(self, number: int) -> None:
        self.model(f"Question {number}: is the bakery open? Answer: ", Answer, phi="exact")

    def _json(self, number: int) -> None:
        self.people(f"Person: Nora {number} is a baker. JSON: ", seed=number if number % 2 else None)

    def _auto(self, number: int) -> None:
        self.people(f"Person: {number} is a baker. JSON: ", phi=outlines_phi.AutoPhi(candidates=2, share=0.1))

    def _weighted(self, number: int) -> None:
        prompt = f"Question {number}: is the museum open? Answer: "
        self.answers.sample(prompt, 4, phi="local" if number % 2 else "onestep")

    def _host(self, number: int) -> None:
        self.model(f"Question {number}: is the park open? Answer: ", Answer, phi=None, max_new_tokens=8)

    def _batch(self, number: int) -> None:
        self.answers.batch([f"Question {number}: {place}? Answer: " for place in ("bank", "shop", "pool")])

    def _stream(self, number: int) -> None:
        for phi in ("exact", "local", None):
            "".join(self.answers.stream(f"Question {number}: station? Answer: ", phi=phi, max_new_tokens=8))

    def _given_up(self, number: int) -> None:
        pieces = self.people.stream(f"Person: {number}. JSON: ", phi="local" if number % 2 else None, max_new_tokens=60)
        next(pieces)
        pieces.close()

    def _stock(self, number: int) -> None:
        """Generators of Outlines' own: one of this model, one of a stock model over the same tokenizer."""
        self.stock(f"New character: Aria {number}. JSON: ", phi="exact")
        outlines.Generator(self.model, processor=self.foreign.logits_processor)(f"Answer {number}: ", phi="exact")

    def _classic(self, number: int) -> None:
        self.classic(f"New character: Bram {number}. JSON: ")

    def _own_type(self, number: int) -> None:
        """A language that no other call has, so that what is compiled is replaced, too."""
        self.model(f"Colour {number}: ", Literal["red", f"blue {number}"], phi="exact")
        self.model(f"Number {number}: ", regex(f"{number}|[0-9]{{2}}"), phi="local")

    def _async(self, number: int) -> None:
        async def both() -> None:
            prompts = (f"Question {number}: {shop}? Answer: " for shop in ("bakery", "library"))
            await asyncio.gather(*(self.answers.agenerate(prompt) for prompt in prompts))
            async for _ in self.answers.astream(f"Question {number}: school? Answer: ", phi="local"):
                pass

        asyncio.run(both())

    def _cancelled(self, number: int) -> None:
        """A call that is cancelled at its third model call."""

        async def cancelled() -> None:
            loop = asyncio.get_running_loop()
            task = asyncio.ensure_future(self.people.agenerate(f"Person: Cleo {number}. JSON: ", phi="local"))
            calls = 0

            def count(*_: Any) -> None:
                nonlocal calls
                calls += 1
                if calls == 3:
                    loop.call_soon_threadsafe(task.cancel)

            hook = self.model.model.register_forward_pre_hook(count)
            try:
                with suppress(asyncio.CancelledError):
                    await task
            finally:
                hook.remove()
            self.cancelled += task.cancelled()

        asyncio.run(cancelled())

    def _search(self, number: int) -> None:
        self.answers.probabilities(f"Question {number}: is the bank open? Answer: ", tolerance=0)
        self.answers.mode(f"Question {number}: is the bar open? Answer: ", top=2)

    def _refused(self, number: int) -> None:
        effort = outlines_phi.Effort(attempts=1, tokens=1)
        for keywords in (
            {"max_new_tokens": 2},
            {"stop_strings": "."},
            {"phi": outlines_phi.ExactPhi(tolerance=1e-9, effort=effort)},
        ):
            try:
                self.people(f"Person: Dara {number}. JSON: ", **keywords)
            except EXPECTED:
                self.refused += 1
