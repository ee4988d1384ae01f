"""The ends of windows against plain Python, and upper limits of Phi from residual attempts, at all looks together."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from outlines_phi import LookaheadPhi, UnsupportedError
from outlines_phi.sampling.phi_options import WINDOW
from tests.guides.walking import assert_same
from tests.inner import DONE, Ending, Evidence, PhraseWindows, Release, Renewal, Wave, log
from tests.languages import LANGUAGES
from tests.sampling.banning import VOCABULARY, Banned, Ends, Ids, released, renewed

CASE = Banned((b"abab", b"bca", b"cc"), 6, seed=1, scale=2.5)


def ended(ending: Ending, budget: int) -> set[Ids]:
    """All token sequences without a phrase that are one window, or a text, in the trees of the package."""
    tree = PhraseWindows(CASE.table, ending).tree(CASE.table.start, budget)
    found, level = set(), [tree.root]
    while level:
        node = level.pop()
        tree.expand(node, np.log(CASE.p(node.tokens())))
        assert node.distribution is not None
        for token, target in zip(
            node.distribution.moves.tokens.tolist(), node.distribution.moves.targets.tolist(), strict=True
        ):
            if target == DONE:
                found.add((*node.tokens(), token))
            else:
                level.append(tree.child(node, token, target))
    return found


def expected(ends: Ends, budget: int) -> set[Ids]:
    """The same by plain Python."""
    found: set[Ids] = set()
    level: list[Ids] = [()]
    while level:
        ids = level.pop()
        for longer in ((*ids, token) for token in range(len(VOCABULARY))):
            if not CASE.bad(longer):
                over = len(longer) == budget or longer[-1] == 0
                (found.add if over or CASE.ended(ends, (), longer) else level.append)(longer)
    return found


@pytest.mark.parametrize("length", [1, 2, 16])
def test_windows_end_where_nothing_waits(length: int) -> None:
    assert_same(ended(Renewal(length), 6), expected(renewed(length), 6))


def test_windows_end_where_few_walks_come_or_their_first_token_is_released() -> None:
    """Without the clause some would be longer."""

    def patient(written: tuple[bytes, ...], waits: int, survival: float) -> bool:
        return renewed(16)(written, waits, 1.0)

    windows = expected(renewed(16), 6)
    assert_same(ended(Renewal(16), 6), windows)
    assert windows ^ expected(patient, 6)
    windows = expected(released, 6)
    assert_same(ended(Release(), 6), windows)
    assert windows ^ expected(renewed(16), 6)


@pytest.mark.parametrize(("pending", "tokens"), [(0, 4), (1, 3), (2, 2), (3, 1), (4, 1), (5, 1), (6, 0)])
def test_what_precedes_the_waiting_bytes_is_final(pending: int, tokens: int) -> None:
    assert (Release().count_final([1, 3, 1, 1], pending), Renewal(2).count_final([1, 3, 1, 1], pending)) == (tokens, 4)


def test_options_say_where_windows_end_and_a_guide_without_phrases_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="FSMGuide, which bans no phrases.*banned_phrases="):
        PhraseWindows(LANGUAGES[0].table, Renewal(4))

    def ending(**options: object) -> Ending:
        return LookaheadPhi(**options).windows(CASE.table).ending  # type: ignore[arg-type, attr-defined]

    assert ending() == Renewal(WINDOW) and ending(window=3) == Renewal(3) and ending(release="early") == Release()


ALPHA = 0.2


def evidence(*waves: tuple[float, float, int, int]) -> Evidence:
    found = Evidence()
    for lower, gap, *counts in waves:
        found.waves.append(Wave(log(lower), log(gap), *counts))
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
    assert expected_capital(0.3, 0.3) == pytest.approx(1.0, abs=1e-12) and expected_capital(0.35, 0.3) < 0.9
    assert expected_capital(0.2, 0.3) > 1.5


def test_the_limit_falls_with_failures_to_that_of_clopper_and_pearson_at_half_the_error() -> None:
    for attempts in (5, 40, 300):
        found = evidence((0.0, 1.0, attempts, 0))
        fixed = stats.beta.ppf(1 - 0.05 / 2, 1, attempts)
        assert 0.9 * fixed < limit(found, 0.05) <= fixed
    limits = [limit(evidence((0.1, 0.5, 50, successes)), 0.05) for successes in range(51)]
    assert limits == sorted(limits) and 0.1 < limits[0] and limits[-1] == pytest.approx(0.6)
    assert limit(evidence((0.1, 0.5, 50, 3)), 0.01) > limits[3] > limit(evidence((0.1, 0.5, 50, 3)), 0.2)
    assert (limit(Evidence(), 0.05), limit(evidence((0.1, 0.5, 50, 0)), 0.0)) == (1.0, pytest.approx(0.6))
    assert limit(evidence((1e-14, 1e-12, 50, 0)), 0.05) == pytest.approx(1e-14 + 1e-12 * (limits[0] - 0.1) / 0.5)


REPEATS, LOOKS = 200, 30


def misses(wrong: Callable[[Evidence, float], bool], rate: float) -> int:
    """Return the number of series of small waves with a look at which the truth is ruled out."""
    rng, count, truth = np.random.default_rng(1), 0, 0.1 + 0.5 * rate
    for _ in range(REPEATS):
        found = Evidence()
        for successes in rng.binomial(5, rate, LOOKS).tolist():
            found.waves.append(Wave(log(0.1), log(0.5), 5, successes))
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
    assert misses(by_the_point_estimate, 0.3) > 0.9 * REPEATS and misses(by_clopper_pearson, 0.3) > 0.3 * REPEATS


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
