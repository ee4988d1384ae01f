"""Stock Outlines calls that carry ``phi=``, with nothing of Outlines patched; its tokenizer shows bytes and serves prompts."""

from __future__ import annotations

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
from outlines.backends.outlines_core import OutlinesCoreBackend
from outlines.inputs import Chat
from outlines.types import regex
from pydantic import BaseModel

from outlines_phi import Draws, Generator, Guarantee, PhiTransformers, from_transformers, wrap
from outlines_phi.guides.index import END, TOKENS, is_byte_level
from outlines_phi.lm import bundled
from outlines_phi.plugin.hosts.transformers import ByteTokenizer

PROMPT = "A person as JSON: "
NUMBER = regex("[0-9]{2,3}")
COLOUR = Literal["red", "green", "dark green"]


class Character(BaseModel):
    kind: Literal["elf", "dwarf"]
    level: Literal[1, 2, 3]


def holds(output_type: Any, text: str) -> bool:
    if output_type is Character:
        return isinstance(Character.model_validate_json(text), Character)
    return text in get_args(COLOUR) if output_type is COLOUR else re.fullmatch("[0-9]{2,3}", text) is not None


TYPES = [NUMBER, COLOUR, Character]


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


class TestRoads:
    @pytest.mark.parametrize("output_type", TYPES, ids=["regex", "Literal", "pydantic"])
    @pytest.mark.parametrize(("phi", "guarantee"), [("exact", Guarantee.EXACT), ("local", Guarantee.WEIGHTED)])
    def test_a_seed_gives_one_result_on_every_road(
        self, output_type: Any, phi: str, guarantee: Guarantee, model: PhiTransformers, drawn: list[Draws]
    ) -> None:
        texts = {name: road(model, PROMPT, output_type, phi=phi, seed=4) for name, road in ROADS.items()}
        own, theirs = (
            {text for name, text in texts.items() if (name in COMPILED_BY_OUTLINES) == there} for there in (False, True)
        )
        assert len(own) == len(theirs) == 1 and all(holds(output_type, text) for text in own | theirs)
        # The pattern that Outlines makes of a schema has blanks in other places, so other draws.
        assert output_type is Character or own == theirs
        assert {draws.guarantee for draws in drawn} == {guarantee} and len(drawn) == len(ROADS)

    @pytest.mark.parametrize("phi", ["exact", "local", "onestep"])
    def test_several_draws_are_a_list(self, phi: str, model: PhiTransformers, drawn: list[Draws]) -> None:
        """One is a text, as in stock Outlines, and an empty batch is empty."""
        texts = model(PROMPT, NUMBER, phi=phi, num_return_sequences=5, seed=0)
        assert isinstance(texts, list) and len(texts) == 5 and all(holds(NUMBER, text) for text in texts)
        assert len(drawn[0]) == 5
        rows = model.batch([PROMPT, "no"], NUMBER, phi=phi, num_return_sequences=3, seed=0)
        assert [len(row) for row in rows] == [3, 3]
        assert isinstance(model(PROMPT, COLOUR, phi=phi, num_return_sequences=1), str)
        for road in (phi, None):
            assert model.batch([], COLOUR, phi=road) == outlines.Generator(model, COLOUR).batch([], phi=road) == []


def test_a_chat_goes_through_the_template() -> None:
    """A text is a user's message where there is a template."""
    model, plain, options = chat_model(), from_transformers(*bundled.load()), {"phi": "local", "seed": 3}
    chat = Chat([{"role": "system", "content": "Be short."}, {"role": "user", "content": PROMPT}])
    expected = plain(f"system: Be short.\nuser: {PROMPT}\nassistant: ", NUMBER, **options)
    assert model(chat, NUMBER, **options) == expected
    assert outlines.Generator(model, NUMBER).batch([chat], **options) == [expected]
    said = Chat([{"role": "user", "content": PROMPT}])
    assert chat_model()(PROMPT, Character, **options) == chat_model()(said, Character, **options)


class TestDefault:
    def test_wrap_leaves_the_original_as_it_is(self) -> None:
        original = outlines.from_transformers(*bundled.load())
        before = dict(vars(original))
        wrapped = wrap(original)
        assert vars(original) == before
        assert isinstance(wrapped, outlines.models.Transformers)
        assert wrap(wrapped, phi="exact").model is original.model


@pytest.mark.parametrize("phi", ["exact", "local"])
class TestSeeds:
    def test_a_seeded_call_does_not_depend_on_what_ran_before(self, phi: str, fresh: PhiTransformers) -> None:
        draw = partial(fresh, PROMPT, NUMBER, phi=phi, num_return_sequences=4)
        first = draw(seed=11)
        fresh(PROMPT, NUMBER, phi=phi, num_return_sequences=3)
        fresh("something else", COLOUR, phi=phi)
        assert draw(seed=11) == first
        fresh.clear_cache()
        assert draw(seed=11) == first != draw(seed=12)


class TestCompiled:
    def test_a_processor_does_not_outlive_its_generator(self, fresh: PhiTransformers) -> None:
        generator = outlines.Generator(fresh, COLOUR)
        generator(PROMPT, phi="exact")
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
    with pytest.raises(KeyError):
        model.hf_tokenizer.get_vocab()["c3a9c3a9"]
