"""Adaptive rejection from cold trees, against variants that look right and are not (theory.md, sections 5 and 11)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from outlines_phi import BudgetError, Effort, ExactPhi
from outlines_phi.sampling.rejection import attempts
from tests.inner import BoundsTree, Evaluator, ExactSampler, RejectionAttempts, preexpand
from tests.languages import (
    ALPHA,
    AND_OPEN,
    GRAMMARS,
    LANGUAGES,
    PROMPT,
    Language,
    deviation,
    p_value,
    pooled_p_value,
    z,
)
from tests.sampling.variants import cut_by_length, first_to_finish, keep_bounds_after_eviction, without_coin

WORDS, LOOP, _, BOTTLENECK = LANGUAGES
KEYWORDS = GRAMMARS[2]
LENGTHS = Language("lengths", "[abcx]{0,3}", 4, seed=2, scale=0.7)
ROWS = 700


@pytest.fixture(autouse=True)
def only_attempts_grow_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preexpand, "SHORT", 0)


def cold_pairs(language: Language, seeds: int = 4, n: int = 2) -> list[tuple[tuple[int, ...], ...]]:
    """Return ``n`` draws of each of many rows that start from nothing, as tuples."""
    sampler = ExactSampler(ExactPhi(width=8))
    results = [draws for seed in range(seeds) for draws in sampler.sample(language.request(n, seed, rows=ROWS))]
    return [tuple(draw.token_ids for draw in draws) for draws in results]


def test_cold_draws_have_the_law_and_pairs_are_independent() -> None:
    """Statistics of three languages are added: a bias of all shows as in 2,100 pairs of one."""
    singles, joints = [], []
    for language in (WORDS, LOOP, KEYWORDS):
        mu = language.reference().mu
        pairs = cold_pairs(language, seeds=1)
        singles += [([pair[i] for pair in pairs], mu) for i in range(2)]
        joints.append((pairs, {(a, b): p * q for a, p in mu.items() for b, q in mu.items()}))
    assert pooled_p_value(singles) > ALPHA
    assert pooled_p_value(joints) > ALPHA  # type: ignore[arg-type]


WRONG = {
    "no thinning coin": ("_walk", without_coin, WORDS),
    "first to finish": ("_read_in_order", first_to_finish, LENGTHS),
    "attempts cut by a token budget": ("_walk", cut_by_length, LENGTHS),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_same_test_fails_for_wrong_variants(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, wrong, language = WRONG[name]
    mu = language.reference().mu
    right = [first for first, *_ in cold_pairs(language, seeds=1, n=1)]
    assert p_value(right, mu) > ALPHA
    monkeypatch.setattr(RejectionAttempts, method, wrong)
    drawn = [first for first, *_ in cold_pairs(language, seeds=1, n=1)]
    assert p_value(drawn, mu) < ALPHA


@pytest.mark.parametrize("max_bytes", [0, 3_000, 6_000])
def test_eviction_keeps_the_law(max_bytes: int) -> None:
    """A tree that forgets all the time still gives mu*, at more model tokens."""
    mu = WORDS.reference().mu
    sampler = ExactSampler(ExactPhi(width=4))
    sampler.store.max_bytes = max_bytes
    draws = sampler.sample(WORDS.request(2000, seed=1))[0]
    roomy = ExactSampler(ExactPhi(width=4)).sample(WORDS.request(2000, seed=1))[0]
    assert draws.counts.tokens > 2 * roomy.counts.tokens
    assert p_value([draw.token_ids for draw in draws], mu) > ALPHA


def test_a_bound_kept_after_eviction_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgetting a subtree but keeping its bound biases every later attempt."""

    keep_bounds_after_eviction(monkeypatch)
    sampler = ExactSampler(ExactPhi(width=4))
    sampler.store.max_bytes = 3_000
    draws = sampler.sample(WORDS.request(2000, seed=1))[0]
    assert p_value([draw.token_ids for draw in draws], WORDS.reference().mu) < ALPHA


def test_residual_attempts_give_an_unbiased_normaliser() -> None:
    """Cold rows, one draw and one residual attempt each: the mean of Z_hat is Phi, though trees are far from complete."""
    errors = []
    for language in AND_OPEN:
        phi = math.exp(language.reference().log_phi)
        results = ExactSampler(ExactPhi(normalizers=1)).sample(language.request(1, 6, rows=600))
        errors.append(z(np.array([estimate for draws in results for estimate in draws.normalizers]), phi))
    print(errors)
    assert (
        deviation(errors) < 4
    )  # that of 4,200 rows, were it the bias of all; of arithmetic one attempt in 15 succeeds


def test_the_accepting_wave_is_no_normaliser() -> None:
    """Control: the success rate up to the accepted attempt, scaled by the bounds at the end, is biased upwards."""
    phi = math.exp(WORDS.reference().log_phi)
    results = ExactSampler(ExactPhi()).sample(WORDS.request(1, 5, rows=2000))
    estimates = []
    for draws in results:
        lower, upper = np.exp(draws.log_z_bounds)
        estimates.append(lower + (upper - lower) * draws.counts.accepted / draws.counts.attempts)
    error = np.std(estimates) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - phi) > 4 * error


def test_bounds_tighten_with_every_draw_and_never_cross_phi() -> None:
    """Reported U never increases nor falls below Phi; reported Lo never decreases nor exceeds it."""
    phi = math.exp(LOOP.reference().log_phi)
    tree = BoundsTree(LOOP.table, LOOP.budget)
    evaluator = Evaluator(LOOP.lm, LOOP.settings(), [PROMPT], [tree])
    request = LOOP.request(40, seed=2)
    attempts = RejectionAttempts(tree, 40, lambda i: request.stream(0, i), width=3, effort=Effort(), max_bytes=2**30)
    history = [tuple(map(math.exp, tree.log_bounds))]
    while waiting := attempts.advance():
        evaluator.expand((tree, node) for node in waiting)
        tree.evict(8_000, pinned=waiting)
        history.append(tuple(map(math.exp, tree.log_bounds)))
    lowers, uppers = zip(*history, strict=True)
    assert len(history) > 5 and uppers[-1] < 0.9
    assert list(lowers) == sorted(lowers) and list(uppers) == sorted(uppers, reverse=True)
    assert lowers[-1] <= phi + 1e-12 and phi <= uppers[-1] + 1e-12


def test_effort_ends_with_what_was_drawn() -> None:
    """The error carries exact draws and bounds; launched attempts were all finished."""
    phi = ExactPhi(effort=Effort(attempts=1), width=2)
    with pytest.raises(BudgetError, match="effort ran out") as caught:
        ExactSampler(phi).sample(BOTTLENECK.request(200, seed=1))
    draws = caught.value.draws[0]
    assert 0 < len(draws) < 200
    assert draws.counts.attempts == 200
    lower, upper = caught.value.log_z_bounds or (0.0, 0.0)
    assert lower <= BOTTLENECK.reference().log_phi <= upper


def test_one_model_call_per_step_for_all_rows_and_attempts() -> None:
    """32 cold rows take about the calls of the longest one alone."""
    sampler = ExactSampler(ExactPhi())
    alone = [sampler.sample(WORDS.request(1, seed))[0].counts.calls for seed in range(20)]
    together = sampler.sample(WORDS.request(1, 0, rows=32))[0].counts.calls
    assert together <= 1.5 * max(alone)


def test_module_has_no_state() -> None:
    """Two samplers share nothing."""
    assert not [
        name for name, value in vars(attempts).items() if isinstance(value, (dict, list, set)) and name[0] != "_"
    ]
