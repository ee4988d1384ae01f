"""Continuations and how many succeed, against Phi by recursion."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.guide import DONE
from outlines_phi.phi.estimator import Prefixes, SampledRun
from outlines_phi.phi.estimators import rollout
from outlines_phi.phi.estimators.rollout import RolloutPhi
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.sampler import Request
from tests.languages import LANGUAGES, OF_EVERY_KIND, PROMPT, VOCABULARY, Language
from tests.phi.walks import Step, children, mean_weight, paths, run_of, steps, true_phi

ALL = len(VOCABULARY)
languages = pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)


def successes(phi: RolloutPhi, log_h: float) -> float:
    """How many of ``k`` continuations succeeded, of ``log h``."""
    return math.exp(log_h) * (phi.k + phi.a + phi.b) - phi.a


def first_step(run: SampledRun, phi: RolloutPhi, row: int = 0) -> Step:
    return next(steps(run, phi.begin(run), row))


@languages
@pytest.mark.parametrize(("k", "a", "b"), [(1, 0.5, 0.5), (7, 0.25, 3.0), (20, 1.0, 0.0)])
def test_an_estimate_is_made_of_counts(language: Language, k: int, a: float, b: float) -> None:
    phi = RolloutPhi(k=k, a=a, b=b, candidates=ALL, share=1.0)
    run = run_of(language)
    for step in steps(run, phi.begin(run)):
        for token, target in children(run.table, step):
            if target == DONE:
                assert step.log_h[token] == 0
                continue
            count = successes(phi, float(step.log_h[token]))
            assert count == pytest.approx(round(count), abs=1e-6) and -1e-6 < count < k + 1e-6


@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"repetition_penalty": 1.7}], ids=str)
@pytest.mark.parametrize("language", LANGUAGES[:2], ids=str)
def test_the_counts_are_binomial_around_phi(language: Language, options: dict[str, object]) -> None:
    """Over many seeds the successes of each first token follow Binomial(k, Phi), by chi-square."""
    phi, truth = RolloutPhi(k=3, candidates=ALL, share=1.0), true_phi(language, **options)
    counts: dict[int, Counter[int]] = {}
    seeds = 300
    for seed in range(seeds):
        step = first_step(run := run_of(language, seed=seed, **options), phi)
        for token, target in children(run.table, step):
            counts.setdefault(token, Counter())[round(successes(phi, float(step.log_h[token])))] += 1
            exact = truth((token,), target, step.remaining - 1)
            mean = sum(n * times for n, times in counts[token].items()) / (phi.k * seeds)
            if seed == seeds - 1:
                error = math.sqrt(exact * (1 - exact) / (phi.k * seeds))
                assert abs(mean - exact) <= 4 * error + 1e-12
                if error > 0.01:
                    expected = stats.binom.pmf(range(phi.k + 1), phi.k, exact) * seeds
                    found = np.array([counts[token][n] for n in range(phi.k + 1)])
                    cells = expected > 5
                    pooled = np.append(expected[cells], expected[~cells].sum() + 1e-9)
                    seen = np.append(found[cells], found[~cells].sum())
                    statistic = ((seen - pooled) ** 2 / pooled)[pooled > 1].sum()
                    assert stats.chi2.sf(statistic, cells.sum()) > 1e-4
    assert counts


def test_more_continuations_are_nearer_to_phi() -> None:
    language = LANGUAGES[0]
    truth = true_phi(language)
    errors = []
    for k in (10, 1000):
        step = first_step(run := run_of(language), RolloutPhi(k=k, a=1e-3, b=0.0, candidates=ALL, share=1.0))
        errors.append(
            max(
                abs(math.exp(step.log_h[token]) - truth((token,), target, step.remaining - 1))
                for token, target in children(run.table, step)
            )
        )
    assert errors[1] < 0.03 and errors[1] < errors[0]


@languages
@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"temperature": 0.5}], ids=str)
@pytest.mark.parametrize("phi", [RolloutPhi(), RolloutPhi(k=2, candidates=1)], ids=["8", "1"])
def test_the_mean_weight_is_phi(phi: RolloutPhi, options: dict[str, object], language: Language) -> None:
    """``sum_y q(y) w(y) = Phi`` over all paths, and each weight is ``p / q``, given the continuations."""
    found = paths(language, phi, **options)
    assert mean_weight(found) == pytest.approx(math.exp(language.reference(**options).log_phi), rel=1e-9)
    assert all(path.log_w == pytest.approx(path.log_p - path.log_q, abs=1e-9) for path in found)


def test_without_successes_beforehand_mass_is_lost() -> None:
    """Power control: ``a = 0`` puts 0 where no continuation happened to succeed."""
    phi = RolloutPhi(k=1, a=1e-9, b=0.0)
    language, options = LANGUAGES[0], {"top_k": 5}
    whole = math.exp(language.reference(**options).log_phi)
    assert mean_weight(paths(language, phi, **options)) == pytest.approx(whole, rel=1e-9)
    object.__setattr__(phi, "a", 0.0)
    with np.errstate(divide="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout.Candidates, "add_to", without_floor)
        assert mean_weight(paths(language, phi, **options)) < 0.999 * whole


def without_floor(self: rollout.Candidates, scores: torch.Tensor, log_h: np.ndarray, floor: float) -> None:
    row = torch.full_like(scores, -math.inf)
    row[torch.from_numpy(self._live)] = torch.from_numpy(self._spread(log_h)).to(scores.dtype)
    scores.add_(row)


class TestRandomness:
    def test_the_other_rows_change_nothing(self) -> None:
        """Neither the values of a row, nor its draws."""
        language, phi = LANGUAGES[0], RolloutPhi(k=3)
        others = [PROMPT, (3,), (4, 5)]
        alone = first_step(run_of(language, seed=4), phi)
        together = first_step(run_of(language, seed=4, prompts=others), phi)
        assert together.log_h.tolist() == alone.log_h.tolist()
        request = Request(lm=language.lm, table=language.table, prompts=others, settings=language.settings(5), n=6)
        drawn = AncestralSampler(phi).sample(request)[0]
        same = AncestralSampler(phi).sample(language.request(6, seed=5))[0]
        assert [draw.token_ids for draw in drawn] == [draw.token_ids for draw in same]
        assert drawn.log_w == pytest.approx(same.log_w, abs=1e-12)

    def test_equal_prompts_have_continuations_of_their_own(self) -> None:
        run = run_of(LANGUAGES[0], prompts=[PROMPT, PROMPT])
        estimate = RolloutPhi(k=20).begin(run)
        one, two = (next(steps(run, estimate, row)).log_h.tolist() for row in (0, 1))
        assert one != two

    def test_the_order_of_the_prefixes_changes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Asked together, one by one, or in parts: the same values."""
        language, phi = LANGUAGES[0], RolloutPhi(k=5)

        def ask(*parts: list[int]) -> dict[int, list[float]]:
            run = run_of(language)
            root = next(steps(run, phi.begin(run)))
            estimate = phi.begin(run)
            below = [(token, target) for token, target in children(run.table, root) if target != DONE]
            nodes, logits = run.branches.look([0] * len(below), [token for token, _ in below])
            log_p = run.log_p(logits, [(0, (token,)) for token, _ in below])
            found = {}
            for part in parts or [list(range(len(below)))]:
                here = Prefixes(
                    [0] * len(part),
                    [nodes[i] for i in part],
                    [below[i][1] for i in part],
                    [root.remaining - 1] * len(part),
                    [[below[i][0]] for i in part],
                )
                scores = estimate.add_log_h(log_p[part], here)
                found.update({i: row.tolist() for i, row in zip(part, scores, strict=True)})
            assert len(found) == len(below)
            return found

        whole = ask()
        assert ask([2, 0], [1], [0, 2, 1], list(whole)) == whole
        monkeypatch.setattr(rollout, "TOGETHER", 1)
        assert ask() == whole

    def test_seeds(self) -> None:
        language = LANGUAGES[0]
        once, again, other = (first_step(run_of(language, seed=seed), RolloutPhi(k=30)).log_h for seed in (1, 1, 2))
        assert once.tolist() == again.tolist() != other.tolist()


class TestCost:
    def test_values_are_kept_for_the_run(self) -> None:
        run = run_of(LANGUAGES[0])
        estimate = RolloutPhi().begin(run)
        first = next(steps(run, estimate))
        spent = run.branches.trees.counts.tokens
        assert next(steps(run, estimate)).log_h.tolist() == first.log_h.tolist()
        assert run.branches.trees.counts.tokens == spent

    def test_one_call_per_token_for_all_continuations_of_all_rows(self) -> None:
        """And all of it in the counts of the draws."""
        language = LANGUAGES[1]
        prompts = [PROMPT, (3,), (4, 5)]
        request = Request(lm=language.lm, table=language.table, prompts=prompts, settings=language.settings(2), n=1)
        draws = AncestralSampler(RolloutPhi(k=2)).sample(request)
        walked = max(len(draw.token_ids) for each in draws for draw in each)
        own = sum(len(draw.token_ids) - 1 for each in draws for draw in each)
        counts = draws[0].counts
        # Step t of the walks costs their own call, and at most one per token that is left after it.
        assert counts.calls <= sum(1 + language.budget - 1 - t for t in range(walked))
        assert counts.tokens > 3 * own
        assert counts.prompt_tokens == 2 * sum(map(len, prompts))  # the continuations have trees of their own

    def test_what_was_evaluated_is_given_back(self) -> None:
        run = run_of(LANGUAGES[0])
        estimate = RolloutPhi(k=8).begin(run)
        for step in steps(run, estimate):
            if len(step.ids) == 3:
                break
        forest = estimate._branches.trees._forest  # type: ignore[attr-defined]
        alive = int(forest.alive[: len(forest)].sum())
        assert len(forest) > 300
        assert alive < len(forest) / 4


@pytest.mark.parametrize("pattern", ["a?", "ab|ba", "(ab|c)*x"])
def test_the_least_budget(pattern: str) -> None:
    least = Language(pattern, pattern, 99, seed=3)
    budget = least.table.guide.min_tokens(least.table.start)
    language = Language(pattern, pattern, budget, seed=3)
    draws = AncestralSampler(RolloutPhi()).sample(language.request(20, seed=1))[0]
    assert len(draws) == 20 and {draw.token_ids for draw in draws} <= set(language.reference().mu)


@pytest.mark.parametrize(
    ("option", "value"),
    [("k", 0), ("k", 2.5), ("a", 0), ("a", -1), ("a", "one"), ("a", math.inf), ("b", -0.1), ("b", None)]
    + [("candidates", 0), ("share", 1.5)],
)
def test_bad_options(option: str, value: object) -> None:
    with pytest.raises(UnsupportedError, match=f"{option}={value!r} was given to RolloutPhi; expected a "):
        RolloutPhi(**{option: value})  # type: ignore[arg-type]
