"""Constraints beside the guide, on tokens and on texts: every sampler conditions on them too, found out node by node."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from torch import Tensor

from outlines_phi import (
    SMC,
    AutoPhi,
    BudgetError,
    Effort,
    EmptyLanguageError,
    ExactPhi,
    LocalPhi,
    OneStepPhi,
    TextConstraint,
    Vocabulary,
)
from outlines_phi.errors import ConstraintError
from outlines_phi.phi import ProposalPhi
from outlines_phi_workbench.suite.reference import enumerate_language
from tests.inner import (
    DEAD,
    NODE_BYTES,
    AllowedDraw,
    BoundsTree,
    Evaluator,
    Request,
    ResidualAttempts,
    ResidualWalk,
    TableModel,
    TreeStore,
    grow_trees,
    preexpand,
    rank,
    stepper,
)
from tests.languages import (
    ALPHA,
    GRAMMARS,
    LISTED,
    LOOP,
    NESTED,
    PROMPT,
    VOCABULARY,
    WORDS,
    Ids,
    Language,
    correct,
    deviation,
    ids,
    p_value,
    pooled_p_value,
    power,
    sample,
    tree_of,
    unbiased,
    z,
)
from tests.refusals import refused
from tests.sampling.test_awrs import outcomes

pytestmark = pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning")
SHORT = Language("short", "(a|b|ab){1,2}x?", 4, seed=4)
A, B, C, OPEN, CLOSE = 1, 2, 5, 9, 10


@dataclass(frozen=True)
class Merged:
    """No ``a`` before ``b`` and no ``(`` before ``)``: there is a token for both; and, known late, an even number of tokens."""

    even: bool = False
    further: ClassVar[int] = 2
    bytes: ClassVar[int] = 0

    def allows(self, tokens: Sequence[int], *, finished: bool) -> bool:
        pairs = set(zip(tokens, tokens[1:], strict=False))
        return not pairs & {(A, B), (OPEN, CLOSE)} and not (self.even and finished and len(tokens) % 2)


@dataclass(frozen=True)
class Rule:
    """A constraint of tokens by a function, asked about nothing twice."""

    rule: Callable[[Sequence[int], bool], bool]
    further: ClassVar[int] = 1
    bytes: ClassVar[int] = 0

    def allows(self, tokens: Sequence[int], *, finished: bool) -> bool:
        return self.rule(tokens, finished)


def even(text: str) -> bool:
    return text.count("a") % 2 == 0


def once(text: str) -> bool:
    return text.count("ab") < 2


def late(text: str) -> bool:
    return not text.endswith("x") or text.count("c") != 1


EVEN, ONCE, LATE = TextConstraint(complete=even), TextConstraint(once), TextConstraint(late)
BOTH = TextConstraint(once, complete=even, further=1)
Constraint = Merged | TextConstraint
MERGED = list(product((WORDS, LOOP, NESTED, GRAMMARS[0]), (Merged(), Merged(even=True))))
CASES = [
    *MERGED,
    *((WORDS, texts) for texts in (EVEN, ONCE, LATE, BOTH)),
    *((each, EVEN) for each in (*GRAMMARS[1:3], LISTED)),
]
DRAWS = 1_200
"""Draws of each sampler, language and constraint, whose statistics are added: power 0.99 against a bias of 3 % of all,
and against 5 % of one sampler."""


def constrained(language: Language, n: int, seed: int | None, constraint: Constraint, **options: Any) -> Request:
    beside = constraint.over(language.table.vocabulary) if isinstance(constraint, TextConstraint) else constraint
    return replace(language.request(n, seed, **options), constraint=beside)


def member(y: Ids, constraint: Constraint, vocabulary: Vocabulary = VOCABULARY) -> bool:
    """Return True if a constraint allows a member: of predicates on texts every prefix of it, and itself; not by the package."""
    if isinstance(constraint, Merged):
        return constraint.allows(y[:-1], finished=True)
    spelled = [vocabulary.decode(y[:end]).decode() for end in range(len(y))]
    allowed = all(map(constraint.prefix or bool, filter(None, spelled)))
    return allowed and (not constraint.complete or constraint.complete(spelled[-1]))


@cache
def reference(language: Language, constraint: Constraint) -> tuple[float, dict[Ids, float]]:
    """Return Phi and mu* of a constrained language, from the enumeration of the whole one."""
    log_p, vocabulary = language.reference().log_p, language.table.vocabulary
    p = {y: math.exp(log_p[y]) for y in log_p if member(y, constraint, vocabulary)}
    assert 0 < len(p) < len(language.reference().log_p)
    return sum(p.values()), {y: value / sum(p.values()) for y, value in p.items()}


EXACT = {
    "rejection": ExactPhi(),
    "one at a time": ExactPhi(width=1),
    "certified at 1e-9": ExactPhi(tolerance=1e-9),
    "auto": AutoPhi(),
}
WEIGHTED = {"local": LocalPhi(), "onestep": OneStepPhi(), "adaptive": AutoPhi(share=0, candidates=1)}


def test_the_tests_have_power() -> None:
    assert power(DRAWS, 0.03, samples=len(CASES) * len(EXACT)) >= 0.99
    assert power(DRAWS, 0.05, samples=len(MERGED), alpha=ALPHA / len(EXACT)) >= 0.99


@pytest.mark.parametrize("prefixes", [preexpand.SHORT, 0], ids=["whole", "grown"])
def test_exact_samplers_draw_the_constrained_law(prefixes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The statistics of each sampler, and of all of them, are added."""
    monkeypatch.setattr(preexpand, "SHORT", prefixes)
    everything = []
    for i, name in enumerate(EXACT):
        samples = []
        for language, constraint in CASES:
            phi, mu = reference(language, constraint)
            (draws,) = sample(EXACT[name], constrained(language, DRAWS, 40 + i, constraint))
            samples.append((ids(draws), mu))
            assert draws.log_z_bounds[0] <= math.log(phi) + 1e-9 and math.log(phi) <= draws.log_z_bounds[1] + 1e-9
        assert pooled_p_value(samples) > ALPHA / len(EXACT), name
        everything += samples
    assert pooled_p_value(everything) > ALPHA


@pytest.mark.parametrize(("language", "constraint"), [case for case in CASES if case[1] != Merged()], ids=str)
def test_draws_without_the_constraint_fail_the_same_test(language: Language, constraint: Constraint) -> None:
    (draws,) = sample(ExactPhi(), language.request(DRAWS, 7))
    assert p_value(ids(draws), reference(language, constraint)[1]) < ALPHA


@pytest.mark.parametrize(("language", "constraint"), MERGED, ids=str)
def test_masked_draws_fail_the_same_test(language: Language, constraint: Constraint) -> None:
    """Power control: those of masked draws that the constraint allows."""
    (draws,) = sample(LocalPhi(), constrained(language, DRAWS, 7, constraint))
    assert p_value(ids(draws), reference(language, constraint)[1]) < ALPHA / len(EXACT)


@pytest.mark.in_turn
@pytest.mark.usefixtures("grown")
@pytest.mark.parametrize("constraint", [Merged(), Merged(even=True)], ids=["early", "late"])
@pytest.mark.parametrize("language", [WORDS, LOOP], ids=str)
def test_cold_trees_and_normalisers(language: Language, constraint: Merged) -> None:
    """One draw and eight residual attempts of each of many trees that start from nothing; and trajectories that learn."""
    phi, mu = reference(language, constraint)
    results = sample(ExactPhi(width=6, normalizers=8), constrained(language, 1, 3, constraint, rows=250))
    assert p_value(ids(*results), mu) > ALPHA
    assert abs(z(np.array([np.mean(draws.normalizers) for draws in results]), phi)) < 4
    results = sample(WEIGHTED["adaptive"], constrained(language, 32, 5, constraint, rows=100))
    assert abs(z(np.array([np.exp(draws.log_w).mean() for draws in results]), phi)) < 4


@pytest.mark.usefixtures("grown")
@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_have_mean_phi(name: str) -> None:
    """A text that the constraint rules out is a draw of weight 0 and counts in the mean; errors of all languages are added.

    Those of one step of look-ahead on the loop have too long a tail for a test under predicates on texts.
    """
    errors, n = [], DRAWS if name == "adaptive" else 2 * DRAWS
    loops = [(LOOP, texts) for texts in (EVEN, BOTH)] if name == "local" else []
    for seed, (language, constraint) in enumerate([*CASES[:12], *loops], start=10):  # errors are independent
        phi, mu = reference(language, constraint)
        (draws,) = sample(WEIGHTED[name], constrained(language, n, seed, constraint))
        assert len(draws.log_w) == n and set(ids(draws)) <= set(mu) and correct(draws, mu, 0.01)
        errors.append(z(np.exp(draws.log_w), phi))
        log_p = language.reference().log_p
        assert all(draw.log_p == pytest.approx(log_p[draw.token_ids], abs=1e-6) for draw in draws[:20])
    assert deviation(errors) < 4


@pytest.mark.parametrize(("language", "constraint"), MERGED, ids=str)
def test_the_mode_obeys_it(language: Language, constraint: Merged) -> None:
    mu = reference(language, constraint)[1]
    (ranking,) = rank(constrained(language, 1, 0, constraint), 5, TreeStore(), effort=Effort())
    assert [found.token_ids for found in ranking] == sorted(mu, key=lambda y: (-mu[y], y))[:5]


def residual_means(runs: int, together: int) -> np.ndarray:
    """Return Z_hat / Phi of many trees of which only the root is known, ``together`` residual attempts each.

    The constraint rules out most of what a tree takes for possible before it has looked.
    """
    p, q = np.full(len(VOCABULARY), 1e-3), np.full(len(VOCABULARY), 1e-3)
    p[[A, B, C]], q[[A, 0]] = (0.1, 0.45, 0.44), (0.5, 0.2)
    lm = TableModel(VOCABULARY, lambda sequence: np.log(p if len(sequence) == len(PROMPT) else q))
    language, constraint = Language("two letters", "[abc]a", 4, seed=1), Rule(lambda y, _: not set(y[:1]) & {B, C})
    whole, means = enumerate_language(lm, language.table, PROMPT, language.settings(), 4), []
    phi = sum(math.exp(log_p) for y, log_p in whole.log_p.items() if constraint.allows(y, finished=True))
    for run in range(runs):
        request = replace(language.request(1, run), lm=lm)
        tree = BoundsTree(language.table, 4, constraint)
        evaluator = Evaluator(lm, request.settings, [PROMPT], [tree])
        evaluator.expand([(tree, tree.root)])
        attempts = ResidualAttempts(tree, [request.stream(0, i) for i in range(together)], width=together)
        grow_trees([attempts], evaluator)
        means.append(np.mean(np.exp(attempts.log_estimates)) / phi)
    return np.array(means)


def without_coin(self: ResidualWalk) -> None:
    while (node := self.node) is not None and not self.arrived and node.distribution is not None:
        self.node = self.tree.choose(node, lambda child: child.log_gap, self._rng)
    self.node, self.arrived = None if self.node is None or self.node.state == DEAD else self.node, True


@pytest.mark.parametrize("coin", [True, False], ids=["right", "no coin"])
def test_residual_attempts_that_rule_things_out_for_one_another(coin: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a walk that forgets by which gap it was chosen succeeds too often."""
    if not coin:
        monkeypatch.setattr(ResidualWalk, "descend", without_coin)
    error = z(residual_means(600, 16), 1.0)
    assert abs(error) < 3.5 if coin else error > 10


Found = list[tuple[float, AllowedDraw]]


def enumerated(log_q: Tensor, allows: Callable[[int, int], bool], further: int, *, alone: bool = False) -> Found:
    """Return everything that a walk can find at a step, with its probability, from all orders; ``alone``, the control."""
    law = {token: math.exp(x) for token, x in enumerate(log_q[0].tolist()) if x > -math.inf}
    allowed = frozenset(token for token in law if allows(0, token))
    found: Counter[AllowedDraw] = Counter()
    for p, order, outcome in outcomes(law, allowed, further):
        log_s = math.log(law[outcome.token]) if alone and outcome.token >= 0 else outcome.log_s
        found[AllowedDraw(outcome.token, log_s, len(order))] += p
    return [(p, outcome) for outcome, p in found.items()]


def paths(
    phi: ProposalPhi, request: Request, alone: bool, patch: pytest.MonkeyPatch
) -> Iterator[tuple[float, stepper.Trajectory]]:
    """Yield every way that one walk can go, through the stepper itself, with its probability."""
    scripts: list[list[int]] = [[]]
    while scripts:
        script, p, depth = scripts.pop(), 1.0, 0

        def scripted(
            log_q: Tensor, laws: Sequence[int], keys: Sequence[int], allows: Callable[[int, int], bool], further: int
        ) -> list[AllowedDraw]:
            nonlocal p, depth
            found = enumerated(log_q, allows, further, alone=alone)
            if depth == len(script):  # noqa: B023
                scripts.extend([*script, i] for i in range(1, len(found)))  # noqa: B023
                script.append(0)  # noqa: B023
            chance, outcome = found[script[depth]]  # noqa: B023
            p, depth = p * chance, depth + 1
            return [outcome]

        patch.setattr(stepper, "draw_allowed", scripted)
        steps = stepper.Stepper(request, phi)
        (walk,) = steps.launch(1)
        while not walk.finished:
            steps.advance([walk])
        yield p, walk


@pytest.mark.parametrize("alone", [False, True], ids=["right", "of the draw alone"])
@pytest.mark.parametrize("phi", [LocalPhi(), OneStepPhi()], ids=["local", "onestep"])
@pytest.mark.parametrize("texts", [replace(EVEN, further=1), BOTH], ids=["even", "both"])
def test_weights_are_exact_by_summation_over_all_paths(
    phi: ProposalPhi, texts: TextConstraint, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sum of probability times weight over every path that ends in y is p(y); an estimate of the drawn token alone fails that."""
    total, mu = reference(SHORT, texts)
    found: Counter[Ids] = Counter()
    chance = 0.0
    for p, walk in paths(phi, constrained(SHORT, 1, 0, texts), alone, monkeypatch):
        chance += p
        found[tuple(walk.tokens)] += p * math.exp(walk.log_w)
    assert chance == pytest.approx(1, rel=1e-9)
    if alone:
        assert abs(sum(found.values()) / total - 1) > 0.1
    else:
        assert all(found[y] == pytest.approx(share * total, rel=1e-5) for y, share in mu.items())  # laws are float32


@pytest.mark.parametrize("phi", [LocalPhi(), OneStepPhi()], ids=["local", "onestep"])
def test_a_predicate_that_kills_almost_all_of_a_step(phi: ProposalPhi) -> None:
    """The allowed mass at the first step is about 1e-12 of the whole, and weights are as good as any."""
    base = TableModel.random(VOCABULARY, seed=2)
    tail = np.where(np.isin(np.arange(12), [1, 3, 8]), 0.0, math.log(1e-13))

    class Killed(Language):
        lm = TableModel(VOCABULARY, lambda ids: base.next_logits(ids) + (tail if len(ids) == len(PROMPT) else 0.0))

    language = Killed("killed", "[abc]{2,3}", 5, seed=2)
    texts = TextConstraint(lambda text: not text.startswith("a"), further=2)
    total, mu = reference(language, texts)
    assert total < 1e-11
    (draws,) = sample(phi, constrained(language, 3000, 3, texts))
    w = np.exp(draws.log_w) / total
    assert draws.failures == 0 and w.min() > 1e-3 and abs(z(w, 1.0)) < 4 and correct(draws, mu, 0.01)


@pytest.mark.parametrize("resample", ["never", "ess"])
def test_particles_have_unbiased_evidence(resample: Literal["never", "ess"]) -> None:
    """Populations whose particles step by the same stepper: E[Z_hat] = Phi of guide and predicate."""
    phi, mu = reference(WORDS, BOTH)
    (draws,) = sample(LocalPhi(), constrained(WORDS, 500, 3, BOTH), smc=SMC(particles=8, resample=resample))
    assert len(draws.log_w) == 500 and set(ids(draws)) <= set(mu) and unbiased(draws, phi)


def test_a_prompts_draws_do_not_depend_on_the_batch() -> None:
    request = constrained(WORDS, 40, 5, BOTH)
    (alone,) = sample(LocalPhi(), request)
    together = sample(LocalPhi(), replace(request, prompts=[PROMPT, (3, 4), (5,)]))[0]
    assert ids(together) == ids(alone) and together.log_w == pytest.approx(alone.log_w, abs=1e-6)


def test_the_predicate_is_asked_about_few_texts_and_each_once() -> None:
    """A draw is a handful of steps, each of which asks about one token to the draw and one further, or two; not about all."""
    asked: list[str] = []

    def watched(text: str) -> bool:
        asked.append(text)
        return once(text)

    texts = TextConstraint(watched, further=1)
    (draws,) = sample(LocalPhi(), constrained(LOOP, 1, 1, texts))
    assert len(asked) == len(set(asked)) <= 2 * len(draws[0].token_ids) + 1
    sample(LocalPhi(), constrained(LOOP, 2000, 1, texts))
    assert len(asked) - len(set(asked)) <= len(set(asked))  # two calls, each asks about a text once


@pytest.mark.parametrize(
    ("phi", "options", "words"),
    [
        (LocalPhi(), {}, "Prompt 0.*<lambda> allows no output at all.*first token .*, 6 in all"),
        (LocalPhi(), {"top_k": 1}, "<lambda> allows no output at all under top_k=1: .*, 1 in all"),
        (ExactPhi(), {}, "<lambda> leaves no member .* 6 sequences of tokens.* Phi = 0"),
        (AutoPhi(), {}, "<lambda> leaves no member .* 6 sequences of tokens.* Phi = 0"),
    ],
)
def test_nothing_allowed_says_who_refused_and_how_often(phi: object, options: dict[str, int], words: str) -> None:
    refused(
        words,
        sample,
        phi,
        constrained(WORDS, 3, 1, TextConstraint(lambda text: False), **options),
        error=EmptyLanguageError,
    )


def test_what_comes_to_nothing_late_is_said_or_weighs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    refused(
        "Phi = 0",
        sample,
        ExactPhi(),
        replace(WORDS.request(1, 1), constraint=Rule(lambda _, finished: not finished)),
        error=EmptyLanguageError,
    )
    (draws,) = sample(LocalPhi(), constrained(WORDS, 50, 1, TextConstraint(complete=lambda text: False)))
    assert len(draws) == 0 and draws.failures == 50 and draws.log_z == -math.inf
    monkeypatch.setattr(preexpand, "SHORT", 0)
    refused(
        "let constraint=late refuse earlier",
        sample,
        ExactPhi(effort=Effort(attempts=1)),
        constrained(LOOP, 2, 1, LATE),
        error=BudgetError,
    )


@pytest.mark.parametrize("phi", [ExactPhi(), LocalPhi()], ids=["exact", "local"])
def test_a_predicate_that_raises_or_gives_no_answer(phi: object) -> None:
    def broken(text: str) -> bool:
        return 1 / (2 - len(text)) < 10

    store = TreeStore()
    caught = refused(
        "broken raised ZeroDivisionError .*unfinished texts too",
        sample,
        phi,
        constrained(WORDS, 50, 1, TextConstraint(broken)),
        store=store,
        error=ConstraintError,
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError) and len(caught.value.text) == 2
    nothing = constrained(WORDS, 50, 1, TextConstraint(lambda text: None))  # type: ignore[arg-type, return-value]
    refused("returned None for the text", sample, phi, nothing, store=store, error=ConstraintError)
    # What was learned before the error is no harm to what comes after it.
    (after,) = sample(phi, constrained(WORDS, 3, None, ONCE), store=store)
    assert len(after) + after.failures == 3 and all(member(draw.token_ids, ONCE) for draw in after)


def test_trees_are_not_shared_between_predicates_and_count_what_these_remember() -> None:
    """Unseeded calls start from what is known of the same predicate, and of no other."""
    store, other = TreeStore(), TextConstraint(lambda text: "c" in text or len(text) < 6)
    for texts in (BOTH, other, BOTH, None):
        request = WORDS.request(3000, None) if texts is None else constrained(WORDS, 3000, None, texts)
        mu = WORDS.reference().mu if texts is None else reference(WORDS, texts)[1]
        assert p_value(ids(*sample(ExactPhi(), request, store=store)), mu) > ALPHA
    assert len(store) == 3
    (cold,) = sample(ExactPhi(), constrained(WORDS, 10, 1, replace(BOTH)))
    (warm,) = sample(ExactPhi(), constrained(WORDS, 10, None, replace(BOTH)), store=store)
    assert warm.counts.tokens < 15 < cold.counts.tokens
    tree = tree_of(store, constrained(WORDS, 10, None, BOTH))
    assert tree.constraint is not None and tree.constraint.bytes > 1000
    assert tree.bytes == tree.nodes * NODE_BYTES + tree.distribution_bytes + tree.constraint.bytes
