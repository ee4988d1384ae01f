"""Choices of the bundled model at low temperatures, beside the sums of plain forward passes in float64."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator
from functools import cache
from typing import Literal

import numpy as np
import pytest
import torch

import outlines_phi
from outlines_phi import ExactPhi
from tests.loaded import read
from tests.precision import TOKEN

MODEL = outlines_phi.from_transformers(*read())

PROMPT = "Story: Aria is a brave "
WORDS = [
    "Monday",
    "42 42",
    "elf",
    "yes",
    "no",
    "red",
    "3.5",
    "Nora",
    "wizard",
    "Rome",
    "a b",
    "17",
    "(x)",
    "brave",
    "zz",
]
TEMPERATURES = (0.03, 0.05, 0.1, 1.0)


@cache
def in_double() -> torch.nn.Module:
    return copy.deepcopy(MODEL.model).double()


def tokenizations(text: bytes) -> Iterator[tuple[int, ...]]:
    """Every sequence of tokens that writes ``text``."""
    vocabulary = MODEL.lm.vocabulary
    if not text:
        yield ()
    for token, written in enumerate(vocabulary.tokens):
        if written and text.startswith(written):
            yield from ((token, *rest) for rest in tokenizations(text[len(written) :]))


@cache
def logits(text: str) -> list[tuple[tuple[int, ...], torch.Tensor]]:
    """Return each tokenization of a choice, end of sequence included, with the logits of its steps."""
    start, eos = MODEL.hf_tokenizer(PROMPT)["input_ids"], MODEL.lm.vocabulary.eos_ids[0]
    found = []
    for tokens in tokenizations(text.encode()):
        ids = torch.tensor([[*start, *tokens]])
        with torch.no_grad():
            rows = in_double()(ids).logits[0, len(start) - 1 :]
        found.append(((*tokens, eos), rows))
    return found


def log_p(text: str, temperature: float) -> float:
    sums = [
        (rows / temperature).log_softmax(-1).gather(-1, torch.tensor(ids)[:, None]).sum().item()
        for ids, rows in logits(text)
    ]
    return float(np.logaddexp.reduce(sums))


def rounding(texts: tuple[str, ...], temperature: float) -> float:
    """Return the possible error of the log of a sum beside float64: the loss of every logit in a forward pass in float32."""
    return TOKEN / temperature * max(len(ids) for text in texts for ids, _ in logits(text))


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_choices_are_those_of_float64(temperature: float) -> None:
    drawn, decided = random.Random(int(100 * temperature)), 0
    for _ in range(12):
        texts = tuple(drawn.sample(WORDS, 2))
        exact = {text: log_p(text, temperature) for text in texts}
        log_phi, close = float(np.logaddexp(*exact.values())), rounding(texts, temperature)
        generator = outlines_phi.Generator(MODEL, Literal[texts])
        found = generator.probabilities(PROMPT, temperature=temperature)
        assert found.log_z_bounds == pytest.approx([log_phi] * 2, abs=close)
        assert {text: found[text].p for text in texts} == pytest.approx(
            {text: math.exp(x - log_phi) for text, x in exact.items()}, abs=2 * close
        )
        mode = generator.mode(PROMPT, temperature=temperature)
        likeliest = max(texts, key=exact.__getitem__)
        gap = exact[likeliest] - min(exact.values())
        if gap > 20:  # one of them has everything
            decided += 1
            for phi in ("exact", "auto", ExactPhi(tolerance=1e-3)):
                assert set(generator.sample(PROMPT, 8, phi=phi, temperature=temperature, seed=1).values) == {likeliest}
        if len(logits(likeliest)) == 1 or gap > 100:
            assert mode.texts[0] == likeliest
    assert decided or temperature == 1.0
