"""The figures of a cell, against sums by hand."""

import math

import numpy as np
import pytest

from outlines_phi.fidelity.comparison import frequencies, total_variation
from outlines_phi.numerics.weights import log_mean
from outlines_phi_workbench.suite.cells import computed, drawn, ordered_groups, weighed
from outlines_phi_workbench.suite.reference import Ids, Reference
from tests.languages import OF_EVERY_KIND, Language

P = {(1, 0): 0.10, (2, 0): 0.05, (3, 0): 0.05}
Q = {(1, 0): 0.5, (2, 0): 0.4, (3, 0): 0.1}
"""Two members have one text; ``Phi = 0.2``."""


def figures(q: dict[Ids, float]) -> tuple[float, ...]:
    logs = [{ids: math.log(x) if x else -math.inf for ids, x in law.items()} for law in (P, q)]
    return computed(Reference(logs[0], {"q": logs[1]}), "q", lambda ids: "aba"[ids[0] - 1])


KL = 0.4 * math.log(0.4 / 0.25) + 0.1 * math.log(0.1 / 0.25)
ESS = 0.2**2 / (0.1**2 / 0.5 + 0.05**2 / 0.4 + 0.05**2 / 0.1)


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        (tuple(Q.values()), (0.15, 0.15, KL, ESS, 0)),  # mu = 0.5, 0.25, 0.25; the text a: 0.6 against 0.75
        ((0.25, 0.2, 0.05), (0.15, 0.15, KL, ESS / 2, 0)),  # half of the trajectories fail: half as many count
        ((0.5, 0.25, 0.25), (0, 0, 0, 1, 0)),  # the truth
        ((0.25, 0.25, 0.5), (0, 0.25, 0.25 * math.log(2), 0.04 / 0.055, 0)),
        ((0, 0.5, 0.5), (0.25, 0.5, math.log(2), 1, 0.5)),  # half of mu* is lost, and no weight can bring it back
        ((0, 0, 0), (1, 1, math.nan, 0, 1)),
    ],
)
def test_figures_of_a_law_by_hand(q: tuple[float, ...], expected: tuple[float, ...]) -> None:
    assert figures(dict(zip(P, q, strict=True))) == pytest.approx(expected, nan_ok=True, abs=1e-12)


@pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
def test_weights_say_the_same_as_the_sum(language: Language) -> None:
    """Draws in the proportions of the law, instead of random ones: the estimates are the figures themselves."""
    exact = language.reference()
    expected = computed(exact, "local", str)
    assert expected.tv_tokens == pytest.approx(total_variation(exact.mask, exact.mu))
    counts = {ids: round(200_000 * q) for ids, q in exact.mask.items()}
    log_w = np.repeat([exact.log_p[ids] - exact.log_mask[ids] for ids in counts], list(counts.values()))
    found = weighed(log_w, exact.log_phi)
    assert (found.tv, found.kl) == pytest.approx((expected.tv_tokens, expected.kl), abs=5e-3)
    assert found.ess == pytest.approx(expected.ess, rel=2e-2)
    assert log_mean(log_w) == pytest.approx(exact.log_phi, abs=2e-3)
    half = weighed([*log_w, *[-math.inf] * len(log_w)], exact.log_phi - math.log(2))
    assert (half.tv, half.kl, half.ess) == pytest.approx((found.tv, found.kl, found.ess / 2))
    assert weighed([-math.inf] * 3, exact.log_phi)[0] == 1


def test_frequencies_have_a_noise() -> None:
    tv, floor = drawn(["a"] * 60 + ["b"] * 40, {"a": 0.75, "b": 0.25})
    assert tv == pytest.approx(0.15)
    assert floor == pytest.approx(0.0345, abs=0.006)  # sqrt(2 / pi) of a standard deviation of 0.0433


def test_groups_keep_the_distance_of_two_laws_and_are_a_lower_limit_for_others() -> None:
    rng = np.random.default_rng(0)
    names = [str(i) for i in range(3000)]
    law, masked, other = (dict(zip(names, rng.dirichlet(np.full(3000, a)), strict=True)) for a in (1.0, 1.0, 0.5))
    group = ordered_groups(law, masked, 12)
    grouped = [frequencies(map(group.__getitem__, of), of.values()) for of in (law, masked, other)]
    whole = total_variation(law, masked)
    assert set(group.values()) == set(range(12)) and 0.97 * whole < total_variation(grouped[0], grouped[1]) <= whole
    assert total_variation(grouped[0], grouped[2]) <= total_variation(law, other)
