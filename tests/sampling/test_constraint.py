"""Constraints beside the guide: every sampler conditions on them too, found out node by node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import ClassVar

import numpy as np
import pytest

import outlines_phi
from outlines_phi import AutoPhi, EmptyLanguageError, ExactPhi, Guarantee, LocalPhi, OneStepPhi
from outlines_phi.lm import TableModel
from outlines_phi_workbench.suite.reference import enumerate_language
from tests.inner import (
    DEAD,
    AncestralSampler,
    AutoSampler,
    BoundsTree,
    Evaluator,
    ExactSampler,
    Node,
    Request,
    ResidualAttempts,
    frequencies,
    grow_trees,
    noise_floor,
    preexpand,
    rank,
    total_variation,
)
from tests.languages import (
    ALPHA,
    GRAMMARS,
    LANGUAGES,
    PROMPT,
    VOCABULARY,
    Language,
    deviation,
    p_value,
    pooled_p_value,
    power,
    z,
)

pytestmark = pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning")
WORDS, LOOP, NESTED, _ = LANGUAGES
DYCK = GRAMMARS[0]
A, B, OPEN, CLOSE = 1, 2, 9, 10


@dataclass(frozen=True)
class Merged:
    """No ``a`` before ``b`` and no ``(`` before ``)``: there is a token for both; and, known late, an even number of tokens."""

    even: bool = False
    further: ClassVar[int] = 2
    bytes: ClassVar[int] = 0

    def allows(self, tokens: Sequence[int], *, finished: bool) -> bool:
        pairs = set(zip(tokens, tokens[1:], strict=False))
        return not pairs & {(A, B), (OPEN, CLOSE)} and not (self.even and finished and len(tokens) % 2)


def constrained(language: Language, n: int, seed: int | None, constraint: Merged, rows: int = 1) -> Request:
    return replace(language.request(n, seed, rows=rows), constraint=constraint)


@cache
def reference(language: Language, constraint: Merged) -> tuple[float, dict[tuple[int, ...], float]]:
    """Return Phi and mu* of a constrained language, from the enumeration of the whole one."""
    p = {
        y: math.exp(log_p)
        for y, log_p in language.reference().log_p.items()
        if constraint.allows(y[:-1], finished=True)
    }
    return sum(p.values()), {y: value / sum(p.values()) for y, value in p.items()}


EXACT = {
    "rejection": lambda: ExactSampler(ExactPhi()),
    "one at a time": lambda: ExactSampler(ExactPhi(width=1)),
    "certified at 1e-9": lambda: ExactSampler(ExactPhi(tolerance=1e-9)),
    "auto": lambda: AutoSampler(AutoPhi()),
}
WEIGHTED = {
    "local": lambda: AncestralSampler(LocalPhi()),
    "onestep": lambda: AncestralSampler(OneStepPhi()),
    "adaptive": lambda: AutoSampler(AutoPhi(share=0, candidates=1)),
}
LANGUAGES_HERE, CONSTRAINTS = (WORDS, LOOP, NESTED, DYCK), (Merged(), Merged(even=True))
languages = pytest.mark.parametrize("language", LANGUAGES_HERE, ids=str)
constraints = pytest.mark.parametrize("constraint", CONSTRAINTS, ids=["early", "late"])


@pytest.fixture(autouse=True, params=["whole", "grown"])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "grown":
        monkeypatch.setattr(preexpand, "SHORT", 0)


DRAWS = 1_200
"""Draws of each sampler, language and constraint, whose statistics are added: power 0.99 against a bias of 3 % of all,
and against 5 % of one sampler."""


def test_the_tests_have_power() -> None:
    each = len(LANGUAGES_HERE) * len(CONSTRAINTS)
    assert power(DRAWS, 0.03, samples=each * len(EXACT)) >= 0.99
    assert power(DRAWS, 0.05, samples=each, alpha=ALPHA / len(EXACT)) >= 0.99


def test_exact_samplers_draw_the_constrained_law() -> None:
    """The statistics of each sampler, and of all of them, are added."""
    everything = []
    for i, name in enumerate(EXACT):
        samples = []
        for language, constraint in product(LANGUAGES_HERE, CONSTRAINTS):
            phi, mu = reference(language, constraint)
            draws = EXACT[name]().sample(constrained(language, DRAWS, 40 + i, constraint))[0]
            samples.append(([draw.token_ids for draw in draws], mu))
            assert draws.log_z_bounds[0] <= math.log(phi) + 1e-9 and math.log(phi) <= draws.log_z_bounds[1] + 1e-9
        assert pooled_p_value(samples) > ALPHA / len(EXACT), name
        everything += samples
    assert pooled_p_value(everything) > ALPHA


@languages
def test_draws_without_the_constraint_fail_the_same_test(language: Language) -> None:
    draws = ExactSampler(ExactPhi()).sample(language.request(DRAWS, 7))[0]
    assert p_value([draw.token_ids for draw in draws], reference(language, Merged(even=True))[1]) < ALPHA


def test_masked_draws_fail_the_same_test() -> None:
    """Power control: those of masked draws that the constraint allows."""
    for language, constraint in product(LANGUAGES_HERE, CONSTRAINTS):
        draws = AncestralSampler(LocalPhi()).sample(constrained(language, DRAWS, 7, constraint))[0]
        assert p_value([draw.token_ids for draw in draws], reference(language, constraint)[1]) < ALPHA / len(EXACT)


@pytest.mark.parametrize("road", ["grown"], indirect=True)
@constraints
@pytest.mark.parametrize("language", [WORDS, LOOP], ids=str)
def test_cold_trees_and_normalisers(language: Language, constraint: Merged) -> None:
    """One draw and eight residual attempts of each of many trees that start from nothing."""
    phi, mu = reference(language, constraint)
    results = ExactSampler(ExactPhi(width=6, normalizers=8)).sample(constrained(language, 1, 3, constraint, rows=250))
    assert p_value([draws[0].token_ids for draws in results], mu) > ALPHA
    z = np.array([np.mean(draws.normalizers) for draws in results])
    assert abs(z.mean() - phi) < 4 * z.std() / math.sqrt(len(z)) + 1e-12


@pytest.mark.parametrize("road", ["grown"], indirect=True)
@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_have_mean_phi(name: str) -> None:
    """A text that the constraint rules out is a draw of weight 0 and counts in the mean; errors of all languages are added."""
    errors, n = [], DRAWS if name == "adaptive" else 2 * DRAWS
    for seed, (language, constraint) in enumerate(
        product(LANGUAGES_HERE, CONSTRAINTS), start=10
    ):  # errors are independent
        phi, mu = reference(language, constraint)
        draws = WEIGHTED[name]().sample(constrained(language, n, seed, constraint))[0]
        w = np.exp(draws.log_w)
        assert len(w) == n
        errors.append(z(w, phi))
        assert {draw.token_ids for draw in draws} <= set(mu)
        weighted = frequencies((draw.token_ids for draw in draws), draws.weights)
        assert total_variation(weighted, mu) < 3 * noise_floor(mu, int(draws.ess)) + 0.01
    assert deviation(errors) < 4


@pytest.mark.parametrize("road", ["grown"], indirect=True)
@pytest.mark.parametrize("language", [WORDS, LOOP], ids=str)
def test_adaptive_weights_on_cold_trees(language: Language) -> None:
    phi, _ = reference(language, Merged(even=True))
    results = AutoSampler(AutoPhi(share=0, candidates=1)).sample(
        constrained(language, 32, 5, Merged(even=True), rows=100)
    )
    w = np.array([np.exp(draws.log_w).mean() for draws in results]) / phi
    assert abs(w.mean() - 1) < 4 * w.std() / math.sqrt(len(w))


@constraints
@languages
def test_the_mode_obeys_it(language: Language, constraint: Merged) -> None:
    _, mu = reference(language, constraint)
    best = sorted(mu, key=lambda y: (-mu[y], y))[:5]
    sampler = ExactSampler(ExactPhi())
    ranking = rank(
        constrained(language, 1, 0, constraint), 5, sampler.store, tolerance=0.0, effort=outlines_phi.Effort()
    )[0]
    assert [member.token_ids for member in ranking] == best


def test_a_constraint_that_rules_out_everything_is_an_error() -> None:
    class Nothing:
        further, bytes = 1, 0

        def allows(self, tokens: Sequence[int], *, finished: bool) -> bool:
            return not finished

    with pytest.raises(EmptyLanguageError, match="Phi = 0"):
        ExactSampler(ExactPhi()).sample(replace(WORDS.request(1, 1), constraint=Nothing()))


class NeitherBNorC:
    """Rules out most of what a tree takes for possible before it has looked."""

    further, bytes = 1, 0

    def allows(self, tokens: Sequence[int], *, finished: bool) -> bool:
        return not set(tokens[:1]) & {B, 5}


def residual_means(runs: int, together: int) -> np.ndarray:
    """Return Z_hat / Phi of many trees of which only the root is known, ``together`` residual attempts each."""
    p, q = np.full(len(VOCABULARY), 1e-3), np.full(len(VOCABULARY), 1e-3)
    p[[A, B, 5]], q[[A, 0]] = (0.1, 0.45, 0.44), (0.5, 0.2)
    lm = TableModel(VOCABULARY, lambda sequence: np.log(p if len(sequence) == len(PROMPT) else q))
    language, constraint, means = Language("two letters", "[abc]a", 4, seed=1), NeitherBNorC(), []
    whole = enumerate_language(lm, language.table, PROMPT, language.settings(), 4)
    phi = sum(math.exp(log_p) for y, log_p in whole.log_p.items() if constraint.allows(y, finished=True))
    for run in range(runs):
        request = Request(lm=lm, table=language.table, prompts=[PROMPT], settings=language.settings(run))
        tree = BoundsTree(language.table, 4, constraint)
        evaluator = Evaluator(lm, request.settings, [PROMPT], [tree])
        evaluator.expand([(tree, tree.root)])
        attempts = ResidualAttempts(tree, [request.stream(0, i) for i in range(together)], width=together)
        grow_trees([attempts], evaluator)
        means.append(np.mean(np.exp(attempts.log_estimates)) / phi)
    return np.array(means)


@pytest.mark.parametrize("road", ["grown"], indirect=True)
@pytest.mark.parametrize("coin", [True, False], ids=["right", "no coin"])
def test_residual_attempts_that_rule_things_out_for_one_another(coin: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a walk that forgets by which gap it was chosen succeeds too often."""
    if not coin:
        monkeypatch.setattr(ResidualAttempts, "_descend", without_coin)
    means = residual_means(600, 16)
    z = (means.mean() - 1) / (means.std() / math.sqrt(len(means)))
    assert abs(z) < 3.5 if coin else z > 10


def without_coin(self: ResidualAttempts, number: int) -> Node | None:
    node = self._places[number]
    while node is not None and node.expanded and node.distribution is not None:
        node = self.tree.choose(node, lambda child: child.log_gap, self._streams[number])
    return None if node is None or node.state == DEAD else node


@pytest.mark.parametrize("road", ["grown"], indirect=True)
@pytest.mark.parametrize("sampler", [ExactSampler(ExactPhi()), AutoSampler(AutoPhi())], ids=["exact", "auto"])
def test_a_phi_below_all_floats_is_held_by_bounds(sampler: ExactSampler | AutoSampler) -> None:
    p = np.full(len(VOCABULARY), 1e-8)
    p[5] = 1.0
    lm = TableModel(VOCABULARY, lambda sequence: np.log(p))
    language = Language("sixty", "x{60}", 61, seed=1)
    request = Request(lm=lm, table=language.table, prompts=[PROMPT], settings=language.settings(5), n=2)
    log_phi = 61 * math.log(1e-8 / p.sum())
    (draws,) = sampler.sample(request)
    assert len(draws) == 2 and draws.guarantee == Guarantee.EXACT
    assert draws.log_z_bounds == pytest.approx((log_phi, log_phi), rel=1e-6)
    assert AncestralSampler(LocalPhi()).sample(request)[0].log_z == pytest.approx(log_phi, rel=1e-6)
