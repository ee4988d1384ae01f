"""Streams: the text of a call, piece by piece, on every road."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
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
    from_transformers,
    wrap,
)
from outlines_phi.errors import ModelError, UnsupportedError
from outlines_phi.numerics.cache import Cache
from tests.loaded import Person
from tests.plugin.gate import Gate, forget_trees, is_free, together, trees, workers
from tests.plugin.loops import seeded
from tests.precision import named
from tests.vocabulary.test_vocabulary import sentencepiece_bpe

PROMPT = "Story: Aria is a brave elf ranger. "
QUESTION = "Question: is the bakery open on Sunday? Answer: "
PERSON = "Person: Nora is a teacher in Paris. JSON: "
BANNED: dict[str, Any] = {"banned_phrases": ["it is"], "max_new_tokens": 12}
ACCENTS = Literal["né 😀 yes", "né", "日本 no", "plain text"]
CODE = regex("[a-z]{3,5}-é😀[0-9]{2}")
PHIS = ["exact", "auto", "local", "onestep"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = workers()
    yield
    assert workers() == before


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
    "open choice": (QUESTION, Literal["no", "not", "yes", "eat"], OPEN, ("exact", "local")),
    "open number": (QUESTION, regex(r"\d+"), OPEN, ("exact", "local")),
    "banned": (QUESTION, None, BANNED, ("lookahead", "local", "exact", LookaheadPhi(release="early"))),
    "banned, drafted": (QUESTION, None, {**BANNED, "draft": "prompt_lookup"}, ("lookahead",)),
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
            for generator in (
                Generator(model, output_type, phi=None),
                outlines.Generator(model, output_type),
            ):
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
                draw = Generator(split, self.TYPE).sample("a", **options)[0]
                cut += len(draw.token_ids) - 1 - len(pieces)
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
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=2, n_embd=16, n_layer=1, n_head=2)
        model = from_transformers(GPT2LMHeadModel(config).eval(), tokenizer)
        ask = "ab", regex(" (ab|cd){1,3} (a|é){2}")
        for seed in range(4):
            torch.manual_seed(seed)
            text = model(*ask, max_new_tokens=30)
            torch.manual_seed(seed)
            assert "".join(model.stream(*ask, max_new_tokens=30)) == text and not text.startswith(" ")
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
        with pytest.raises(ModelError, match="hold NaN"):
            list(fresh.stream(PROMPT, CODE, max_new_tokens=9))

    def test_where_nothing_is_written(self, model: PhiTransformers) -> None:
        hasty, two = ExactPhi(effort=Effort(attempts=1, tokens=1), width=1), Literal["zebra", "no"]
        cases: list[Any] = [(QUESTION, two, {"phi": "local", "top_k": 1}, "leaves no allowed")] * 20
        cases += [(QUESTION, Literal["zebra"], {"phi": "exact", "top_k": 1}, "under top_k=1")]
        cases += [("zzz ", CODE, {"phi": hasty}, "effort ran out")]
        for seed, (prompt, output_type, options, words) in enumerate(cases):
            with pytest.raises(BudgetError if "effort" in words else EmptyLanguageError, match=words):
                list(model.stream(prompt, output_type, seed=seed, **options))


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
    with pytest.raises((UnsupportedError, EmptyLanguageError), match=words):
        model.stream(prompt, **{"output_type": CODE, **options})


def test_beams_of_the_configuration_are_refused(fresh: PhiTransformers) -> None:
    fresh.model.generation_config.num_beams = 2
    with pytest.raises(UnsupportedError, match="num_beams=2 was given for a stream"):
        fresh.stream(PROMPT)
    assert "".join(fresh.stream(PROMPT, ACCENTS, phi="local", seed=1)) == fresh(PROMPT, ACCENTS, phi="local", seed=1)
