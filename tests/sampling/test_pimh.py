"""Particle-independent Metropolis-Hastings: its stationary law is mu*."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from outlines_phi.errors import UnsupportedError
from outlines_phi.phi.onestep import LocalPhi
from outlines_phi.sampling import smc
from outlines_phi.sampling.draw import Guarantee
from outlines_phi.sampling.draws import Draws
from outlines_phi.sampling.smc import PIMH, SMC, PIMHSampler, SMCSampler, accepts
from tests.languages import ALPHA, DRAWS, LANGUAGES, OF_EVERY_KIND, Language, p_value

WORDS, _, NESTED, BOTTLENECK = LANGUAGES


def chain(language: Language, option: PIMH, n: int, seed: int = 1, **settings: float) -> Draws:
    return PIMHSampler(LocalPhi(), option).sample(language.request(n, seed, **settings))[0]


def after_one_step(
    language: Language, moves: Callable[[float, float, np.random.Generator], bool]
) -> list[tuple[int, ...]]:
    """States after one step from ``mu*`` itself, of runs of one particle: the weight of a member is its evidence."""
    reference = language.reference()
    members = list(reference.mu)
    log_w = np.array([reference.log_p[y] - reference.log_mask[y] for y in members])
    rng = np.random.default_rng(6)
    start = rng.choice(len(members), DRAWS, p=np.array([reference.mu[y] for y in members]))
    law = np.array([reference.mask[y] for y in members])
    proposed = rng.choice(len(members), DRAWS, p=law / law.sum())
    return [
        members[j if moves(log_w[i], log_w[j], rng) else i]
        for i, j in zip(start.tolist(), proposed.tolist(), strict=True)
    ]


@pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
def test_a_step_leaves_the_conditioned_law_as_it_is(language: Language) -> None:
    mu = language.reference().mu
    assert p_value(after_one_step(language, accepts), mu) > ALPHA
    assert p_value(after_one_step(language, lambda *_: True), mu) < ALPHA


@pytest.mark.parametrize("moves", [accepts, lambda *_: True], ids=["accepts", "control: always"])
def test_whole_runs_that_begin_in_stationarity_stay_there(
    moves: Callable[[float, float, np.random.Generator], bool],
) -> None:
    """Starts are runs accepted with probability ``Z / max w``, so exact ones; then one step, and a pick."""
    reference = NESTED.reference()
    largest = max(reference.log_p[y] - reference.log_mask[y] for y in reference.mu)
    rng = np.random.default_rng(2)
    runs = SMCSampler(LocalPhi(), SMC(particles=2)).run(NESTED.request(9000, 3), 9000)[0][0]
    populations = [population for population, _ in runs]
    starts = [run for run in populations[:6000] if rng.random() < math.exp(run.log_z - largest)]
    states = [
        proposed if moves(start.log_z, proposed.log_z, rng) else start
        for start, proposed in zip(starts, populations[6000:], strict=False)
    ]
    assert len(states) > 2000
    p = p_value([state.pick(rng).token_ids for state in states], reference.mu)
    assert p > ALPHA if moves is accepts else p < ALPHA


@pytest.mark.parametrize("always", [False, True], ids=["chain", "control: accepts always"])
def test_a_long_chain_draws_the_conditioned_law(always: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fifth state; two particles alone are far off."""
    if always:
        monkeypatch.setattr(smc, "accepts", lambda *_: True)
    draws = chain(NESTED, PIMH(smc=SMC(particles=2), burn_in=50), 10_000, seed=4)
    p = p_value([draw.token_ids for draw in draws[::5]], NESTED.reference().mu)
    assert p > ALPHA if not always else p < ALPHA
    assert draws.counts.acceptance == 1 if always else 0.3 < draws.counts.acceptance < 0.95


def test_draws_say_what_they_are() -> None:
    draws = chain(WORDS, PIMH(smc=SMC(particles=3, resample="ess"), burn_in=7), 200)
    assert draws.guarantee is Guarantee.APPROXIMATE
    assert len(draws) == len(draws.populations) == 200
    assert draws.counts.attempts == 206
    distinct = len({id(population) for population in draws.populations})
    assert distinct <= draws.counts.accepted + 1 <= 207
    assert draws.weights == pytest.approx(1 / 200)
    # States that were held are worth one: below the number of different runs, and far below that of states.
    assert 1 < draws.ess < distinct < 200
    for draw, population in zip(draws, draws.populations, strict=True):
        assert draw.token_ids in {particle.token_ids for particle in population}
        assert draw.candidates == 3
    shares = [population.expectation(lambda draw: draw.text[0] == "c") for population in draws.populations]
    assert draws.expectation(lambda draw: draw.text[0] == "c") == pytest.approx(np.mean(shares))


def test_evidence_is_the_mean_over_all_runs_and_unbiased() -> None:
    """Also where runs die: states before the first that lives are failures."""
    phi = math.exp(WORDS.reference(top_k=6).log_phi)
    results = [chain(WORDS, PIMH(smc=SMC(particles=1), burn_in=0), 4, seed, top_k=6) for seed in range(400)]
    assert any(draws.failures for draws in results)
    assert any(draws.failures == 0 for draws in results)
    assert all(len(draws) + draws.failures == 4 for draws in results)
    z = np.array([math.exp(draws.log_z) for draws in results])
    assert abs(z.mean() - phi) < 4 * z.std() / math.sqrt(len(z))


def test_a_dead_run_is_left_at_once_and_never_returned_to() -> None:
    rng = np.random.default_rng(0)
    assert all(accepts(-math.inf, -900.0, rng) for _ in range(20))
    assert not any(accepts(-900.0, -math.inf, rng) for _ in range(20))
    assert not accepts(-math.inf, -math.inf, rng)
    assert sum(accepts(-5000.0, -5000.0 + math.log(0.3), rng) for _ in range(4000)) == pytest.approx(1200, abs=120)


def test_one_model_call_per_step_and_a_chain_begins_as_a_shorter_one_does() -> None:
    option = PIMH(smc=SMC(particles=4), burn_in=3)
    alone = chain(BOTTLENECK, option, 4, seed=9)
    longer = PIMHSampler(LocalPhi(), option).sample(BOTTLENECK.request(9, 9, rows=2))
    assert longer[0].texts[:4] == alone.texts
    assert alone.counts.calls <= BOTTLENECK.budget
    assert longer[0].counts.calls <= BOTTLENECK.budget
    assert longer[1].texts != longer[0].texts
    assert chain(BOTTLENECK, option, 4, seed=10).items != alone.items


@pytest.mark.parametrize("keywords", [{"smc": 50}, {"burn_in": -1}, {"burn_in": 2.5}, {"burn_in": True}])
def test_options_out_of_range_are_refused(keywords: dict[str, object]) -> None:
    with pytest.raises(UnsupportedError, match=f"{next(iter(keywords))}=.* was given to PIMH"):
        PIMH(**keywords)  # type: ignore[arg-type]
