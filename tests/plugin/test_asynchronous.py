"""Asynchronous calls: the same results, a free event loop, and nothing left of a cancelled one."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import pytest
import torch
from outlines.types import regex

from outlines_phi import Generator, PhiTransformers, UnsupportedError
from outlines_phi.plugin.generator import PhiGenerator
from tests.plugin.gate import Gate, is_free, together, trees, workers
from tests.plugin.loops import seeded

PROMPT = "Story: Aria is a brave elf ranger. "
ACCENTS = Literal["né 😀 yes", "né", "日本 no", "plain text"]
CODE = regex("[a-z]{3,5}-é😀[0-9]{2}")
LONG = regex("[a-z ]{40,60}")


@pytest.fixture(autouse=True)
def nothing_is_left(model: PhiTransformers) -> Iterator[None]:
    before = workers()
    yield
    assert workers() == before and is_free(model)


@pytest.fixture(scope="module")
def accents(model: PhiTransformers) -> PhiGenerator:
    return Generator(model, ACCENTS)


async def reached(gate: Gate) -> None:
    """Wait, without blocking the loop, until a call is held up at the gate."""
    while not gate.reached.is_set():
        await asyncio.sleep(0.001)


class TestResults:
    @pytest.mark.parametrize("output_type", [CODE, None], ids=["regex", "free text"])
    async def test_are_those_of_the_hosts_own_loop(self, output_type: Any, model: PhiTransformers) -> None:
        options, beams = {"max_new_tokens": 30}, {"num_beams": 2, "do_sample": False}
        text = seeded(model, PROMPT, output_type, **options)
        torch.manual_seed(5)
        assert await model.agenerate(PROMPT, output_type, **options) == text
        torch.manual_seed(5)
        assert "".join(await read(model.astream(PROMPT, output_type, **options))) == text
        batch = await model.abatch([PROMPT, "no"], output_type, **beams, **options)
        assert batch == model.batch([PROMPT, "no"], output_type, **beams, **options)

    def test_of_concurrent_calls_in_two_event_loops(self, accents: PhiGenerator, model: PhiTransformers) -> None:
        code, seeds = Generator(model, CODE, phi="local"), range(6)

        async def main() -> list[Any]:
            texts = asyncio.gather(*(accents.agenerate(PROMPT, seed=seed) for seed in seeds))
            pieces = asyncio.gather(*(read(code.astream(PROMPT, seed=seed)) for seed in seeds))
            draws = asyncio.gather(*(accents.asample("no", 2, seed=seed) for seed in seeds))
            return [await texts, ["".join(each) for each in await pieces], await draws]

        expected = [[accents(PROMPT, seed=seed) for seed in seeds], [code(PROMPT, seed=seed) for seed in seeds]]
        expected += [[accents.sample("no", 2, seed=seed) for seed in seeds]]
        assert together(*[lambda: asyncio.run(main())] * 2) == [expected] * 2

    def test_trees_are_shared_with_ordinary_calls(self, fresh: PhiTransformers) -> None:
        generator = Generator(fresh, Literal["yes", "no"])
        with Gate(fresh.model) as gate:
            asyncio.run(generator.asample(PROMPT, 3))
            calls = gate.calls
            assert calls > 0
            generator.sample(PROMPT, 3)
            asyncio.run(generator.asample(PROMPT, 3))
            # Two more, of the prompt alone, as a hook may have changed the law.
            assert (gate.calls, len(trees(fresh))) == (calls + 2, 1)


class TestTheEventLoop:
    @pytest.mark.parametrize("phi", ["exact", "local", None])
    async def test_is_free_while_the_model_works(self, phi: str | None, model: PhiTransformers) -> None:
        options = {} if phi else {"max_new_tokens": 30}
        with Gate(model.model, closed_from=1) as gate:
            stream = model.astream(PROMPT, ACCENTS, phi=phi, **options)
            asked = model.agenerate(PROMPT, ACCENTS, phi=phi, **options), stream.__anext__()
            calls = [asyncio.ensure_future(each) for each in asked]
            await reached(gate)
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert not any(call.done() for call in calls)
            gate.open()  # nobody could, were the loop blocked
            assert all(await asyncio.gather(*calls))
            await stream.aclose()

    async def test_streams_share_the_model_piece_by_piece(self, model: PhiTransformers) -> None:
        order: list[int] = []

        async def read(number: int) -> None:
            async for _ in model.astream(PROMPT, LONG, phi="local", seed=number):
                order.append(number)

        await asyncio.gather(read(1), read(2))

        both = order[: order.index(1) + 20]
        assert 5 < both.count(1) < len(both) - 5


CALLS: dict[str, Callable[[PhiTransformers], Any]] = {
    "exact": lambda model: Generator(model, LONG).asample(PROMPT, 3),
    "auto": lambda model: Generator(model, LONG, phi="auto").asample(PROMPT, 3),
    "exact, seeded": lambda model: model.agenerate(PROMPT, LONG, phi="exact", seed=1),
    "weighted": lambda model: model.agenerate(PROMPT, LONG, phi="local", num_return_sequences=3),
    "batch": lambda model: model.abatch([PROMPT, "no"], LONG, phi="exact"),
    "host": lambda model: model.agenerate(PROMPT, LONG, max_new_tokens=200),
    "host, beams": lambda model: model.agenerate(PROMPT, LONG, max_new_tokens=200, num_beams=2),
    "host, batch": lambda model: model.abatch([PROMPT, "no"], LONG, max_new_tokens=200),
    "host, free text": lambda model: model.agenerate(PROMPT, max_new_tokens=200, min_new_tokens=200),
    "auto stream": lambda model: read(model.astream(PROMPT, LONG, phi="auto")),
    "exact stream": lambda model: read(model.astream(PROMPT, LONG, phi="exact")),
    "weighted stream": lambda model: read(model.astream(PROMPT, LONG, phi="local")),
    "host stream": lambda model: read(model.astream(PROMPT, LONG, max_new_tokens=200)),
}


async def read(stream: Any) -> list[str]:
    return [piece async for piece in stream]


class TestCancelled:
    @pytest.mark.parametrize("name", CALLS)
    async def test_work_stops_before_its_next_model_call(self, name: str, fresh: PhiTransformers) -> None:
        """And leaves nothing: no thread, no lock, no tree, no other result of the calls that follow."""
        check = partial(fresh.batch, [PROMPT, "no"], ACCENTS, phi="exact", seed=6)
        expected = check()
        fresh(PROMPT, ACCENTS, phi="exact")
        kept, before = trees(fresh), workers()
        with Gate(fresh.model, closed_from=3) as gate:
            task = asyncio.ensure_future(CALLS[name](fresh))
            await reached(gate)
            for _ in range(3 if name == "exact, seeded" else 1):  # once is enough, and more do no harm
                task.cancel()
                await asyncio.sleep(0.005)
            assert not task.done()  # a model call cannot be broken off
            gate.open()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert workers() == before
            await asyncio.sleep(0.01)
            assert gate.calls == 3
        assert trees(fresh) == kept and is_free(fresh)
        assert check() == expected

    @pytest.mark.parametrize(
        ("output_type", "phi", "n"), [(LONG, "local", 5000), (Literal["yes", "no"], "exact", 1_000_000)]
    )
    async def test_by_a_timeout(self, output_type: Any, phi: str, n: int, fresh: PhiTransformers) -> None:
        """Also where no model call is needed: draws from a tree that knows everything are broken off between attempts."""
        generator = Generator(fresh, output_type, phi=phi)
        generator.sample("Answer: ", 10)
        start = time.process_time()
        with pytest.raises((TimeoutError, asyncio.TimeoutError)):
            await asyncio.wait_for(generator.asample("Answer: ", n), 0.05)
        assert time.process_time() - start < 2.0
        assert await generator.agenerate(PROMPT, seed=2) == generator(PROMPT, seed=2)

    async def test_a_waiting_call_leaves_the_queue(self, fresh: PhiTransformers) -> None:
        with Gate(fresh.model, closed_from=1) as gate:
            running = asyncio.ensure_future(fresh.agenerate(PROMPT, ACCENTS, phi="local", seed=1))
            await reached(gate)
            waiting = [
                asyncio.ensure_future(fresh.agenerate(PROMPT, ACCENTS, phi="exact", seed=seed)) for seed in range(3)
            ]
            await asyncio.sleep(0.01)
            waiting[1].cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting[1]  # at once: the gate is still closed
            assert gate.calls == 1 and not running.done()
            gate.open()
            results = await asyncio.gather(running, waiting[0], waiting[2])
        assert results == [
            fresh(PROMPT, ACCENTS, phi=phi, seed=seed) for phi, seed in (("local", 1), ("exact", 0), ("exact", 2))
        ]


class TestStreams:
    async def test_left_by_a_break_and_forgotten(self, model: PhiTransformers) -> None:
        before = workers()
        async for _ in model.astream(PROMPT, max_new_tokens=900, min_new_tokens=900):
            break
        gc.collect()
        until = time.monotonic() + 5
        while workers() != before and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert workers() == before

    async def test_never_begun(self, model: PhiTransformers) -> None:
        with Gate(model.model) as gate:
            await model.astream(PROMPT, ACCENTS, phi="exact").aclose()
        assert gate.calls == 0


class TestErrors:
    @pytest.mark.parametrize("name", CALLS)
    async def test_of_the_model_reach_the_caller(self, name: str, fresh: PhiTransformers) -> None:
        with Gate(fresh.model, closed_from=2, error=MemoryError("full")):
            with pytest.raises(MemoryError, match="full"):
                await CALLS[name](fresh)

        assert not trees(fresh)

    async def test_one_call_does_not_harm_the_others(self, accents: PhiGenerator) -> None:
        calls = [accents.agenerate(prompt, seed=2) for prompt in (PROMPT, 7, "no")]
        first, error, last = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(error, UnsupportedError)
        assert (first, last) == (accents(PROMPT, seed=2), accents("no", seed=2))
