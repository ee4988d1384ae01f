"""Adaptive weighted rejection by itself; exactness where the live tokens of a step are hundreds of nats apart."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from outlines_phi import AutoPhi, Effort, ExactPhi, LocalPhi
from outlines_phi.lm import LanguageModel, SequenceTrees, TableModel, TokenTrees
from outlines_phi_workbench.suite.reference import Reference, enumerate_language
from tests.inner import (
    AllowedDraw,
    AncestralSampler,
    AutoSampler,
    BoundsTree,
    Distribution,
    Evaluator,
    ExactSampler,
    MassEstimate,
    Order,
    Request,
    Sampler,
    TreeStore,
    WrappedModel,
    awrs,
    draw_allowed,
    enumerate_together,
    gumbel,
    log_mean,
    rank,
    tree,
)
from tests.languages import ALPHA as LEVEL
from tests.languages import LANGUAGES, PROMPT, VOCABULARY, Language, pooled_p_value

ALPHA = 0.01
KEYS = np.random.default_rng(0).integers(2**63, size=40_000).tolist()

FLAT = {token: 0.2 for token in range(5)}
SKEWED = {0: 0.6, 1: 0.25, 2: 0.1, 3: 0.04, 4: 0.01}
TAIL = {0: 1.0, 1: 7e-13, 2: 2e-13, 3: 1e-13, 4: 1e-40}
"""Without the first token, next to nothing is left."""

CASES = [
    pytest.param(q, frozenset(allowed), id=f"{name} {''.join(map(str, allowed))}")
    for name, q in {"flat": FLAT, "skewed": SKEWED, "tail": TAIL}.items()
    for allowed in ((0, 1, 2, 3, 4), (0,), (1, 3), (4,), (0, 2), (1, 2, 3))
]


def laid_out(q: Mapping[int, float], order: Sequence[int]) -> list[tuple[float, float, float, float]]:
    """Return the rows of :meth:`Order.next` for the tokens of an order."""
    rows = []
    for i, token in enumerate(order):
        after = [q[other] for other in q if other not in order[: i + 1]]
        sums = math.fsum(after), math.fsum(x * x for x in after)
        rows.append((float(token), math.log(q[token]), *(math.log(x) if x > 0 else -math.inf for x in sums)))
    return rows


def outcomes(
    q: Mapping[int, float], allowed: frozenset[int], further: int
) -> Iterator[tuple[float, list[int], AllowedDraw]]:
    """Yield the probability of every order, as far as it is tested, and what a walk finds in it."""

    def extended(order: list[int], p: float) -> Iterator[tuple[float, list[int], AllowedDraw]]:
        tally = MassEstimate(further)
        if tally.run(laid_out(q, order), allowed.__contains__):
            yield p, order, tally.outcome
            return
        rest = [token for token in q if token not in order]
        for token in rest:
            yield from extended([*order, token], p * q[token] / math.fsum(q[other] for other in rest))

    yield from extended([], 1.0)


@pytest.mark.parametrize("further", [1, 2, 3])
@pytest.mark.parametrize(("q", "allowed"), CASES)
def test_the_expectation_is_exact_for_every_token(q: dict[int, float], allowed: frozenset[int], further: int) -> None:
    """Over all orders: Pr(v) = q(v) / S, and E[S_hat 1[v]] = q(v), to the last digit also where S is 1e-12."""
    total, s = math.fsum(q.values()), math.fsum(q[token] for token in allowed)
    chance: Counter[int] = Counter()
    mass: Counter[int] = Counter()
    for p, _, outcome in outcomes(q, allowed, further):
        chance[outcome.token] += p
        mass[outcome.token] += p * math.exp(outcome.log_s)
        assert 0 < math.exp(outcome.log_s) <= total * (1 + 1e-9)
    assert set(chance) == allowed
    for token in allowed:
        assert chance[token] == pytest.approx(q[token] / s, rel=1e-9)
        assert mass[token] == pytest.approx(q[token], rel=1e-9)


def ignoring_what_was_refused(q: Mapping[int, float], allowed: frozenset[int], order: Sequence[int]) -> float:
    """Estimate as if refused tokens had not been tested."""
    token = next(token for token in order if token in allowed)
    after = order[order.index(token) + 1 :]
    return q[token] + (1 - q[token]) * (bool(after) and after[0] in allowed)


def of_the_draw_alone(q: Mapping[int, float], allowed: frozenset[int], order: Sequence[int]) -> float:
    return next(q[token] for token in order if token in allowed)


def never_asking_again(q: Mapping[int, float], allowed: frozenset[int], order: Sequence[int]) -> float:
    """Take all that was not tested for allowed: what masking without the predicate would think."""
    return 1 - math.fsum(q[token] for token in order[: next(i for i, token in enumerate(order) if token in allowed)])


@pytest.mark.parametrize("wrong", [ignoring_what_was_refused, of_the_draw_alone, never_asking_again])
def test_estimates_that_look_right_fail_the_same_test(wrong: Callable[..., float]) -> None:
    allowed = frozenset({1, 2, 3})
    s = sum(SKEWED[token] for token in allowed)
    found = [(p, order, wrong(SKEWED, allowed, order)) for p, order, _ in outcomes(SKEWED, allowed, 1)]
    assert abs(math.fsum(p * value for p, _, value in found) / s - 1) > 0.1


def variance(q: Mapping[int, float], allowed: frozenset[int], m: int) -> float:
    """Return the variance of the estimate over its squared mean, exactly."""
    values = [(p, math.exp(outcome.log_s)) for p, _, outcome in outcomes(q, allowed, m)]
    mean = math.fsum(p * value for p, value in values)
    return math.fsum(p * (value - mean) ** 2 for p, value in values) / mean**2


@pytest.mark.parametrize("ratio", [1.0, 0.6, 0.3], ids=["flat", "skewed", "peaked"])
def test_further_tests_make_weights_better(ratio: float) -> None:
    law = ratio ** np.arange(7.0)
    q, allowed = dict(enumerate((law / law.sum()).tolist())), frozenset({1, 3, 4, 6})
    by_tests = [variance(q, allowed, m) for m in (1, 2, 3)]
    assert by_tests == sorted(by_tests, reverse=True)


@pytest.mark.parametrize("scale", [1e-2, 1e-4, 1e-6])
def test_the_variance_stays_bounded_in_the_tail(scale: float) -> None:
    assert variance({0: 1 - 10 * scale, 1: 4 * scale, 2: 3 * scale, 3: 2 * scale, 4: scale}, frozenset({1, 3}), 1) < 1


def test_orders_are_laid_out_with_their_sums() -> None:
    """Pieces of an order, one after the other, are the whole order; every sum is that over the tokens after."""
    log_q = torch.from_numpy(np.random.default_rng(1).normal(scale=12.0, size=(3, 40)))
    log_q[:, ::7] = -math.inf
    order = Order(log_q.clone(), torch.arange(100, 140), torch.tensor(KEYS[:3]))
    pieces = torch.cat([order.next(size) for size in (3, 9, 50)], -1)
    for row in range(3):
        ids, log_p, after, squares = pieces[:, row]
        live = int((log_q[row] > -math.inf).sum())
        assert len(set(ids[:live].tolist())) == live and (log_p[live:] == -math.inf).all()
        assert torch.equal(log_p[:live], log_q[row][ids[:live].long() - 100])
        for i in range(40):
            for power, sums in ((1, after), (2, squares)):
                assert float(sums[i]) == pytest.approx(float(torch.logsumexp(power * log_p[i + 1 :], 0)), abs=1e-9)


def test_the_order_is_that_of_sampling_without_replacement() -> None:
    q = list(SKEWED.values())
    log_q = torch.tensor(q, dtype=torch.float64).log().expand(len(KEYS), -1).clone()
    first, second = Order(log_q, torch.arange(5), torch.tensor(KEYS)).next(2)[0].long().T.tolist()
    seen = Counter(zip(first, second, strict=True))
    expected = {(i, j): q[i] * q[j] / (1 - q[i]) for i in range(5) for j in range(5) if i != j}
    cells = sorted(expected)
    test = stats.chisquare([seen[cell] for cell in cells], [expected[cell] * len(KEYS) for cell in cells])
    assert test.pvalue > ALPHA


def test_random_numbers_are_gumbel_and_those_of_a_walk_alone() -> None:
    keys, tokens = torch.tensor(KEYS[:200]), torch.arange(500)
    values = gumbel(keys, tokens)
    assert stats.kstest(values.flatten().numpy(), stats.gumbel_r.cdf).pvalue > ALPHA
    for shift in (1, 7, 64):
        pairs = np.corrcoef(values[:, shift:].flatten(), values[:, :-shift].flatten())[0, 1]
        assert abs(pairs) < 4 / math.sqrt(values.numel())
    neighbours = gumbel(torch.arange(200), tokens)  # keys that differ in one bit
    assert abs(np.corrcoef(neighbours[1:].flatten(), neighbours[:-1].flatten())[0, 1]) < 4 / math.sqrt(values.numel())
    assert torch.equal(gumbel(keys[17:18], tokens[300:]), values[17:18, 300:]) and values.isfinite().all()


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
)
@pytest.mark.parametrize("elements", [2**20, 900], ids=["together", "in slices"])
def test_a_walk_draws_the_same_whoever_is_beside_it(
    elements: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other walks, other laws, other live tokens in the batch; alone or in slices; on any device."""
    monkeypatch.setattr(awrs, "ELEMENTS", elements)
    log_q = torch.from_numpy(np.random.default_rng(2).normal(scale=2.0, size=(4, 300)))
    log_q[0, 5:] = -math.inf
    log_q[2, ::2] = -math.inf
    laws, keys = [i % 4 for i in range(40)], KEYS[:40]
    together = draw_allowed(log_q.to(device), laws, keys, allows_odd, 3)
    for i in (0, 1, 2, 3, 25):
        (alone,) = draw_allowed(log_q[laws[i]][None], [0], [keys[i]], allows_odd, 3)
        assert alone.token == together[i].token and alone.tests == together[i].tests
        assert alone.log_s == pytest.approx(together[i].log_s, abs=1e-9)


def allows_odd(law: int, token: int) -> bool:
    return token % 2 == 1


def test_few_tokens_are_tested_and_each_once() -> None:
    """Of 20,000 tokens a predicate that allows half of the mass is asked about three: two to the draw, and the further one."""
    log_q = torch.log_softmax(torch.from_numpy(np.random.default_rng(3).normal(scale=1.0, size=(1, 20_000))), -1)
    asked: Counter[int] = Counter()

    def allows(law: int, token: int) -> bool:
        asked[token] += 1
        return token % 2 == 0

    found = draw_allowed(log_q, [0] * 300, KEYS[:300], allows, 1)
    assert np.mean([outcome.tests for outcome in found]) == pytest.approx(3, abs=0.5)
    assert set(asked.values()) == {1}


def test_nothing_allowed_and_nothing_possible() -> None:
    log_q = torch.tensor([[0.0, -1.0, -math.inf], [-math.inf] * 3], dtype=torch.float64)
    found = draw_allowed(log_q, [0, 1], KEYS[:2], lambda law, token: False, 1)
    assert found == [AllowedDraw(-1, -math.inf, 2), AllowedDraw(-1, -math.inf, 0)]
    assert draw_allowed(log_q[1:], [0], KEYS[:1], lambda law, token: True, 1) == [AllowedDraw(-1, -math.inf, 0)]
    found = draw_allowed(torch.zeros(1, 1000, dtype=torch.float64), [0] * 100, KEYS[:100], lambda law, token: False, 1)
    assert {outcome.token for outcome in found} == {-1} and found[0].tests == 1000
    assert sum(outcome.tests for outcome in found) < 100 * 1000  # what one walk has found out holds for the others


def test_the_last_token_is_found_and_its_mass_is_exact() -> None:
    """A predicate that kills all but 1e-12, at the very end of an order of 3,000 tokens."""
    log_q = torch.zeros(1, 3000, dtype=torch.float64)
    log_q[0, 1234] = math.log(1e-12)
    found = draw_allowed(log_q, [0] * 5, KEYS[:5], lambda law, token: token == 1234, 4)
    assert {outcome.token for outcome in found} == {1234}
    assert [outcome.log_s for outcome in found] == pytest.approx([math.log(1e-12)] * 5)


DTYPES = (torch.float32, torch.bfloat16, torch.float64)
SCALE = 6.0
"""The standard deviation of logits: at a temperature of 0.02 tokens are up to 2,000 nats apart."""


RARE = 1e-3
"""The probability of members that a few hundred candidates may all have missed."""


class InPrecision(WrappedModel):
    """A model that hands its logits on in a precision that they were rounded to before."""

    def __init__(self, lm: TableModel, dtype: torch.dtype) -> None:
        super().__init__(lm)
        self.table, self.dtype = lm, dtype

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        return SequenceTrees(self._logits, prompts, len(self.vocabulary), self.max_length)

    def _logits(self, sequences: Sequence[tuple[int, ...]]) -> Tensor:
        rows = [self.table.logits(sequence) for sequence in sequences]
        return torch.from_numpy(np.array(rows).reshape(-1, len(self.vocabulary))).to(self.dtype)


class Cold:
    """A language under a random law of a precision and a temperature, with its reference in float64."""

    def __init__(self, language: Language, dtype: torch.dtype, temperature: float, seed: int) -> None:
        drawn = TableModel.random(VOCABULARY, seed=seed, scale=SCALE)

        def rounded(sequence: tuple[int, ...]) -> Any:
            return torch.from_numpy(drawn.logits(sequence)).to(dtype).double().numpy()

        self.language, self.temperature = language, temperature
        exact = TableModel(VOCABULARY, rounded)
        self.lm: LanguageModel = InPrecision(exact, dtype)
        self.settings = language.settings(temperature=temperature)
        self.reference: Reference = enumerate_language(exact, language.table, PROMPT, self.settings, language.budget)
        # Logits over the temperature, and logs of probabilities, are rounded to float32, each token by itself.
        single = 0.0 if dtype == torch.float64 else 2.0**-24
        self.rounding = 1e-11 + single * 4 * language.budget * 5 * SCALE / temperature

    def request(self, n: int, seed: int) -> Request:
        settings = self.language.settings(seed, temperature=self.temperature)
        return Request(lm=self.lm, table=self.language.table, prompts=[PROMPT], settings=settings, n=n)

    def draws(self, sampler: Sampler, n: int, seed: int = 0) -> list[tuple[int, ...]]:
        (draws,) = sampler.sample(self.request(n, seed))
        return [draw.token_ids for draw in draws]

    def enumerated(self) -> BoundsTree:
        tree = BoundsTree(self.language.table, self.language.budget)
        enumerate_together([tree], Evaluator(self.lm, self.settings, [PROMPT], [tree]), 0.0, 100_000)
        return tree


@cache
def cold(dtype: torch.dtype) -> list[Cold]:
    """Return every language at every temperature, under a law of its own each."""
    return [
        Cold(language, dtype, temperature, seed=100 * number + place)
        for number, language in enumerate(LANGUAGES)
        for place, temperature in enumerate((0.02, 0.05, 0.1, 0.3, 1.0))
    ]


in_every_precision = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16", "float64"])


def goodness(dtype: torch.dtype, sampler: Sampler, n: int = 300) -> float:
    return pooled_p_value((one.draws(sampler, n), one.reference.mu) for one in cold(dtype))


@pytest.mark.in_turn
@in_every_precision
@pytest.mark.parametrize(
    "sampler",
    [ExactSampler(ExactPhi()), ExactSampler(ExactPhi(tolerance=1e-6)), AutoSampler(AutoPhi())],
    ids=["exact", "certified", "auto"],
)
def test_draws_have_the_conditioned_distribution(dtype: torch.dtype, sampler: Sampler) -> None:
    assert goodness(dtype, sampler) > LEVEL


def test_masking_is_found_out() -> None:
    """Power control: the distribution of plain masking."""
    assert goodness(torch.float32, AncestralSampler(LocalPhi())) < 1e-9


def test_a_tree_that_loses_faint_tokens_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power control: live tokens that single precision cannot hold beside the likeliest one."""

    class Flushed(Distribution):  # type: ignore[misc]
        def __init__(self, moves: Any, live: Any, top: Any) -> None:
            super().__init__(moves, np.where(live < live.max(initial=-math.inf) - 103, -np.inf, live), top)

    monkeypatch.setattr(tree, "Distribution", Flushed)
    assert sum([one.reference.log_phi - one.enumerated().log_bounds[1] > 1 for one in cold(torch.float32)]) >= 3


@in_every_precision
def test_bounds_meet_at_phi(dtype: torch.dtype) -> None:
    for one in cold(dtype):
        low, high = one.enumerated().log_bounds
        assert low == pytest.approx(high, abs=1e-11) == pytest.approx(one.reference.log_phi, abs=one.rounding)


@in_every_precision
def test_the_mode_is_the_likeliest_member(dtype: torch.dtype) -> None:
    for one in cold(dtype):
        (ranking,) = rank(one.request(1, 0), 3, TreeStore(), effort=Effort(tokens=100_000))
        log_p = one.reference.log_p
        best = sorted(log_p.values(), reverse=True)[:3]
        assert [log_p[member.token_ids] for member in ranking] == pytest.approx(best, abs=2 * one.rounding)
        assert [member.log_p for member in ranking] == pytest.approx(best, abs=one.rounding)


@in_every_precision
def test_weights_are_unbiased(dtype: torch.dtype) -> None:
    """The log of the mean weight is log Phi, at temperatures at which weights of a few hundred candidates have a mean."""
    errors = []
    for one in cold(dtype):
        if one.temperature >= 0.3:
            (draws,) = AutoSampler(AutoPhi(share=0, candidates=16)).sample(one.request(40, 3))
            w = np.exp(draws.log_w - one.reference.log_phi)
            errors.append((w.mean() - 1) / (w.std() / math.sqrt(len(w)) + RARE))
            assert log_mean(draws.log_w) == pytest.approx(one.reference.log_phi, abs=1.5)
    assert np.abs(errors).max() < 4
