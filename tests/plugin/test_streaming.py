"""Streams: the text of a call, piece by piece, on every road."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import outlines
import pytest
import torch
from outlines.types import regex
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import outlines_phi
from outlines_phi import BudgetError, Effort, EmptyLanguageError, ExactPhi, PhiTransformers, SamplingSettings
from outlines_phi.errors import ModelError, UnsupportedError
from outlines_phi.numerics.cache import Cache
from outlines_phi_workbench.suite.reference import Reference, enumerate_language
from tests.languages import ALPHA, p_value
from tests.plugin.gate import Gate, workers
from tests.vocabulary.test_vocabulary import sentencepiece_bpe

PROMPT = "Story: Aria is a brave elf ranger. "
QUESTION = "Question: is the bakery open on Sunday? Answer: "
ACCENTS = Literal["né 😀 yes", "né", "日本 no", "plain text"]
CODE = regex("[a-z]{3,5}-é😀[0-9]{2}")
PHIS = ["exact", "auto", "local", "onestep"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = workers()
    yield
    assert workers() == before


@pytest.fixture(scope="module")
def accents(model: PhiTransformers) -> outlines_phi.plugin.generator.PhiGenerator:
    return outlines_phi.Generator(model, ACCENTS)


@pytest.fixture(scope="module")
def laws(model: PhiTransformers) -> tuple[Any, Reference]:
    """A finite type, and its exact laws by enumeration."""
    generator = outlines_phi.Generator(model, Literal["yes", "no", "not now", "nobody"])
    settings, prompt = SamplingSettings(max_new_tokens=12), model._prompt_ids(QUESTION)
    return generator, enumerate_language(model.lm, generator.logits_processor.table, prompt, settings, 12)


@pytest.fixture(scope="module")
def split() -> PhiTransformers:
    """A random model whose tokens end inside characters: one of them is the end of ``é`` with the start of ``😀``."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    # é is C3 A9 and 😀 is F0 9F 98 80, which byte-level BPE shows as "Ã ©" and "ð Ł ĺ Ģ".
    pieces = [*letters, "©ð", "Łĺ", "ĢÃ", "aÃ"]
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
    return outlines_phi.from_transformers(GPT2LMHeadModel(config).eval(), hf_tokenizer)


def seeded(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Call under torch's seed; a stream is read to its end."""
    torch.manual_seed(5)
    result = call(*arguments, **keywords)
    return result if isinstance(result, str) else list(result)


class TestTheTextOfACall:
    @pytest.mark.parametrize("phi", PHIS)
    @pytest.mark.parametrize("seed", range(3))
    def test_under_a_correction(self, phi: str, seed: int, accents: Any, model: PhiTransformers) -> None:
        text = accents(PROMPT, phi=phi, seed=seed)
        pieces = list(accents.stream(PROMPT, phi=phi, seed=seed))
        assert "".join(pieces) == text and all(pieces)
        assert list(model.stream(PROMPT, ACCENTS, phi=phi, seed=seed)) == pieces
        assert list(outlines.Generator(model, ACCENTS).stream(PROMPT, phi=phi, seed=seed)) == pieces

    @pytest.mark.parametrize("phi", PHIS)
    def test_without_a_seed(self, phi: str, fresh: PhiTransformers) -> None:
        call = seeded(fresh, PROMPT, ACCENTS, phi=phi)
        fresh.clear_cache()
        assert "".join(seeded(fresh.stream, PROMPT, ACCENTS, phi=phi)) == call

    @pytest.mark.parametrize("options", [{}, {"do_sample": False}, {"temperature": 0.7, "top_k": 20}], ids=str)
    @pytest.mark.parametrize("output_type", [ACCENTS, CODE, None], ids=["choice", "regex", "free text"])
    def test_in_the_hosts_own_loop(self, output_type: Any, options: dict[str, Any], model: PhiTransformers) -> None:
        options = {"max_new_tokens": 40, **options}
        text = seeded(model, PROMPT, output_type, **options)
        pieces = seeded(model.stream, PROMPT, output_type, **options)
        assert "".join(pieces) == text and all(pieces) and len(pieces) > 1
        if output_type is not None:
            generator = outlines_phi.Generator(model, output_type, phi=None)
            assert seeded(generator.stream, PROMPT, **options) == pieces
            assert seeded(outlines.Generator(model, output_type).stream, PROMPT, **options) == pieces

    def test_under_a_processor_of_the_host(self, model: PhiTransformers) -> None:
        options = {"backend": "llguidance", "max_new_tokens": 40}
        assert "".join(seeded(model.stream, PROMPT, CODE, **options)) == seeded(model, PROMPT, CODE, **options)

    def test_with_assisted_decoding(self, model: PhiTransformers) -> None:
        options = {"max_new_tokens": 40, "do_sample": False, "prompt_lookup_num_tokens": 3}
        assert "".join(seeded(model.stream, PROMPT, **options)) == seeded(model, PROMPT, **options)

    def test_of_a_default_phi(self, model: PhiTransformers) -> None:
        corrected = outlines_phi.wrap(model, phi="local")
        assert "".join(corrected.stream(PROMPT, ACCENTS, seed=3)) == model(PROMPT, ACCENTS, phi="local", seed=3)
        assert "".join(seeded(corrected.stream, PROMPT, max_new_tokens=9)) == seeded(model, PROMPT, max_new_tokens=9)


class TestCharacters:
    TYPE = regex("(aé😀é|é😀😀){1,2}")

    @pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning")
    @pytest.mark.parametrize("phi", [*PHIS, None])
    def test_are_whole(self, phi: str | None, split: PhiTransformers) -> None:
        cut = 0
        for seed in range(6):
            options: dict[str, Any] = {"phi": phi, "max_new_tokens": 60, **({} if phi is None else {"seed": seed})}
            torch.manual_seed(seed)
            text = split("a", self.TYPE, **options)
            torch.manual_seed(seed)
            pieces = list(split.stream("a", self.TYPE, **options))
            assert "".join(pieces) == text
            assert "\ufffd" not in text and all(pieces)
            if phi is not None:
                draw = outlines_phi.Generator(split, self.TYPE).sample("a", **options)[0]
                cut += len(draw.token_ids) - 1 - len(pieces)
        assert phi is None or cut >= 6  # tokens that completed no character

    def test_cut_short_by_the_host(self, split: PhiTransformers) -> None:
        """The host may stop inside a character; the stream says what the call says."""
        texts = []
        for length in range(1, 12):
            options = {"max_new_tokens": length, "do_sample": False}
            texts.append(split("a", self.TYPE, **options))
            pieces = list(split.stream("a", self.TYPE, **options))
            assert "".join(pieces) == texts[-1]
            assert not any("\ufffd" in piece for piece in pieces[:-1])
        assert any("\ufffd" in text for text in texts)

    def test_the_host_leaves_out_the_first_space(self) -> None:
        """SentencePiece: a call's text by the host has no space in front, and neither has its stream."""
        tokenizer = sentencepiece_bpe()
        tokenizer.pad_token = tokenizer.eos_token
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=2, n_embd=16, n_layer=1, n_head=2)
        model = outlines_phi.from_transformers(GPT2LMHeadModel(config).eval(), tokenizer)
        spaced = regex(" (ab|cd){1,3} (a|é){2}")
        for seed in range(4):
            torch.manual_seed(seed)
            text = model("ab", spaced, max_new_tokens=30)
            torch.manual_seed(seed)
            pieces = list(model.stream("ab", spaced, max_new_tokens=30))
            assert "".join(pieces) == text and not text.startswith(" ")
            corrected = model("ab", spaced, phi="exact", seed=seed)
            assert "".join(model.stream("ab", spaced, phi="exact", seed=seed)) == corrected and corrected[0] == " "


class TestLaw:
    def drawn(self, generator: Any, phi: str, n: int) -> list[tuple[int, ...]]:
        vocabulary = generator.model.lm.vocabulary
        ids = {token: i for i, token in enumerate(vocabulary.tokens)}
        ids[b""] = vocabulary.eos_ids[0]
        torch.manual_seed(1)
        # Every piece of these ASCII texts is the text of one token.
        streams = (generator.stream(QUESTION, phi=phi, max_new_tokens=12) for _ in range(n))
        return [tuple(ids[piece.encode()] for piece in [*stream, ""]) for stream in streams]

    def test_of_exact_streams(self, laws: tuple[Any, Reference]) -> None:
        generator, reference = laws
        assert p_value(self.drawn(generator, "exact", 600), reference.mu) > ALPHA

    def test_of_masked_streams_is_the_wrong_one(self, laws: tuple[Any, Reference]) -> None:
        generator, reference = laws
        drawn = self.drawn(generator, "local", 250)
        assert p_value(drawn, reference.mask) > ALPHA
        assert p_value(drawn, reference.mu) < ALPHA


class TestWhileItIsWritten:
    def test_the_host_has_not_finished_when_the_first_piece_comes(self, model: PhiTransformers) -> None:
        with Gate(model.model, closed_from=3) as gate:
            stream = model.stream(PROMPT, CODE, max_new_tokens=40)
            first = next(stream)  # the third call of the model is held up until the gate opens
            assert gate.reached.wait(10) and gate.calls == 3
            gate.open()
            rest = list(stream)
        assert first and len(rest) > 3 and gate.calls > 5

    @pytest.mark.parametrize("phi", ["local", "onestep"])
    def test_every_piece_costs_its_own_calls(self, phi: str, model: PhiTransformers) -> None:
        with Gate(model.model) as gate:
            stream = model.stream(PROMPT, CODE, phi=phi, seed=1, draft=[])
            assert gate.calls == 0
            calls = [gate.calls for _ in stream]
        assert calls[0] == 1 and calls == sorted(set(calls)) and len(calls) > 4

    def test_exact_pieces_come_when_the_text_is_accepted(self, model: PhiTransformers) -> None:
        with Gate(model.model) as gate:
            stream = model.stream(QUESTION, Literal["yes", "no", "not now"], phi="exact", seed=1)
            assert gate.calls == 0
            next(stream)
            calls = gate.calls
            assert list(stream) is not None and gate.calls == calls > 0

    def test_nothing_runs_before_the_first_piece_is_asked_for(self, model: PhiTransformers) -> None:
        with Gate(model.model) as gate:
            for phi in (*PHIS, None):
                model.stream(PROMPT, CODE, phi=phi).close()
            assert (gate.calls, workers()) == (0, set())

    def test_a_paused_stream_holds_nobody_up(self, model: PhiTransformers) -> None:
        streams = [model.stream(PROMPT, CODE, phi="local", seed=seed) for seed in (1, 2)]
        pieces: list[list[str]] = [[], []]
        while any(more := [next(stream, "") for stream in streams]):
            for row, piece in zip(pieces, more, strict=True):
                row.append(piece)
        assert ["".join(row) for row in pieces] == [model(PROMPT, CODE, phi="local", seed=seed) for seed in (1, 2)]
        paused = model.stream(PROMPT, CODE, phi="local", seed=1)
        next(paused)
        results: list[str] = []
        other = threading.Thread(target=lambda: results.append(model(PROMPT, ACCENTS, phi="exact", seed=4)))
        other.start()
        other.join(10)
        assert results == [model(PROMPT, ACCENTS, phi="exact", seed=4)]
        paused.close()

    def test_threads_of_the_host_share_a_table(self, fresh: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> None:
        table, cpu = fresh.table(CODE), torch.device("cpu")
        states = {table.guide.advance(table.start, token) for token in table.moves(table.start, 99).tokens.tolist()}
        expected = table.bias(table.start, 99, cpu)
        table._kept = Cache(1, least=2)  # whatever one thread keeps, another one drops
        assert len(states) > 2
        others = [threading.Thread(target=lambda: [table.bias(state, 99, cpu) for state in states])]
        put = table._kept.put

        def interrupted(*arguments: Any) -> None:
            """Store, and let another thread come between this and what follows, if it can."""
            put(*arguments)
            if others and threading.current_thread() is threading.main_thread():
                other = others.pop()
                other.start()
                other.join(0.2)
                waiting.append(other)

        waiting: list[threading.Thread] = []
        monkeypatch.setattr(table._kept, "put", interrupted)
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
        generator = outlines_phi.Generator(fresh, ACCENTS, phi=phi)
        call = partial(seeded, generator, PROMPT, **({"max_new_tokens": 20} if phi is None else {"seed": 8}))
        expected, kept = call(), len(fresh._trees)
        for taken in (1, 2):
            stream = generator.stream(PROMPT, **({"max_new_tokens": 20} if phi is None else {"seed": 9}))
            for _ in range(taken):
                next(stream)
            stream.close()
            assert call() == expected
        assert len(fresh._trees) == kept
        assert fresh._drawing.acquire(blocking=False)
        fresh._drawing.release()

    def test_a_forgotten_stream_ends_its_thread(self, model: PhiTransformers) -> None:
        stream = model.stream("Story: ", max_new_tokens=900, min_new_tokens=900)
        next(stream)
        assert len(workers()) == 1
        del stream
        gc.collect()
        assert not workers()

    def test_an_error_at_the_consumer_closes_the_stream(self, model: PhiTransformers) -> None:
        with pytest.raises(ZeroDivisionError):
            for _ in model.stream("Story: ", max_new_tokens=900, min_new_tokens=900):
                raise ZeroDivisionError


class TestErrors:
    @pytest.mark.parametrize("phi", [*PHIS, None])
    def test_of_the_model_reach_the_consumer(self, phi: str | None, fresh: PhiTransformers) -> None:
        expected = fresh(PROMPT, CODE, phi="local", seed=2)
        with Gate(fresh.model, closed_from=2, error=MemoryError("full")):
            with pytest.raises(MemoryError, match="full"):
                list(fresh.stream(PROMPT, CODE, phi=phi, max_new_tokens=40))
        assert "".join(fresh.stream(PROMPT, CODE, phi="local", seed=2)) == expected
        assert len(fresh._trees) == 0

    def test_of_the_mask_reach_the_consumer(self, fresh: PhiTransformers) -> None:
        fresh.model.lm_head.weight.data[:] = torch.nan
        with pytest.raises(ModelError, match="hold NaN"):
            list(fresh.stream(PROMPT, CODE, max_new_tokens=9))

    def test_a_dead_end_is_a_draw_without_text(self, model: PhiTransformers) -> None:
        for seed in range(20):
            stream = model.stream(QUESTION, Literal["zebra", "no"], phi="local", top_k=1, seed=seed)
            with pytest.raises(EmptyLanguageError, match="top_k=1 leaves no allowed token"):
                list(stream)
        with pytest.raises(EmptyLanguageError, match="under top_k=1"):
            list(model.stream(QUESTION, Literal["zebra"], phi="exact", top_k=1))

    def test_spent_effort(self, model: PhiTransformers) -> None:
        hasty = ExactPhi(effort=Effort(attempts=1, tokens=1), width=1)
        with pytest.raises(BudgetError, match="effort ran out"):
            list(model.stream("zzz ", CODE, phi=hasty, seed=0))


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a list": ([PROMPT], {"phi": "local"}, r"list of 1 .* Streams are of one prompt each"),
    "a tuple, in the host": ((PROMPT, "b"), {}, r"tuple of 2 "),
    "a number": (7, {"phi": "exact"}, "cannot be read"),
    "a number, in the host": (7, {}, "cannot be read"),
    "several texts": (
        PROMPT,
        {"phi": "exact", "num_return_sequences": 2},
        "num_return_sequences=2 was given for a stream",
    ),
    "several texts, in the host": (PROMPT, {"num_return_sequences": 2}, "num_return_sequences=2 .* one text"),
    "beams": (PROMPT, {"phi": "local", "num_beams": 3}, "num_beams=3 was given for a stream"),
    "beams, in the host": (PROMPT, {"num_beams": 3}, "num_beams=3 was given for a stream"),
    "the mode": (PROMPT, {"phi": "exact", "do_sample": False}, "do_sample=False was given for a stream with phi="),
    "a streamer": (PROMPT, {"streamer": object()}, "Iterate over the stream"),
    "a seed, in the host": (PROMPT, {"seed": 3}, "seed= was given without phi="),
    "an unknown phi": (PROMPT, {"phi": "magic"}, "phi='magic' was given"),
    "an unknown keyword": (PROMPT, {"phi": "local", "typical_p": 0.5}, "typical_p cannot be used"),
    "a budget that is too small": (PROMPT, {"phi": "exact", "max_new_tokens": 1}, "max_new_tokens=1 is too small"),
    "no backend": (PROMPT, {"phi": "exact", "backend": "regex"}, "backend='regex' was given"),
}


@pytest.mark.parametrize(("prompt", "options", "message"), REFUSED.values(), ids=list(REFUSED))
def test_bad_input_is_refused_at_once(
    prompt: Any, options: dict[str, Any], message: str, model: PhiTransformers
) -> None:
    with pytest.raises((UnsupportedError, EmptyLanguageError), match=message):
        model.stream(prompt, CODE, **options)


def test_beams_of_the_configuration_are_refused(fresh: PhiTransformers) -> None:
    fresh.model.generation_config.num_beams = 2
    with pytest.raises(UnsupportedError, match="num_beams=2 was given for a stream"):
        fresh.stream(PROMPT)
    assert "".join(fresh.stream(PROMPT, ACCENTS, phi="local", seed=1)) == fresh(PROMPT, ACCENTS, phi="local", seed=1)


def test_free_text_has_nothing_to_correct(model: PhiTransformers) -> None:
    with pytest.raises(UnsupportedError, match="without an output type"):
        model.stream(PROMPT, phi="local")
