"""Models that cannot be corrected say what they are, why, and what to do; plain calls of what stock Outlines takes work; and a host
of a few lines has every call that needs no loop of its own (what all hosts promise is in ``tests/hosts``)."""

from collections.abc import Callable
from typing import Any, Literal

import outlines
import pytest
import transformers
from outlines.generator import BlackBoxGenerator
from outlines.models.base import AsyncModel, Model
from outlines.models.transformers import Transformers, TransformerTokenizer

from outlines_phi import Generator, audit, ban, from_language_model, from_transformers, generate, wrap
from outlines_phi.errors import UnsupportedError, VocabularyError
from outlines_phi.lm import TableModel, bundled
from outlines_phi.plugin.mistakes import REFUSED
from outlines_phi.plugin.wrapping import HOSTS, OwnModel
from tests.languages import VOCABULARY
from tests.plugin.instruments import seeded

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
    with pytest.raises(
        UnsupportedError, match=rf"^Load .*from_transformers\(.*\. {kind.__name__} \w+ .*phi="
    ) as caught:
        door(kind.__new__(kind))
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
        with pytest.raises(UnsupportedError, match=words):
            door(make(stock))


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
        with pytest.raises(UnsupportedError, match="seed= was given without phi="):
            wrapped("red", COLOUR, seed=1)

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
            with pytest.raises(error, match=message):
                call()


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
    with pytest.raises(UnsupportedError, match=r"call model\.eval\(\) first"):
        model("red", COLOUR, phi="exact")
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
OF_A_HOST: list[tuple[Callable[[OwnModel], Any], str]] = [
    (lambda host: host(PROMPT, Answer, phi=None), NO_LOOP),
    (lambda host: host.stream(PROMPT, Answer, phi=None), NO_LOOP),
    *((lambda host, given=given: host(given, Answer), NO_PROMPT) for given in (3, None, [0.5], ["x"], [[1]], [True])),
    (lambda host: host("no such letters", Answer), "raised ValueError .* for the prompt 'no such letters'"),
    (lambda host: host(PROMPT, Answer, tokenization="canonical"), "tokenizer"),
    (lambda host: from_language_model(LM)(PROMPT, Answer), "Give encode= to from_language_model"),
    (lambda host: from_language_model(object()), "LanguageModel"),
    (lambda host: from_language_model(LM, "abc"), "a function"),
]


@pytest.mark.parametrize(("call", "words"), OF_A_HOST, ids=[words for _, words in OF_A_HOST])
def test_what_a_host_of_a_few_lines_refuses(call: Callable[[OwnModel], Any], words: str, host: OwnModel) -> None:
    with pytest.raises(UnsupportedError, match=words):
        call(host)
