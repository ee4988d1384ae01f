"""Models that cannot be corrected say why; plain calls of what stock Outlines takes; its calls with ``phi=``, and its tokenizer."""

import gc
import pickle
import re
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import outlines
import pytest
import torch
import transformers
from outlines.backends.outlines_core import OutlinesCoreBackend
from outlines.generator import BlackBoxGenerator
from outlines.inputs import Chat
from outlines.models.base import AsyncModel, Model
from outlines.models.transformers import Transformers, TransformerTokenizer
from outlines.types import regex
from pydantic import BaseModel

from outlines_phi import (
    Draws,
    Generator,
    Guarantee,
    PhiTransformers,
    audit,
    ban,
    from_language_model,
    from_transformers,
    generate,
    wrap,
)
from outlines_phi.errors import UnsupportedError, VocabularyError
from outlines_phi.guides.fsm import END, TOKENS, is_byte_level
from outlines_phi.lm import TableModel, bundled
from outlines_phi.plugin.hosts.transformers import ByteTokenizer
from outlines_phi.plugin.mistakes import REFUSED
from outlines_phi.plugin.wrapping import HOSTS, OwnModel
from tests.languages import VOCABULARY
from tests.plugin.instruments import A_PERSON, seeded
from tests.refusals import refusals, refused

COLOUR = Literal["red", "green"]
FOREIGN = [
    kind
    for kind in vars(outlines.models).values()
    if isinstance(kind, type) and issubclass(kind, (Model, AsyncModel)) and kind not in (Model, *HOSTS)
]
"""Every model class of the installed Outlines but those that are wrapped."""

DOORS: dict[str, Callable[[Any], object]] = {
    "wrap": wrap,
    "Generator": lambda model: Generator(model, COLOUR),
    "generate": lambda model: generate.choice(model, ["a"]),
    "audit": lambda model: audit((model, COLOUR), "red"),
}

at_every_door = pytest.mark.parametrize("door", DOORS.values(), ids=list(DOORS))


def test_the_table_is_that_of_the_installed_outlines() -> None:
    assert {kind.__name__ for kind in FOREIGN} == set(REFUSED)


@at_every_door
@pytest.mark.parametrize("kind", FOREIGN, ids=lambda kind: kind.__name__)
def test_a_model_of_outlines_that_is_refused(kind: type, door: Callable[[Any], object]) -> None:
    """The remedy, the class and the reason in two sentences, and never that it should be wrapped."""
    caught = refused(rf"^Load .*from_transformers\(.*\. {kind.__name__} \w+ .*phi=", door, kind.__new__(kind))
    message = str(caught.value)
    assert "wrap" not in message and message.count(". ") == 1


class Mine(Transformers):
    pass


def bare(kind: type) -> Any:
    return kind.__new__(kind)


EXPECTED = r"given as model; expected a model made by outlines\.from_transformers\(hf_model, hf_tokenizer\)"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda stock: bare(type("Ours", (outlines.models.SGLang,), {})), r"\. Ours hands the output type to a server"),
        (
            lambda stock: BlackBoxGenerator(bare(outlines.models.OpenAI), COLOUR),
            r"\. OpenAI hands the output type to a service",
        ),
        (lambda stock: transformers.TextGenerationPipeline(stock.model, stock.hf_tokenizer), EXPECTED),
        (lambda stock: stock.hf_tokenizer, "given as model; expected a model made by"),
        (lambda stock: outlines.Generator(stock, COLOUR), "given as model; expected a model made by"),
        (
            lambda stock: Mine(stock.model, stock.hf_tokenizer),
            r"^Mine was given as model; a class of its own.*model\.hf_tokenizer\)\.$",
        ),
        (lambda stock: None, "^NoneType was " + EXPECTED),
    ],
)
def test_what_is_no_model_of_outlines_or_another_one(make: Callable[..., Any], words: str, stock: Transformers) -> None:
    """A derived class is named itself."""
    for door in (DOORS["wrap"], DOORS["Generator"]):
        refused(words, door, make(stock))


def unresized() -> tuple[Any, Any]:
    """A model whose embeddings were not resized after tokens were added to its tokenizer."""
    _, tokenizer = bundled.load()
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer) + 4, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, eos_token_id=tokenizer.eos_token_id, pad_token_id=1,
    )  # fmt: skip
    hf_model = transformers.Qwen3ForCausalLM(config).eval()
    tokenizer.add_tokens([f"<added {i}>" for i in range(6)])
    return hf_model, tokenizer


def encoder_decoder() -> tuple[Any, Any]:
    _, tokenizer = bundled.load()
    config = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=len(tokenizer), decoder_start_token_id=0,
        pad_token_id=1, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config).eval(), tokenizer


UNCORRECTABLE = pytest.mark.parametrize(
    ("made", "error", "message"),
    [(unresized, VocabularyError, "were not resized"), (encoder_decoder, UnsupportedError, "is an encoder-decoder")],
    ids=["tokens added", "encoder-decoder"],
)


@UNCORRECTABLE
class TestUncorrectable:
    def test_plain_calls_are_those_of_stock_outlines(self, made: Any, error: Any, message: str) -> None:
        stock = outlines.from_transformers(*made())
        wrapped = wrap(stock)
        options = {"max_new_tokens": 12, "do_sample": True}
        for call in (
            lambda model: model("red", COLOUR, **options),
            lambda model: model.batch(["red", "a car"], COLOUR, **options),
            lambda model: outlines.Generator(model, COLOUR)("red", num_return_sequences=3, **options),
            lambda model: model("red", **options),
        ):
            assert seeded(call, stock) == seeded(call, wrapped)
        refused("seed= was given without phi=", wrapped, "red", COLOUR, seed=1)

    def test_whatever_asks_for_a_correction_says_why_it_cannot_be_had(
        self, made: Any, error: Any, message: str
    ) -> None:
        hf_model, tokenizer = made()
        stock = outlines.from_transformers(hf_model, tokenizer)
        model = wrap(stock)
        for call in (
            lambda: model("red", COLOUR, phi="exact"),
            lambda: model("red", COLOUR, phi="exact"),  # it is not forgotten
            lambda: model.batch(["red"], COLOUR, phi="local"),
            lambda: outlines.Generator(model, COLOUR)("red", phi="auto"),
            lambda: model("red", banned_phrases=["green"]),
            lambda: list(model.stream("red", COLOUR, phi="local")),
            lambda: Generator(model, COLOUR),
            lambda: wrap(stock, phi="exact"),
            lambda: wrap(stock, banned_phrases=["green"]),
            lambda: ban(stock, ["green"]),
            lambda: from_transformers(hf_model, tokenizer),
        ):
            refused(message, call, error=error)


def test_what_was_mended_is_corrected() -> None:
    hf_model, tokenizer = unresized()
    model = wrap(outlines.from_transformers(hf_model, tokenizer))
    assert isinstance(model.tokenizer, TransformerTokenizer)
    before = outlines.Generator(model, COLOUR)
    hf_model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    texts = [model("red", COLOUR, phi="exact"), before("red", phi="exact"), model("red", COLOUR, max_new_tokens=12)]
    assert set(texts) <= {"red", "green"}


def test_a_model_in_training_mode_is_wrapped() -> None:
    hf_model, tokenizer = bundled.load()
    model = wrap(outlines.from_transformers(hf_model.train(), tokenizer))
    assert model("red", COLOUR, max_new_tokens=12) in ("red", "green")
    refused(r"call model\.eval\(\) first", model, "red", COLOUR, phi="exact")
    hf_model.eval()
    assert model("red", COLOUR, phi="exact", seed=1) == from_transformers(*bundled.load())(
        "red", COLOUR, phi="exact", seed=1
    )


Answer = Literal["a", "ab", "ba", "cc"]
PROMPT = "x"


LM = TableModel.random(VOCABULARY, seed=3)


def encode(text: str) -> list[int]:
    """Write a prompt letter by letter."""
    return [VOCABULARY.tokens.index(letter.encode()) for letter in text]


@pytest.fixture(scope="module")
def host() -> OwnModel:
    return from_language_model(LM, encode)


def test_a_default_of_the_host_holds_in_its_calls() -> None:
    host = from_language_model(LM, encode, phi="exact", banned_phrases=["a"])
    assert {host(PROMPT, Answer, seed=seed) for seed in range(5)} == {"cc"}


def test_prompts_may_be_token_ids(host: OwnModel) -> None:
    assert from_language_model(LM)(encode(PROMPT), Answer, seed=1) == host(PROMPT, Answer, seed=1)


NO_LOOP, NO_PROMPT = (
    "Give phi='local' for plain masking. OwnModel has no loop of its own",
    "a text or a sequence of token ids",
)
test_what_a_host_of_a_few_lines_refuses = refusals(
    [
        (lambda host: host(PROMPT, Answer, phi=None), NO_LOOP),
        (lambda host: host.stream(PROMPT, Answer, phi=None), NO_LOOP),
        *(
            (lambda host, given=given: host(given, Answer), NO_PROMPT)
            for given in (3, None, [0.5], ["x"], [[1]], [True])
        ),
        (lambda host: host("no such letters", Answer), "raised ValueError .* for the prompt 'no such letters'"),
        (lambda host: host(PROMPT, Answer, tokenization="canonical"), "tokenizer"),
        (lambda host: from_language_model(LM)(PROMPT, Answer), "Give encode= to from_language_model"),
        (lambda host: from_language_model(object()), "LanguageModel"),
        (lambda host: from_language_model(LM, "abc"), "a function"),
    ],
    fixture="host",
)

NUMBER = regex("[0-9]{2,3}")
SHADES = Literal["red", "green", "dark green"]


class Character(BaseModel):
    kind: Literal["elf", "dwarf"]
    level: Literal[1, 2, 3]


def holds(output_type: Any, text: str) -> bool:
    if output_type is Character:
        return isinstance(Character.model_validate_json(text), Character)
    return text in get_args(SHADES) if output_type is SHADES else re.fullmatch("[0-9]{2,3}", text) is not None


TYPES = [NUMBER, SHADES, Character]


def ask(model: Any, prompt: str, output_type: Any, template: Any, **k: Any) -> str:
    return outlines.Application(template, output_type)(model, {"text": prompt}, **k)


TEMPLATE = outlines.Template.from_string("{{ text }}")
ROADS: dict[str, Callable[..., str]] = {
    "model": lambda model, prompt, kind, **k: model(prompt, kind, **k),
    "model.batch": lambda model, prompt, kind, **k: model.batch([prompt], kind, **k)[0],
    "Generator": lambda model, prompt, kind, **k: outlines.Generator(model, kind)(prompt, **k),
    "Generator.batch": lambda model, prompt, kind, **k: outlines.Generator(model, kind).batch([prompt], **k)[0],
    "Application": lambda model, prompt, kind, **k: ask(model, prompt, kind, "{text}".format, **k),
    "Template": lambda model, prompt, kind, **k: ask(model, prompt, kind, TEMPLATE, **k),
    "outlines_phi.Generator": lambda model, prompt, kind, **k: Generator(model, kind)(prompt, **k),
}
COMPILED_BY_OUTLINES = {"Generator", "Generator.batch", "Application", "Template"}


def chat_model(**options: Any) -> PhiTransformers:
    hf_model, tokenizer = bundled.load()
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    return from_transformers(hf_model, tokenizer, **options)


@pytest.mark.parametrize("output_type", TYPES, ids=["regex", "Literal", "pydantic"])
@pytest.mark.parametrize(("phi", "guarantee"), [("exact", Guarantee.EXACT), ("local", Guarantee.WEIGHTED)])
def test_a_seed_gives_one_result_on_every_road(
    output_type: Any, phi: str, guarantee: Guarantee, model: PhiTransformers, drawn: list[Draws]
) -> None:
    texts = {name: road(model, A_PERSON, output_type, phi=phi, seed=4) for name, road in ROADS.items()}
    own, theirs = (
        {text for name, text in texts.items() if (name in COMPILED_BY_OUTLINES) == there} for there in (False, True)
    )
    assert len(own) == len(theirs) == 1 and all(holds(output_type, text) for text in own | theirs)
    # The pattern that Outlines makes of a schema has blanks in other places, so other draws.
    assert output_type is Character or own == theirs
    assert {draws.guarantee for draws in drawn} == {guarantee} and len(drawn) == len(ROADS)


@pytest.mark.parametrize("phi", ["exact", "local", "onestep"])
def test_several_draws_are_a_list_on_every_road(phi: str, model: PhiTransformers, drawn: list[Draws]) -> None:
    """One is a text, as in stock Outlines, and an empty batch is empty."""
    texts = model(A_PERSON, NUMBER, phi=phi, num_return_sequences=5, seed=0)
    assert isinstance(texts, list) and len(texts) == 5 and all(holds(NUMBER, text) for text in texts)
    assert len(drawn[0]) == 5
    assert [len(row) for row in model.batch([A_PERSON, "no"], NUMBER, phi=phi, num_return_sequences=3, seed=0)] == [
        3,
        3,
    ]
    assert isinstance(model(A_PERSON, SHADES, phi=phi, num_return_sequences=1), str)
    for road in (phi, None):
        assert model.batch([], SHADES, phi=road) == outlines.Generator(model, SHADES).batch([], phi=road) == []


def test_a_chat_goes_through_the_template() -> None:
    """A text is a user's message where there is a template."""
    model, plain, options = chat_model(), from_transformers(*bundled.load()), {"phi": "local", "seed": 3}
    chat = Chat([{"role": "system", "content": "Be short."}, {"role": "user", "content": A_PERSON}])
    expected = plain(f"system: Be short.\nuser: {PROMPT}\nassistant: ", NUMBER, **options)
    assert model(chat, NUMBER, **options) == expected
    assert outlines.Generator(model, NUMBER).batch([chat], **options) == [expected]
    said = Chat([{"role": "user", "content": A_PERSON}])
    assert chat_model()(A_PERSON, Character, **options) == chat_model()(said, Character, **options)


def test_wrap_leaves_the_original_as_it_is() -> None:
    original = outlines.from_transformers(*bundled.load())
    before = dict(vars(original))
    wrapped = wrap(original)
    assert vars(original) == before
    assert isinstance(wrapped, outlines.models.Transformers)
    assert wrap(wrapped, phi="exact").model is original.model


@pytest.mark.parametrize("phi", ["exact", "local"])
class TestSeeds:
    def test_a_seeded_call_does_not_depend_on_what_ran_before(self, phi: str, fresh: PhiTransformers) -> None:
        draw = partial(fresh, A_PERSON, NUMBER, phi=phi, num_return_sequences=4)
        first = draw(seed=11)
        fresh(A_PERSON, NUMBER, phi=phi, num_return_sequences=3)
        fresh("something else", SHADES, phi=phi)
        assert draw(seed=11) == first
        fresh.clear_cache()
        assert draw(seed=11) == first != draw(seed=12)


def test_a_processor_does_not_outlive_its_generator(fresh: PhiTransformers) -> None:
    generator = outlines.Generator(fresh, SHADES)
    generator(A_PERSON, phi="exact")
    processor = weakref.ref(generator.logits_processor)
    del generator
    gc.collect()
    assert processor() is None


TEXTS = ["plain", "é ☃ 🦊", " leading", "two\nlines", "\x00"]


def test_it_encodes_and_decodes_as_the_model_does_and_stock_outlines_builds_its_index_over_it(
    model: PhiTransformers, stock: outlines.models.Transformers
) -> None:
    for ours, theirs in zip(model.tokenizer.encode(TEXTS), stock.tokenizer.encode(TEXTS), strict=True):
        assert torch.equal(ours, theirs)
    ids, mask = model.tokenizer.encode(TEXTS)
    rows = [row[kept.bool()] for row, kept in zip(ids, mask, strict=True)]
    assert [model.tokenizer.decode([row])[0] for row in rows] == TEXTS
    vocabulary = OutlinesCoreBackend(model).vocabulary
    assert (len(vocabulary), vocabulary.get_eos_token_id()) == (len(TOKENS) + 1, END)
    assert vocabulary.get(b"\xc3") == [0xC3]
    assert is_byte_level(outlines.Generator(model, bool).logits_processor.index)
    assert not is_byte_level(outlines.Generator(stock, bool).logits_processor.index)


def test_it_shows_bytes_and_the_pairs_that_may_follow_a_character() -> None:
    assert TOKENS[:256] == tuple(bytes([byte]) for byte in range(256)) and len(set(TOKENS)) == len(TOKENS) < END
    # Of a few more (overlong forms, surrogates) no automaton of texts allows any.
    codes = {*range(0x800), *range(0x800, 0x110000, 64)} - {*range(0xD800, 0xE000)}  # 64 in a row share two bytes
    characters = {chr(code).encode() for code in codes}
    firsts, beginnings = {one[:1] for one in characters}, {one[:2] for one in characters}
    assert {(one + other)[:2] for one in beginnings for other in firsts} <= set(TOKENS[256:])


def test_it_survives_pickling_and_the_model_keeps_its_own(model: PhiTransformers) -> None:
    copy = pickle.loads(pickle.dumps(model.tokenizer))
    assert isinstance(copy, ByteTokenizer)
    assert (copy.eos_token_id, copy.get_vocab()) == (END, model.tokenizer.get_vocab())
    assert model.hf_tokenizer.eos_token_id == model.model.generation_config.eos_token_id
    assert model.hf_tokenizer.pad_token_id is not None
    refused(None, lambda: model.hf_tokenizer.get_vocab()["c3a9c3a9"], error=KeyError)
