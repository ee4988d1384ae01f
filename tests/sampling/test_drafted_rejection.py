"""Rejection by walks through token trees, with what drafters foresee evaluated ahead: the same laws."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from outlines_phi import BudgetError, Effort, ExactPhi, Guarantee
from outlines_phi.drafting import FirstOf, TreeDrafter
from tests.inner import (
    Attempt,
    Attempts,
    ExactSampler,
    Prefetch,
    RejectionAttempts,
    TreeStore,
    frequencies,
    noise_floor,
    total_variation,
)
from tests.languages import ALPHA, GRAMMARS, Language, p_value
from tests.sampling.banning import ids
from tests.sampling.foreseen import LOOP, NAMES, WORDS, ahead, drafters
from tests.sampling.test_constraint import Merged, constrained
from tests.sampling.test_constraint import reference as constrained_reference

pytestmark = [
    pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning"),
    pytest.mark.usefixtures("only_walks_grow_trees"),
]

LONG = Language("long", "(a|b|ab|c)*x", 6, seed=5)
ROWS, FRESH = 630, 3000
"""Prompts of a language, shared by its drafters under a seed each; and prompts of the control."""
WALK = RejectionAttempts._walk


def pairs(language: Language, draft: Prefetch | None, rows: int, seed: int) -> list[tuple[tuple[int, ...], ...]]:
    """Return two draws of each of many prompts that start from nothing."""
    results = ExactSampler(ExactPhi(width=8), draft=draft).sample(language.request(2, seed, rows=rows))
    return [tuple(draw.token_ids for draw in draws) for draws in results]


class TestRejection:
    @pytest.mark.parametrize(
        ("language", "names"),
        [(WORDS, NAMES), *((each, ("likeliest", "drawn")) for each in (LOOP, GRAMMARS[2]))],
        ids=str,
    )
    def test_draws_have_the_law_and_pairs_are_independent(self, language: Language, names: tuple[str, ...]) -> None:
        """A drafter that changes the law of a seventh of these draws wholly is seen, as is a bias of all under any of them."""
        mu, rows = language.reference().mu, ROWS // len(names)
        found = [pair for seed, name in enumerate(names) for pair in pairs(language, ahead(language, name), rows, seed)]
        first, second = ([pair[i] for pair in found] for i in range(2))
        distance, floor = total_variation(frequencies(first), mu), noise_floor(mu, len(first))
        print(f"{language}: TV {distance:.4f}, floor {floor:.4f}")
        assert p_value(first, mu) > ALPHA and p_value(second, mu) > ALPHA
        assert p_value(found, {(a, b): p * q for a, p in mu.items() for b, q in mu.items()}) > ALPHA  # type: ignore[arg-type]
        assert distance < 1.5 * floor

    def test_any_length(self) -> None:
        found = [pairs(WORDS, ahead(WORDS, "likeliest", length), ROWS // 3, seed=length) for length in (1, 2, 6)]
        assert p_value([first for of_length in found for first, _ in of_length], WORDS.reference().mu) > ALPHA

    def test_a_coin_for_dead_tokens_alone_fails_with_a_draft(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Control: one attempt at a time meets no bound that another one refreshed, until a draft refreshes them."""
        monkeypatch.setattr(RejectionAttempts, "_walk", coin_for_dead_tokens_alone)
        mu = WORDS.reference().mu
        assert p_value(first_of_fresh(WORDS, None), mu) > ALPHA
        assert p_value(first_of_fresh(WORDS, ahead(WORDS, "likeliest")), mu) < ALPHA
        monkeypatch.setattr(RejectionAttempts, "_walk", WALK)
        assert p_value(first_of_fresh(WORDS, ahead(WORDS, "likeliest")), mu) > ALPHA

    def test_a_seed_and_a_drafter_name_the_draws_whatever_the_other_prompts_are(self) -> None:
        for name in NAMES:
            sampler = ExactSampler(ExactPhi(), draft=ahead(LOOP, name))
            alone, again = (sampler.sample(LOOP.request(5, seed=3))[0] for _ in range(2))
            among = sampler.sample(LOOP.request(5, seed=3, rows=4))[0]
            assert alone.items == again.items == among.items

    def test_a_small_memory_changes_no_law(self) -> None:
        mu = WORDS.reference().mu
        for name in ("likeliest", "least likely"):
            sampler = ExactSampler(ExactPhi(width=4), TreeStore(3_000), ahead(WORDS, name))
            (draws,) = sampler.sample(WORDS.request(800, seed=1))
            assert p_value([draw.token_ids for draw in draws], mu) > ALPHA

    def test_a_constraint_that_is_found_out_node_by_node(self) -> None:
        constraint, found = Merged(even=True), []
        for seed, name in enumerate(("likeliest", "least likely", "drawn")):
            sampler = ExactSampler(ExactPhi(width=8), draft=ahead(LOOP, name))
            found += sampler.sample(constrained(LOOP, 1, seed, constraint, rows=200))
        mu = constrained_reference(LOOP, constraint)[1]
        assert p_value([draws[0].token_ids for draws in found], mu) > ALPHA

    @pytest.mark.parametrize("memory", [2**30, 3_000 * 1000], ids=["roomy", "small"])
    def test_normalisers_stay_unbiased(self, memory: int) -> None:
        """Also where attempts go down through nodes that have lost their laws, which a draft restores and nothing else."""
        draft = Prefetch(FirstOf((TreeDrafter(), drafters(WORDS)["likeliest"])), 4)
        sampler = ExactSampler(ExactPhi(normalizers=2, width=4), TreeStore(memory), draft)
        results = sampler.sample(WORDS.request(2, 5, rows=250))
        means = np.array([np.mean(draws.normalizers) for draws in results])
        phi = math.exp(WORDS.reference().log_phi)
        assert abs(means.mean() - phi) <= 4 * means.std() / math.sqrt(len(means))

    def test_certified_draws_have_the_law_of_those_without_a_draft(self) -> None:
        phi = ExactPhi(tolerance=0.6, width=8)
        (plain,), *others = (
            ExactSampler(phi, draft=draft).sample(LONG.request(3000, seed=2))
            for draft in (None, *(ahead(LONG, name) for name in ("likeliest", "least likely", "drawn")))
        )
        assert plain.guarantee == Guarantee.CERTIFIED
        for (draws,) in others:
            assert draws.certificate == plain.certificate and draws.counts.drafted > draws.counts.followed
            assert two_sample(ids(draws), ids(plain)) > ALPHA


def coin_for_dead_tokens_alone(self: Attempts, attempt: Attempt) -> bool | None:
    """Walk on from a fresh node with the probability of its live tokens, whatever is known of these by now."""
    node = attempt.node
    if node.distribution is not None:
        attempt.log_bound = node.log_upper - node.log_live if node.log_live > -math.inf else attempt.log_bound
    return WALK(self, attempt)


def first_of_fresh(language: Language, draft: Prefetch | None) -> list[tuple[int, ...]]:
    """Return a draw of each of many fresh trees, of those whose first attempt found one."""
    sampler = ExactSampler(ExactPhi(width=1, effort=Effort(attempts=1)), draft=draft)
    try:
        results = sampler.sample(language.request(1, 7, rows=FRESH))
    except BudgetError as error:
        results = error.draws
    return [draws[0].token_ids for draws in results if len(draws)]


def two_sample(left: list, right: list) -> float:
    """Return the p-value of "both are draws of one law", rare outcomes taken together."""
    both = Counter(left) + Counter(right)
    cells = [Counter(outcome if both[outcome] >= 20 else None for outcome in draws) for draws in (left, right)]
    outcomes = sorted({*cells[0], *cells[1]}, key=repr)
    table = np.array([[found[outcome] for outcome in outcomes] for found in cells])
    return float(stats.chi2_contingency(table).pvalue)
