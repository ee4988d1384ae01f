"""The figures of a cell, against sums by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from outlines_phi.fidelity.comparison import frequencies, total_variation
from outlines_phi.numerics.weights import log_mean
from outlines_phi_workbench.suite.cells import computed, drawn, ordered_groups, weighed
from outlines_phi_workbench.suite.reference import Ids, Reference
from tests.languages import OF_EVERY_KIND, VOCABULARY, Language

languages = pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)

P = {(1, 0): 0.10, (2, 0): 0.05, (3, 0): 0.05}
Q = {(1, 0): 0.5, (2, 0): 0.4, (3, 0): 0.1}
"""Two members have one text; ``Phi = 0.2``."""


def reference(p: dict[Ids, float], q: dict[Ids, float]) -> Reference:
    logs = [{ids: math.log(x) if x else -math.inf for ids, x in law.items()} for law in (p, q)]
    return Reference(logs[0], {"q": logs[1]})


def text_of(ids: Ids) -> str:
    return {1: "a", 2: "b", 3: "a"}[ids[0]]


def test_figures_of_a_law_by_hand() -> None:
    found = computed(reference(P, Q), "q", text_of)
    assert found.tv_tokens == pytest.approx((0 + 0.15 + 0.15) / 2)  # mu = 0.5, 0.25, 0.25
    assert found.tv == pytest.approx(0.15)  # a: 0.6 against 0.75
    assert found.kl == pytest.approx(0.4 * math.log(0.4 / 0.25) + 0.1 * math.log(0.1 / 0.25))
    assert found.ess == pytest.approx(0.2**2 / (0.1**2 / 0.5 + 0.05**2 / 0.4 + 0.05**2 / 0.1))
    assert found.lost == 0


def test_spellings_of_a_text_may_make_up_for_each_other() -> None:
    found = computed(reference(P, {(1, 0): 0.25, (2, 0): 0.25, (3, 0): 0.5}), "q", text_of)
    assert found.tv == pytest.approx(0) and found.tv_tokens == pytest.approx(0.25)


def test_the_truth_has_no_distance() -> None:
    found = computed(reference(P, {ids: p / 0.2 for ids, p in P.items()}), "q", text_of)
    assert found == pytest.approx((0, 0, 0, 1, 0), abs=1e-12)


def test_a_wrong_estimator_is_reported_as_wrong() -> None:
    """It never draws the first member: half of mu* is lost, and no weight can bring it back."""
    found = computed(reference(P, {(1, 0): 0.0, (2, 0): 0.5, (3, 0): 0.5}), "q", text_of)
    assert found.lost == pytest.approx(0.5)
    assert found.tv_tokens == pytest.approx(0.5)


def test_an_estimator_that_never_draws_anything_is_as_wrong_as_can_be() -> None:
    found = computed(reference(P, dict.fromkeys(P, 0.0)), "q", text_of)
    assert (found.tv, found.tv_tokens, found.ess, found.lost) == (1, 1, 0, 1) and math.isnan(found.kl)


def test_lost_trajectories_count_in_the_effective_size_alone() -> None:
    """With half of the trajectories failed, the completed ones have the same law, and half as many count."""
    whole, half = (computed(reference(P, {ids: q * s for ids, q in Q.items()}), "q", text_of) for s in (1, 0.5))
    assert half[:3] == pytest.approx(whole[:3])
    assert half.ess == pytest.approx(whole.ess / 2)


@languages
def test_masking_by_hand(language: Language) -> None:
    exact = language.reference()
    found = computed(exact, "local", lambda ids: VOCABULARY.decode(ids).decode())
    assert found.tv_tokens == pytest.approx(total_variation(exact.mask, exact.mu))
    assert found.kl == pytest.approx(sum(q * math.log(q / exact.mu[ids]) for ids, q in exact.mask.items()))
    phi = math.exp(exact.log_phi)
    square = sum(math.exp(2 * exact.log_p[ids] - exact.log_mask[ids]) for ids in exact.mu)
    assert found.ess == pytest.approx(phi**2 / square)


@languages
def test_weights_say_the_same_as_the_sum(language: Language) -> None:
    """Draws in the proportions of the law, instead of random ones: the estimates are the figures themselves."""
    exact = language.reference()
    expected = computed(exact, "local", str)
    n = 200_000
    counts = {ids: round(n * q) for ids, q in exact.mask.items()}
    log_w = np.repeat([exact.log_p[ids] - exact.log_mask[ids] for ids in counts], list(counts.values()))
    found = weighed(log_w, exact.log_phi)
    assert found.tv == pytest.approx(expected.tv_tokens, abs=2e-3)
    assert found.kl == pytest.approx(expected.kl, abs=5e-3)
    assert found.ess == pytest.approx(expected.ess, rel=2e-2)
    assert log_mean(log_w) == pytest.approx(exact.log_phi, abs=2e-3)


def test_draws_of_weight_0_count_in_the_effective_size_alone() -> None:
    log_w = np.log([0.1, 0.2, 0.3, 0.4])
    log_phi = math.log(0.25)
    whole = weighed(log_w, log_phi)
    half = weighed([*log_w, *[-math.inf] * 4], log_phi - math.log(2))
    assert (half.tv, half.kl, half.ess) == pytest.approx((whole.tv, whole.kl, whole.ess / 2))
    assert weighed([-math.inf] * 3, log_phi)[0] == 1


def test_texts_are_summed_over_spellings_and_normalised() -> None:
    p = {(1, 0): 0.2, (2, 0): 0.1, (3, 0): 0.1}
    assert frequencies(map(text_of, p), p.values()) == pytest.approx({"a": 0.75, "b": 0.25})


def test_frequencies_have_a_noise() -> None:
    law = {"a": 0.75, "b": 0.25}
    tv, floor = drawn(["a"] * 60 + ["b"] * 40, law)
    assert tv == pytest.approx(0.15)
    assert floor == pytest.approx(0.0345, abs=0.006)  # sqrt(2 / pi) of a standard deviation of 0.0433


def test_groups_keep_the_distance_of_two_laws_and_are_a_lower_limit_for_others() -> None:
    rng = np.random.default_rng(0)
    names = [str(i) for i in range(3000)]
    law, masked, other = (dict(zip(names, rng.dirichlet(np.full(3000, a)), strict=True)) for a in (1.0, 1.0, 0.5))
    group = ordered_groups(law, masked, 12)

    def grouped(of: dict[str, float]) -> dict[int, float]:
        return {g: sum(p for text, p in of.items() if group[text] == g) for g in range(12)}

    assert set(group.values()) == set(range(12))
    whole = total_variation(law, masked)
    assert 0.97 * whole < total_variation(grouped(law), grouped(masked)) <= whole
    assert total_variation(grouped(law), grouped(other)) <= total_variation(law, other)
