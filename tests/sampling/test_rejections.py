"""Every attempt that fails in free text is counted for the phrase that it came upon."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from outlines_phi import BannedPhrases, Draws, ExactPhi, LookaheadPhi, SamplingSettings, Vocabulary
from outlines_phi.guides import Table
from outlines_phi.lm import TableModel
from outlines_phi.sampling.window_walks import lost_at
from tests.inner import ExactSampler, LookaheadSampler, Node, PhraseGuide, Request

VOCABULARY = Vocabulary.from_tokens(["<eos>", "a", "b", "ab", " ", "c"], 0)
PROMPT = (4,)
LEVELS = [LookaheadPhi(), LookaheadPhi(weights=True), LookaheadPhi(release="early"), LookaheadPhi(width=1)]


def request(phrases: BannedPhrases, budget: int, n: int, *, seed: int = 1, scale: float = 1.5) -> Request:
    lm = TableModel.random(VOCABULARY, seed=seed, scale=scale)
    table = Table(PhraseGuide(VOCABULARY, phrases))
    settings = SamplingSettings(max_new_tokens=budget, seed=seed)
    return Request(lm=lm, table=table, prompts=[PROMPT], settings=settings, n=n)


def failed(draws: Draws) -> int:
    return draws.counts.attempts - draws.counts.accepted


@pytest.mark.in_turn
@pytest.mark.parametrize("phi", LEVELS, ids=str)
@pytest.mark.parametrize(
    ("phrases", "budget"),
    [
        (BannedPhrases(["aba", "abb", "ca"]), 6),
        (BannedPhrases(["a", "ab"], whole_word=True), 4),
        (BannedPhrases(["a", "ab", "b c"], whole_word=True), 1),
        (BannedPhrases(["".join(letters) for letters in itertools.product("ab", repeat=3)]), 8),
    ],
    ids=["nested", "words", "words that the budget ends", "nearly all"],
)
def test_all_that_failed_are_counted(phi: LookaheadPhi, phrases: BannedPhrases, budget: int) -> None:
    for seed in range(2):
        draws = LookaheadSampler(phi).sample(request(phrases, budget, 150, seed=seed))[0]
        assert sum(draws.rejections.values()) == failed(draws) > 5
        assert set(draws.rejections) <= set(phrases.names)


def test_a_word_counts_where_the_end_completes_it() -> None:
    """Of one token, each attempt is by itself: it ends in "a" with the probability of that token."""
    n, case = 2000, request(BannedPhrases(["a", "b"], whole_word=True), 1, 2000)
    p = np.exp(case.lm.logits(PROMPT))  # type: ignore[attr-defined]
    p /= p.sum()
    draws = LookaheadSampler(LookaheadPhi()).sample(case)[0]
    for token, name in ((1, "'a'"), (2, "'b'")):
        assert abs(draws.rejections[name] - n * p[token]) < 4 * math.sqrt(n * p[token] * (1 - p[token]))
    assert failed(draws) == sum(draws.rejections.values())


def test_a_word_counts_where_the_end_of_sequence_completes_it() -> None:
    """After "a" the model ends, but for one time in ten; nothing else is banned."""
    law = {4: [0.0, 1.0, 0, 0, 0, 0], 1: [0.9, 0, 0, 0, 0, 0.1], 5: [1.0, 0, 0, 0, 0, 0]}

    def log_law(sequence: tuple[int, ...]) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(law[sequence[-1]])

    table = Table(PhraseGuide(VOCABULARY, BannedPhrases(["zz", "a"], whole_word=True)))
    one = Request(
        lm=TableModel(VOCABULARY, log_law),
        table=table,
        prompts=[PROMPT],
        settings=SamplingSettings(max_new_tokens=4, seed=0),
        n=500,
    )
    draws = LookaheadSampler(LookaheadPhi()).sample(one)[0]
    assert set(draws.texts) == {"ac"} and draws.rejections == {"'a'": failed(draws)}
    assert abs(failed(draws) - 450) < 40


def test_an_attempt_fails_for_what_is_lost_below_it() -> None:
    """At a prefix, 0.1 is dead; 0.25 of its child of 0.4 has been lost since, and half of another one of 0.2."""
    root = Node(None, -1, 2, 5)
    root.log_rest = math.log(0.3)
    for token, p, upper in ((1, 0.4, 0.75), (2, 0.2, 0.5)):
        child = root.children[token] = Node(root, token, 2, 4)
        child.log_step, child.log_upper, child.log_rest = math.log(p), math.log(upper), math.log(upper)
    rng, n = np.random.default_rng(0), 6000
    found = Counter(lost_at(root, 0.0, rng).token for _ in range(n))
    assert all(abs(found[token] - n / 3) < 4 * math.sqrt(n * 2 / 9) for token in (-1, 1, 2))
    found = Counter(lost_at(root, math.log(0.9), rng).token for _ in range(n))
    assert found[-1] == 0 and abs(found[1] - n / 2) < 4 * math.sqrt(n / 4), "what is dead here was known before"
    for child in root.children.values():
        child.log_upper = 0.0
    assert {lost_at(root, 0.0, rng).token for _ in range(20)} == {-1}


def test_exact_draws_count_attempts_alone() -> None:
    draws = ExactSampler(ExactPhi()).sample(request(BannedPhrases(["aba", "ca", "b"]), 40, 20))[0]
    assert not draws.rejections and failed(draws) > 0
