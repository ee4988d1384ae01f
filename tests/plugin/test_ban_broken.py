"""Texts of the host's own loop are shown as their tokens wrote them, letters beside broken bytes too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import outlines_phi
from outlines_phi import BannedPhrases, Vocabulary
from tests.leaks import bigrams, leaks
from tests.vocabulary.test_vocabulary import sentencepiece_bpe

BAN = BannedPhrases(["ab"], whole_word=True)
N = 40


@pytest.fixture(scope="module")
def hf() -> tuple[torch.nn.Module, object]:
    """A model that writes broken bytes, letters by their bytes, and the word that is banned, with equal chances."""
    tokenizer = sentencepiece_bpe()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    logits = np.full((len(vocabulary), len(vocabulary)), -9.0)
    names = tokenizer.convert_ids_to_tokens(range(len(vocabulary)))
    logits[:, [names.index(name) for name in ("<0xFF>", "<0x63>", "ab", "▁ab", "cd")]] = 3.0
    return bigrams(logits, tokenizer.eos_token_id), tokenizer


def broken_words(texts: list[str]) -> list[str]:
    """Texts that were worth the trouble: with a broken byte, a letter beside it and the word."""
    return [text for text in texts if "\ufffdcab" in text or "abc\ufffd" in text]


def test_no_word_is_left_alone_by_what_is_shown_as_broken(hf: tuple[torch.nn.Module, object]) -> None:
    torch.manual_seed(0)
    model = outlines_phi.from_transformers(*hf)
    free = outlines_phi.Generator(model, None, banned_phrases=BAN)
    options = {"max_new_tokens": 8, "do_sample": True, "top_k": 0}
    doors: dict[str, Callable[[], list[str]]] = {
        "call": lambda: [model("x", phi=None, banned_phrases=BAN, **options) for _ in range(N)],
        "generator": lambda: [free("x", phi=None, **options) for _ in range(N)],
        "batch": lambda: model.batch(["x"] * N, phi=None, banned_phrases=BAN, **options),
        "several": lambda: model("x", phi=None, banned_phrases=BAN, num_return_sequences=N, **options),
        "stream": lambda: ["".join(model.stream("x", phi=None, banned_phrases=BAN, **options)) for _ in range(N)],
        "lookahead": lambda: free.sample("x", N, max_new_tokens=8, seed=0).texts,
        "exact": lambda: free.sample("x", N, phi="exact", max_new_tokens=8, seed=0).texts,
    }
    for door, call in doors.items():
        texts = call()
        assert broken_words(texts), door
        assert [leak for text in texts for leak in leaks(BAN, text.encode(), b"x")] == [], door


def test_the_control_what_the_hosts_decoder_shows_leaks(hf: tuple[torch.nn.Module, object]) -> None:
    """Its text is not what tokens wrote. The ids hold no phrase."""
    torch.manual_seed(0)
    model, tokenizer = hf
    processor = outlines_phi.ban(model, BAN, tokenizer=tokenizer, max_new_tokens=8)
    inputs = tokenizer(["x"] * 200, return_tensors="pt")
    ids = model.generate(**inputs, logits_processor=[processor], do_sample=True, top_k=0, max_new_tokens=8)
    written = ids[:, inputs["input_ids"].shape[1] :].tolist()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    texts = [vocabulary.decode(row).decode(errors="replace") for row in written]
    assert broken_words(texts) and not any(leaks(BAN, text.encode(), b"x") for text in texts)
    shown = tokenizer.batch_decode(written, skip_special_tokens=True)
    assert any(leaks(BAN, text.encode(), b"x") for text in shown)
