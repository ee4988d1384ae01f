"""Upper limits of Phi from residual attempts: fair bets by summation, and no miss too many however often one looks."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from outlines_phi.numerics.weights import log
from outlines_phi.phi.tree.evidence import Evidence, Wave

ALPHA = 0.2


def evidence(*waves: tuple[float, float, int, int]) -> Evidence:
    found = Evidence()
    for lower, gap, *counts in waves:
        found.add(Wave(log(lower), log(gap), *counts))
    return found


def limit(found: Evidence, alpha: float) -> float:
    return math.exp(found.log_limit(alpha))


def capital(found: Evidence, phi: float) -> float:
    return float(np.exp(np.logaddexp.reduce(found._log_capital(log(phi)))))


def expected_capital(truth: float, phi: float) -> float:
    """The mean over all outcomes of two waves, the second of which is launched in view of the first."""
    (lower, gap, attempts), mean = (0.1, 0.5, 6), 0.0
    for first in range(attempts + 1):
        p_first = stats.binom.pmf(first, attempts, (truth - lower) / gap)
        second = (0.15, 0.3, 3 + 4 * first)  # found members make the bounds tighter, and more attempts
        for successes in range(second[2] + 1):
            p = p_first * stats.binom.pmf(successes, second[2], (truth - second[0]) / second[1])
            mean += p * capital(evidence((lower, gap, attempts, first), (*second, successes)), phi)
    return mean


def test_bets_against_the_truth_are_fair_and_against_less_they_win() -> None:
    """By summation over all outcomes: E[capital] = 1 at Phi, under 1 where Phi is more, over 1 where it is less."""
    assert expected_capital(0.3, 0.3) == pytest.approx(1.0, abs=1e-12)
    assert expected_capital(0.35, 0.3) < 0.9
    assert expected_capital(0.2, 0.3) > 1.5


def test_without_successes_the_limit_is_that_of_clopper_and_pearson_at_half_the_error() -> None:
    for attempts in (5, 40, 300):
        found = evidence((0.0, 1.0, attempts, 0))
        fixed = stats.beta.ppf(1 - 0.05 / 2, 1, attempts)
        assert 0.9 * fixed < limit(found, 0.05) <= fixed


def test_the_limit_falls_with_failures_and_with_the_error_and_stays_within_the_bounds() -> None:
    limits = [limit(evidence((0.1, 0.5, 50, successes)), 0.05) for successes in range(51)]
    assert limits == sorted(limits) and 0.1 < limits[0] and limits[-1] == pytest.approx(0.6)
    assert limit(evidence((0.1, 0.5, 50, 3)), 0.01) > limits[3] > limit(evidence((0.1, 0.5, 50, 3)), 0.2)
    assert limit(Evidence(), 0.05) == 1.0
    assert limit(evidence((0.1, 0.5, 50, 0)), 0.0) == pytest.approx(0.6)
    tiny = limit(evidence((1e-14, 1e-12, 50, 0)), 0.05)
    assert tiny == pytest.approx(1e-14 + 1e-12 * (limits[0] - 0.1) / 0.5)


REPEATS, LOOKS = 200, 30


def misses(wrong: Callable[[Evidence, float], bool], rate: float) -> int:
    """Return the number of series of small waves with a look at which the truth is ruled out."""
    rng, count, truth = np.random.default_rng(1), 0, 0.1 + 0.5 * rate
    for _ in range(REPEATS):
        found = Evidence()
        for successes in rng.binomial(5, rate, LOOKS).tolist():
            found.add(Wave(log(0.1), log(0.5), 5, successes))
            if wrong(found, truth):
                count += 1
                break
    return count


def by_evidence(found: Evidence, truth: float) -> bool:
    return found.rules_out(log(truth), ALPHA)


def by_the_point_estimate(found: Evidence, truth: float) -> bool:
    return 0.1 + 0.5 * sum(wave.successes for wave in found.waves) / found.attempts < truth - 1e-9


def by_clopper_pearson(found: Evidence, truth: float) -> bool:
    """A limit for one look, at a number of attempts that was fixed before."""
    successes = sum(wave.successes for wave in found.waves)
    return bool(stats.binom.cdf(successes, found.attempts, (truth - 0.1) / 0.5) < ALPHA)


@pytest.mark.parametrize("rate", [0.03, 0.3, 0.8])
def test_the_limit_holds_at_all_looks_together(rate: float) -> None:
    """200 series of 30 looks, at 80 %: a miss at any look is counted, and at most 40 series have one."""
    assert misses(by_evidence, rate) <= ALPHA * REPEATS


def test_the_count_of_misses_has_power() -> None:
    """Power control: the point estimate misses, and so does a limit for one look that is looked at many times."""
    assert misses(by_the_point_estimate, 0.3) > 0.9 * REPEATS
    assert misses(by_clopper_pearson, 0.3) > 0.3 * REPEATS


@pytest.mark.parametrize("moved", [False, True])
def test_attempts_count_at_the_bounds_they_were_launched_at(moved: bool) -> None:
    """Phi is 0.12, and the bounds go from 0.1 ... 0.6 to 0.11 ... 0.13. Attempts of the first wave that are read at the bounds
    of the second rule the truth out nearly always."""
    rng, count = np.random.default_rng(2), 0
    for _ in range(REPEATS):
        first, second = rng.binomial(40, 0.02 / 0.5), rng.binomial(10, 0.01 / 0.02)
        launched = (0.11, 0.02) if moved else (0.1, 0.5)
        count += evidence((*launched, 40, int(first)), (0.11, 0.02, 10, int(second))).rules_out(log(0.12), ALPHA)
    assert count > 0.9 * REPEATS if moved else count <= ALPHA * REPEATS
