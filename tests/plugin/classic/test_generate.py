"""The classic API: what its functions return, under which law, and what they refuse."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, time
from enum import Enum
from typing import Any, Literal

import interegular
import outlines
import pytest
import torch
from genson import SchemaBuilder
from outlines.inputs import Chat
from outlines.types import Regex, sentence
from outlines.types.dsl import JsonSchema
from pydantic import BaseModel

import outlines_phi
from outlines_phi import ExactPhi, PhiTransformers, SamplingSettings, ValueReadError, generate, samplers
from outlines_phi.errors import EmptyLanguageError, GrammarError, OutlinesPhiError, UnsupportedError
from outlines_phi.plugin.classic.generate import ClassicGenerator
from outlines_phi_workbench.suite.reference import enumerate_language
from tests.languages import ALPHA, DRAWS, p_value

PROMPT = "Question: is the bakery open on Monday? Answer: "
WORDS = ["yes", "no", "not now", "nobody"]
BUDGET = 12


class Answer(BaseModel):
    open: bool


class Colour(Enum):
    RED = "yes"
    BLUE = "no"


class Number(Enum):
    ONE = 1
    HALF = 0.5


@dataclasses.dataclass
class Flag:
    up: bool


def switch(on: bool) -> None: ...


# Python 3.13 wants to be told that a partial is a member; 3.10 has no way to say so.
member_of_enum = getattr(enum, "member", lambda value: value)


class Tool(Enum):
    SWITCH = member_of_enum(functools.partial(switch))
    NONE = "none"


BUILDER = SchemaBuilder()
BUILDER.add_object({"a": True})
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
OBJECTS = ({"a": True}, {"a": False})

FUNCTIONS: list[tuple[str, Callable[..., ClassicGenerator], Callable[[Any], bool]]] = [
    ("json, pydantic", lambda m, **k: generate.json(m, Answer, **k), lambda v: isinstance(v, Answer)),
    ("json, dataclass", lambda m, **k: generate.json(m, Flag, **k), lambda v: v in (Flag(True), Flag(False))),
    ("json, function", lambda m, **k: generate.json(m, switch, **k), lambda v: v in ({"on": True}, {"on": False})),
    ("json, text", lambda m, **k: generate.json(m, json.dumps(SCHEMA), **k), lambda v: v in OBJECTS),
    ("json, dict", lambda m, **k: generate.json(m, SCHEMA, **k), lambda v: v in OBJECTS),
    ("json, schema", lambda m, **k: generate.json(m, JsonSchema(SCHEMA), **k), lambda v: v in OBJECTS),
    ("json, Enum", lambda m, **k: generate.json(m, Colour, **k), lambda v: v in Colour),
    ("json, Enum of numbers", lambda m, **k: generate.json(m, Number, **k), lambda v: isinstance(v, Number)),
    ("regex, text", lambda m, **k: generate.regex(m, "[0-9]{2}", **k), lambda v: len(v) == 2 and v.isdigit()),
    ("regex, named", lambda m, **k: generate.regex(m, Regex("a|b"), **k), lambda v: v in ("a", "b")),
    ("choice, texts", lambda m, **k: generate.choice(m, WORDS, **k), lambda v: v in WORDS),
    ("choice, numbers", lambda m, **k: generate.choice(m, (1, 2.5), **k), lambda v: repr(v) in ("1", "2.5")),
    ("choice, Enum", lambda m, **k: generate.choice(m, Colour, **k), lambda v: isinstance(v, Colour)),
    ("format, bool", lambda m, **k: generate.format(m, bool, **k), lambda v: isinstance(v, bool)),
    ("format, int", lambda m, **k: generate.format(m, int, **k), lambda v: type(v) is int),
    ("format, float", lambda m, **k: generate.format(m, float, **k), lambda v: isinstance(v, float)),
    ("format, time", lambda m, **k: generate.format(m, time, **k), lambda v: isinstance(v, time)),
    ("format, Enum", lambda m, **k: generate.format(m, Colour, **k), lambda v: isinstance(v, Colour)),
    ("format, list", lambda m, **k: generate.format(m, list[bool], **k), lambda v: {type(x) for x in v} == {bool}),
    ("format, named", lambda m, **k: generate.format(m, Regex("a|b"), **k), lambda v: v in ("a", "b")),
    ("text", lambda m, **k: generate.text(m, **k), lambda v: isinstance(v, str)),
]


def cases() -> Iterator[Any]:
    """Every function in one of both loops, which take turns; `make test-full` has each in the other, too."""
    for i, (name, make, fits) in enumerate(FUNCTIONS):
        for k, phi in enumerate(("local", None)):
            marks = [pytest.mark.full] if (i + k) % 2 else []
            yield pytest.param(make, fits, phi, id=f"{name}-{phi or 'plain'}", marks=marks)


@pytest.mark.parametrize(("make", "fits", "phi"), list(cases()))
def test_values_and_their_nesting(
    make: Callable[..., ClassicGenerator], fits: Callable[[Any], bool], phi: str | None, model: PhiTransformers
) -> None:
    one = make(model, phi=phi)
    several = make(model, sampler=samplers.multinomial(2), phi=phi)
    options: dict[str, Any] = {"seed": 3, "max_tokens": 60}
    assert fits(one(PROMPT, **options))
    row = several(PROMPT, **options)
    assert isinstance(row, list) and len(row) == 2 and all(map(fits, row))
    for prompts in ([PROMPT], [PROMPT, "JSON: "]):
        row = one(prompts, **options)
        assert isinstance(row, list) and len(row) == len(prompts) and all(map(fits, row))
        rows = several(prompts, **options)
        assert [len(row) for row in rows] == [2] * len(prompts) and all(fits(v) for row in rows for v in row)


def test_a_genson_builder_leaves_objects_open(model: PhiTransformers) -> None:
    values = generate.json(model, BUILDER, sampler=samplers.multinomial(4), phi="local")(PROMPT, seed=3, max_tokens=60)
    assert all(isinstance(value["a"], bool) for value in values) and any(len(value) > 1 for value in values)


@pytest.mark.parametrize(
    ("python_type", "example"),
    [(date, date(2024, 1, 31)), (datetime, datetime(2024, 1, 31, 1, 2, 3)), (time, time(1, 2, 3))],
)
def test_dates_and_times(python_type: Any, example: Any, model: PhiTransformers) -> None:
    assert generate.format(model, python_type).reader(str(example)) == example


def test_false_is_false(model: PhiTransformers) -> None:
    """Outlines 0.x read ``bool("False")``, which is true."""
    values = generate.format(model, bool, samplers.multinomial(200))(PROMPT, seed=1)
    texts = outlines_phi.Generator(model, bool)(PROMPT, num_return_sequences=200, seed=1)
    assert values == [text == "True" for text in texts] and set(values) == {True, False}


def test_what_is_written_for_an_enum(model: PhiTransformers) -> None:
    written = {f: f(model, Colour) for f in (generate.choice, generate.json, generate.format)}
    texts = {f.__name__: "".join(generator.stream(PROMPT, seed=1)) for f, generator in written.items()}
    assert (
        texts["choice"] in ("yes", "no") and texts["json"] in ('"yes"', '"no"') and texts["format"] in ("RED", "BLUE")
    )
    tool = generate.json(model, Tool)
    assert (tool.reader('"none"'), tool.reader('{"on":true}')) == (Tool.NONE, {"on": True})


def test_the_whitespace_pattern_is_used(model: PhiTransformers) -> None:
    for schema in (Answer, SCHEMA, Colour, switch):
        made = generate.json(model, schema, whitespace_pattern="\t{2}")
        assert made.generator.output_type.whitespace_pattern == "\t{2}"
    tabs = model.table(generate.json(model, Answer, whitespace_pattern="\t{2}").generator.output_type).guide
    assert tabs.machine.accepts(b'{\t\t"open"\t\t:\t\ttrue\t\t}') and not tabs.machine.accepts(b'{"open": true}')
    assert generate.json(model, Answer, whitespace_pattern="", phi="exact")(PROMPT, seed=1) in (
        Answer(open=True),
        Answer(open=False),
    )


@pytest.fixture(scope="module")
def law(model: PhiTransformers) -> dict[str, float]:
    """The conditioned law of the texts, by enumeration of all their spellings."""
    table = outlines_phi.Generator(model, outlines.types.dsl.Choice(WORDS)).logits_processor.table
    settings = SamplingSettings(max_new_tokens=BUDGET)
    reference = enumerate_language(model.lm, table, model._prompt_ids(PROMPT), settings, BUDGET)
    texts: dict[str, float] = defaultdict(float)
    for ids, p in reference.mu.items():
        texts[model.lm.vocabulary.decode(ids).decode()] += p
    return dict(texts)


class TestLaw:
    @pytest.mark.parametrize("phi", ["exact", "auto"])
    def test_classic_draws_follow_the_conditioned_law(
        self, law: dict[str, float], phi: str, model: PhiTransformers
    ) -> None:
        many = generate.choice(model, WORDS, samplers.multinomial(DRAWS), phi=phi)
        assert p_value(many(PROMPT, max_tokens=BUDGET, seed=11), law) > ALPHA
        rows = generate.choice(model, WORDS, samplers.multinomial(500), phi=phi)(
            [PROMPT] * 8, max_tokens=BUDGET, seed=12
        )
        assert p_value([text for row in rows for text in row], law) > ALPHA

    @pytest.mark.parametrize("phi", ["local", None], ids=["local", "plain"])
    def test_plain_masking_fails_the_same_test(
        self, law: dict[str, float], phi: str | None, model: PhiTransformers
    ) -> None:
        masked = generate.choice(model, WORDS, samplers.multinomial(1000), phi=phi)
        assert p_value(masked(PROMPT, max_tokens=BUDGET, seed=11), law) < ALPHA

    def test_greedy_is_the_most_probable_member(self, model: PhiTransformers) -> None:
        generator = outlines_phi.Generator(model, outlines.types.dsl.Choice(WORDS))
        best = generate.choice(model, WORDS, samplers.greedy())
        assert best(PROMPT) == generator.mode(PROMPT).texts[0]
        assert best([PROMPT, "no"]) == [best(PROMPT), best("no")]

    def test_settings_of_the_sampler_and_of_the_call(self, model: PhiTransformers) -> None:
        generator = outlines_phi.Generator(model, outlines.types.dsl.Choice(WORDS))
        hot = generator(PROMPT, num_return_sequences=50, temperature=3.0, top_k=9, top_p=0.99, seed=4)
        sampler = samplers.multinomial(50, temperature=3.0, top_k=9, top_p=0.99)
        assert generate.choice(model, WORDS, sampler)(PROMPT, seed=4) == hot
        law = {"temperature": 3.0, "top_k": 9, "top_p": 0.99}
        assert generate.choice(model, WORDS, samplers.multinomial(50))(PROMPT, seed=4, **law) == hot

    def test_the_default_temperature_is_1_whatever_the_model_says(
        self, model: PhiTransformers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for phi in ("exact", None):
            generator = generate.choice(model, WORDS, samplers.multinomial(30), phi=phi)
            before = generator(PROMPT, seed=4, max_tokens=BUDGET)
            for name, value in {
                "temperature": 0.01,
                "top_k": 1,
                "top_p": 0.1,
                "min_p": 0.9,
                "do_sample": False,
            }.items():
                monkeypatch.setattr(model.model.generation_config, name, value)
            assert generator(PROMPT, seed=4, max_tokens=BUDGET) == before and len(set(before)) > 1
            monkeypatch.undo()

    def test_max_tokens_is_a_budget_under_phi_and_a_cut_without(self, model: PhiTransformers) -> None:
        long = generate.regex(model, "[a-z]{9}", phi="local")
        assert len(long(PROMPT, max_tokens=10)) == 9
        with pytest.raises(EmptyLanguageError, match="^Give max_new_tokens=3 or more: max_new_tokens=1 is") as small:
            long(PROMPT, max_tokens=1)
        assert small.value.least_budget == 3
        with pytest.raises(EmptyLanguageError, match="Give max_new_tokens=3 or more"):
            long.stream(PROMPT, max_tokens=1)
        plain = generate.regex(model, "[a-z]{9}", phi=None)
        assert 0 < len(plain(PROMPT, max_tokens=2, seed=1)) < 9
        assert len(plain(PROMPT, seed=1)) == 9, "without max_tokens it goes on to the end, as in 0.x"
        with pytest.raises(ValueReadError, match="date refuses") as caught:
            generate.format(model, date, phi=None)(PROMPT, max_tokens=2, seed=1)
        assert len(caught.value.text) < 10


class TestSeed:
    @pytest.mark.parametrize("phi", ["exact", "local", None])
    def test_a_seed_gives_the_same_values_and_leaves_torch_alone(self, phi: str | None, model: PhiTransformers) -> None:
        generator = generate.regex(model, "[a-z]{1,4}", samplers.multinomial(6), phi=phi)
        state = torch.random.get_rng_state()
        first = generator(PROMPT, seed=5)
        assert torch.equal(torch.random.get_rng_state(), state)
        assert generator(PROMPT, seed=5) == first != generator(PROMPT, seed=6)

    def test_seeded_calls_of_several_threads_do_not_disturb_each_other(self, model: PhiTransformers) -> None:
        generator = generate.regex(model, "[a-z]{9}", phi=None)
        alone = [generator(PROMPT, seed=seed) for seed in range(6)]
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(lambda seed: generator(PROMPT, seed=seed), range(6))) == alone

    def test_without_a_seed_plain_draws_are_those_of_torch(self, model: PhiTransformers) -> None:
        generator = generate.text(model)
        torch.manual_seed(5)
        assert generator(PROMPT, max_tokens=9) == generator(PROMPT, max_tokens=9, seed=5)


class TestStops:
    def test_free_text_ends_after_the_stop(self, model: PhiTransformers) -> None:
        free = generate.text(model, samplers.multinomial(30))
        whole = free(PROMPT, seed=2, max_tokens=40)
        cut = free(PROMPT, seed=2, max_tokens=40, stop_at=["s,", " "])
        assert any(text.endswith((" ", "s,")) for text in cut) and all(
            text.find(" ") in (-1, len(text) - 1) for text in cut
        )
        assert any(" " in text for text in whole)

    def test_plain_formats_are_cut(self, model: PhiTransformers) -> None:
        assert generate.regex(model, "aa+b", phi=None)(PROMPT, stop_at="a") == "a"
        with pytest.raises(ValueReadError, match="Answer refuses"):
            generate.json(model, Answer, phi=None)(PROMPT, stop_at='"')

    @pytest.mark.parametrize("stop_at", ["a", ["?", "."], "\n"])
    def test_a_stop_of_a_format_is_refused(self, stop_at: Any, model: PhiTransformers) -> None:
        with pytest.raises(UnsupportedError, match=r"stop_at cannot be used here .write the end into the format, "):
            generate.regex(model, sentence)(PROMPT, stop_at=stop_at)

    @pytest.mark.parametrize("stop_at", ["", ["a", ""], [3], [None], 3, {"a": 1}, False])
    def test_a_stop_is_a_text(self, stop_at: Any, model: PhiTransformers) -> None:
        with pytest.raises(UnsupportedError, match="Give a text that is not empty, or a list of them"):
            generate.text(model)(PROMPT, stop_at=stop_at)


class TestStream:
    def test_keywords_are_those_of_every_generator(self, model: PhiTransformers) -> None:
        generator = generate.choice(model, WORDS, phi="exact")
        assert len(generator(PROMPT, num_return_sequences=3, max_new_tokens=BUDGET)) == 3
        assert generator(PROMPT, do_sample=False) == generate.choice(model, WORDS, samplers.greedy())(PROMPT)
        assert generator(PROMPT, phi=None, seed=1) == generate.choice(model, WORDS, phi=None)(PROMPT, seed=1)

    @pytest.mark.parametrize("phi", ["exact", "local", None])
    def test_pieces_are_the_text(self, phi: str | None, model: PhiTransformers) -> None:
        pieces = list(generate.json(model, Answer, phi=phi).stream(PROMPT))
        assert all(isinstance(piece, str) for piece in pieces)
        Answer.model_validate_json("".join(pieces))

    def test_with_a_seed(self, model: PhiTransformers) -> None:
        generator = generate.choice(model, WORDS)
        assert "".join(generator.stream(PROMPT, seed=7)) == generator(PROMPT, seed=7)
        with pytest.raises(UnsupportedError, match=r"Call torch\.manual_seed\(seed\) beforehand"):
            generate.text(model).stream(PROMPT, seed=7)

    def test_free_text_ends_after_the_stop(self, model: PhiTransformers) -> None:
        torch.manual_seed(3)
        texts = ["".join(generate.text(model).stream(PROMPT, stop_at=" ", max_tokens=40)) for _ in range(20)]
        assert all(text.find(" ") in (-1, len(text) - 1) for text in texts) and any(" " in text for text in texts)

    def test_it_is_one_text(self, model: PhiTransformers) -> None:
        with pytest.raises(UnsupportedError, match="num_return_sequences=2 was given for a stream"):
            generate.choice(model, WORDS, samplers.multinomial(2)).stream(PROMPT)
        with pytest.raises(UnsupportedError, match="Streams are of one prompt each"):
            generate.choice(model, WORDS).stream([PROMPT])


class TestPlain:
    def test_beams_are_hugging_faces_own(self, model: PhiTransformers) -> None:
        beams = generate.choice(model, WORDS, samplers.beam_search(3), phi=None)(PROMPT)
        assert len(beams) == len(set(beams)) == 3
        options = {"num_beams": 3, "num_return_sequences": 3, "do_sample": False, "max_new_tokens": 20}
        assert beams == model(PROMPT, outlines.types.dsl.Choice(WORDS), **options)
        assert generate.choice(model, WORDS, samplers.beam_search(), phi=None)(PROMPT) in WORDS

    def test_greedy_is_the_most_probable_token_at_every_step(self, model: PhiTransformers) -> None:
        options = {"do_sample": False, "max_new_tokens": 20}
        greedy = generate.choice(model, WORDS, samplers.greedy(), phi=None)(PROMPT)
        assert greedy == model(PROMPT, outlines.types.dsl.Choice(WORDS), **options)

    def test_keywords_of_generate_pass_through(self, model: PhiTransformers) -> None:
        text = generate.text(model)(PROMPT, seed=1, max_tokens=9, suppress_tokens=list(range(200)))
        assert text != generate.text(model)(PROMPT, seed=1, max_tokens=9)

    def test_free_text_follows_the_models_law_under_any_phi(self, model: PhiTransformers) -> None:
        plain = generate.text(model)(PROMPT, seed=1)
        assert generate.text(model, phi="exact")(PROMPT, seed=1) == plain != ""
        assert generate.text(outlines_phi.wrap(model, phi="exact"))(PROMPT, seed=1) == plain


REFUSED: list[tuple[str, Callable[[PhiTransformers], Any], type[Exception], str]] = [
    ("no choices", lambda m: generate.choice(m, []), EmptyLanguageError, "choice of nothing"),
    ("choices, one text", lambda m: generate.choice(m, "yes"), UnsupportedError, r"list of texts and numbers"),
    ("choices of anything", lambda m: generate.choice(m, [None]), UnsupportedError, r"list of texts and numbers"),
    ("choices, empty Enum", lambda m: generate.choice(m, Enum("E", [])), EmptyLanguageError, "choice of nothing"),
    ("format, empty Enum", lambda m: generate.format(m, Enum("E", [])), EmptyLanguageError, "choice of nothing"),
    ("json, empty Enum", lambda m: generate.json(m, Enum("E", [])), UnsupportedError, "has no JSON schema"),
    ("json, not JSON", lambda m: generate.json(m, "{"), GrammarError, "not JSON.*\n.*\n.*\\^"),
    ("json, no schema", lambda m: generate.json(m, {"type": "banana"}), UnsupportedError, "at #/type .*banana"),
    (
        "json, not offered",
        lambda m: generate.json(m, {"not": {}}),
        EmptyLanguageError,
        "Relax #/not of the JSON schema",
    ),
    ("json, a number", lambda m: generate.json(m, int), UnsupportedError, "does not stand for a JSON schema; expected"),
    ("json, nothing", lambda m: generate.json(m, None), UnsupportedError, "not an output type that Outlines reads"),
    ("whitespace", lambda m: generate.json(m, Answer, whitespace_pattern="("), GrammarError, "\\^"),
    (
        "whitespace, a number",
        lambda m: generate.json(m, Answer, whitespace_pattern=3),
        UnsupportedError,
        "whitespace_pattern",
    ),
    ("regex, wrong", lambda m: generate.regex(m, "a("), GrammarError, "\\^"),
    ("regex, a type", lambda m: generate.regex(m, int), UnsupportedError, "or another type to generate.format"),
    ("format, a text", lambda m: generate.format(m, "a"), UnsupportedError, "expected a type or an Outlines term"),
    ("format, None", lambda m: generate.format(m, None), UnsupportedError, "output_type=None was given"),
    ("phi", lambda m: generate.choice(m, WORDS, phi="banana"), UnsupportedError, "phi='banana' was given"),
    ("phi of text", lambda m: generate.text(m, phi="banana"), UnsupportedError, "phi='banana' was given"),
    ("sampler", lambda m: generate.choice(m, WORDS, "greedy"), UnsupportedError, r"Give samplers\.multinomial\("),
    ("sampler, a class", lambda m: generate.text(m, samplers.greedy), UnsupportedError, r"samplers\.greedy\(\)"),
    (
        "samples",
        lambda m: samplers.multinomial(-1),
        UnsupportedError,
        "samples=-1 was given to multinomial; expected a whole number",
    ),
    ("samples, text", lambda m: samplers.multinomial("2"), UnsupportedError, "samples='2'"),
    ("beams", lambda m: samplers.beam_search(0), UnsupportedError, "beams=0"),
    ("temperature 0", lambda m: samplers.multinomial(temperature=0.0), UnsupportedError, "do_sample=False"),
    ("temperature", lambda m: samplers.multinomial(temperature=-1.0), UnsupportedError, "temperature=-1.0"),
    ("top_k", lambda m: samplers.multinomial(top_k=0), UnsupportedError, "top_k=0"),
    ("top_p", lambda m: samplers.multinomial(top_p=1.5), UnsupportedError, "top_p=1.5"),
    (
        "beams under phi",
        lambda m: generate.choice(m, WORDS, samplers.beam_search(2))(PROMPT),
        UnsupportedError,
        "num_beams cannot be used here .beam search has no sampling distribution",
    ),
    (
        "greedy text under phi",
        lambda m: generate.text(m, samplers.greedy(), phi="exact")(PROMPT),
        UnsupportedError,
        "Give a type, or phi=None",
    ),
    (
        "greedy, step estimator",
        lambda m: generate.choice(m, WORDS, samplers.greedy(), phi="local")(PROMPT),
        UnsupportedError,
        "Give phi='exact'",
    ),
    ("max_tokens", lambda m: generate.text(m)(PROMPT, max_tokens=0), UnsupportedError, "max_tokens=0"),
    ("seed", lambda m: generate.text(m)(PROMPT, seed=-1), UnsupportedError, "seed=-1"),
    ("seed under phi", lambda m: generate.choice(m, WORDS)(PROMPT, seed="a"), UnsupportedError, "seed='a'"),
    ("keyword", lambda m: generate.choice(m, WORDS)(PROMPT, max_length=3), UnsupportedError, "give max_new_tokens="),
    ("unknown keyword", lambda m: generate.choice(m, WORDS)(PROMPT, foo=3), UnsupportedError, "foo cannot be used"),
    ("option", lambda m: generate.json(m, {"type": "null"}, phy="exact"), UnsupportedError, "phy"),
    ("draws", lambda m: generate.choice(m, WORDS)(PROMPT, n=3), UnsupportedError, "give num_return_sequences="),
    (
        "Literal",
        lambda m: generate.choice(m, Literal["a", 1]),
        UnsupportedError,
        r"such as \['a', 1\], .* generate\.format",
    ),
    (
        "instance",
        lambda m: generate.json(m, Answer(open=True)),
        UnsupportedError,
        "Give the class Answer, not an instance",
    ),
    ("swapped", lambda m: generate.json(Answer, m), UnsupportedError, "class Answer was given as model.* swapped"),
    ("grammar", lambda m: generate.cfg(m, "start: 'a'"), GrammarError, r"line 1, column 8\n  start: 'a'\n         \^"),
    ("no grammar", lambda m: generate.cfg(m, 3), UnsupportedError, "Give a text in Lark's dialect.* 3 was given"),
    ("automaton", lambda m: generate.fsm(m, object()), UnsupportedError, "Give an interegular"),
    ("prompt", lambda m: generate.choice(m, WORDS)(3), UnsupportedError, "The prompt 3 cannot be read"),
    ("prompt of text", lambda m: generate.text(m)(3), UnsupportedError, "The prompt 3 cannot be read"),
    ("chat", lambda m: generate.text(m)(Chat([])), UnsupportedError, "cannot be read"),
]


@pytest.mark.parametrize(("call", "error", "message"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_refused(
    call: Callable[[PhiTransformers], Any], error: type[Exception], message: str, model: PhiTransformers
) -> None:
    with pytest.raises(error, match="(?s)" + message) as caught:
        call(model)
    assert isinstance(caught.value, OutlinesPhiError) and isinstance(caught.value, ValueError)


@pytest.mark.parametrize("function", generate.__all__)
def test_a_stock_model_is_wrapped(function: str, stock: outlines.models.Transformers) -> None:
    arguments: dict[str, Any] = {
        "json": Answer,
        "regex": "a",
        "choice": ["a"],
        "format": int,
        "cfg": 'start: "a"',
        "fsm": interegular.parse_pattern("a").to_fsm(),
    }
    made = getattr(generate, function)(stock, *([arguments[function]] if function in arguments else []))
    assert made.generator.model is generate.text(stock).generator.model


def test_no_prompts_no_values(model: PhiTransformers) -> None:
    assert generate.choice(model, WORDS)([]) == generate.text(model)([]) == []


def test_an_estimator_may_be_given(model: PhiTransformers) -> None:
    certified = generate.choice(model, WORDS, phi=ExactPhi(tolerance=1e-6))
    assert certified.phi == ExactPhi(tolerance=1e-6) and certified(PROMPT) in WORDS


def test_readers_pickle(model: PhiTransformers) -> None:
    for generator, text in ((generate.json(model, Colour), '"yes"'), (generate.format(model, Colour), "RED")):
        assert pickle.loads(pickle.dumps(generator.reader))(text) is Colour.RED
