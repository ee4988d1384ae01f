"""Stock Outlines beside this package: plain calls seed for seed, its backends, and the logits processors that are read."""

import gc
import json
import random
import re
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any, Literal

import outlines
import pytest
from genson import SchemaBuilder
from outlines.types import JsonSchema, cfg, json_schema, regex
from outlines.types.dsl import CFG, to_regex
from pydantic import BaseModel, Field
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from typing_extensions import TypedDict

from outlines_phi import (
    BannedPhrases,
    Generator,
    GrammarError,
    PhiTransformers,
    UnsupportedError,
    Vocabulary,
    install,
    uninstall,
    wrap,
)
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.guides.json_schema.formula import Formula
from tests.inner import (
    DEAD,
    DONE,
    MASKING,
    CompiledTypes,
    MaskLogitsProcessor,
    bundled,
    compile_regex,
    memory_of,
    patterns,
    tables,
    to_core_language,
)
from tests.languages import ALPHA, p_value
from tests.plugin.instruments import by_text, reference, seeded
from tests.refusals import refused

ANSWER = Literal["yes", "no", "maybe"]

engines = pytest.mark.parametrize("backend", MASKING)

Door = Callable[[PhiTransformers, str], Any]
DOORS: dict[str, Door] = {
    "call": lambda model, backend: model("Answer:", ANSWER, backend, phi="exact", max_new_tokens=8),
    "ban": lambda model, backend: model("Answer:", ANSWER, backend, banned_phrases=["no"], max_new_tokens=8),
    "batch": lambda model, backend: model.batch(["Answer:"], ANSWER, backend, phi="local", max_new_tokens=8),
    "stream": lambda model, backend: list(model.stream("Answer:", ANSWER, backend, phi="exact", max_new_tokens=8)),
    "default of the model": lambda model, backend: wrap(model, phi="local")("Answer:", ANSWER, backend),
    "generator": lambda model, backend: Generator(model, ANSWER, backend=backend),
    "masking generator": lambda model, backend: Generator(model, ANSWER, phi=None, backend=backend),
    "table": lambda model, backend: model.table(ANSWER, backend=backend),
}


@engines
@pytest.mark.parametrize("door", DOORS.values(), ids=list(DOORS))
def test_refused_with_what_to_do(backend: str, door: Door, model: PhiTransformers) -> None:
    refused(f"^Leave backend='{backend}' out: .* only plain masking can use it", door, model, backend)


@engines
def test_refused_by_the_installed_generator(backend: str, stock: outlines.models.Transformers) -> None:
    install()
    try:
        refused(f"^Leave backend='{backend}' out", outlines.Generator, stock, ANSWER, backend, phi="exact")
    finally:
        uninstall()


def test_the_own_backend_is_read(fresh: PhiTransformers) -> None:
    assert fresh.table(ANSWER, backend="outlines_core") is fresh.table(ANSWER)


def test_an_unknown_name(model: PhiTransformers) -> None:
    refused("expected one of outlines_core, llguidance, xgrammar, or None", Generator, model, ANSWER, backend="regex")


INTEGER: dict[str, Any] = {"type": "integer"}


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


READ: list[tuple[Any, list[str], list[str]]] = [
    (record(a=INTEGER, b={"type": "boolean"}), ['{"a": 3, "b": true}'], ['{"a":3}', '{"b":true,"a":3}']),
    ({**record(a={"type": "null"}), "required": []}, ["{}", '{"a":null}'], ['{"b":1}']),
    ({"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 2}, ["[1]", "[1,2]"], ["[]", "[1,2,3]", "[true]"]),
    ({"type": "string", "minLength": 1, "maxLength": 2}, ['"ab"'], ['""', '"abc"']),
    ({"enum": ["a.b", 3, None]}, ['"a.b"', "3", "null"], ['"axb"']),
    ({"anyOf": [{"const": "x"}, INTEGER]}, ['"x"', "12"], ['"y"']),
    ({**record(a={"$ref": "#/$defs/b"}), "$defs": {"b": record(c=INTEGER)}}, ['{"a":{"c":1}}'], ['{"a":1}']),
]

LEFT: list[tuple[Any, str]] = [
    (record(a={}), "#/properties/a"),
    (record(a={"type": "integer", "minimum": 3}), "#/properties/a/minimum"),
    (record(a={"type": "string", "pattern": "a"}), "#/properties/a/pattern"),
    (record(a={"type": "string", "format": "date"}), "#/properties/a/format"),
    ({**record(a=INTEGER), "patternProperties": {}}, "#/patternProperties"),
    ({**record(a=INTEGER), "additionalProperties": True}, "#/additionalProperties"),
    ({**record(a=INTEGER), "required": ["b"]}, "#/required"),
    ({"type": "array", "uniqueItems": True, "items": INTEGER}, "#/uniqueItems"),
    ({"type": "array"}, "#/items"),
    ({"allOf": [INTEGER, {}]}, "#/allOf"),
    ({"oneOf": [INTEGER]}, "#/oneOf"),
    ({"anyOf": [INTEGER, {"not": {}}]}, "#/anyOf/1/not"),
    ({"anyOf": [INTEGER], "type": "integer"}, "#/anyOf"),
    ({"enum": [{"a": 1}]}, "#/enum"),
    ({"const": 'a"'}, "#/const"),
    (record(**{"a/b": {"type": "integer", "multipleOf": 2}}), "#/properties/a~1b/multipleOf"),
    ({"$ref": "#/$defs/b", "$defs": {"b": {"items": {"$ref": "#/$defs/b"}, "type": "array"}}}, "#/$defs/b/items/$ref"),
    ({"$ref": "#/properties/a"}, "#/$ref"),
    ({"type": ["integer", "null"]}, "#/type"),
]


@pytest.mark.parametrize(("schema", "members", "strangers"), READ)
def test_what_is_read_is_what_outlines_core_compiles(schema: Any, members: list[str], strangers: list[str]) -> None:
    term = JsonSchema(schema)
    pattern = to_core_language(term)
    assert pattern == to_regex(term)
    automaton = compile_regex(pattern)
    assert all(automaton.accepts(text.encode()) for text in members)
    assert not any(automaton.accepts(text.encode()) for text in strangers)


@pytest.mark.parametrize(("schema", "pointer"), LEFT, ids=[pointer for _, pointer in LEFT])
def test_what_is_not_honoured_is_refused_by_its_pointer(schema: Any, pointer: str) -> None:
    refused(rf"^Leave the backend out.*stands at {re.escape(pointer)}\.$", to_core_language, JsonSchema(schema))


def test_the_backend_is_asked_for_at_every_door(model: PhiTransformers) -> None:
    class Cups(BaseModel):
        n: int = Field(ge=1, le=3)

    refused("#/properties/n/maximum", Generator, model, list[Cups], backend="outlines_core")
    assert all(1 <= cups.n <= 3 for cups in Generator(model, Cups, phi="local").sample("Cups: ", 5, seed=1).values)
    assert model.table(Cups).guide.machine.accepts(json.dumps({"n": 1}, indent=2).encode())


PROMPT = "City: Lisbon. JSON: "


class City(BaseModel):
    name: Literal["Lisbon", "Laderao"]
    hills: bool


class Country(BaseModel):
    cities: list[City] = Field(max_length=2)
    area: int


@dataclass
class Point:
    x: bool
    y: Literal[1, 2]


class Named(TypedDict):
    name: Literal["a", "b"]


def added(first: bool, second: Literal["x", "y"]) -> None: ...


def example() -> Any:
    builder = SchemaBuilder()
    builder.add_object({"seen": True})
    return builder


class Kind(Enum):
    ONE = 1
    WORD = "two"


SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": [1, "x"]}}, "required": ["a", "b"]}
TYPES: dict[str, Any] = {
    "pydantic": City,
    "nested": Country,
    "dataclass": Point,
    "typed dict": Named,
    "function": added,
    "dict": json_schema(SCHEMA),
    "text": JsonSchema(json.dumps(SCHEMA)),
    "blanks": JsonSchema(SCHEMA, whitespace_pattern=r"[\n ]?"),
    "what outlines_core leaves out": json_schema({"type": "integer", "minimum": 10, "maximum": 12}),
    "genson": example(),
    "any JSON": dict,
    "list": list[City],
    "tuple": tuple[City, int],
    "union": City | Point,
    "optional": Named | None,
    "sequence": regex("Answer: ") + JsonSchema(SCHEMA),
    "enum": Kind,
    "literal": Literal["yes", "no"],
    "number": int,
    "date": date,
    "regex": regex("[a-c]{1,5}"),
    "grammar": cfg('start: "(" start ")" | "x"'),
}


CALLS: dict[str, dict[str, Any]] = {
    "sampling": {},
    "greedy": {"do_sample": False},
    "warped": {"temperature": 0.7, "top_k": 20, "top_p": 0.9},
    "penalty": {"repetition_penalty": 1.3},
    "several": {"num_return_sequences": 3},
    "truncated": {"max_new_tokens": 2},
}
FAITHFUL = ("regex", "literal", "enum", "number")
"""Types over ASCII whose members stock Outlines keeps on any vocabulary, so that its own generators are compared."""


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("name", "call"),
    [*((name, "sampling") for name in TYPES), *((name, call) for name in FAITHFUL for call in [*CALLS][1:])],
)
def test_plain_calls_are_those_of_outlines_seed_for_seed(
    name: str, call: str, model: PhiTransformers, stock: outlines.models.Transformers
) -> None:
    """The same generator again and again, too, and batches; of schemas, which stock Outlines compiles at every call, one seed."""
    untouched, options = wrap(stock), {"max_new_tokens": 40, **CALLS[call]}
    generators = [outlines.Generator(each, TYPES[name]) for each in (model, stock)] if name in FAITHFUL else []
    for seed in range(3 if name in FAITHFUL and call != "greedy" else 1):
        texts = [seeded(each, PROMPT, TYPES[name], seed=seed, **options) for each in (stock, model, untouched)]
        texts += [seeded(each, PROMPT, seed=seed, **options) for each in generators]
        assert texts == texts[:1] * len(texts)
    if name in ("pydantic", *FAITHFUL):
        ours, theirs = (seeded(each.batch, [PROMPT, "x"], TYPES[name], **options) for each in (model, stock))
        assert ours == theirs


REFUSED: dict[str, tuple[Any, Any]] = {
    "not": (
        json_schema({"not": {"type": ["object", "array", "number", "string"]}}),
        lambda value: value in (None, True, False),
    ),
    "in a list": (list[json_schema({"not": {"type": ["object", "array", "number", "string"]}})], None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_types_that_outlines_refuses_are_still_written(
    name: str, model: PhiTransformers, stock: outlines.models.Transformers
) -> None:
    output_type, holds = REFUSED[name]
    refused(
        "^Unsupported JSON Schema structure", seeded, stock, PROMPT, output_type, max_new_tokens=40, error=ValueError
    )
    text = seeded(model, PROMPT, output_type, max_new_tokens=40)
    assert holds(json.loads(text)) if holds else text.startswith("[")


WORDS = Literal["yes", "no", "not now", "nobody"]
BUDGET = 8


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture
def compiled(model: PhiTransformers) -> CompiledTypes:
    return CompiledTypes(model.lm.vocabulary)


KINDS = {"choice": WORDS, "regex": regex("[a-z]{3,5}-[0-9]{2}"), "float": float, "pydantic": Person}


@pytest.mark.parametrize("name", KINDS)
def test_a_stock_processor_is_read_token_by_token(
    name: str, compiled: CompiledTypes, stock: outlines.models.Transformers
) -> None:
    """Equal indexes share a table."""
    processor, equal = (outlines.Generator(stock, KINDS[name]).logits_processor for _ in range(2))
    table, index = compiled.of(processor), processor.index
    assert processor is not equal and compiled.of(processor) is table is compiled.of(equal)
    eos, rng = table.vocabulary.eos_ids[0], random.Random(3)
    for _ in range(20):
        ours, theirs, token = table.start, index.get_initial_state(), None
        for _ in range(25):
            row = table.guide.row(ours)
            live = {v for v in range(len(table.vocabulary)) if row.targets[row.partition.class_of[v]] != DEAD}
            assert live == set(index.get_allowed_tokens(theirs))
            if (token := rng.choice(sorted(live))) == eos:
                break
            ours, theirs = table.guide.advance(ours, token), index.get_next_state(theirs, token)


def test_an_existing_generator_under_a_correction(model: PhiTransformers, stock: outlines.models.Transformers) -> None:
    """Laws are those of what the index allows; those of the pattern itself, of which it has lost a part, fail."""
    pattern, prompt, law = regex(r"[0-9](\.[0-9])?"), "Price: 4.5\nPrice: ", {"temperature": 3.0, "seed": 5}
    existing = outlines.Generator(stock, pattern)
    generator = outlines.Generator(model, processor=existing.logits_processor)
    of_index, of_pattern = (
        reference(model, language, prompt, BUDGET, **law) for language in (existing.logits_processor, pattern)
    )
    assert set(of_index.log_p) < set(of_pattern.log_p)
    options = {"num_return_sequences": 6000, "max_new_tokens": BUDGET, **law}
    exact, masked = (generator(prompt, phi=phi, **options) for phi in ("exact", "local"))
    assert p_value(exact, by_text(model, of_index.mu)) > ALPHA
    assert p_value(masked, by_text(model, of_index.mask)) > ALPHA
    assert p_value(masked, by_text(model, of_pattern.mask)) < ALPHA
    assert p_value(masked, by_text(model, of_index.mu)) < ALPHA
    assert re.fullmatch(pattern.pattern, generator(prompt, phi=None, max_new_tokens=BUDGET))
    batch = generator.batch([prompt, "hello"], phi="local", max_new_tokens=BUDGET)
    assert all(re.fullmatch(pattern.pattern, text) for text in batch)


def test_of_takes_whatever_says_what_may_be_written(compiled: CompiledTypes, model: PhiTransformers) -> None:
    guide = FSMGuide.from_automaton(compile_regex("yes|no"), model.lm.vocabulary)
    table = Table(guide)
    assert compiled.of(table) is table is compiled.of(MaskLogitsProcessor(table)) and compiled.of(guide).guide is guide


def foreign() -> Any:
    """The processor of a model with another tokenizer."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"yes": 0, "no": 1, "<eos>": 2}, unk_token="no")), eos_token="<eos>"
    )
    return outlines.Generator(outlines.from_transformers(bundled.load()[0], tokenizer), WORDS).logits_processor


OTHER = FSMGuide.from_automaton(compile_regex("yes|no"), Vocabulary.from_tokens(["yes", "no", "<eos>"], 2))
NOT_READ: list[tuple[Callable[[Any], Any], str]] = [
    (lambda stock: None, "free text has nothing to correct"),
    (lambda stock: OTHER, "another vocabulary"),
    (lambda stock: Table(OTHER), "another vocabulary"),
    (lambda stock: MaskLogitsProcessor(Table(OTHER)), "another vocabulary"),
    (lambda stock: foreign(), r"outlines\.Generator\(model, T\).* was built for another model"),
    (
        lambda stock: outlines.Generator(stock, WORDS, backend="llguidance").logits_processor,
        "The language of a LLGuidanceLogitsProcessor cannot be read",
    ),
]


@pytest.mark.parametrize(("language", "words"), NOT_READ, ids=[words for _, words in NOT_READ])
def test_what_cannot_be_read(
    language: Callable[[Any], Any], words: str, compiled: CompiledTypes, stock: outlines.models.Transformers
) -> None:
    refused(words, compiled.of, language(stock))


def numbered(i: int) -> JsonSchema:
    return JsonSchema(
        {
            "type": "object",
            "properties": {
                f"a{i}": {"type": "string", "pattern": f"^[a-z]{{2,9}}{i}$"},
                f"b{i}": {"enum": [f"x{i}", i]},
                "c": {"not": {"type": "number", "minimum": i, "multipleOf": 0.5}},
            },
        }
    )


def test_nothing_of_a_format_is_left_when_all_are_forgotten(compiled: CompiledTypes) -> None:
    def formulas() -> int:
        gc.collect()
        return sum(isinstance(each, Formula) for each in gc.get_objects())

    for i in range(3):
        compiled.of(numbered(i))
    compiled.clear()
    before = formulas()
    found = [weakref.ref(compiled.of(numbered(i))) for i in range(100, 120)]
    assert formulas() > before + 20
    compiled.clear()
    assert formulas() <= before and not any(table() for table in found)


def test_formats_are_kept_within_a_bound_of_memory(
    compiled: CompiledTypes, model: PhiTransformers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "LEAST_BYTES", 1)
    monkeypatch.setattr(tables, "KEPT_BYTES", 4 * memory_of(compiled.of(numbered(0))))
    few = CompiledTypes(model.lm.vocabulary)
    found = [weakref.ref(few.of(numbered(i))) for i in range(10)]
    gc.collect()
    assert found[-1]() is not None and 1 <= sum(table() is not None for table in found) <= 5


@pytest.mark.parametrize(
    ("output_type", "words"),
    [
        (CFG("start: " + "(" * 300 + '"a"' + ")" * 300), r"limits\(nesting=300\)"),
        (CFG('start: "a"' + '\n  | "(([{" /\\(+/ // ((((' * 300), None),
        (CFG("start: " + '"a" ' * 300_000), r"limits\(source=\d+\)"),
        (regex("(" * 300 + "a" + ")" * 300), r"limits\(nesting=30[0-2]\)"),
        (regex("a{" + "9" * 5000 + "}"), "more than 12 digits"),
        (regex("a" * 1_100_000), r"limits\(source=1100\d+\)"),
    ],
    ids=range(6),
)
def test_what_is_too_large_is_refused_before_it_is_read(
    output_type: object, words: str | None, compiled: CompiledTypes
) -> None:
    with nullcontext() if words is None else pytest.raises((UnsupportedError, GrammarError), match=words):
        compiled.of(output_type)


def test_banned_phrases_have_a_limit() -> None:
    refused(r"limits\(phrases=1000000\)", BannedPhrases, ["x" * 10**6])


@pytest.mark.parametrize("pattern", ["a?b?", r"\w{0,3}x", "(yes|no) é?", r"<t>[\s\S]{0,2}</t>", r"\bcat\b.?"])
def test_a_large_regular_expression_is_read_as_it_is_needed(
    pattern: str, compiled: CompiledTypes, model: PhiTransformers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It allows the same tokens as one that is lifted as a whole."""
    lifted = FSMGuide.from_automaton(compile_regex(pattern), model.lm.vocabulary)
    monkeypatch.setattr(patterns, "LARGE", 0)
    guide = compiled.of(regex(pattern)).guide
    pairs = [(guide.start, lifted.start)]
    for here, there in pairs:
        assert type(guide) is not FSMGuide and guide.min_tokens(here) >= lifted.min_tokens(there)
        ours, theirs = (row.targets[row.partition.class_of] for row in (guide.row(here), lifted.row(there)))
        assert ((ours != DEAD) == (theirs != DEAD)).all()
        following = {(int(a), int(b)) for a, b in zip(ours, theirs, strict=True) if a > DONE}
        pairs += following.difference(pairs) if len(pairs) < 60 else ()
