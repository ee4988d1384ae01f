"""Nothing banned is ever drawn: many draws of models that want to write it, over hostile vocabularies, searched by plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest

from outlines_phi import BannedPhrases, SamplingSettings
from outlines_phi.guides import Table
from outlines_phi.lm import TableModel
from tests.inner import PhraseGuide, Request
from tests.leaks import leaks
from tests.sampling.hostile import CASES, LEVELS, Case, Level, cases, levels, of

LEAST, SHARE = 20_000, 8
"""Draws of all cases and levels together, and the share of them in a usual run: it sees what one draw in 500 leaks (0.993)."""


@pytest.mark.parametrize("share", [SHARE, pytest.param(1, marks=pytest.mark.full)])
@levels
@cases
def test_nothing_banned_is_drawn(case: Case, level: Level, share: int) -> None:
    n = math.ceil(level.n / share)
    results = level.draw(case.request(level, n))
    assert case.check(results) == n * len(case.prompts)
    assert len({draw.text for draws in results for draw in draws}) > 2, "there is something to search"


def test_so_many_draws_are_searched() -> None:
    """The test above makes every one of these, or fails."""
    assert sum(level.n * len(case.prompts) for case in CASES for level in LEVELS.values()) >= LEAST


def unbanned(case: Case, lm: TableModel) -> list[tuple[str, bytes]]:
    """Return the free texts of a model after each prompt."""
    nothing = Table(PhraseGuide(case.vocabulary, BannedPhrases(["\U0010fffd"])))
    options = SamplingSettings(max_new_tokens=case.budget, seed=3)
    results = LEVELS["mask"].draw(Request(lm=lm, table=nothing, prompts=case.ids, settings=options, n=60))
    rows = zip(case.prompts, results, strict=True)
    return [(prompt, case.vocabulary.decode(draw.token_ids)) for prompt, draws in rows for draw in draws]


@cases
def test_the_search_finds_what_the_models_want_to_write(case: Case) -> None:
    """Control: the same models without a ban."""
    texts = unbanned(case, case.lm)
    assert sum(bool(leaks(case.ban, text, prompt.encode())) for prompt, text in texts) > len(texts) / 5


def test_the_search_finds_other_spellings_of_a_banned_token_sequence() -> None:
    """Control: a ban of the token sequences that a tokenizer would write."""
    case = of("merges")
    tokens = case.vocabulary.tokens
    sequences = [
        (tokens.index(b"linarith"),),
        (tokens.index(b" linarith"),),
        (tokens.index(b"lin"), tokens.index(b"arith")),
    ]

    def law(ids: tuple[int, ...]) -> np.ndarray:
        logits = case.lm.logits(ids).copy()
        logits[[last for *first, last in sequences if ids[len(ids) - len(first) :] == tuple(first)]] = -np.inf
        return logits

    texts = unbanned(case, TableModel(case.vocabulary, law))
    assert sum(bool(leaks(case.ban, text, prompt.encode())) for prompt, text in texts) > len(texts) / 5
