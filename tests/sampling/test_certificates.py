"""Certificates against exact enumeration: the stated distance holds at its rate, and the law of the draws is the one meant."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from outlines_phi import (
    AutoPhi,
    BannedPhrases,
    BudgetError,
    Draws,
    Effort,
    ExactPhi,
    Guarantee,
    LocalPhi,
    SamplingSettings,
)
from outlines_phi.guides import Table
from outlines_phi.sampling import Certificate
from outlines_phi_workbench.suite.reference import CertifiedWalk, Reference, enumerate_language
from tests.inner import (
    DONE,
    BoundsTree,
    Certification,
    Evaluator,
    Evidence,
    ExactSampler,
    FrozenWalks,
    PhraseGuide,
    RejectionAttempts,
    ResidualAttempts,
    TableModel,
    TreeStore,
    enumerate_together,
    frequencies,
    grow_trees,
    noise_floor,
    preexpand,
    total_variation,
)
from tests.languages import (
    ALPHA,
    GRAMMARS,
    LOOP,
    NESTED,
    OF_EVERY_KIND,
    PROMPT,
    VOCABULARY,
    WORDS,
    Ids,
    Language,
    ids,
    p_value,
    sample,
    tree_of,
    z,
)
from tests.refusals import refused
from tests.sampling.test_constraint import Merged
from tests.sampling.test_constraint import reference as constrained_reference

LONG = Language("long", "(a|b|ab|c)*x", 6, seed=5)
"""3,268 members: more than a few hundred tokens enumerate."""

CONFIDENCE, REPEATS = 0.8, 50


pytestmark = pytest.mark.usefixtures("grown")


def planted(language: Language, constraint: Merged | None = None) -> tuple[BoundsTree, Evaluator]:
    tree = BoundsTree(language.table, language.budget, constraint)
    return tree, Evaluator(language.lm, language.settings(), [PROMPT], [tree])


def stream(seed: int, number: int) -> np.random.Generator:
    return np.random.default_rng((seed, number))


def phi_of(language: Language) -> float:
    return math.exp(language.reference().log_phi)


def members(tree: BoundsTree) -> set[tuple[int, ...]]:
    return {node.tokens() for node in tree.walk() if node.state == DONE}


def distance(language: Language, tree: BoundsTree) -> float:
    """TV(mu_Lo, mu*) by summation over the members that the tree holds."""
    mu = language.reference().mu
    held = {ids: mu[ids] for ids in members(tree)}
    total = math.fsum(held.values())
    return math.fsum(abs(held.get(ids, 0.0) / total - p) for ids, p in mu.items()) / 2


def certification(
    language: Language, seed: int, tolerance: float, tokens: int, constraint: Merged | None = None
) -> Certification:
    tree, evaluator = planted(language, constraint)
    row = Certification(tree, tolerance, CONFIDENCE, partial(stream, seed), Effort(tokens=tokens, attempts=2000), 8)
    grow_trees([row], evaluator)
    return row


CASES = [(GRAMMARS[1], 0.1, 100), (LOOP, 0.1, 1000), (LONG, 0.3, 1000), (LONG, 0.1, 600), (LONG, 0.02, 200)]


@cache
def certifications(case: int) -> list[Certification]:
    return [certification(*CASES[case][:1], seed, *CASES[case][1:]) for seed in range(REPEATS)]


@pytest.mark.in_turn
@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda case: f"{CASES[case][0]} {CASES[case][1]}")
def test_certificates_hold_at_their_rate(case: int) -> None:
    """At 80 %: of 50 certificates, reached or not, at most 10 state less than the true distance; and they are worth something."""
    (language, tolerance, tokens), rows = CASES[case], certifications(case)
    true = [distance(language, row.tree) for row in rows]
    wrong = sum(row.certificate.total_variation < tv - 1e-9 for row, tv in zip(rows, true, strict=True))
    stated = np.mean([row.certificate.total_variation for row in rows])
    certain = np.mean([math.exp(row.tree.root.log_gap - row.tree.root.log_upper) for row in rows])
    assert wrong <= (1 - CONFIDENCE) * REPEATS
    assert stated < 0.95 * certain
    for row, tv in zip(rows, true, strict=True):
        assert tv == pytest.approx(1 - math.exp(row.tree.root.log_lower) / phi_of(language), abs=1e-9)
        assert row.certificate.confidence == (1.0 if row.certain else CONFIDENCE)
        assert row.reached == (row.certain or row.certificate.total_variation <= tolerance * (1 + 1e-9))
        assert row.reached or row.tree.expansions >= tokens


def test_certificates_hold_under_a_constraint_that_is_found_out_node_by_node() -> None:
    """Bounds may fall while attempts of a wave go down; the coin keeps the rate of success what it was at the launch."""
    rule = Merged(even=True)
    phi, mu = constrained_reference(LONG, rule)
    rows = [certification(LONG, seed, 0.2, 1600, rule) for seed in range(30)]
    wrong = 0
    for row in rows:
        known = members(row.tree)
        assert known <= mu.keys() and sum(mu[ids] for ids in known) == pytest.approx(
            math.exp(row.tree.root.log_lower) / phi
        )
        wrong += row.certificate.total_variation < 1 - math.exp(row.tree.root.log_lower) / phi - 1e-9
    assert sum(row.reached and not row.certain for row in rows) > 20 and wrong <= (1 - CONFIDENCE) * len(rows)


def test_the_count_of_wrong_certificates_has_power(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power control: an estimate of Phi in the place of its limit."""
    monkeypatch.setattr(Evidence, "log_limit", lambda self, alpha: math.log(point(self)))
    monkeypatch.setattr(
        Evidence, "rules_out", lambda self, log_phi, alpha: self.attempts > 0 and math.exp(log_phi) > point(self)
    )
    (language, tolerance, tokens), repeats = CASES[2], 20
    rows = [certification(language, seed, tolerance, tokens) for seed in range(repeats)]
    assert sum(row.certificate.total_variation < distance(language, row.tree) - 1e-9 for row in rows) > 0.6 * repeats


def point(evidence: Evidence) -> float:
    values = [
        math.exp(wave.log_lower) + math.exp(wave.log_gap) * wave.successes / wave.attempts for wave in evidence.waves
    ]
    return float(np.mean(values)) if values else 1.0


def confident(language: Language, n: int, store: TreeStore, **options: float) -> Draws:
    phi = ExactPhi(confidence=CONFIDENCE, **{"tolerance": 0.3, "effort": Effort(tokens=1500), **options})  # type: ignore[arg-type]
    return sample(phi, language.request(n, seed=None), store=store)[0]


def test_the_law_of_confident_draws_is_that_of_the_known_members() -> None:
    """Chi-square and TV against mu* restricted to what the tree holds; the same test fails for mu* and for the U-walk."""
    store = TreeStore()
    draws = confident(LONG, 20_000, store)
    assert draws.guarantee is Guarantee.CONFIDENT and len(draws) == 20_000
    tree, mu, drawn = tree_of(store, LONG.request(1, None)), LONG.reference().mu, ids(draws)
    held = {y: mu[y] for y in members(tree)}
    law = {y: p / math.fsum(held.values()) for y, p in held.items()}
    assert p_value(drawn, law) > ALPHA
    assert total_variation(frequencies(drawn), law) < 3 * noise_floor(law, len(drawn))
    assert p_value(drawn, mu) < ALPHA
    evaluator = Evaluator(LONG.lm, LONG.settings(), [PROMPT], [tree])
    options = {"width": 64, "effort": Effort(), "max_bytes": 2**30}
    upper, lower = (FrozenWalks(tree, 5000, partial(stream, 3), upper=upper, **options) for upper in (True, False))
    grow_trees([lower], evaluator)
    assert evaluator.counts.calls == 0
    assert p_value([node.tokens() for node in lower.accepted], law) > ALPHA
    grow_trees([upper], evaluator)
    assert p_value([node.tokens() for node in upper.accepted], law) < ALPHA


def test_confident_draws_say_what_they_are() -> None:
    draws = confident(LONG, 50, TreeStore())
    certificate = draws.certificate
    assert certificate is not None and certificate.confidence == CONFIDENCE and 0 < certificate.total_variation <= 0.3
    lower, upper = np.exp(draws.log_z_bounds)
    assert certificate.total_variation == pytest.approx(1 - lower / upper)
    assert draws.log_z == pytest.approx(math.log((lower + upper) / 2))
    assert {draw.log_w for draw in draws} == {draws.log_z} and draws.ess == pytest.approx(50)
    reference = LONG.reference().log_p
    assert all(draw.log_p == pytest.approx(reference[draw.token_ids], abs=1e-9) for draw in draws)
    assert f"CONFIDENT (TV at most {certificate.total_variation:.4g} at 0.8 confidence)" in repr(draws)


def test_a_certificate_that_is_certain_stays_certain() -> None:
    """Enumeration alone reaches the tolerance first: the confidence is 1 and the law that of the U-walk."""
    draws = confident(NESTED, 3000, TreeStore(), tolerance=1e-9)
    assert draws.guarantee is Guarantee.CERTIFIED
    assert draws.certificate is not None and draws.certificate.confidence == 1
    assert p_value(ids(draws), NESTED.reference().mu) > ALPHA


@pytest.mark.parametrize(
    ("phi", "guarantee", "certificate"),
    [
        (ExactPhi(), Guarantee.EXACT, Certificate(total_variation=0.0)),
        (AutoPhi(), Guarantee.EXACT, Certificate(total_variation=0.0)),
        (LocalPhi(), Guarantee.WEIGHTED, None),
        (AutoPhi(share=0), Guarantee.WEIGHTED, None),
    ],
    ids=["exact", "auto", "local", "auto, weighted"],
)
def test_exact_draws_are_at_no_distance_and_weighted_ones_at_an_unknown_one(
    phi: object, guarantee: Guarantee, certificate: Certificate | None
) -> None:
    (draws,) = sample(phi, WORDS.request(3, seed=1))
    assert (draws.guarantee, draws.certificate) == (guarantee, certificate)


def test_several_draws_are_further_than_one() -> None:
    one = Certificate(total_variation=0.1)
    assert [one.for_draws(n) for n in (0, 1, 2)] == pytest.approx([0.0, 0.1, 0.19])
    assert Certificate(total_variation=0.0).for_draws(10**9) == 0.0
    assert Certificate(total_variation=1.0).for_draws(3) == 1.0
    assert Certificate(total_variation=1e-17).for_draws(10**9) == pytest.approx(1e-8)


def test_what_was_reached_is_said_where_it_falls_short() -> None:
    phi = ExactPhi(tolerance=0.01, confidence=0.9, effort=Effort(tokens=300))
    words = r"^Give a larger tolerance.*; what \d+ residual attempts certify: TV at most 0\.\d+ at 0\.9 confidence\.$"
    caught = refused(words, sample, phi, LONG.request(5, seed=1), error=BudgetError)
    (draws,), (lower, upper) = caught.value.draws, np.exp(caught.value.log_z_bounds)
    assert len(draws) == 0 and draws.certificate.confidence == 0.9 and 0.01 < draws.certificate.total_variation < 1
    assert lower <= phi_of(LONG) <= upper
    refused(
        r"confidence=0\.95 .*TV at most .* for certain\.$",
        sample,
        ExactPhi(tolerance=0.01, effort=Effort(tokens=300)),
        LONG.request(5, seed=1),
        error=BudgetError,
    )


def test_prompts_that_are_certified_are_drawn_beside_one_that_is_not() -> None:
    """Phi differs from prompt to prompt, and so does what a tolerance costs."""
    request, phi = LONG.request(4, 3), ExactPhi(tolerance=0.3, confidence=0.9, effort=Effort(tokens=330))
    prompts = [(1, 2), (5, 1), (3, 4), (2, 2)]

    def drawn(*prompts: Ids) -> list[int]:
        try:
            results = sample(phi, replace(request, prompts=prompts))
        except BudgetError as error:
            assert "Prompt" in str(error) and all(draws.certificate is not None for draws in error.draws)
            results = error.draws
        return list(map(len, results))

    assert set([n for prompt in prompts for n in drawn(prompt)]) == {0, 4} == set(drawn(*prompts))


def test_the_effort_is_kept() -> None:
    """Tokens give or take a call, and the number of attempts; waves grow with what was tried before."""
    for tokens, attempts, width in ((10, 2000, 32), (100, 2000, 32), (400, 2000, 8), (400, 10, 8), (2000, 2000, 1)):
        tree, evaluator = planted(LONG)
        row = Certification(tree, 1e-6, 0.9, partial(stream, 1), Effort(tokens=tokens, attempts=attempts), width, 2**30)
        grow_trees([row], evaluator)
        assert 0 < row.evidence.attempts <= attempts
        assert tree.expansions <= tokens + 16
        assert len(row.evidence.waves) <= 16


def test_a_small_memory_costs_evaluations_and_nothing_else() -> None:
    """Laws are dropped while attempts walk, and learned again; certificates hold, and the bounds are never given up."""
    tree, evaluator = planted(LONG)
    row = Certification(
        tree, 0.2, CONFIDENCE, partial(stream, 5), Effort(tokens=3000, attempts=500), width=8, max_bytes=8_000
    )
    grow_trees([row], evaluator)
    assert evaluator.counts.tokens > sum(node.expanded and node.state != DONE for node in tree.walk())
    assert row.certificate.total_variation >= distance(LONG, tree)
    assert math.exp(tree.root.log_lower) <= phi_of(LONG) <= math.exp(tree.root.log_upper)


def test_attempts_are_the_same_however_many_walk_at_once() -> None:
    estimates = []
    for width in (1, 7, 400):
        tree, evaluator = planted(WORDS)
        enumerate_together([tree], evaluator, 0.0, max_tokens=5, width=2)
        walks = ResidualAttempts(tree, [stream(1, number) for number in range(300)], width=width)
        waiting = 0
        while nodes := walks.advance():
            waiting = max(waiting, len(nodes))
            evaluator.expand((tree, node) for node in nodes)
        assert waiting <= width
        estimates.append(walks.log_estimates)
        assert walks.successes == len(
            [estimate for estimate in walks.log_estimates if estimate > min(walks.log_estimates)]
        )
    assert estimates[0] == estimates[1] == estimates[2] and len(set(estimates[0])) == 2


BUDGET = 3
FREE_LM = TableModel.random(VOCABULARY, seed=11, scale=1.5)
TABLE = Table(PhraseGuide(VOCABULARY, BannedPhrases(["cx"])))
SETTINGS = SamplingSettings(max_new_tokens=BUDGET)
A = VOCABULARY.tokens.index(b"a")


FREE = enumerate_language(FREE_LM, TABLE, PROMPT, SETTINGS, BUDGET)


class EndsWithA:
    """A text that comes to its limit ends with the token ``a``."""

    further, bytes = 2, 0

    def allows(self, tokens: Sequence[int], *, finished: bool) -> bool:
        return not finished or len(tokens) < BUDGET or tokens[-1] == A


@pytest.mark.parametrize("max_bytes", [2**30, 0], ids=["kept", "laws dropped"])
def test_confident_draws_are_of_all_members_that_the_lower_bound_counts(max_bytes: int) -> None:
    tree = BoundsTree(TABLE, BUDGET)
    evaluator = Evaluator(FREE_LM, SETTINGS, [PROMPT], [tree])
    node, wanted = tree.root, [tree.root]
    for token in (A, A):  # the last of these has one token left
        node = tree.child(node, token, tree.target(node, token))
        wanted.append(node)
    evaluator.expand((tree, each) for each in wanted)
    expanded = {each.tokens() for each in wanted}
    mu = {ids: p for ids, p in FREE.mu.items() if ids[:-1] in expanded}
    assert math.exp(tree.root.log_lower) == pytest.approx(sum(mu.values()) * math.exp(FREE.log_phi))
    attempts = FrozenWalks(
        tree, 4000, partial(stream, 1), upper=False, width=64, effort=Effort(tokens=10**6), max_bytes=max_bytes
    )
    grow_trees([attempts], evaluator)
    law = {ids: p / sum(mu.values()) for ids, p in mu.items()}
    drawn = [each.tokens() for each in attempts.accepted]
    assert len(drawn) == 4000 and set(drawn) <= set(law) and p_value(drawn, law) > ALPHA


def test_ends_that_a_constraint_may_refuse_are_not_counted_beforehand() -> None:
    """Bounds hold and residual attempts are unbiased, in trees that have seen a single draw."""
    phi = sum(math.exp(log_p) for ids, log_p in FREE.log_p.items() if ids[-1] in (A, 0))
    estimates = []
    for seed in range(400):
        tree = BoundsTree(TABLE, BUDGET, EndsWithA())
        evaluator = Evaluator(FREE_LM, SETTINGS, [PROMPT], [tree])
        row = RejectionAttempts(tree, 1, partial(stream, seed), width=4, effort=Effort(), max_bytes=2**30)
        grow_trees([row], evaluator)
        lower, upper = np.exp(tree.log_bounds)
        assert lower <= phi + 1e-12 and phi <= upper + 1e-12
        residual = ResidualAttempts(tree, [stream(seed, 1000 + i) for i in range(16)], width=16)
        grow_trees([residual], evaluator)
        estimates.append(float(np.mean(np.exp(residual.log_estimates))))
    assert np.std(estimates) / math.sqrt(len(estimates)) < 0.02 * phi and abs(z(np.array(estimates), phi)) < 3


languages = pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)


@pytest.fixture(autouse=True)
def never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """No language is small enough to be expanded whole beforehand."""
    monkeypatch.setattr(preexpand, "SHORT", 0)


def walk(language: Language, phi: ExactPhi) -> Reference:
    law = language.lm, language.table, PROMPT, language.settings(), language.budget
    return enumerate_language(*law, estimators={"walk": CertifiedWalk(phi.tolerance, phi.effort.tokens)})


@languages
def test_it_is_the_law_of_certified_draws(language: Language) -> None:
    phi = ExactPhi(tolerance=0.5)
    laws = walk(language, phi)
    drawn = ExactSampler(phi).sample(language.request(4000, seed=1))[0]
    assert p_value([draw.token_ids for draw in drawn], laws.distribution("walk")) > ALPHA
    assert drawn.certificate is not None
    assert total_variation(laws.distribution("walk"), laws.mu) <= drawn.certificate.total_variation + 1e-12
