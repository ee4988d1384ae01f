"""The tokenizer shows stock Outlines bytes and serves prompts as the model's own."""

from __future__ import annotations

import pickle

import outlines
import pytest
import torch
from outlines.backends.outlines_core import OutlinesCoreBackend

from outlines_phi import PhiTransformers
from outlines_phi.guides.index import END, TOKENS, is_byte_level
from outlines_phi.plugin.hosts.transformers import ByteTokenizer

TEXTS = ["plain", "é ☃ 🦊", " leading", "two\nlines", "\x00"]


def test_it_encodes_and_decodes_as_the_model_does(model: PhiTransformers, stock: outlines.models.Transformers) -> None:
    for ours, theirs in zip(model.tokenizer.encode(TEXTS), stock.tokenizer.encode(TEXTS), strict=True):
        assert torch.equal(ours, theirs)
    ids, mask = model.tokenizer.encode(TEXTS)
    rows = [row[kept.bool()] for row, kept in zip(ids, mask, strict=True)]
    assert [model.tokenizer.decode([row])[0] for row in rows] == TEXTS


def test_it_shows_bytes() -> None:
    assert TOKENS[:256] == tuple(bytes([byte]) for byte in range(256))
    assert len(set(TOKENS)) == len(TOKENS) < END


def test_the_pairs_are_those_that_may_follow_a_character() -> None:
    """Of a few more (overlong forms, surrogates) no automaton of texts allows any."""
    codes = {*range(0x800), *range(0x800, 0x110000, 64)} - {*range(0xD800, 0xE000)}  # 64 in a row share two bytes
    characters = {chr(code).encode() for code in codes}
    firsts, beginnings = {one[:1] for one in characters}, {one[:2] for one in characters}
    assert {(one + other)[:2] for one in beginnings for other in firsts} <= set(TOKENS[256:])


def test_stock_outlines_builds_its_index_over_them(model: PhiTransformers, stock: outlines.models.Transformers) -> None:
    vocabulary = OutlinesCoreBackend(model).vocabulary
    assert (len(vocabulary), vocabulary.get_eos_token_id()) == (len(TOKENS) + 1, END)
    assert vocabulary.get(b"\xc3") == [0xC3]
    assert is_byte_level(outlines.Generator(model, bool).logits_processor.index)
    assert not is_byte_level(outlines.Generator(stock, bool).logits_processor.index)


def test_it_survives_pickling(model: PhiTransformers) -> None:
    copy = pickle.loads(pickle.dumps(model.tokenizer))
    assert isinstance(copy, ByteTokenizer)
    assert (copy.eos_token_id, copy.get_vocab()) == (END, model.tokenizer.get_vocab())


def test_the_model_keeps_its_own_tokenizer(model: PhiTransformers) -> None:
    assert model.hf_tokenizer.eos_token_id == model.model.generation_config.eos_token_id
    assert model.hf_tokenizer.pad_token_id is not None
    with pytest.raises(KeyError):
        model.hf_tokenizer.get_vocab()["c3a9c3a9"]
