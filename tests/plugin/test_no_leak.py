"""Nothing banned leaves by any door: models that want to write it, over real tokenizers, searched by plain Python."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from typing import Any

import numpy as np
import outlines
import pytest
import torch
from outlines.types import Regex
from transformers import GenerationConfig

import outlines_phi
from outlines_phi import BannedPhrases, LookaheadPhi, PhiLogitsProcessor, PhiTransformers, Vocabulary
from tests.leaks import bigrams, following, leaks
from tests.refusals import refused
from tests.vocabulary.test_vocabulary import byte_level, sentencepiece_bpe, unigram, wordpiece

N = 10
"""Texts of each prompt by each door."""

SAMPLED: dict[str, Any] = {"do_sample": True, "top_k": 0}


@dataclass(frozen=True)
class Writer:
    """A Hugging Face model that goes on with texts whose spellings are many, what is banned of them, and prompts."""

    tokenizer: Callable[[], Any]
    texts: tuple[str, ...]
    ban: BannedPhrases
    prompts: tuple[str, ...]
    budget: int = 8

    def __str__(self) -> str:
        return f"{self.tokenizer.__name__}-{self.ban.phrases[0]}-{self.ban.whole_word}"

    @cached_property
    def hf(self) -> tuple[Any, Any]:
        tokenizer = self.tokenizer()
        vocabulary = Vocabulary.from_tokenizer(tokenizer)
        logits = following(vocabulary, [text.encode() for text in self.texts], strength=6.0)
        logits[:, vocabulary.eos_ids[0]] = 3.0
        return bigrams(logits, tokenizer.eos_token_id), tokenizer

    @cached_property
    def model(self) -> PhiTransformers:
        return outlines_phi.from_transformers(*self.hf)

    @property
    def reads_as_written(self) -> bool:
        """True if the tokenizer decodes a text as its tokens write it.

        Decoders of SentencePiece leave out a space at the start, and show all of a run of byte tokens that is not UTF-8 as broken,
        letters too. What they decode is searched by its ids.
        """
        return self.tokenizer is byte_level

    def leaks(self, texts: list[tuple[str, str]]) -> list[str]:
        """Return the banned phrases in texts after prompts."""
        found = [leak for prompt, text in texts for leak in leaks(self.ban, text.encode(), prompt.encode())]
        assert texts
        return found

    def decoded(self, ids: torch.Tensor, prompt: str) -> list[tuple[str, str]]:
        """The texts of rows of ids, which are read whole: some decoders leave out a space at the start."""
        vocabulary, length = self.model.lm.vocabulary, len(self.hf[1](prompt)["input_ids"])
        return [(prompt, vocabulary.decode(row[length:]).decode(errors="replace")) for row in ids.tolist()]


FOX = (" quick brown fox", "brown fox quick")
WRITERS = (
    Writer(byte_level, FOX, BannedPhrases(["quick brown", "fox"]), ("the", " qui", "brown f", "the fo")),
    Writer(byte_level, FOX, BannedPhrases(["QUICK", "n f"], ignore_case=True), ("the", " qui", "brow")),
    Writer(byte_level, FOX, BannedPhrases(["quick", "brown"], whole_word=True), ("the", " quick", " brow")),
    Writer(byte_level, ("façade 日本語",), BannedPhrases(["façade", "日本"]), ("the", " fa")),
    Writer(sentencepiece_bpe, ("abcd éab",), BannedPhrases(["bcd", "é"]), ("x", "ab")),
    Writer(sentencepiece_bpe, (" ab abcd",), BannedPhrases(["ab"], whole_word=True), ("x", "cd a")),
    Writer(unigram, (" abc éab",), BannedPhrases(["abc", "éa"]), ("c", " ab")),
)
FIRST = WRITERS[0]

Door = Callable[[Writer, Any], list[tuple[str, str]]]


def options_of(writer: Writer, phi: Any) -> dict[str, Any]:
    """Return the options of a call of the model."""
    sampled = SAMPLED if phi is None else {}
    return {"banned_phrases": writer.ban, "phi": phi, "max_new_tokens": writer.budget, **sampled}


def call(writer: Writer, phi: Any) -> list[tuple[str, str]]:
    options = {"num_return_sequences": N, **options_of(writer, phi)}
    return [(prompt, text) for prompt in writer.prompts for text in writer.model(prompt, **options)]


def batch(writer: Writer, phi: Any) -> list[tuple[str, str]]:
    rows = writer.model.batch(list(writer.prompts), num_return_sequences=N, **options_of(writer, phi))
    return [(prompt, text) for prompt, texts in zip(writer.prompts, rows, strict=True) for text in texts]


def stream(writer: Writer, phi: Any) -> list[tuple[str, str]]:
    """Every prefix that a reader has seen; a last word may go on."""
    seen = []
    for prompt in writer.prompts * 3:
        text = ""
        for piece in writer.model.stream(prompt, **options_of(writer, phi)):
            assert not leaks(writer.ban, (text := text + piece).encode(), prompt.encode(), ended=False)
        seen.append((prompt, text))
    return seen


def sample(writer: Writer, phi: Any) -> list[tuple[str, str]]:
    generator = outlines_phi.Generator(writer.model, None, phi=phi, banned_phrases=writer.ban)
    options = {"max_new_tokens": writer.budget, "temperature": 1.5, "repetition_penalty": 1.2}
    rows = generator.sample_batch(list(writer.prompts), N, **options)
    return [(prompt, text) for prompt, draws in zip(writer.prompts, rows, strict=True) for text in draws.texts]


def custom_generate(writer: Writer, phi: Any) -> list[tuple[str, str]]:
    return looped(writer, [], {"vocabulary": writer.hf[1], "num_return_sequences": N, **options_of(writer, phi)})


OWN_DOORS = (call, batch, stream, custom_generate, sample)
writers = pytest.mark.parametrize("writer", WRITERS, ids=str)


PHIS = ("local", "lookahead", LookaheadPhi(release="early"), "exact")


def chosen() -> Iterator[Any]:
    """Of writers, doors and corrections every two meet once or more. `make test-full` has all three together."""
    for (i, writer), (j, door), (k, phi) in product(enumerate(WRITERS), enumerate(OWN_DOORS), enumerate(PHIS)):
        yield pytest.param(writer, door, phi, marks=[] if (i + j) % len(PHIS) == k else [pytest.mark.full])


@pytest.mark.parametrize(
    ("writer", "door", "phi"), list(chosen()), ids=lambda value: getattr(value, "__name__", str(value))
)
def test_nothing_banned_leaves_by_a_door_of_this_package(writer: Writer, door: Door, phi: Any) -> None:
    assert not writer.leaks(door(writer, phi))


@pytest.mark.parametrize("door", [call, batch, stream], ids=lambda door: door.__name__)
@pytest.mark.parametrize("writer", [writer for writer in WRITERS if writer.reads_as_written], ids=str)
def test_nothing_banned_leaves_by_the_host_s_own_loop(writer: Writer, door: Door) -> None:
    assert not writer.leaks(door(writer, None))


LOOPS: dict[str, dict[str, Any]] = {
    "sampling": {**SAMPLED, "num_return_sequences": N},
    "warped": {"do_sample": True, "temperature": 2.0, "top_k": 5, "top_p": 0.9, "num_return_sequences": N},
    "penalised": {**SAMPLED, "repetition_penalty": 1.5, "num_return_sequences": N},
    "greedy": {"do_sample": False},
    "beams": {"do_sample": False, "num_beams": 6, "num_return_sequences": 6},
    "sampled beams": {**SAMPLED, "num_beams": 6, "num_return_sequences": 6},
    "uncached": {**SAMPLED, "use_cache": False, "num_return_sequences": N},
}


def looped(
    writer: Writer, processors: list[Any], custom: dict[str, Any] | None = None, **options: Any
) -> list[tuple[str, str]]:
    """Return the texts of the host's loop with logits processors, each prompt twice; or of ``custom_generate``, once."""
    model, tokenizer = writer.hf
    given = {"logits_processor": processors, "max_new_tokens": writer.budget, **options}
    if custom is not None:
        given = {"custom_generate": outlines_phi.custom_generate, **custom}
    found = []
    for prompt in writer.prompts * (2 if custom is None else 1):
        ids = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        found += writer.decoded(model.generate(**ids, **given), prompt)
    return found


def loops() -> Iterator[Any]:
    """Every writer samples and has half of the other loops; `make test-full` has the others."""
    for (i, writer), (j, name) in product(enumerate(WRITERS), enumerate(LOOPS)):
        usual = j == 0 or (i + j) % 2 == 0
        yield pytest.param(writer, LOOPS[name], id=f"{writer}-{name}", marks=[] if usual else [pytest.mark.full])


@pytest.mark.parametrize(("writer", "options"), list(loops()))
def test_nothing_banned_is_written_under_a_processor(writer: Writer, options: dict[str, Any]) -> None:
    model, tokenizer = writer.hf
    processor = outlines_phi.ban(model, writer.ban, tokenizer=tokenizer, max_new_tokens=writer.budget)
    assert not writer.leaks(looped(writer, [processor], **options))
    if options == LOOPS["sampling"]:
        own = PhiLogitsProcessor(
            model, None, tokenizer=tokenizer, banned_phrases=writer.ban, max_new_tokens=writer.budget, top_k=0
        )
        assert not writer.leaks(looped(writer, [own], **LOOPS["sampling"]))


@writers
def test_the_search_finds_what_the_models_want_to_write(writer: Writer) -> None:
    """Control: the same loop without a ban."""
    texts = looped(writer, [], **{**LOOPS["sampling"], "num_return_sequences": 4 * N})
    assert len(writer.leaks(texts)) > len(texts) / 10


def test_bad_words_ids_leak() -> None:
    """Control: Hugging Face's own ban, given the spellings that the tokenizer has for each phrase, with and without a space."""
    tokenizer = FIRST.hf[1]
    listed = [tokenizer(space + str(phrase))["input_ids"] for phrase in FIRST.ban.phrases for space in ("", " ")]
    texts = looped(FIRST, [], **LOOPS["sampling"], bad_words_ids=listed)
    assert len(FIRST.leaks(texts)) > len(texts) / 20


@cache
def cats() -> Writer:
    return Writer(byte_level, (" cats cats",), BannedPhrases(["cat"], whole_word=True), (" ca",))


CUTS: dict[str, Any] = {"stop_strings": ["t"], "max_time": 9.0, "eos_token_id": "the last letter"}
CUT = {**LOOPS["sampling"], "max_new_tokens": 6}


def texts_of(writer: Writer, prompt: str = " ca", **options: Any) -> list[tuple[str, str]]:
    """Return texts of the host's own loop."""
    return [(prompt, text) for text in writer.model(prompt, banned_phrases=writer.ban, phi=None, **CUT, **options)]


class TestCuts:
    """The ends of a text elsewhere than at the budget: one that ends in "cat" on the way to "cats" holds the word."""

    @pytest.mark.parametrize("name", CUTS)
    def test_a_generation_config_does_not_cut_a_whole_word(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        (model, tokenizer), writer = cats().hf, cats()
        end = tokenizer.eos_token_id
        value = [end, *tokenizer("t")["input_ids"]] if name == "eos_token_id" else CUTS[name]
        own = GenerationConfig(**{"eos_token_id": end, "pad_token_id": end, name: value})
        for options in ({"generation_config": own}, {name: value}, {}):
            if not options:
                monkeypatch.setattr(model.generation_config, name, value)
            refused(rf"Give .*{name}=.* with whole words banned", texts_of, writer, tokenizer=tokenizer, **options)

    def test_what_the_call_says_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        writer = cats()
        monkeypatch.setattr(writer.hf[0].generation_config, "stop_strings", ["t"])
        assert not writer.leaks(texts_of(writer, stop_strings=None))

    def test_a_phrase_that_does_not_wait_may_be_cut(self) -> None:
        writer = replace(cats(), ban=BannedPhrases(["cat"]))
        assert not writer.leaks(texts_of(writer, "s", stop_strings=["a"], tokenizer=writer.hf[1]))

    def test_a_ban_of_the_call_beside_one_of_the_generator(self) -> None:
        writer = cats()
        stock = outlines.Generator(writer.model, Regex("[cats ]{3,12}"))
        both = (
            (outlines_phi.ban(stock, writer.ban), {"banned_phrases": ["tt"]}),
            (outlines_phi.ban(stock, ["tt"]), {"banned_phrases": writer.ban}),
        )
        for generator, options in both:
            refused("Give stop_strings=None", generator, " ca", phi=None, stop_strings=["t"], **options)
            for budget in (3, 4, 5):
                texts = generator(" ca", phi=None, max_new_tokens=budget, **LOOPS["sampling"], **options)
                assert not writer.leaks([(" ca", text) for text in texts])


def test_a_tokenizer_that_cleans_up_makes_no_phrase_of_what_was_written() -> None:
    tokenizer = wordpiece()
    tokenizer.clean_up_tokenization_spaces = True
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    ids = tokenizer("n ' t", add_special_tokens=False)["input_ids"]
    logits = np.zeros((len(vocabulary), len(vocabulary)))
    for before, after in zip(ids, [*ids[1:], ids[0]], strict=True):
        logits[before, after] = 20.0
    logits[:, ids[0]] += 10.0
    model = outlines_phi.from_transformers(bigrams(logits, tokenizer.eos_token_id), tokenizer)
    options = {"max_new_tokens": 6, "do_sample": True, "top_k": 0}
    assert "n't" in model("do", phi=None, **options)  # control: without a ban it is what stock Outlines shows
    texts = [
        model("do", phi=None, banned_phrases=["n't"], **options),
        *model.batch(["do", "do"], phi=None, banned_phrases=["n't"], **options),
    ]
    assert all("n ' t" in text and "n't" not in text for text in texts)


BAN = BannedPhrases(["ab"], whole_word=True)
MANY = 40


@pytest.fixture(scope="module")
def hf() -> tuple[torch.nn.Module, object]:
    """A model that writes broken bytes, letters by their bytes, and the word that is banned, with equal chances."""
    tokenizer = sentencepiece_bpe()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    logits = np.full((len(vocabulary), len(vocabulary)), -9.0)
    names = tokenizer.convert_ids_to_tokens(range(len(vocabulary)))
    logits[:, [names.index(name) for name in ("<0xFF>", "<0x63>", "ab", "▁ab", "cd")]] = 3.0
    return bigrams(logits, tokenizer.eos_token_id), tokenizer


def broken_words(texts: list[str]) -> list[str]:
    """Texts that were worth the trouble: with a broken byte, a letter beside it and the word."""
    return [text for text in texts if "\ufffdcab" in text or "abc\ufffd" in text]


def test_no_word_is_left_alone_by_what_is_shown_as_broken(hf: tuple[torch.nn.Module, object]) -> None:
    model = outlines_phi.from_transformers(*hf)
    free = outlines_phi.Generator(model, None, banned_phrases=BAN)
    options = {"max_new_tokens": 8, "do_sample": True, "top_k": 0}
    doors: dict[str, Callable[[], list[str]]] = {
        "call": lambda: [model("x", phi=None, banned_phrases=BAN, **options) for _ in range(MANY)],
        "generator": lambda: [free("x", phi=None, **options) for _ in range(MANY)],
        "batch": lambda: model.batch(["x"] * MANY, phi=None, banned_phrases=BAN, **options),
        "several": lambda: model("x", phi=None, banned_phrases=BAN, num_return_sequences=MANY, **options),
        "stream": lambda: ["".join(model.stream("x", phi=None, banned_phrases=BAN, **options)) for _ in range(MANY)],
        "lookahead": lambda: free.sample("x", MANY, max_new_tokens=8, seed=0).texts,
        "exact": lambda: free.sample("x", MANY, phi="exact", max_new_tokens=8, seed=0).texts,
    }
    for door, call in doors.items():
        texts = call()
        assert broken_words(texts), door
        assert [leak for text in texts for leak in leaks(BAN, text.encode(), b"x")] == [], door
