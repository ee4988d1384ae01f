"""Streams and asynchronous calls: the text of a call, piece by piece, on every road, and nothing left of a cancelled one."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, zip_longest
from typing import Any, Literal

import outlines
import pytest
import torch
from outlines.types import JsonSchema, regex
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from outlines_phi import (
    BudgetError,
    Effort,
    EmptyLanguageError,
    ExactPhi,
    Generator,
    LookaheadPhi,
    PhiTransformers,
    UnsupportedError,
    from_transformers,
    wrap,
)
from outlines_phi.errors import ModelError
from tests.inner import Cache, PhiGenerator
from tests.loaded import Person
from tests.plugin.instruments import SUNDAY, Gate, forget_trees, is_free, seeded, together, trees, workers
from tests.precision import named
from tests.refusals import refused
from tests.vocabulary.test_vocabulary import sentencepiece_bpe

PROMPT = "Story: Aria is a brave elf ranger. "
PERSON = "Person: Nora is a teacher in Paris. JSON: "
BANNED: dict[str, Any] = {"banned_phrases": ["it is"], "max_new_tokens": 12}
ACCENTS = Literal["né 😀 yes", "né", "日本 no", "plain text"]
CODE = regex("[a-z]{3,5}-é😀[0-9]{2}")
PHIS = ["exact", "auto", "local", "onestep"]


@pytest.fixture(scope="module")
def split() -> PhiTransformers:
    """A random model whose tokens end inside characters: one of them is the end of ``é`` with the start of ``😀``."""
    # é is C3 A9 and 😀 is F0 9F 98 80, which byte-level BPE shows as "Ã ©" and "ð Ł ĺ Ģ".
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "©ð", "Łĺ", "ĢÃ", "aÃ"]
    merges = [("©", "ð"), ("Ł", "ĺ"), ("Ģ", "Ã"), ("a", "Ã")]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(pieces) + 1, bos_token_id=None, n_embd=16, n_layer=1, n_head=2, n_positions=64, eos_token_id=260
    )
    hf_tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    return from_transformers(GPT2LMHeadModel(config).eval(), hf_tokenizer)


LONGER: dict[str, Any] = {"max_new_tokens": 40}
OPEN: dict[str, Any] = {"ends": "open", "temperature": 5.0, "max_new_tokens": 12}
DRAFTED: tuple[Any, ...] = ("local", "onestep", "learned", "exact", "auto")
ASKED: dict[str, tuple[str, Any, dict[str, Any], tuple[Any, ...]]] = {
    "choice": (PROMPT, ACCENTS, LONGER, (*PHIS, None)),
    "JSON": (PROMPT, JsonSchema('{"type": "array", "items": {"type": "boolean"}, "maxItems": 3}'), LONGER, PHIS),
    "record": (PERSON, Person, {"max_new_tokens": 60}, ("fields",)),
    "forced text": (PERSON, Person, {"draft": "forced"}, DRAFTED[::2]),
    "drafts from trees": (PERSON, Person, {"draft": "tree"}, DRAFTED[1::2]),
    "open choice": (SUNDAY, Literal["no", "not", "yes", "eat"], OPEN, ("exact", "local")),
    "open number": (SUNDAY, regex(r"\d+"), OPEN, ("exact", "local")),
    "banned": (SUNDAY, None, BANNED, ("lookahead", "local", "exact", LookaheadPhi(release="early"))),
    "banned, drafted": (SUNDAY, None, {**BANNED, "draft": "prompt_lookup"}, ("lookahead",)),
}
"""Prompts, output types, options of calls, and the corrections that each is streamed under."""


class TestTheTextOfACall:
    @pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning")
    @pytest.mark.parametrize(("name", "phi"), [(name, phi) for name, row in ASKED.items() for phi in row[-1]], ids=str)
    async def test_under_a_correction(self, name: str, phi: Any, fresh: PhiTransformers) -> None:
        """At every door, in an event loop too."""
        prompt, output_type, given, _ = ASKED[name]
        own = {option: value for option, value in given.items() if option in ("ends", "banned_phrases", "draft")}
        limits = {option: value for option, value in given.items() if option not in own}
        generator = Generator(fresh, output_type, phi=phi, **own)

        def afresh(call: Any, *asked: Any, **options: Any) -> Any:
            """Call under torch's seed, with no trees of earlier calls; the type is compiled once."""
            forget_trees(fresh)
            return seeded(call, *asked, **options)

        for seed in (None, 1):
            options = {**limits, **({} if seed is None or phi is None else {"seed": seed})}
            text, more = afresh(generator, prompt, **options), {"phi": phi, **own, **options}
            doors = [afresh(generator.stream, prompt, **options), afresh(fresh.stream, prompt, output_type, **more)]
            doors.append([piece async for piece in afresh(generator.astream, prompt, **options)])
            assert doors == doors[:1] * 3 and "".join(doors[0]) == text and all(doors[0])
            assert await afresh(generator.agenerate, prompt, **options) == text
            batch = afresh(fresh.batch, [prompt, "no"], output_type, **more)
            assert await afresh(fresh.abatch, [prompt, "no"], output_type, **more) == batch

    @pytest.mark.in_turn
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"do_sample": False},
            {"temperature": 0.7, "top_k": 20},
            {"do_sample": False, "prompt_lookup_num_tokens": 3},
            {"backend": "llguidance"},
        ],
        ids=named,
    )
    @pytest.mark.parametrize("output_type", [ACCENTS, CODE, None], ids=["choice", "regex", "free text"])
    def test_in_the_hosts_own_loop(self, output_type: Any, options: dict[str, Any], model: PhiTransformers) -> None:
        options = {"max_new_tokens": 40, **options}
        text = seeded(model, PROMPT, output_type, **options)
        pieces = seeded(model.stream, PROMPT, output_type, **options)
        assert "".join(pieces) == text and all(pieces) and len(pieces) > 1
        if output_type is None:
            assert "".join(seeded(wrap(model, phi="local").stream, PROMPT, **options)) == text
        elif "backend" not in options:
            for generator in (Generator(model, output_type, phi=None), outlines.Generator(model, output_type)):
                assert seeded(generator.stream, PROMPT, **options) == pieces


class TestCharacters:
    TYPE = regex("(aé😀é|é😀😀){1,2}")

    @pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning")
    @pytest.mark.parametrize("phi", [*PHIS, None])
    def test_are_whole(self, phi: str | None, split: PhiTransformers) -> None:
        cut = 0
        for seed in range(6):
            options: dict[str, Any] = {"phi": phi, "max_new_tokens": 60} | ({} if phi is None else {"seed": seed})
            torch.manual_seed(seed)
            text = split("a", self.TYPE, **options)
            torch.manual_seed(seed)
            pieces = list(split.stream("a", self.TYPE, **options))
            assert "".join(pieces) == text and "\ufffd" not in text and all(pieces)
            if phi is not None:
                cut += len(Generator(split, self.TYPE).sample("a", **options)[0].token_ids) - 1 - len(pieces)
        assert phi is None or cut >= 6  # tokens that completed no character

    def test_cut_short_by_the_host(self, split: PhiTransformers) -> None:
        """The host may stop inside a character; the stream says what the call says."""
        texts = []
        for length in range(1, 12):
            options = {"max_new_tokens": length, "do_sample": False}
            texts.append(split("a", self.TYPE, **options))
            pieces = list(split.stream("a", self.TYPE, **options))
            assert "".join(pieces) == texts[-1] and not any("\ufffd" in piece for piece in pieces[:-1])
        assert any("\ufffd" in text for text in texts)

    def test_the_host_leaves_out_the_first_space(self) -> None:
        """SentencePiece: a call's text by the host has no space in front, and neither has its stream."""
        tokenizer = sentencepiece_bpe()
        tokenizer.pad_token = tokenizer.eos_token
        config = GPT2Config(vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=2, n_embd=16, n_layer=1, n_head=2)
        model = from_transformers(GPT2LMHeadModel(config).eval(), tokenizer)
        ask = "ab", regex(" (ab|cd){1,3} (a|é){2}")
        for seed in range(4):
            text = seeded(model, *ask, seed=seed, max_new_tokens=30)
            streamed = seeded(model.stream, *ask, seed=seed, max_new_tokens=30)
            assert "".join(streamed) == text and not text.startswith(" ")
            corrected = model(*ask, phi="exact", seed=seed)
            assert "".join(model.stream(*ask, phi="exact", seed=seed)) == corrected and corrected[0] == " "


class TestWhileItIsWritten:
    def test_the_host_has_not_finished_when_the_first_piece_comes(self, model: PhiTransformers) -> None:
        with Gate(model.model, closed_from=3) as gate:
            stream = model.stream(PROMPT, CODE, max_new_tokens=40)
            first = next(stream)  # the third call of the model is held up until the gate opens
            assert gate.reached.wait(10) and gate.calls == 3
            gate.open()
            rest = list(stream)
        assert first and len(rest) > 3 and gate.calls > 5

    @pytest.mark.parametrize("phi", ["local", "onestep", "exact"])
    def test_what_a_piece_costs(self, phi: str, model: PhiTransformers) -> None:
        """Its own calls under a step estimator; exact pieces come when the text is accepted."""
        with Gate(model.model) as gate:
            stream = model.stream(PROMPT, CODE if phi != "exact" else ACCENTS, phi=phi, seed=1, draft=[])
            assert gate.calls == 0
            calls = [gate.calls for _ in stream]
        if phi == "exact":
            assert len(set(calls)) == 1 < len(calls)
        else:
            assert calls[0] == 1 and calls == sorted(set(calls)) and len(calls) > 4

    def test_nothing_runs_before_the_first_piece_is_asked_for(self, model: PhiTransformers) -> None:
        with Gate(model.model) as gate:
            for phi in (*PHIS, None):
                model.stream(PROMPT, CODE, phi=phi).close()
            assert (gate.calls, workers()) == (0, set())

    def test_a_paused_stream_holds_nobody_up(self, model: PhiTransformers) -> None:
        streams = [model.stream(PROMPT, CODE, phi="local", seed=seed) for seed in (1, 2)]
        turns = list(zip_longest(*streams, fillvalue=""))
        assert ["".join(row) for row in zip(*turns, strict=True)] == [
            model(PROMPT, CODE, phi="local", seed=seed) for seed in (1, 2)
        ]
        paused = model.stream(PROMPT, CODE, phi="local", seed=1)
        next(paused)
        assert together(lambda: model(PROMPT, ACCENTS, phi="exact", seed=4)) == [
            model(PROMPT, ACCENTS, phi="exact", seed=4)
        ]
        paused.close()

    def test_threads_of_the_host_share_a_table(self, fresh: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> None:
        table, cpu = fresh.table(CODE), torch.device("cpu")
        states = {table.guide.advance(table.start, token) for token in table.moves(table.start, 99).tokens.tolist()}
        expected = table.bias(table.start, 99, cpu)
        kept = Cache(1, least=2)  # whatever one thread keeps, another one drops
        monkeypatch.setattr("outlines_phi.guides.table.kept_rows", kept)
        assert len(states) > 2
        others = [threading.Thread(target=lambda: [table.bias(state, 99, cpu) for state in states])]
        waiting: list[threading.Thread] = []
        put = kept.put

        def interrupted(*arguments: Any) -> None:
            """Store, and let another thread come between this and what follows, if it can."""
            put(*arguments)
            if others and threading.current_thread() is threading.main_thread():
                waiting.append(others.pop())
                waiting[0].start()
                waiting[0].join(0.2)

        monkeypatch.setattr(kept, "put", interrupted)
        assert torch.equal(table.bias(table.start, 99, cpu), expected)
        waiting[0].join()


class TestGivenUp:
    @pytest.mark.parametrize("output_type", [regex("[a-z ]{300,}"), None], ids=["regex", "free text"])
    def test_the_host_stops_at_its_next_step(self, output_type: Any, model: PhiTransformers) -> None:
        with Gate(model.model, closed_from=4) as gate:
            stream = model.stream("Story: ", output_type, max_new_tokens=900, min_new_tokens=900)
            next(stream)
            assert gate.reached.wait(10)
            threading.Timer(0.05, gate.open).start()
            stream.close()  # waits for the call that is under way
            assert gate.calls <= 5
        assert next(stream, "ended") == "ended"

    @pytest.mark.parametrize("phi", [*PHIS, None])
    def test_what_follows_is_as_if_nothing_had_been(self, phi: str | None, fresh: PhiTransformers) -> None:
        generator = Generator(fresh, ACCENTS, phi=phi)
        options = [{"max_new_tokens": 20}] * 2 if phi is None else [{"seed": 8}, {"seed": 9}]
        expected, kept = seeded(generator, PROMPT, **options[0]), len(trees(fresh))
        for taken in (1, 2):
            stream = generator.stream(PROMPT, **options[1])
            assert all(islice(stream, taken))
            stream.close()
            assert seeded(generator, PROMPT, **options[0]) == expected
        assert len(trees(fresh)) == kept and is_free(fresh)

    def test_a_forgotten_stream_ends_its_thread(self, model: PhiTransformers) -> None:
        options = {"max_new_tokens": 900, "min_new_tokens": 900}
        stream = model.stream("Story: ", **options)
        next(stream)
        assert len(workers()) == 1
        del stream
        gc.collect()
        assert not workers()
        with pytest.raises(ZeroDivisionError):  # so does an error at the consumer
            for _ in model.stream("Story: ", **options):
                raise ZeroDivisionError


class TestErrors:
    def test_of_the_mask_reach_the_consumer(self, fresh: PhiTransformers) -> None:
        fresh.model.lm_head.weight.data[:] = torch.nan
        refused("hold NaN", lambda: list(fresh.stream(PROMPT, CODE, max_new_tokens=9)), error=ModelError)

    def test_where_nothing_is_written(self, model: PhiTransformers) -> None:
        hasty, two = ExactPhi(effort=Effort(attempts=1, tokens=1), width=1), Literal["zebra", "no"]
        cases: list[Any] = [(SUNDAY, two, {"phi": "local", "top_k": 1}, "leaves no allowed")] * 20
        cases += [(SUNDAY, Literal["zebra"], {"phi": "exact", "top_k": 1}, "under top_k=1")]
        cases += [("zzz ", CODE, {"phi": hasty}, "effort ran out")]
        for seed, (prompt, output_type, options, words) in enumerate(cases):
            stream = model.stream(prompt, output_type, seed=seed, **options)
            refused(words, list, stream, error=BudgetError if "effort" in words else EmptyLanguageError)


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ([PROMPT], {"phi": "local"}, "one prompt each"),
        ((PROMPT, "b"), {}, "one prompt each"),
        (7, {"phi": "exact"}, "cannot be read"),
        (7, {}, "cannot be read"),
        (PROMPT, {"phi": "exact", "num_return_sequences": 2}, "num_return_sequences=2"),
        (PROMPT, {"num_return_sequences": 2}, "num_return_sequences=2"),
        (PROMPT, {"phi": "local", "num_beams": 3}, "num_beams=3"),
        (PROMPT, {"num_beams": 3}, "num_beams=3"),
        (PROMPT, {"phi": "exact", "do_sample": False}, "do_sample=False .* with phi="),
        (PROMPT, {"streamer": object()}, "Iterate over the stream"),
        (PROMPT, {"seed": 3}, "seed= was given without phi="),
        (PROMPT, {"phi": "magic"}, "phi='magic'"),
        (PROMPT, {"phi": "local", "typical_p": 0.5}, "typical_p"),
        (PROMPT, {"phi": "exact", "max_new_tokens": 1}, "max_new_tokens=1 is too small"),
        (PROMPT, {"phi": "exact", "backend": "regex"}, "backend='regex'"),
        (PROMPT, {"phi": "local", "output_type": None}, "without an output type"),
    ],
    ids=named,
)
def test_bad_input_is_refused_at_once(prompt: Any, options: dict[str, Any], words: str, model: PhiTransformers) -> None:
    refused(
        words, model.stream, prompt, **{"output_type": CODE, **options}, error=(UnsupportedError, EmptyLanguageError)
    )


def test_beams_of_the_configuration_are_refused(fresh: PhiTransformers) -> None:
    fresh.model.generation_config.num_beams = 2
    refused("num_beams=2 was given for a stream", fresh.stream, PROMPT)
    assert "".join(fresh.stream(PROMPT, ACCENTS, phi="local", seed=1)) == fresh(PROMPT, ACCENTS, phi="local", seed=1)


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


class TestAsynchronousErrors:
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
