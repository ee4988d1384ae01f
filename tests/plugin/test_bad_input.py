"""Bad input is a typed error that says what to do."""

import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import outlines
import pytest
import torch
import transformers
from outlines.inputs import Audio, Chat
from outlines.types import cfg, json_schema, regex
from outlines.types.dsl import Choice, either, optional
from pydantic import BaseModel, Field

from outlines_phi import (
    BigramDPPhi,
    Draws,
    Generator,
    PhiTransformers,
    StateValues,
    audit,
    errors,
    from_transformers,
    generate,
    limits,
    wrap,
)
from outlines_phi.errors import EmptyLanguageError, GrammarError, ModelError, UnsupportedError, VocabularyError
from tests.inner import Phi, bundled, current_limits
from tests.refusals import refusals, refused

PROMPT = "A person as JSON: "
COLOUR = Literal["red", "green"]


class Nothing(Enum):
    pass


class Shade(str, Enum):
    DARK = "dark"


@dataclass
class Pair:
    one: int


class Person(BaseModel):
    name: str


class Unreadable(BaseModel):
    call: type  # pydantic has no JSON schema for it


class Bounds(BaseModel):
    name: Annotated[str, Field(min_length=5, max_length=2)]


def schema(**keywords: Any) -> Any:
    return json_schema(keywords)


TYPES: list[tuple[str, Any, type[Exception], str]] = [
    ("text", "[a-z]+", UnsupportedError, r"is the str .* Wrap it: outlines\.types\.regex\('\[a-z\]\+'\)"),
    ("bytes", b"a", UnsupportedError, r"is the bytes .* Wrap it"),
    ("dict", {"type": "object"}, UnsupportedError, r"is the dict .* outlines\.types\.json_schema\(schema\)"),
    ("list", ["a", "b"], UnsupportedError, r"is the list .* Give typing\.Literal\[tuple\(items\)\] for"),
    ("set", {"b", "a"}, UnsupportedError, r"Give typing\.Literal\[tuple\(items\)\] for"),
    ("tuple", ("a", 1), UnsupportedError, r"Give typing\.Literal\[tuple\(items\)\] for"),
    ("long list", list("abcdefghijk"), UnsupportedError, r"Literal\[tuple\(items\)\] for"),
    ("list of types", [int, str], UnsupportedError, r"typing\.Union for several types"),
    (
        "schema as text",
        '{"type": "object"}',
        UnsupportedError,
        r"outlines\.types\.json_schema\(schema\) if it is a JSON",
    ),
    ("instance", Person(name="a"), UnsupportedError, "Give the class Person, not an instance"),
    ("dataclass instance", Pair(1), UnsupportedError, "Give the class Pair, not an instance"),
    ("member", Shade.DARK, UnsupportedError, "Give the class Shade, not an instance"),
    ("date", date(2024, 1, 31), UnsupportedError, "Give the class date, not an instance"),
    ("not a type", object(), UnsupportedError, "is not an output type that Outlines reads"),
    ("grammar as a part, of nothing", optional(cfg('start: "a" start')), EmptyLanguageError, "derives no text"),
    ("JSON of any shape as a part", list[dict], UnsupportedError, "part of an output type, .*JSON of any shape"),
    ("grammar", cfg("start: 'a'"), GrammarError, r"column 8\n  start: 'a'\n         \^"),
    ("rule without a definition", cfg('start: "a" b'), GrammarError, r"\n +\^"),
    ("empty terminal", cfg("start: A\nA: /a*/"), GrammarError, "terminal A matches the empty text"),
    ("grammar of nothing", cfg('start: "a" start'), EmptyLanguageError, "derives no text"),
    (
        "lexer that reads ahead",
        cfg('start: A B\nA: /a(b*c)?/\nB: "b"'),
        GrammarError,
        "no bounded number of bytes tells .*'ab'",
    ),
    ("empty Literal", Literal[()], EmptyLanguageError, "Give at least one alternative.* choice of nothing"),
    ("empty Enum", Nothing, EmptyLanguageError, "Nothing.* choice of nothing"),
    ("empty Choice", Choice([]), EmptyLanguageError, "choice of nothing"),
    ("Choice of bytes", Choice([b"a"]), UnsupportedError, "not supported"),
    ("Choice of no list", Choice(3), UnsupportedError, "no len"),
    ("empty either", optional(either() + regex("a")), EmptyLanguageError, "choice of nothing"),
    (
        "empty enum in a schema",
        schema(type="object", properties={"a": {"enum": []}}, required=["a"]),
        EmptyLanguageError,
        "Relax #/properties/a/enum",
    ),
    ("matches nothing", regex(r"[^\s\S]"), EmptyLanguageError, "matches nothing"),
    ("class not closed", regex("ab[c"), GrammarError, r"line 1, column 3\n  ab\[c\n    \^$"),
    ("class inside a group", regex("([0-9)"), GrammarError, r"line 1, column 2\n  \(\[0-9\)\n   \^$"),
    ("part of a term", optional("x" + regex("a|*b")), GrammarError, r"column 3\n  a\|\*b\n    \^$"),
    ("anchors", regex("a^b$c"), EmptyLanguageError, r"matches nothing"),
    ("nothing to repeat", regex("a|*b"), GrammarError, r"\n +\^"),
    ("group not closed", regex("(ab"), GrammarError, r"\n +\^"),
    ("bounds out of order", regex("a{3,1}"), GrammarError, r"\n +\^"),
    (
        "unknown class",
        regex(r"a\p{Foo}"),
        UnsupportedError,
        r"^List the characters .*'Foo' at offset 1, which is not known",
    ),
    ("look-ahead", regex("a(?=b)"), EmptyLanguageError, "matches nothing"),
    ("look-behind", regex("(?<!a|^)b"), EmptyLanguageError, "matches nothing"),
    ("back-reference", regex(r"(a)\1"), UnsupportedError, "^Write out .* a back-reference at offset 3, which is not"),
    ("word boundary", regex(r"foo\bbar$"), EmptyLanguageError, "matches nothing"),
    ("too large", regex("a{99999999}"), UnsupportedError, "^Lower the bounds .*The pattern"),
    ("impossible bounds", Bounds, EmptyLanguageError, "Relax #/properties/name/m..Length of the JSON"),
    (
        "impossible items",
        schema(type="array", items={"type": "integer"}, minItems=3, maxItems=1),
        EmptyLanguageError,
        "Relax #/minItems of the JSON schema",
    ),
    ("schema keyword", schema(pattern=r"(a)\1"), UnsupportedError, "at #/pattern of the JSON schema"),
    (
        "schema fetched",
        schema(**{"$ref": "https://example.org/a"}),
        UnsupportedError,
        "Put what 'https://example.org/a' refers to",
    ),
    ("schema reference", schema(**{"$ref": "#/definitions/x"}), UnsupportedError, "nothing in the document answers"),
    ("no schema", Unreadable, UnsupportedError, "Give a type that is written as JSON.* At #/properties/call"),
]


@pytest.mark.parametrize(("output_type", "error", "message"), [c[1:] for c in TYPES], ids=[c[0] for c in TYPES])
def test_an_output_type(output_type: Any, error: type[Exception], message: str, model: PhiTransformers) -> None:
    for call in (lambda: model(PROMPT, output_type, phi="exact"), lambda: Generator(model, output_type)):
        caught = refused(message, call, error=error)
        assert isinstance(caught.value, errors.OutlinesPhiError) and isinstance(caught.value, ValueError)


def nested(depth: int) -> Any:
    kind: Any = bool
    for _ in range(depth):
        kind = list[kind]
    return kind


DEEP: dict[str, tuple[Callable[[PhiTransformers], object], type[Exception], str]] = {
    "groups": (
        lambda model: Generator(model, regex("(" * 5_000 + "a" + ")" * 5_000)),
        UnsupportedError,
        "smaller format, or raise the limit.*groups inside each other",
    ),
    "lists": (
        lambda model: model(PROMPT, nested(5_000), phi="exact"),
        UnsupportedError,
        "Write the output type with fewer levels.* nested too deeply",
    ),
    "a schema": (
        lambda model: generate.json(model, '{"items": ' * 5_000 + "{}" + "}" * 5_000),
        UnsupportedError,
        "Write the JSON schema with fewer levels.* nested too deeply",
    ),
    "digits": (
        lambda model: generate.json(model, f'{{"type": "integer", "maximum": {"9" * 10_000}}}'),
        GrammarError,
        "and smaller numbers. The schema cannot be read: .* 10000 digits",
    ),
    "a grammar": (
        lambda model: Generator(model, cfg("start: " + "(" * 5_000 + '"a"' + ")" * 5_000)),
        UnsupportedError,
        "smaller format, or raise the limit.*inside each other",
    ),
    "a grammar without end": (
        lambda model: Generator(model, cfg('start: a{b}\nb: "b"\na{x}: x | a{a{x}}')),
        GrammarError,
        "contains itself with ever larger arguments",
    ),
}


@pytest.mark.parametrize("name", DEEP)
def test_what_is_thousands_of_levels_deep(name: str, model: PhiTransformers) -> None:
    call, error, message = DEEP[name]
    assert len(str(refused(message, call, model, error=error).value)) < 600


class Taken(typing.TypedDict):
    taken: bool


@dataclass
class Held:
    taken: Taken


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic reads it there")
@pytest.mark.parametrize("door", [Generator, generate.json])
def test_a_typed_dict_of_typing_says_what_to_import(door: Callable[..., Any], model: PhiTransformers) -> None:
    types: list[Any] = [Taken, Held, *([] if door is generate.json else [list[Taken], Taken | None])]
    for output_type in types:
        refused("Write `from typing_extensions import TypedDict`.* before Python 3.12", door, model, output_type)


class Foreign(Phi):
    name = "foreign"
    needs = frozenset()


CALLS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("phi", {"phi": "banana"}, UnsupportedError, "phi='banana' was given; expected 'auto'"),
    ("phi misspelt", {"phi": "DP_bigram"}, UnsupportedError, r"given \(did you mean 'dp-bigram'\?\); expected 'auto'"),
    (
        "phi that is gone",
        {"phi": "dp-frozen"},
        UnsupportedError,
        r"not here any more \(give 'dp' or 'learned', or a copy of it, which is benchmarks/estimators/dp_frozen\.py",
    ),
    ("phi as a class", {"phi": BigramDPPhi}, UnsupportedError, r"did you mean BigramDPPhi\(\)\?"),
    ("values as phi", {"phi": StateValues()}, UnsupportedError, r"did you mean LearnedPhi\(values\)\?"),
    ("option of a sampler", {"phi": "local", "particles": 5}, UnsupportedError, r"give sampler=SMC\(particles="),
    ("option of an estimator", {"phi": "exact", "tolerance": 0.1}, UnsupportedError, r"give phi=ExactPhi\(tolerance="),
    (
        "phi of another kind",
        {"phi": Foreign()},
        UnsupportedError,
        "expected 'auto', 'exact', 'local', 'onestep', .*, an estimator",
    ),
    ("keyword", {"max_length": 20}, UnsupportedError, "max_length cannot be used here .give max_new_tokens="),
    (
        "greedy",
        {"do_sample": False, "phi": "local"},
        UnsupportedError,
        "phi=None for Hugging Face's step-by-step argmax",
    ),
    ("greedy, as a number", {"do_sample": 0}, UnsupportedError, "phi=None for Hugging Face's step-by-step argmax"),
    ("beams", {"num_beams": 2}, UnsupportedError, "num_beams cannot be used here .beam search has no"),
    ("temperature", {"temperature": 0.0}, UnsupportedError, "temperature=0.0 was given; .* do_sample=False gives"),
    ("no draws", {"num_return_sequences": 0}, UnsupportedError, "num_return_sequences=0"),
    ("no tokens", {"max_new_tokens": 0}, UnsupportedError, "max_new_tokens=0"),
    ("seed without phi", {"phi": None, "seed": 1}, UnsupportedError, r"torch\.manual_seed\(seed\)"),
    ("backend", {"backend": "regex"}, UnsupportedError, "backend='regex' was given; expected one of outlines_core"),
    ("backend without phi", {"backend": "regex", "phi": None}, UnsupportedError, "expected one of outlines_core"),
    ("no type", {"output_type": None}, UnsupportedError, "phi= was given without an output type"),
    ("truncation, exact", {"top_k": 1}, EmptyLanguageError, r"under top_k=1; .* Loosen the truncation"),
    ("truncation, local", {"top_k": 1, "phi": "local"}, EmptyLanguageError, "top_k=1 leaves no allowed token"),
    ("truncation, onestep", {"top_p": 0.01, "phi": "onestep"}, EmptyLanguageError, "top_p=0.01 leaves no allowed"),
]


@pytest.mark.parametrize(("options", "error", "message"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
def test_call(options: dict[str, Any], error: type[Exception], message: str, model: PhiTransformers) -> None:
    options = {"output_type": regex("☃{3}"), "phi": "exact", **options}  # nothing that the model would write
    assert isinstance(refused(message, model, PROMPT, **options, error=error).value, errors.OutlinesPhiError)
    refused(message, model.batch, [PROMPT, "no"], **options, error=error)


@pytest.mark.parametrize("output_type", [COLOUR, regex("[a-z]{9}"), bool, regex("")], ids=str)
def test_a_budget_that_is_too_small_names_the_least_that_works(output_type: Any, model: PhiTransformers) -> None:
    least = model.table(output_type).guide.min_tokens(model.table(output_type).start)
    for phi in ("exact", "local"):
        if least > 1:
            caught = refused(
                f"Give max_new_tokens={least} or more",
                model,
                PROMPT,
                output_type,
                phi=phi,
                max_new_tokens=least - 1,
                error=EmptyLanguageError,
            )
            assert caught.value.least_budget == least
        (draw,) = Generator(model, output_type, phi=phi).sample(PROMPT, max_new_tokens=least)
        assert len(draw.token_ids) == least


def test_texts_of_a_set_with_failures_are_refused(model: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = Generator(model, COLOUR, phi="local").sample(PROMPT, 3)
    incomplete = Draws(items=draws.items, counts=draws.counts, budget=draws.budget, failures=2)
    monkeypatch.setattr(model, "draw", lambda *_: [incomplete])
    refused(
        r"\.sample\(prompt, n=\.\.\.\)\. 2 of 5 trajectories",
        model,
        PROMPT,
        COLOUR,
        phi="local",
        top_k=5,
        num_return_sequences=5,
        error=EmptyLanguageError,
    )


PROMPTS: list[tuple[Any, str]] = [
    ("", r"^(The prompt|Prompt 1 of 2 \(counted from 0\)) has no tokens"),
    (None, "^Give a str .* The prompt None cannot be read: it is of type NoneType;"),
    (5, "^Give a str .* The prompt 5 cannot be read: it is of type int;"),
    (["a", "b"], r"batch\(\) takes a list"),
    ("\ud800", "Give a str of valid Unicode"),
    (Chat([{"role": "user", "content": "hi"}]), "has a chat template"),
    (Chat([{"role": "user", "content": ["hi", Audio(b"")]}]), "^Give messages of text alone"),
]


@pytest.mark.parametrize(("prompt", "words"), PROMPTS, ids=[words for _, words in PROMPTS])
@pytest.mark.parametrize("phi", ["exact", "local", None])
def test_prompt(prompt: Any, words: str, phi: str | None, model: PhiTransformers) -> None:
    refused(words, model, prompt, COLOUR, phi=phi)
    if phi is not None or prompt != "":  # Hugging Face's loop reads it as padding there
        refused(words, model.batch, ["fine", prompt], COLOUR, phi=phi)


NO_TOKENS, NO_LIST = (
    "has no tokens, so the model has nothing to condition on",
    "A str was given as the prompts of a batch",
)
test_prompts_of_doors = refusals(
    [
        (lambda m: m(""), NO_TOKENS),
        (lambda m: next(m.stream("")), NO_TOKENS),
        (lambda m: m.batch(["", ""], COLOUR), NO_TOKENS),
        (lambda m: m.batch("abc", COLOUR, phi="exact"), NO_LIST),
        (lambda m: m.batch("abc", COLOUR, phi=None), NO_LIST),
        *(
            (
                lambda m, door=door: getattr(Generator(m, COLOUR), door)([PROMPT, PROMPT]),
                rf"A list of 2 was given as prompt; .* {door}_batch\(\) takes a list",
            )
            for door in ("sample", "probabilities", "mode")
        ),
    ]
)


def test_a_prompt_longer_than_the_context(model: PhiTransformers) -> None:
    limit = model.lm.max_length
    assert limit is not None
    ids = model.hf_tokenizer("a" + " a" * limit)["input_ids"]
    refused(
        rf"has {len(ids)} tokens and the model's context {limit}; .* Shorten the prompt",
        model,
        "a" + " a" * limit,
        COLOUR,
        phi="exact",
        error=ModelError,
    )
    least = model.table(COLOUR).guide.min_tokens(model.table(COLOUR).start)
    longest = model.hf_tokenizer.decode(ids[: limit + 1 - least])
    assert model(longest, COLOUR, phi="exact") in ("red", "green"), "the context holds exactly the shortest output"


def qwen(rows: int) -> Any:
    config = transformers.Qwen3Config(
        vocab_size=rows, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, eos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    return transformers.Qwen3ForCausalLM(config)


def model_of(kind: str) -> Any:
    """A tiny model of another architecture, or of another size of the vocabulary, and the tokenizer."""
    _, tokenizer = bundled.load()
    size, attention = len(tokenizer), {"num_hidden_layers": 1, "num_attention_heads": 2}
    bert = transformers.BertConfig(hidden_size=16, vocab_size=size, **attention)
    t5 = transformers.T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=size)
    made = {
        "BERT": lambda: transformers.BertModel(bert),
        "masked BERT": lambda: transformers.BertForMaskedLM(bert),
        "T5": lambda: transformers.T5ForConditionalGeneration(t5),
        "short": lambda: qwen(size - 1),
        "long": lambda: qwen(size + 50),
    }
    return made[kind]().eval(), tokenizer


class Processor:
    tokenizer = None


def hf() -> tuple[Any, Any]:
    return bundled.load()


LOADED = r"outlines_phi\.from_transformers\(AutoModelForCausalLM\.from_pretrained\({0}\), AutoTokenizer\.from_pretrained\({0}\)\)"
NAMED, BOTH = (
    "Load it first, by " + LOADED.format("'Q/x'"),
    "Give both: .*" + LOADED.format("name") + ".* without its tokenizer",
)
SWAPPED = r"were the arguments swapped\?"
MODELS: list[tuple[Callable[[], Any], str]] = [
    (lambda: from_transformers(*model_of("T5")), "encoder-decoder"),
    (lambda: wrap(outlines.from_transformers(*model_of("T5")), phi="exact"), "encoder-decoder"),
    (lambda: from_transformers(*model_of("BERT")), "AutoModelForCausalLM"),
    (lambda: from_transformers(*model_of("masked BERT")), "AutoModelForCausalLM"),
    (lambda: from_transformers(*model_of("short")), "do not belong together"),
    (lambda: from_transformers(hf()[0], Processor()), "Multimodal models, whose tokenizer is a processor"),
    (lambda: from_transformers(hf()[0], None), "expected a text tokenizer"),
    (lambda: from_transformers("Q/x", "Q/x"), NAMED),
    (lambda: from_transformers(hf()[0], "Q/x"), NAMED),
    (lambda: from_transformers("Q/x", hf()[1]), NAMED),
    (lambda: wrap("Q/x"), NAMED),
    (lambda: Generator("Q/x", COLOUR), NAMED),
    (lambda: generate.choice("Q/x", ["a"]), NAMED),
    (lambda: wrap(hf()[0]), BOTH),
    (lambda: Generator(hf()[0], COLOUR), BOTH),
    (lambda: generate.choice(hf()[0], ["a"]), BOTH),
    (lambda: audit((hf()[0], COLOUR), PROMPT), BOTH),
    (lambda: from_transformers(*reversed(hf())), r"from_transformers\(hf_model, hf_tok.* " + SWAPPED),
    (lambda: Generator(Person, outlines.from_transformers(*hf())), "class Person was .* " + SWAPPED),
    *(
        (lambda given=given: from_transformers(given, hf()[1]), r"load one with AutoModelForCausalLM\.from_pretrained")
        for given in (3, None, object())
    ),
    *(
        (lambda given=given: wrap(given), r"expected a model made by outlines\.from_transformers")
        for given in (3, None, object())
    ),
    (lambda: from_transformers(hf()[0].train(), hf()[1]), r"call model\.eval\(\) first"),
]


@pytest.mark.parametrize(("call", "words"), MODELS, ids=[words for _, words in MODELS])
def test_a_model(call: Callable[[], Any], words: str) -> None:
    caught = refused(words, call, error=(UnsupportedError, VocabularyError))
    assert words != NAMED or "Multimodal" not in str(caught.value)


def test_rows_beyond_the_tokenizer_are_never_drawn() -> None:
    hf_model, tokenizer = model_of("long")
    with torch.no_grad():
        hf_model.get_output_embeddings().weight[-50:] *= 1e3
    draws = Generator(from_transformers(hf_model, tokenizer), COLOUR).sample("red", 9)
    assert max(max(draw.token_ids) for draw in draws) < len(tokenizer)
    assert draws.log_z > -50, "they have no mass either"


@pytest.mark.parametrize("phi", ["exact", "local", "onestep", None])
@pytest.mark.parametrize("called_before", [True, False])
def test_nan(called_before: bool, phi: str | None) -> None:
    model = from_transformers(*bundled.load())
    if called_before:
        model(PROMPT, COLOUR, phi=phi, max_new_tokens=9)
    with torch.no_grad():
        model.model.model.norm.weight.fill_(torch.nan)
    refused("NaN", model, PROMPT, COLOUR, phi=phi, max_new_tokens=9, error=ModelError)


def test_a_limit_holds_inside_its_block_alone() -> None:
    before = current_limits()
    with limits(states=7), limits(nesting=3) as inner:
        assert (inner.states, inner.nesting, inner.source) == (7, 3, before.source)
        refused(
            r"limits\(states=8\).*pattern is 8, more than 7",
            inner.check,
            "states",
            8,
            "The number of states of this pattern",
        )
    assert current_limits() == before


@pytest.mark.parametrize("bounds", [{"sates": 1}, {"states": 0}, {"states": True}, {"states": "many"}])
def test_what_is_no_limit_is_refused(bounds: dict[str, int]) -> None:
    with pytest.raises(UnsupportedError, match="Give"), limits(**bounds):
        pass
