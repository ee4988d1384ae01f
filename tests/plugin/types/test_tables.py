"""Logits processors that are read: our own, those of stock generators over the same tokenizer, and no others."""

from __future__ import annotations

import gc
import random
import re
import weakref
from contextlib import nullcontext
from typing import Literal

import outlines
import pytest
from outlines.types import regex
from outlines.types.dsl import CFG, JsonSchema
from pydantic import BaseModel
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from outlines_phi import BannedPhrases, ExactPhi, GrammarError, LocalPhi, PhiTransformers, UnsupportedError, Vocabulary
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.guides.guide import DEAD, DONE
from outlines_phi.guides.json_schema.formula import Formula
from outlines_phi.lm import bundled
from outlines_phi.numerics.cache import memory_of
from outlines_phi.phi.estimator import Phi
from outlines_phi.plugin.call import CallOptions
from outlines_phi.plugin.processor import MaskLogitsProcessor
from outlines_phi.plugin.types import tables
from outlines_phi.plugin.types.tables import CompiledTypes
from outlines_phi.regex import patterns
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.settings import SamplingSettings
from outlines_phi_workbench.suite.reference import enumerate_language
from tests.languages import ALPHA, p_value

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
    processor = outlines.Generator(stock, TYPES[name]).logits_processor
    table, index = compiled.of(processor), processor.index
    assert compiled.of(processor) is table
    eos = table.vocabulary.eos_ids[0]
    rng = random.Random(3)
    for _ in range(20):
        ours, theirs = table.start, index.get_initial_state()
        for _ in range(25):
            row = table.guide.row(ours)
            live = {v for v in range(len(table.vocabulary)) if row.targets[row.partition.class_of[v]] != DEAD}
            assert live == set(index.get_allowed_tokens(theirs))
            token = rng.choice(sorted(live))
            if token == eos:
                break
            ours, theirs = table.guide.advance(ours, token), index.get_next_state(theirs, token)


def test_equal_indexes_share_a_table(compiled: CompiledTypes, stock: outlines.models.Transformers) -> None:
    one, two = (outlines.Generator(stock, ANSWER).logits_processor for _ in range(2))
    assert one is not two
    assert compiled.of(one) is compiled.of(two)


def test_an_existing_generator_under_a_correction(model: PhiTransformers, stock: outlines.models.Transformers) -> None:
    """Laws are those of what the index allows; those of the pattern itself, of which it has lost a part, fail."""
    pattern = r"[0-9](\.[0-9])?"
    processor = outlines.Generator(stock, regex(pattern)).logits_processor
    prompt = "Price: 4.5\nPrice: "
    settings = SamplingSettings(max_new_tokens=BUDGET, temperature=3.0, seed=5)
    ours, theirs = model.table(regex(pattern)), model.table(processor)
    of_index, of_pattern = (
        enumerate_language(model.lm, table, model._prompt_ids(prompt), settings, BUDGET) for table in (theirs, ours)
    )
    assert set(of_index.log_p) < set(of_pattern.log_p)
    options = CallOptions(settings, n=6000)

    def drawn(phi: Phi) -> list[tuple[int, ...]]:
        return [draw.token_ids for draw in model.draw([prompt], theirs, phi, options)[0]]

    assert p_value(drawn(ExactPhi()), of_index.mu) > ALPHA
    assert p_value(drawn(LocalPhi()), of_index.mask) > ALPHA
    assert p_value(drawn(LocalPhi()), of_pattern.mask) < ALPHA
    assert p_value(drawn(LocalPhi()), of_index.mu) < ALPHA


def test_through_stock_calls(model: PhiTransformers, stock: outlines.models.Transformers) -> None:
    existing = outlines.Generator(stock, ANSWER)
    generator = outlines.Generator(model, processor=existing.logits_processor)
    assert generator(PROMPT, phi="exact", max_new_tokens=BUDGET) in ("yes", "no", "not now", "nobody")
    assert generator(PROMPT, phi=None, max_new_tokens=BUDGET) in ("yes", "no", "not now", "nobody")
    batch = generator.batch([PROMPT, "hello"], phi="local", max_new_tokens=BUDGET)
    assert all(re.fullmatch("yes|no|not now|nobody", text) for text in batch)


def test_of_takes_whatever_says_what_may_be_written(compiled: CompiledTypes, model: PhiTransformers) -> None:
    guide = FSMGuide.from_automaton(compile_regex("yes|no"), model.lm.vocabulary)
    table = Table(guide)
    assert compiled.of(table) is table
    assert compiled.of(guide).guide is guide
    assert compiled.of(MaskLogitsProcessor(table)) is table
    assert compiled.of(ANSWER) is compiled.of_type(ANSWER)
    with pytest.raises(UnsupportedError, match="free text has nothing to correct"):
        compiled.of(None)


def test_other_vocabularies_are_refused(compiled: CompiledTypes) -> None:
    other = Vocabulary.from_tokens(["yes", "no", "<eos>"], 2)
    guide = FSMGuide.from_automaton(compile_regex("yes|no"), other)
    for language in (guide, Table(guide), MaskLogitsProcessor(Table(guide))):
        with pytest.raises(UnsupportedError, match="another vocabulary"):
            compiled.of(language)


def test_the_processor_of_another_model_is_refused(compiled: CompiledTypes) -> None:
    hf_model, _ = bundled.load()
    words = {"yes": 0, "no": 1, "<eos>": 2}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="no")), eos_token="<eos>"
    )
    processor = outlines.Generator(outlines.from_transformers(hf_model, tokenizer), ANSWER).logits_processor
    with pytest.raises(UnsupportedError, match=r"outlines\.Generator\(model, T\).* was built for another model"):
        compiled.of(processor)


@pytest.mark.parametrize("backend", ["llguidance"])
def test_backends_that_cannot_be_read(
    backend: str, compiled: CompiledTypes, stock: outlines.models.Transformers
) -> None:
    processor = outlines.Generator(stock, ANSWER, backend=backend).logits_processor
    with pytest.raises(UnsupportedError, match="The language of a LLGuidanceLogitsProcessor cannot be read"):
        compiled.of(processor)


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
    for i in range(3):
        compiled.of(numbered(i))
    compiled.clear()
    gc.collect()
    before = len(Formula._made)
    found = [weakref.ref(compiled.of(numbered(i))) for i in range(100, 120)]
    assert len(Formula._made) > before + 20
    compiled.clear()
    gc.collect()
    assert len(Formula._made) <= before and not any(table() for table in found)


def test_formats_are_kept_within_a_bound_of_memory(
    compiled: CompiledTypes, model: PhiTransformers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "LEAST_BYTES", 1)
    one = memory_of(compiled.of(numbered(0)))
    monkeypatch.setattr(tables, "KEPT_BYTES", 4 * one)
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
    guide = compiled.of_type(regex(pattern)).guide
    pairs = [(guide.start, lifted.start)]
    for here, there in pairs:
        assert type(guide) is not FSMGuide and guide.min_tokens(here) >= lifted.min_tokens(there)
        ours, theirs = (row.targets[row.partition.class_of] for row in (guide.row(here), lifted.row(there)))
        assert ((ours != DEAD) == (theirs != DEAD)).all()
        following = {(int(a), int(b)) for a, b in zip(ours, theirs, strict=True) if a > DONE}
        pairs += following.difference(pairs) if len(pairs) < 60 else ()
