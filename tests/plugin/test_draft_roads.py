"""Drafts on every road: the law is that without them, on roads to exact draws and to masked ones, and drafts are really followed.

The oracle asks the Hugging Face model by itself, and looks for phrases by Python's ``in``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import outlines_phi
from outlines_phi import PhiTransformers
from outlines_phi.drafting import Draft, Drafter, Drafting, DraftRun, Site
from outlines_phi.lm import bundled
from tests.languages import ALPHA
from tests.plugin.doors import BAN, DOORS, ONE_BY_ONE, SUNDAY, Door, alternately, banned_generator, fewer, through
from tests.plugin.oracle import free_texts, p_value, same_law, without

PROMPT, N, LAW = SUNDAY.prompt, SUNDAY.n, SUNDAY.limits
ROADS = (*DOORS, banned_generator)


class Guesser(Drafter, Drafting):
    """Proposes the rest of a sentence that it has in mind, in the tokenizer's tokens, and counts what it has proposed."""

    name: ClassVar[str] = "guesser"

    def __init__(self, *sentences: str) -> None:
        tokenizer = bundled.load()[1]
        self.minds = [tuple(tokenizer.encode(sentence)) for sentence in sentences]
        self.proposed = 0

    def begin(self, run: DraftRun) -> Drafting:
        return self

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        drafts = []
        for site, length in zip(sites, lengths, strict=True):
            written = len(site.tokens)
            rest = next((mind[written:] for mind in self.minds if mind[:written] == site.tokens), ())
            drafts.append(Draft(rest[:length]))
            self.proposed += len(drafts[-1].tokens)
        return drafts


@pytest.fixture(scope="module")
def truth(model: PhiTransformers) -> dict[str, float]:
    """Return P(text) under mu*."""
    return without(free_texts(model, PROMPT, k=SUNDAY.top_k, budget=SUNDAY.budget), BAN, PROMPT)


@pytest.fixture
def guesser() -> Guesser:
    """Right now and then, wrong most of the time, and once banned."""
    return Guesser("no, it is closed", "yes, until noon", "nobody knows")


@through(*ROADS)
def test_exact_texts_have_the_law(
    door: Door, fresh: PhiTransformers, truth: dict[str, float], guesser: Guesser
) -> None:
    drawn = door(fresh, SUNDAY.by(phi="exact", draft=[guesser, "prompt_lookup"], draft_length=3))
    assert len(drawn) == N and p_value(drawn, truth) > ALPHA
    assert guesser.proposed


@alternately(*ROADS)
def test_masked_texts_fail_the_same_test(
    door: Door, model: PhiTransformers, truth: dict[str, float], guesser: Guesser
) -> None:
    """Power control: drafts that are followed cannot make up for the bias of masking."""
    drawn = door(model, fewer(SUNDAY, door).by(phi="local", draft=guesser))
    assert p_value(drawn, truth) < ALPHA
    assert guesser.proposed


@pytest.fixture(scope="module")
def undrafted(model: PhiTransformers) -> dict[str, list[str]]:
    """Return many draws without a draft, whose laws are tested elsewhere."""
    generator = outlines_phi.Generator(model, None, banned_phrases=BAN)
    return {phi: generator.sample(PROMPT, 5 * N, seed=3, phi=phi, **LAW).texts for phi in ("local", "lookahead")}


@pytest.fixture(scope="module")
def sibling() -> Any:
    """A model that is another one: its layers are noisy."""
    hf_model = bundled.load()[0]
    torch.manual_seed(0)
    with torch.no_grad():
        for weights in hf_model.model.layers.parameters():
            weights += 0.5 * weights.std() * torch.randn_like(weights)
    return hf_model


def halves() -> Iterator[Any]:
    """Every door under one of two corrections, each of which comes through half of them; `make test-full` has the others."""
    # A drafting model is read anew in each call.
    for i, door in enumerate(door for door in ROADS if door not in ONE_BY_ONE):
        for j, phi in enumerate(("local", "lookahead")):
            yield pytest.param(door, phi, marks=[pytest.mark.full] if (i + j) % 2 else [], id=f"{phi}-{door.__name__}")


@pytest.mark.parametrize(("door", "phi"), list(halves()))
def test_sampled_drafts_change_no_law(
    door: Door, phi: str, model: PhiTransformers, sibling: Any, undrafted: dict[str, list[str]]
) -> None:
    drawn = door(model, SUNDAY.by(phi=phi, draft=sibling))
    assert not any(phrase in PROMPT + text for text in drawn for phrase in BAN)
    assert same_law(drawn, undrafted[phi]) > ALPHA


def test_the_sibling_and_the_two_laws_differ(
    model: PhiTransformers, sibling: Any, undrafted: dict[str, list[str]]
) -> None:
    """Power control: a road that returned what the sibling writes, or the other law, would be found out."""
    assert same_law(undrafted["local"], undrafted["lookahead"]) < 1e-5
    other = outlines_phi.from_transformers(sibling, model.hf_tokenizer)
    drawn = other(PROMPT, banned_phrases=BAN, phi="local", num_return_sequences=N, **LAW)
    assert same_law(drawn, undrafted["local"]) < 1e-6
