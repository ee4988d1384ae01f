"""Sequential Monte Carlo: unbiased evidence with its exact variance, properly weighted picks, one model call per step."""

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from outlines_phi import SMC, Draws, EmptyLanguageError, Guarantee, LocalPhi, OneStepPhi
from tests.inner import (
    DONE,
    Ancestors,
    Particles,
    ancestral,
    at_quantiles,
    effective_size,
    frequencies,
    log_mean,
    noise_floor,
    normalized,
    scaled,
    systematic,
    total_variation,
)
from tests.languages import LATE, LISTED, LOOP, NESTED, PROMPT, WORDS, Language, correct, languages, sample, z
from tests.refusals import refused

RUNS = 600

OPTIONS = {
    "never": SMC(particles=5),
    "ess": SMC(particles=5, resample="ess"),
    "every step": SMC(particles=5, resample="ess", threshold=1.0),
}
options = pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)


def draw(language: Language, option: SMC, n: int, seed: int = 1, **settings: float) -> Draws:
    return sample(LocalPhi(), language.request(n, seed, **settings), smc=option)[0]


def z_score(draws: Draws, phi: float) -> float:
    """Standard errors between the mean evidence and Phi."""
    return abs(z(np.exp(draws.log_w), phi))


@pytest.mark.in_turn
@options
@pytest.mark.parametrize("language", [WORDS, LATE, LISTED], ids=str)
def test_evidence_is_unbiased_and_weights_correct_picks_and_populations(option: SMC, language: Language) -> None:
    """E[Z_hat] = Phi; frequencies of picks by ``log Z_hat``, and of all particles by their weights, are mu*."""
    reference = language.reference()
    draws = draw(language, option, RUNS, seed=11)
    assert z_score(draws, math.exp(reference.log_phi)) < 4
    assert all(draw.log_w == population.log_z for draw, population in zip(draws, draws.populations, strict=True))
    assert {draw.candidates for draw in draws} == {5} and correct(draws, reference.mu)
    particles = [particle for population in draws.populations for particle in population]
    w = np.exp([particle.log_w for particle in particles])
    whole = frequencies((particle.token_ids for particle in particles), w / w.sum())
    assert total_variation(whole, reference.mu) < 3 * noise_floor(reference.mu, max(1, int(draws.ess))) + 0.005
    likeliest = max(reference.mu, key=reference.mu.__getitem__)
    assert draws.expectation(lambda draw: draw.token_ids == likeliest) == pytest.approx(whole[likeliest])


def mutant_keeps_weights(self: Particles) -> None:
    """Resample, and leave each particle the weight of the one it continues."""
    ancestors = systematic(np.array(list({id(walk): walk.log_w for walk in self.walks}.values())), self.rng).tolist()
    self.walks = [
        replace(walk, number=place.number, rng=place.rng, tokens=list(walk.tokens))
        for place, walk in zip(self.walks, [self.walks[i] for i in ancestors], strict=True)
    ]
    self.resamplings += 1


@pytest.mark.parametrize("mutant", ["weights are not reset", "the last epoch is left out"])
def test_the_same_test_fails_for_wrong_evidence(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    language, option = WORDS, OPTIONS["every step"]
    phi = math.exp(language.reference().log_phi)
    assert z_score(draw(language, option, RUNS, seed=11), phi) < 4
    if mutant == "weights are not reset":
        monkeypatch.setattr(Particles, "_resample", mutant_keeps_weights)
    else:
        right, means = ancestral.population_of, {}
        resample = Particles._resample

        def remembering(self: Particles) -> None:
            means[self] = log_mean(np.array([walk.log_w for walk in self.walks]))
            resample(self)

        def without_last_epoch(request: object, run: Particles, spelled: dict) -> object:
            for walk in run.walks:
                walk.log_w = means.get(run, 0.0) if not walk.failed else walk.log_w
            return right(request, run, spelled)  # type: ignore[arg-type]

        monkeypatch.setattr(Particles, "_resample", remembering)
        monkeypatch.setattr(ancestral, "population_of", without_last_epoch)
    assert z_score(draw(language, option, RUNS, seed=11), phi) > 6


@pytest.mark.in_turn
@languages
def test_variance_without_resampling_is_that_of_a_mean_of_independent_weights(language: Language) -> None:
    reference = language.reference()
    q = {y: math.exp(log_q) for y, log_q in reference.log_mask.items()}
    second = sum(q[y] * math.exp(2 * (reference.log_p[y] - reference.log_mask[y])) for y in q)
    phi = math.exp(reference.log_phi)
    assert_moments(np.exp(draw(language, SMC(particles=4), 1500, seed=5).log_w), phi, phi**2 + (second - phi**2) / 4)


def assert_moments(z: np.ndarray, first: float, second: float) -> None:
    """Mean and mean square agree with their exact values within four standard errors."""
    assert abs(z.mean() - first) < 4 * math.sqrt(second - first**2) / math.sqrt(len(z))
    assert abs((z**2).mean() - second) < 4 * (z**2).std() / math.sqrt(len(z))


Pair = tuple[tuple[int, ...], tuple[int, ...]]


def moments_of_two(language: Language) -> tuple[float, float, dict[tuple[int, ...], float]]:
    """``E Z``, ``E Z^2`` and ``E[Z 1[pick = y]]`` of two particles that are resampled after every step, summed over all that may
    happen: systematic resampling of weights ``W, 1 - W`` copies both with probability ``2 min(W, 1 - W)``, else the heavier one."""
    table, settings = language.table, language.settings()

    def steps(y: tuple[int, ...], state: int) -> list[tuple[tuple[int, ...], int, float, float]]:
        """Return the possible next steps: prefix, state, probability under the mask, weight."""
        if state == DONE:
            return [(y, state, 1.0, 1.0)]
        trees = language.lm.logits((*PROMPT, *y))
        p = np.exp(trees - np.logaddexp.reduce(trees))
        moves = table.moves(state, settings.max_new_tokens - len(y))
        mass = p[moves.tokens].sum()
        return [
            ((*y, int(token)), int(target), p[token] / mass, mass)
            for token, target in zip(moves.tokens, moves.targets, strict=True)
        ]

    states = {(): table.start}
    # E[W^k; both particles are here] of the weight W that both have
    here: dict[Pair, np.ndarray] = {((), ()): np.ones(3)}
    first = second = 0.0
    picks: dict[tuple[int, ...], float] = defaultdict(float)
    while here:
        below: dict[Pair, np.ndarray] = defaultdict(lambda: np.zeros(3))
        for (a, b), moments in here.items():
            for y, s, q, w in steps(a, states[a]):
                for x, t, r, v in steps(b, states[b]):
                    states[y], states[x] = s, t
                    after = q * r * moments * ((w + v) / 2) ** np.arange(3)
                    share = w / (w + v)
                    if s == t == DONE:
                        first, second = first + after[1], second + after[2]
                        picks[y] += share * after[1]
                        picks[x] += (1 - share) * after[1]
                        continue
                    both = 2 * min(share, 1 - share)
                    heavier = y if share > 0.5 else x
                    below[y, x] += both * after
                    below[heavier, heavier] += (1 - both) * after
        here = {}
        for pair, moments in below.items():
            if (
                states[pair[0]] == states[pair[1]] == DONE
            ):  # resampling has left only finished particles, of equal weight
                first, second = first + moments[1], second + moments[2]
                picks[pair[0]] += moments[1] / 2
                picks[pair[1]] += moments[1] / 2
            else:
                here[pair] = moments
    return first, second, picks


@pytest.mark.parametrize("language", [NESTED, LATE], ids=str)
def test_two_particles_resampled_at_every_step_by_exhaustive_summation(language: Language) -> None:
    """E Z = Phi and E[Z 1[pick = y]] = p(y), path by path; and the sampler has the variance that the summation gives."""
    reference = language.reference()
    first, second, picks = moments_of_two(language)
    assert first == pytest.approx(math.exp(reference.log_phi), rel=1e-9)
    assert all(picks[y] == pytest.approx(math.exp(log_p), rel=1e-9) for y, log_p in reference.log_p.items())
    draws = draw(language, SMC(particles=2, resample="ess", threshold=1.0), 2500, seed=8)
    assert_moments(np.exp(draws.log_w), first, second)


@options
def test_draws_say_what_they_are(option: SMC) -> None:
    draws = draw(LATE, option, 5)
    members = LATE.reference().mu
    assert draws.guarantee is Guarantee.WEIGHTED
    assert len(draws) == len(draws.populations) == draws.counts.attempts == draws.counts.accepted == 5
    assert draws.counts.acceptance == 1
    for pick, population in zip(draws, draws.populations, strict=True):
        assert len(population) + population.failures == len(population.log_w) == 5
        assert pick.token_ids in {particle.token_ids for particle in population} <= members.keys()
        assert pick.ess == population.ess <= 5 + 1e-9 and population.weights.sum() == pytest.approx(1)
        assert (population.resamplings == 0) == (option.resample == "never")
        assert population.texts == [particle.text for particle in population[:]] == population.values
        for particle in population:
            assert particle.log_p == pytest.approx(LATE.reference().log_p[particle.token_ids])
    upper = draws.read_by(str.upper)
    assert upper.populations[0].values == [text.upper() for text in draws.populations[0].texts]
    assert upper.populations[0].log_z == draws.populations[0].log_z and "resamplings" in repr(draws.populations[0])


@options
def test_one_model_call_per_step_and_equal_prefixes_once(option: SMC) -> None:
    """All particles of all runs of all prompts; as many calls as the longest particle has tokens, at most the budget."""
    results = sample(LocalPhi(), LOOP.request(4, 2, rows=3), smc=option)
    (calls,) = {draws.counts.calls for draws in results}
    particles = [particle for draws in results for population in draws.populations for particle in population]
    longest = max(len(particle.token_ids) for particle in particles)
    assert longest <= calls <= LOOP.budget
    if option.resample == "never":
        assert calls == longest
        prefixes = {
            (row, particle.token_ids[:i])
            for row, draws in enumerate(results)
            for population in draws.populations
            for particle in population
            for i in range(1, len(particle.token_ids))
        }
        assert results[0].counts.tokens == len(prefixes)


@options
def test_a_run_does_not_depend_on_later_ones(option: SMC, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = draw(WORDS, option, 4, 9).items
    assert draw(WORDS, option, 9, 9).items[:4] == alone
    monkeypatch.setattr(ancestral, "TOGETHER", 5)  # runs in turns
    assert draw(WORDS, option, 4, 9).items == alone


@pytest.mark.parametrize(
    "option", [SMC(particles=2), SMC(particles=2, resample="ess", threshold=1.0)], ids=["never", "ess"]
)
def test_truncation_can_fail_particles_and_whole_runs(option: SMC) -> None:
    """Failed particles have weight 0 and are replaced where there is resampling; a run that has lost all has weight 0."""
    settings = {"top_k": 6}
    phi = math.exp(WORDS.reference(**settings).log_phi)
    draws = draw(WORDS, option, 1500, seed=4, **settings)
    assert draws.failures > 0 and len(draws) + draws.failures == draws.counts.attempts == 1500
    assert draws.counts.accepted == len(draws) == len(draws.populations) and z_score(draws, phi) < 4
    assert z(np.exp(draws.log_w[: len(draws)]), phi) > 4
    assert any(population.failures for population in draws.populations) and 0 < draws.ess <= len(draws)


def test_nobody_is_left_where_truncation_leaves_nothing() -> None:
    draws = draw(LATE, SMC(particles=3, resample="ess"), 5, top_k=1)
    assert (len(draws), draws.failures, draws.log_z) == (0, 5, -math.inf)
    refused("all 5 were of weight 0", draws.expectation, lambda draw: 1.0, error=EmptyLanguageError)


@pytest.mark.parametrize("option", [OPTIONS["never"], OPTIONS["ess"]], ids=["never", "ess"])
def test_any_proposal_may_be_followed(option: SMC) -> None:
    (draws,) = sample(OneStepPhi(), WORDS.request(RUNS, 2), smc=option)
    assert z_score(draws, math.exp(WORDS.reference().log_phi)) < 4


ROUNDS = 8_000
WEIGHTS = {
    "even": np.zeros(6),
    "mixed": np.log(np.array([0.1, 3.0, 0.7, 0.7, 1.3, 0.02, 0.4])),
    "one rules": np.array([-700.0, 0.0, -3.0, -900.0]),
    "with failures": np.array([-math.inf, -2000.0, -2001.0, -math.inf, -2000.5, -math.inf]),
    "all but one failed": np.array([-math.inf, -5.0, -math.inf]),
}
weights = pytest.mark.parametrize("log_w", WEIGHTS.values(), ids=WEIGHTS)


def z_scores(resample: object, log_w: np.ndarray, seed: int) -> np.ndarray:
    """Standard errors between the mean copies of each particle and ``N W_i``."""
    rng = np.random.default_rng(seed)
    copies = np.stack([np.bincount(resample(log_w, rng), minlength=len(log_w)) for _ in range(ROUNDS)])  # type: ignore[operator]
    error = copies.std(axis=0) / math.sqrt(ROUNDS) + 1e-3
    return np.abs(copies.mean(axis=0) - len(log_w) * normalized(log_w)) / error


@weights
def test_expected_copies_are_proportional_to_the_weights(log_w: np.ndarray) -> None:
    assert z_scores(systematic, log_w, seed=1).max() < 4


def test_the_same_test_fails_for_rounding_the_expected_copies() -> None:
    def rounded(log_w: np.ndarray, rng: np.random.Generator) -> Ancestors:
        return np.repeat(np.arange(len(log_w)), np.round(len(log_w) * normalized(log_w)).astype(int))

    assert z_scores(rounded, WEIGHTS["mixed"], seed=1).max() > 4


@weights
def test_there_are_as_many_in_order_none_of_weight_0_and_copies_within_one_of_their_expectation(
    log_w: np.ndarray,
) -> None:
    rng, expected = np.random.default_rng(2), len(log_w) * normalized(log_w)
    for _ in range(200):
        ancestors = systematic(log_w, rng)
        copies = np.bincount(ancestors, minlength=len(log_w))
        assert len(ancestors) == len(log_w) and (np.diff(ancestors) >= 0).all() and (expected[ancestors] > 0).all()
        assert (np.abs(copies - expected) < 1).all()
    assert systematic(np.full(5, -3.0), rng).tolist() == [0, 1, 2, 3, 4]


def test_arithmetic_of_weights() -> None:
    far = np.array([-5000.0, -5000.0 + math.log(3), -math.inf])
    assert normalized(far) == pytest.approx([0.25, 0.75, 0.0])
    assert log_mean(far) == pytest.approx(-5000 + math.log(4 / 3))
    assert effective_size(scaled(far)) == pytest.approx(16 / 10)
    dead = np.full(3, -math.inf)
    assert (log_mean(dead), effective_size(scaled(dead))) == (-math.inf, 0) and not normalized(dead).any()
    assert at_quantiles(np.array([0.0, 1.0, 0.0]), np.array([0.0, 1 - 2**-53])).tolist() == [1, 1]
