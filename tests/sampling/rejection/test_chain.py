"""The pick of a text from candidates by an independence Metropolis chain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from outlines_phi import AutoPhi, FidelityWarning, Guarantee
from outlines_phi.sampling.rejection.adaptive_proposal import last_state
from tests.inner import AutoSampler, draw, frequencies, preexpand, scaled, total_variation
from tests.languages import ALPHA, LANGUAGES, Language, pooled_p_value

Pick = Callable[[np.ndarray, np.random.Generator], int]
PICKS = 3_000


def by_weight(log_w: np.ndarray, rng: np.random.Generator) -> int:
    return draw(scaled(log_w), rng)


def picked(language: Language, pick: Pick, candidates: int, *, first_of_mu: bool = False) -> list[tuple[int, ...]]:
    """Return the members picked from candidates of plain masking, the first of which may be a draw of mu*."""
    reference, rng = language.reference(), np.random.default_rng(7)
    members = list(reference.mu)
    mu, mask = (np.array([law[ids] for ids in members]) for law in (reference.mu, reference.mask))
    log_w = np.array([reference.log_p[ids] - reference.log_mask[ids] for ids in members])
    places = rng.choice(len(members), size=(PICKS, candidates), p=mask / mask.sum())
    if first_of_mu:
        places[:, 0] = rng.choice(len(members), size=PICKS, p=mu / mu.sum())
    return [members[row[pick(log_w[row], rng)]] for row in places]


def test_a_chain_is_closer_than_a_pick_by_weight() -> None:
    """At 16 and at 64 candidates of masking, on every language and in sum by a twentieth."""
    distances = {}
    for pick in (by_weight, last_state):
        for language in LANGUAGES:
            for k in (16, 64):
                drawn = frequencies(picked(language, pick, k))
                distances[pick, language, k] = total_variation(drawn, language.reference().mu)
    pairs = [
        (tv, distances[last_state, language, k]) for (pick, language, k), tv in distances.items() if pick is by_weight
    ]
    print(pairs)
    assert all(chain < weight + 0.01 for weight, chain in pairs)
    assert sum(chain for _, chain in pairs) < 0.95 * sum(weight for weight, _ in pairs)


def test_a_chain_leaves_the_conditioned_distribution_unchanged() -> None:
    """From a draw of mu* it ends in a draw of mu*, which one from a masked draw does not."""

    def law(*, first_of_mu: bool) -> float:
        samples = (picked(each, last_state, 3, first_of_mu=first_of_mu) for each in LANGUAGES)
        return pooled_p_value(zip(samples, (each.reference().mu for each in LANGUAGES), strict=True))

    assert law(first_of_mu=True) > ALPHA > law(first_of_mu=False)


def test_a_candidate_without_weight_is_never_picked() -> None:
    rng, log_w = np.random.default_rng(0), np.array([-np.inf, -2.0, -np.inf, -3.0, -np.inf])
    assert {last_state(log_w, rng) for _ in range(100)} == {1, 3}


@pytest.mark.parametrize(("weighted", "kind"), [(True, Guarantee.WEIGHTED), (False, Guarantee.APPROXIMATE)])
def test_texts_are_picked_by_a_chain_and_draws_by_weight(
    weighted: bool, kind: Guarantee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preexpand, "SHORT", 0)
    request = replace(LANGUAGES[3].request(1, seed=4, rows=6), weighted=weighted)
    with pytest.warns(FidelityWarning, match="6 of 6 draws are not exact"):
        results = AutoSampler(AutoPhi(share=0.02)).sample(request)
    for (one,) in results:
        assert one.guarantee == kind and one.candidates == 32 and 1 <= one.ess <= 32
    assert all(draws.log_z == pytest.approx(draws[0].log_w) and draws.certificate is None for draws in results)


def test_draws_of_several_rounds_are_picked_by_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later rounds have other proposals, under which the weights of earlier candidates are not known."""
    monkeypatch.setattr(preexpand, "SHORT", 0)
    request = replace(LANGUAGES[3].request(3, seed=4), weighted=False)
    assert AutoSampler(AutoPhi(share=0)).sample(request)[0].guarantee == Guarantee.WEIGHTED
