"""Kept trees, memory bounds and interruptions leave exact and certified draws as they are."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from outlines_phi import BudgetError, Draws, Effort, ExactPhi, Guarantee, LocalPhi
from tests.inner import AncestralSampler, BoundsTree, ExactSampler, TreeStore, preexpand
from tests.languages import ALPHA, LANGUAGES, Language, p_value

WORDS, LOOP = LANGUAGES[:2]


@pytest.fixture(autouse=True)
def only_attempts_grow_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preexpand, "SHORT", 0)


def drawn(results: list[Draws]) -> list[tuple[int, ...]]:
    return [draw.token_ids for draws in results for draw in draws]


@pytest.mark.parametrize("max_bytes", [2**30, 40_000])
def test_a_certificate_holds_under_any_memory_bound(max_bytes: int) -> None:
    """The nodes that a certificate is about are never forgotten; where they do not fit, there is none."""
    sampler = ExactSampler(ExactPhi(tolerance=0.02), TreeStore(max_bytes))
    try:
        draws = sampler.sample(LOOP.request(4000, seed=1))[0]
    except BudgetError as error:
        assert max_bytes < 2**30
        assert [len(draws) for draws in error.draws] == [0]
        return
    assert draws.guarantee is Guarantee.CERTIFIED
    mu = LOOP.reference().mu
    lower, upper = np.exp(draws.log_z_bounds)
    seen = np.array([draws.texts.count(text) for text in sorted(set(draws.texts))]) / len(draws)
    truth = [
        sum(p for ids, p in mu.items() if LOOP.table.vocabulary.decode(ids).decode() == text)
        for text in sorted(set(draws.texts))
    ]
    distance = 1 - np.minimum(seen, truth).sum()
    assert distance <= (upper - lower) / upper + 0.06


def test_an_interrupted_call_leaves_nothing_that_biases_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped between learning a law and updating the bounds above it, at any moment, later draws are still exact."""
    propagate, moment = BoundsTree.propagate, 0
    mu = WORDS.reference().mu
    results = []
    torch.manual_seed(0)
    for repeat in range(400):
        calls = 0
        moment = 1 + repeat % 8

        def interrupted(self: BoundsTree, nodes: object, moment: int = moment) -> None:
            nonlocal calls
            calls += 1
            if calls == moment:
                raise KeyboardInterrupt
            propagate(self, nodes)  # type: ignore[arg-type]

        sampler = ExactSampler(ExactPhi())
        with monkeypatch.context() as patch:
            patch.setattr(BoundsTree, "propagate", interrupted)
            try:
                sampler.sample(WORDS.request(5, seed=None))
            except KeyboardInterrupt:
                assert len(sampler.store) == 0
        results += sampler.sample(WORDS.request(3, seed=None))
    assert p_value(drawn(results), mu) > ALPHA


def test_estimates_lie_within_the_reported_bounds() -> None:
    sampler = ExactSampler(ExactPhi(normalizers=5))
    for draws in sampler.sample(LOOP.request(2, seed=3, rows=50)):
        lower, upper = np.exp(draws.log_z_bounds)
        assert all(lower * (1 - 1e-12) <= estimate <= upper * (1 + 1e-12) for estimate in draws.normalizers)


def test_enumeration_keeps_to_the_memory_bound() -> None:
    sampler = ExactSampler(ExactPhi(tolerance=1e-9, effort=Effort(tokens=100_000)), TreeStore(30_000))
    with pytest.raises(BudgetError, match="short of"):
        sampler.sample(LOOP.request(1, seed=None))
    assert sampler.store.bytes - LOOP.table.bytes <= 30_000


def test_a_store_counts_the_tables_that_its_trees_hold() -> None:
    sampler = ExactSampler(ExactPhi(), TreeStore(20_000))
    for number in range(1, 30):
        language = Language(str(number), f"(ab|c){{1,{number % 3 + 1}}}x{{0,{number // 3}}}", 20, seed=number)
        sampler.sample(language.request(1, seed=None))
    assert len(sampler.store) < 10


def test_trajectories_that_all_fail_are_draws_of_weight_zero() -> None:
    """Nothing to show is an estimate of 0, not an error: leaving it out would bias a mean over calls."""
    results = AncestralSampler(LocalPhi()).sample(WORDS.request(1, seed=0, rows=60, top_k=3))
    failed = [draws for draws in results if draws.failures]
    assert failed
    for draws in failed:
        assert (len(draws), draws.counts.accepted, draws.guarantee) == (0, 0, Guarantee.WEIGHTED)
        assert draws.log_z == -np.inf and draws.ess == 0.0 and draws.weights.size == 0


def test_threads_that_take_turns_share_a_store() -> None:
    """The plugin's lock has calls of several threads on one store come one after the other, and exact."""
    sampler, lock, results = ExactSampler(ExactPhi()), threading.Lock(), []

    def work() -> None:
        for _ in range(50):
            with lock:
                results.extend(sampler.sample(WORDS.request(5, seed=None)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 200
    assert p_value(drawn(results), WORDS.reference().mu) > ALPHA
