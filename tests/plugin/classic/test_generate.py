"""The classic API: what its functions return, under which law, and what they refuse."""

import dataclasses
import enum
import functools
import json
import pickle
from collections.abc import Callable, Iterator
from datetime import date, time
from enum import Enum
from functools import partial
from typing import Any, Literal

import interegular
import outlines
import pytest
import torch
from genson import SchemaBuilder
from outlines.inputs import Chat
from outlines.types import Regex
from outlines.types.dsl import JsonSchema
from pydantic import BaseModel

from outlines_phi import (
    EmptyLanguageError,
    ExactPhi,
    Generator,
    GrammarError,
    OutlinesPhiError,
    PhiTransformers,
    UnsupportedError,
    ValueReadError,
    generate,
    samplers,
    wrap,
)
from outlines_phi.plugin.classic.generate import ClassicGenerator
from tests.plugin.instruments import MONDAY, together
from tests.refusals import refused

WORDS = ["yes", "no", "not now", "nobody"]
CHOICE = outlines.types.dsl.Choice(WORDS)
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
    SOME = {"on": 1}


BUILDER = SchemaBuilder()
BUILDER.add_object({"a": True})
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
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
    options: dict[str, Any] = {"seed": 3, "max_tokens": 60}
    one, several = make(model, phi=phi), make(model, sampler=samplers.multinomial(2), phi=phi)
    assert fits(one(MONDAY, **options))
    lists = [(several(MONDAY, **options), 2)]
    for prompts in ([MONDAY], [MONDAY, "JSON: "]):
        rows = several(prompts, **options)
        assert len(rows) == len(prompts)
        lists += [(one(prompts, **options), len(prompts)), *((row, 2) for row in rows)]
    assert all(isinstance(row, list) and len(row) == n and all(map(fits, row)) for row, n in lists)


def test_a_genson_builder_leaves_objects_open_and_false_is_false(model: PhiTransformers) -> None:
    values = generate.json(model, BUILDER, sampler=samplers.multinomial(4), phi="local")(MONDAY, seed=3, max_tokens=60)
    assert all(isinstance(value["a"], bool) for value in values) and any(len(value) > 1 for value in values)
    # Outlines 0.x read ``bool("False")``, which is true.
    values = generate.format(model, bool, samplers.multinomial(200))(MONDAY, seed=1)
    texts = Generator(model, bool)(MONDAY, num_return_sequences=200, seed=1)
    assert values == [text == "True" for text in texts] and set(values) == {True, False}


def test_what_is_written_for_an_enum(model: PhiTransformers) -> None:
    written = {generate.choice: ("yes", "no"), generate.json: ('"yes"', '"no"'), generate.format: ("RED", "BLUE")}
    for make, texts in written.items():
        generator = make(model, Colour)
        assert "".join(generator.stream(MONDAY, seed=1)) in texts
        assert pickle.loads(pickle.dumps(generator.reader))(texts[0]) is Colour.RED
    tool = generate.json(model, Tool)
    assert (tool.reader('"none"'), tool.reader('{"on":false}')) == (Tool.NONE, {"on": False})
    assert tool.reader('{"on":1}') is Tool.SOME


def test_the_whitespace_pattern_is_used(model: PhiTransformers) -> None:
    for schema in (Answer, SCHEMA, Colour, switch):
        made = generate.json(model, schema, whitespace_pattern="\t{2}")
        assert made.generator.output_type.whitespace_pattern == "\t{2}"
    tabs = model.table(generate.json(model, Answer, whitespace_pattern="\t{2}").generator.output_type).guide
    assert tabs.machine.accepts(b'{\t\t"open"\t\t:\t\ttrue\t\t}') and not tabs.machine.accepts(b'{"open": true}')
    assert generate.json(model, Answer, whitespace_pattern="", phi="exact")(MONDAY, seed=1) in (
        Answer(open=True),
        Answer(open=False),
    )


class TestLaw:
    def test_settings_of_the_sampler_and_of_the_call(self, model: PhiTransformers) -> None:
        """The law itself is that of the door `classic` in `test_roads.py`."""
        generator, law = Generator(model, CHOICE), {"temperature": 3.0, "top_k": 9, "top_p": 0.99}
        hot = generator(MONDAY, num_return_sequences=50, seed=4, **law)
        assert generate.choice(model, WORDS, samplers.multinomial(50, **law))(MONDAY, seed=4) == hot
        assert generate.choice(model, WORDS, samplers.multinomial(50))(MONDAY, seed=4, **law) == hot
        rows = generate.choice(model, WORDS, samplers.multinomial(50))([MONDAY] * 2, seed=4, **law)
        assert rows == generator.batch([MONDAY] * 2, num_return_sequences=50, seed=4, **law)

    @pytest.mark.parametrize("phi", ["exact", None])
    def test_the_default_temperature_is_1_whatever_the_model_says(
        self, phi: str | None, model: PhiTransformers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        draw = partial(
            generate.choice(model, WORDS, samplers.multinomial(30), phi=phi), MONDAY, seed=4, max_tokens=BUDGET
        )
        before = draw()
        cold = {"temperature": 0.01, "top_k": 1, "top_p": 0.1, "min_p": 0.9, "do_sample": False}
        for name, value in cold.items():
            monkeypatch.setattr(model.model.generation_config, name, value)
        assert draw() == before and len(set(before)) > 1

    def test_max_tokens_is_a_budget_under_phi_and_a_cut_without(self, model: PhiTransformers) -> None:
        long, plain = (generate.regex(model, "[a-z]{9}", phi=phi) for phi in ("local", None))
        assert len(long(MONDAY, max_tokens=10)) == 9
        for call in (long, long.stream):
            small = refused(
                "^Give max_new_tokens=3 or more: max_new_tokens=1 is",
                call,
                MONDAY,
                max_tokens=1,
                error=EmptyLanguageError,
            )
        assert small.value.least_budget == 3
        assert 0 < len(plain(MONDAY, max_tokens=2, seed=1)) < 9
        assert len(plain(MONDAY, seed=1)) == 9, "without max_tokens it goes on to the end, as in 0.x"
        caught = refused(
            "date refuses", generate.format(model, date, phi=None), MONDAY, max_tokens=2, seed=1, error=ValueReadError
        )
        assert len(caught.value.text) < 10


class TestSeed:
    @pytest.mark.parametrize("phi", ["exact", "local", None])
    def test_a_seed_gives_the_same_values_and_leaves_torch_alone(self, phi: str | None, model: PhiTransformers) -> None:
        generator = generate.regex(model, "[a-z]{1,4}", samplers.multinomial(6), phi=phi)
        state = torch.random.get_rng_state()
        first = generator(MONDAY, seed=5)
        assert torch.equal(torch.random.get_rng_state(), state)
        assert generator(MONDAY, seed=5) == first != generator(MONDAY, seed=6)

    def test_seeded_calls_of_several_threads_do_not_disturb_each_other(self, model: PhiTransformers) -> None:
        generator = generate.regex(model, "[a-z]{9}", phi=None)
        calls = [partial(generator, MONDAY, seed=seed) for seed in range(6)]
        assert together(*calls) == [call() for call in calls]

    def test_without_a_seed_plain_draws_are_those_of_torch(self, model: PhiTransformers) -> None:
        generator = generate.text(model)
        assert generator(MONDAY, max_tokens=9) == generator(MONDAY, max_tokens=9, seed=5)


class TestStops:
    def test_free_text_ends_after_the_stop(self, model: PhiTransformers) -> None:
        free, one = generate.text(model, samplers.multinomial(30)), generate.text(model)
        whole, cut = (free(MONDAY, seed=2, max_tokens=40, **stop) for stop in ({}, {"stop_at": ["s,", " "]}))
        streamed = ["".join(one.stream(MONDAY, stop_at=" ", max_tokens=40)) for _ in range(20)]
        assert any(" " in text for text in whole) and any(text.endswith((" ", "s,")) for text in cut)
        assert all(text.find(" ") in (-1, len(text) - 1) for text in cut + streamed) and any(
            " " in text for text in streamed
        )

    def test_formats_end_at_it(self, model: PhiTransformers) -> None:
        """A text keeps it, and a value is read from what stands before it."""
        options = {"phi": "exact", "stop_at": [",", "no"], "seed": 1}
        texts = generate.regex(model, "yes|no|x")([MONDAY] * 20, **options)
        assert {text.rstrip(",") for text in texts} <= {"yes", "no", "x"} and any(text != "yes" for text in texts)
        assert set(generate.choice(model, ["yes", "not"])([MONDAY] * 20, **options)) == {"yes"}
        assert all(isinstance(value, int) for value in generate.format(model, int)([MONDAY] * 5, **options))

    def test_plain_formats_are_cut(self, model: PhiTransformers) -> None:
        assert generate.regex(model, "aa+b", phi=None)(MONDAY, stop_at="a") == "a"
        refused("Answer refuses", generate.json(model, Answer, phi=None), MONDAY, stop_at='"', error=ValueReadError)


class TestStream:
    def test_keywords_are_those_of_every_generator(self, model: PhiTransformers) -> None:
        generator, greedy = generate.choice(model, WORDS, phi="exact"), generate.choice(model, WORDS, samplers.greedy())
        assert len(generator(MONDAY, num_return_sequences=3, max_new_tokens=BUDGET)) == 3
        best = Generator(model, CHOICE).mode(MONDAY).texts[0]
        assert generator(MONDAY, do_sample=False) == greedy(MONDAY) == best
        assert greedy([MONDAY, "no"]) == [best, greedy("no")]
        assert generator(MONDAY, phi=None, seed=1) == generate.choice(model, WORDS, phi=None)(MONDAY, seed=1)

    @pytest.mark.parametrize("phi", ["exact", "local", None])
    def test_pieces_are_the_text(self, phi: str | None, model: PhiTransformers) -> None:
        Answer.model_validate_json("".join(generate.json(model, Answer, phi=phi).stream(MONDAY)))
        generator = generate.choice(model, WORDS, phi=phi)
        assert phi is None or "".join(generator.stream(MONDAY, seed=7)) == generator(MONDAY, seed=7)


class TestPlain:
    @pytest.mark.parametrize(
        ("sampler", "beams"), [(samplers.beam_search(3), 3), (samplers.greedy(), 1)], ids=["beams", "greedy"]
    )
    def test_loops_are_hugging_faces_own(self, sampler: Any, beams: int, model: PhiTransformers) -> None:
        found = generate.choice(model, WORDS, sampler, phi=None)(MONDAY)
        options = {"num_beams": beams, "num_return_sequences": beams, "do_sample": False, "max_new_tokens": 20}
        assert found == model(MONDAY, CHOICE, **options)
        assert beams == 1 or len(found) == len(set(found)) == 3

    def test_keywords_of_generate_pass_through(self, model: PhiTransformers) -> None:
        text = generate.text(model)(MONDAY, seed=1, max_tokens=9, suppress_tokens=list(range(200)))
        assert text != generate.text(model)(MONDAY, seed=1, max_tokens=9)

    def test_free_text_follows_the_models_law_under_any_phi(self, model: PhiTransformers) -> None:
        plain = generate.text(model)(MONDAY, seed=1)
        assert generate.text(model, phi="exact")(MONDAY, seed=1) == plain != ""
        assert generate.text(wrap(model, phi="exact"))(MONDAY, seed=1) == plain


NOTHING, NO_CHOICES = Enum("E", []), "choice of nothing"
REFUSED: list[tuple[Callable[[PhiTransformers], Any], type[Exception], str]] = [
    (lambda m: generate.choice(m, []), EmptyLanguageError, NO_CHOICES),
    (lambda m: generate.choice(m, "yes"), UnsupportedError, "list of texts and numbers"),
    (lambda m: generate.choice(m, [None]), UnsupportedError, "list of texts and numbers"),
    (lambda m: generate.choice(m, Literal["a", 1]), UnsupportedError, r"such as \['a', 1\], .* generate\.format"),
    (lambda m: generate.choice(m, NOTHING), EmptyLanguageError, NO_CHOICES),
    (lambda m: generate.format(m, NOTHING), EmptyLanguageError, NO_CHOICES),
    (lambda m: generate.json(m, NOTHING), UnsupportedError, "has no JSON schema"),
    (lambda m: generate.json(m, "{"), GrammarError, "not JSON.*\n.*\n.*\\^"),
    (lambda m: generate.json(m, {"type": "banana"}), UnsupportedError, "at #/type .*banana"),
    (lambda m: generate.json(m, {"not": {}}), EmptyLanguageError, "Relax #/not of the JSON schema"),
    (lambda m: generate.json(m, int), UnsupportedError, "does not stand for a JSON schema; expected"),
    (lambda m: generate.json(m, None), UnsupportedError, "not an output type that Outlines reads"),
    (lambda m: generate.json(m, Answer(open=True)), UnsupportedError, "Give the class Answer, not an instance"),
    (lambda m: generate.json(m, {"type": "null"}, phy="exact"), UnsupportedError, "phy"),
    (lambda m: generate.json(Answer, m), UnsupportedError, "class Answer was given as model.* swapped"),
    (lambda m: generate.json(m, Answer, whitespace_pattern="("), GrammarError, "\\^"),
    (lambda m: generate.json(m, Answer, whitespace_pattern=3), UnsupportedError, "whitespace_pattern"),
    (lambda m: generate.regex(m, "a("), GrammarError, "\\^"),
    (lambda m: generate.regex(m, int), UnsupportedError, "or another type to generate.format"),
    (lambda m: generate.format(m, "a"), UnsupportedError, "expected a type or an Outlines term"),
    (lambda m: generate.format(m, None), UnsupportedError, "output_type=None was given"),
    (lambda m: generate.cfg(m, "start: 'a'"), GrammarError, r"line 1, column 8\n  start: 'a'\n         \^"),
    (lambda m: generate.cfg(m, 3), UnsupportedError, "Give a text in Lark's dialect.* 3 was given"),
    (lambda m: generate.fsm(m, object()), UnsupportedError, "Give an interegular"),
    (lambda m: generate.choice(m, WORDS, phi="banana"), UnsupportedError, "phi='banana' was given"),
    (lambda m: generate.text(m, phi="banana"), UnsupportedError, "phi='banana' was given"),
    (lambda m: generate.choice(m, WORDS, "greedy"), UnsupportedError, r"Give samplers\.multinomial\("),
    (lambda m: generate.text(m, samplers.greedy), UnsupportedError, r"samplers\.greedy\(\)"),
    (
        lambda m: samplers.multinomial(-1),
        UnsupportedError,
        "samples=-1 was given to multinomial; expected a whole number",
    ),
    (lambda m: samplers.multinomial("2"), UnsupportedError, "samples='2'"),
    (lambda m: samplers.beam_search(0), UnsupportedError, "beams=0"),
    (lambda m: samplers.multinomial(temperature=0.0), UnsupportedError, "do_sample=False"),
    (lambda m: samplers.multinomial(temperature=-1.0), UnsupportedError, "temperature=-1.0"),
    (lambda m: samplers.multinomial(top_k=0), UnsupportedError, "top_k=0"),
    (lambda m: samplers.multinomial(top_p=1.5), UnsupportedError, "top_p=1.5"),
    (lambda m: generate.choice(m, WORDS, samplers.beam_search(2))(MONDAY), UnsupportedError, "num_beams .*beam search"),
    (lambda m: generate.text(m, samplers.greedy(), phi="exact")(MONDAY), UnsupportedError, "Give a type, or phi=None"),
    (lambda m: generate.choice(m, WORDS, samplers.greedy(), phi="local")(MONDAY), UnsupportedError, "Give phi='exact'"),
    (lambda m: generate.text(m)(MONDAY, max_tokens=0), UnsupportedError, "max_tokens=0"),
    (lambda m: generate.text(m)(MONDAY, seed=-1), UnsupportedError, "seed=-1"),
    (lambda m: generate.choice(m, WORDS)(MONDAY, seed="a"), UnsupportedError, "seed='a'"),
    (lambda m: generate.choice(m, WORDS)(MONDAY, max_length=3), UnsupportedError, "give max_new_tokens="),
    (lambda m: generate.choice(m, WORDS)(MONDAY, foo=3), UnsupportedError, "foo cannot be used"),
    (lambda m: generate.choice(m, WORDS)(MONDAY, n=3), UnsupportedError, "give num_return_sequences="),
    (lambda m: generate.choice(m, WORDS)(3), UnsupportedError, "The prompt 3 cannot be read"),
    (lambda m: generate.text(m)(3), UnsupportedError, "The prompt 3 cannot be read"),
    (lambda m: generate.text(m)(Chat([])), UnsupportedError, "cannot be read"),
    (
        lambda m: generate.choice(m, WORDS, samplers.multinomial(2)).stream(MONDAY),
        UnsupportedError,
        "num_return_sequences=2",
    ),
    (lambda m: generate.choice(m, WORDS).stream([MONDAY]), UnsupportedError, "Streams are of one prompt each"),
    (
        lambda m: generate.text(m).stream(MONDAY, seed=7),
        UnsupportedError,
        r"Call torch\.manual_seed\(seed\) beforehand",
    ),
    *(
        (
            lambda m, stop=stop: generate.text(m)(MONDAY, stop_at=stop),
            UnsupportedError,
            "Give a text that is not empty, or a list",
        )
        for stop in ("", ["a", ""], [3], [None], 3, {"a": 1}, False)
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_refused(
    call: Callable[[PhiTransformers], Any], error: type[Exception], words: str, model: PhiTransformers
) -> None:
    caught = refused("(?s)" + words, call, model, error=error)
    assert isinstance(caught.value, OutlinesPhiError) and isinstance(caught.value, ValueError)


GIVEN: dict[str, list[Any]] = {
    "json": [Answer],
    "regex": ["a"],
    "choice": [["a"]],
    "format": [int],
    "cfg": ['start: "a"'],
    "fsm": [interegular.parse_pattern("a").to_fsm()],
    "text": [],
}


@pytest.mark.parametrize("function", generate.__all__)
def test_a_stock_model_is_wrapped(function: str, stock: outlines.models.Transformers) -> None:
    assert getattr(generate, function)(stock, *GIVEN[function]).generator.model is generate.text(stock).generator.model


def test_no_prompts_no_values_and_an_estimator_of_its_own(model: PhiTransformers) -> None:
    assert generate.choice(model, WORDS)([]) == generate.text(model)([]) == []
    certified = generate.choice(model, WORDS, phi=ExactPhi(tolerance=1e-6))
    assert certified.phi == ExactPhi(tolerance=1e-6) and certified(MONDAY) in WORDS
