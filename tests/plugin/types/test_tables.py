"""Logits processors that are read: our own, those of stock generators over the same tokenizer, and no others."""

from __future__ import annotations

import gc
import random
import re
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal

import outlines
import pytest
from outlines.types import regex
from outlines.types.dsl import CFG, JsonSchema
from pydantic import BaseModel
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from outlines_phi import BannedPhrases, GrammarError, PhiTransformers, UnsupportedError, Vocabulary
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.guides.guide import DEAD, DONE
from outlines_phi.guides.json_schema.formula import Formula
from outlines_phi.lm import bundled
from outlines_phi.numerics.cache import memory_of
from outlines_phi.plugin.processor import MaskLogitsProcessor
from outlines_phi.plugin.types import tables
from outlines_phi.plugin.types.tables import CompiledTypes
from outlines_phi.regex import patterns
from outlines_phi.regex.patterns import compile_regex
from tests.languages import ALPHA, p_value
from tests.plugin.oracle import by_text, reference

PROMPT = "Question: is the bakery open on Monday? Answer: "
ANSWER = Literal["yes", "no", "not now", "nobody"]
BUDGET = 8


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture
def compiled(model: PhiTransformers) -> CompiledTypes:
    return CompiledTypes(model.lm.vocabulary)


TYPES = {"choice": ANSWER, "regex": regex("[a-z]{3,5}-[0-9]{2}"), "float": float, "pydantic": Person}


@pytest.mark.parametrize("name", TYPES)
def test_a_stock_processor_is_read_token_by_token(
    name: str, compiled: CompiledTypes, stock: outlines.models.Transformers
) -> None:
    """Equal indexes share a table."""
    processor, equal = (outlines.Generator(stock, TYPES[name]).logits_processor for _ in range(2))
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
    return outlines.Generator(outlines.from_transformers(bundled.load()[0], tokenizer), ANSWER).logits_processor


OTHER = FSMGuide.from_automaton(compile_regex("yes|no"), Vocabulary.from_tokens(["yes", "no", "<eos>"], 2))
REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda stock: None, "free text has nothing to correct"),
    (lambda stock: OTHER, "another vocabulary"),
    (lambda stock: Table(OTHER), "another vocabulary"),
    (lambda stock: MaskLogitsProcessor(Table(OTHER)), "another vocabulary"),
    (lambda stock: foreign(), r"outlines\.Generator\(model, T\).* was built for another model"),
    (
        lambda stock: outlines.Generator(stock, ANSWER, backend="llguidance").logits_processor,
        "The language of a LLGuidanceLogitsProcessor cannot be read",
    ),
]


@pytest.mark.parametrize(("language", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_be_read(
    language: Callable[[Any], Any], words: str, compiled: CompiledTypes, stock: outlines.models.Transformers
) -> None:
    with pytest.raises(UnsupportedError, match=words):
        compiled.of(language(stock))


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
    with pytest.raises(UnsupportedError, match=r"limits\(phrases=1000000\)"):
        BannedPhrases(["x" * 10**6])


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
