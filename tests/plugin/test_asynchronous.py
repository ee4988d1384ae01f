"""Asynchronous calls: the same results, a free event loop, and nothing left of a cancelled one."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal

import pytest
import torch
from outlines.types import regex

import outlines_phi
from outlines_phi import PhiTransformers
from outlines_phi.errors import EmptyLanguageError, UnsupportedError
from outlines_phi.plugin.generator import PhiGenerator
from tests.plugin.gate import Gate, workers

PROMPT = "Story: Aria is a brave elf ranger. "
ACCENTS = Literal["né 😀 yes", "né", "日本 no", "plain text"]
CODE = regex("[a-z]{3,5}-é😀[0-9]{2}")
LONG = regex("[a-z ]{40,60}")
PHIS = ["exact", "auto", "local", "onestep"]


@pytest.fixture(autouse=True)
def nothing_is_left(model: PhiTransformers) -> Iterator[None]:
    before = workers()
    yield
    assert workers() == before
    assert model._drawing.acquire(blocking=False)
    model._drawing.release()


@pytest.fixture(scope="module")
def accents(model: PhiTransformers) -> PhiGenerator:
    return outlines_phi.Generator(model, ACCENTS)


async def reached(gate: Gate) -> None:
    """Wait, without blocking the loop, until a call is held up at the gate."""
    while not gate.reached.is_set():
        await asyncio.sleep(0.001)


class TestResults:
    @pytest.mark.parametrize("phi", PHIS)
    def test_are_those_of_the_calls(self, phi: str, accents: PhiGenerator, model: PhiTransformers) -> None:
        options: dict[str, Any] = {"phi": phi, "seed": 3}

        async def main() -> None:
            assert await accents.agenerate(PROMPT, **options) == accents(PROMPT, **options)
            assert await accents.asample(PROMPT, 7, **options) == accents.sample(PROMPT, 7, **options)
            prompts = [PROMPT, "no", "yes"]
            assert await accents.abatch(prompts, **options) == accents.batch(prompts, **options)
            pieces = list(accents.stream(PROMPT, **options))
            assert [piece async for piece in accents.astream(PROMPT, **options)] == pieces
            assert await model.agenerate(PROMPT, ACCENTS, **options) == accents(PROMPT, **options)
            assert await model.abatch(prompts, ACCENTS, **options) == accents.batch(prompts, **options)
            assert [piece async for piece in model.astream(PROMPT, ACCENTS, **options)] == pieces

        asyncio.run(main())

    @pytest.mark.parametrize("output_type", [CODE, None], ids=["regex", "free text"])
    def test_are_those_of_the_hosts_own_loop(self, output_type: Any, model: PhiTransformers) -> None:
        options = {"max_new_tokens": 30}

        async def main() -> None:
            torch.manual_seed(4)
            text = await model.agenerate(PROMPT, output_type, **options)
            torch.manual_seed(4)
            batch = await model.abatch([PROMPT, "no"], output_type, num_beams=2, do_sample=False, **options)
            torch.manual_seed(4)
            pieces = [piece async for piece in model.astream(PROMPT, output_type, **options)]
            torch.manual_seed(4)
            assert "".join(pieces) == text == model(PROMPT, output_type, **options)
            assert batch == model.batch([PROMPT, "no"], output_type, num_beams=2, do_sample=False, **options)

        asyncio.run(main())

    def test_of_concurrent_calls(self, accents: PhiGenerator, model: PhiTransformers) -> None:
        code = outlines_phi.Generator(model, CODE, phi="local")

        async def read(seed: int) -> str:
            return "".join([piece async for piece in code.astream(PROMPT, seed=seed)])

        async def main() -> list[Any]:
            calls: list[Awaitable[Any]] = []
            for seed in range(12):
                calls += [accents.agenerate(PROMPT, seed=seed), read(seed), accents.asample("no", 2, seed=seed)]
            return await asyncio.gather(*calls)

        expected: list[Any] = []
        for seed in range(12):
            expected += [accents(PROMPT, seed=seed), code(PROMPT, seed=seed), accents.sample("no", 2, seed=seed)]
        assert asyncio.run(main()) == expected

    def test_of_two_event_loops(self, accents: PhiGenerator) -> None:
        results: dict[int, list[str]] = {}

        def loop(first: int) -> None:
            async def main() -> list[str]:
                return await asyncio.gather(*(accents.agenerate(PROMPT, seed=first + i) for i in range(6)))

            results[first] = asyncio.run(main())

        threads = [threading.Thread(target=loop, args=(first,)) for first in (0, 6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {first: [accents(PROMPT, seed=first + i) for i in range(6)] for first in (0, 6)}

    def test_trees_are_shared_with_ordinary_calls(self, fresh: PhiTransformers) -> None:
        generator = outlines_phi.Generator(fresh, Literal["yes", "no"])
        with Gate(fresh.model) as gate:
            asyncio.run(generator.asample(PROMPT, 3))
            calls = gate.calls
            assert calls > 0
            generator.sample(PROMPT, 3)
            asyncio.run(generator.asample(PROMPT, 3))
            # Two more, of the prompt alone, as a hook may have changed the law.
            assert (gate.calls, len(fresh._trees)) == (calls + 2, 1)


class TestTheEventLoop:
    @pytest.mark.parametrize("phi", ["exact", "local", None])
    def test_is_free_while_the_model_works(self, phi: str | None, model: PhiTransformers) -> None:
        options = {} if phi else {"max_new_tokens": 30}

        async def main() -> None:
            with Gate(model.model, closed_from=1) as gate:
                calls = [asyncio.ensure_future(model.agenerate(PROMPT, ACCENTS, phi=phi, **options))]
                stream = model.astream(PROMPT, ACCENTS, phi=phi, **options)
                calls.append(asyncio.ensure_future(stream.__anext__()))
                await reached(gate)
                ticks = 0
                while ticks < 20:
                    await asyncio.sleep(0.001)
                    ticks += 1
                assert not any(call.done() for call in calls)
                gate.open()  # nobody could, were the loop blocked
                assert all(await asyncio.gather(*calls))
                await stream.aclose()

        asyncio.run(main())

    def test_streams_share_the_model_piece_by_piece(self, model: PhiTransformers) -> None:
        order: list[int] = []

        async def read(number: int) -> None:
            async for _ in model.astream(PROMPT, LONG, phi="local", seed=number):
                order.append(number)

        async def main() -> None:
            await asyncio.gather(read(1), read(2))

        asyncio.run(main())
        both = order[: order.index(1) + 20]
        assert 5 < both.count(1) < len(both) - 5


CALLS: dict[str, Callable[[PhiTransformers], Any]] = {
    "exact": lambda model: outlines_phi.Generator(model, LONG).asample(PROMPT, 3),
    "auto": lambda model: outlines_phi.Generator(model, LONG, phi="auto").asample(PROMPT, 3),
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
    def test_work_stops_before_its_next_model_call(self, name: str, fresh: PhiTransformers) -> None:
        """And leaves nothing: no thread, no lock, no tree, no other result of the calls that follow."""
        check = lambda: fresh.batch([PROMPT, "no"], ACCENTS, phi="exact", seed=6)  # noqa: E731
        expected = check()
        fresh(PROMPT, ACCENTS, phi="exact")
        kept = dict(fresh._trees._trees)
        before = workers()

        async def main() -> None:
            with Gate(fresh.model, closed_from=3) as gate:
                task = asyncio.ensure_future(CALLS[name](fresh))
                await reached(gate)
                task.cancel()
                await asyncio.sleep(0.01)
                assert not task.done()  # a model call cannot be broken off
                gate.open()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert gate.calls == 3
                assert workers() == before
                await asyncio.sleep(0.01)
                assert gate.calls == 3

        asyncio.run(main())
        assert fresh._trees._trees == kept
        assert fresh._drawing.acquire(blocking=False)
        fresh._drawing.release()
        assert check() == expected

    def test_by_a_timeout(self, fresh: PhiTransformers) -> None:
        generator = outlines_phi.Generator(fresh, LONG, phi="local")

        async def main() -> None:
            with pytest.raises((TimeoutError, asyncio.TimeoutError)):
                await asyncio.wait_for(generator.asample(PROMPT, 5000), 0.05)
            assert await generator.agenerate(PROMPT, seed=2) == generator(PROMPT, seed=2)

        asyncio.run(main())

    def test_again_and_again(self, fresh: PhiTransformers) -> None:
        fresh("no", ACCENTS, phi="exact")  # the first call of all tries the model out

        async def main() -> None:
            with Gate(fresh.model, closed_from=2) as gate:
                task = asyncio.ensure_future(fresh.agenerate(PROMPT, LONG, phi="exact"))
                await reached(gate)
                for _ in range(3):
                    task.cancel()
                    await asyncio.sleep(0.005)
                assert not task.done()
                gate.open()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert gate.calls == 2

        asyncio.run(main())

    def test_a_waiting_call_leaves_the_queue(self, fresh: PhiTransformers) -> None:
        async def main() -> None:
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

        asyncio.run(main())

    def test_behind_an_ordinary_call_of_another_thread(self, fresh: PhiTransformers) -> None:
        async def main() -> None:
            with Gate(fresh.model, closed_from=1) as gate:
                other = threading.Thread(target=lambda: fresh(PROMPT, ACCENTS, phi="exact"))
                other.start()
                await reached(gate)
                task = asyncio.ensure_future(fresh.agenerate(PROMPT, ACCENTS, phi="exact"))
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert gate.calls == 1 and other.is_alive()
            other.join()

        asyncio.run(main())


class TestStreams:
    @pytest.mark.parametrize("phi", [*PHIS, None])
    def test_closed_early(self, phi: str | None, fresh: PhiTransformers) -> None:
        options: dict[str, Any] = {"max_new_tokens": 300} if phi is None else {"seed": 3}
        output_type = ACCENTS if phi in ("exact", "auto") else LONG
        expected = fresh(PROMPT, ACCENTS, phi="exact", seed=6)

        async def main() -> None:
            before = workers()
            stream = fresh.astream(PROMPT, output_type, phi=phi, **options)
            assert await stream.__anext__()
            await stream.aclose()
            assert workers() == before
            assert [piece async for piece in stream] == []

        asyncio.run(main())
        assert fresh(PROMPT, ACCENTS, phi="exact", seed=6) == expected

    def test_left_by_a_break_and_forgotten(self, model: PhiTransformers) -> None:
        async def main() -> None:
            before = workers()
            async for _ in model.astream(PROMPT, max_new_tokens=900, min_new_tokens=900):
                break
            gc.collect()
            until = time.monotonic() + 5
            while workers() != before and time.monotonic() < until:
                await asyncio.sleep(0.01)
            assert workers() == before

        asyncio.run(main())

    def test_never_begun(self, model: PhiTransformers) -> None:
        async def main() -> None:
            await model.astream(PROMPT, ACCENTS, phi="exact").aclose()

        with Gate(model.model) as gate:
            asyncio.run(main())
        assert gate.calls == 0

    def test_the_first_piece_comes_early(self, model: PhiTransformers) -> None:
        async def main() -> None:
            with Gate(model.model, closed_from=3) as gate:
                stream = model.astream(PROMPT, LONG, max_new_tokens=60)
                assert await stream.__anext__() and gate.calls <= 3
                gate.open()
                assert len([piece async for piece in stream]) > 5

        asyncio.run(main())


class TestErrors:
    def test_of_bad_input(self, accents: PhiGenerator, model: PhiTransformers) -> None:
        async def main() -> None:
            with pytest.raises(UnsupportedError, match="cannot be read"):
                await accents.agenerate(7)
            with pytest.raises(UnsupportedError, match="at least 1"):
                await accents.asample(PROMPT, 0)
            with pytest.raises(UnsupportedError, match="prompts of a batch"):
                await accents.abatch(PROMPT)  # type: ignore[arg-type]
            with pytest.raises(UnsupportedError, match="Streams are of one prompt each"):
                await read(accents.astream([PROMPT]))
            with pytest.raises(EmptyLanguageError, match="max_new_tokens=1 is too small"):
                await model.agenerate(PROMPT, ACCENTS, phi="local", max_new_tokens=1)

        asyncio.run(main())

    @pytest.mark.parametrize("name", CALLS)
    def test_of_the_model_reach_the_caller(self, name: str, fresh: PhiTransformers) -> None:
        async def main() -> None:
            with Gate(fresh.model, closed_from=2, error=MemoryError("full")):
                with pytest.raises(MemoryError, match="full"):
                    await CALLS[name](fresh)

        asyncio.run(main())
        assert len(fresh._trees) == 0

    def test_one_call_does_not_harm_the_others(self, accents: PhiGenerator) -> None:
        async def main() -> list[Any]:
            calls = [accents.agenerate(prompt, seed=2) for prompt in (PROMPT, 7, "no")]
            return await asyncio.gather(*calls, return_exceptions=True)

        first, error, last = asyncio.run(main())
        assert isinstance(error, UnsupportedError)
        assert (first, last) == (accents(PROMPT, seed=2), accents("no", seed=2))


def test_a_time_limit_holds_where_no_model_call_is_needed(fresh: PhiTransformers) -> None:
    """A million draws from a tree that knows everything are broken off between attempts."""
    generator = outlines_phi.Generator(fresh, Literal["yes", "no"], phi="exact")
    generator.sample("Answer: ", 10)

    async def limited() -> float:
        start = time.perf_counter()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(generator.asample("Answer: ", 1_000_000), 0.05)
        return time.perf_counter() - start

    assert asyncio.run(limited()) < 2.0
    assert generator.sample("Answer: ", 10).guarantee == outlines_phi.Guarantee.EXACT
